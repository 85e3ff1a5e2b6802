#include "core/pooling.h"

#include <algorithm>
#include <cctype>

namespace spate {

std::string_view pooling_name(Pooling pooling) {
  switch (pooling) {
    case Pooling::kNone:
      return "none";
    case Pooling::kLast:
      return "last";
    case Pooling::kMean:
      return "mean";
    case Pooling::kCls:
      return "cls";
  }
  return "unknown";
}

Result<Pooling> parse_pooling(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Pooling pooling : {Pooling::kNone, Pooling::kLast, Pooling::kMean, Pooling::kCls}) {
    if (lower == pooling_name(pooling)) return pooling;
  }
  return invalid_argument("pooling must be last, mean or cls, got '{}'", name);
}

}  // namespace spate
