// Token choice and log-probabilities without sorting the vocabulary.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"
#include "base/rng.h"

namespace spate::cpu {
namespace {

constexpr int64_t kChunk = 64;           // logits whose maximum bounds the k-th largest
constexpr int64_t kDrawChunk = 1024;     // ids drawn together
constexpr double kMaxGumbel = 16.7;      // -log(-log(1 - 2^-24)) = 16.636
constexpr int64_t kBuckets = 2048;       // of max - logit, for top_p over the whole vocabulary
constexpr float kBucketsPerUnit = 64;    // so they span e^-32 of probability

// A thread's arrays, for one row at a time.
struct RowScratch {
  float* logits;       // [vocab_size] adjusted, then scaled
  int32_t* ids;        // [vocab_size]
  float* maxima;       // [vocab_size / kChunk]
  uint32_t* words;     // [kDrawChunk]
  double* bucket_mass;  // [kBuckets]
  int32_t* counts;     // [vocab_size], zero between uses
};

RowScratch cut_scratch(char* data, int64_t vocab_size) {
  const auto take = [&data](int64_t bytes) {
    char* part = data;
    data += round_up(bytes, 64);
    return part;
  };
  RowScratch s;
  s.logits = reinterpret_cast<float*>(take(vocab_size * 4));
  s.ids = reinterpret_cast<int32_t*>(take(vocab_size * 4));
  s.maxima = reinterpret_cast<float*>(take(ceil_div(vocab_size, kChunk) * 4));
  s.words = reinterpret_cast<uint32_t*>(take(kDrawChunk * 4));
  s.bucket_mass = reinterpret_cast<double*>(take(kBuckets * 8));
  s.counts = reinterpret_cast<int32_t*>(take(vocab_size * 4));
  return s;
}

// Everything about the row that is sampled.
struct Row {
  const KernelTable& kernels;
  const RowState& state;
  int64_t row;
  RowSampling sampling;
  int32_t num_tokens;    // drafts before this place included
  const uint32_t* mask;  // of the tokens that are allowed; nullptr: all
  int32_t draft;         // that relaxed acceptance may keep; -1: none
  int64_t vocab_size;
  RowScratch scratch;

