// WHAT       The latent vectors of whole sequences, one behind the other.
// SHAPES     As LatentGatherKernelParams says. num_keys is the sum of seq_lens.
// LAYOUT     Rows of `out` as in the cache (latent.h), padding included; of codes, which have no padding, as of bf16.
// NUMERICS   A copy; codes times their scale, rounded.
// WORK       A warp a key.
// ROOFLINE   2 x 1,152 bytes a key.
// WARM       0.1 s: fast, bf16, latent
// LIMITS     bf16, or codes of widths that are multiples of 4.
// TESTS      spate-conformance --backend cuda --filter attention_latent_expanded
#include "backend/cuda/kernel/latent/latent_expanded.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

extern "C" __global__ void __launch_bounds__(kLatentGatherWarps* kWarpSize)
    latent_gather(const __grid_constant__ LatentGatherKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const int row = static_cast<int>(blockIdx.x) * kLatentGatherWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (row >= p.num_keys) return;
  int seq = 0, key = row;
  while (seq < p.num_seqs && key >= p.seq_lens[seq]) key -= p.seq_lens[seq++];
  if (seq == p.num_seqs) return;
  const int32_t* blocks = p.block_table + p.seq_rows[seq] * p.block_table_stride;
  const char* block = static_cast<const char*>(p.kv.data) + blocks[key / p.kv.kv_block_size] * p.kv.block_bytes;
  const Bf16* from = reinterpret_cast<const Bf16*>(block) + key % p.kv.kv_block_size * p.kv.padded_width;
  if (p.is_codes) {
    const float* scales = p.kv.scales(const_cast<char*>(block), key % p.kv.kv_block_size);
    const int8_t* codes = reinterpret_cast<const int8_t*>(block) + key % p.kv.kv_block_size * p.kv.padded_width;
    const float compressed = scales[0], rotated = scales[1];
    uint32_t* to = reinterpret_cast<uint32_t*>(static_cast<Bf16*>(p.out) + static_cast<int64_t>(row) * p.kv.width);
    for (int i = threadIdx.x % kWarpSize; i < p.kv.width / 4; i += kWarpSize) {
      const Vec<int8_t, 4> four = reinterpret_cast<const Vec<int8_t, 4>*>(codes)[i];
      const float scale = 4 * i < p.kv.kv_lora_rank ? compressed : rotated;
      to[2 * i] = pack_bf16(to_float(four.elems[0]) * scale, to_float(four.elems[1]) * scale);
      to[2 * i + 1] = pack_bf16(to_float(four.elems[2]) * scale, to_float(four.elems[3]) * scale);
    }
    return;
  }
  Bf16* to = static_cast<Bf16*>(p.out) + static_cast<int64_t>(row) * p.kv.padded_width;
  for (int i = threadIdx.x % kWarpSize * 8; i < p.kv.padded_width; i += kWarpSize * 8) {
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
  }
}

}  // namespace spate::cuda
