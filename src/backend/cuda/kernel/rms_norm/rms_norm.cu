// WHAT       out = act(act(x * rsqrt(mean(x^2) + eps)) * weight) for each row.
// SHAPES     x, out [num_tokens, num_heads, width] act, outer strides free; out may be x. weight [width] act.
// LAYOUT     Rows contiguous.
// NUMERICS   Squares add in fp32, in an order that depends on width alone. The normalised value is rounded to act
//            before it meets the weight, as in Hugging Face's LlamaRMSNorm.
// WORK       A CTA a row; the row is read twice, the second time from L1 or L2.
// ROOFLINE   Memory: 4 bytes an element in bf16 (read and write). Not tuned; under 300 tokens the launch is longer.
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter rms_norm
#include "backend/cuda/kernel/rms_norm/rms_norm.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

template <typename Act>
__device__ inline void rms_norm(const RmsNormKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x / p.num_heads, head = blockIdx.x % p.num_heads;
  const Act* x = static_cast<const Act*>(p.x) + token * p.x_token_stride + head * p.x_head_stride;
  const Act* weight = static_cast<const Act*>(p.weight);
  Act* out = static_cast<Act*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;

  float sum_of_squares = 0.0f;
  for (int k = threadIdx.x; k < p.width; k += blockDim.x) {
    const float value = to_float(x[k]);
    sum_of_squares = __fmaf_rn(value, value, sum_of_squares);
  }
  const float mean_of_squares = block_reduce(sum_of_squares, Sum()) / static_cast<float>(p.width);
  const float inv_rms = 1.0f / sqrtf(mean_of_squares + p.eps);

  // Each thread writes what it alone reads, so out may be x.
  for (int k = threadIdx.x; k < p.width; k += blockDim.x) {
    const float normed = round_to<Act>(to_float(x[k]) * inv_rms);
    out[k] = from_float<Act>(normed * to_float(weight[k]));
  }
}

extern "C" __global__ void rms_norm_bf16(const __grid_constant__ RmsNormKernelParams p) { rms_norm<Bf16>(p); }
extern "C" __global__ void rms_norm_f32(const __grid_constant__ RmsNormKernelParams p) { rms_norm<float>(p); }

}  // namespace spate::cuda