  bool in_vocab(int64_t id) const { return id >= 0 && id < vocab_size; }
};

bool has_penalty(const RowSampling& s) {
  return s.repetition_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0;
}

bool masks_stop_ids(const Row& r) { return r.num_tokens < r.sampling.min_tokens_until && r.sampling.num_stop_ids > 0; }

// Float arithmetic in the order of ops.h, as the reference does it. `counts` holds 1 + (occurrences in the output) of seen tokens.
void apply_penalties(const Row& r, float* logits) {
  const int32_t* token_ids = r.state.token_ids.data<int32_t>() + r.row * r.state.token_ids.stride(0);
  int32_t* counts = r.scratch.counts;
  std::memset(counts, 0, static_cast<size_t>(r.vocab_size) * 4);
  for (int32_t i = 0; i < r.num_tokens; ++i) {
    if (!r.in_vocab(token_ids[i])) continue;
    int32_t& count = counts[token_ids[i]];
    if (count == 0) count = 1;
    if (i >= r.sampling.prompt_len) ++count;
  }
  for (int32_t i = 0; i < r.num_tokens; ++i) {
    const int32_t id = token_ids[i];
    if (!r.in_vocab(id) || counts[id] == 0) continue;
    float& logit = logits[id];
    if (r.sampling.repetition_penalty != 1) {
      logit = logit > 0 ? logit / r.sampling.repetition_penalty : logit * r.sampling.repetition_penalty;
    }
    if (counts[id] > 1) {
      logit -= r.sampling.frequency_penalty * static_cast<float>(counts[id] - 1);
      logit -= r.sampling.presence_penalty;
    }
    counts[id] = 0;
  }
}

// The logits with bias, masks and penalties: the given ones when nothing applies, else a copy.
const float* adjusted_logits(const Row& r, const float* logits) {
  if (r.sampling.num_bias == 0 && r.mask == nullptr && !masks_stop_ids(r) && !has_penalty(r.sampling)) return logits;
  float* out = r.scratch.logits;
  std::memcpy(out, logits, static_cast<size_t>(r.vocab_size) * 4);
  const int32_t* bias_ids = r.state.bias_ids.data<int32_t>() + r.row * r.state.bias_ids.stride(0);
  const float* bias_values = r.state.bias_values.data<float>() + r.row * r.state.bias_values.stride(0);
  for (int32_t i = 0; i < r.sampling.num_bias; ++i) {
    if (r.in_vocab(bias_ids[i])) out[bias_ids[i]] += bias_values[i];
  }
  for (int32_t id = 0; id < r.vocab_size && r.mask != nullptr; ++id) {
    if (!mask_allows(r.mask, id)) out[id] = -INFINITY;
  }
  const int32_t* stop_ids = r.state.stop_ids.data<int32_t>() + r.row * r.state.stop_ids.stride(0);
  for (int32_t i = 0; i < r.sampling.num_stop_ids && masks_stop_ids(r); ++i) {
    if (r.in_vocab(stop_ids[i])) out[stop_ids[i]] = -INFINITY;
  }
  if (has_penalty(r.sampling)) apply_penalties(r, out);
  return out;
}

// A value that at least `k` logits reach, close to the k-th largest: the k-th largest maximum of chunks when there are so many
// chunks (k chunks then hold one such logit each), else the k-th largest itself.
float bound_of_top(const KernelTable& kernels, const float* logits, int64_t n, int64_t k, float* maxima, float* copy) {
  const int64_t num_chunks = ceil_div(n, kChunk);
  if (k <= num_chunks) {
    kernels.chunk_maxima(logits, n, kChunk, maxima);
    std::nth_element(maxima, maxima + k - 1, maxima + num_chunks, std::greater<>());
    return maxima[k - 1];
  }
  std::memcpy(copy, logits, static_cast<size_t>(n) * 4);
  std::nth_element(copy, copy + k - 1, copy + n, std::greater<>());
  return copy[k - 1];
}

// The k largest, descending, equal ones by ascending id, in ids[0, result). The result is less than k only where logits
// hold a NaN, which callers exclude. `counts` is room for a copy.
int64_t find_top(const KernelTable& kernels, const float* logits, int64_t n, int64_t k, const RowScratch& s) {
  const float bound = bound_of_top(kernels, logits, n, k, s.maxima, reinterpret_cast<float*>(s.counts));
  const int64_t found = kernels.collect_at_least(logits, n, bound, s.ids, n);
  const int64_t count = std::min(k, found);
  std::partial_sort(s.ids, s.ids + count, s.ids + found, [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  return count;
}

double relative_prob(float logit, float max_logit) { return std::exp(static_cast<double>(logit) - max_logit); }

// ids[0, count) in descending order: how many of them top_p keeps.
int64_t top_p_prefix(const float* logits, const int32_t* ids, int64_t count, float max_logit, float top_p) {
  double sum = 0, prefix = 0;
  for (int64_t i = 0; i < count; ++i) sum += relative_prob(logits[ids[i]], max_logit);
  for (int64_t i = 0; i < count; ++i) {
    prefix += relative_prob(logits[ids[i]], max_logit);
    if (prefix >= top_p * sum) return i + 1;
  }
  return count;
}

// top_p over all tokens that min_p leaves (logits >= bound), without sorting them: probability mass by bucket of max - logit tells the
// bucket where the sum crosses top_p; only that bucket is sorted. Leaves the kept ids, in any order, in ids[0, result).
int64_t top_p_of_all(const Row& r, const float* logits, float max_logit, float bound) {
  const RowScratch& s = r.scratch;
  const auto bucket_of = [&](float logit) {
    return std::min<int64_t>(kBuckets - 1, static_cast<int64_t>((max_logit - logit) * kBucketsPerUnit));
  };
  const float floor = std::max(bound, max_logit - 60.0f);  // what lies lower has no mass at all, e^-60
  const int64_t count = r.kernels.collect_at_least(logits, r.vocab_size, floor, s.ids, r.vocab_size);
  std::fill_n(s.bucket_mass, kBuckets, 0.0);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double prob = relative_prob(logits[s.ids[i]], max_logit);
    s.bucket_mass[bucket_of(logits[s.ids[i]])] += prob;
    sum += prob;
  }
  const double wanted = static_cast<double>(r.sampling.top_p) * sum;
  double above = 0;
  int64_t crossing = 0;
  while (crossing < kBuckets - 1 && above + s.bucket_mass[crossing] < wanted) above += s.bucket_mass[crossing++];
  int32_t* end = std::partition(s.ids, s.ids + count, [&](int32_t id) { return bucket_of(logits[id]) < crossing; });
  int32_t* last = std::partition(end, s.ids + count, [&](int32_t id) { return bucket_of(logits[id]) == crossing; });
  std::sort(end, last, [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
  while (end < last) {
    above += relative_prob(logits[*end++], max_logit);
    if (above >= wanted) break;
  }
  return end - s.ids;
}

struct Best {
  double score = -INFINITY;
  int32_t id = -1;
  void offer(double candidate, int32_t candidate_id) {
    if (id >= 0 && (candidate < score || (candidate == score && candidate_id > id))) return;
    score = candidate;
    id = candidate_id;
  }
};

double gumbel_of(uint32_t word) { return -std::log(-std::log(static_cast<double>(uniform_open(word)))); }

double gumbel(const Row& r, int32_t id) {
  const auto words = philox4x32(r.sampling.seed, static_cast<uint64_t>(r.num_tokens), static_cast<uint64_t>(id / 4));
  return gumbel_of(words[static_cast<size_t>(id % 4)]);
}

int32_t draw_from(const Row& r, const float* logits, int64_t count) {
  Best best;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = r.scratch.ids[i];
    if (logits[id] + kMaxGumbel < best.score) continue;
    best.offer(logits[id] + gumbel(r, id), id);
  }
  return best.id;
}

// Draws from all tokens with logits >= bound. A chunk that cannot win even with the largest gumbel is skipped; inside a chunk only ids
// whose random word is large enough to beat the best so far with the chunk's largest logit are looked at.
int32_t draw_from_all(const Row& r, const float* logits, float max_logit, float bound) {
  Best best;
  const bool bounded = r.sampling.min_p > 0;
  for (int64_t first = 0; first < r.vocab_size; first += kDrawChunk) {
    const int64_t count = std::min(kDrawChunk, r.vocab_size - first);
    const float chunk_max = r.kernels.max_logit(logits + first, count).value;
    if (chunk_max < bound || chunk_max == -INFINITY || chunk_max + kMaxGumbel < best.score) continue;
    r.kernels.philox_words(r.sampling.seed, static_cast<uint64_t>(r.num_tokens), static_cast<uint64_t>(first / 4),
                           ceil_div(count, 4), r.scratch.words);
    const double needed = best.id < 0 ? 0 : std::exp(-std::exp(-(best.score - chunk_max)));
    const auto min_word = static_cast<uint32_t>(std::max(0.0, std::floor(needed * 0x1p23) - 2)) << 9;
    for (int64_t i = 0; i < count; ++i) {
      if (r.scratch.words[i] < min_word) continue;
      const float logit = logits[first + i];
      if (logit + kMaxGumbel < best.score) continue;
      if (bounded && relative_prob(logit, max_logit) < r.sampling.min_p) continue;
      best.offer(logit + gumbel_of(r.scratch.words[i]), static_cast<int32_t>(first + i));
    }
  }
  return std::max(best.id, 0);
}

// Whether the draft takes the place of `chosen`, a token that stands before the draft or was drawn. `logits` are
// adjusted and scaled; the cuts have kept the draft.
bool relaxes(const Row& r, const float* logits, float max_logit, int32_t chosen) {
  if (!r.in_vocab(r.draft) || r.draft == chosen || chosen == r.sampling.relaxed_end_id) return false;
  const int32_t* stop_ids = r.state.stop_ids.data<int32_t>() + r.row * r.state.stop_ids.stride(0);
  const int32_t* stop_ids_end = stop_ids + r.sampling.num_stop_ids;
  if (std::find(stop_ids, stop_ids_end, chosen) != stop_ids_end) return false;
  const float logit = logits[r.draft];
  if (logit == -INFINITY) return false;
  int64_t num_before = r.kernels.count_greater(logits, r.vocab_size, logit);
  for (int32_t id = 0; id < r.draft && num_before < r.sampling.relaxed_top_k; ++id) num_before += logits[id] == logit;
  if (num_before >= r.sampling.relaxed_top_k) return false;
  const double sum = r.kernels.sum_exp(logits, r.vocab_size, max_logit, 1.0f);
  return (1 - relative_prob(logit, max_logit)) / sum <= r.sampling.relaxed_delta;
}

struct Choice {
  int32_t token_id;
  bool is_relaxed = false;
};

Choice sample_row(const Row& r, const float* raw_logits) {
  if (r.kernels.has_nan_or_inf(raw_logits, r.vocab_size)) return {kNoToken};
  const float* adjusted = adjusted_logits(r, raw_logits);
  const RowSampling& sampling = r.sampling;
  const MaxAndId first = r.kernels.max_logit(adjusted, r.vocab_size);
  if (first.value == -INFINITY) return {kNoToken};
  const auto choice_of = [&r](int32_t chosen, const float* logits, float max_logit, auto keeps) -> Choice {
    if (r.draft >= 0 && keeps() && relaxes(r, logits, max_logit, chosen)) return {r.draft, true};
    return {chosen};
  };
  if (sampling.temperature == 0) return choice_of(first.id, adjusted, first.value, [] { return true; });

  float* logits = r.scratch.logits;
  r.kernels.divide(adjusted, r.vocab_size, sampling.temperature, logits);
  const float max_logit = first.value / sampling.temperature;
  // Slightly low: the exact test follows.
  const float bound = sampling.min_p > 0 ? max_logit + std::log(sampling.min_p) - 1e-3f : -INFINITY;
  const auto is_listed = [&r](int64_t count) {
    return std::find(r.scratch.ids, r.scratch.ids + count, r.draft) != r.scratch.ids + count;
  };
  if (sampling.sampling_top_k > 0 && sampling.sampling_top_k < r.vocab_size) {
    int64_t count = find_top(r.kernels, logits, r.vocab_size, sampling.sampling_top_k, r.scratch);
    while (count > 1 && relative_prob(logits[r.scratch.ids[count - 1]], max_logit) < sampling.min_p) --count;
    if (sampling.top_p < 1) count = top_p_prefix(logits, r.scratch.ids, count, max_logit, sampling.top_p);
    return choice_of(draw_from(r, logits, count), logits, max_logit, [&] { return is_listed(count); });
  }
  if (sampling.top_p >= 1) {
    const auto reaches_min_p = [&] {
      return r.in_vocab(r.draft) && relative_prob(logits[r.draft], max_logit) >= sampling.min_p;
    };
    return choice_of(draw_from_all(r, logits, max_logit, bound), logits, max_logit, reaches_min_p);
  }
  const int64_t count = top_p_of_all(r, logits, max_logit, bound);
  return choice_of(draw_from(r, logits, count), logits, max_logit, [&] { return is_listed(count); });
}

void write_no_logprobs(const LogprobsParams& p, int64_t i) {
  p.target_logprob.data<float>()[i] = 0;
  p.target_rank.data<int32_t>()[i] = 0;
  for (int64_t k = 0; p.top_ids.defined() && k < p.top_ids.dim(1); ++k) {
    p.top_ids.data<int32_t>()[i * p.top_ids.stride(0) + k] = kNoToken;
    p.top_logprobs.data<float>()[i * p.top_logprobs.stride(0) + k] = 0;
  }
}

}  // namespace

int64_t row_scratch_bytes(int64_t vocab_size) {
  return vocab_size * 12 + ceil_div(vocab_size, kChunk) * 4 + kDrawChunk * 4 + kBuckets * 8 + 6 * 64;
}

void sample(Stream& stream, const SampleParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const int64_t vocab_size = p.logits.dim(1);
  context.reserve_thread_scratch(row_scratch_bytes(vocab_size));
  context.pool.parallel_for(p.logits.dim(0), [&](int thread_idx, int64_t i) {
    const SamplePlace place = sample_place(p, i);
    const auto write = [&](Choice choice) {
      p.next_token_ids.data<int32_t>()[i] = choice.token_id;
      if (p.is_relaxed.defined()) p.is_relaxed.data<int32_t>()[i] = choice.is_relaxed ? 1 : 0;
    };
    if (place.row < 0) return write({0});
    Row row{.kernels = context.kernels,
            .state = p.state,
            .row = place.row,
            .sampling = {},
            .num_tokens = place.num_tokens,
            .mask = place.mask,
            .draft = place.draft,
            .vocab_size = vocab_size,
            .scratch = cut_scratch(context.scratch_of(thread_idx), vocab_size)};
    std::memcpy(&row.sampling, p.state.sampling.data<uint8_t>() + place.row * p.state.sampling.stride(0),
                sizeof row.sampling);
    write(sample_row(row, p.logits.data<float>() + i * p.logits.stride(0)));
  });
}

void logprobs(Stream& stream, const LogprobsParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KernelTable& kernels = context.kernels;
  const int64_t vocab_size = p.logits.dim(1);
  context.reserve_thread_scratch(row_scratch_bytes(vocab_size));
  context.pool.parallel_for(p.logits.dim(0), [&](int thread_idx, int64_t i) {
    const float* logits = p.logits.data<float>() + i * p.logits.stride(0);
    const int32_t target = p.target_ids.data<int32_t>()[i];
    CHECK(target >= kNoToken && target < vocab_size, "logprobs: target {} of {}", target, vocab_size);
    const float max_logit = kernels.max_logit(logits, vocab_size).value;
    if (target == kNoToken || max_logit == -INFINITY || kernels.has_nan_or_inf(logits, vocab_size)) {
      return write_no_logprobs(p, i);
    }
    const double log_sum = max_logit + std::log(kernels.sum_exp(logits, vocab_size, max_logit, 1.0f));
    p.target_logprob.data<float>()[i] = static_cast<float>(logits[target] - log_sum);
    p.target_rank.data<int32_t>()[i] = 1 + static_cast<int32_t>(kernels.count_greater(logits, vocab_size, logits[target]));
    if (!p.top_ids.defined() || p.top_ids.dim(1) == 0) return;
    const RowScratch scratch = cut_scratch(context.scratch_of(thread_idx), vocab_size);
    find_top(kernels, logits, vocab_size, p.top_ids.dim(1), scratch);
    for (int64_t k = 0; k < p.top_ids.dim(1); ++k) {
      p.top_ids.data<int32_t>()[i * p.top_ids.stride(0) + k] = scratch.ids[k];
      p.top_logprobs.data<float>()[i * p.top_logprobs.stride(0) + k] =
          static_cast<float>(logits[scratch.ids[k]] - log_sum);
    }
  });
}

}  // namespace spate::cpu
