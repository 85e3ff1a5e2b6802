// linear on AMX tiles.
//
// Up to 16 rows (decode): x is read as it lies, tiles have as many rows as x, four n-blocks of the weight are streamed
// at once; with the 16 cycles that a 1 KB tile takes at most, memory is the limit by far. More rows: x is packed into
// tiles, in the order in which they are read. For a pair of n-blocks, kStepBlock steps of 32 k at a time (32 KB of
// weight, which stays in L1), all row pairs pass by from L2 with 2 x 2 tiles of sums, while the next steps of weight
// are brought to L2. x of a chunk stays in L2: when all of K does not fit, K is cut, and the sums of a whole group of
// n-blocks wait in scratch, so that x is read once a group. An element is summed over k in the same order by the same
// instruction in all of these.
//
// kInts: the same for int8 weights of whole rows with more than 16 rows of x; sums are i32 until all of K is in them
// (other integer weights: gemm_int_amx.h).
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/gemm_int.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kStepBlock = 16;  // steps of 32 k
constexpr int64_t kMaxRowsPerChunk = 512;
constexpr int64_t kFewRows = 64;  // up to here the weight comes from memory as it is needed, and memory is the limit
constexpr int64_t kXBytesInL2 = 1152 * 1024;  // of 2 MB
constexpr int64_t kXChunkBytes = 512 * 1024;  // when K is cut
constexpr int64_t kSumsBytes = 1024 * 1024;

static bool amx_takes(const GemmParams& p) { return p.x_elem == Elem::kBf16 && p.weight_elem == Elem::kBf16; }

// Whole rows of int8, and enough rows of x.
static bool amx_takes_int8(const GemmParams& p) {
  return p.weight_ints.codes == CodeType::kInt8 && p.weight_ints.scale_bytes == 4 && p.m > 16;
}

SPATE_INLINE int64_t k_steps(const GemmParams& p) {
  return is_int(p) ? p.weight_ints.k_padded / kIntKStep : ceil_div(p.k, kKStep);
}
SPATE_INLINE int64_t weight_block_bytes(const GemmParams& p) {
  return is_int(p) ? p.weight_ints.block_bytes : k_steps(p) * kTileBytes;
}
SPATE_INLINE bool k_is_cut(const GemmParams& p, int64_t rows) {
  return round_up(rows, 32) * k_steps(p) * 64 > kXBytesInL2;
}
// Output n-blocks of a pair of weight n-blocks.
SPATE_INLINE int64_t blocks_per_pair(const GemmParams& p) { return p.silu_and_mul ? 1 : 2; }

static GemmPlan amx_plan(const GemmParams& p, int num_threads) {
  GemmPlan plan;
  const int64_t n_blocks = ceil_div(p.n, kNBlock);
  if (p.m <= 16) {
    plan.packed_x_bytes = p.k % kKStep == 0 ? 0 : p.m * k_steps(p) * 64;
    plan.rows_per_chunk = 16;
    plan.n_blocks_per_group = 2 * blocks_per_pair(p);
    while (plan.n_blocks_per_group > 1 && ceil_div(n_blocks, plan.n_blocks_per_group) < 2 * num_threads) {
      plan.n_blocks_per_group /= 2;
    }
    plan.scratch_bytes = 16 * 4 * kNBlock * 4;
    return plan;
  }
  const int64_t pairs = ceil_div(n_blocks, blocks_per_pair(p));
  plan.packed_x_bytes = is_int(p) ? int_x_bytes(p.m, p.weight_ints) : round_up(p.m, 32) * k_steps(p) * 64;
  plan.rows_per_chunk = min_of(kMaxRowsPerChunk, round_up(p.m, 32));
  int64_t pairs_per_group = 1;
  if (k_is_cut(p, plan.rows_per_chunk)) {
    pairs_per_group = min_of(ceil_div(pairs, num_threads), kSumsBytes / (plan.rows_per_chunk * 2 * kNBlock * 4));
  }
  while (plan.rows_per_chunk > 64 &&
         ceil_div(p.m, plan.rows_per_chunk) * ceil_div(pairs, pairs_per_group) < num_threads) {
    plan.rows_per_chunk = round_up(plan.rows_per_chunk / 2, 32);
  }
  plan.n_blocks_per_group = pairs_per_group * blocks_per_pair(p);
  plan.scratch_bytes = pairs_per_group * plan.rows_per_chunk * 2 * kNBlock * 4;
  return plan;
}

