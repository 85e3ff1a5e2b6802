// ShapeCheck: says what an op needs of its tensors, by name, and stops with both shapes when it is not so.
//
//   ShapeCheck check("rms_norm");
//   const Dim num_tokens = check.dim("num_tokens");   // bound by the first tensor that has it
//   check.tensor("x", x, x.dtype(), {num_tokens, hidden_size});
//
// A failure: "rms_norm: out is bf16 [4, 128], needs bf16 [num_tokens = 4, hidden_size = 64] (dim 1)".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/tensor.h"

namespace spate {

class ShapeCheck;

// A named size of one op, or a fixed number. Cheap to copy; lives no longer than its ShapeCheck.
class Dim {
 public:
  Dim(int64_t fixed) : fixed_(fixed) {}  // NOLINT: a number is a Dim
  int64_t value() const;

 private:
  friend class ShapeCheck;
  Dim(ShapeCheck* check, int index) : check_(check), index_(index) {}
  ShapeCheck* check_ = nullptr;
  int index_ = -1;
  int64_t fixed_ = -1;
};

class ShapeCheck {
 public:
  explicit ShapeCheck(const char* op) : op_(op) {}
  ShapeCheck(const ShapeCheck&) = delete;
  ShapeCheck& operator=(const ShapeCheck&) = delete;

  Dim dim(const char* name);
  // Dtype and every dimension; the last dimension must be contiguous by Tensor's definition.
  void tensor(const char* name, const Tensor& tensor, DType dtype, std::initializer_list<Dim> dims);

 private:
  friend class Dim;
  struct Named {
    const char* name;
    int64_t value = -1;  // not bound yet
  };
  std::string describe(std::initializer_list<Dim> dims) const;
  const char* op_;
  std::vector<Named> named_;
};

}  // namespace spate
