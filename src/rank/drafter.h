// Drafter: what proposes drafts inside a rank, by running a model on the rank's device.
//
// The engine's proposer (speculative/model_proposer.h) gives it StepPlans of its own, whose rows are the target's; it
// answers with the tokens that its model chooses. They run between the target's steps, while none is in flight. What a
// drafter needs of the target's steps it takes in follow(): a model of its own needs nothing, a module that continues
// the target's hidden states (MTP, EAGLE) keeps those of the rows' newest tokens. Every rank of a group has one, and
// all get the same plans.
//
// Made and used by the rank's thread, but finish().
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/step_executor.h"
#include "rank/rank.h"

namespace spate {

class Drafter : public StepFollower {
 public:
  virtual int64_t kv_block_bytes() const = 0;  // that each block of the target's takes beside it
  // A place for each of the target's blocks, and num_scratch blocks behind them.
  virtual Status allocate_kv_cache(int64_t num_blocks, int64_t num_scratch) = 0;
  virtual int num_layers() const { return 1; }  // LayeredExecutor
  virtual void launch(std::span<const std::byte> plan, int layer_idx) = 0;
  virtual Status finish(StepResult& result) = 0;  // rank 0, the collecting thread
};

// A model of its own, with its own state and cache.
class ModelDrafter final : public Drafter {
 public:
  explicit ModelDrafter(std::unique_ptr<Rank> rank) : rank_(std::move(rank)) {}
  int64_t kv_block_bytes() const override { return rank_->kv_block_bytes(); }
  Status allocate_kv_cache(int64_t num_blocks, int64_t num_scratch) override {
    return rank_->allocate_kv_cache(num_blocks + num_scratch);
  }
  void launch(std::span<const std::byte> plan, int /*layer_idx*/) override { rank_->launch(plan); }
  Status finish(StepResult& result) override { return rank_->finish(result); }

 private:
  const std::unique_ptr<Rank> rank_;
};

}  // namespace spate
