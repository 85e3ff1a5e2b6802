#include "backend/cuda/kernel/rope/rope.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {

void rope(Stream& stream, const RopeParams& p) {
  check_params(p);
  const int64_t num_tokens = p.x.dim(0), num_heads = p.x.dim(1), rotary_dim = p.cos_sin.dim(1);
  if (num_tokens == 0 || num_heads == 0 || rotary_dim == 0) return;
  const RopeKernelParams params{.positions = p.positions.data<int32_t>(),
                                .cos_sin = p.cos_sin.data<float>(),
                                .x = p.x.raw(),
                                .token_stride = p.x.stride(0),
                                .head_stride = p.x.stride(1),
                                .cos_sin_stride = p.cos_sin.stride(0),
                                .num_heads = static_cast<int32_t>(num_heads),
                                .rotary_dim = static_cast<int32_t>(rotary_dim),
                                .is_interleaved = p.interleaved};
  launch(stream, p.x.dtype() == DType::kF32 ? kernel_id("rope_f32") : kernel_id("rope_bf16"),
         {.x = num_tokens, .num_threads = num_threads_for(num_heads * rotary_dim / 2, 256)}, params,
         {{"num_tokens", num_tokens}, {"num_heads", num_heads}, {"rotary_dim", rotary_dim}});
}

}  // namespace spate::cuda
