// The model's own layer for multi-token prediction drafts for it (DeepSeek-V3, GLM-4.5, ERNIE 4.5): what is known of a
// position is the model's hidden state there.
#pragma once

#include <memory>

#include "rank/hidden_state_drafter.h"

namespace spate {

HiddenStateDrafter::Memory mtp_drafter_memory(const Device& device, const ModelConfig& config, const ModelMemory& model,
                                              const ModelOptions& options);

// `target` is made with ModelOptions::num_mtp_layers = 1 and outlives the drafter's steps; its weights may be loaded
// later. `communicators`: of the same groups.
Result<std::unique_ptr<Drafter>> make_mtp_drafter(Rank& target, Communicators communicators,
                                                  const ModelOptions& options);

}  // namespace spate
