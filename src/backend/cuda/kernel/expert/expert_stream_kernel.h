// Both products of a layer of int4 experts that have few rows each, in one launch: for expert_stream_int4.cu and its
// like.
//
//   act[r] = silu(x[token of r] Wg_e^T) * (x[token of r] Wu_e^T),   y[r] = act[r] Wd_e^T
//
// W is streamed: a warp takes 16 rows of it along k, a step of 128 elements at a time, from a ring of its own in shared
// memory that its copies fill, five steps ahead, through the ends of tiles and from one product into the next. The
// packed layout is that of the tensor core's operand, so a lane copies and reads the same 16 bytes, decodes them in
// registers and multiplies: no barrier of the CTA, no trip of decoded codes through shared memory.
//
// A CTA has an equal run of the groups of 16 rows (of gate_up 8 gates and their 8 ups) of all tiles of each product, a
// tile being up to kRows rows of one expert. It goes through the run tile by tile: a phase. First its warps make codes
// of the tile's rows of x, a warp a row, in shared memory; then they share the phase's steps of k equally, and where
// that cuts a group along k the warp with its first k adds the sums of the others, which are exact whole numbers. down
// of a tile begins when all CTAs with groups of its gate_up have told so: those are neighbours, which end together.
#pragma once

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/expert/expert_stream.h"
#include "backend/cuda/kernel/linear/quantize_row.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/flag.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

constexpr int kStreamBias = 128;  // of a code that the tensor core takes

__device__ inline void copy_streamed_16(uint32_t shared, const char* global) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ inline uint4 load_stream_quad(uint32_t address) {
  uint4 quad;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
               : "r"(address)
               : "memory");
  return quad;
}
template <int kMultipliers>
__device__ inline uint32_t load_stream_multipliers(uint32_t address) {
  if constexpr (kMultipliers == 4) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
  } else {
    uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
    return half;
  }
}

struct StreamTile {
  int16_t expert, num_rows;
  int32_t first_row;
};

// The order of rows, that every CTA makes for itself.
template <int kRows>
struct StreamOrder {
  StreamTile tiles[expert_stream_max_tiles(kRows)];
  uint16_t row_tokens[kExpertStreamPairs];
  int16_t first_rows[kExpertStreamExperts];
  uint32_t of_warps[kExpertStreamExperts / 32];  // rows of a warp's experts, and their tiles << 16
  int32_t num_tiles;
};

// The tile's rows of x, or of activations, beside their codes.
template <int kRows>
struct StreamRows {
  float scales[kRows];
  int32_t code_sums[kRows], num_outliers[kRows];
};

