#include "backend/cuda/kernel/elementwise/elementwise.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/elementwise/silu_and_mul_codes.h"
#include "backend/cuda/kernel/linear/linear_integer.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int kElementwiseThreads = 128, kElementwisePiece = 8;

LaunchGrid grid_for(int64_t num_tokens, int64_t width) {
  return {.x = num_tokens,
          .y = ceil_div(width, kElementwiseThreads * kElementwisePiece),
          .num_threads = kElementwiseThreads};
}

// For the product that reads the result; false: it has to be done without.
bool silu_and_mul_codes(Stream& stream, const SiluAndMulParams& p) {
  static constexpr KernelId kIds[] = {kernel_id("silu_and_mul_codes_1"), kernel_id("silu_and_mul_codes_2"),
                                      kernel_id("silu_and_mul_codes_4")};
  const std::optional<RowCodes> codes = hand_codes(stream, p.reader, p.out);
  if (!codes) return false;
  const int64_t num_tokens = p.out.dim(0);
  const RowShape shape =
      row_shape(static_cast<CudaStream&>(stream).cuda_device().num_sms(), num_tokens, codes->row_bytes);
  SiluAndMulCodesKernelParams params{.gate_up = p.gate_up.raw(),
                                     .gate_up_stride = p.gate_up.stride(0),
                                     .out = *codes,
                                     .is_aligned = are_rows_aligned({&p.gate_up}) && codes->width * 2 % 16 == 0};
  params.out.num_ctas = shape.num_ctas;
  launch(stream, kIds[shape.kernel_idx],
         {.x = num_tokens * shape.num_ctas,
          .num_threads = shape.num_threads,
          .cluster = shape.num_ctas,
          .shared_bytes = shape.num_ctas == 1 ? spread_bytes(num_tokens) : 0},
         params, {{"num_tokens", num_tokens}, {"intermediate_size", codes->width}});
  return true;
}

}  // namespace

void add(Stream& stream, const AddParams& p) {
  check_params(p);
  const int64_t num_tokens = p.out.dim(0), width = p.out.dim(1);
  if (num_tokens == 0) return;
  const AddKernelParams params{.a = p.a.raw(),
                               .b = p.b.raw(),
                               .out = p.out.raw(),
                               .a_stride = p.a.stride(0),
                               .b_stride = p.b.stride(0),
                               .out_stride = p.out.stride(0),
                               .width = static_cast<int32_t>(width),
                               .is_aligned = are_rows_aligned({&p.a, &p.b, &p.out})};
  launch(stream, p.out.dtype() == DType::kF32 ? kernel_id("add_f32") : kernel_id("add_bf16"),
         grid_for(num_tokens, width), params, {{"num_tokens", num_tokens}, {"hidden_size", width}});
}

void silu_and_mul(Stream& stream, const SiluAndMulParams& p) {
  check_params(p);
  const int64_t num_tokens = p.out.dim(0), intermediate_size = p.out.dim(1);
  if (num_tokens == 0 || silu_and_mul_codes(stream, p)) return;
  const SiluAndMulKernelParams params{
      .gate_up = p.gate_up.raw(),
      .out = p.out.raw(),
      .gate_up_stride = p.gate_up.stride(0),
      .out_stride = p.out.stride(0),
      .intermediate_size = static_cast<int32_t>(intermediate_size),
      .is_aligned = are_rows_aligned({&p.gate_up, &p.out}) && intermediate_size * dtype_bytes(p.out.dtype()) % 16 == 0};
  launch(stream, p.out.dtype() == DType::kF32 ? kernel_id("silu_and_mul_f32") : kernel_id("silu_and_mul_bf16"),
         grid_for(num_tokens, intermediate_size), params,
         {{"num_tokens", num_tokens}, {"intermediate_size", intermediate_size}});
}

}  // namespace spate::cuda
