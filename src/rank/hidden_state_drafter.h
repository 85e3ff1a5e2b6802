// HiddenStateDrafter: drafts by a layer that continues the model's hidden states: the model's own for multi-token
// prediction (rank/mtp_drafter.h), or an EAGLE head (rank/eagle_drafter.h).
//
// The layer takes what is known of a position from the model's hidden states and the token behind it, and guesses the
// token behind that. To guess further it takes its own hidden state and its guess. What is known of all tokens in the
// KV cache is kept by slot: written in each step of the model, read when drafts are wanted. So it is there wherever the
// model's keys and values are, after prefix hits, forks and preemptions too, and steps without drafts cost a copy.
//
// Its steps (speculative/model_proposer.h) have rows of the model's: the place of position p holds the keys and values
// of (known of p, token p + 1). Steps that prefill read what is known by the model, steps that decode the row's own
// hidden state of the step before.
//
// Of several layers (core/layered_executor.h) the first does so. A step of the next one that prefills reads the hidden
// states of the step before it, token by token; only the last layer decodes.
#pragma once

#include <memory>

#include "rank/drafter.h"

namespace spate {

// The layer as its drafter runs it. Tensors are act, rows of a step's tokens.
class HiddenStateHead {
 public:
  virtual ~HiddenStateHead() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const std::vector<KvLayerDesc>& kv_layers() const = 0;
  virtual int64_t known_width() const = 0;  // columns that are known of a token
  virtual int num_layers() const { return 1; }  // core/layered_executor.h
  struct Run {
    Tensor known;         // [num_tokens, known_width()] of the model, or [num_tokens, hidden_size] of an earlier forward()
    int source_idx = -1;  // the layer that gave them; -1: the model
    int layer_idx = 0;
  };
  // As Model::forward otherwise.
  virtual Tensor forward(const StepContext& ctx, const Run& run) = 0;
  virtual Tensor hidden_states(const StepBatch& batch) const = 0;
  // Of hidden states that layer_idx gave.
  virtual Tensor compute_logits(const StepContext& ctx, int layer_idx, const Tensor& hidden_states,
                                const Tensor& row_ids) = 0;
};

class HiddenStateDrafter : public Drafter {
 public:
  // Of one rank, beside what the head takes.
  struct Memory {
    int64_t workspace_bytes = 0;      // state and buffers
    int64_t kv_block_bytes = 0;       // of each of the model's blocks
    int64_t scratch_block_bytes = 0;  // of a scratch block
  };
  static Memory memory(const Device& device, int64_t known_width, int64_t hidden_size,
                       const std::vector<KvLayerDesc>& kv_layers, const ModelOptions& options, int num_layers = 1);
  ~HiddenStateDrafter() override;

  int64_t kv_block_bytes() const override;
  Status allocate_kv_cache(int64_t num_blocks, int64_t num_scratch) override;
  int num_layers() const override;
  void launch(std::span<const std::byte> plan, int layer_idx) override;
  Status finish(StepResult& result) override { return rank_->finish(result); }
  void copy_blocks(Stream& stream, const OpTable& ops, const Tensor& src_dst) override;

 protected:
  HiddenStateDrafter();
  // `target` and `head` outlive the drafter's steps. `communicators`: of the target's groups.
  Status start(Rank& target, HiddenStateHead& head, Communicators communicators, const ModelOptions& options);
  // Columns from first_column on of what is known of the step's tokens. Inside the target's pass.
  void keep(const StepContext& ctx, const Tensor& columns, int64_t first_column) const;

 private:
  class Layer;
  std::unique_ptr<Layer> layer_;
  std::unique_ptr<Rank> rank_;  // runs layer_
};

}  // namespace spate
