// sample: the same ids as the reference for every mix of parameters. logprobs: within fp32 rounding.
//
// Exact ids are a fair demand: two back-ends may compute a score some 1e-6 apart, so that about one in 10^5 draws could differ; the seed is
// fixed, and a back-end that rounds differently somewhere fails here at once and not by chance.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/conformance/state_rig.h"

namespace spate::conformance {
namespace {

// Logits with ties (quarters) and a few that stand out, as models give them.
HostTensor random_logits(Rng& rng, int64_t rows, int64_t vocab_size, bool ties) {
  HostTensor logits(DType::kF32, {rows, vocab_size});
  for (float& logit : logits.span<float>()) {
    logit = 3 * rng.gaussian() + (rng.below(50) == 0 ? 6.0f : 0.0f);
    if (ties) logit = std::round(logit * 4) / 4;
  }
  return logits;
}

// Spoils a part of the rows: a NaN of either sign, infinities, nothing finite at all; -inf beside finite ones is fine.
void spoil_rows(Rng& rng, HostTensor& logits) {
  const auto vocab_size = static_cast<size_t>(logits.view().dim(1));
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (size_t row = 0; row < static_cast<size_t>(logits.view().dim(0)); ++row) {
    const std::span<float> values = logits.span<float>().subspan(row * vocab_size, vocab_size);
    float& any = values[rng.below(vocab_size)];
    switch (row % 8) {
      case 1: any = kNan; break;
      case 2: any = -kNan; break;
      case 3: std::fill(values.begin(), values.end(), kNan); break;
      case 4: any = kInf; break;
      case 5: std::fill(values.begin(), values.end(), -kInf); break;
      case 6:
        if (vocab_size > 1) any = -kInf;
        break;
      case 7: std::fill(values.begin() + static_cast<ptrdiff_t>(vocab_size / 2), values.end(), kNan); break;
      default: break;
    }
  }
}

struct SampleCase {
  const char* name;
  RowSampling sampling;
  int mask_one_of = 0;  // a mask allows one of so many tokens; 0: no mask
  bool has_drafts() const { return sampling.relaxed_top_k > 0; }
};

std::vector<SampleCase> sample_cases() {
  std::vector<SampleCase> cases = {{"greedy", {}}};
  const auto add = [&](const char* name, auto change) {
    RowSampling sampling;
    sampling.temperature = 0.8f;
    change(sampling);
    cases.push_back({name, sampling});
  };
  using S = RowSampling&;
  add("temperature", [](S) {});
  add("hot", [](S s) { s.temperature = 3.0f; });
  add("cold", [](S s) { s.temperature = 0.05f; });
  add("top_k 1", [](S s) { s.sampling_top_k = 1; });
  add("top_k 5", [](S s) { s.sampling_top_k = 5; });
  add("top_k 50", [](S s) { s.sampling_top_k = 50; });
  add("top_k large", [](S s) { s.sampling_top_k = 5000; });
  add("top_p 0.9", [](S s) { s.top_p = 0.9f; });
  add("top_p 0.5 hot", [](S s) { s.top_p = 0.5f, s.temperature = 5.0f; });
  add("top_p tiny", [](S s) { s.top_p = 1e-6f; });
  add("min_p", [](S s) { s.min_p = 0.05f; });
  add("min_p 1", [](S s) { s.min_p = 1.0f; });
  add("top_k top_p min_p", [](S s) { s.sampling_top_k = 40, s.top_p = 0.8f, s.min_p = 0.01f; });
  add("top_p min_p", [](S s) { s.top_p = 0.95f, s.min_p = 0.002f, s.temperature = 2.0f; });
  add("repetition", [](S s) { s.repetition_penalty = 1.3f; });
  add("presence frequency greedy", [](S s) { s.presence_penalty = 1.5f, s.frequency_penalty = 0.7f, s.temperature = 0; });
  add("all penalties", [](S s) { s.repetition_penalty = 0.8f, s.presence_penalty = -0.5f, s.frequency_penalty = 0.3f, s.top_p = 0.9f; });
  add("bias", [](S s) { s.num_bias = 7; });
  add("bias greedy", [](S s) { s.num_bias = kMaxLogitBias, s.temperature = 0; });
  add("min_tokens greedy", [](S s) { s.num_stop_ids = 4, s.min_tokens_until = 1000, s.temperature = 0; });
  add("min_tokens reached", [](S s) { s.num_stop_ids = 4, s.min_tokens_until = 1, s.temperature = 0; });
  add("min_tokens", [](S s) { s.num_stop_ids = kMaxStopIds, s.min_tokens_until = 1000; });
  cases.push_back({.name = "mask greedy", .sampling = {}, .mask_one_of = 3});
  add("mask", [](S s) { s.num_bias = 3, s.num_stop_ids = 2, s.min_tokens_until = 1000; });
  cases.back().mask_one_of = 10;
  add("mask top_k top_p penalties", [](S s) { s.sampling_top_k = 20, s.top_p = 0.9f, s.repetition_penalty = 1.2f; });
  cases.back().mask_one_of = 2;
  add("mask of nothing", [](S) {});
  cases.back().mask_one_of = 1 << 30;
  const auto add_relaxed = [&](const char* name, auto change) {
    add(name, [&](S s) {
      s.relaxed_top_k = 5, s.relaxed_delta = 0.3f;
      change(s);
    });
  };
  add_relaxed("relaxed greedy", [](S s) { s.temperature = 0; });
  add_relaxed("relaxed greedy, delta 1", [](S s) { s.temperature = 0, s.relaxed_delta = 1; });
  add_relaxed("relaxed greedy, delta 0", [](S s) { s.temperature = 0, s.relaxed_delta = 0; });
  add_relaxed("relaxed greedy, any rank",
              [](S s) { s.temperature = 0, s.relaxed_top_k = 1 << 20, s.relaxed_delta = 0.1f; });
  add_relaxed("relaxed greedy, penalties",
              [](S s) { s.temperature = 0, s.frequency_penalty = 1, s.relaxed_delta = 1; });
  add_relaxed("relaxed greedy, stop ids", [](S s) { s.temperature = 0, s.num_stop_ids = 4, s.relaxed_delta = 1; });
  add_relaxed("relaxed min_tokens", [](S s) { s.num_stop_ids = 4, s.min_tokens_until = 1000, s.relaxed_delta = 1; });
  add_relaxed("relaxed temperature", [](S) {});
  add_relaxed("relaxed hot", [](S s) { s.temperature = 3.0f; });
  add_relaxed("relaxed top_k", [](S s) { s.sampling_top_k = 3, s.relaxed_delta = 1; });
  add_relaxed("relaxed top_p", [](S s) { s.top_p = 0.6f, s.relaxed_delta = 1; });
  add_relaxed("relaxed min_p", [](S s) { s.min_p = 0.4f, s.relaxed_delta = 1; });
  add_relaxed("relaxed top_k top_p min_p bias",
              [](S s) { s.sampling_top_k = 4, s.top_p = 0.8f, s.min_p = 0.1f, s.num_bias = 7; });
  add_relaxed("relaxed mask greedy", [](S s) { s.temperature = 0, s.relaxed_delta = 1; });
  cases.back().mask_one_of = 3;
  return cases;
}

template <typename T>
T* row_of(HostTensor& matrix, int64_t row) {
  return matrix.span<T>().data() + row * matrix.view().stride(0);
}

void add_mask(PlanParts& plan, Rng& rng, int64_t vocab_size, int one_of) {
  const size_t first = plan.masks.size();
  plan.masks.resize(first + static_cast<size_t>(plan.mask_words));
  for (size_t id = 0; id < static_cast<size_t>(vocab_size); ++id) {
    if (rng.below(static_cast<uint64_t>(one_of)) == 0) plan.masks[first + id / 32] |= 1u << (id % 32);
  }
}

enum class Logits { kPlain, kTies, kSpoiled };

void add_samples(Report& report, Sides sides, int64_t vocab_size, Logits kind) {
  const char* suffix = kind == Logits::kTies ? " with ties" : kind == Logits::kSpoiled ? " not finite" : "";
  Family family(report, fmt::format("sample vocabulary {}{}", vocab_size, suffix));
  if (!family.selected()) return;
  const int64_t num_rows = 12;
  for (const SampleCase& c : sample_cases()) {
    Rng rng(test_seed(), static_cast<uint64_t>(vocab_size) + std::strlen(c.name) * 1000);
    HostTensor logits = random_logits(rng, num_rows, vocab_size, kind == Logits::kTies);
    if (kind == Logits::kSpoiled) spoil_rows(rng, logits);
    const StateSizes sizes{.max_num_seqs = num_rows + 1, .max_model_len = 40, .max_blocks_per_seq = 1};
    HostState state = poisoned_state(sizes);
    HostTensor sample_state_rows(DType::kI32, {num_rows}), offsets(DType::kI32, {num_rows}),
        mask_ids(DType::kI32, {num_rows}), drafts(DType::kI32, {num_rows});
    PlanParts plan;  // for its masks
    plan.mask_words = mask_words_of(vocab_size);
    const auto token = [&] { return static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab_size))); };
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t row = num_rows - i;
      sample_state_rows.span<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(row);
      RowSampling sampling = c.sampling;
      sampling.seed = rng.next_u64();
      const auto num_tokens = static_cast<int32_t>(1 + rng.below(40));
      sampling.prompt_len = static_cast<int32_t>(rng.below(static_cast<uint64_t>(num_tokens) + 1));
      // The last ones are drafts.
      const auto offset = static_cast<int32_t>(rng.below(static_cast<uint64_t>(std::min(num_tokens, 4))));
      offsets.span<int32_t>()[static_cast<size_t>(i)] = offset;
      state.num_tokens.span<int32_t>()[static_cast<size_t>(row)] = num_tokens - offset;
      const bool masked = c.mask_one_of > 0 && i % 4 != 2;
      mask_ids.span<int32_t>()[static_cast<size_t>(i)] =
          masked ? static_cast<int32_t>(plan.masks.size()) / plan.mask_words : -1;
      if (masked) add_mask(plan, rng, vocab_size, c.mask_one_of);
      // Tokens repeat, and half of them are the most likely ones, so that penalties matter.
      const float* row_logits = logits.view().data<float>() + i * vocab_size;
      const auto likely = static_cast<int32_t>(std::max_element(row_logits, row_logits + vocab_size) - row_logits);
      for (int32_t t = 0; t < num_tokens; ++t) row_of<int32_t>(state.token_ids, row)[t] = rng.below(2) ? likely : token();
      for (int32_t b = 0; b < sampling.num_bias; ++b) {
        row_of<int32_t>(state.bias_ids, row)[b] = token();
        row_of<float>(state.bias_values, row)[b] = 20 * rng.gaussian();
      }
      for (int32_t b = 0; b < sampling.num_stop_ids; ++b) row_of<int32_t>(state.stop_ids, row)[b] = b == 0 ? likely : token();
      // A draft near the top, mostly.
      std::vector<int32_t> by_logit(static_cast<size_t>(vocab_size));
      std::iota(by_logit.begin(), by_logit.end(), 0);
      std::stable_sort(by_logit.begin(), by_logit.end(),
                       [&](int32_t a, int32_t b) { return row_logits[a] > row_logits[b]; });
      const size_t rank = rng.below(static_cast<uint64_t>(std::min<int64_t>(vocab_size, 8)));
      int32_t& draft = drafts.span<int32_t>()[static_cast<size_t>(i)];
      draft = i % 6 == 5 ? -1 : i % 4 == 3 ? token() : by_logit[rank];
      if (i % 5 == 4) sampling.relaxed_end_id = likely;
      // One bias an id: the sum of several depends on their order on a parallel machine.
      int32_t* ids = row_of<int32_t>(state.bias_ids, row);
      std::sort(ids, ids + sampling.num_bias);
      sampling.num_bias = static_cast<int32_t>(std::unique(ids, ids + sampling.num_bias) - ids);
      std::memcpy(row_of<uint8_t>(state.sampling, row), &sampling, sizeof sampling);
      if (i % 5 == 3) sample_state_rows.span<int32_t>()[static_cast<size_t>(i)] = -1;  // a dummy
    }
    const std::vector<uint64_t> image = plan.image();
    HostTensor plan_tensor(DType::kI64, {static_cast<int64_t>(image.size())});
    std::memcpy(plan_tensor.view().raw(), image.data(), image.size() * 8);
    family.compare(sides.actual, sides.expected, c.name, [&](Side& side) -> Outputs {
      const Tensor logits_device = side.put(logits), next = side.put(poisoned_tensor(DType::kI32, {num_rows}));
      const Tensor is_relaxed = side.put(poisoned_tensor(DType::kI32, {num_rows}));
      side.ops().sample(side.stream(), {.logits = logits_device,
                                        .sample_state_rows = side.put(sample_state_rows),
                                        .sample_offsets = side.put(offsets),
                                        .sample_masks = side.put(mask_ids),
                                        .sample_drafts = c.has_drafts() ? side.put(drafts) : Tensor(),
                                        .plan = side.put(plan_tensor).raw(),
                                        .state = put_state(side, state),
                                        .next_token_ids = next,
                                        .is_relaxed = c.has_drafts() ? is_relaxed : Tensor()});
      Outputs outputs;
      outputs.push_back({"next_token_ids", side.get(next), {}});
      if (c.has_drafts()) outputs.push_back({"is_relaxed", side.get(is_relaxed), {}});
      outputs.push_back({"logits", side.get(logits_device), {}});  // unchanged
      return outputs;
    });
  }
}

