// linear on AMX tiles.
//
// Up to 16 rows (decode): x is read as it lies, tiles have as many rows as x, four n-blocks of the weight are streamed
// at once; with the 16 cycles that a 1 KB tile takes at most, memory is the limit by far. More rows: for a pair of
// n-blocks, kStepBlock steps of 32 k at a time (32 KB of weight, which stays in L1), all row pairs pass by from L2 with
// 2 x 2 tiles of sums, while the next steps of weight are brought to L2. x of a chunk stays in L2: when all of K does
// not fit, K is cut, and the sums of a whole group of n-blocks wait in scratch, so that x is read once a group. An
// element is summed over k in the same order by the same instruction in all of these.
//
// Rows of x are copied to rows of an odd number of cache lines, so that the 16 lines of a tile lie in 16 sets of L1.
// (Read where they lie, with such a stride, they were no faster: slower or equal with 1,024 and 2,048 k, faster with
// 3,072.) Complete sums go through two blocks of 4 KB and are finished (bias, silu, rounding) in the shadow of the
// products of the next row pair. An output that no cache would keep is written past the caches: to write a line of it
// the usual way, it would first be fetched.
//
// kInts: the same for int8 weights of whole rows with more than 16 rows of x; sums are i32 until all of K is in them.
// kUnpack: int4 of two levels becomes int8 tiles in L1 on the way (int4_unpack.h). Other integer weights:
// gemm_int_amx.h.
#pragma once

#include "backend/cpu/kernel/gemm_amx_rows.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kStepBlock = 16;  // steps of 32 k
constexpr int64_t kMaxRowsPerChunk = 512;
constexpr int64_t kFewRows = 64;  // up to here the weight comes from memory as it is needed, and memory is the limit
constexpr int64_t kMaxPairsPerItem = 4;
constexpr int64_t kMaxThreadsByRows = 4, kMinRowsOfThread = 128;
constexpr int64_t kStreamedBytes = 1024 * 1024;  // of a thread's share of the output
constexpr int64_t kXBytesInL2 = 1152 * 1024;  // of 2 MB
constexpr int64_t kXChunkBytes = 512 * 1024;  // when K is cut
constexpr int64_t kSumsBytes = 1024 * 1024;

static bool amx_takes(const GemmParams& p) { return p.x_elem == Elem::kBf16 && p.weight_elem == Elem::kBf16; }