SPATE_INLINE void copy_line(char* dst, const bf16_t* src, int64_t count) {
  if (count >= kKStep) {
    _mm512_storeu_si512(dst, _mm512_loadu_si512(src));
  } else {
    const auto lanes = static_cast<__mmask32>(count <= 0 ? 0 : (1u << count) - 1);
    _mm512_storeu_si512(dst, _mm512_maskz_loadu_epi16(lanes, src));
  }
}

// Byte offset of the tile of row block `block` (16 rows) at step `step`: blocks of kStepBlock steps, in them pairs of
// row blocks, in them steps, in them the two tiles of the pair.
SPATE_INLINE int64_t x_tile_offset(const GemmParams& p, int64_t block, int64_t step) {
  const int64_t first = step / kStepBlock * kStepBlock, size = min_of(kStepBlock, k_steps(p) - first);
  return (first * round_up(p.m, 32) / 16 + block / 2 * 2 * size + (step - first) * 2 + block % 2) * kTileBytes;
}

// The packed x of the op before has been read by all threads, so that each line must be taken from them: asked for a
// row ahead, since stores wait for it in order.
template <typename LineAt>
SPATE_INLINE void prefetch_packed_row(int64_t steps, const LineAt& line_at) {
  for (int64_t s = 0; s < steps; ++s) __builtin_prefetch(line_at(s), 1, 3);
}

// With at most 16 rows in all, row lies after row; else in tiles, and the rows up to a multiple of 32 are zero.
static void amx_pack_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  const int64_t steps = k_steps(p);
  const bool tiles = p.m > 16;
  const int64_t end_row = tiles && first_row + num_rows == p.m ? round_up(p.m, 32) : first_row + num_rows;
  for (int64_t r = first_row; r < end_row; ++r) {
    const auto line_at = [&](int64_t row, int64_t s) {
      return p.packed_x + (tiles ? x_tile_offset(p, row / 16, s) + row % 16 * 64 : (row * steps + s) * 64);
    };
    if (r == first_row) prefetch_packed_row(steps, [&](int64_t s) { return line_at(r, s); });
    if (r + 1 < end_row) prefetch_packed_row(steps, [&](int64_t s) { return line_at(r + 1, s); });
    const bf16_t* src = static_cast<const bf16_t*>(p.x) + (r < p.m ? r * p.x_stride : 0);
    for (int64_t s = 0; s < steps; ++s) copy_line(line_at(r, s), src + s * kKStep, r < p.m ? p.k - s * kKStep : 0);
  }
}

// Codes of rows in tiles of `row_bytes` a row; tile_at(block, step): the offset of a tile. Rows up to a multiple of 32
// are zero.
template <typename TileAt>
SPATE_INLINE void pack_int_tiles(const GemmParams& p, int64_t first_row, int64_t num_rows, int64_t row_bytes,
                                 const TileAt& tile_at) {
  const IntX x = int_x(p);
  const int64_t end_row = first_row + num_rows == p.m ? round_up(p.m, 32) : first_row + num_rows;
  const int64_t steps = p.weight_ints.k_padded / row_bytes;
  for (int64_t r = first_row; r < end_row; ++r) {
    const auto line_at = [&](int64_t row, int64_t s) { return x.codes + tile_at(row / 16, s) + row % 16 * row_bytes; };
    if (r == first_row) prefetch_packed_row(steps, [&](int64_t s) { return line_at(r, s); });
    if (r + 1 < end_row) prefetch_packed_row(steps, [&](int64_t s) { return line_at(r + 1, s); });
    const auto codes_at = [&](int64_t k) { return line_at(r, k / row_bytes) + k % row_bytes; };
    if (p.weight_ints.has_offsets) {
      pack_int_row<true>(p, x, r, codes_at);
    } else {
      pack_int_row<false>(p, x, r, codes_at);
    }
  }
}

