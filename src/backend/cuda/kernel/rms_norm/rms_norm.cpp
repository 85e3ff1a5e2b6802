#include "backend/cuda/kernel/rms_norm/rms_norm.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/linear/linear_integer.h"
#include "backend/cuda/kernel/rms_norm/add_rms_norm_codes.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int kNormPiece = 8;

// Which kernel owns a row in a CTA, and how many threads; both depend on width alone, as the order of the sum does.
struct WideNorm {
  int kernel_idx;  // 1, 2 or 4 pieces a thread, or wide
  int num_threads;
};

WideNorm wide_norm_for(int64_t width) {
  const int64_t num_pieces = ceil_div(width, kNormPiece);
  for (const int idx : {0, 1, 2}) {
    const int64_t pieces_a_thread = int64_t{1} << idx;
    if (num_pieces <= pieces_a_thread * kNormMaxThreads) {
      return {idx, num_threads_for(ceil_div(num_pieces, pieces_a_thread), kNormMaxThreads)};
    }
  }
  return {3, kNormMaxThreads};
}

constexpr KernelId kNormBf16[] = {kernel_id("rms_norm_bf16_1"), kernel_id("rms_norm_bf16_2"),
                                  kernel_id("rms_norm_bf16_4"), kernel_id("rms_norm_bf16_wide")};
constexpr KernelId kNormF32[] = {kernel_id("rms_norm_f32_1"), kernel_id("rms_norm_f32_2"), kernel_id("rms_norm_f32_4"),
                                 kernel_id("rms_norm_f32_wide")};
constexpr KernelId kAddNormBf16[] = {kernel_id("add_rms_norm_bf16_1"), kernel_id("add_rms_norm_bf16_2"),
                                     kernel_id("add_rms_norm_bf16_4"), kernel_id("add_rms_norm_bf16_wide")};
constexpr KernelId kAddNormCodes[] = {kernel_id("add_rms_norm_codes_1"), kernel_id("add_rms_norm_codes_2"),
                                      kernel_id("add_rms_norm_codes_4")};
constexpr KernelId kAddNormF32[] = {kernel_id("add_rms_norm_f32_1"), kernel_id("add_rms_norm_f32_2"),
                                    kernel_id("add_rms_norm_f32_4"), kernel_id("add_rms_norm_f32_wide")};

RmsNormKernelParams norm_params(const Tensor& x, const Tensor& weight, const Tensor& out, float eps) {
  const bool has_heads = x.rank() == 3;
  const int64_t num_heads = has_heads ? x.dim(1) : 1;
  return {.x = x.raw(),
          .weight = weight.raw(),
          .out = out.raw(),
          .x_token_stride = x.stride(0),
          .x_head_stride = has_heads ? x.stride(1) : 0,
          .out_token_stride = out.stride(0),
          .out_head_stride = has_heads ? out.stride(1) : 0,
          .num_rows = x.dim(0) * num_heads,
          .num_heads = static_cast<int32_t>(num_heads),
          .width = static_cast<int32_t>(weight.dim(0)),
          .eps = eps,
          .is_aligned = are_rows_aligned({&x, &weight, &out})};
}

}  // namespace

void rms_norm(Stream& stream, const RmsNormParams& p) {
  check_params(p);
  const RmsNormKernelParams params = norm_params(p.x, p.weight, p.out, p.eps);
  if (params.num_rows == 0 || params.width == 0) return;
  const bool is_f32 = p.x.dtype() == DType::kF32;
  const std::initializer_list<NamedSize> sizes = {
      {"num_tokens", p.x.dim(0)}, {"num_heads", params.num_heads}, {"width", params.width}};
  if (params.width <= kNormNarrowWidth) {
    launch(stream, is_f32 ? kernel_id("rms_norm_f32_narrow") : kernel_id("rms_norm_bf16_narrow"),
           {.x = ceil_div(params.num_rows, kNormNarrowThreads / 32), .num_threads = kNormNarrowThreads}, params, sizes);
    return;
  }
  const WideNorm wide = wide_norm_for(params.width);
  launch(stream, (is_f32 ? kNormF32 : kNormBf16)[wide.kernel_idx],
         {.x = params.num_rows, .num_threads = wide.num_threads}, params, sizes);
}

void add_rms_norm(Stream& stream, const AddRmsNormParams& p) {
  check_params(p);
  // A row of the width of a head is not worth a kernel: the sum's order must be that of rms_norm's warp.
  if (p.weight.dim(0) <= kNormNarrowWidth) return decompositions().add_rms_norm(stream, p);
  AddRmsNormKernelParams params{.norm = norm_params(p.x, p.weight, p.out, p.eps),
                                .residual = p.residual.raw(),
                                .residual_stride = p.residual.stride(0)};
  if (params.norm.num_rows == 0) return;
  params.norm.is_aligned = params.norm.is_aligned && are_rows_aligned({&p.residual});
  const WideNorm wide = wide_norm_for(params.norm.width);
  const LaunchGrid grid{.x = params.norm.num_rows, .num_threads = wide.num_threads};
  const std::initializer_list<NamedSize> sizes = {{"num_tokens", p.x.dim(0)}, {"hidden_size", params.norm.width}};
  if (wide.kernel_idx < static_cast<int>(std::size(kAddNormCodes))) {
    if (const std::optional<RowCodes> codes = hand_codes(stream, p.reader, p.out)) {
      const AddRmsNormCodesKernelParams with_codes{.add = params, .out = *codes};
      LaunchGrid spread = grid;
      spread.shared_bytes = spread_bytes(grid.x);
      return launch(stream, kAddNormCodes[wide.kernel_idx], spread, with_codes, sizes);
    }
  }
  launch(stream, (p.x.dtype() == DType::kF32 ? kAddNormF32 : kAddNormBf16)[wide.kernel_idx], grid, params, sizes);
}

}  // namespace spate::cuda
