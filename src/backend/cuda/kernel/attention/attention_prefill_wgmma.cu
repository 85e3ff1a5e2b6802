// WHAT       Attention of many query tokens over their sequences' paged cache on wgmma and TMA: see attention_prefill.cu.
// SHAPES     q, out [num_tokens, num_heads, head_dim] bf16, rows at multiples of 16 bytes; cache bf16, head_dim 64 or
//            128, kv_block_size a power of two and a multiple of 16.
// LAYOUT     A tile of keys is atoms of 8 keys by 64 columns, swizzled; a copy brings 16 keys of a block. Scores read K
//            along head_dim, values read V across it, so both stay as they lie in the cache.
//            The kernels named int8: the blocks that expand_kv.cu makes of an INT8 cache, each with the scales of its
//            keys, which multiply the scores.
// NUMERICS   Dots and sums in fp32 on the tensor core; probabilities are rounded to bf16 for the product with V. Online
//            softmax over tiles of 128 keys, the last first, cut from the first seen key rounded down to 16. Its base
//            moves only when the maximum grows by 2^8. A row's result does not depend on other rows, but on how its
//            sequence is cut into steps, so a deterministic device does not use this kernel.
// WORK       attention_prefill_skeleton.h; an item is heads of one kv head times query tokens.
// ROOFLINE   4 * head_dim operations a query and key over 750 TFLOP/s.
// WARM       4 s: fast, bf16, head-64; fast, bf16, head-128
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
      : PagedTiles(params, work.seq(), item) {}
  __device__ PagedTiles(const Params& params, int seq, const AttentionItem& item)
      : params_(params), item_(item), lane_(threadIdx.x % kWarpSize) {
    const AttentionPagedKernelParams& p = params.attention;
    block_shift_ = 31 - __clz(p.kv.kv_block_size);
    k_row_ = item.first_head / p.heads_per_kv_head * p.kv.kv_block_size;
    v_row_ = k_row_ + p.kv.num_kv_heads * p.kv.kv_block_size;
    blocks_ = p.block_table + p.seq_rows[seq] * p.block_table_stride;
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

 protected:
  static constexpr int kBoxes = kPrefillWgmmaKeys / kPrefillWgmmaBoxKeys;
  static constexpr uint32_t kBoxBytes = kPrefillWgmmaBoxKeys * kHeadDim * 2;

  __device__ int first_key(int tile) const { return tile_first_key(item_, tile) + lane_ * kPrefillWgmmaBoxKeys; }
  __device__ int row_in_block(int tile, int row) const {
    return row + (first_key(tile) & (params_.attention.kv.kv_block_size - 1));
  }
  __device__ int num_boxes(int tile) const {
    return min(kBoxes,
               (item_.end_key - tile_first_key(item_, tile) + kPrefillWgmmaBoxKeys - 1) / kPrefillWgmmaBoxKeys);
  }
  // extra_bytes: of each box, for copies that the caller makes.
  __device__ void load(int tile, int block, int row, uint32_t shared, uint32_t full, uint32_t extra_bytes = 0) const {
    const int boxes = num_boxes(tile);
    if (lane_ == 0) arrive_expecting(full, static_cast<uint32_t>(boxes) * (kBoxBytes + extra_bytes));
    __syncwarp();
    if (lane_ < boxes) {
      copy_box_5d(shared + static_cast<uint32_t>(lane_) * kBoxBytes, params_.kv, 0, 0, 0, row_in_block(tile, row) / 8,
                  block, full);
    }
  }

  const Params& params_;
  const AttentionItem& item_;
  const int32_t* blocks_;
  int lane_, block_shift_, k_row_, v_row_;
};

// Of an INT8 cache.
template <int kHeadDim>
class ExpandedPagedTiles : public PagedTiles<kHeadDim> {
 public:
  __device__ ExpandedPagedTiles(const AttentionPrefillWgmmaParams& params,
                                const AttentionWork<ExpandedPagedTiles>& work, const AttentionItem& item)
      : PagedTiles<kHeadDim>(params, work.seq(), item) {}

  __device__ void load_keys(int tile, int block, uint32_t shared, uint32_t full) const {
    this->load(tile, block, this->k_row_, shared, full, kBoxScaleBytes);
  }
  __device__ void load_key_scales(int tile, int block, uint32_t shared, uint32_t full) const {
    if (this->lane_ >= this->num_boxes(tile)) return;
    const KvLayout& kv = this->params_.attention.kv;
    const char* scales = static_cast<const char*>(kv.data) + block * kv.block_bytes + expanded_scales_offset(kv) +
                         this->row_in_block(tile, this->k_row_) * 4;
    copy_bytes(shared + static_cast<uint32_t>(this->lane_) * kBoxScaleBytes, scales, kBoxScaleBytes, full);
  }

 private:
  static constexpr uint32_t kBoxScaleBytes = kPrefillWgmmaBoxKeys * 4;
};

extern "C" __global__ void __launch_bounds__(kPrefillWgmmaThreads, 1)
    attention_prefill_wgmma_d64(const __grid_constant__ AttentionPrefillWgmmaParams p) {
  attention_prefill_wgmma<PagedTiles<64>>(p);
}
extern "C" __global__ void __launch_bounds__(kPrefillWgmmaThreads, 1)
    attention_prefill_wgmma_d128(const __grid_constant__ AttentionPrefillWgmmaParams p) {
  attention_prefill_wgmma<PagedTiles<128>>(p);
}
extern "C" __global__ void __launch_bounds__(kPrefillWgmmaThreads, 1)
    attention_prefill_wgmma_int8_d64(const __grid_constant__ AttentionPrefillWgmmaParams p) {
  attention_prefill_wgmma<ExpandedPagedTiles<64>>(p);
}
extern "C" __global__ void __launch_bounds__(kPrefillWgmmaThreads, 1)
    attention_prefill_wgmma_int8_d128(const __grid_constant__ AttentionPrefillWgmmaParams p) {
  attention_prefill_wgmma<ExpandedPagedTiles<128>>(p);
}

}  // namespace spate::cuda
