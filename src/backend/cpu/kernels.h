// The table of CPU kernels: compiled once per instruction set (kernel/*.cpp), chosen at run time.
//
// Kernels run on one thread over the part of an op that they are given; the op files (linear_op.cpp, ...) divide the
// work. They take plain pointers: no header with inline functions of ours or of the standard library may be used in a
// kernel file, since the linker would keep one instruction set's copy for all.
//
// Every row's arithmetic is the same whatever rows are beside it, so all ops here are batch-invariant.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/layout.h"
#include "backend/cpu/weight_layout.h"

namespace spate::cpu {

// out = x W^T + bias, or out = silu(x Wg^T + bias_g) * (x Wu^T + bias_u) with W = [Wg; Wu].
struct GemmParams {
  const void* x;
  Elem x_elem;
  int64_t x_stride;  // elements
  int64_t m, n, k;   // n: columns of out; with silu_and_mul the weight has 2 n rows and n is a multiple of 16
  const char* weight;
  Elem weight_elem;       // of an integer weight: what it becomes where x stays as it is
  IntLayout weight_ints;  // of an integer weight
  bool quantizes_x;       // x becomes 8-bit codes
  const void* bias;  // of x_elem, or null
  void* out;
  Elem out_elem;
  int64_t out_stride;
  bool silu_and_mul;
  int64_t up_blocks;  // with silu_and_mul: n-blocks from a gate n-block to its up n-block
  char* packed_x;    // filled by pack_x
};

// How an op divides a GEMM: items are row chunks times n-block groups.
struct GemmPlan {
  int64_t packed_x_bytes;   // 0: the kernel reads x as it is, pack_x is not called
  int64_t rows_per_chunk;
  int64_t n_blocks_per_group;
  int64_t scratch_bytes;    // of each thread
  bool stream_out = false;  // past the caches
};

// What quantize_weight_row reads: values of a checkpoint.
enum class SourceElem : uint8_t { kF32, kF16, kBf16 };

struct RmsNormRows {
  const void* x;       // or, with residual: what is added to it first
  void* residual;      // null for plain rms_norm
  const void* weight;
  void* out;           // may be x
  int64_t num_rows = 1;
  int64_t x_stride = 0, residual_stride = 0, out_stride = 0;  // elements from row to row
  int64_t width;
  float eps;
};

// One (sequence, kv head, run of query tokens) of paged attention, over some spans of kKvSpan keys.
struct AttentionItem {
  const void* q;          // first query token of the run, first head of the group
  int64_t q_token_stride, q_head_stride;      // elements
  void* out;
  int64_t out_token_stride, out_head_stride;
  Elem act;
  int64_t num_queries, group_size;
  int64_t first_position;  // of the first query token
  int64_t seq_len;
  int64_t window;          // 0: none
  float scale_log2e;       // softmax_scale * log2(e)
  const int32_t* block_table;  // of the sequence
  const char* kv;          // the layer's blocks, at this kv head
  int64_t block_bytes;
  KvLayout layout;
  int64_t first_span, end_span;  // spans that hold keys of the run
  float* partial;          // null: all spans, the result goes to `out`; else one span, whose sums go here: attention_partial_floats() a row
  // The item that this thread will probably do next: its queries, which lie as these do, and keys are brought to the cache meanwhile.
  const void* next_q;
  int64_t next_queries;
  const char* next_kv;
  const int32_t* next_block_table;
  int64_t next_position, next_end;  // multiple of kKvTile; none when next_end <= next_position
};

static constexpr int64_t attention_partial_floats(int64_t value_dim) { return round_up(value_dim, kNBlock) + kNBlock; }

// K and V of consecutive tokens of one kv head, all in one group of 16 of its area of a block.
struct KvWriteRun {
  const void* k;  // of the first token
  const void* v;
  int64_t k_token_stride, v_token_stride;  // elements
  Elem act;
  KvLayout layout;
  char* head;
  int64_t token_in_block, num_tokens;
};

// The heads of one token: rms_norm where there is a weight, then rope.
struct NormRopeHeads {
  const void* x;
  void* out;                             // may be x
  int64_t head_stride, out_head_stride;  // elements
  int64_t num_heads, head_dim;
  const void* weight;                        // or null
  float eps;
  const float* cos_sin;
  int64_t rotary_dim;
  bool interleaved;
};

// out = sums + shared_factor * shared + sum of weights[row] * row over the row_ids, in their order. f32 sums.
struct WeightedRows {
  const float* rows;  // [.., width], from row first_row on
  int64_t first_row;
  const float* weights;  // from row 0 on
  const int32_t* row_ids;
  int64_t num_rows;
  const float* sums;   // [width], or null: zeros
  const void* shared;  // [width] of act, or null: zeros
  float shared_factor;
  void* out;  // may be sums or shared
  Elem out_elem;
  int64_t width;
};

// Some heads of one query token over the latent vectors of its sequence, from position 0.
struct LatentItem {
  const void* q_latent;  // first head
  const void* q_rope;
  void* out;
  int64_t q_latent_stride, q_rope_stride, out_stride;  // elements from head to head
  Elem act;
  int64_t num_heads;           // LatentPlan::max_heads at most
  int64_t first_key, end_key;  // all keys; with `partial` those of one span
  float* partial;              // null: the result goes to `out`; else what a span gives, LatentPlan::partial_floats
  float scale_log2e;  // softmax_scale * log2(e)
  int64_t rank, rope_dim;
  const int32_t* block_table;  // of the sequence
  const char* kv;              // the layer's blocks
  int64_t block_bytes, token_bytes, kv_block_size;
  Elem elem;              // of the cache
  int64_t scales_offset;  // of kI8, in a block
};

// A token's latent vector on its way into the cache.
struct LatentRow {
  const void* x;
  Elem act;
  void* out;
  float* scales;  // [2], of kI8
  Elem elem;      // of the cache
  int64_t rank, rope_dim;
};

// A token's latent vector as it comes out of the cache.
struct LatentVector {
  const void* vector;
  const float* scales;  // [2], of kI8
  Elem elem;            // of the cache
  void* out;            // [rank + rope_dim]
  Elem act;
  int64_t rank, rope_dim;
};

static constexpr int64_t kLatentKeys = 16;  // a block holds a multiple of it

// How attention over latent vectors is divided.
struct LatentPlan {
  int64_t max_heads;      // of an item
  int64_t scratch_bytes;  // of each thread
  // Keys whose sums are made apart and merged in order; 0: those of all keys are one.
  int64_t span_keys = 0, partial_floats = 0;
};

struct MaxAndId {
  float value;
  int32_t id;
};

struct KernelTable {
  const char* name;

