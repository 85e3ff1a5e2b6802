// Goal    The reference sampler draws from the distribution that other implementations define: what they cut is never
// drawn, and the
//         rest is drawn as often as they say.
// Method  test/goldens/sampler/cases.json (tools/goldens/make_sampler_goldens.py) has the final probabilities by
// transformers'
//         logits processors. Each case draws 20,000 tokens with 20,000 seeds; Pearson's chi-square over the tokens that
//         are expected five times or more, the others pooled. The bound is the 1 - 10^-6 quantile, so that a right
//         sampler fails once in 40,000 runs of other seeds; the seeds are fixed. A likely token whose probability is 15
//         % too small fails.
#include <simdjson.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "backend/conformance/state_rig.h"
#include "backend/reference/reference_device.h"
#include "base/test.h"

namespace spate::conformance {
namespace {

constexpr int kNumDraws = 20000, kDrawsACall = 500;

struct GoldenCase {
  std::string name;
  std::vector<float> logits;
  std::vector<int32_t> prompt, output;
  std::vector<std::pair<int32_t, float>> bias;
  RowSampling sampling;
  std::vector<double> probs;
};

template <typename T>
std::vector<T> numbers(simdjson::dom::element array) {
  std::vector<T> values;
  for (const simdjson::dom::element value : array.get_array())
    values.push_back(static_cast<T>(value.get_double().value()));
  return values;
}

std::vector<GoldenCase> read_cases() {
  simdjson::dom::parser parser;
  std::vector<GoldenCase> cases;
  for (const simdjson::dom::element json :
       parser.load((repo_root() / "test/goldens/sampler/cases.json").string()).get_array()) {
    GoldenCase c;
    c.name = std::string(json["name"].get_string().value());
    c.logits = numbers<float>(json["logits"]);
    c.prompt = numbers<int32_t>(json["prompt"]);
    c.output = numbers<int32_t>(json["output"]);
    c.probs = numbers<double>(json["probs"]);
    const simdjson::dom::element params = json["params"];
    const auto value = [&](const char* key) { return static_cast<float>(params[key].get_double().value()); };
    c.sampling = {.temperature = value("temperature"),
                  .top_p = value("top_p"),
                  .min_p = value("min_p"),
                  .repetition_penalty = value("repetition_penalty"),
                  .presence_penalty = value("presence_penalty"),
                  .frequency_penalty = value("frequency_penalty"),
                  .sampling_top_k = static_cast<int32_t>(value("top_k")),
                  .prompt_len = static_cast<int32_t>(c.prompt.size())};
    for (const auto& [id, bias] : params["logit_bias"].get_object()) {
      c.bias.emplace_back(std::stoi(std::string(id)), static_cast<float>(bias.get_double().value()));
    }
    c.sampling.num_bias = static_cast<int32_t>(c.bias.size());
    cases.push_back(std::move(c));
  }
  return cases;
}

template <typename T>
T* row_of(HostTensor& matrix, int64_t row) {
  return reinterpret_cast<T*>(static_cast<char*>(matrix.view().raw()) +
                              row * matrix.view().stride(0) * dtype_bytes(matrix.view().dtype()));
}

// The tokens that are drawn with kNumDraws seeds, the same for every case.
std::vector<int32_t> draw_tokens(const GoldenCase& c, Device& device) {
  const StateSizes sizes{.max_num_seqs = kDrawsACall, .max_model_len = 16, .max_blocks_per_seq = 1};
  const auto vocab_size = static_cast<int64_t>(c.logits.size());
  HostState state = poisoned_state(sizes);
  HostTensor logits(DType::kF32, {kDrawsACall, vocab_size}), rows(DType::kI32, {kDrawsACall});
  std::vector<int32_t> tokens = c.prompt;
  tokens.insert(tokens.end(), c.output.begin(), c.output.end());
  for (int64_t i = 0; i < kDrawsACall; ++i) {
    rows.span<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::copy(c.logits.begin(), c.logits.end(), row_of<float>(logits, i));
    std::copy(tokens.begin(), tokens.end(), row_of<int32_t>(state.token_ids, i));
    state.num_tokens.span<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(tokens.size());
    for (size_t b = 0; b < c.bias.size(); ++b) {
      row_of<int32_t>(state.bias_ids, i)[b] = c.bias[b].first;
      row_of<float>(state.bias_values, i)[b] = c.bias[b].second;
    }
  }
  std::vector<int32_t> drawn_ids;
  Rng rng(test_seed(), 99);
  for (int drawn = 0; drawn < kNumDraws; drawn += kDrawsACall) {
    for (int64_t i = 0; i < kDrawsACall; ++i) {
      RowSampling sampling = c.sampling;
      sampling.seed = rng.next_u64();
      std::memcpy(row_of<uint8_t>(state.sampling, i), &sampling, sizeof sampling);
    }
    Side side(device);
    const Tensor next = side.put(poisoned_tensor(DType::kI32, {kDrawsACall}));
    side.ops().sample(side.stream(), {.logits = side.put(logits),
                                      .sample_state_rows = side.put(rows),
                                      .state = put_state(side, state),
                                      .next_token_ids = next});
    const HostTensor ids = side.get(next);
    drawn_ids.insert(drawn_ids.end(), ids.span<int32_t>().begin(), ids.span<int32_t>().end());
  }
  return drawn_ids;
}

// How often each token is drawn.
std::vector<int> draw(const GoldenCase& c, Device& device) {
  std::vector<int> counts(c.logits.size());
  for (const int32_t id : draw_tokens(c, device)) ++counts.at(static_cast<size_t>(id));  // throws beyond the vocabulary
  return counts;
}

// The quantile of chi-square, by Wilson and Hilferty; z of 1 - 10^-6 is 4.753.
double chi_square_bound(int degrees) {
  const double a = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1 - a + 4.753 * std::sqrt(a), 3);
}

struct Fit {
  double chi_square = 0;
  int degrees = -1;  // bins - 1
  bool drew_a_cut_token = false;
};

Fit fit_of(const std::vector<int>& counts, const std::vector<double>& probs) {
  Fit fit;
  double pooled_expected = 0, pooled_count = 0;
  const auto add = [&fit](double count, double expected) {
    fit.chi_square += (count - expected) * (count - expected) / expected;
    ++fit.degrees;
  };
  for (size_t id = 0; id < probs.size(); ++id) {
    const double expected = probs[id] * kNumDraws;
    if (probs[id] == 0) fit.drew_a_cut_token |= counts[id] > 0;
    if (expected >= 5) {
      add(counts[id], expected);
    } else {
      pooled_expected += expected;
      pooled_count += counts[id];
    }
  }
  if (pooled_expected > 0.5) add(pooled_count, pooled_expected);
  return fit;
}

TEST_CASE("the reference sampler draws what other implementations' distributions say") {
  const auto device = make_reference_device({}).value();
  const std::vector<GoldenCase> cases = read_cases();
  REQUIRE(cases.size() >= 20);
  for (const GoldenCase& c : cases) {
    CAPTURE(c.name);
    const std::vector<int> counts = draw(c, *device);
    const Fit fit = fit_of(counts, c.probs);
    CHECK_FALSE(fit.drew_a_cut_token);
    if (fit.degrees > 0) CHECK(fit.chi_square < chi_square_bound(fit.degrees));
  }
}

// The instrument: the same draws against distributions that are a little wrong.
TEST_CASE("chi-square tells a distribution that is a little wrong") {
  const auto device = make_reference_device({}).value();
  const std::vector<GoldenCase> cases = read_cases();
  const GoldenCase& c = cases.at(0);
  const std::vector<int> counts = draw(c, *device);
  std::vector<double> wrong = c.probs;
  const auto likely = static_cast<size_t>(std::max_element(wrong.begin(), wrong.end()) - wrong.begin());
  for (double& prob : wrong) prob *= (1 - 0.85 * wrong[likely]) / (1 - wrong[likely]);
  wrong[likely] = 0.85 * c.probs[likely];
  const Fit fit = fit_of(counts, wrong);
  CHECK(fit.chi_square > chi_square_bound(fit.degrees));
  wrong = c.probs;
  wrong[likely] = 0;
  CHECK(fit_of(counts, wrong).drew_a_cut_token);
}

std::vector<double> softmax(const std::vector<float>& logits) {
  std::vector<double> probs;
  double sum = 0;
  for (const float logit : logits) sum += probs.emplace_back(std::exp(static_cast<double>(logit)));
  for (double& prob : probs) prob /= sum;
  return probs;
}

// What o, the overlap of two distributions, is to any lossless rule: the most that it can accept.
double overlap(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::min(p[i], q[i]);
  return sum;
}

// The probability of each token to be the largest of log p + noise and of log q + the same noise, where the noise is
// Gumbel's; last the probability that these two differ.
std::vector<double> coupled(const std::vector<double>& p, const std::vector<double>& q) {
  std::vector<double> probs;
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    double others = 0;
    for (size_t j = 0; j < p.size(); ++j) others += std::max(p[j] / p[i], q[j] / q[i]);
    sum += probs.emplace_back(1 / others);
  }
  probs.push_back(1 - sum);
  return probs;
}

