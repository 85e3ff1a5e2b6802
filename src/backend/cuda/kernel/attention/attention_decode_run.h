// Which tiles of a step a CTA of attention_decode_ring() has, and the copies that bring them.
#pragma once

#include "backend/cuda/kernel/attention/attention_decode_tile.h"

namespace spate::cuda {

// Each lane of a warp has as many sequences that follow each other, the last ones fewer.
struct LaneTiles {
  int num_seqs;   // of a lane
  int tiles = 0;  // of this lane's, of one head tile
  int through;    // of the lanes up to and with this one
  int most = 0;   // of all sequences
  int least;      // of those that have any

  __device__ explicit LaneTiles(const AttentionPagedKernelParams& p) {
    num_seqs = (p.num_seqs + kWarpSize - 1) / kWarpSize;
    const int first = static_cast<int>(threadIdx.x) % kWarpSize * num_seqs;
    uint32_t least_less_1 = 0xffffffffu;  // less 1, so that dummies do not count
#pragma unroll 4
    for (int i = 0; i < num_seqs; ++i) {
      const int of_seq = first + i < p.num_seqs ? decode_tiles(seen_keys(p, first + i)) : 0;
      tiles += of_seq;
      most = max(most, of_seq);
      least_less_1 = min(least_less_1, static_cast<uint32_t>(of_seq) - 1);
    }
    through = sum_through_lane(tiles);
    most = __reduce_max_sync(0xffffffffu, most);
    least = static_cast<int>(__reduce_min_sync(0xffffffffu, least_less_1) + 1);
  }
  __device__ int all() const { return __shfl_sync(0xffffffffu, through, kWarpSize - 1); }
};

// The work of all CTAs is a list of tiles: sequence by sequence, in each kv head by kv head (or 8 query heads of one:
// a head tile). A CTA has an equal run of it, which is pieces of the lists of one head tile. Where a run would end
// less than kDecodeRingMinCut tiles from an end of a head tile it ends there: sums of few tiles cost more to add than
// they balance. Of an INT8 cache, where all sequences have as many tiles, runs of whole head tiles are taken if they
// are at most 1/16 longer: 3 us less at 32 x 2,048 keys (not measured in bf16). Uniform in a warp.
struct DecodePiece {
  int seq = 0, head_tile = 0;
  int first = 0, count = 0;    // of the head tile's tiles
  int before = 0, behind = 0;  // tiles of the run
  int seq_tiles_before = 0;    // of the list, before the sequence
  int num_tiles = 0;           // of the sequence and a head tile
  KeyRange keys = {};

  __device__ void set_sequence(const AttentionPagedKernelParams& p, int id) {
    seq = id;
    keys = seen_keys(p, id);
    num_tiles = decode_tiles(keys);
  }

  // The sequence of tile `at` of the list.
  __device__ void find_sequence(const AttentionPagedKernelParams& p, int num_head_tiles, const LaneTiles& lanes,
                                int at) {
    const int through = lanes.through * num_head_tiles;
    const int found = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, through > at))) - 1;
    seq_tiles_before = __shfl_sync(0xffffffffu, through - lanes.tiles * num_head_tiles, found);
