#include "base/tensor_compare.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace spate {
namespace {

int64_t element_offset(const Tensor& tensor, int64_t flat_idx) {
  int64_t offset = 0;
  for (int i = tensor.rank() - 1; i >= 0; --i) {
    offset += flat_idx % tensor.dim(i) * tensor.stride(i);
    flat_idx /= tensor.dim(i);
  }
  return offset;
}

// Elements of the last dimension, which lie side by side.
int64_t row_width(const Tensor& tensor) { return tensor.rank() == 0 ? 0 : tensor.dim(tensor.rank() - 1); }

std::string index_string(const Tensor& tensor, int64_t flat_idx) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.rank()));
  for (int i = tensor.rank() - 1; i >= 0; --i) {
    index[static_cast<size_t>(i)] = flat_idx % tensor.dim(i);
    flat_idx /= tensor.dim(i);
  }
  std::string text = "[";
  for (size_t i = 0; i < index.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", index[i]);
  return text + "]";
}

bool same_dims(const Tensor& a, const Tensor& b) {
  if (a.rank() != b.rank()) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (a.dim(i) != b.dim(i)) return false;
  }
  return true;
}

double value_at(const Tensor& tensor, int64_t offset) {
  switch (tensor.dtype()) {
    case DType::kF32: return tensor.data<float>()[offset];
    case DType::kF64: return tensor.data<double>()[offset];
    case DType::kF16: return tensor.data<F16>()[offset].to_float();
    case DType::kBf16: return tensor.data<Bf16>()[offset].to_float();
    case DType::kI8: return tensor.data<int8_t>()[offset];
    case DType::kU8: return tensor.data<uint8_t>()[offset];
    case DType::kI32: return tensor.data<int32_t>()[offset];
    case DType::kI64: return static_cast<double>(tensor.data<int64_t>()[offset]);
  }
  return 0;
}

}  // namespace

double element_at(const Tensor& tensor, int64_t flat_idx) { return value_at(tensor, element_offset(tensor, flat_idx)); }

std::string close_to(const char* name, const Tensor& actual, const Tensor& expected, Tolerance tolerance) {
  if (!same_dims(actual, expected)) {
    return fmt::format("{} {}: expected shape {}", name, actual.shape_string(), expected.shape_string());
  }
  int64_t num_outside = 0, worst_idx = -1;
  double worst_excess = -1;
  const int64_t width = row_width(actual);
  for (int64_t first = 0; first < actual.num_elements(); first += width) {
    const int64_t actual_offset = element_offset(actual, first), expected_offset = element_offset(expected, first);
    for (int64_t j = 0; j < width; ++j) {
      const double a = value_at(actual, actual_offset + j), e = value_at(expected, expected_offset + j);
      if (a == e || (std::isnan(a) && std::isnan(e))) continue;
      const double allowed = tolerance.abs + tolerance.rel * std::abs(e);
      const double error = std::abs(a - e);
      if (error <= allowed) continue;  // false for NaN
      ++num_outside;
      const double excess = std::isnan(error) || allowed == 0 ? 1e300 : error / allowed;
      if (excess > worst_excess) {
        worst_excess = excess;
        worst_idx = first + j;
      }
    }
  }
  if (num_outside == 0) return {};
  const double a = element_at(actual, worst_idx), e = element_at(expected, worst_idx);
  return fmt::format("{} {}: {} of {} outside rel {:g} abs {:g}; worst at {}: {:g}, expected {:g} (off by {:g}, {:.3g} %)",
                     name, actual.shape_string(), num_outside, actual.num_elements(), tolerance.rel, tolerance.abs,
                     index_string(actual, worst_idx), a, e, std::abs(a - e), 100 * std::abs((a - e) / e));
}

std::string equal_bits(const char* name, const Tensor& actual, const Tensor& expected) {
  if (!same_dims(actual, expected) || actual.dtype() != expected.dtype()) {
    return fmt::format("{} {} {}: expected {} {}", name, dtype_name(actual.dtype()), actual.shape_string(),
                       dtype_name(expected.dtype()), expected.shape_string());
  }
  const int64_t bytes = dtype_bytes(actual.dtype());
  int64_t num_different = 0, first_idx = -1;
  const int64_t width = row_width(actual);
  for (int64_t first = 0; first < actual.num_elements(); first += width) {
    const char* a = static_cast<const char*>(actual.raw()) + element_offset(actual, first) * bytes;
    const char* e = static_cast<const char*>(expected.raw()) + element_offset(expected, first) * bytes;
    if (std::memcmp(a, e, static_cast<size_t>(width * bytes)) == 0) continue;
    for (int64_t j = 0; j < width; ++j) {
      if (std::memcmp(a + j * bytes, e + j * bytes, static_cast<size_t>(bytes)) == 0) continue;
      if (num_different++ == 0) first_idx = first + j;
    }
  }
  if (num_different == 0) return {};
  return fmt::format("{} {}: {} of {} differ in their bits; first at {}: {:.9g}, expected {:.9g}", name,
                     actual.shape_string(), num_different, actual.num_elements(), index_string(actual, first_idx),
                     element_at(actual, first_idx), element_at(expected, first_idx));
}

double relative_l2(const Tensor& actual, const Tensor& expected) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < actual.num_elements(); ++i) {
    const double a = element_at(actual, i), e = element_at(expected, i);
    error += (a - e) * (a - e);
    norm += e * e;
  }
  return std::sqrt(error) / std::sqrt(norm > 0 ? norm : 1);
}

}  // namespace spate