// All threads. masks: num_experts * ceil(num_tokens / 32) words.
template <int kRows>
__device__ inline void make_stream_order(const ExpertStreamKernelParams& p, StreamOrder<kRows>& made, uint32_t* masks) {
  constexpr int kRounds = kExpertStreamPairs / kExpertStreamThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, k = p.num_experts_per_tok;
  const int num_words = (p.num_pairs / k + 31) / 32;
  for (int i = thread; i < p.num_experts * num_words; i += kExpertStreamThreads) masks[i] = 0;
  __syncthreads();
  wait_for_inputs();
  int experts[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int pair = thread + i * kExpertStreamThreads;
    experts[i] = pair < p.num_pairs ? p.expert_ids[pair / k * p.ids_stride + pair % k] : -1;
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (static_cast<uint32_t>(experts[i]) >= static_cast<uint32_t>(p.num_experts)) experts[i] = -1;
    const int token = (thread + i * kExpertStreamThreads) / k;
    if (experts[i] >= 0) atomicOr(masks + experts[i] * num_words + token / 32, 1u << (token % 32));
  }
  __syncthreads();
  uint32_t own = 0, through = 0;  // a thread an expert: its rows and tiles, and those of the experts before
  if (thread < kExpertStreamExperts) {
    int num_rows = 0;
    if (thread < p.num_experts) {
#pragma unroll 1
      for (int w = 0; w < num_words; ++w) num_rows += __popc(masks[thread * num_words + w]);
    }
    own = static_cast<uint32_t>(num_rows | (num_rows + kRows - 1) / kRows << 16);
    through = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t lower = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += lower;
    }
    if (lane == 31) made.of_warps[thread / 32] = through;
  }
  __syncthreads();
  if (thread < kExpertStreamExperts) {
    uint32_t before = through - own;
#pragma unroll 1
    for (int warp = 0; warp < thread / 32; ++warp) before += made.of_warps[warp];
    const int first_row = static_cast<int>(before & 0xffff), first_tile = static_cast<int>(before >> 16);
    const int num_rows = static_cast<int>(own & 0xffff), num_tiles = static_cast<int>(own >> 16);
    made.first_rows[thread] = static_cast<int16_t>(first_row);
#pragma unroll 1
    for (int i = 0; i < num_tiles; ++i) {
      made.tiles[first_tile + i] = {static_cast<int16_t>(thread),
                                    static_cast<int16_t>(min(kRows, num_rows - i * kRows)), first_row + i * kRows};
    }
    if (thread == kExpertStreamExperts - 1) made.num_tiles = first_tile + num_tiles;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int pair = thread + i * kExpertStreamThreads, token = pair / k;
    int row = -1;
    if (experts[i] >= 0) {
      const uint32_t* mask = masks + experts[i] * num_words;
      row = made.first_rows[experts[i]] + __popc(mask[token / 32] & ((1u << (token % 32)) - 1));
#pragma unroll 1
      for (int w = 0; w < token / 32; ++w) row += __popc(mask[w]);
      made.row_tokens[row] = static_cast<uint16_t>(token);
    }
    if (blockIdx.x == 0 && pair < p.num_pairs) p.pair_rows[pair] = row;
  }
  __syncthreads();
}

// --- the work --------------------------------------------------------------------------------------------------------

// A warp's steps of a phase: `count` from step `step` of group `group` on.
struct StreamRun {
  int is_down, tile;
  int num_groups;  // of the phase, of the CTA
  int num_steps;   // of a group
  int group, step, count;
};

// The phases of a CTA in order, with the steps of one warp.
class StreamRuns {
 public:
  __device__ StreamRuns(const ExpertStreamKernelParams& p, int num_tiles) : p_(p), num_tiles_(num_tiles) { start(0); }

  __device__ bool next(StreamRun& run) {
    while (at_ >= end_) {
      if (is_down_ != 0) return false;
      start(1);
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    run.is_down = is_down_;
    run.tile = at_ / groups_;
    const int first = at_ - run.tile * groups_;
    run.num_groups = min(groups_ - first, end_ - at_);
    run.num_steps = is_down_ != 0 ? p_.down.layout.num_steps : p_.gate_up.layout.num_steps;
    const int total = run.num_groups * run.num_steps;
    const int begin = total * warp / kExpertStreamWarps;
    run.count = total * (warp + 1) / kExpertStreamWarps - begin;
    run.group = first + begin / run.num_steps;
    run.step = begin % run.num_steps;
    at_ += run.num_groups;
    return true;
  }
  // Steps that warp `warp` has in a phase.
  __device__ static int count_of(const StreamRun& run, int warp) {
    const int total = run.num_groups * run.num_steps;
    return total * (warp + 1) / kExpertStreamWarps - total * warp / kExpertStreamWarps;
  }
  // CTAs that have groups of down of the tile.
  __device__ int num_ctas_of(int tile) const {
    const Shares shares(num_tiles_ * groups_);
    return shares.cta_of(tile * groups_ + groups_ - 1) - shares.cta_of(tile * groups_) + 1;
  }

 private:
  // Equal runs of groups of a product, the first ones longer by one.
  struct Shares {
    int each, num_longer;
    __device__ explicit Shares(int num_groups) {
      const auto total = static_cast<uint32_t>(num_groups);
      each = static_cast<int>(total / gridDim.x);
      num_longer = static_cast<int>(total % gridDim.x);
    }
    __device__ int first(int cta) const { return cta * each + min(cta, num_longer); }
    __device__ int cta_of(int group) const {
      const int in_longer = num_longer * (each + 1);
      return group < in_longer ? group / (each + 1) : num_longer + (group - in_longer) / each;
    }
  };

  __device__ void start(int is_down) {
    is_down_ = is_down;
    groups_ = is_down != 0 ? p_.hidden_size / 16 : p_.intermediate_size / 8;
    const Shares shares(num_tiles_ * groups_);
    at_ = shares.first(static_cast<int>(blockIdx.x));
    end_ = shares.first(static_cast<int>(blockIdx.x) + 1);
  }

  const ExpertStreamKernelParams& p_;
  const int num_tiles_;
  int is_down_, groups_;
  int at_, end_;  // groups of all tiles
};

// The copies of a warp, through all of its runs.
template <int kMultipliers, int kRows>
class StreamLoads {
 public:
  static constexpr int kStepBytes = expert_stream_step_bytes(kMultipliers);

