// How the CPU back-end lays out weights and KV blocks: one layout for GEMV, AVX2, AVX-512, AMX and NEON.
//
// Everything that is multiplied is stored as blocks of 16 columns, all of K contiguous ("n-blocks"):
//   bf16  [N/16][K/2][16][2]   32 k of an n-block are 1 KB: exactly one AMX tile in VNNI order
//   f32   [N/16][K][16]
//   i8    [N/16][K/4][16][4] (KV only), of four k the first, third, second and fourth: the lower bytes of 32 words of 16
//         bits are one row of bf16, the upper bytes the next
// Weights: N = out_features padded to 16, K = in_features padded to 32, zeros in the padding.
// KV: for each block and kv head first K, then V:
//   K  [kv_block_size/16 groups of 16 tokens] n-blocks over K = head_dim padded to 32    (columns are tokens)
//   V  [value_dim padded to 16 / 16]          n-blocks over K = the block's tokens       (columns are head elements)
//   of i8 then the scales of K and the scales of V, f32 [kv_block_size] each
// Latent KV: the vector of each token, from a cache line on
//   of i8 then f32 [kv_block_size][2], the scales of its compressed and of its rotated elements
//
// Used by kernels that are compiled once per instruction set: everything here is static, so that the linker cannot give
// one instruction set's code to another.
#pragma once

#include <stdint.h>

namespace spate::cpu {

enum class Elem : uint8_t { kF32, kBf16, kI8 };

static constexpr int64_t kNBlock = 16;  // columns of an n-block
static constexpr int64_t kKStep = 32;   // k that a bf16 AMX tile holds; K is padded to it
static constexpr int64_t kKvTile = 128;  // attention walks the keys in tiles of this many positions, from position 0
static constexpr int64_t kKvSpan = 1024;  // and begins new sums at multiples of this many, which are then merged in order; whole tiles

static constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
static constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static constexpr int64_t elem_bytes(Elem elem) { return elem == Elem::kF32 ? 4 : elem == Elem::kBf16 ? 2 : 1; }

// Bytes of one n-block.
static constexpr int64_t n_block_bytes(Elem elem, int64_t k_padded) { return k_padded * kNBlock * elem_bytes(elem); }

// k that share a row of the 16 columns of an n-block.
static constexpr int64_t row_k(Elem elem) { return elem == Elem::kF32 ? 1 : elem == Elem::kBf16 ? 2 : 4; }
// Where k lies among them.
static constexpr int64_t place_in_row(Elem elem, int64_t k) {
  return elem == Elem::kI8 ? k % 2 * 2 + k / 2 % 2 : k % row_k(elem);
}

// Byte offset of element (k, column) inside an n-block.
static constexpr int64_t n_block_offset(Elem elem, int64_t k, int64_t column) {
  return ((k / row_k(elem) * kNBlock + column) * row_k(elem) + place_in_row(elem, k)) * elem_bytes(elem);
}

// Where things lie in a KV block.
struct KvLayout {
  Elem elem = Elem::kBf16;
  int64_t num_kv_heads = 0, head_dim = 0, kv_block_size = 0;
  int64_t value_dim = 0;       // elements of a value, head_dim at most
  int64_t k_group_bytes = 0;   // 16 tokens of K
  int64_t v_n_block_bytes = 0;  // 16 head elements of V, all tokens of the block
  int64_t v_offset = 0;        // of V in a head
  int64_t k_scales_offset = 0, v_scales_offset = 0;  // of kI8
  int64_t head_bytes = 0;      // K and V of one head; whole cache lines
};

static constexpr KvLayout make_kv_layout(Elem elem, int64_t num_kv_heads, int64_t head_dim, int64_t value_dim,
                                         int64_t kv_block_size) {
  KvLayout layout{.elem = elem,
                  .num_kv_heads = num_kv_heads,
                  .head_dim = head_dim,
                  .kv_block_size = kv_block_size,
                  .value_dim = value_dim};
  layout.k_group_bytes = n_block_bytes(elem, round_up(head_dim, kKStep));
  layout.v_n_block_bytes = n_block_bytes(elem, kv_block_size);
  layout.v_offset = kv_block_size / kNBlock * layout.k_group_bytes;
  layout.head_bytes = layout.v_offset + ceil_div(value_dim, kNBlock) * layout.v_n_block_bytes;
  if (elem == Elem::kI8) {
    layout.k_scales_offset = layout.head_bytes;
    layout.v_scales_offset = layout.k_scales_offset + kv_block_size * 4;
    layout.head_bytes = layout.v_scales_offset + kv_block_size * 4;
  }
  return layout;
}

// Of a token's vector in a latent cache.
static constexpr int64_t latent_token_bytes(Elem elem, int64_t width) { return round_up(width * elem_bytes(elem), 64); }

// Bytes from block to block. Heads of a power of two times a power of two bytes would put one head's part of every block into the same few sets
// of a cache (L2 ways of 128 KB): 4 KB and a line more spread them.
static constexpr int64_t kv_block_stride(const KvLayout& layout) {
  const int64_t bytes = layout.num_kv_heads * layout.head_bytes;
  return bytes % 16384 == 0 ? bytes + 4096 + 64 : bytes;
}

}  // namespace spate::cpu
