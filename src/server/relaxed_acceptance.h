// Relaxed acceptance of a model: where its reasoning begins and ends, in tokens.
#pragma once

#include <string_view>

#include "core/request.h"
#include "core/speculative_config.h"
#include "server/output_format.h"
#include "text/tokenizer.h"

namespace spate {

// What requests of the model get, has_begun aside; top_k 0 where the configuration has it off. An error where it is on
// and the reasoning of the model is not between two tokens: the reason.
Result<RelaxedAcceptance> relaxed_acceptance(const SpeculativeConfig& config, const ReasoningFormat* reasoning,
                                             const Tokenizer* tokenizer);

// What a chat request gets whose rendered prompt is `text`: nothing where its reasoning has ended.
RelaxedAcceptance relaxed_after(RelaxedAcceptance of_model, const ReasoningFormat& reasoning, std::string_view text);

// White space behind it aside.
bool ends_with_tag(std::string_view text, std::string_view tag);

}  // namespace spate
