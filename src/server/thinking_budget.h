// A limit on the tokens of an answer's reasoning: when they are spent, the marker that ends it, or a text that ends
// with it, is the only text that may follow. A TokenConstraint, so that it works beside a grammar, drafts and whatever
// else runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/token_constraint.h"
#include "text/tokenizer.h"

namespace spate {

struct ThinkingBudget {
  int max_tokens = 0;       // between the markers; an end marker of several tokens may be finished beyond
  std::string begin, end;   // the markers
  std::string forced_end;   // ends with `end`; empty: `end`
  bool has_begun = false;   // the prompt ends with `begin`
};

// `inner` (null: none) is the request's own constraint; it sees every token. An answer that does not begin with `begin`
// has no reasoning and no limit. The tokenizer outlives the result.
std::shared_ptr<TokenConstraint> limit_thinking(ThinkingBudget budget, const Tokenizer& tokenizer, int vocab_size,
                                                std::shared_ptr<TokenConstraint> inner);

}  // namespace spate