// Whole rows of int8, or int4 that becomes that, and enough rows of x.
static bool amx_takes_int8(const GemmParams& p) {
  const IntLayout& w = p.weight_ints;
  return p.m > 16 && (w.two_level() || (w.codes == CodeType::kInt8 && w.scale_bytes == 4));
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

// Of a packed row of x: 64 bytes a step and the next odd number of lines.
SPATE_INLINE int64_t packed_row_bytes(const GemmParams& p) { return (k_steps(p) | 1) * 64; }

// Whole lines of 32 columns.
SPATE_INLINE bool out_is_lines(const GemmParams& p) {
  return is_bf16_without_bias(p) && p.n % (2 * kNBlock) == 0 && reinterpret_cast<uintptr_t>(p.out) % 64 == 0 &&
         p.out_stride * 2 % 64 == 0;
}

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
  plan.packed_x_bytes = is_int(p) ? int_x_bytes(p.m, p.weight_ints) : round_up(p.m, 32) * packed_row_bytes(p);
  // A line of x that one thread writes and another reads costs both some 8 times what a line of weight does that comes
  // to L2 in time. So few threads divide a wide x by rows, though each then reads the whole weight.
  const bool by_rows = num_threads <= kMaxThreadsByRows && p.m >= kMinRowsOfThread * num_threads &&
                       8 * p.m >= p.n * blocks_per_column(p) * (num_threads - 1);
  plan.rows_per_chunk = min_of(kMaxRowsPerChunk, round_up(ceil_div(p.m, by_rows ? num_threads : 1), 32));
  const bool cut = k_is_cut(p, plan.rows_per_chunk);
  int64_t pairs_per_group = 1;
  if (cut) pairs_per_group = min_of(ceil_div(pairs, num_threads), kSumsBytes / (plan.rows_per_chunk * kPairBytes));
  while (plan.rows_per_chunk > 64 &&
         ceil_div(p.m, plan.rows_per_chunk) * ceil_div(pairs, pairs_per_group) < num_threads) {
    plan.rows_per_chunk = round_up(plan.rows_per_chunk / 2, 32);
  }
  const int64_t row_chunks = ceil_div(p.m, plan.rows_per_chunk);
  while (!cut && pairs_per_group < kMaxPairsPerItem && row_chunks * pairs / (2 * pairs_per_group) >= 4 * num_threads) {
    pairs_per_group *= 2;
  }
  plan.n_blocks_per_group = pairs_per_group * blocks_per_pair(p);
  plan.stream_out = out_is_lines(p) && p.m * p.n * 2 / num_threads > kStreamedBytes;
  plan.scratch_bytes = 2 * 32 * kPairBytes + plan.rows_per_chunk * kNBlock * 2 +
                       (cut ? pairs_per_group : 1) * plan.rows_per_chunk * kPairBytes;
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

// The packed x of the op before has been read by all threads, so that each line must be taken from them: asked for a
// row ahead, since stores wait for it in order.
template <typename LineAt>
SPATE_INLINE void prefetch_packed_row(int64_t steps, const LineAt& line_at) {
  for (int64_t s = 0; s < steps; ++s) __builtin_prefetch(line_at(s), 1, 3);
}

// Rows behind the last one are zero up to a multiple of 32, with more than 16 rows.
static void amx_pack_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  const int64_t steps = k_steps(p), row_bytes = p.m > 16 ? packed_row_bytes(p) : steps * 64;
  const int64_t end_row = p.m > 16 && first_row + num_rows == p.m ? round_up(p.m, 32) : first_row + num_rows;
  for (int64_t r = first_row; r < end_row; ++r) {
    char* out = p.packed_x + r * row_bytes;
    const bf16_t* src = static_cast<const bf16_t*>(p.x) + (r < p.m ? r * p.x_stride : 0);
    const int64_t ahead = r + 1 < end_row ? row_bytes : 0;
    for (int64_t s = 0; s < steps; ++s) {
      __builtin_prefetch(out + ahead + s * 64, 1, 3);
      copy_line(out + s * 64, src + s * kKStep, r < p.m ? p.k - s * kKStep : 0);
    }
  }
}

// Codes of rows; codes_at(row, k): where those of 32 k go. Rows up to a multiple of 32 are zero.
template <typename CodesAt>
SPATE_INLINE void pack_int_rows(const GemmParams& p, int64_t first_row, int64_t num_rows, const CodesAt& codes_at) {
  constexpr int64_t kTogether = 4;  // rows that stay in L1 between the search for their largest and their codes
  const IntX x = int_x(p);
  const IntLayout& w = p.weight_ints;
  const int64_t end_row = first_row + num_rows == p.m ? round_up(p.m, 32) : first_row + num_rows;
  const int64_t lines = w.k_padded / 64;
  int64_t r = first_row;
  if (w.num_groups == 1 && !w.has_offsets && p.x_elem == Elem::kBf16) {
    const auto ask_for = [&](int64_t row) { prefetch_packed_row(lines, [&](int64_t s) { return codes_at(row, s * 64); }); };
    for (const int64_t end = first_row + num_rows; r < end; r += kTogether) {
      quantize_whole_rows(static_cast<const bf16_t*>(p.x), p.x_stride, r, min_of(kTogether, end - r), p.k, w, x, codes_at,
                          ask_for);
    }
    r = first_row + num_rows;
  }
  for (; r < end_row; ++r) {
    if (r + 1 < end_row) prefetch_packed_row(lines, [&](int64_t s) { return codes_at(r + 1, s * 64); });
    const auto of_row = [&](int64_t k) { return codes_at(r, k); };
    if (w.has_offsets) {
      pack_int_row<true>(p, x, r, of_row);
    } else {
      pack_int_row<false>(p, x, r, of_row);
    }
  }
}

