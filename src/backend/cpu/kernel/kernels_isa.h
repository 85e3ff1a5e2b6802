// The kernels of one instruction set, SPATE_ISA (avx2, avx512, amx, neon, ...): declared once, compiled by
// CMakeLists.txt once per instruction set into its own namespace; kernel/table.cpp puts them into the KernelTable,
// which says what they do.
#pragma once

#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

// gemm.cpp
GemmPlan gemm_plan(const GemmParams& p, int num_threads);
void pack_x(const GemmParams& p, int64_t first_row, int64_t num_rows);
void gemm(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows, int64_t first_n_block,
          int64_t num_n_blocks, char* scratch);

// int_rows.cpp
void quantize_weight_row(const IntLayout& layout, const void* row, SourceElem elem, int64_t width, int8_t* codes,
                         float* scales);
void int_embedding_row(const char* table, const IntLayout& layout, int64_t row, int64_t width, void* out, Elem act);

// attention.cpp
int64_t attention_scratch_bytes(int64_t rows, int64_t head_dim);
void attention(const AttentionItem& item, char* scratch);
void merge_attention(const AttentionItem& item, const float* partials, int64_t num_partials, int64_t stride, char* scratch);
void kv_prefetch_head(const KvWriteRun& run);
void kv_write_head(const KvWriteRun& run);

// latent.cpp
LatentPlan latent_plan(Elem act, Elem cache, int64_t rank, int64_t rope_dim);
void attention_latent(const LatentItem& item, char* scratch);
void merge_latent(const LatentItem& item, float* partials, int64_t num_partials);
void latent_row(const LatentRow& row);
void latent_vector(const LatentVector& vector);

// elementwise.cpp
void rms_norm_rows(const RmsNormRows& p, Elem act);
void add_row(const void* a, const void* b, void* out, int64_t width, Elem act);
void add_weighted_rows(const WeightedRows& p, Elem act);
void silu_and_mul_row(const void* gate, const void* up, void* out, int64_t width, Elem act);
void rope_row(void* x, const float* cos_sin, int64_t rotary_dim, bool interleaved, Elem act);
void norm_rope_heads(const NormRopeHeads& p, Elem act);
void embedding_row(const char* table, Elem table_elem, int64_t row, int64_t width, void* out, Elem act);

// sampling.cpp
MaxAndId max_logit(const float* logits, int64_t n);
double sum_exp(const float* logits, int64_t n, float max, float inv_temperature);
bool has_nan_or_inf(const float* logits, int64_t n);
int64_t count_greater(const float* logits, int64_t n, float value);
void chunk_maxima(const float* logits, int64_t n, int64_t chunk, float* maxima);
int64_t collect_at_least(const float* logits, int64_t n, float bound, int32_t* ids, int64_t capacity);
void divide(const float* logits, int64_t n, float divisor, float* out);
void philox_words(uint64_t seed, uint64_t stream, uint64_t first_counter, int64_t num_counters, uint32_t* words);

// peaks.cpp
uint64_t read_memory(const char* data, int64_t bytes);
uint64_t read_memory_plain(const char* data, int64_t bytes);
void write_memory(char* data, int64_t bytes);
double fma_flops(int64_t iterations);
double vector_bf16_flops(int64_t iterations);  // only where the instruction set has VDPBF16PS or BFMMLA
double vector_int8_ops(int64_t iterations);
double amx_bf16_flops(int64_t iterations);  // only where the instruction set has AMX
double amx_int8_ops(int64_t iterations);
double amx_bf16_register_flops(int64_t iterations);
double amx_int8_register_ops(int64_t iterations);

}  // namespace spate::cpu::SPATE_ISA
