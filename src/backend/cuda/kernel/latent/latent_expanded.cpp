#include "backend/cuda/kernel/latent/latent_expanded.h"

#include <algorithm>
#include <numbers>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/linear/wgmma_plan.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

constexpr int64_t kMaxHeadsBytes = 256 << 20;  // of the keys and values that are made at once
constexpr int64_t kSectionBytes = 24 << 20;    // of an L2 of 50 MB, in two halves that copy from each other
constexpr int64_t kKeyBytes = kLatentWidth * 2, kHeadKeyBytes = kExpandedHeadWidth * 2;

// Heads whose keys and values are made at once: all heads in equal parts.
int64_t heads_at_once(int64_t num_keys, int64_t num_heads) {
  const int64_t most = std::clamp<int64_t>(kMaxHeadsBytes / (num_keys * kHeadKeyBytes), 1, num_heads);
  return ceil_div(num_heads, ceil_div(num_heads, most));
}

// Heads whose keys and values stay in L2 while all their queries read them. With few items a CTA all heads at once: the
// long items of a last section would end late (16 heads, 8K: 696 TFLOP/s, 643 in sections; 64 heads: 689 and 734).
int64_t section_heads(const CudaDevice& device, int64_t num_tokens, int64_t keys_of_seq, int64_t num_heads) {
  constexpr int64_t kMinItemsOfCta = 16;
  const int64_t num_items = ceil_div(num_tokens, kPrefillWgmmaRows) * num_heads;
  if (num_items < kMinItemsOfCta * device.num_sms()) return num_heads;
  const int64_t most = std::clamp<int64_t>(kSectionBytes / (keys_of_seq * kHeadKeyBytes), 1, num_heads);
  return ceil_div(num_heads, ceil_div(num_heads, most));
}

void gather(Stream& stream, const AttentionLatentExpandedParams& p, void* latents) {
  const LatentGatherKernelParams params{.out = latents,
                                        .block_table = p.block_table.data<int32_t>(),
                                        .seq_rows = p.seq_rows.data<int32_t>(),
                                        .seq_lens = p.seq_lens.data<int32_t>(),
                                        .block_table_stride = p.block_table.stride(0),
                                        .kv = latent_layout(p.kv),
                                        .num_seqs = static_cast<int32_t>(p.seq_rows.dim(0)),
                                        .num_keys = p.num_keys,
                                        .is_codes = p.kv.desc.dtype == DType::kI8};
  launch(stream, kernel_id("latent_gather"),
         {.x = ceil_div(p.num_keys, kLatentGatherWarps), .num_threads = 32 * kLatentGatherWarps}, params,
         {{"num_keys", p.num_keys}, {"num_seqs", params.num_seqs}});
}

// heads[key] = [W_uk c, W_uv c] of heads [first_head, first_head + num_heads).
void expand(Stream& stream, const AttentionLatentExpandedParams& p, const void* latents, int64_t first_head,
            int64_t num_heads, void* heads) {
  static constexpr KernelId kKernelIds[] = {kernel_id("linear_wgmma_n8"),   kernel_id("linear_wgmma_n16"),
                                            kernel_id("linear_wgmma_n32"),  kernel_id("linear_wgmma_n64"),
                                            kernel_id("linear_wgmma_n128"), kernel_id("linear_wgmma_n256")};
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t out_features = num_heads * kExpandedHeadWidth;
  const char* rows = static_cast<const char*>(p.kv_up->data()) + first_head * kExpandedHeadWidth * kLatentRank * 2;
  const WgmmaPlan plan = plan_wgmma(device, p.num_keys, out_features, kLatentRank / kWgmmaTileK, {.has_teams = true});
  LinearWgmmaKernelParams params = plan.params;
  params.x = make_bf16_map(device.api(), latents, p.num_keys, kLatentRank, kLatentWidth, plan.box_tokens);
  params.weight = make_bf16_map(device.api(), rows, out_features, kLatentRank, kLatentRank, kWgmmaRows);
  params.out = heads;
  params.out_stride = out_features;
  params.is_out_paired = true;
  launch(stream, kKernelIds[plan.kernel_idx], {.x = plan.num_ctas, .num_threads = kWgmmaThreads}, params,
         {{"num_keys", p.num_keys}, {"num_heads", num_heads}});
}

