// ModelProposer: a model of the same vocabulary says what comes next, draft by draft; or the layer for multi-token
// prediction of the model itself, whose place p holds what the layer makes of the model's hidden state at p and token p + 1.
// Of several layers (core/layered_executor.h) each gives a draft, and the last one all further ones.
//
// It runs on an executor of StepPlans of its own (rank/drafter.h), whose rows are the target's and whose cache has a
// place for each of the target's blocks, and some blocks behind them for drafts (scratch_blocks_per_row). It draws with
// the row's sampling parameters, the row's seed and the same noise as the target, so that both take the same token as
// often as their distributions allow.
#pragma once

#include <functional>
#include <memory>

#include "core/step_executor.h"
#include "core/step_limits.h"
#include "speculative/proposer.h"

namespace spate {

struct ModelProposerOptions {
  SpeculativeConfig config;
  StepLimits limits;              // the target's
  int num_kv_blocks = 0;          // likewise
  std::function<double()> clock;  // seconds
};

// `executor` outlives the proposer.
std::unique_ptr<Proposer> make_model_proposer(const ModelProposerOptions& options, StepExecutor& executor);

}  // namespace spate