  // linear
  GemmPlan (*gemm_plan)(const GemmParams& p, int num_threads);
  int64_t pack_rows;  // pack_x works on this many rows at a time
  void (*pack_x)(const GemmParams& p, int64_t first_row, int64_t num_rows);
  void (*gemm)(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows, int64_t first_n_block,
               int64_t num_n_blocks, char* scratch);

  // rows of integer weights: quantised as quantize_row() (quant/quantize.h) does it without offsets; codes has room for
  // k_padded, the padding is not written; scales of two levels are the products
  void (*quantize_weight_row)(const IntLayout& layout, const void* row, SourceElem elem, int64_t width, int8_t* codes,
                              float* scales);
  void (*int_embedding_row)(const char* table, const IntLayout& layout, int64_t row, int64_t width, void* out, Elem act);

  // attention; at most max_attention_rows = num_queries * group_size rows an item
  int64_t max_attention_rows;
  int64_t (*attention_scratch_bytes)(int64_t rows, int64_t head_dim);
  void (*attention)(const AttentionItem& item, char* scratch);
  // The partial results of an item's spans in order, `stride` floats apart, become its output.
  void (*merge_attention)(const AttentionItem& item, const float* partials, int64_t num_partials, int64_t stride, char* scratch);
  LatentPlan (*latent_plan)(Elem act, Elem cache, int64_t rank, int64_t rope_dim);
  void (*attention_latent)(const LatentItem& item, char* scratch);
  // What the spans of an item gave, in order and one behind the other, becomes its output.
  void (*merge_latent)(const LatentItem& item, float* partials, int64_t num_partials);
  void (*latent_row)(const LatentRow& row);
  void (*latent_vector)(const LatentVector& vector);
  void (*kv_prefetch_head)(const KvWriteRun& run);  // the lines that kv_write_head will write; k and v are not read
  void (*kv_write_head)(const KvWriteRun& run);

