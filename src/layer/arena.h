// Arena: lays out the scratch of a step in one buffer. A part of a model takes what it needs for the largest step when
// the model is made; parts that run one after the other take the same memory (rewind).
//
// Without memory behind it, it only counts: the same calls say what a model will need.
#pragma once

#include <algorithm>

#include "backend/backend.h"

namespace spate {

class Arena {
 public:
  // `device` says how far apart rows of activations lie; nullptr with `base` nullptr: count only.
  Arena(const Device* device, void* base, DType act_dtype, int64_t max_num_tokens)
      : device_(device), base_(static_cast<char*>(base)), act_dtype_(act_dtype), max_num_tokens_(max_num_tokens) {}

  // [rows, columns], contiguous.
  Tensor take(DType dtype, int64_t rows, int64_t columns) {
    const Tensor tensor(base_ == nullptr ? nullptr : base_ + used_, dtype, {rows, columns});
    used_ += (tensor.num_bytes() + 255) / 256 * 256;
    return tensor;
  }
  // [max_num_tokens, columns], contiguous.
  Tensor take_rows(DType dtype, int64_t columns) { return take(dtype, max_num_tokens_, columns); }
  // [max_num_tokens, columns] act, contiguous.
  Tensor take_contiguous(int64_t columns) { return take(act_dtype_, max_num_tokens_, columns); }
  // [max_num_tokens, columns] act, rows as far apart as the device likes them. Counts the largest such distance, so
  // that a count without a device is enough with one.
  Tensor take_activations(int64_t columns) {
    constexpr int64_t kRoom = 128;
    const int64_t element_bytes = dtype_bytes(act_dtype_), row_bytes = columns * element_bytes;
    const Tensor room = take(act_dtype_, max_num_tokens_, columns + kRoom / element_bytes);
    const int64_t stride = device_ == nullptr ? row_bytes : device_->activation_row_bytes(row_bytes);
    SPATE_CHECK(stride >= row_bytes && stride < row_bytes + kRoom && stride % element_bytes == 0, "stride",
                "rows of {} bytes {} apart", row_bytes, stride);
    return Tensor(room.raw(), act_dtype_, {max_num_tokens_, stride / element_bytes}).columns(0, columns);
  }

  int64_t used() const { return used_; }
  void rewind(int64_t used) { used_ = used; }

 private:
  const Device* device_;
  char* base_;
  DType act_dtype_;
  int64_t max_num_tokens_;
  int64_t used_ = 0;
};

}  // namespace spate
