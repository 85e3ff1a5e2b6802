// WHAT       The INT8 cache blocks of a step become blocks that attention_prefill_wgmma.cu reads: codes of k
//            as bf16 with their scales behind them, values v = code * scale as bf16.
// SHAPES     seq_rows, seq_lens [num_seqs], cu_seqlens_q [num_seqs + 1], block_table [max_num_seqs, ...] i32; head_dim
//            64 or 128, kv_block_size a multiple of 16.
// LAYOUT     expand_kv.h. Sequences lie one after the other, from the first block that one of their queries sees.
// NUMERICS   k is exact: its scale meets the fp32 scores. v is rounded to bf16 once, as in a bf16 cache.
// WORK       Rows of a block are neighbours in both layouts: a warp takes 2,048 codes at a time, in 8 independent loads
//            of 8 bytes a lane. The pieces of all sequences of the pass are dealt out to the warps in turn; each warp
//            walks over the lengths itself.
// ROOFLINE   3 bytes a code: 2,048 tokens of 8 heads x 128 are 12.6 MB, 2.7 us at 4.65 TB/s.
// WARM       0.2 s: fast, bf16, int8-cache
// LIMITS     A sequence fits into the workspace.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/expand_kv.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

// Code `i` of a word whose sign bits are flipped: 2^23 + 128 + code as a float, less what it has too much.
__device__ inline float code_value(uint32_t flipped, int i) {
  return __uint_as_float(__byte_perm(flipped, 0x4b000000u, 0x7540u + static_cast<uint32_t>(i))) - 8388736.0f;
}

// The blocks of a sequence whose keys are seen, half-open.
struct BlockRange {
  int begin, end;
};

__device__ inline BlockRange seen_blocks(const AttentionPagedKernelParams& p, int seq) {
  const int query_len = p.cu_seqlens_q[seq + 1] - p.cu_seqlens_q[seq], seq_len = p.seq_lens[seq];
  if (query_len <= 0 || seq_len <= 0 || (p.skips_decodes && query_len == 1)) return {0, 0};
  const int first_key = p.window > 0 ? max(0, seq_len - query_len - p.window + 1) : 0;
  return {first_key / p.kv.kv_block_size, (seq_len - 1) / p.kv.kv_block_size + 1};
}

// Rows piece * kRows and on of a block.
template <int kHeadDim>
__device__ inline void expand_piece(const ExpandKvParams& params, int64_t from_block, int64_t to_block, int piece) {
  constexpr int kLanesPerRow = kHeadDim / 8, kRowsPerLoad = kWarpSize / kLanesPerRow, kLoads = 8;
  static_assert(kLoads * kWarpSize * 8 == kExpandPieceCodes);
  const KvLayout& kv = params.attention.kv;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const char* from =
      static_cast<const char*>(kv.data) + from_block * kv.block_bytes + int64_t{piece} * kExpandPieceCodes;
  char* to_start = static_cast<char*>(params.expanded.data) + to_block * params.expanded.block_bytes;
  char* to = to_start + int64_t{piece} * kExpandPieceCodes * 2;
  float* to_scales = reinterpret_cast<float*>(to_start + expanded_scales_offset(params.expanded));
  const int first_row = piece * (kExpandPieceCodes / kHeadDim) + lane / kLanesPerRow;
  const int num_key_rows = kv.num_kv_heads * kv.kv_block_size;

  uint2 codes[kLoads];
  float scale[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    codes[i] = reinterpret_cast<const uint2*>(from)[i * kWarpSize + lane];
    scale[i] = kv.scales(from_block)[first_row + i * kRowsPerLoad];
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int row = first_row + i * kRowsPerLoad;
    const bool is_key = row < num_key_rows;
    if (is_key && lane % kLanesPerRow == 0) to_scales[row] = scale[i];
    const float factor = is_key ? 1.0f : scale[i];
    const uint32_t words[2] = {codes[i].x ^ 0x80808080u, codes[i].y ^ 0x80808080u};
    uint32_t packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      packed[j] =
          pack_bf16(code_value(words[j / 2], j % 2 * 2) * factor, code_value(words[j / 2], j % 2 * 2 + 1) * factor);
    }
    reinterpret_cast<uint4*>(to)[i * kWarpSize + lane] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
}

template <int kHeadDim>
__device__ inline void expand_kv(const ExpandKvParams& params) {
  let_dependents_launch();
  wait_for_inputs();
  const AttentionPagedKernelParams& p = params.attention;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(blockIdx.x) * kExpandWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int num_warps = static_cast<int>(gridDim.x) * kExpandWarps;
  const int pieces_per_block = 2 * p.kv.num_kv_heads * p.kv.kv_block_size * kHeadDim / kExpandPieceCodes;
  int next_piece = warp, first_piece = 0;  // pieces of this pass are counted through all its sequences
  int pass_idx = 0, first_block = 0;       // of the sequence
  BlockRange of_lane = {};                 // lane i: of sequence i of a group of 32
  for (int seq = 0; seq < p.num_seqs; ++seq) {
    if (seq % kWarpSize == 0) {
      of_lane = seq + lane < p.num_seqs ? seen_blocks(p, seq + lane) : BlockRange{0, 0};
    }
    const BlockRange seen = {__shfl_sync(0xffffffffu, of_lane.begin, seq % kWarpSize),
                             __shfl_sync(0xffffffffu, of_lane.end, seq % kWarpSize)};
    const int num_blocks = seen.end - seen.begin;
    if (first_block + num_blocks > params.num_blocks) {
      ++pass_idx;
      first_block = 0;
    }
    if (warp == 0 && lane == 0) {
      params.seq_rows[seq] = seq;
      params.seq_lens[seq] = pass_idx == params.pass_idx ? p.seq_lens[seq] : 0;
    }
    if (pass_idx == params.pass_idx) {
      const int32_t* from = p.block_table + p.seq_rows[seq] * p.block_table_stride + seen.begin;
      int32_t* table = params.block_table + static_cast<int64_t>(seq) * params.block_table_stride + seen.begin;
      for (const int end_piece = first_piece + num_blocks * pieces_per_block; next_piece < end_piece;
           next_piece += num_warps) {
        const int block = (next_piece - first_piece) / pieces_per_block;
        const int piece = (next_piece - first_piece) % pieces_per_block;
        if (piece == 0 && lane == 0) table[block] = first_block + block;
        expand_piece<kHeadDim>(params, from[block], first_block + block, piece);
      }
      first_piece += num_blocks * pieces_per_block;
    }
    first_block += num_blocks;
  }
}

extern "C" __global__ void __launch_bounds__(kExpandWarps* kWarpSize)
    expand_kv_d64(const __grid_constant__ ExpandKvParams p) {
  expand_kv<64>(p);
}
extern "C" __global__ void __launch_bounds__(kExpandWarps* kWarpSize)
    expand_kv_d128(const __grid_constant__ ExpandKvParams p) {
  expand_kv<128>(p);
}

}  // namespace spate::cuda
