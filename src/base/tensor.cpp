#include "base/tensor.h"

#include <cstdlib>
#include <cstring>

namespace spate {

Tensor::Tensor(void* data, DType dtype, std::span<const int64_t> dims)
    : data_(data), dtype_(dtype), rank_(static_cast<int>(dims.size())) {
  CHECK(dims.size() >= 1 && dims.size() <= kMaxTensorRank, "a tensor has 1 to {} dimensions, not {}", kMaxTensorRank,
        dims.size());
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    CHECK(dims[i] >= 0, "dimension {} is {}", i, dims[i]);
    dims_[i] = dims[i];
    strides_[i] = stride;
    stride *= dims[i];
  }
}

int64_t Tensor::num_elements() const {
  if (rank_ == 0) return 0;
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= dims_[i];
  return n;
}

bool Tensor::is_contiguous() const {
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    if (dims_[i] != 1 && strides_[i] != stride) return false;
    stride *= dims_[i];
  }
  return true;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  CHECK(rank_ >= 1 && 0 <= begin && begin <= end && end <= dims_[0], "rows [{}, {}) of {}", begin, end, shape_string());
  Tensor view = *this;
  view.data_ = static_cast<char*>(data_) + begin * strides_[0] * dtype_bytes(dtype_);
  view.dims_[0] = end - begin;
  return view;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  const int last = rank_ - 1;
  CHECK(rank_ >= 1 && 0 <= begin && begin <= end && end <= dims_[last], "columns [{}, {}) of {}", begin, end,
        shape_string());
  Tensor view = *this;
  view.data_ = static_cast<char*>(data_) + begin * dtype_bytes(dtype_);
  view.dims_[last] = end - begin;
  return view;
}

Tensor Tensor::split_last(int64_t a, int64_t b) const {
  const int last = rank_ - 1;
  CHECK(rank_ >= 1 && rank_ < kMaxTensorRank && dims_[last] == a * b, "split of {} into {} x {}", shape_string(), a, b);
  Tensor view = *this;
  view.rank_ = rank_ + 1;
  view.dims_[last] = a;
  view.strides_[last] = b;
  view.dims_[last + 1] = b;
  view.strides_[last + 1] = 1;
  return view;
}

Tensor Tensor::reshaped(std::initializer_list<int64_t> dims) const {
  CHECK(is_contiguous(), "reshape of a strided tensor {}", shape_string());
  Tensor view(data_, dtype_, dims);
  CHECK(view.num_elements() == num_elements(), "reshape of {} to {}", shape_string(), view.shape_string());
  return view;
}

std::string Tensor::shape_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i ? ", " : "", dims_[i]);
  return text + "]";
}

void HostTensor::Free::operator()(void* p) const { std::free(p); }

HostTensor::HostTensor(DType dtype, std::span<const int64_t> dims) : view_(nullptr, dtype, dims) {
  const size_t bytes = (static_cast<size_t>(view_.num_bytes()) + 63) / 64 * 64;
  void* p = std::aligned_alloc(64, bytes ? bytes : 64);
  CHECK(p != nullptr, "out of host memory: {} bytes for {}", bytes, view_.shape_string());
  std::memset(p, 0, bytes ? bytes : 64);
  bytes_.reset(p);
  view_ = Tensor(p, dtype, dims);
}

}  // namespace spate
