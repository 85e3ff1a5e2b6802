// How the CPU back-end lays out integer weights; float weights are in layout.h.
//
// Blocks of 16 columns (output features), all of K in a block, K padded to 64 and to whole groups:
//   int8  [K/64][16][16][4]  rows of 4 k: 64 k of an n-block are 1 KB, exactly one AMX int8 tile in VNNI order
//   int4  [K/64][8][16][4]   byte b of row r holds element b of row r of the int8 tile in its low four bits, that of row
//                            r + 8 in its high ones, each as code + 8: a load, an AND and a shift give two tile rows
// and behind the codes of each n-block its scales [groups][16], then its offsets [groups][16]: f16 for groups, f32 for
// whole rows. Two-level scales: a weight of whole rows to all who need not know better, with the multipliers of its
// codes, u8 [multipliers][16], between codes and scales. What the padding of K holds does not matter, since x is zero
// there.
//
// As layout.h: everything here is static.
#pragma once

#include "backend/cpu/layout.h"

namespace spate::cpu {

enum class CodeType : uint8_t { kNone, kInt8, kInt4 };  // kNone: a float weight

static constexpr int64_t kIntKStep = 64;     // k of an int8 tile
static constexpr int64_t kIntHalfStep = 32;  // the smallest group
// Dots of whole rows are i32: 127 * 128 * in_features must stay below 2^31.
static constexpr int64_t kMaxIntFeatures = 131072;

struct IntLayout {
  CodeType codes = CodeType::kNone;
  bool has_offsets = false;
  int64_t num_groups = 0;
  int64_t group_k = 0;       // k of a group, padded
  int64_t multiplier_k = 0;  // k that share a multiplier: a power of two from 32; 0: there are none
  int64_t k_padded = 0;
  int64_t scale_bytes = 0;  // of one scale: 2 or 4
  int64_t codes_bytes = 0;  // of an n-block
  int64_t block_bytes = 0;  // of an n-block with its scales and offsets; a multiple of 64

  constexpr bool two_level() const { return multiplier_k > 0; }
  // Whole steps of 64 k have theirs: of groups of 32 the number is even.
  constexpr int64_t num_multipliers() const { return two_level() ? ceil_div(k_padded, multiplier_k) : 0; }
  constexpr int64_t multiplier_of(int64_t k) const { return k >> __builtin_ctzll(static_cast<uint64_t>(multiplier_k)); }
  constexpr int64_t multipliers_offset() const { return codes_bytes; }
  constexpr int64_t scales_offset() const { return codes_bytes + num_multipliers() * kNBlock; }
  constexpr int64_t offsets_offset() const { return scales_offset() + num_groups * kNBlock * scale_bytes; }
};

// group_size: 0 (whole rows), 32 or a multiple of 64. two_level: of int4 with groups and without offsets.
static constexpr IntLayout make_int_layout(CodeType codes, int64_t group_size, bool has_offsets, bool two_level,
                                           int64_t in_features) {
  IntLayout layout{.codes = codes, .has_offsets = has_offsets};
  if (two_level) {
    layout.multiplier_k = group_size;
    group_size = 0;
  }
  layout.num_groups = group_size == 0 ? 1 : ceil_div(in_features, group_size);
  layout.group_k = group_size == 0 ? round_up(in_features, kIntKStep) : group_size;
  layout.k_padded = round_up(layout.num_groups * layout.group_k, kIntKStep);
  layout.scale_bytes = group_size == 0 ? 4 : 2;
  layout.codes_bytes = layout.k_padded * kNBlock / (codes == CodeType::kInt4 ? 2 : 1);
  layout.block_bytes =
      round_up(layout.scales_offset() + layout.num_groups * kNBlock * layout.scale_bytes * (has_offsets ? 2 : 1), 64);
  return layout;
}

// Byte offset in an n-block of the four codes of k .. k + 3 of a column; k is a multiple of 4. Of int4 they are in the
// low halves of four bytes when k % 64 < 32, else in the high halves.
static constexpr int64_t int8_offset(int64_t k, int64_t column) {
  return k / kIntKStep * 1024 + k % kIntKStep / 4 * 64 + column * 4;
}
static constexpr int64_t int4_offset(int64_t k, int64_t column) {
  return k / kIntKStep * 512 + k % kIntHalfStep / 4 * 64 + column * 4;
}

}  // namespace spate::cpu
