// The kernel table of one instruction set.
#include "backend/cpu/kernel/kernels_isa.h"

#define SPATE_STRING_INNER(x) #x
#define SPATE_STRING(x) SPATE_STRING_INNER(x)
#define SPATE_TABLE_NAME_INNER(isa) isa##_kernels
#define SPATE_TABLE_NAME(isa) SPATE_TABLE_NAME_INNER(isa)

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define SPATE_INT8_NAME "vnni-int8"
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#define SPATE_INT8_NAME "i8mm-int8"
#elif defined(__ARM_FEATURE_DOTPROD)
#define SPATE_INT8_NAME "dot-int8"
#else
#define SPATE_INT8_NAME "vector-int8"
#endif

namespace spate::cpu {

const KernelTable& SPATE_TABLE_NAME(SPATE_ISA)() {
  using namespace SPATE_ISA;
  static constexpr KernelTable table{
      .name = SPATE_STRING(SPATE_ISA),
      .gemm_plan = gemm_plan,
      .pack_rows = 16,
      .pack_x = pack_x,
      .gemm = gemm,
      .quantize_weight_row = quantize_weight_row,
      .int_embedding_row = int_embedding_row,
#ifdef __AMX_BF16__
      .max_attention_rows = 512,
#elif defined(__AVX512VNNI__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
      .max_attention_rows = 96,  // eight panels
#else
      .max_attention_rows = 64,
#endif
      .attention_scratch_bytes = attention_scratch_bytes,
      .attention = attention,
      .merge_attention = merge_attention,
      .latent_plan = latent_plan,
      .attention_latent = attention_latent,
      .merge_latent = merge_latent,
      .latent_row = latent_row,
      .latent_vector = latent_vector,
      .kv_prefetch_head = kv_prefetch_head,
      .kv_write_head = kv_write_head,
      .rms_norm_rows = rms_norm_rows,
      .add_row = add_row,
      .add_weighted_rows = add_weighted_rows,
      .silu_and_mul_row = silu_and_mul_row,
      .rope_row = rope_row,
      .norm_rope_heads = norm_rope_heads,
      .embedding_row = embedding_row,
      .max_logit = max_logit,
      .sum_exp = sum_exp,
      .has_nan_or_inf = has_nan_or_inf,
      .count_greater = count_greater,
      .chunk_maxima = chunk_maxima,
      .collect_at_least = collect_at_least,
      .divide = divide,
      .philox_words = philox_words,
      .read_memory = read_memory,
      .read_memory_plain = read_memory_plain,
      .write_memory = write_memory,
      .fma_flops = fma_flops,
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
      .vector_bf16_flops = vector_bf16_flops,
#else
      .vector_bf16_flops = nullptr,
#endif
      .vector_int8_ops = vector_int8_ops,
      .vector_int8_name = SPATE_INT8_NAME,
#ifdef __AMX_BF16__
      .amx_bf16_flops = amx_bf16_flops,
      .amx_int8_ops = amx_int8_ops,
      .amx_bf16_register_flops = amx_bf16_register_flops,
      .amx_int8_register_ops = amx_int8_register_ops,
#else
      .amx_bf16_flops = nullptr,
      .amx_int8_ops = nullptr,
      .amx_bf16_register_flops = nullptr,
      .amx_int8_register_ops = nullptr,
#endif
  };
  return table;
}

}  // namespace spate::cpu
