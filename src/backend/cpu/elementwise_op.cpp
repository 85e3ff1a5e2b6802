// Norms, rotary embedding and element-wise ops over rows.
#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {

void rms_norm(Stream& stream, const RmsNormParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const int64_t heads = p.x.rank() == 3 ? p.x.dim(1) : 1, width = p.weight.dim(0);
  const int64_t x_head = p.x.rank() == 3 ? p.x.stride(1) : 0, out_head = p.x.rank() == 3 ? p.out.stride(1) : 0;
  for_row_ranges(context, p.x.dim(0), heads * width, [&](int64_t begin, int64_t end) {
    RmsNormRows rows{.x = nullptr,
                     .residual = nullptr,
                     .weight = p.weight.raw(),
                     .out = nullptr,
                     .num_rows = end - begin,
                     .x_stride = p.x.stride(0),
                     .out_stride = p.out.stride(0),
                     .width = width,
                     .eps = p.eps};
    for (int64_t h = 0; h < heads; ++h) {
      rows.x = address(p.x, begin * p.x.stride(0) + h * x_head);
      rows.out = address(p.out, begin * p.out.stride(0) + h * out_head);
      context.kernels.rms_norm_rows(rows, elem_of(p.x.dtype()));
    }
  });
}

void add_rms_norm(Stream& stream, const AddRmsNormParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  for_row_ranges(context, p.x.dim(0), p.x.dim(1), [&](int64_t begin, int64_t end) {
    context.kernels.rms_norm_rows({.x = address(p.x, begin * p.x.stride(0)),
                                   .residual = address(p.residual, begin * p.residual.stride(0)),
                                   .weight = p.weight.raw(),
                                   .out = address(p.out, begin * p.out.stride(0)),
                                   .num_rows = end - begin,
                                   .x_stride = p.x.stride(0),
                                   .residual_stride = p.residual.stride(0),
                                   .out_stride = p.out.stride(0),
                                   .width = p.x.dim(1),
                                   .eps = p.eps},
                                  elem_of(p.x.dtype()));
  });
}

void add(Stream& stream, const AddParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  for_rows(context, p.a.dim(0), p.a.dim(1), [&](int64_t i) {
    context.kernels.add_row(address(p.a, i * p.a.stride(0)), address(p.b, i * p.b.stride(0)),
                            address(p.out, i * p.out.stride(0)), p.a.dim(1), elem_of(p.a.dtype()));
  });
}

void silu_and_mul(Stream& stream, const SiluAndMulParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const int64_t intermediate_size = p.out.dim(1);
  for_rows(context, p.out.dim(0), 2 * intermediate_size, [&](int64_t i) {
    const int64_t gate = i * p.gate_up.stride(0);
    context.kernels.silu_and_mul_row(address(p.gate_up, gate), address(p.gate_up, gate + intermediate_size),
                                     address(p.out, i * p.out.stride(0)), intermediate_size, elem_of(p.out.dtype()));
  });
}

void rope(Stream& stream, const RopeParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  for_rows(context, p.x.dim(0), p.x.dim(1) * p.x.dim(2), [&](int64_t i) {
    const int64_t position = p.positions.data<int32_t>()[i];
    CHECK(position >= 0 && position < p.cos_sin.dim(0), "rope: position {} of {}", position, p.cos_sin.dim(0));
    const float* cos_sin = p.cos_sin.data<float>() + position * p.cos_sin.stride(0);
    for (int64_t h = 0; h < p.x.dim(1); ++h) {
      context.kernels.rope_row(address(p.x, i * p.x.stride(0) + h * p.x.stride(1)), cos_sin, p.cos_sin.dim(1),
                               p.interleaved, elem_of(p.x.dtype()));
    }
  });
}

}  // namespace spate::cpu
