// Pooling: how the hidden states of a prompt become one vector, and what a model's files say of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace spate {

// Of the hidden states after the final norm.
enum class Pooling : uint8_t {
  kNone,  // they do not: tokens are generated
  kLast,  // that of the last token
  kMean,  // their mean
  kCls,   // that of the first token
};
std::string_view pooling_name(Pooling pooling);  // "none", "last", "mean", "cls"
// The same names, LAST and its like too.
Result<Pooling> parse_pooling(std::string_view name);

// What makes an embedding of a text.
struct PoolingConfig {
  Pooling pooling = Pooling::kNone;  // kNone: nobody said
  bool normalize = true;             // to length 1
  std::string source;                // who said it: a file, or a flag
  std::string problem;               // kNone: why what the model's files ask for is not built; or empty
};

}  // namespace spate