  __device__ StreamLoads(const ExpertStreamKernelParams& p, const StreamOrder<kRows>& order)
      : p_(p), order_(order), runs_(p, order.num_tiles) {
    run_.count = 0;
    left_ = 0;
  }
  // One step more to the slot, if there is one.
  __device__ void next(uint32_t slot) {
    if (left_ == 0) find();
    if (left_ > 0) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      copy_streamed_16(slot + lane * 16, from_[0]);
      copy_streamed_16(slot + 512 + lane * 16, from_[1]);
      if (lane < kMultipliers) copy_streamed_16(slot + 1024 + lane * 16, multipliers_);
      from_[0] += chunk_bytes_;
      from_[1] += chunk_bytes_;
      multipliers_ += chunk_bytes_;
      --left_;
    }
    commit_copies();
  }

 private:
  // The next segment: what the warp has of a group.
  __device__ void find() {
    while (run_.count == 0) {
      if (!runs_.next(run_)) {
        run_.count = 0;
        return;
      }
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const ExpertStreamProduct& product = run_.is_down != 0 ? p_.down : p_.gate_up;
    const char* matrix = product.weight + order_.tiles[run_.tile].expert * product.layout.matrix_bytes;
    chunk_bytes_ = static_cast<int>(product.layout.chunk_bytes());
    const auto chunk_of = [&](int row) { return matrix + product.layout.chunk_offset(row, run_.step * kIntegerTileK); };
    const int rows[2] = {run_.is_down != 0 ? run_.group * 16 : run_.group * 8,
                         run_.is_down != 0 ? run_.group * 16 + 8 : p_.intermediate_size + run_.group * 8};
#pragma unroll
    for (int r = 0; r < 2; ++r) from_[r] = chunk_of(rows[r]) + rows[r] % kWgmmaTileRows * kInt4RowBytes + lane * 16;
    const int half = lane / (kMultipliers / 2) % 2, row = half != 0 ? rows[1] : rows[0];
    multipliers_ =
        chunk_of(row) + kInt4CodeBytes + row % kWgmmaTileRows * kMultipliers + lane % (kMultipliers / 2) * 16;
    left_ = min(run_.count, run_.num_steps - run_.step);
    run_.count -= left_;
    run_.step = 0;
    ++run_.group;
  }

  const ExpertStreamKernelParams& p_;
  const StreamOrder<kRows>& order_;
  StreamRuns runs_;
  StreamRun run_;
  const char *from_[2], *multipliers_;
  int left_, chunk_bytes_;
};

// --- rows of x as codes ----------------------------------------------------------------------------------------------

// code_of() of a piece, 0 of outliers, which go to the row's list.
__device__ inline uint2 codes_beside_outliers(const Piece<Bf16>& piece, float inverse, float limit, int first,
                                              Outlier* found, int32_t* num_found) {
  int codes[kPieceElems];
#pragma unroll
  for (int j = 0; j < kPieceElems; ++j) {
    const float x = value_of(piece, j);
    const bool is_outlier = fabsf(x) > limit;
    if (is_outlier) found[atomicAdd(num_found, 1)] = {first + j, x};
    codes[j] = is_outlier ? 0 : code_of(x, inverse);
  }
  return pack_codes(codes);
}

__device__ inline Piece<Bf16> load_stream_piece(const Bf16* row, int first, int width) {
  Piece<Bf16> piece{};
  if (first < width) {
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(piece.words[0]), "=r"(piece.words[1]), "=r"(piece.words[2]), "=r"(piece.words[3])
                 : "l"(row + first)
                 : "memory");
  }
  return piece;
}