static void amx_pack_int8_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  int8_t* codes = int_x(p).codes;
  const int64_t row_bytes = packed_row_bytes(p);
  pack_int_rows(p, first_row, num_rows, [=](int64_t row, int64_t k) { return codes + row * row_bytes + k; });
}

static void gemm_amx_few_rows(const GemmParams& p, int64_t first_n_block, int64_t num_n_blocks, float* sums) {
  const int64_t steps = k_steps(p), block_bytes = steps * kTileBytes;
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
      blocks[num_blocks++] = p.weight + (first + j + p.up_blocks) * block_bytes;
    }
    const auto b = [&](int64_t s, int64_t j) { return blocks[j] + s * kTileBytes; };
    amx_row_product<true>(a, b, num_blocks, steps, sums, stride, false);
    amx_fence();
    finish_n_blocks(p, 0, p.m, first, count, sums, sums + count * kNBlock, stride);
  }
  amx_end();
}

// How 32 columns, a line, get to the output: silu_and_mul gives 16 at a time, of which the first wait for the others.
enum class LineWrite : uint8_t { kStore, kStream, kKeep, kStreamWithKept };

// Memory of one thread.
struct ProductScratch {
  float* complete[2];  // [32][2 n-blocks], in turn
  bf16_t* kept;        // [rows of a chunk][16]
  float* sums;         // [rows of a chunk][2 n-blocks], for each pair of the item when K is cut
};
SPATE_INLINE ProductScratch product_scratch(const GemmPlan& plan, char* scratch) {
  auto* complete = reinterpret_cast<float*>(scratch);
  auto* kept = reinterpret_cast<bf16_t*>(scratch + 2 * 32 * kPairBytes);
  return {{complete, complete + 32 * 2 * kNBlock}, kept, reinterpret_cast<float*>(kept + plan.rows_per_chunk * kNBlock)};
}

