#include "rank/host_logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace spate {

TokenLogprobs logprobs_of_logits(std::span<const float> logits, int32_t target_id, int num_top) {
  TokenLogprobs entry{.token_id = target_id};
  const auto is_broken = [](float logit) { return std::isnan(logit) || logit == INFINITY; };
  if (target_id < 0 || std::ranges::any_of(logits, is_broken)) return entry;
  const float highest = *std::ranges::max_element(logits);
  if (!std::isfinite(highest)) return entry;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - highest));
  const double shift = static_cast<double>(highest) + std::log(sum);
  const auto logprob_of = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - shift);
  };
  const float target_logit = logits[static_cast<size_t>(target_id)];
  entry.logprob = logprob_of(target_id);
  entry.rank =
      1 + static_cast<int32_t>(std::ranges::count_if(logits, [&](float logit) { return logit > target_logit; }));
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t count = std::min(ids.size(), static_cast<size_t>(num_top));
  if (num_top != kLogprobsById) {
    std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count), [&](int32_t a, int32_t b) {
      const float left = logits[static_cast<size_t>(a)], right = logits[static_cast<size_t>(b)];
      return left != right ? left > right : a < b;
    });
  }
  for (size_t i = 0; i < count; ++i) entry.top.push_back({ids[i], logprob_of(ids[i])});
  return entry;
}

}  // namespace spate