// Where word `word` (4 codes) of row `row` stands: a lane of the product finds the 8 of a step of its in two quads, and
// lanes of two neighbouring rows read different banks.
__device__ inline int stream_word(int row, int word, int row_words) {
  const int in_step = word % 32, pair = in_step % 4, half = in_step / 4 % 2, step = in_step / 8;
  return row * row_words + word / 32 * 32 + ((pair * 2 + step / 2) ^ row % 2) * 4 + step % 2 * 2 + half;
}

// quantize_row.h, by a warp that has a row for itself. One of the tile's, where it has outliers or no codes: it is read
// again and again, since such rows are few.
template <int kRows>
__device__ inline void put_row_with_outliers(const Bf16* x, int width, int row_bytes, int row, float top, uint32_t* to,
                                             Outlier* found, StreamRows<kRows>& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float limit = kInfinity;
#pragma unroll 1
  while (top < kInfinity && top >= kSmallestScaled) {
    const float share = top * kOutlierShare;
    uint32_t count = 0;
    float largest_below = 0.0f;
#pragma unroll 1
    for (int first = lane * kPieceElems; first < width; first += 32 * kPieceElems) {
      const Piece<Bf16> piece = load_stream_piece(x, first, width);
      count += num_above(piece, share);
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) {
        const float magnitude = fabsf(value_of(piece, j));
        if (magnitude <= share) largest_below = Max()(largest_below, magnitude);
      }
    }
    if (__reduce_add_sync(0xffffffffu, count) > max_outliers(width)) break;
    limit = share;
    top = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest_below)));
  }
  const CodeScale scale = code_scale(top);
  int32_t code_sum = 0;
#pragma unroll 1
  for (int first = lane * kPieceElems; first < row_bytes; first += 32 * kPieceElems, to += 64) {
    const uint2 both = codes_beside_outliers(load_stream_piece(x, first, width), scale.inverse, limit, first, found,
                                             &rows.num_outliers[row]);
    code_sum = __dp4a(static_cast<int>(both.x), 0x01010101, code_sum);
    code_sum = __dp4a(static_cast<int>(both.y), 0x01010101, code_sum);
    to[0] = both.x;
    to[8] = both.y;
  }
  code_sum = __reduce_add_sync(0xffffffffu, code_sum);
  __syncwarp();
  const int count = rows.num_outliers[row];
  const Outlier own = lane < count ? found[lane] : Outlier{};
  int rank = 0;  // by rising k
  for (int i = 0; i < count; ++i) rank += found[i].k < own.k;
  __syncwarp();
  if (lane < count) found[rank] = own;
  if (lane == 0) {
    rows.scales[row] = scale.scale;
    rows.code_sums[row] = code_sum;
  }
}

// A row that a warp has in registers.
struct StreamRow {
  static constexpr int kPieces = kExpertStreamMaxWidth / (8 * 32);
  const Bf16* x;
  Piece<Bf16> pieces[kPieces];

  __device__ void load(const Bf16* from, int width) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    asm volatile("" : "+r"(lane));
    x = from;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = load_stream_piece(x, (i * 32 + lane) * kPieceElems, width);
  }
};

