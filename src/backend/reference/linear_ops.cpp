// Products with a weight matrix, and row look-ups.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/product_rows.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/reference_weight.h"

namespace spate::reference {
namespace {

// Element (row, k) of a table.
double table_value(const PackedWeight& table, int64_t row, int64_t k) {
  const WeightDesc& desc = table.desc();
  if (!desc.spec.has_integer_codes()) return load(table.data(), value_dtype(desc.spec), row * desc.in_features + k);
  const QuantizedRows rows = quantized_view(table, 0);
  const int64_t g = k / desc.spec.group_width(desc.in_features);
  const double offset = rows.offsets.defined() ? load(rows.offsets, row, g) : 0.0;
  return load(rows.scales, row, g) * rows.codes.data<int8_t>()[row * desc.in_features + k] + offset;
}

}  // namespace

void embedding(Stream&, const EmbeddingParams& p) {
  check_params(p);
  const WeightDesc& desc = p.table->desc();
  for (int64_t i = 0; i < p.token_ids.dim(0); ++i) {
    const int64_t row = p.token_ids.data<int32_t>()[i] - p.first_row;
    const bool here = row >= 0 && row < desc.out_features;
    for (int64_t k = 0; k < desc.in_features; ++k) {
      store(p.out, i, k, here ? table_value(*p.table, row, k) : 0.0);
    }
  }
}

void linear(Stream&, const LinearParams& p) {
  check_params(p);
  const int64_t num_rows = p.x.dim(0);
  for (int64_t first = 0; first < num_rows; first += ProductRows::kMaxRows) {
    const ProductRows rows(p.x, first, std::min(num_rows - first, ProductRows::kMaxRows), *p.weight, p.matrix_idx);
    const std::vector<ProductRows::Sums> products = rows.products(p.bias);
    for (int64_t n = 0; n < p.weight->desc().out_features; ++n) {
      const ProductRows::Sums& sums = products[static_cast<size_t>(n)];
      for (int64_t i = 0; i < rows.num_rows(); ++i) store(p.out, first + i, n, sums[static_cast<size_t>(i)]);
    }
  }
}

void linear_silu_and_mul(Stream&, const LinearSiluAndMulParams& p) {
  check_params(p);
  const DType act = p.x.dtype();
  const int64_t num_rows = p.x.dim(0), intermediate_size = p.weight->desc().out_features / 2;
  for (int64_t first = 0; first < num_rows; first += ProductRows::kMaxRows) {
    const ProductRows rows(p.x, first, std::min(num_rows - first, ProductRows::kMaxRows), *p.weight, p.matrix_idx);
    const std::vector<ProductRows::Sums> products = rows.products(p.bias);
    for (int64_t n = 0; n < intermediate_size; ++n) {
      const ProductRows::Sums &gates = products[static_cast<size_t>(n)],
                              &ups = products[static_cast<size_t>(intermediate_size + n)];
      for (int64_t i = 0; i < rows.num_rows(); ++i) {
        const double gate = round_to(act, gates[static_cast<size_t>(i)]),
                     up = round_to(act, ups[static_cast<size_t>(i)]);
        store(p.out, first + i, n, round_to(act, gate / (1 + std::exp(-gate))) * up);
      }
    }
  }
}

void gather_rows(Stream&, const GatherRowsParams& p) {
  check_params(p);
  const int64_t bytes = dtype_bytes(p.x.dtype());
  for (int64_t i = 0; i < p.row_ids.dim(0); ++i) {
    const int64_t row = p.row_ids.data<int32_t>()[i];
    CHECK(row >= -1 && row < p.x.dim(0), "gather_rows: row {} of {}", row, p.x.dim(0));
    char* out = static_cast<char*>(p.out.raw()) + i * p.out.stride(0) * bytes;
    const auto row_bytes = static_cast<size_t>(p.x.dim(1) * bytes);
    if (row < 0) {
      std::memset(out, 0, row_bytes);
    } else {
      std::memcpy(out, static_cast<const char*>(p.x.raw()) + row * p.x.stride(0) * bytes, row_bytes);
    }
  }
}

void scatter_rows(Stream&, const ScatterRowsParams& p) {
  check_params(p);
  const int64_t bytes = dtype_bytes(p.x.dtype());
  for (int64_t i = 0; i < p.row_ids.dim(0); ++i) {
    const int64_t row = p.row_ids.data<int32_t>()[i];
    CHECK(row >= -1 && row < p.out.dim(0), "scatter_rows: row {} of {}", row, p.out.dim(0));
    if (row < 0) continue;
    std::memcpy(static_cast<char*>(p.out.raw()) + row * p.out.stride(0) * bytes,
                static_cast<const char*>(p.x.raw()) + i * p.x.stride(0) * bytes,
                static_cast<size_t>(p.x.dim(1) * bytes));
  }
}

}  // namespace spate::reference