static void amx_pack_int8_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  pack_int_tiles(p, first_row, num_rows, 64,
                 [&](int64_t block, int64_t step) { return x_tile_offset(p, block, step); });
}

static void gemm_amx_few_rows(const GemmParams& p, int64_t first_n_block, int64_t num_n_blocks, float* sums) {
  const int64_t steps = k_steps(p), block_bytes = steps * kTileBytes;
  const int64_t up_blocks = p.silu_and_mul ? p.n / kNBlock : 0;
  const bool packed = p.k % kKStep != 0;
  const TileRows a{.base = packed ? p.packed_x : static_cast<const char*>(p.x),
                   .row_stride = packed ? steps * 64 : p.x_stride * 2,
                   .step_stride = 64,
                   .block_stride = 0};
  const int64_t group_blocks = 2 * blocks_per_pair(p), stride = 4 * kNBlock;
  amx_fence();
  amx_begin(p.m);
  for (int64_t first = first_n_block; first < first_n_block + num_n_blocks; first += group_blocks) {
    const int64_t count = min_of(group_blocks, first_n_block + num_n_blocks - first);
    const char* blocks[4];
    int64_t num_blocks = 0;
    for (int64_t j = 0; j < count; ++j) blocks[num_blocks++] = p.weight + (first + j) * block_bytes;
    for (int64_t j = 0; j < count && p.silu_and_mul; ++j) {
      blocks[num_blocks++] = p.weight + (first + j + up_blocks) * block_bytes;
    }
    const auto b = [&](int64_t s, int64_t j) { return blocks[j] + s * kTileBytes; };
    amx_row_product<true>(a, b, num_blocks, steps, sums, stride, false);
    amx_fence();
    finish_n_blocks(p, 0, p.m, first, count, sums, sums + count * kNBlock, stride);
  }
  amx_end();
}

// Where a pair of n-blocks goes.
struct BlockPair {
  const char* b0;
  const char* b1;   // null: there is no second
  int64_t n_block;  // of the output
};

SPATE_INLINE void finish_rows(const GemmParams& p, const BlockPair& pair, int64_t first_row, int64_t end_row,
                              const float* sums) {
  constexpr int64_t kStride = 2 * kNBlock;
  if (p.silu_and_mul || pair.b1 == nullptr) {
    finish_n_blocks(p, first_row, end_row, pair.n_block, 1, sums, sums + kNBlock, kStride);
  } else {
    finish_n_blocks(p, first_row, end_row, pair.n_block, 2, sums, nullptr, kStride);
  }
}

// Scales and offsets of a pair of n-blocks of whole rows of int8.
struct PairScales {
  F scale[2], offset[2];
};
SPATE_INLINE PairScales pair_scales(const GemmParams& p, const BlockPair& pair) {
  const IntLayout& w = p.weight_ints;
  PairScales at;
  for (int j = 0; j < 2; ++j) {
    const char* block = j == 0 || pair.b1 == nullptr ? pair.b0 : pair.b1;
    at.scale[j] = load_scales(block + w.scales_offset(), w.scale_bytes, 0, 0);
    at.offset[j] = w.has_offsets ? load_scales(block + w.offsets_offset(), w.scale_bytes, 0, 0) : zero();
  }
  return at;
}

// The sums of column block j of a row. kInts: i32 sums of whole rows of int8.
template <bool kInts>
SPATE_INLINE F complete_sum(const GemmParams& p, const IntX& x, const PairScales& scales, int64_t row,
                            const float* sums, int j) {
  if constexpr (!kInts) return load(sums + j * kNBlock);
  const F sum = add_group(zero(), int_load(sums + j * kNBlock), set1(x.scales[row]), scales.scale[j]);
  return p.weight_ints.has_offsets ? fma(set1(x.sums[row]), scales.offset[j], sum) : sum;
}

