#include "quantizer/cholesky.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "quantizer/parallel_rows.h"

namespace spate {
namespace {

constexpr int64_t kBlock = 64;         // columns that are finished before the rest is updated with them
constexpr int64_t kSerialRows = 128;   // fewer are not worth a thread
constexpr int64_t kInverseBlock = 32;  // rows of the inverse made together
constexpr int64_t kSlice = 512;        // columns of them made by one thread at a time

// out[0 .. n) -= factor * row[0 .. n)
void subtract_row(double* out, const double* row, double factor, int64_t n) {
  for (int64_t j = 0; j < n; ++j) out[j] -= factor * row[j];
}

// R, in the upper triangle, block columns from the right: for the columns [begin, end) all of R to the right is known
// and has been subtracted. R[i, j] for j in the block is found for all i <= j at once.
Status factor(double* h, int64_t k, int num_threads) {
  std::vector<double> column(static_cast<size_t>(k * kBlock));  // R[0 .. end, begin .. end), transposed
  for (int64_t end = k; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - kBlock);
    for (int64_t j = end - 1; j >= begin; --j) {
      const double pivot = h[j * k + j];
      if (!(pivot > 0))
        return invalid_argument("column {} has the pivot {}: the matrix is not positive definite", j, pivot);
      const double root = std::sqrt(pivot);
      h[j * k + j] = root;
      double* r = column.data() + (j - begin) * k;
      for (int64_t i = 0; i < j; ++i) r[i] = h[i * k + j] /= root;
      r[j] = root;
      // The columns of this block left of j: h[i, c] -= R[i, j] R[c, j].
      for (int64_t i = 0; i < j; ++i) {
        for (int64_t c = std::max(begin, i); c < j; ++c) h[i * k + c] -= r[i] * r[c];
      }
    }
    // The columns left of the block.
    const auto update = [&](int64_t row_begin, int64_t row_end) {
      for (int64_t i = row_begin; i < row_end; ++i) {
        for (int64_t j = begin; j < end; ++j) {
          const double* r = column.data() + (j - begin) * k;
          subtract_row(h + i * k + i, r + i, r[i], begin - i);
        }
      }
    };
    parallel_rows(begin, begin < kSerialRows ? 1 : num_threads, update);
    end = begin;
  }
  return ok_status();
}

// U = R^-1 in place of R, rows from the last up: U[i, i] = 1 / R[i, i], U[i, i + 1 ..] = -(R[i, i + 1 ..] U) / R[i, i].
// Rows in blocks, so that the rows of U below a block are read once for all of it; columns in slices that stay in
// cache.
void invert(double* h, int64_t k, int num_threads) {
  std::vector<double> r(static_cast<size_t>(kInverseBlock * k));
  for (int64_t end = k; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - kInverseBlock);
    for (int64_t i = begin; i < end; ++i) {
      std::copy(h + i * k + i, h + i * k + k, r.begin() + (i - begin) * k + i);
      std::fill(h + i * k + i, h + i * k + k, 0.0);
    }
    const auto fill_slice = [&](int64_t first, int64_t last) {  // columns
      for (int64_t j = end; j < last; ++j) {
        const int64_t from = std::max(first, j);
        for (int64_t i = begin; i < end; ++i)
          subtract_row(h + i * k + from, h + j * k + from, r[(i - begin) * k + j], last - from);
      }
      for (int64_t i = end - 1; i >= begin; --i) {
        for (int64_t j = i + 1; j < std::min(end, last); ++j) {
          const int64_t from = std::max(first, j);
          subtract_row(h + i * k + from, h + j * k + from, r[(i - begin) * k + j], last - from);
        }
        const double inverse = 1 / r[(i - begin) * k + i];
        for (int64_t c = std::max(first, i); c < last; ++c) h[i * k + c] *= inverse;
        if (i >= first && i < last) h[i * k + i] = inverse;
      }
    };
    const int64_t num_slices = (k - begin + kSlice - 1) / kSlice;
    parallel_rows(num_slices, num_slices < 4 ? 1 : num_threads, [&](int64_t first, int64_t last) {
      for (int64_t s = first; s < last; ++s) fill_slice(begin + s * kSlice, std::min(k, begin + (s + 1) * kSlice));
    });
    end = begin;
  }
}

}  // namespace

Status invert_to_upper_factor(const Tensor& matrix, int num_threads) {
  const int64_t k = matrix.dim(0);
  CHECK(matrix.dim(1) == k && matrix.is_contiguous(), "{} is not square", matrix.shape_string());
  double* h = matrix.data<double>();
  RETURN_IF_ERROR(factor(h, k, num_threads));
  for (int64_t i = 1; i < k; ++i) std::fill(h + i * k, h + i * k + i, 0.0);
  invert(h, k, num_threads);
  return ok_status();
}

}  // namespace spate
