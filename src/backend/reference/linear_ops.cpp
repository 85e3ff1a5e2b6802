// Products with a weight matrix, and row look-ups.
#include <cmath>
#include <cstring>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/reference_ops.h"

namespace spate::reference {
namespace {

DType weight_dtype(const PackedWeight& weight) {
  return weight.desc().format == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
}

// x[i, :] . W[n, :] + bias[n]
double dot_row(const Tensor& x, int64_t i, const PackedWeight& weight, int64_t n, const Tensor& bias) {
  const int64_t in_features = weight.desc().in_features;
  double sum = 0;
  for (int64_t k = 0; k < in_features; ++k) {
    sum += load(x, i, k) * load(weight.data(), weight_dtype(weight), n * in_features + k);
  }
  return bias.defined() ? sum + load(bias.raw(), bias.dtype(), n) : sum;
}

}  // namespace

void embedding(Stream&, const EmbeddingParams& p) {
  check_params(p);
  const WeightDesc& desc = p.table->desc();
  for (int64_t i = 0; i < p.token_ids.dim(0); ++i) {
    const int64_t row = p.token_ids.data<int32_t>()[i] - p.first_row;
    const bool here = row >= 0 && row < desc.out_features;
    for (int64_t k = 0; k < desc.in_features; ++k) {
      store(p.out, i, k, here ? load(p.table->data(), weight_dtype(*p.table), row * desc.in_features + k) : 0.0);
    }
  }
}

void linear(Stream&, const LinearParams& p) {
  check_params(p);
  for (int64_t i = 0; i < p.x.dim(0); ++i) {
    for (int64_t n = 0; n < p.weight->desc().out_features; ++n) {
      store(p.out, i, n, dot_row(p.x, i, *p.weight, n, p.bias));
    }
  }
}

void linear_silu_and_mul(Stream&, const LinearSiluAndMulParams& p) {
  check_params(p);
  const DType act = p.x.dtype();
  const int64_t intermediate_size = p.weight->desc().out_features / 2;
  for (int64_t i = 0; i < p.x.dim(0); ++i) {
    for (int64_t n = 0; n < intermediate_size; ++n) {
      const double gate = round_to(act, dot_row(p.x, i, *p.weight, n, p.bias));
      const double up = round_to(act, dot_row(p.x, i, *p.weight, intermediate_size + n, p.bias));
      store(p.out, i, n, round_to(act, gate / (1 + std::exp(-gate))) * up);
    }
  }
}

void gather_rows(Stream&, const GatherRowsParams& p) {
  check_params(p);
  const int64_t bytes = dtype_bytes(p.x.dtype());
  for (int64_t i = 0; i < p.row_ids.dim(0); ++i) {
    const int64_t row = p.row_ids.data<int32_t>()[i];
    CHECK(row >= 0 && row < p.x.dim(0), "gather_rows: row {} of {}", row, p.x.dim(0));
    std::memcpy(static_cast<char*>(p.out.raw()) + i * p.out.stride(0) * bytes,
                static_cast<const char*>(p.x.raw()) + row * p.x.stride(0) * bytes,
                static_cast<size_t>(p.x.dim(1) * bytes));
  }
}

}  // namespace spate::reference
