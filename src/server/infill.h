// Prompts that ask a model for what stands between two texts, with the tokens that models of code have for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/llama_request.h"
#include "text/tokenizer.h"

namespace spate {

struct InfillTokens {
  int32_t prefix = 0, suffix = 0, middle = 0;
  std::optional<int32_t> repo, file;  // before the name of the project, and of each of its files
};

// Nothing: the model was not made for it.
std::optional<InfillTokens> find_infill_tokens(const Tokenizer& tokenizer);

// At most max_tokens, if prefix, suffix and what is begun leave that much: of the extra text the end stays.
std::vector<int32_t> infill_prompt(const Tokenizer& tokenizer, const InfillTokens& tokens, const InfillText& text,
                                   size_t max_tokens);

}  // namespace spate