void add_logprobs(Report& report, Sides sides) {
  Family family(report, "logprobs");
  if (!family.selected()) return;
  for (const auto& [rows, vocab_size, num_top] : {std::tuple{0, 10, 0}, std::tuple{1, 1, 1}, std::tuple{3, 7, 7}, std::tuple{5, 1000, 20},
                                                  std::tuple{17, 1025, 0}, std::tuple{4, 50257, 5}}) {
    for (const Logits kind : {Logits::kPlain, Logits::kTies, Logits::kSpoiled}) {
      Rng rng(test_seed(), static_cast<uint64_t>(vocab_size));
      HostTensor logits = random_logits(rng, rows, vocab_size, kind == Logits::kTies);
      if (kind == Logits::kSpoiled) spoil_rows(rng, logits);
      HostTensor targets(DType::kI32, {rows});
      for (int32_t& id : targets.span<int32_t>()) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab_size)));
      if (kind == Logits::kSpoiled && rows > 0) targets.span<int32_t>()[0] = kNoToken;
      const char* suffix = kind == Logits::kTies ? " ties" : kind == Logits::kSpoiled ? " not finite" : "";
      family.compare(sides.actual, sides.expected, fmt::format("[{}, {}] top {}{}", rows, vocab_size, num_top, suffix),
                     [&](Side& side) -> Outputs {
                       const auto out = [&](DType dtype, std::initializer_list<int64_t> dims) { return side.put(poisoned_tensor(dtype, dims)); };
                       const Tensor logprob = out(DType::kF32, {rows}), rank = out(DType::kI32, {rows});
                       Tensor top_ids, top_logprobs;
                       if (num_top > 0) {
                         top_ids = out(DType::kI32, {rows, num_top});
                         top_logprobs = out(DType::kF32, {rows, num_top});
                       }
                       side.ops().logprobs(side.stream(), {.logits = side.put(logits),
                                                           .target_ids = side.put(targets),
                                                           .target_logprob = logprob,
                                                           .target_rank = rank,
                                                           .top_ids = top_ids,
                                                           .top_logprobs = top_logprobs});
                       // A sum of exp over 50,000 logits within 1e-6 of itself; then log and a difference of size 20.
                       const Tolerance tolerance{.rel = 1e-6, .abs = 2e-6};
                       Outputs outputs;
                       outputs.push_back({"target_logprob", side.get(logprob), tolerance});
                       outputs.push_back({"target_rank", side.get(rank), {}});
                       if (num_top > 0) {
                         outputs.push_back({"top_ids", side.get(top_ids), {}});
                         outputs.push_back({"top_logprobs", side.get(top_logprobs), tolerance});
                       }
                       return outputs;
                     });
    }
  }
}

}  // namespace

void add_sample_cases(Report& report, Sides sides) {
  for (const int64_t vocab_size : {1, 7, 100, 1025, 50257}) {
    for (const Logits kind : {Logits::kPlain, Logits::kTies, Logits::kSpoiled}) {
      add_samples(report, sides, vocab_size, kind);
    }
  }
  add_logprobs(report, sides);
}

}  // namespace spate::conformance
