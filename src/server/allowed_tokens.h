// allowed_token_ids: an answer of some tokens of the vocabulary only, as a TokenConstraint.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/token_constraint.h"

namespace spate {

// The answer may end where one of eos_token_ids is among `token_ids`; else it goes on to max_tokens or a stop string.
std::shared_ptr<TokenConstraint> allow_tokens(std::span<const int32_t> token_ids,
                                              std::span<const int32_t> eos_token_ids, int vocab_size);

}  // namespace spate
