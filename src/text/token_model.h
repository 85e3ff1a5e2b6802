// The middle of a tokenizer: one piece of text to token ids. Four kinds, as tokenizer.json names them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace spate {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of `piece`, which is never empty. Thread-safe. A character that the vocabulary cannot express
  // becomes the unknown token, or nothing where the model has none.
  virtual void tokenize(std::string_view piece, std::vector<int32_t>& ids) const = 0;
};

}  // namespace spate
