// The ops of the reference back-end; one source file a group. apply_updates, begin_step, finish_step and kv_copy_blocks only move
// integers and bytes in host memory: the CPU back-end uses them as they are.
#pragma once

#include "backend/ops.h"

namespace spate::reference {

inline void* block_data(const KvView& kv, int64_t block_id) {
  SPATE_CHECK(block_id >= 0 && block_id < kv.num_blocks, "block_id < num_blocks", "block {} of {}", block_id,
              kv.num_blocks);
  return static_cast<char*>(kv.data) + block_id * kv.block_bytes;
}

// linear_ops.cpp
void embedding(Stream& stream, const EmbeddingParams& p);
void linear(Stream& stream, const LinearParams& p);
void linear_silu_and_mul(Stream& stream, const LinearSiluAndMulParams& p);
void gather_rows(Stream& stream, const GatherRowsParams& p);
void scatter_rows(Stream& stream, const ScatterRowsParams& p);

// expert_ops.cpp
void route_experts(Stream& stream, const RouteExpertsParams& p);
void expert_mlp(Stream& stream, const ExpertMlpParams& p);

// elementwise_ops.cpp
void rms_norm(Stream& stream, const RmsNormParams& p);
void add(Stream& stream, const AddParams& p);
void silu_and_mul(Stream& stream, const SiluAndMulParams& p);
void rope(Stream& stream, const RopeParams& p);
void add_rms_norm(Stream& stream, const AddRmsNormParams& p);

// attention_ops.cpp
void kv_write(Stream& stream, const KvWriteParams& p);
void attention_paged(Stream& stream, const AttentionPagedParams& p);
void kv_copy_blocks(Stream& stream, const KvCopyBlocksParams& p);
void qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p);

// latent_ops.cpp
void latent_write(Stream& stream, const LatentWriteParams& p);
void attention_latent(Stream& stream, const AttentionLatentParams& p);
void attention_latent_expanded(Stream& stream, const AttentionLatentExpandedParams& p);
void linear_heads(Stream& stream, const LinearHeadsParams& p);

// step_ops.cpp
void apply_updates(Stream& stream, const ApplyUpdatesParams& p);
void begin_step(Stream& stream, const BeginStepParams& p);
void finish_step(Stream& stream, const FinishStepParams& p);

// sample_ops.cpp
void sample(Stream& stream, const SampleParams& p);
void logprobs(Stream& stream, const LogprobsParams& p);

}  // namespace spate::reference