#pragma unroll 1
    for (int id = found * lanes.num_seqs;; ++id) {
      set_sequence(p, id);
      if (seq_tiles_before + num_tiles * num_head_tiles > at) break;
      seq_tiles_before += num_tiles * num_head_tiles;
    }
  }

  // The first piece of run `run_idx`; false if the run is empty. list_tiles: of the list.
  __device__ bool seek(const AttentionPagedKernelParams& p, int num_head_tiles, const LaneTiles& lanes, int list_tiles,
                       int run_tiles, int run_idx) {
    int begin = 0, end = list_tiles;
#pragma unroll 1
    for (int bound = run_idx + 1; bound >= run_idx; --bound) {
      const int at = bound * run_tiles;
      if (at >= list_tiles) continue;
      find_sequence(p, num_head_tiles, lanes, at);
      head_tile = (at - seq_tiles_before) / num_tiles;
      first = at - seq_tiles_before - head_tile * num_tiles;
      if (min(first, num_tiles - first) < kDecodeRingMinCut) {
        head_tile += 2 * first > num_tiles ? 1 : 0;
        first = 0;
      }
      begin = seq_tiles_before + head_tile * num_tiles + first;
      if (bound > run_idx) end = begin;
    }
    if (begin >= end) return false;
    if (head_tile == num_head_tiles) next_sequence(p, num_head_tiles);
    count = min(num_tiles - first, end - begin);
    behind = end - begin - count;
    return true;
  }
  __device__ void next_sequence(const AttentionPagedKernelParams& p, int num_head_tiles) {
    head_tile = 0;
    seq_tiles_before += num_head_tiles * num_tiles;
    do set_sequence(p, seq + 1);
    while (num_tiles == 0);
  }
  __device__ bool next(const AttentionPagedKernelParams& p, int num_head_tiles) {
    if (behind == 0) return false;
    if (++head_tile == num_head_tiles) next_sequence(p, num_head_tiles);
    first = 0;
    before += count;
    count = min(num_tiles, behind);
    behind -= count;
    return true;
  }
  // The tiles of a run are dealt to the warps by turns: the first of the piece that `warp` has.
  template <int kWarps>
  __device__ int first_idx(int warp) const {
    return (warp + kWarps - before % kWarps) % kWarps;
  }
  __device__ int first_key(int idx) const { return keys.begin + (first + idx) * kTile; }
};

// Copies the warp's tiles into its ring, those of all pieces of its CTA's run one behind the other.
template <typename Format>
class TileLoader {
 public:
  // seq_row: of the piece's sequence.
  __device__ TileLoader(const AttentionDecodeRingParams& params, DecodePiece piece, int seq_row, uint32_t ring,
                        uint32_t full, int tiles_per_kv_head, int num_head_tiles)
      : params_(params),
        piece_(piece),
        seq_row_(seq_row),
        ring_(ring),
        full_(full),
        tiles_per_kv_head_(tiles_per_kv_head),
        num_head_tiles_(num_head_tiles),
        idx_(piece.first_idx<Format::kWarps>(warp())) {
    find_blocks();
  }
  // Whether there is a next copy in this piece and it brings no key of this step, which is the sequence's last.
  __device__ bool is_next_old() const {
    return idx_ < piece_.count && piece_.first_key(idx_) + kTile < piece_.keys.end;
  }
  // Starts the next copy, if there is one. All lanes have read what the stage held.
  __device__ void load(int stage) {
    const AttentionPagedKernelParams& p = params_.attention;
    bool is_found = found_ < kWarpSize;
    while (idx_ >= piece_.count) {
      const int seq = piece_.seq;
      if (!piece_.next(p, num_head_tiles_)) return;
      if (piece_.seq != seq) seq_row_ = p.seq_rows[piece_.seq];
      idx_ = piece_.template first_idx<Format::kWarps>(warp());
      is_found = false;
    }
    if (!is_found) find_blocks();
    const int block_id = __shfl_sync(0xffffffffu, block_id_, found_++);
    if (elect_lane()) {
      const uint32_t bar = full_ + 8 * static_cast<uint32_t>(stage);
      arrive_expecting(bar, Format::kBytes);
      Format::copy(params_, {block_id, kv_head_, piece_.first_key(idx_) & (p.kv.kv_block_size - 1)},
                   ring_ + static_cast<uint32_t>(stage) * static_cast<uint32_t>(sizeof(typename Format::Stage)), bar);
    }
    idx_ += Format::kWarps;
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
  // Lane i: the block of the i-th next tile of the warp in the piece.
  __device__ void find_blocks() {
    const AttentionPagedKernelParams& p = params_.attention;
    const int idx = idx_ + Format::kWarps * static_cast<int>(threadIdx.x % kWarpSize);
    const int shift = 31 - __clz(p.kv.kv_block_size);
    const int32_t* blocks = p.block_table + seq_row_ * p.block_table_stride;
    block_id_ = idx < piece_.count ? blocks[piece_.first_key(idx) >> shift] : 0;
    found_ = 0;
    kv_head_ = piece_.head_tile / tiles_per_kv_head_;
  }

  const AttentionDecodeRingParams& params_;
  DecodePiece piece_;
  int seq_row_;
  uint32_t ring_, full_;
  int tiles_per_kv_head_, num_head_tiles_;
  int idx_;  // in the piece, of the next tile
  int block_id_ = 0, found_ = 0, kv_head_ = 0;
};

}  // namespace spate::cuda
