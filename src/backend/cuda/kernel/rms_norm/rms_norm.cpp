#include "backend/cuda/kernel/rms_norm/rms_norm.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {

void rms_norm(Stream& stream, const RmsNormParams& p) {
  check_params(p);
  const bool has_heads = p.x.rank() == 3;
  const int64_t num_heads = has_heads ? p.x.dim(1) : 1, num_rows = p.x.dim(0) * num_heads, width = p.weight.dim(0);
  if (num_rows == 0) return;
  const RmsNormKernelParams params{.x = p.x.raw(),
                                   .weight = p.weight.raw(),
                                   .out = p.out.raw(),
                                   .x_token_stride = p.x.stride(0),
                                   .x_head_stride = has_heads ? p.x.stride(1) : 0,
                                   .out_token_stride = p.out.stride(0),
                                   .out_head_stride = has_heads ? p.out.stride(1) : 0,
                                   .num_heads = static_cast<int32_t>(num_heads),
                                   .width = static_cast<int32_t>(width),
                                   .eps = p.eps};
  const KernelId kernel = p.x.dtype() == DType::kF32 ? kernel_id("rms_norm_f32") : kernel_id("rms_norm_bf16");
  // The order of the sum depends on the thread count, and that on width alone.
  launch(stream, kernel, {.x = num_rows, .num_threads = num_threads_for(width, 512)}, params,
         {{"num_tokens", p.x.dim(0)}, {"num_heads", num_heads}, {"width", width}});
}

}  // namespace spate::cuda