// Row `row` of the tile. width: a multiple of 8. Whether it has outliers.
template <int kRows>
__device__ inline bool put_stream_row(const StreamRow& own, int width, int row_bytes, int row, uint32_t* codes,
                                      Outlier* outliers, StreamRows<kRows>& rows) {
  constexpr int kPieces = StreamRow::kPieces;
  const Piece<Bf16>(&pieces)[kPieces] = own.pieces;
  int lane = static_cast<int>(threadIdx.x) % 32;
  asm volatile("" : "+r"(lane));  // nothing of this is kept in registers from row to row
  if (lane == 0) rows.num_outliers[row] = 0;
  __syncwarp();
  uint32_t own_top = 0, own_count = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) own_top = max(own_top, top_bits(pieces[i]));
  const float top = __uint_as_float(__reduce_max_sync(0xffffffffu, own_top));
  const CodeScale scale = code_scale(top);
  if (scale.inverse > 0.0f) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) own_count += num_above(pieces[i], top * kOutlierShare);
  }
  // The second of the two words of a piece stands 8 words behind the first, a warp's next piece 64.
  uint32_t* to = codes + stream_word(row, lane * 2, row_bytes / 4);
  if (__reduce_add_sync(0xffffffffu, own_count) <= max_outliers(width)) {
    put_row_with_outliers<kRows>(own.x, width, row_bytes, row, top, to, outliers + row * kMaxOutliers, rows);
    return rows.num_outliers[row] > 0;
  }
  int32_t code_sum = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int first = (i * 32 + lane) * kPieceElems;
    if (first >= row_bytes) break;
    const uint2 both = codes_of(pieces[i], scale.inverse);
    code_sum = __dp4a(static_cast<int>(both.x), 0x01010101, code_sum);
    code_sum = __dp4a(static_cast<int>(both.y), 0x01010101, code_sum);
    to[i * 64] = both.x;
    to[i * 64 + 8] = both.y;
  }
  code_sum = __reduce_add_sync(0xffffffffu, code_sum);
  if (lane == 0) {
    rows.scales[row] = scale.scale;
    rows.code_sums[row] = code_sum;
  }
  return false;
}

// --- the products ----------------------------------------------------------------------------------------------------

// Of the 16 rows of W that a warp has: the lane's two.
struct StreamScales {
  float of[2];
  int rows[2];

  __device__ StreamScales(const ExpertStreamKernelParams& p, const char* matrix, const StreamRun& run, int group_row) {
    const ExpertStreamProduct& product = run.is_down != 0 ? p.down : p.gate_up;
    rows[0] = run.is_down != 0 ? run.group * 16 + group_row : run.group * 8 + group_row;
    rows[1] = run.is_down != 0 ? rows[0] + 8 : p.intermediate_size + rows[0];
    const float* scales = reinterpret_cast<const float*>(matrix + product.layout.scales_offset);
#pragma unroll
    for (int r = 0; r < 2; ++r) of[r] = scales[rows[r]];
  }
};

template <int kMultipliers, int kRows>
class StreamWarp {
 public:
  static constexpr int kBlocks = kRows / 8, kDepth = expert_stream_depth(kMultipliers, kRows),
                       kStepBytes = expert_stream_step_bytes(kMultipliers);

  __device__ StreamWarp(const ExpertStreamKernelParams& p, const StreamOrder<kRows>& order, uint32_t ring)
      : p_(p), order_(order), loads_(p, order), ring_(ring), lane_(static_cast<int>(threadIdx.x) % 32) {}
  // Starts the copies of the first steps.
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kDepth - 1; ++i) loads_.next(ring_ + i * kStepBytes);
  }

  // sums += of the steps [begin, end) of a group. codes: the row of x of the lane's column.
  __device__ void multiply(int32_t (&sums)[kBlocks][4], uint32_t codes, int row_bytes, int num_rows, int begin,
                           int end) {
    const int group = lane_ / 4, pair = lane_ % 4;
    const uint32_t at = codes + static_cast<uint32_t>(group * row_bytes + ((pair * 2) ^ group % 2) * 16);
    uint32_t x = at + static_cast<uint32_t>(begin * kIntegerTileK);
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      wait_copies<kDepth - 2>();
      __syncwarp();
      const uint32_t slot = ring_ + slot_ * kStepBytes;
      const int before = slot_ == 0 ? kDepth - 1 : slot_ - 1;
      loads_.next(ring_ + before * kStepBytes);
      slot_ = slot_ == kDepth - 1 ? 0 : slot_ + 1;
      uint32_t a[4][4];
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint4 quad = load_stream_quad(slot + 512 * r + lane_ * 16);
        const uint32_t multipliers =
            load_stream_multipliers<kMultipliers>(slot + 1024 + (8 * r + group) * kMultipliers);
        const uint32_t words[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint32_t multiplier = multipliers >> (s * kMultipliers / 4 * 8) & 0xff;
          const uint32_t offset = 0x80808080u - multiplier * 0x08080808u;
          a[s][r] = (words[s] & 0x0f0f0f0fu) * multiplier + offset;
          a[s][2 + r] = (words[s] >> 4 & 0x0f0f0f0fu) * multiplier + offset;
        }
      }
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        if (8 * j >= num_rows) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 quad = load_stream_quad((x ^ i * 16) + static_cast<uint32_t>(8 * j * row_bytes));
          const uint32_t first[2] = {quad.x, quad.y}, second[2] = {quad.z, quad.w};
          mma_m16n8k32_u8_s8(sums[j], a[2 * i], first);
          mma_m16n8k32_u8_s8(sums[j], a[2 * i + 1], second);
        }
      }
      x += kIntegerTileK;
    }
  }

 private:
  const ExpertStreamKernelParams& p_;
  const StreamOrder<kRows>& order_;
  StreamLoads<kMultipliers, kRows> loads_;
  const uint32_t ring_;
  const int lane_;
  int slot_ = 0;
};

