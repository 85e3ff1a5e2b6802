// Norms, rotary embedding and element-wise ops.
#include <cmath>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/reference_ops.h"

namespace spate::reference {
namespace {

// One row of `width` elements at an element offset of x and of out.
void rms_norm_row(const Tensor& x, int64_t x_offset, const Tensor& weight, double eps, const Tensor& out,
                  int64_t out_offset) {
  const int64_t width = weight.dim(0);
  const DType act = x.dtype();
  double sum_of_squares = 0;
  for (int64_t k = 0; k < width; ++k) {
    const double value = load(x.raw(), act, x_offset + k);
    sum_of_squares += value * value;
  }
  const double scale = 1 / std::sqrt(sum_of_squares / static_cast<double>(width) + eps);
  for (int64_t k = 0; k < width; ++k) {
    const double normed = round_to(act, load(x.raw(), act, x_offset + k) * scale);
    store(out.raw(), act, out_offset + k, normed * load(weight.raw(), act, k));
  }
}

}  // namespace

void rms_norm(Stream&, const RmsNormParams& p) {
  check_params(p);
  const int64_t num_heads = p.x.rank() == 3 ? p.x.dim(1) : 1;
  for (int64_t i = 0; i < p.x.dim(0); ++i) {
    for (int64_t h = 0; h < num_heads; ++h) {
      const bool heads = p.x.rank() == 3;
      rms_norm_row(p.x, i * p.x.stride(0) + (heads ? h * p.x.stride(1) : 0), p.weight, p.eps, p.out,
                   i * p.out.stride(0) + (heads ? h * p.out.stride(1) : 0));
    }
  }
}

void add(Stream&, const AddParams& p) {
  check_params(p);
  for (int64_t i = 0; i < p.a.dim(0); ++i) {
    for (int64_t k = 0; k < p.a.dim(1); ++k) store(p.out, i, k, load(p.a, i, k) + load(p.b, i, k));
  }
}

void silu_and_mul(Stream&, const SiluAndMulParams& p) {
  check_params(p);
  const int64_t intermediate_size = p.out.dim(1);
  for (int64_t i = 0; i < p.out.dim(0); ++i) {
    for (int64_t n = 0; n < intermediate_size; ++n) {
      const double gate = load(p.gate_up, i, n);
      const double silu = round_to(p.out.dtype(), gate / (1 + std::exp(-gate)));
      store(p.out, i, n, silu * load(p.gate_up, i, intermediate_size + n));
    }
  }
}

void rope(Stream&, const RopeParams& p) {
  check_params(p);
  const int64_t half = p.cos_sin.dim(1) / 2;
  for (int64_t i = 0; i < p.x.dim(0); ++i) {
    const int64_t position = p.positions.data<int32_t>()[i];
    CHECK(position >= 0 && position < p.cos_sin.dim(0), "rope: position {} of {}", position, p.cos_sin.dim(0));
    for (int64_t h = 0; h < p.x.dim(1); ++h) {
      for (int64_t j = 0; j < half; ++j) {
        const double cos = load(p.cos_sin, position, j), sin = load(p.cos_sin, position, half + j);
        const int64_t a_idx = p.interleaved ? 2 * j : j, b_idx = p.interleaved ? 2 * j + 1 : j + half;
        const double a = load(p.x, i, h, a_idx), b = load(p.x, i, h, b_idx);
        store(p.x, i, h, a_idx, a * cos - b * sin);
        store(p.x, i, h, b_idx, b * cos + a * sin);
      }
    }
  }
}

void add_rms_norm(Stream&, const AddRmsNormParams& p) {
  check_params(p);
  for (int64_t i = 0; i < p.x.dim(0); ++i) {
    for (int64_t k = 0; k < p.x.dim(1); ++k) store(p.residual, i, k, load(p.residual, i, k) + load(p.x, i, k));
    rms_norm_row(p.residual, i * p.residual.stride(0), p.weight, p.eps, p.out, i * p.out.stride(0));
  }
}

}  // namespace spate::reference