// One item: some rows by some n-blocks. kUnpack: of int4.
template <bool kInts, bool kUnpack, Finish kFinish>
static void multiply_many_rows(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                               int64_t first_n_block, int64_t num_n_blocks, char* memory) {
  const ProductScratch scratch = product_scratch(plan, kUnpack ? memory + Int4Tiles::kBytes : memory);
  const int64_t row_bytes = packed_row_bytes(p);
  const auto rows_at = [&](int64_t row, int64_t step) {
    return TileRows{.base = p.packed_x + (first_row + row) * row_bytes + step * 64,
                    .row_stride = row_bytes,
                    .step_stride = 64,
                    .block_stride = 16 * row_bytes};
  };
  const int64_t all_steps = k_steps(p), block_bytes = weight_block_bytes(p), per_pair = blocks_per_pair(p);
  const int64_t rows32 = round_up(num_rows, 32), num_pairs = ceil_div(num_n_blocks, per_pair);
  const bool cut = k_is_cut(p, plan.rows_per_chunk);
  const int64_t chunk_steps = cut ? round_up(max_of(1, kXChunkBytes / (rows32 * 64)), kStepBlock) : all_steps;
  // The weights to come are brought to L2: lines for each step of each row pair, half of the row pairs for each n-block
  // (with one row pair all of both).
  const int64_t row_pairs_per_block = max_of(1, rows32 / 64), lines = ceil_div(16, row_pairs_per_block);
  Int4Tiles unpacked(p.weight_ints, per_pair * block_bytes, rows32 / 32, memory);
  PendingRows pending;
  int turn = 0;

  // Steps of a pair that all rows pass by at a time: those that fit L1, and all when the rows pass but once.
  const auto steps_at_a_time = [&](int64_t num_steps) {
    return num_rows <= 32 ? num_steps : min_of(num_steps, kStepBlock);
  };
  // after, with kUnpack: what is multiplied next; without steps nothing.
  const auto multiply_pair = [&](const BlockPair& pair, LineWrite write, int64_t begin, int64_t end, float* sums,
                                 const PairSteps& after) __attribute__((always_inline)) {
    const int64_t block = steps_at_a_time(end - begin);
    for (int64_t first = begin; first < end; first += block) {
      const int64_t steps = min_of(block, end - first);
      const bool completes = first + steps == all_steps;
      // After the last steps come the first ones of the next pair of n-blocks.
      const int64_t next_offset =
          first + steps < end ? (first + steps) * kTileBytes : per_pair * block_bytes + begin * kTileBytes;
      const char *next0 = pair.b0 + next_offset, *next1 = pair.b1 + next_offset;
      const char *b0 = pair.b0 + first * kTileBytes, *b1 = pair.b1 + first * kTileBytes;
      if constexpr (kUnpack) {
        const int64_t rest = end - first - steps;
        const PairSteps following{{pair.b0, pair.b1}, first + steps, min_of(block, rest)};
        unpacked.begin({{pair.b0, pair.b1}, first, steps}, rest > 0 ? following : after);
      }
      for (int64_t row = 0; row < num_rows; row += 32) {
        const int64_t part = row / 32 % row_pairs_per_block * steps * lines * 64;
        const char* next = (row / 32 < row_pairs_per_block ? next0 : next1) + part;
        const TileRows a = rows_at(row, first);
        float* c = sums + row * 2 * kNBlock;
        const PairSums of{first > 0 ? c : nullptr, completes ? scratch.complete[turn] : c};
        const bool few = num_rows <= kFewRows && row == 0;
        if constexpr (kUnpack) {
          const UnpackedTiles b{&unpacked};
          few ? multiply_row_pair<kInts, true, kFinish>(p, a, b, steps, of, pending)
              : multiply_row_pair<kInts, false, kFinish>(p, a, b, steps, of, pending);
        } else if (few) {
          const StoredTiles<true> b{{b0, b1}, {next, num_rows <= 32 ? next1 : nullptr}, lines};
          multiply_row_pair<kInts, true, kFinish>(p, a, b, steps, of, pending);
        } else {
          const StoredTiles<false> b{{b0, b1}, {next, nullptr}, lines};
          multiply_row_pair<kInts, false, kFinish>(p, a, b, steps, of, pending);
        }
        if (!completes) continue;
        finish_all<kInts, kFinish>(p, pending);
        pending.pair = pair;
        pending.row = first_row + row;
        pending.left = min_of(32, num_rows - row);
        pending.sums = of.to;
        if constexpr (kFinish != Finish::kAny) {
          const bool keep = write == LineWrite::kKeep;
          bf16_t* kept = scratch.kept + row * kNBlock;
          bf16_t* out = static_cast<bf16_t*>(p.out) + pending.row * p.out_stride + pair.n_block * kNBlock;
          pending.out = keep ? kept : out;
          pending.out_stride = keep ? kNBlock : p.out_stride;
          pending.stream = write == LineWrite::kStream || write == LineWrite::kStreamWithKept;
          pending.kept = kept;
          if constexpr (kInts) {
            const PairScales scales = pair_scales(p, pair);
            pending.x_scales = int_x(p).scales + pending.row;
            for (int j = 0; j < 2; ++j) pending.scale[j] = scales.scale[j];
          }
        }
        turn ^= 1;
      }
    }
  };
  // The last n-block of an odd number of them.
  const auto multiply_single = [&](const BlockPair& pair, int64_t begin, int64_t end, float* sums) {
    const int64_t block = kUnpack ? kStepBlock : end - begin;
    for (int64_t first = begin; first < end; first += block) {
      const int64_t steps = min_of(block, end - first);
      const char* b0 = kUnpack ? unpacked.unpack_single(pair.b0, first, steps) : pair.b0 + first * kTileBytes;
      for (int64_t row = 0; row < num_rows; row += 32) {
        float* c = sums + row * 2 * kNBlock;
        const auto b = [&](int64_t s, int64_t) { return b0 + s * kTileBytes; };
        amx_2x1<kInts>(rows_at(row, first), b, 0, steps, c, 2 * kNBlock, first > 0);
        amx_fence();
        if (first + steps < all_steps) continue;
        PendingRows rows;
        rows.pair = pair;
        rows.row = first_row + row;
        rows.left = min_of(32, num_rows - row);
        rows.sums = c;
        finish_any_rows<kInts>(p, rows, 32);
      }
    }
  };

  const auto pair_at = [&](int64_t i) -> BlockPair {
    const int64_t n_block = first_n_block + i * per_pair;
    const char* b0 = p.weight + n_block * block_bytes;
    const bool is_single = !p.silu_and_mul && n_block + 1 == first_n_block + num_n_blocks;
    return {b0, is_single ? nullptr : b0 + (p.silu_and_mul ? p.up_blocks : 1) * block_bytes, n_block};
  };
  // kUnpack: what comes after pair i and its steps [begin, end), unless it is a single n-block.
  const auto steps_after = [&](int64_t i, int64_t begin, int64_t end) -> PairSteps {
    if (i + 1 == num_pairs) {
      if (end == all_steps) return {};
      begin = end;
      end = min_of(all_steps, begin + chunk_steps);
    }
    const BlockPair pair = pair_at((i + 1) % num_pairs);
    if (pair.b1 == nullptr) return {};
    return {{pair.b0, pair.b1}, begin, steps_at_a_time(end - begin)};
  };

  amx_fence();
  amx_begin(16);
  for (int64_t begin = 0; begin < all_steps; begin += chunk_steps) {
    const int64_t end = min_of(all_steps, begin + chunk_steps);
    for (int64_t i = 0; i < num_pairs; ++i) {
      const BlockPair pair = pair_at(i);
      const int64_t n_block = pair.n_block;
      float* sums = scratch.sums + (cut ? i * rows32 * 2 * kNBlock : 0);
      if (pair.b1 == nullptr) {
        multiply_single(pair, begin, end, sums);
        continue;
      }
      // An item may begin or end in the middle of a line of silu's.
      const bool has_first = i > 0 && n_block % 2 != 0, has_other = i + 1 < num_pairs && n_block % 2 == 0;
      const LineWrite write = !plan.stream_out  ? LineWrite::kStore
                              : !p.silu_and_mul ? LineWrite::kStream
                              : has_first       ? LineWrite::kStreamWithKept
                              : has_other       ? LineWrite::kKeep
                                                : LineWrite::kStore;
      multiply_pair(pair, write, begin, end, sums, kUnpack ? steps_after(i, begin, end) : PairSteps{});
    }
  }
  amx_end();
  finish_all<kInts, kFinish>(p, pending);
}

SPATE_INLINE bool has_outliers(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  const int32_t* counts = int_x(p).num_outliers;
  int32_t any = 0;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) any |= counts[row];
  return any != 0;
}

template <bool kInts, bool kUnpack>
static void multiply_item(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                          int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
  const bool plain = is_bf16_without_bias(p) && p.n % kNBlock == 0 &&
                     !(kInts && (p.weight_ints.has_offsets || has_outliers(p, first_row, num_rows)));
  const auto run = !plain           ? multiply_many_rows<kInts, kUnpack, Finish::kAny>
                   : p.silu_and_mul ? multiply_many_rows<kInts, kUnpack, Finish::kSilu>
                                    : multiply_many_rows<kInts, kUnpack, Finish::kLine>;
  run(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
}

static void gemm_amx(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                     int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
  if (p.weight_ints.two_level()) {
    multiply_item<true, true>(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  } else if (is_int(p)) {
    multiply_item<true, false>(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  } else if (p.m <= 16) {
    gemm_amx_few_rows(p, first_n_block, num_n_blocks, reinterpret_cast<float*>(scratch));
  } else {
    multiply_item<false, false>(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  }
}

}  // namespace spate::cpu::SPATE_ISA