// values += the outliers of x times the group's 16 rows of W, by rising k. The lanes of the warp read the codes of a
// column's outliers together.
template <int kMultipliers, int kRows>
__device__ inline void add_stream_outliers(const char* matrix, const IntegerLayout& layout, int num_rows,
                                           const StreamScales& scales, const StreamRows<kRows>& rows,
                                           const Outlier* outliers, float (&values)[kRows / 8][4]) {
  constexpr int kEach = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, half = lane / 16, own = lane % 8;
  const bool is_second = lane % 16 >= 8;
  // IntegerLayout's code_offset() and multiplier_offset() of this row, the part of k left to each outlier.
  constexpr int kChunkBytes = kInt4CodeBytes + kWgmmaTileRows * kMultipliers;
  const int weight_row = (is_second ? scales.rows[1] : scales.rows[0]) - group + own;
  const char* chunk = matrix + layout.chunk_offset(weight_row, 0);
  const char *codes = chunk + weight_row % kWgmmaTileRows * kInt4RowBytes,
             *multipliers = chunk + kInt4CodeBytes + weight_row % kWgmmaTileRows * kMultipliers;
  const float low = __shfl_sync(0xffffffffu, scales.of[0], 4 * own),
              high = __shfl_sync(0xffffffffu, scales.of[1], 4 * own);
  const float own_scale = is_second ? high : low;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll 1
    for (int in_block = 0; in_block < 8; ++in_block) {
      const int column = 8 * j + in_block;
      if (column >= num_rows) return;
      const int num_outliers = rows.num_outliers[column];
      if (num_outliers == 0) continue;
      const Outlier* list = outliers + column * kMaxOutliers;
      const bool is_odd = in_block % 2 != 0, is_own = lane % 4 == in_block / 2;
      float sums[2] = {is_odd ? values[j][1] : values[j][0], is_odd ? values[j][3] : values[j][2]};
#pragma unroll 1
      for (int first = 0; first < num_outliers; first += 2 * kEach) {
        float kept[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const auto k = static_cast<uint32_t>(list[min(first + half * kEach + i, num_outliers - 1)].k);
          const uint32_t to_chunk = k / kIntegerTileK * kChunkBytes;
          const int byte = static_cast<unsigned char>(codes[to_chunk + k / 4 % 4 * 16 + k / 32 % 4 * 4 + k % 4]);
          const int multiplier = multipliers[to_chunk + k % kIntegerTileK * kMultipliers / kIntegerTileK];
          const int code = static_cast<int>(static_cast<uint32_t>(byte) >> (k / 16 % 2 * 4) & 15) - 8;
          kept[i] = own_scale * static_cast<float>(code * multiplier);
        }
#pragma unroll
        for (int i = 0; i < 2 * kEach; ++i) {
          if (first + i >= num_outliers) break;
          const float x = list[first + i].x;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            sums[r] += x * __shfl_sync(0xffffffffu, kept[i % kEach], i / kEach * 16 + 8 * r + group);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (is_own && !is_odd) values[j][2 * r] = sums[r];
        if (is_own && is_odd) values[j][2 * r + 1] = sums[r];
      }
    }
  }
}

