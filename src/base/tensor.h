// Tensor: a view of an array of up to four dimensions, on any device. It owns nothing.
//
// The last dimension is contiguous; the others have strides in elements, so that q is a view of the columns
// of qkv. Who owns the bytes: backend Buffer (backend/backend.h), HostTensor (below), or a mapped file.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "base/check.h"
#include "base/dtype.h"

namespace spate {

constexpr int kMaxTensorRank = 4;

class Tensor {
 public:
  Tensor() = default;
  // Contiguous, row-major.
  Tensor(void* data, DType dtype, std::span<const int64_t> dims);
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> dims)
      : Tensor(data, dtype, std::span<const int64_t>(dims.begin(), dims.size())) {}

  bool defined() const { return rank_ != 0; }
  int rank() const { return rank_; }
  DType dtype() const { return dtype_; }
  int64_t dim(int i) const {
    DCHECK(i < rank_);
    return dims_[i];
  }
  int64_t stride(int i) const {  // in elements
    DCHECK(i < rank_);
    return strides_[i];
  }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype_); }
  bool is_contiguous() const;

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    DCHECK(DTypeOf<std::remove_const_t<T>>::value == dtype_);
    return static_cast<T*>(data_);
  }

  // Rows [begin, end) of the first dimension.
  Tensor rows(int64_t begin, int64_t end) const;
  // Columns [begin, end) of the last dimension: a strided view.
  Tensor columns(int64_t begin, int64_t end) const;
  // [n, a * b] seen as [n, a, b]; only the last dimension is split.
  Tensor split_last(int64_t a, int64_t b) const;
  // The same elements with other dims; needs a contiguous tensor.
  Tensor reshaped(std::initializer_list<int64_t> dims) const;

  std::string shape_string() const;  // "[257, 5120]"

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<int64_t, kMaxTensorRank> dims_{};
  std::array<int64_t, kMaxTensorRank> strides_{};
};

// A tensor that owns its bytes on the host, 64-byte aligned, zeroed.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, std::initializer_list<int64_t> dims)
      : HostTensor(dtype, std::span<const int64_t>(dims.begin(), dims.size())) {}
  HostTensor(DType dtype, std::span<const int64_t> dims);

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT: a HostTensor is used as its view
  template <typename T>
  std::span<T> span() const {
    return {view_.data<T>(), static_cast<size_t>(view_.num_elements())};
  }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> bytes_;
  Tensor view_;
};

}  // namespace spate
