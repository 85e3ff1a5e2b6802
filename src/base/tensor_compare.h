// The comparator of all tensor tests.
//
//   CHECK_TENSOR(close_to("out", actual, expected, {.rel = 0.0079, .abs = 1e-5}));
//
// An element passes when |actual - expected| <= abs + rel * |expected|. NaN passes only against NaN.
// The failure text: "out [257, 5120]: 3 of 1315840 outside rel 0.0079 abs 1e-05; worst at [256, 5119]: 0.4141,
// expected 0.4219 (off by 0.0078, 1.85 %)". Tensors are host tensors, any strides, any float or integer dtype.
#pragma once

#include <string>

#include "base/tensor.h"

namespace spate {

struct Tolerance {
  double rel = 0;
  double abs = 0;
};

// Empty when close; else the failure text.
std::string close_to(const char* name, const Tensor& actual, const Tensor& expected, Tolerance tolerance);
// Bit equality: tolerance zero, and -0 differs from 0.
std::string equal_bits(const char* name, const Tensor& actual, const Tensor& expected);
// || actual - expected ||_2 / || expected ||_2, for whole-layer comparisons.
double relative_l2(const Tensor& actual, const Tensor& expected);
// Element at a flat row-major index, as double.
double element_at(const Tensor& tensor, int64_t flat_idx);

#define CHECK_TENSOR(expr)                    \
  do {                                        \
    const std::string difference_ = (expr);   \
    CHECK_MESSAGE(difference_.empty(), difference_); \
  } while (false)

}  // namespace spate
