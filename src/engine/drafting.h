// Drafting: lets a Speculator propose for the running sequences before a step is scheduled, and finds the token masks
// along the drafts of sequences that have a constraint.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/engine_config.h"
#include "core/step_executor.h"
#include "scheduler/sequence.h"
#include "speculative/speculator.h"

namespace spate {

class Drafting {
 public:
  // draft_executor: of a proposer that runs a model; else null.
  Drafting(const EngineConfig& config, StepExecutor* draft_executor, const std::function<double()>& clock);

  // Fills Sequence::drafts of the running sequences for the next step. An error is final.
  Status propose(std::span<Sequence* const> running, bool steps_in_flight);
  Speculator& speculator() { return speculator_; }

 private:
  void list_blocks();
  void keep_allowed_drafts(Sequence& seq);

  const StepLimits limits_;
  const bool drafts_forced_tokens_only_;
  Speculator speculator_;
  std::vector<Speculator::Row> rows_;
  std::vector<Sequence*> seqs_;  // of rows_
  std::vector<std::vector<int32_t>> block_ids_;  // of rows_
};

}  // namespace spate