// The exact sums of a group become values, which are stored.
template <int kMultipliers, int kRows>
__device__ inline void finish_stream_group(const ExpertStreamKernelParams& p, const StreamRun& run, const char* matrix,
                                           const StreamTile& tile, const StreamScales& scales,
                                           const StreamRows<kRows>& rows, const Outlier* outliers, bool has_outliers,
                                           const int32_t (&sums)[kRows / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, pair = lane % 4;
  float values[kRows / 8][4];
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = min(8 * j + 2 * pair + c, tile.num_rows - 1);
      const float x_scale = rows.scales[column];
      const int code_sum = rows.code_sums[column];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        values[j][2 * r + c] =
            x_scale * (scales.of[r] * static_cast<float>(sums[j][2 * r + c] - kStreamBias * code_sum));
      }
    }
  }
  if (has_outliers) {
    add_stream_outliers<kMultipliers, kRows>(matrix, run.is_down != 0 ? p.down.layout : p.gate_up.layout, tile.num_rows,
                                             scales, rows, outliers, values);
  }
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    if (8 * j >= tile.num_rows) break;
    if (run.is_down != 0) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * j + 2 * pair + c;
        if (column >= tile.num_rows) continue;
        float* y = p.y + (tile.first_row + column) * p.y_stride + scales.rows[0];
        y[0] = values[j][c];
        y[8] = values[j][2 + c];
      }
    } else {
      const auto product = [&](int c) {
        return silu_times<Bf16>(round_to<Bf16>(values[j][c]), round_to<Bf16>(values[j][2 + c]));
      };
      const uint32_t both = transpose_8x8(pack_bf16(product(0), product(1)));
      Bf16* act =
          static_cast<Bf16*>(p.act) + (tile.first_row + 8 * j + group) * p.act_stride + run.group * 8 + 2 * pair;
      if (8 * j + group < tile.num_rows) *reinterpret_cast<uint32_t*>(act) = both;
    }
  }
}

// The CTA has stored activations of groups of a tile. One thread, behind a barrier of all.
__device__ inline void tell_groups(const ExpertStreamKernelParams& p, int tile, int num_groups) {
  if (num_groups == 0) return;
  __threadfence();
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p.arrived + tile), "r"(num_groups) : "memory");
}