// What nearly all outputs are: bf16 from bf16, no bias, all columns there. The vector units do one operation a cycle
// beside tile products, so every one here counts.
SPATE_INLINE bool is_plain(const GemmParams& p, const BlockPair& pair) {
  return p.bias == nullptr && p.x_elem == Elem::kBf16 && p.out_elem == Elem::kBf16 && pair.b1 != nullptr &&
         (pair.n_block + blocks_per_pair(p)) * kNBlock <= p.n;
}
template <bool kInts>
SPATE_INLINE void finish_plain_rows(const GemmParams& p, const BlockPair& pair, int64_t first_row, int64_t end_row,
                                    const float* sums) {
  IntX x{};
  PairScales scales{};
  if constexpr (kInts) {
    x = int_x(p);
    scales = pair_scales(p, pair);
  }
  const int64_t out_stride = p.out_stride;
  bf16_t* out = static_cast<bf16_t*>(p.out) + first_row * out_stride + pair.n_block * kNBlock;
  if (p.silu_and_mul) {
    for (int64_t row = first_row; row < end_row; ++row, sums += 2 * kNBlock, out += out_stride) {
      const F gate = round_bf16(complete_sum<kInts>(p, x, scales, row, sums, 0));
      const F up = round_bf16(complete_sum<kInts>(p, x, scales, row, sums, 1));
      store(out, mul(round_bf16(silu(gate)), up));
    }
  } else {
    for (int64_t row = first_row; row < end_row; ++row, sums += 2 * kNBlock, out += out_stride) {
      const F low = complete_sum<kInts>(p, x, scales, row, sums, 0);
      const F high = complete_sum<kInts>(p, x, scales, row, sums, 1);
      _mm512_storeu_si512(out, __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low)));
    }
  }
}

// i32 sums of whole rows become f32, in place.
SPATE_INLINE void dequantize_rows(const GemmParams& p, const BlockPair& pair, int64_t first_row, int64_t end_row,
                                  float* sums) {
  const IntX x = int_x(p);
  const PairScales scales = pair_scales(p, pair);
  for (int64_t row = first_row; row < end_row; ++row, sums += 2 * kNBlock) {
    for (int j = 0; j < (pair.b1 == nullptr ? 1 : 2); ++j) {
      store(sums + j * kNBlock, complete_sum<true>(p, x, scales, row, sums, j));
    }
  }
}

// Rows whose sums are complete, to be finished a few at a time between tile products.
struct PendingRows {
  int64_t row = 0, end = 0;
  float* sums = nullptr;
};

template <bool kInts>
static __attribute__((noinline)) void finish_some(const GemmParams& p, const BlockPair& pair, PendingRows& pending,
                                                  int64_t max_rows) {
  const int64_t end = min_of(pending.end, pending.row + max_rows);
  if (is_plain(p, pair)) {
    finish_plain_rows<kInts>(p, pair, pending.row, end, pending.sums);
  } else {
    if constexpr (kInts) dequantize_rows(p, pair, pending.row, end, pending.sums);
    finish_rows(p, pair, pending.row, end, pending.sums);
  }
  pending.sums += (end - pending.row) * 2 * kNBlock;
  pending.row = end;
}