void attend(Stream& stream, const AttentionLatentExpandedParams& p, const void* latents, int64_t first_head,
            int64_t num_heads, const void* heads) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_tokens = p.q.dim(0), width = num_heads * kExpandedHeadWidth;
  const auto* q = p.q.data<Bf16>() + first_head * p.q.stride(1);
  const LatentExpandedKernelParams params{
      .attention = {.q = q,
                    .out = p.out.data<Bf16>() + first_head * p.out.stride(1),
                    .cu_seqlens_q = p.cu_seqlens_q.data<int32_t>(),
                    .seq_lens = p.seq_lens.data<int32_t>(),
                    .q_token_stride = p.q.stride(0),
                    .q_head_stride = p.q.stride(1),
                    .out_token_stride = p.out.stride(0),
                    .out_head_stride = p.out.stride(1),
                    .num_seqs = static_cast<int32_t>(p.seq_rows.dim(0)),
                    .heads_per_kv_head = 1,
                    .softmax_scale_log2e = p.softmax_scale * std::numbers::log2e_v<float>},
      .q = make_heads_map(device.api(), {.data = q,
                                         .num_tokens = num_tokens,
                                         .num_heads = num_heads,
                                         .head_dim = kExpandedKeyDim,
                                         .token_stride = p.q.stride(0),
                                         .head_stride = p.q.stride(1),
                                         .box_tokens = kPrefillWgmmaRows,
                                         .box_heads = 1}),
      .heads = make_bf16_map(device.api(), heads, p.num_keys, width, width, kPrefillWgmmaKeys),
      .latents = make_bf16_map(device.api(), latents, p.num_keys, kLatentWidth, kLatentWidth, kPrefillWgmmaKeys),
      .work_counters = device.work_counters(),
      .packed_heads = 1,
      .num_head_tiles = static_cast<int32_t>(num_heads),
      .section_heads = static_cast<int32_t>(
          section_heads(device, num_tokens, ceil_div(p.num_keys, p.seq_rows.dim(0)), num_heads)),
  };
  launch(stream, kernel_id("attention_latent_expanded_wgmma"), {.x = device.num_sms(), .num_threads = kPrefillWgmmaThreads},
         params,
         {{"num_tokens", num_tokens}, {"num_keys", p.num_keys}, {"num_heads", num_heads}, {"num_seqs", params.attention.num_seqs}});
}

bool is_aligned(const Tensor& rows) {
  return reinterpret_cast<uintptr_t>(rows.raw()) % 16 == 0 && rows.stride(0) % 8 == 0 && rows.stride(1) % 8 == 0;
}

}  // namespace

int64_t expanded_workspace_bytes(int64_t max_num_keys) {
  // Parts of the heads may be a head more than half of what fits.
  return max_num_keys * (kKeyBytes + kHeadKeyBytes) + kMaxHeadsBytes;
}

void attention_latent_expanded(Stream& stream, const AttentionLatentExpandedParams& p) {
  check_params(p);
  const int64_t num_heads = p.q.dim(1), num_keys = p.num_keys;
  if (p.q.dim(0) == 0 || num_heads == 0 || num_keys == 0) return;
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const LatentShape shape{.kv_lora_rank = p.kv.desc.kv_lora_rank,
                          .qk_nope_head_dim = p.qk_nope_head_dim(),
                          .qk_rope_head_dim = p.kv.desc.qk_rope_head_dim,
                          .v_head_dim = p.v_head_dim(),
                          .act_dtype = p.q.dtype()};
  CHECK(device.min_expanded_query_len(shape) > 0, "attention_latent_expanded: heads of {} + {} and {} over {} latent",
        shape.qk_nope_head_dim, shape.qk_rope_head_dim, shape.v_head_dim, shape.kv_lora_rank);
  CHECK(is_aligned(p.q) && is_aligned(p.out), "attention_latent_expanded: rows at no multiple of 16 bytes");
  const int64_t group = heads_at_once(num_keys, num_heads), latent_bytes = num_keys * kKeyBytes;
  char* latents =
      static_cast<char*>(device.workspace(static_cast<size_t>(latent_bytes + num_keys * group * kHeadKeyBytes)));
  char* heads = latents + latent_bytes;
  gather(stream, p, latents);
  for (int64_t first = 0; first < num_heads; first += group) {
    const int64_t count = std::min(group, num_heads - first);
    expand(stream, p, latents, first, count, heads);
    attend(stream, p, latents, first, count, heads);
  }
}

}  // namespace spate::cuda
