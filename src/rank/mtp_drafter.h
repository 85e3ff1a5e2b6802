// MtpDrafter: the model's own layer for multi-token prediction drafts for it (DeepSeek-V3).
//
// The layer takes the model's hidden state at a position and the token behind it, and guesses the token behind that. To
// guess further it takes its own hidden state and its guess. It keeps the model's hidden states of all tokens in the KV
// cache, by slot: written in each step of the model, read when drafts are wanted. So a hidden state is there wherever the
// model's keys and values are, after prefix hits, forks and preemptions too, and steps without drafts cost a copy.
//
// Its steps (speculative/model_proposer.h) have rows of the model's: the place of position p holds the keys and values of
// (hidden state p, token p + 1). Steps that prefill read the model's hidden states, steps that decode the row's own of the
// step before.
#pragma once

#include <memory>

#include "rank/drafter.h"

namespace spate {

class MtpDrafter final : public Drafter {
 public:
  // Of one rank. `model` is made with ModelOptions::num_mtp_layers = 1.
  struct Memory {
    int64_t workspace_bytes = 0;         // state and buffers
    int64_t kv_block_bytes = 0;          // of each of the model's blocks
    int64_t scratch_block_bytes = 0;     // of a scratch block
  };
  static Memory memory(const Device& device, const ModelConfig& config, const ModelMemory& model,
                       const ModelOptions& options);

  // `target` outlives the drafter's steps; its weights may be loaded later. `communicators`: of the same groups.
  static Result<std::unique_ptr<MtpDrafter>> create(Rank& target, Communicators communicators, const ModelOptions& options);
  ~MtpDrafter() override;

  int64_t kv_block_bytes() const override;
  Status allocate_kv_cache(int64_t num_blocks, int64_t num_scratch) override;
  void launch(std::span<const std::byte> plan) override { rank_->launch(plan); }
  Status finish(StepResult& result) override { return rank_->finish(result); }
  bool needs_all_tokens() const override { return true; }
  void follow(const StepContext& ctx, const Tensor& hidden_states) override;
  void copy_blocks(Stream& stream, const OpTable& ops, const Tensor& src_dst) override;

 private:
  class Layer;
  MtpDrafter() = default;
  std::unique_ptr<Layer> layer_;
  std::unique_ptr<Rank> rank_;  // runs layer_
};

}  // namespace spate
