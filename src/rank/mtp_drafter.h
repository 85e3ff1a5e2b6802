// The model's own layers for multi-token prediction draft for it (DeepSeek-V3, GLM-4.5, ERNIE 4.5): what is known of a
// position is the model's hidden state there.
#pragma once

#include <memory>

#include "rank/hidden_state_drafter.h"

namespace spate {

// A layer a draft, as far as there are: one behind the other, the last one drafts on.
int num_mtp_layers_for(const ModelConfig& config, int num_drafts);

HiddenStateDrafter::Memory mtp_drafter_memory(const Device& device, const ModelConfig& config, const ModelMemory& model,
                                              const ModelOptions& options);

// `target` is made with ModelOptions::num_mtp_layers and outlives the drafter's steps; its weights may be loaded
// later. `communicators`: of the same groups.
Result<std::unique_ptr<Drafter>> make_mtp_drafter(Rank& target, Communicators communicators,
                                                  const ModelOptions& options);

}  // namespace spate