template <int kMultipliers, int kRows>
__device__ inline void expert_stream(const ExpertStreamKernelParams& p) {
  constexpr int kBlocks = kRows / 8, kStepBytes = expert_stream_step_bytes(kMultipliers);
  constexpr int kRingBytes = expert_stream_depth(kMultipliers, kRows) * kStepBytes;  // of a warp
  extern __shared__ __align__(128) char stream_shared[];
  __shared__ StreamOrder<kRows> order;
  __shared__ StreamRows<kRows> rows;
  __shared__ uint32_t left_in[kExpertStreamWarps];  // the phase of which a warp has left sums
  let_dependents_launch();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread < kExpertStreamWarps) left_in[thread] = 0;
  make_stream_order(p, order, reinterpret_cast<uint32_t*>(stream_shared));
  int32_t* sums_of_warps = reinterpret_cast<int32_t*>(stream_shared + kExpertStreamWarps * kRingBytes);
  uint32_t* codes = reinterpret_cast<uint32_t*>(sums_of_warps + kExpertStreamWarps * kRows * 16);
  Outlier* outliers = reinterpret_cast<Outlier*>(codes + kRows * kExpertStreamMaxWidth / 4);
  StreamRuns runs(p, order.num_tiles);
  StreamRun run;
  bool has_phase = runs.next(run);
  const auto row_of = [&](const StreamTile& tile, int row) {
    return run.is_down != 0 ? static_cast<const Bf16*>(p.act) + (tile.first_row + row) * p.act_stride
                            : static_cast<const Bf16*>(p.x) + order.row_tokens[tile.first_row + row] * p.x_stride;
  };
  StreamWarp<kMultipliers, kRows> multiplier(p, order,
                                             shared_address(stream_shared) + static_cast<uint32_t>(warp * kRingBytes));
  int told_tile = -1, told_groups = 0;
  for (uint32_t phase = 1; has_phase; ++phase) {
    const StreamTile tile = order.tiles[run.tile];
    __syncthreads();  // the phase before has read the codes, and has stored its activations
    if (thread == 0) {
      tell_groups(p, told_tile, told_groups);
      if (run.is_down != 0) {
        const uint32_t groups = static_cast<uint32_t>(p.intermediate_size / 8);
        const long long start = clock64();
        while (load_acquire(p.arrived + run.tile) < groups) {
          if (clock64() - start > 2000000000ll) __trap();
        }
        // The last one to read makes the places zero again.
        uint32_t* num_readers = p.arrived + kExpertStreamMaxTiles + run.tile;
        if (atomicAdd(num_readers, 1u) + 1 == static_cast<uint32_t>(runs.num_ctas_of(run.tile))) {
          *num_readers = 0;
          p.arrived[run.tile] = 0;
        }
      }
    }
    if (run.is_down != 0) __syncthreads();
    told_tile = run.tile;
    told_groups = run.is_down != 0 ? 0 : run.num_groups;
    const int row_bytes = run.num_steps * kIntegerTileK;
    bool has_outliers = false;
    for (int row = warp;; row += kExpertStreamWarps) {
      const int width = run.is_down != 0 ? p.down.layout.width : p.gate_up.layout.width;
      StreamRow x;
      // The rings are filled behind the first row of x, which would wait for them; more rows leave no registers for
      // that.
      const bool fills = phase == 1 && row == warp;
      if (kRows > 8 && fills) multiplier.fill();
      if (row < tile.num_rows) x.load(row_of(tile, row), width);
      if (kRows == 8 && fills) multiplier.fill();
      if (row >= tile.num_rows) break;
      has_outliers |= put_stream_row<kRows>(x, width, row_bytes, row, codes, outliers, rows);
    }
    has_outliers = __syncthreads_or(has_outliers ? 1 : 0) != 0;
    const ExpertStreamProduct& product = run.is_down != 0 ? p.down : p.gate_up;
    const char* matrix = product.weight + tile.expert * product.layout.matrix_bytes;
    StreamRun own = run;
    while (own.count > 0) {
      const int end = min(own.num_steps, own.step + own.count);
      const StreamScales scales(p, matrix, own, lane / 4);
      int32_t sums[kBlocks][4] = {};
      multiplier.multiply(sums, shared_address(codes), row_bytes, tile.num_rows, own.step, end);
      own.count -= end - own.step;
      if (own.step > 0) {
        int32_t* to = sums_of_warps + (warp * kBlocks * 4) * 32 + lane;
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) to[i * 32] = sums[i / 4][i % 4];
        __threadfence_block();
        __syncwarp();
        if (lane == 0) *const_cast<volatile uint32_t*>(left_in + warp) = phase;
      } else {
        int missing = own.num_steps - end;
        for (int other = warp + 1; missing > 0; ++other) {
          const int count = StreamRuns::count_of(run, other);
          if (count == 0) continue;
          while (*const_cast<volatile uint32_t*>(left_in + other) != phase) {
          }
          __threadfence_block();
          const int32_t* from = sums_of_warps + (other * kBlocks * 4) * 32 + lane;
#pragma unroll
          for (int i = 0; i < kBlocks * 4; ++i) sums[i / 4][i % 4] += from[i * 32];
          missing -= count;
        }
        finish_stream_group<kMultipliers, kRows>(p, own, matrix, tile, scales, rows, outliers, has_outliers, sums);
      }
      own.step = 0;
      ++own.group;
    }
    has_phase = runs.next(run);
  }
  __syncthreads();
  if (thread == 0) tell_groups(p, told_tile, told_groups);
}

#define SPATE_EXPERT_STREAM_KERNEL(name, multipliers, rows)                \
  extern "C" __global__ void __launch_bounds__(kExpertStreamThreads, 1)    \
      name##_n##rows(const __grid_constant__ ExpertStreamKernelParams p) { \
    expert_stream<multipliers, rows>(p);                                   \
  }
#define SPATE_EXPERT_STREAM_KERNELS(name, multipliers) \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 8)     \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 16)    \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 32)

}  // namespace spate::cuda
