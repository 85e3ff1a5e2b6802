// Paged attention, flash style, and the writing of K and V into blocks. bf16 caches with bf16 activations go to the AMX tiles
// where they are (attention_amx.h), everything else to FMA.
#include "backend/cpu/kernel/attention_common.h"
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/micro_gemm.h"
#ifdef __AMX_BF16__
#include "backend/cpu/kernel/attention_amx.h"
#endif

namespace spate::cpu::SPATE_ISA {
namespace {

constexpr int64_t kMaxValueBlocks = 16;  // head_dim up to 256

struct FmaScratch {
  float* q;            // [rows, head_dim padded to 32]
  float* scores;       // [rows, kKvTile], then the probabilities
  float* accumulator;  // [rows, head_dim padded to 16]
  RowSoftmax* state;   // [rows]
  char* v_tail;        // an n-block row of 64 bytes for each value block
};

int64_t fma_scratch_bytes(int64_t rows, int64_t head_dim) {
  return rows * (round_up(head_dim, kKStep) + kKvTile + round_up(head_dim, kNBlock)) * 4 + rows * 8 +
         kMaxValueBlocks * 64 + 5 * 64;
}

FmaScratch cut_scratch(char* scratch, int64_t rows, int64_t head_dim) {
  FmaScratch s;
  s.q = take<float>(scratch, rows * round_up(head_dim, kKStep));
  s.scores = take<float>(scratch, rows * kKvTile);
  s.accumulator = take<float>(scratch, rows * round_up(head_dim, kNBlock));
  s.state = take<RowSoftmax>(scratch, rows);
  s.v_tail = take<char>(scratch, kMaxValueBlocks * 64);
  return s;
}

template <typename Act>
void widen_q(const AttentionItem& item, int64_t rows, float* q) {
  const int64_t head_dim = item.layout.head_dim, stride = round_up(head_dim, kKStep);
  for (int64_t r = 0; r < rows; ++r) {
    const Act* src = static_cast<const Act*>(item.q) + q_offset(item, r);
    SPATE_FOR_LANES(d, count, head_dim) { store_up_to(q + r * stride + d, load_up_to(src + d, count), count); }
    for (int64_t d = head_dim; d < stride; ++d) q[r * stride + d] = 0;
  }
}

// accumulator += probabilities of the tile times its V, block by block of the cache.
template <typename W>
void add_values(const AttentionItem& item, const KeyTile& tile, int64_t rows, const FmaScratch& s) {
  const int64_t value_blocks = ceil_div(item.layout.head_dim, kNBlock), kv_block_size = item.layout.kv_block_size;
  const char* blocks[kMaxValueBlocks];
  for (int64_t key = 0; key < tile.num_keys;) {
    const int64_t position = tile.begin + key;
    const int64_t in_block = min_of(tile.num_keys - key, kv_block_size - position % kv_block_size);
    const int64_t whole = in_block / W::kRowK * W::kRowK;
    const char* v = v_at(item, position);
    for (int64_t d = 0; d < value_blocks; ++d) blocks[d] = v + d * item.layout.v_n_block_bytes;
    micro_gemm<W>(s.scores + key, kKvTile, rows, blocks, value_blocks, whole, s.accumulator, value_blocks * kNBlock);
    if (whole < in_block) {  // the partner of the last key may not be written yet: it counts as zero, whatever it holds
      for (int64_t d = 0; d < value_blocks; ++d) {
        const auto* src = reinterpret_cast<const uint32_t*>(blocks[d] + whole / W::kRowK * W::kRowBytes);
        auto* dst = reinterpret_cast<uint32_t*>(s.v_tail + d * 64);
        for (int64_t i = 0; i < kNBlock; ++i) dst[i] = src[i] & 0xffffu;
        blocks[d] = s.v_tail + d * 64;
      }
      micro_gemm<W>(s.scores + key + whole, kKvTile, rows, blocks, value_blocks, W::kRowK, s.accumulator,
                    value_blocks * kNBlock);
    }
    key += in_block;
  }
}

template <typename W>
void attention_fma(const AttentionItem& item, char* scratch) {
  const int64_t rows = item.num_queries * item.group_size, head_dim = item.layout.head_dim;
  const int64_t q_width = round_up(head_dim, kKStep), value_width = round_up(head_dim, kNBlock);
  const FmaScratch s = cut_scratch(scratch, rows, head_dim);
  item.act == Elem::kF32 ? widen_q<float>(item, rows, s.q) : widen_q<bf16_t>(item, rows, s.q);
  for (int64_t i = 0; i < rows * value_width; ++i) s.accumulator[i] = 0;
  for (int64_t r = 0; r < rows; ++r) s.state[r] = RowSoftmax{};
  const TileRange range = key_tiles(item);
  for (int64_t t = range.first; t < range.end; ++t) {
    const KeyTile tile = key_tile(item, t);
    const int64_t groups = ceil_div(tile.num_keys, kNBlock);
    const char* blocks[kKvTile / kNBlock];
    for (int64_t g = 0; g < groups; ++g) blocks[g] = k_group(item, tile.begin + g * kNBlock);
    for (int64_t i = 0; i < rows * kKvTile; ++i) s.scores[i] = 0;
    micro_gemm<W>(s.q, q_width, rows, blocks, groups, q_width, s.scores, kKvTile);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = s.scores + r * kKvTile;
      softmax_row(item, tile, r, row, groups * kNBlock, row, s.accumulator + r * value_width, value_width, s.state[r]);
    }
    add_values<W>(item, tile, rows, s);
  }
  for (int64_t r = 0; r < rows; ++r) {
    store_attention_row(item, r, s.accumulator + r * value_width, s.state[r].denominator);
  }
}

SPATE_INLINE void convert(float x, float& out) { out = x; }
SPATE_INLINE void convert(bf16_t x, bf16_t& out) { out = x; }
SPATE_INLINE void convert(float x, bf16_t& out) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  out = x != x ? static_cast<bf16_t>((u >> 16) | 0x40) : static_cast<bf16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// Elements of a row that are not there are zero: the cache is not cleared, and 0 times its old contents might be NaN.
template <typename Act, typename T>
void write_head(const Act* k, const Act* v, const KvLayout& layout, char* head, int64_t token_in_block) {
  constexpr int64_t kRowK = sizeof(T) == 2 ? 2 : 1;  // k in a row of 16 columns
  const int64_t head_dim = layout.head_dim;
  T* k_out = reinterpret_cast<T*>(head + token_in_block / kNBlock * layout.k_group_bytes) + token_in_block % kNBlock * kRowK;
  for (int64_t d = 0; d < round_up(head_dim, kKStep); ++d) {
    T value = 0;
    if (d < head_dim) convert(k[d], value);
    k_out[d / kRowK * kNBlock * kRowK + d % kRowK] = value;
  }
  char* v_row = head + layout.v_offset + token_in_block / kRowK * 64;
  for (int64_t d = 0; d < head_dim; d += kNBlock, v_row += layout.v_n_block_bytes) {
    T* out = reinterpret_cast<T*>(v_row) + token_in_block % kRowK;
    const int64_t count = min_of(kNBlock, head_dim - d);
    for (int64_t i = 0; i < kNBlock; ++i) {
      T value = 0;
      if (i < count) convert(v[d + i], value);
      out[i * kRowK] = value;
    }
  }
}

#ifdef __AVX512BW__
// bf16 of full blocks, which all models have: K in words of two elements, V by a store that leaves the other token of each pair alone.
bool write_head_fast(const bf16_t* k, const bf16_t* v, const KvLayout& layout, char* head, int64_t token_in_block) {
  if (layout.head_dim % kKStep != 0) return false;
  char* k_out = head + token_in_block / kNBlock * layout.k_group_bytes + token_in_block % kNBlock * 4;
  for (int64_t d = 0; d < layout.head_dim; d += 2, k_out += 64) __builtin_memcpy(k_out, k + d, 4);
  char* v_row = head + layout.v_offset + token_in_block / 2 * 64;
  const __mmask32 lanes = token_in_block % 2 ? 0xaaaaaaaau : 0x55555555u;
  for (int64_t d = 0; d < layout.head_dim; d += kNBlock, v_row += layout.v_n_block_bytes) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + d)));
    _mm512_mask_storeu_epi16(v_row, lanes, _mm512_or_si512(words, _mm512_slli_epi32(words, 16)));
  }
  return true;
}
#endif

}  // namespace

