// WHAT       attention_latent.cu's formula on wgmma: few query tokens over long caches, or prompts.
// SHAPES     As AttentionLatentKernelParams says, bf16, kv_lora_rank 512, qk_rope_head_dim 64.
// LAYOUT     latent.h; every row of q at a multiple of 16 bytes.
// NUMERICS   Scores, maxima and sums in fp32; probabilities are rounded to bf16 for the product with the latent
//            vectors, their sum is not. Online softmax over tiles of 64 keys at absolute positions, its offset the largest
//            score or up to kSlack less. Where a sequence's keys are split depends on the step's lengths.
// WORK       A CTA takes 64 rows (query token, head) and a run of tiles. One warp loads tiles by TMA, two in flight,
//            of old keys these two before it waits for the kernel before;
//            each is keys (all 576 columns) and values (the first 512) at once. Warpgroup 0 multiplies q and keys and
//            makes the probabilities; both multiply them with the values, 256 columns each: 0 from its registers, 1 from
//            shared memory. So a tile takes about 2,200 clocks of the tensor core, where its 72 KB take 4,000 of an SM's
//            share of the memory.
//            Of attention_latent_wgmma latent_combine merges what several CTAs have of an item; in
//            attention_latent_wgmma_merge these wait for each other and merge it themselves.
// ROOFLINE   1,152 bytes a key over 4.65 TB/s, up to about 90 rows a sequence; else 2,176 FLOP a row and key.
// WARM       1 s: fast, bf16, latent-bf16
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent_wgmma.h"

#include "backend/cuda/kernel/latent/latent_skeleton.h"

namespace spate::cuda {

// One warp.
template <bool kIsMerging>
struct TileLoader {
  static constexpr bool kIsCodes = false, kMerges = kIsMerging;
  static constexpr int kArrivals = 1, kLoadRegisters = kMerges ? 56 : 40, kRegisters = kMerges ? 224 : 232;

  __device__ static void load(const LatentWgmmaKernelParams& p, const Shared& shared, SharedWords& words) {
    if (threadIdx.x >= kWarpSize) return wait_for_inputs();
    if (!p.reads_early) wait_for_inputs();
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int block_size = p.attention.kv.kv_block_size;
    Work<kMerges> work(p);
    if (lane == 0) words.reach = work.reach();
    Place place;
    Segment segment{};
    bool has_inputs = false;
    for (int n = 0;;) {
      const bool has_work = work.next(segment);
      const int end_tile = has_work && segment.num_rows > 0 ? segment.end_tile : segment.begin_tile;
      if (!has_work || segment.num_rows > 0) give_segment(shared, words, n++, lane, segment, has_work);
      for (int tile = segment.begin_tile;; ++tile) {
        // Two tiles of old keys are on their way before.
        if (!has_inputs && (!p.reads_early || tile >= end_tile || tile == segment.begin_tile + kBuffers ||
                            (tile + 1) * kLatentKeys >= segment.first_limit)) {
          wait_for_inputs();
          if (!kMerges) work.publish(has_work, segment, words.reach);
          has_inputs = true;
        }
        if (tile >= end_tile) break;
        const int num_keys = min(kLatentKeys, segment.seq_len - tile * kLatentKeys);
        const int num_boxes = (num_keys + p.box_keys - 1) / p.box_keys;
        const int own_key = tile * kLatentKeys + min(lane, num_boxes - 1) * p.box_keys;
        const int own_row = work.blocks()[own_key / block_size] * block_size + own_key % block_size;
        wait_barrier(shared.empty(place.buffer), place.parity ^ 1);
        constexpr int kKeyBytes = kLatentWidth * 2;
        const uint32_t full = shared.full(place.buffer, 0);
        if (lane == 0) arrive_expecting(full, static_cast<uint32_t>(num_boxes * p.box_keys * kKeyBytes));
        __syncwarp();
        if (lane < num_boxes) {
          copy_box_4d_once(shared.tile(place.buffer) + static_cast<uint32_t>(lane * p.box_keys * kKeyBytes), p.kv, 0, 0,
                           0, own_row / 8, full);
        }
        place.advance();
      }
      if (!has_work) return wait_for_inputs();
    }
  }
};

extern "C" __global__ void __launch_bounds__(kLatentThreads, 1)
    attention_latent_wgmma(const __grid_constant__ LatentWgmmaKernelParams p) {
  extern __shared__ char smem[];
  attention_latent_wgmma<TileLoader<false>>(p, smem);
}
extern "C" __global__ void __launch_bounds__(kLatentThreads, 1)
    attention_latent_wgmma_merge(const __grid_constant__ LatentWgmmaKernelParams p) {
  extern __shared__ char smem[];
  attention_latent_wgmma<TileLoader<true>>(p, smem);
}

}  // namespace spate::cuda
