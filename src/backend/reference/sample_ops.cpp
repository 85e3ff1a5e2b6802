// Token choice and log-probabilities, by a full sort.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/reference_ops.h"
#include "base/rng.h"

namespace spate::reference {
namespace {

// Penalties are float arithmetic in the order that ops.h gives, without contraction: greedy ties depend on the bits.
void adjust_logits(std::vector<float>& logits, const RowState& state, const RowSampling& sampling,
                   const SamplePlace& place) {
  const int64_t row = place.row;
  const int32_t num_tokens = place.num_tokens;
  const uint32_t* const mask = place.mask;
  const auto vocab_size = static_cast<int32_t>(logits.size());
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  const int32_t* bias_ids = state.bias_ids.data<int32_t>() + row * state.bias_ids.stride(0);
  const float* bias_values = state.bias_values.data<float>() + row * state.bias_values.stride(0);
  for (int32_t i = 0; i < sampling.num_bias; ++i) {
    if (in_vocab(bias_ids[i])) logits[static_cast<size_t>(bias_ids[i])] += bias_values[i];
  }
  for (int32_t id = 0; id < vocab_size && mask != nullptr; ++id) {
    if (!mask_allows(mask, id)) logits[static_cast<size_t>(id)] = -INFINITY;
  }
  const int32_t* stop_ids = state.stop_ids.data<int32_t>() + row * state.stop_ids.stride(0);
  for (int32_t i = 0; i < sampling.num_stop_ids && num_tokens < sampling.min_tokens_until; ++i) {
    if (in_vocab(stop_ids[i])) logits[static_cast<size_t>(stop_ids[i])] = -INFINITY;
  }
  const int32_t* token_ids = state.token_ids.data<int32_t>() + row * state.token_ids.stride(0);
  std::vector<int32_t> seen(logits.size()), output_count(logits.size());
  for (int32_t i = 0; i < num_tokens; ++i) {
    if (!in_vocab(token_ids[i])) continue;
    seen[static_cast<size_t>(token_ids[i])] = 1;
    if (i >= sampling.prompt_len) ++output_count[static_cast<size_t>(token_ids[i])];
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    float& logit = logits[id];
    if (seen[id] && sampling.repetition_penalty != 1) {
      logit = logit > 0 ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
    }
    if (output_count[id] > 0) {
      logit -= sampling.frequency_penalty * static_cast<float>(output_count[id]);
      logit -= sampling.presence_penalty;
    }
  }
}

// No NaN, no +inf, and at least one logit that is finite.
bool is_usable(const float* logits, int64_t vocab_size) {
  const auto may_stand = [](float logit) { return logit <= std::numeric_limits<float>::max(); };
  const auto is_finite = [](float logit) { return std::isfinite(logit); };
  return std::all_of(logits, logits + vocab_size, may_stand) && std::any_of(logits, logits + vocab_size, is_finite);
}

// Ids by descending logit, equal ones by ascending id.
std::vector<int32_t> descending_ids(const float* logits, int64_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab_size));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

// The tokens that min_p, top_k and top_p leave, in descending order.
std::vector<int32_t> kept_ids(const std::vector<float>& logits, const RowSampling& sampling) {
  std::vector<int32_t> ids = descending_ids(logits.data(), static_cast<int64_t>(logits.size()));
  const double max_logit = logits[static_cast<size_t>(ids[0])];
  const auto relative_prob = [&](int32_t id) { return std::exp(logits[static_cast<size_t>(id)] - max_logit); };
  size_t num_kept = 0;
  while (num_kept < ids.size() && relative_prob(ids[num_kept]) >= sampling.min_p) ++num_kept;
  if (sampling.sampling_top_k > 0) num_kept = std::min(num_kept, static_cast<size_t>(sampling.sampling_top_k));
  num_kept = std::max<size_t>(num_kept, 1);
  ids.resize(num_kept);
  if (sampling.top_p >= 1) return ids;
  double sum = 0, prefix = 0;
  for (const int32_t id : ids) sum += relative_prob(id);
  num_kept = 0;
  while (num_kept < ids.size()) {
    prefix += relative_prob(ids[num_kept++]);
    if (prefix >= sampling.top_p * sum) break;
  }
  ids.resize(num_kept);
  return ids;
}

double gumbel(const RowSampling& sampling, int32_t num_tokens, int32_t id) {
  const auto bits = philox4x32(sampling.seed, static_cast<uint64_t>(num_tokens), static_cast<uint64_t>(id / 4));
  return -std::log(-std::log(static_cast<double>(uniform_open(bits[static_cast<size_t>(id % 4)]))));
}

bool contains(std::span<const int32_t> ids, int32_t id) { return std::ranges::find(ids, id) != ids.end(); }

// Whether the draft takes the chosen token's place. `logits` are adjusted and scaled, `kept` what the cuts leave.
bool relaxes(const std::vector<float>& logits, const RowState& state, const RowSampling& sampling,
             const SamplePlace& place, std::span<const int32_t> kept, int32_t chosen) {
  const int32_t draft = place.draft;
  if (draft < 0 || static_cast<size_t>(draft) >= logits.size() || draft == chosen) return false;
  const int32_t* stop_ids = state.stop_ids.data<int32_t>() + place.row * state.stop_ids.stride(0);
  const bool ends = chosen == sampling.relaxed_end_id ||
                    contains(std::span(stop_ids, static_cast<size_t>(sampling.num_stop_ids)), chosen);
  const float logit = logits[static_cast<size_t>(draft)];
  if (ends || logit == -INFINITY || !contains(kept, draft)) return false;
  const std::vector<int32_t> ids = descending_ids(logits.data(), static_cast<int64_t>(logits.size()));
  if (std::ranges::find(ids, draft) - ids.begin() >= sampling.relaxed_top_k) return false;
  const double max_logit = logits[static_cast<size_t>(ids[0])];
  double sum = 0;
  for (const float each : logits) sum += std::exp(each - max_logit);
  return (1 - std::exp(logit - max_logit)) / sum <= sampling.relaxed_delta;
}

struct Choice {
  int32_t token_id;
  bool is_relaxed = false;
};

Choice sample_row(const float* raw_logits, int64_t vocab_size, const RowState& state, const SamplePlace& place) {
  const int64_t row = place.row;
  RowSampling sampling;
  std::memcpy(&sampling, state.sampling.data<uint8_t>() + row * state.sampling.stride(0), sizeof sampling);
  if (!is_usable(raw_logits, vocab_size)) return {kNoToken};
  std::vector<float> logits(raw_logits, raw_logits + vocab_size);
  adjust_logits(logits, state, sampling, place);
  if (!is_usable(logits.data(), vocab_size)) return {kNoToken};
  const auto choice_of = [&](int32_t chosen, std::span<const int32_t> kept) -> Choice {
    if (relaxes(logits, state, sampling, place, kept, chosen)) return {place.draft, true};
    return {chosen};
  };
  if (sampling.temperature == 0) {
    const std::vector<int32_t> all = descending_ids(logits.data(), vocab_size);
    return choice_of(all.front(), all);
  }
  for (float& logit : logits) logit /= sampling.temperature;
  int32_t best_id = -1;
  double best_score = -INFINITY;
  const std::vector<int32_t> kept = kept_ids(logits, sampling);
  for (const int32_t id : kept) {
    const double score = logits[static_cast<size_t>(id)] + gumbel(sampling, place.num_tokens, id);
    if (best_id < 0 || score > best_score || (score == best_score && id < best_id)) {
      best_id = id;
      best_score = score;
    }
  }
  return choice_of(best_id, kept);
}

}  // namespace

