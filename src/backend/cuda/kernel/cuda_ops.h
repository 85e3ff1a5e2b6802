// The ops of the catalogue on a CudaStream: each checks its parameters, chooses a kernel and launches it.
// Params are those of backend/ops.h; kernels and their limits are described in the .cu files.
#pragma once

#include "backend/cuda/kernel/kv/kv_layout.h"
#include "backend/ops.h"

namespace spate::cuda {

void embedding(Stream& stream, const EmbeddingParams& p);
void linear(Stream& stream, const LinearParams& p);
void rms_norm(Stream& stream, const RmsNormParams& p);
void add(Stream& stream, const AddParams& p);
void silu_and_mul(Stream& stream, const SiluAndMulParams& p);
void rope(Stream& stream, const RopeParams& p);
void kv_write(Stream& stream, const KvWriteParams& p);
void attention_paged(Stream& stream, const AttentionPagedParams& p);
void gather_rows(Stream& stream, const GatherRowsParams& p);
void scatter_rows(Stream& stream, const ScatterRowsParams& p);
void apply_updates(Stream& stream, const ApplyUpdatesParams& p);
void begin_step(Stream& stream, const BeginStepParams& p);
void sample(Stream& stream, const SampleParams& p);
void logprobs(Stream& stream, const LogprobsParams& p);
void finish_step(Stream& stream, const FinishStepParams& p);
void kv_copy_blocks(Stream& stream, const KvCopyBlocksParams& p);
void route_experts(Stream& stream, const RouteExpertsParams& p);
void expert_mlp(Stream& stream, const ExpertMlpParams& p);
void expert_mlp_add_norm(Stream& stream, const ExpertMlpAddNormParams& p);
void latent_write(Stream& stream, const LatentWriteParams& p);
void latent_norm_rope_write(Stream& stream, const LatentNormRopeWriteParams& p);
void attention_latent(Stream& stream, const AttentionLatentParams& p);
void attention_latent_expanded(Stream& stream, const AttentionLatentExpandedParams& p);
void linear_heads(Stream& stream, const LinearHeadsParams& p);
void add_rms_norm(Stream& stream, const AddRmsNormParams& p);
void linear_silu_and_mul(Stream& stream, const LinearSiluAndMulParams& p);
void qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p);
void qk_norm_rope_attention(Stream& stream, const QkNormRopeAttentionParams& p);

// What ops take of the device's workspace: sample(), expert_mlp(), latent attention, and attention_paged() of
// prompts over an INT8 cache.
int64_t sample_workspace_bytes(int64_t num_logits, int64_t vocab_size);
int64_t expert_workspace_bytes(const OpLimits& limits);
int64_t latent_workspace_bytes(int num_sms);
int64_t expanded_workspace_bytes(int64_t max_num_keys);
int64_t prefill_workspace_bytes(const OpLimits& limits);

// All of the above.
OpTable cuda_ops();

KvLayout kv_layout(const KvView& kv);
struct LatentLayout;
LatentLayout latent_layout(const KvView& kv);

// Of kernels in which a head is a power of two of lanes with 8 elements each.
int32_t lanes_per_head(int64_t head_dim);

}  // namespace spate::cuda
