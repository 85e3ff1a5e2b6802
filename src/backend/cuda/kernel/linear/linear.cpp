#include "backend/cuda/kernel/linear/linear.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

// With more tokens than two small tiles the large one reads the weight less often. Both give the same bits.
constexpr int64_t kMaxTokensOfSmallTile = 2 * kLinearMmaSmallTileM;

struct LinearChoice {
  KernelId kernel;
  int tile_m;
  int tile_n;
  int num_threads;
};

// Few tokens: the kernel that streams W. Its sums have another order than the tiles'.
LinearChoice choose_stream(int64_t num_tokens) {
  constexpr int kNumThreads = 32 * kLinearStreamWarps;
  if (num_tokens <= 8) return {kernel_id("linear_stream_m8"), 8, 16, kNumThreads};
  if (num_tokens <= 16) return {kernel_id("linear_stream_m16"), 16, 32, kNumThreads};
  return {kernel_id("linear_stream_m32"), kLinearStreamMaxTokens, 32, kNumThreads};
}

LinearChoice choose_kernel(DType act, Codes codes, int64_t num_tokens, bool is_deterministic) {
  if (act == DType::kBf16 && codes == Codes::kBf16) {
    if (!is_deterministic && num_tokens <= kLinearStreamMaxTokens) return choose_stream(num_tokens);
    if (num_tokens <= kMaxTokensOfSmallTile) {
      return {kernel_id("linear_mma_small"), kLinearMmaSmallTileM, kLinearMmaSmallTileN, kLinearMmaThreads};
    }
    return {kernel_id("linear_mma_large"), kLinearMmaLargeTileM, kLinearMmaLargeTileN, kLinearMmaThreads};
  }
  const KernelId kernel = act == DType::kBf16     ? kernel_id("linear_fma_bf16_f32")
                          : codes == Codes::kBf16 ? kernel_id("linear_fma_f32_bf16")
                                                  : kernel_id("linear_fma_f32_f32");
  return {kernel, kLinearFmaTileM, kLinearFmaTileN, kLinearFmaThreads};
}

}  // namespace

void linear(Stream& stream, const LinearParams& p) {
  check_params(p);
  const WeightDesc& desc = p.weight->desc();
  const int64_t num_tokens = p.x.dim(0), out_features = desc.out_features, in_features = desc.in_features;
  if (num_tokens == 0 || out_features == 0) return;
  const int64_t x_bytes = p.x.stride(0) * dtype_bytes(p.x.dtype());
  const LinearKernelParams params{
      .x = p.x.raw(),
      .weight = p.weight->matrix(p.matrix_idx),
      .bias = p.bias.defined() ? p.bias.raw() : nullptr,
      .out = p.out.raw(),
      .x_stride = p.x.stride(0),
      .weight_stride = weight_row_stride(desc),
      .out_stride = p.out.stride(0),
      .num_tokens = static_cast<int32_t>(num_tokens),
      .out_features = static_cast<int32_t>(out_features),
      .in_features = static_cast<int32_t>(in_features),
      .is_x_aligned = reinterpret_cast<uintptr_t>(p.x.raw()) % 16 == 0 && x_bytes % 16 == 0,
      .is_out_f32 = p.out.dtype() == DType::kF32,
  };
  const LinearChoice choice = choose_kernel(p.x.dtype(), desc.spec.codes, num_tokens,
                                            static_cast<CudaStream&>(stream).cuda_device().is_deterministic());
  launch(stream, choice.kernel,
         {.x = ceil_div(out_features, choice.tile_n),
          .y = ceil_div(num_tokens, choice.tile_m),
          .num_threads = choice.num_threads},
         params, {{"num_tokens", num_tokens}, {"out_features", out_features}, {"in_features", in_features}});
}

}  // namespace spate::cuda