// Rows [first_row, first_row + num_rows) by one pair of n-blocks over steps [begin, end). With the last steps of a row
// pair the rows before it are finished (bias, silu, rounding) in the shadow of its tile products.
template <bool kInts>
static void gemm_amx_pair(const GemmParams& p, int64_t first_row, int64_t num_rows, const BlockPair& pair,
                          int64_t begin, int64_t end, float* sums) {
  constexpr int64_t kStride = 2 * kNBlock;
  PendingRows pending;
  for (int64_t first = begin; first < end; first += kStepBlock) {
    const int64_t steps = min_of(kStepBlock, end - first), rows_per_step = ceil_div(32, steps);
    const bool completes = first + steps == k_steps(p);
    const auto b = [&](int64_t s, int64_t j) { return (j == 0 ? pair.b0 : pair.b1) + (first + s) * kTileBytes; };
    // After the last steps come the first ones of the next pair of n-blocks.
    const int64_t next_offset = first + steps < end ? (first + steps) * kTileBytes
                                                    : blocks_per_pair(p) * weight_block_bytes(p) + begin * kTileBytes;
    TileRows a{.base = p.packed_x + x_tile_offset(p, first_row / 16, first),
               .row_stride = 64,
               .step_stride = 2 * kTileBytes,
               .block_stride = kTileBytes};
    for (int64_t row = 0; row < num_rows; row += 32, a.base += 2 * steps * kTileBytes) {
      float* c = sums + row * kStride;
      // Row pairs 0 to 7 ask for an eighth of the next steps each, 4 lines a step: of the first n-block, then of the
      // second.
      const char* next = row >= 256 || num_rows <= kFewRows
                             ? nullptr
                             : (row < 128 ? pair.b0 : pair.b1) + next_offset + row / 32 % 4 * (steps * kTileBytes / 4);
      const auto meanwhile = [&](int64_t s) {
        if (next != nullptr) {
          for (int64_t line = 0; line < 4; ++line) _mm_prefetch(next + (s * 4 + line) * 64, _MM_HINT_T1);
        }
        if (pending.row < pending.end) finish_some<kInts>(p, pair, pending, rows_per_step);
      };
      if (pair.b1 == nullptr) {
        amx_2x1<kInts>(a, b, 0, steps, c, kStride, first > 0);
        if (pending.row < pending.end) finish_some<kInts>(p, pair, pending, 32);
      } else if (num_rows <= kFewRows) {
        amx_2x2<true, false, kInts>(a, b, 0, steps, c, kStride, first > 0, meanwhile);
      } else if (row == 0 && num_rows < 256) {
        amx_2x2<true, true, kInts>(a, b, 0, steps, c, kStride, first > 0, meanwhile);
      } else {
        amx_2x2<false, true, kInts>(a, b, 0, steps, c, kStride, first > 0, meanwhile);
      }
      amx_fence();
      if (completes) pending = {first_row + row, first_row + min_of(row + 32, num_rows), c};
    }
  }
  if (pending.row < pending.end) finish_some<kInts>(p, pair, pending, 32);
}

template <bool kInts>
static void gemm_amx_many_rows(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                               int64_t first_n_block, int64_t num_n_blocks, float* sums) {
  const int64_t steps = k_steps(p), block_bytes = weight_block_bytes(p), per_pair = blocks_per_pair(p);
  const int64_t rows32 = round_up(num_rows, 32);
  const bool cut = plan.n_blocks_per_group > per_pair;
  const int64_t chunk_steps = cut ? round_up(max_of(1, kXChunkBytes / (rows32 * 64)), kStepBlock) : steps;
  amx_fence();
  amx_begin(16);
  for (int64_t begin = 0; begin < steps; begin += chunk_steps) {
    const int64_t end = min_of(steps, begin + chunk_steps);
    for (int64_t i = 0; i * per_pair < num_n_blocks; ++i) {
      const int64_t n_block = first_n_block + i * per_pair;
      const char* b0 = p.weight + n_block * block_bytes;
      const bool has_second = p.silu_and_mul || n_block + 1 < first_n_block + num_n_blocks;
      const BlockPair pair{b0, has_second ? b0 + (p.silu_and_mul ? p.n / kNBlock : 1) * block_bytes : nullptr, n_block};
      gemm_amx_pair<kInts>(p, first_row, num_rows, pair, begin, end, sums + (cut ? i * rows32 * 2 * kNBlock : 0));
    }
  }
  amx_end();
}

static void gemm_amx(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                     int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
  float* sums = reinterpret_cast<float*>(scratch);
  if (is_int(p)) {
    gemm_amx_many_rows<true>(p, plan, first_row, num_rows, first_n_block, num_n_blocks, sums);
  } else if (p.m <= 16) {
    gemm_amx_few_rows(p, first_n_block, num_n_blocks, sums);
  } else {
    gemm_amx_many_rows<false>(p, plan, first_row, num_rows, first_n_block, num_n_blocks, sums);
  }
}

}  // namespace spate::cpu::SPATE_ISA