int64_t attention_scratch_bytes(int64_t rows, int64_t head_dim) {
  int64_t bytes = fma_scratch_bytes(rows, head_dim);
#ifdef __AMX_BF16__
  bytes = max_of(bytes, amx_attention_scratch_bytes(rows, head_dim));
#endif
  return bytes;
}

void attention(const AttentionItem& item, char* scratch) {
#ifdef __AMX_BF16__
  if (item.act == Elem::kBf16 && item.layout.elem == Elem::kBf16) return attention_amx(item, scratch);
#endif
  item.layout.elem == Elem::kF32 ? attention_fma<F32Weight>(item, scratch) : attention_fma<Bf16Weight>(item, scratch);
}

void kv_write_head(const void* k, const void* v, Elem act, const KvLayout& layout, char* head, int64_t token_in_block) {
#ifdef __AVX512BW__
  if (act == Elem::kBf16 &&
      write_head_fast(static_cast<const bf16_t*>(k), static_cast<const bf16_t*>(v), layout, head, token_in_block)) {
    return;
  }
#endif
  if (act == Elem::kBf16) {
    write_head<bf16_t, bf16_t>(static_cast<const bf16_t*>(k), static_cast<const bf16_t*>(v), layout, head, token_in_block);
  } else if (layout.elem == Elem::kBf16) {
    write_head<float, bf16_t>(static_cast<const float*>(k), static_cast<const float*>(v), layout, head, token_in_block);
  } else {
    write_head<float, float>(static_cast<const float*>(k), static_cast<const float*>(v), layout, head, token_in_block);
  }
}

}  // namespace spate::cpu::SPATE_ISA
