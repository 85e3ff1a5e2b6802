// Paged attention, flash style, and the writing of K and V into blocks. bf16 activations over bf16 and int8 caches go
// to the AMX tiles where they are (attention_amx.h), else to VDPBF16PS or BFMMLA where that is, and to the same panels
// by FMA on other AVX-512 (attention_dot.h); everything else goes to FMA.
#include "backend/cpu/kernel/attention_fma.h"
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/kv_write.h"
#ifdef __AMX_BF16__
#include "backend/cpu/kernel/attention_amx.h"
#elif defined(__AVX512VNNI__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define SPATE_DOT_ATTENTION
#include "backend/cpu/kernel/attention_dot.h"
#endif

namespace spate::cpu::SPATE_ISA {

int64_t attention_scratch_bytes(int64_t rows, int64_t head_dim) {
  int64_t bytes = fma_scratch_bytes(rows, head_dim);
#ifdef __AMX_BF16__
  bytes = max_of(bytes, amx_attention_scratch_bytes(rows, head_dim));
#elif defined(SPATE_DOT_ATTENTION)
  bytes = max_of(bytes, dot_scratch_bytes(rows, head_dim));
#endif
  return bytes;
}

void attention(const AttentionItem& item, char* scratch) {
#ifdef __AMX_BF16__
  if (item.act == Elem::kBf16 && item.layout.elem == Elem::kBf16) return attention_amx<false>(item, scratch);
  if (item.act == Elem::kBf16 && item.layout.elem == Elem::kI8) return attention_amx<true>(item, scratch);
#elif defined(SPATE_DOT_ATTENTION)
  if (item.act == Elem::kBf16 && item.layout.elem == Elem::kBf16) return DotAttention<false>(item, scratch).run();
  if (item.act == Elem::kBf16 && item.layout.elem == Elem::kI8) return DotAttention<true>(item, scratch).run();
#endif
  switch (item.layout.elem) {
    case Elem::kF32:
      return attention_fma<F32Weight, false>(item, scratch);
    case Elem::kBf16:
      return attention_fma<Bf16Weight, false>(item, scratch);
    case Elem::kI8:
      return attention_fma<F32Weight, true>(item, scratch);
  }
}

void merge_attention(const AttentionItem& item, const float* partials, int64_t num_partials, int64_t stride,
                     char* scratch) {
  const int64_t rows = item.num_queries * item.group_size, width = round_up(item.layout.value_dim, kNBlock);
  float* accumulator = reinterpret_cast<float*>(scratch);
  for (int64_t r = 0; r < rows; ++r) {
    float max = kMinusInfinity, denominator = 0;
    for (int64_t i = 0; i < num_partials; ++i) {
      const float* partial = partials + i * stride + r * attention_partial_floats(item.layout.value_dim);
      merge_row(accumulator, max, denominator, partial, partial[width], partial[width + 1], width);
    }
    store_attention_row(item, r, accumulator, denominator);
  }
}

void kv_prefetch_head(const KvWriteRun& run) { prefetch_head_run(run); }

void kv_write_head(const KvWriteRun& run) {
  const bool f32_act = run.act == Elem::kF32;
  switch (run.layout.elem) {
    case Elem::kF32:
      return f32_act ? write_head_run<float, float>(run) : write_head_run<bf16_t, float>(run);
    case Elem::kBf16:
      return f32_act ? write_head_run<float, bf16_t>(run) : write_head_run<bf16_t, bf16_t>(run);
    case Elem::kI8:
      return f32_act ? write_head_run<float, int8_t>(run) : write_head_run<bf16_t, int8_t>(run);
  }
}

}  // namespace spate::cpu::SPATE_ISA