  // rows of elements
  void (*rms_norm_rows)(const RmsNormRows& p, Elem act);
  void (*add_row)(const void* a, const void* b, void* out, int64_t width, Elem act);
  void (*add_weighted_rows)(const WeightedRows& p, Elem act);
  void (*silu_and_mul_row)(const void* gate, const void* up, void* out, int64_t width, Elem act);
  void (*rope_row)(void* x, const float* cos_sin, int64_t rotary_dim, bool interleaved, Elem act);
  void (*norm_rope_heads)(const NormRopeHeads& p, Elem act);
  void (*embedding_row)(const char* table, Elem table_elem, int64_t row, int64_t width, void* out, Elem act);

  // rows of logits
  MaxAndId (*max_logit)(const float* logits, int64_t n);  // the smallest id among equals; NaN counts as -inf
  double (*sum_exp)(const float* logits, int64_t n, float max, float inv_temperature);
  bool (*has_nan_or_inf)(const float* logits, int64_t n);  // -inf does not count
  int64_t (*count_greater)(const float* logits, int64_t n, float value);
  void (*chunk_maxima)(const float* logits, int64_t n, int64_t chunk, float* maxima);
  // Ids with logits >= bound, ascending; at most capacity are written; the number found is returned.
  int64_t (*collect_at_least)(const float* logits, int64_t n, float bound, int32_t* ids, int64_t capacity);
  void (*divide)(const float* logits, int64_t n, float divisor, float* out);
  // Random words of philox4x32(seed, stream, first_counter + i)[0..3], for i < num_counters.
  void (*philox_words)(uint64_t seed, uint64_t stream, uint64_t first_counter, int64_t num_counters, uint32_t* words);

  // loops for limits.cpp: the operations done are returned
  // Data is 64-byte aligned; a checksum is returned. By streams that ask ahead, and by a plain one.
  uint64_t (*read_memory)(const char* data, int64_t bytes);
  uint64_t (*read_memory_plain)(const char* data, int64_t bytes);
  void (*write_memory)(char* data, int64_t bytes);  // the same alignment
  double (*fma_flops)(int64_t iterations);
  double (*vector_bf16_flops)(int64_t iterations);  // null without VDPBF16PS or BFMMLA
  double (*vector_int8_ops)(int64_t iterations);
  const char* vector_int8_name;  // as limits are listed: "vnni-int8"
  double (*amx_bf16_flops)(int64_t iterations);  // tiles from L1; null without AMX, as the next three
  double (*amx_int8_ops)(int64_t iterations);
  double (*amx_bf16_register_flops)(int64_t iterations);  // tiles that stay in registers
  double (*amx_int8_register_ops)(int64_t iterations);
};

// Those of the architecture that the program is built for.
const KernelTable& avx2_kernels();
const KernelTable& avxvnni_kernels();
const KernelTable& avx512_kernels();
const KernelTable& avx512bf16_kernels();
const KernelTable& amx_kernels();
const KernelTable& neon_kernels();
const KernelTable& neondot_kernels();
const KernelTable& neoni8mm_kernels();
const KernelTable& neonbf16_kernels();

}  // namespace spate::cpu