// What two samplers whose noise has nothing in common would give, in the same form.
std::vector<double> independent(const std::vector<double>& p, const std::vector<double>& q) {
  std::vector<double> probs;
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += probs.emplace_back(p[i] * q[i]);
  probs.push_back(1 - sum);
  return probs;
}

// What a model that drafts is worth when it samples (docs/design/0006-speculation.md).
TEST_CASE("two models that draw with the same noise agree as often as their distributions let them") {
  const auto device = make_reference_device({}).value();
  Rng rng(test_seed(), 7);
  for (const double distance : {0.1, 0.5, 1.0, 2.0, 4.0}) {
    GoldenCase target, draft;
    target.sampling.temperature = draft.sampling.temperature = 1;
    for (int i = 0; i < 500; ++i) {
      target.logits.push_back(3 * rng.gaussian());
      draft.logits.push_back(target.logits.back() + static_cast<float>(distance) * rng.gaussian());
    }
    const std::vector<double> p = softmax(target.logits), q = softmax(draft.logits);
    const std::vector<double> both = coupled(p, q);
    const double o = overlap(p, q), expected = 1 - both.back();
    const std::vector<int32_t> chosen = draw_tokens(target, *device), drafted = draw_tokens(draft, *device);
    std::vector<int> num_chosen(p.size()), num_drafted(p.size()), num_both(p.size() + 1);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto token = static_cast<size_t>(chosen[i]), guess = static_cast<size_t>(drafted[i]);
      ++num_chosen.at(token);
      ++num_drafted.at(guess);
      ++num_both.at(token == guess ? token : p.size());
    }
    const double accepted = 1 - static_cast<double>(num_both.back()) / kNumDraws;
    std::printf("logits %.1f apart: overlap %.4f, coupled %.4f, accepted %.4f\n", distance, o, expected, accepted);
    // Each model draws its own distribution, and which tokens are accepted is as the coupling says, not only how many.
    for (const Fit& fit : {fit_of(num_chosen, p), fit_of(num_drafted, q), fit_of(num_both, both)}) {
      CHECK(fit.degrees > 10);
      CHECK(fit.chi_square < chi_square_bound(fit.degrees));
    }
    const Fit wrong = fit_of(num_both, independent(p, q));
    CHECK(wrong.chi_square > chi_square_bound(wrong.degrees));
    CHECK(std::abs(accepted - expected) < 5 * std::sqrt(expected * (1 - expected) / kNumDraws));
    CHECK(expected >= o / (2 - o));
    CHECK(expected <= o);
  }
}

}  // namespace
}  // namespace spate::conformance
