// Drafting: lets a Speculator propose for the running sequences before a step is scheduled, and finds the token masks
// along the drafts of sequences that have a constraint.
#pragma once

#include <span>
#include <vector>

#include "core/engine_config.h"
#include "scheduler/sequence.h"
#include "speculative/speculator.h"

namespace spate {

class Drafting {
 public:
  explicit Drafting(const EngineConfig& config) : limits_(config.limits), speculator_(config.speculative) {}

  // Fills Sequence::drafts of the running sequences for the next step.
  void propose(std::span<Sequence* const> running);
  Speculator& speculator() { return speculator_; }

 private:
  void keep_allowed_drafts(Sequence& seq);

  const StepLimits limits_;
  Speculator speculator_;
  std::vector<Speculator::Row> rows_;
  std::vector<Sequence*> seqs_;  // of rows_
};

}  // namespace spate
