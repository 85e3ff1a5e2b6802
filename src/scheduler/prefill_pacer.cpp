#include "scheduler/prefill_pacer.h"

#include <algorithm>
#include <cmath>

namespace spate {
namespace {

constexpr double kWeight = 0.25;          // of the newest step in the running averages
constexpr int kFewestTokensThatTell = 8;  // a step of fewer prompt tokens says little about their cost

void average_in(double& average, double value) { average = average > 0 ? average + kWeight * (value - average) : value; }

}  // namespace

void PrefillPacer::record(int num_decode_tokens, int num_prefill_tokens, double seconds) {
  if (max_stall_seconds_ <= 0 || seconds <= 0) return;
  if (num_prefill_tokens == 0) {
    average_in(decode_seconds_, seconds);
  } else if (num_prefill_tokens >= kFewestTokensThatTell) {
    const double decoding = num_decode_tokens > 0 ? std::min(decode_seconds_, seconds / 2) : 0;
    average_in(seconds_per_prefill_token_, (seconds - decoding) / num_prefill_tokens);
  }
}

int PrefillPacer::max_prefill_tokens(size_t num_decoding, int num_decode_tokens, size_t num_waiting) const {
  if (max_stall_seconds_ <= 0 || seconds_per_prefill_token_ <= 0) return max_tokens_;
  const double factor = std::clamp(
      static_cast<double>(num_waiting) / static_cast<double>(std::max<size_t>(num_decoding, 1)), 1.0, kMaxFactor);
  // Where decoding alone comes near the stall, prompts get as much time as decoding: else they would hardly move, and the sequences
  // they wait to join would run ever fewer at once.
  const double seconds = std::max(max_stall_seconds_ * factor - decode_seconds_, decode_seconds_);
  const double share = std::min<double>(seconds / seconds_per_prefill_token_, max_tokens_);
  const int tokens = std::clamp(static_cast<int>(std::lround(share)), std::min(kMinTokens, max_tokens_), max_tokens_);
  const int all_tokens = num_decode_tokens + tokens;
  if (tokens == max_tokens_ || all_tokens < kFewestTiles * kTileTokens) return tokens;
  return std::max(tokens - all_tokens % kTileTokens, kMinTokens);
}

}  // namespace spate
