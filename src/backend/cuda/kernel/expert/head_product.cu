// WHAT       Products of rows with a bf16 matrix for each head, as expert_wgmma.cu.
// SHAPES     x [num_tokens, num_heads, in_features], out [num_tokens, num_heads, out_features] bf16.
// NUMERICS   As expert_wgmma.cu; the k of a tile is one CTA's.
// WORK       As expert_wgmma.cu.
// WARM       2 s: bf16, latent
// LIMITS     sm_90a; in_features a multiple of 64, rows of x at multiples of 16 bytes.
// TESTS      spate-conformance --backend cuda --filter linear_heads
#include "backend/cuda/kernel/expert/expert_bf16.h"

namespace spate::cuda {

SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 8)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 16)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 32)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 64)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 128)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 256)

}  // namespace spate::cuda
