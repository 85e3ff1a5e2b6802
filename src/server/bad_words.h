// bad_words: token sequences that never come, as a TokenConstraint around another one or around free text.
//
// The meaning is vLLM's: a word's sequence is its tokens, with and without a space before it; the last token of one is
// forbidden where the answer so far ends with the others. Other tokens of the same text are not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/token_constraint.h"
#include "text/tokenizer.h"

namespace spate {

// The sequences of words, none of which is empty or white space only.
std::vector<std::vector<int32_t>> bad_sequences(const std::vector<std::string>& words, const Tokenizer& tokenizer);

// Sequences of at least one id below vocab_size. `inner` null: any text. Where the sequences forbid all that `inner`
// allows, the answer ends with an error for the caller. eos_token_ids empty: the answer goes on behind them.
std::shared_ptr<TokenConstraint> forbid_sequences(std::vector<std::vector<int32_t>> sequences,
                                                  const std::vector<int32_t>& eos_token_ids, int vocab_size,
                                                  std::shared_ptr<TokenConstraint> inner);

}  // namespace spate
