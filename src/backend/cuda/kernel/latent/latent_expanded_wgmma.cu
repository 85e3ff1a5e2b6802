// WHAT       Causal attention of prompts over keys of 192 and values of 128 that were made from latent vectors:
//              k[h] = [up-projected 128, the 64 rotated elements of the latent vector], v[h] = up-projected 128.
// SHAPES     q [num_tokens, num_heads, 192], out [num_tokens, num_heads, 128] bf16, rows at multiples of 16 bytes; keys
//            as LatentExpandedKernelParams says.
// LAYOUT     A tile of 128 keys is columns of 64: two of a head's own part, one of the rotated part, which all heads
//            share; two of values. Each is a copy, swizzled.
// NUMERICS   As attention_prefill_wgmma.cu.
// WORK       attention_prefill_skeleton.h; an item is query tokens of one head. Heads are taken in sections whose keys
//            and values fit in L2.
// ROOFLINE   2 * (192 + 128) operations a query and key over 750 TFLOP/s.
// WARM       1.2 s: fast, bf16, latent
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_latent_expanded
#include "backend/cuda/kernel/latent/latent_expanded.h"

#include "backend/cuda/kernel/attention/attention_prefill_skeleton.h"

namespace spate::cuda {

class ExpandedTiles {
 public:
  using Params = LatentExpandedKernelParams;
  static constexpr int kKeyDim = kExpandedKeyDim, kValueDim = kExpandedValueDim, kQStages = kExpandedQStages;
  static constexpr int kPartBytes = kPrefillWgmmaKeys * 128, kKeyGroupBytes = 1024, kValueGroupBytes = 1024;

  struct Place {
    int tile, head_tile;
  };
  __device__ static Place place_of(const Params& p, int item, int num_items) {
    const int num_tiles = num_items / p.num_head_tiles, section_items = num_tiles * p.section_heads;
    const int section = item / section_items, in_section = item % section_items;
    const int first_head = section * p.section_heads, num_heads = min(p.section_heads, p.num_head_tiles - first_head);
    return {num_tiles - 1 - in_section / num_heads, first_head + in_section % num_heads};
  }
  __device__ static void prefetch(const Params& p) {
    prefetch_map(p.heads);
    prefetch_map(p.latents);
  }

  __device__ ExpandedTiles(const Params& params, const AttentionWork<ExpandedTiles>& work, const AttentionItem& item)
      : params_(params),
        first_row_(work.first_key_row() + item.first_key),
        first_column_(item.first_head * kExpandedHeadWidth) {}

  __device__ int find(int) const { return 0; }
  __device__ void load_keys(int tile, int, uint32_t shared, uint32_t full) const {
    if (threadIdx.x % kWarpSize != 0) return;
    const int row = first_row_ + tile * kPrefillWgmmaKeys;
    arrive_expecting(full, kKeyDim / 64 * kPartBytes);
#pragma unroll
    for (int part = 0; part < kExpandedNopeDim / 64; ++part) {
      copy_box(shared + part * kPartBytes, params_.heads, first_column_ + 64 * part, row, full);
    }
    copy_box(shared + kExpandedNopeDim / 64 * kPartBytes, params_.latents, kLatentRank, row, full);
  }
  __device__ void load_values(int tile, int, uint32_t shared, uint32_t full) const {
    if (threadIdx.x % kWarpSize != 0) return;
    const int row = first_row_ + tile * kPrefillWgmmaKeys;
    arrive_expecting(full, kValueDim / 64 * kPartBytes);
#pragma unroll
    for (int part = 0; part < kValueDim / 64; ++part) {
      copy_box(shared + part * kPartBytes, params_.heads, first_column_ + kExpandedNopeDim + 64 * part, row, full);
    }
  }

 private:
  const Params& params_;
  const int first_row_, first_column_;
};

extern "C" __global__ void __launch_bounds__(kPrefillWgmmaThreads, 1)
    attention_latent_expanded_wgmma(const __grid_constant__ LatentExpandedKernelParams p) {
  attention_prefill_wgmma<ExpandedTiles>(p);
}

}  // namespace spate::cuda
