// An EAGLE-3 head drafts for a model: what is known of a position are the inputs of three of the model's layers.
#pragma once

#include <memory>

#include "model/eagle_head.h"
#include "rank/hidden_state_drafter.h"

namespace spate {

// Of one rank; `head`: EagleHead::memory().
HiddenStateDrafter::Memory eagle_drafter_memory(const Device& device, const EagleConfig& config,
                                                const ModelMemory& head, const ModelOptions& options);

// `target` outlives the drafter's steps; its weights may be loaded later. `options` are the head's: its source is read,
// or with none random weights by dummy_seed. `communicators`: of the target's groups.
Result<std::unique_ptr<Drafter>> make_eagle_drafter(Rank& target, const EagleConfig& config,
                                                    Communicators communicators, const ModelOptions& options,
                                                    uint64_t dummy_seed);

}  // namespace spate
