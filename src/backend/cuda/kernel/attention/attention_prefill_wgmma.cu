// WHAT       Attention of many query tokens over their sequences' paged cache on wgmma and TMA: see attention_prefill.cu.
// SHAPES     q, out [num_tokens, num_heads, head_dim] bf16, rows at multiples of 16 bytes; cache bf16, head_dim 64 or
//            128, kv_block_size a power of two and a multiple of 16.
// LAYOUT     A tile of keys is atoms of 8 keys by 64 columns, swizzled; a copy brings 16 keys of a block. Scores read K
//            along head_dim, values read V across it, so both stay as they lie in the cache.
// NUMERICS   Dots and sums in fp32 on the tensor core; probabilities are rounded to bf16 for the product with V. Online
//            softmax over tiles of 128 keys, the last first, cut from the first seen key rounded down to 16. Its base
//            moves only when the maximum grows by 2^8. A row's result does not depend on other rows, but on how its
//            sequence is cut into steps, so a deterministic device does not use this kernel.
// WORK       attention_prefill_skeleton.h; an item is heads of one kv head times query tokens.
// ROOFLINE   4 * head_dim operations a query and key over 750 TFLOP/s.
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_prefill_skeleton.h"

namespace spate::cuda {

// Tiles of a paged cache. Keys and values of a kv head lie in blocks; a copy brings 16 of them, lane i of the warp the
// i-th ones of a tile.
template <int kHeadDim>
class PagedTiles {
 public:
  using Params = AttentionPrefillWgmmaParams;
  static constexpr int kKeyDim = kHeadDim, kValueDim = kHeadDim, kQStages = kPrefillWgmmaStages;
  static constexpr int kPartBytes = 1024, kKeyGroupBytes = 1024 * (kHeadDim / 64), kValueGroupBytes = kKeyGroupBytes;

  struct Place {
    int tile, head_tile;
  };
  __device__ static Place place_of(const Params& p, int item, int num_items) {
    return {(num_items - 1 - item) / p.num_head_tiles, item % p.num_head_tiles};
  }
  __device__ static void prefetch(const Params& p) { prefetch_map(p.kv); }

  __device__ PagedTiles(const Params& params, const AttentionWork<PagedTiles>& work, const AttentionItem& item)
      : params_(params), item_(item), lane_(threadIdx.x % kWarpSize) {
    const AttentionPagedKernelParams& p = params.attention;
    block_shift_ = 31 - __clz(p.kv.kv_block_size);
    k_row_ = item.first_head / p.heads_per_kv_head * p.kv.kv_block_size;
    v_row_ = k_row_ + p.kv.num_kv_heads * p.kv.kv_block_size;
    blocks_ = p.block_table + p.seq_rows[work.seq()] * p.block_table_stride;
  }

  // The block of this lane's keys.
  __device__ int find(int tile) const {
    const int key = first_key(tile);
    return lane_ < kBoxes && tile >= 0 && key < item_.end_key ? blocks_[key >> block_shift_] : -1;
  }
  __device__ void load_keys(int tile, int block, uint32_t shared, uint32_t full) const {
    load(tile, block, k_row_, shared, full);
  }
  __device__ void load_values(int tile, int block, uint32_t shared, uint32_t full) const {
    load(tile, block, v_row_, shared, full);
  }

 private:
  static constexpr int kBoxes = kPrefillWgmmaKeys / kPrefillWgmmaBoxKeys;
  static constexpr uint32_t kBoxBytes = kPrefillWgmmaBoxKeys * kHeadDim * 2;

  __device__ int first_key(int tile) const { return tile_first_key(item_, tile) + lane_ * kPrefillWgmmaBoxKeys; }
  __device__ void load(int tile, int block, int row, uint32_t shared, uint32_t full) const {
    const int num_boxes =
        min(kBoxes, (item_.end_key - tile_first_key(item_, tile) + kPrefillWgmmaBoxKeys - 1) / kPrefillWgmmaBoxKeys);
    if (lane_ == 0) arrive_expecting(full, static_cast<uint32_t>(num_boxes) * kBoxBytes);
    __syncwarp();
    if (lane_ < num_boxes) {
      copy_box_5d(shared + static_cast<uint32_t>(lane_) * kBoxBytes, params_.kv, 0, 0, 0,
                  (row + (first_key(tile) & (params_.attention.kv.kv_block_size - 1))) / 8, block, full);
    }
  }

  const Params& params_;
  const AttentionItem& item_;
  const int32_t* blocks_;
  int lane_, block_shift_, k_row_, v_row_;
};

extern "C" __global__ void __launch_bounds__(kPrefillWgmmaThreads, 1)
    attention_prefill_wgmma_d64(const __grid_constant__ AttentionPrefillWgmmaParams p) {
  attention_prefill_wgmma<PagedTiles<64>>(p);
}
extern "C" __global__ void __launch_bounds__(kPrefillWgmmaThreads, 1)
    attention_prefill_wgmma_d128(const __grid_constant__ AttentionPrefillWgmmaParams p) {
  attention_prefill_wgmma<PagedTiles<128>>(p);
}

}  // namespace spate::cuda
