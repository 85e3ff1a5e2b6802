#include "backend/cuda/kernel/attention/attention_paged.h"

#include <array>
#include <numbers>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

KernelId kernel_for(DType act, DType kv, int64_t head_dim) {
  static constexpr std::array kBf16Bf16 = {kernel_id("attention_paged_bf16_bf16_d64"),
                                           kernel_id("attention_paged_bf16_bf16_d128"),
                                           kernel_id("attention_paged_bf16_bf16_d256")};
  static constexpr std::array kF32Bf16 = {kernel_id("attention_paged_f32_bf16_d64"),
                                          kernel_id("attention_paged_f32_bf16_d128"),
                                          kernel_id("attention_paged_f32_bf16_d256")};
  static constexpr std::array kF32F32 = {kernel_id("attention_paged_f32_f32_d64"),
                                         kernel_id("attention_paged_f32_f32_d128"),
                                         kernel_id("attention_paged_f32_f32_d256")};
  const size_t width = head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : 2;
  if (act == DType::kBf16) return kBf16Bf16[width];
  return kv == DType::kBf16 ? kF32Bf16[width] : kF32F32[width];
}

}  // namespace

void attention_paged(Stream& stream, const AttentionPagedParams& p) {
  check_params(p);
  const KvGroupDesc& desc = p.kv.desc;
  const int64_t num_tokens = p.q.dim(0), num_heads = p.q.dim(1), heads_per_kv_head = num_heads / desc.num_kv_heads;
  if (num_tokens == 0 || num_heads == 0) return;
  CHECK(desc.head_dim <= kAttentionMaxHeadDim, "attention_paged: head_dim {} exceeds {}", desc.head_dim,
        kAttentionMaxHeadDim);
  const AttentionPagedKernelParams params{
      .q = p.q.raw(),
      .out = p.out.raw(),
      .block_table = p.block_table.data<int32_t>(),
      .seq_rows = p.seq_rows.data<int32_t>(),
      .cu_seqlens_q = p.cu_seqlens_q.data<int32_t>(),
      .seq_lens = p.seq_lens.data<int32_t>(),
      .q_token_stride = p.q.stride(0),
      .q_head_stride = p.q.stride(1),
      .out_token_stride = p.out.stride(0),
      .out_head_stride = p.out.stride(1),
      .block_table_stride = p.block_table.stride(0),
      .kv = kv_layout(p.kv),
      .num_seqs = static_cast<int32_t>(p.seq_rows.dim(0)),
      .heads_per_kv_head = static_cast<int32_t>(heads_per_kv_head),
      .window = p.window,
      .softmax_scale_log2e = p.softmax_scale * std::numbers::log2e_v<float>,
  };
  launch(stream, kernel_for(p.q.dtype(), desc.dtype, desc.head_dim),
         {.x = num_tokens,
          .y = desc.num_kv_heads * ceil_div(heads_per_kv_head, kAttentionHeadTile),
          .num_threads = kAttentionNumWarps * 32},
         params,
         {{"num_tokens", num_tokens},
          {"num_seqs", p.seq_rows.dim(0)},
          {"num_heads", num_heads},
          {"num_kv_heads", desc.num_kv_heads},
          {"head_dim", desc.head_dim},
          {"max_seq_len", p.max_seq_len}});
}

}  // namespace spate::cuda