void sample(Stream&, const SampleParams& p) {
  check_params(p);
  for (int64_t i = 0; i < p.logits.dim(0); ++i) {
    const SamplePlace place = sample_place(p, i);
    Choice choice{0};
    if (place.row >= 0) {
      choice = sample_row(p.logits.data<float>() + i * p.logits.stride(0), p.logits.dim(1), p.state, place);
    }
    p.next_token_ids.data<int32_t>()[i] = choice.token_id;
    if (p.is_relaxed.defined()) p.is_relaxed.data<int32_t>()[i] = choice.is_relaxed ? 1 : 0;
  }
}

void logprobs(Stream&, const LogprobsParams& p) {
  check_params(p);
  const int64_t vocab_size = p.logits.dim(1);
  for (int64_t i = 0; i < p.logits.dim(0); ++i) {
    const float* logits = p.logits.data<float>() + i * p.logits.stride(0);
    const int32_t target = p.target_ids.data<int32_t>()[i];
    CHECK(target >= kNoToken && target < vocab_size, "logprobs: target {} of {}", target, vocab_size);
    if (target == kNoToken || !is_usable(logits, vocab_size)) {
      p.target_logprob.data<float>()[i] = 0;
      p.target_rank.data<int32_t>()[i] = 0;
      for (int64_t k = 0; p.top_ids.defined() && k < p.top_ids.dim(1); ++k) {
        p.top_ids.data<int32_t>()[i * p.top_ids.stride(0) + k] = kNoToken;
        p.top_logprobs.data<float>()[i * p.top_logprobs.stride(0) + k] = 0;
      }
      continue;
    }
    const double max_logit = *std::max_element(logits, logits + vocab_size);
    double sum = 0;
    for (int64_t id = 0; id < vocab_size; ++id) sum += std::exp(logits[id] - max_logit);
    const double log_sum = max_logit + std::log(sum);
    p.target_logprob.data<float>()[i] = static_cast<float>(logits[target] - log_sum);
    p.target_rank.data<int32_t>()[i] =
        1 +
        static_cast<int32_t>(std::count_if(logits, logits + vocab_size, [&](float l) { return l > logits[target]; }));
    if (!p.top_ids.defined()) continue;
    const std::vector<int32_t> ids = descending_ids(logits, vocab_size);
    for (int64_t k = 0; k < p.top_ids.dim(1); ++k) {
      const int32_t id = ids[static_cast<size_t>(k)];
      p.top_ids.data<int32_t>()[i * p.top_ids.stride(0) + k] = id;
      p.top_logprobs.data<float>()[i * p.top_logprobs.stride(0) + k] = static_cast<float>(logits[id] - log_sum);
    }
  }
}

}  // namespace spate::reference
