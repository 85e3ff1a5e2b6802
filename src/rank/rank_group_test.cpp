// Goal    A model behind the engine gives the same tokens however its work is cut: one sequence or many, whole prompts or
//         chunks, prefix cache on or off, plain or overlapped loop, one rank or two; also when memory is so tight that
//         sequences are preempted.
// Method  A tiny random Qwen3 in f32 on the reference back-end, whose rows do not depend on their batch. The oracle asks for
//         one token at a time, each request alone on a fresh prompt.
#include "rank/rank_group.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <set>

#include "backend/registry/registry.h"
#include "backend/test_device/intercepting_device.h"
#include "base/cpu_cores.h"
#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"
#include "engine/engine.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

constexpr int kOutputLen = 12;

struct Variant {
  int max_num_seqs = 8;
  int max_num_batched_tokens = 64;
  bool chunked = true;
  bool prefix_caching = true;
  bool async = true;
  int tensor_parallel_size = 1;
  int num_kv_blocks = 64;
};

class CollectingSink final : public OutputSink {
 public:
  explicit CollectingSink(size_t num_requests) : tokens(num_requests), logprobs(num_requests), prompt_logprobs(num_requests) {}
  void push(std::vector<Output> outputs) override {
    for (Output& output : outputs) {
      auto& ids = tokens[output.request_id];
      ids.insert(ids.end(), output.token_ids.begin(), output.token_ids.end());
      for (const TokenLogprobs& entry : output.logprobs) logprobs[output.request_id].push_back(entry);
      for (const TokenLogprobs& entry : output.prompt_logprobs) prompt_logprobs[output.request_id].push_back(entry);
      num_finished += output.finish_reason != FinishReason::kNone;
      num_errors += output.finish_reason == FinishReason::kError;
    }
  }
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<TokenLogprobs>> logprobs, prompt_logprobs;
  std::set<size_t> num_top, num_prompt_top;  // that the ranks gave for a token
  size_t num_finished = 0;
  int num_errors = 0;
  EngineStats stats;  // at the end
};

// Passes steps on and notes how many top log-probabilities the ranks gave, before the engine cuts them to what was
// asked.
class TopCounter final : public StepExecutor {
 public:
  TopCounter(StepExecutor& inner, std::set<size_t>& num_top, std::set<size_t>& num_prompt_top)
      : inner_(inner), num_top_(num_top), num_prompt_top_(num_prompt_top) {}
  void submit(std::span<const std::byte> plan) override { inner_.submit(plan); }
  void supply_masks(std::span<const uint32_t> masks) override { inner_.supply_masks(masks); }
  int num_in_flight() const override { return inner_.num_in_flight(); }
  Status collect(StepResult& result) override {
    RETURN_IF_ERROR(inner_.collect(result));
    for (const TokenLogprobs& entry : result.logprobs) num_top_.insert(entry.top.size());
    for (const auto& entries : result.prompt_logprobs) {
      for (const TokenLogprobs& entry : entries) num_prompt_top_.insert(entry.top.size());
    }
    return ok_status();
  }

 private:
  StepExecutor& inner_;
  std::set<size_t>&num_top_, &num_prompt_top_;
};

const std::filesystem::path tied_model_dir() {
  return repo_root() / "test" / "goldens" / "model" / "qwen3_tied_sharded";
}

// Runs all prompts through an engine of its own and steps it to the end.
std::shared_ptr<CollectingSink> run_variant(const Variant& variant, const std::vector<std::vector<int32_t>>& prompts,
                                            int max_tokens, const SamplingParams& base = {.temperature = 0}) {
  const ModelConfig config = load_model_config(tied_model_dir()).value();
  const Checkpoint weights = Checkpoint::open(tied_model_dir()).value();
  RankGroupConfig group_config;
  group_config.model = config;
  group_config.weights = &weights;
  group_config.back_end = &oracle_back_end();
  group_config.tensor_parallel_size = variant.tensor_parallel_size;
  group_config.act_dtype = DType::kF32;
  group_config.kv_dtype = DType::kF32;
  group_config.limits.max_num_seqs = variant.max_num_seqs;
  group_config.limits.max_num_batched_tokens = variant.max_num_batched_tokens;
  group_config.limits.max_num_logits = 5;  // smaller than a step's samples, so that logits come in pieces
  group_config.limits.max_model_len = 64;
  group_config.kv_cache_bytes = int64_t{1} << 26;
  auto ranks = RankGroup::create(group_config).value();

  EngineConfig engine_config;
  engine_config.limits.max_model_len = 64;
  engine_config.limits.max_num_seqs = variant.max_num_seqs;
  engine_config.limits.max_num_batched_tokens = variant.max_num_batched_tokens;
  engine_config.num_kv_blocks = variant.num_kv_blocks;
  engine_config.enable_chunked_prefill = variant.chunked;
  engine_config.enable_prefix_caching = variant.prefix_caching;
  engine_config.async_scheduling = variant.async;
  auto sink = std::make_shared<CollectingSink>(prompts.size());
  TopCounter executor(*ranks, sink->num_top, sink->num_prompt_top);
  auto engine = Engine::create(engine_config, executor).value();
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.id = i;
    request.prompt_token_ids = prompts[i];
    request.sampling = base;
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.sink = sink;
    REQUIRE(engine->submit(std::move(request)).ok());
  }
  for (int step = 0; sink->num_finished < prompts.size(); ++step) {
    REQUIRE(step < 5000);
    engine->step();
    engine->check_integrity();
  }
  while (engine->step()) {
  }
  CHECK(sink->num_errors == 0);
  sink->stats = engine->stats();
  CHECK(sink->stats.num_kv_blocks_used == 0);
  return sink;
}

std::vector<std::vector<int32_t>> make_prompts() {
  const int64_t vocab_size = load_model_config(tied_model_dir()).value().vocab_size;
  Rng rng(test_seed());
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int32_t> shared;
  for (int i = 0; i < 33; ++i) shared.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab_size))));
  for (const int len : {1, 3, 15, 16, 17, 31, 40}) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < len; ++i) prompt.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab_size))));
    prompts.push_back(prompt);
  }
  for (int i = 0; i < 3; ++i) {  // a common beginning of two whole blocks
    prompts.push_back(shared);
    prompts.back().push_back(i);
  }
  return prompts;
}

std::vector<std::vector<int32_t>> oracle(const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<std::vector<int32_t>> texts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> context = prompts[i];
    for (int t = 0; t < 3; ++t) {  // enough to cross from prompt to output; the variants are compared in full below
      const auto sink = run_variant({.max_num_seqs = 1, .prefix_caching = false, .async = false}, {context}, 1);
      texts[i].push_back(sink->tokens[0].at(0));
      context.push_back(texts[i].back());
    }
  }
  return texts;
}

// A factory that remembers what devices it was asked for.
std::mutex asked_mutex;
std::vector<DeviceOptions> asked;
Result<std::unique_ptr<Device>> make_remembered_device(const DeviceOptions& options) {
  const std::lock_guard lock(asked_mutex);
  asked.push_back(options);
  return oracle_back_end().make_device(options);
}

}  // namespace

TEST_CASE("rank group: threads of ranks are bound to cores of their own, or not at all") {
  const int num_cores = static_cast<int>(usable_cores().size());
  const Checkpoint weights = Checkpoint::open(tied_model_dir()).value();
  BackEnd back_end = oracle_back_end();
  back_end.make_device = make_remembered_device;
  for (const auto& [pins, num_threads] : {std::pair{true, 0}, {true, 2}, {true, 2 * num_cores + 2}, {false, 0}}) {
    asked.clear();
    const RankGroupConfig config{.model = load_model_config(tied_model_dir()).value(),
                                 .weights = &weights,
                                 .back_end = &back_end,
                                 .device = {.num_threads = num_threads},
                                 .pin_threads = pins,
                                 .tensor_parallel_size = 2,
                                 .act_dtype = DType::kF32,
                                 .kv_dtype = DType::kF32,
                                 .limits = {.max_model_len = 16, .max_num_seqs = 1, .max_num_batched_tokens = 16},
                                 .kv_cache_bytes = 1 << 20};
    REQUIRE(RankGroup::create(config).ok());
    REQUIRE(asked.size() == 2);
    std::set<int> core_ids;
    for (const DeviceOptions& options : asked) {
      CHECK(options.num_threads == std::max(1, (num_threads > 0 ? num_threads : default_num_threads()) / 2));
      const bool fits = 2 * options.num_threads <= num_cores;
      CHECK(options.core_ids.size() == static_cast<size_t>(pins && fits ? options.num_threads : 0));
      for (const int id : options.core_ids) CHECK(core_ids.insert(id).second);
    }
  }
}

TEST_CASE("rank group: more ranks than the back-end runs are refused") {
  BackEnd back_end = oracle_back_end();
  back_end.max_ranks = 1;
  const RankGroupConfig config{
      .model = load_model_config(tied_model_dir()).value(), .back_end = &back_end, .tensor_parallel_size = 2};
  CHECK(RankGroup::create(config).status().message().starts_with(
      "--tensor-parallel-size 2: the reference back-end runs at most 1"));
}

// Two experts a layer at most.
class FewExpertsDevice final : public InterceptingDevice {
 public:
  using InterceptingDevice::InterceptingDevice;
  void on_launch(Launch launch) override { launch.run(); }
  int64_t max_experts() const override { return 2; }
};

TEST_CASE("rank group: more experts than the device takes are refused, of the model and of its draft") {
  BackEnd back_end = oracle_back_end();
  back_end.make_device = [](const DeviceOptions& options) -> Result<std::unique_ptr<Device>> {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, oracle_back_end().make_device(options));
    return std::unique_ptr<Device>(std::make_unique<FewExpertsDevice>(std::move(device)));
  };
  const ModelConfig dense = load_model_config(tied_model_dir()).value();
  ModelConfig experts = dense;
  experts.experts.num_experts = 3;
  const std::string message = "3 experts a layer do not run on reference yet, which takes at most 2; use --device cpu";
  CHECK(RankGroup::create({.model = experts, .back_end = &back_end}).status().message() == message);
  CHECK(RankGroup::create({.model = dense, .back_end = &back_end, .draft = DraftModelConfig{.model = experts}})
            .status()
            .message() == message);
  experts.experts.num_experts = 2;
  CHECK(RankGroup::create({.model = experts, .back_end = &back_end}).status().message() != message);
}

TEST_CASE("rank group: tokens do not depend on how the work is cut") {
  const auto prompts = make_prompts();
  const auto first_tokens = oracle(prompts);
  const auto whole = run_variant(
      {.max_num_batched_tokens = 512, .chunked = true, .prefix_caching = false, .async = false}, prompts, kOutputLen);
  for (size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(whole->tokens[i].size() == kOutputLen);
    for (size_t t = 0; t < first_tokens[i].size(); ++t) CHECK(whole->tokens[i][t] == first_tokens[i][t]);
  }
  const std::vector<std::pair<const char*, Variant>> variants = {
      {"overlapped", {.max_num_batched_tokens = 512}},
      {"chunks of 9", {.max_num_batched_tokens = 9, .prefix_caching = false}},
      {"unchunked", {.max_num_batched_tokens = 64, .chunked = false}},
      {"prefix cache", {.max_num_batched_tokens = 48}},
      {"one at a time", {.max_num_seqs = 1}},
      {"tight memory", {.num_kv_blocks = 5}},
      {"two ranks", {.tensor_parallel_size = 2}},
  };
  for (const auto& [name, variant] : variants) {
    CAPTURE(name);
    const auto got = run_variant(variant, prompts, kOutputLen);
    for (size_t i = 0; i < prompts.size(); ++i) CHECK(got->tokens[i] == whole->tokens[i]);
    // The variant does what it is named for.
    const bool hits_prefixes = variant.prefix_caching && variant.max_num_batched_tokens == 48;
    if (hits_prefixes) CHECK(got->stats.prefix_cache_hits > 0);
    if (!variant.prefix_caching) CHECK(got->stats.prefix_cache_hits == 0);
    CHECK((got->stats.num_preemptions > 0) == (variant.num_kv_blocks == 5));
  }
}

TEST_CASE("rank group: log-probabilities of output and prompt do not depend on chunks and pieces of logits") {
  const auto prompts = make_prompts();
  const SamplingParams sampling{.temperature = 0, .logprobs = 3, .prompt_logprobs = 2};
  const auto whole = run_variant({.max_num_batched_tokens = 512, .async = false}, prompts, 4, sampling);
  const auto chunked = run_variant({.max_num_batched_tokens = 9}, prompts, 4, sampling);
  for (size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(whole->prompt_logprobs[i].size() == prompts[i].size() - 1);
    REQUIRE(chunked->prompt_logprobs[i].size() == prompts[i].size() - 1);
    REQUIRE(whole->logprobs[i].size() == 4);
    for (size_t t = 0; t + 1 < prompts[i].size(); ++t) {
      CHECK(whole->prompt_logprobs[i][t].token_id == prompts[i][t + 1]);
      CHECK(whole->prompt_logprobs[i][t].logprob == chunked->prompt_logprobs[i][t].logprob);
      CHECK(whole->prompt_logprobs[i][t].top.size() == 2);
    }
    for (size_t t = 0; t < 4; ++t) {
      const TokenLogprobs& entry = whole->logprobs[i][t];
      CHECK(entry.token_id == whole->tokens[i][t]);
      CHECK(entry.rank == 1);  // greedy
      CHECK(entry.top.size() == 3);
      CHECK(entry.top[0].token_id == entry.token_id);
      CHECK(entry.logprob == chunked->logprobs[i][t].logprob);
    }
  }
}

// Prompt log-probabilities need the last layer of all tokens; without them it runs only for those that are sampled.
TEST_CASE("rank group: leaving out what nobody asks of the last layer changes nothing") {
  const auto prompts = make_prompts();
  for (const Variant& variant : {Variant{.max_num_batched_tokens = 512}, Variant{.max_num_batched_tokens = 40}, Variant{.max_num_batched_tokens = 9},
                                 Variant{.max_num_batched_tokens = 40, .tensor_parallel_size = 2}}) {
    CAPTURE(variant.max_num_batched_tokens);
    CAPTURE(variant.tensor_parallel_size);
    const auto sampled = run_variant(variant, prompts, 4, {.temperature = 0, .logprobs = 1});
    const auto all = run_variant(variant, prompts, 4, {.temperature = 0, .logprobs = 1, .prompt_logprobs = 0});
    for (size_t i = 0; i < prompts.size(); ++i) {
      CAPTURE(i);
      REQUIRE(sampled->logprobs[i].size() == 4);
      for (size_t t = 0; t < 4; ++t) {
        CHECK(sampled->logprobs[i][t].token_id == all->logprobs[i][t].token_id);
        CHECK(sampled->logprobs[i][t].logprob == all->logprobs[i][t].logprob);
      }
    }
  }
}

TEST_CASE("rank group: as many top log-probabilities are computed as were asked for") {
  const auto prompts = make_prompts();
  for (const int num_top : {0, 1, kMaxLogprobs}) {
    const auto got =
        run_variant({}, prompts, 2, {.temperature = 0, .logprobs = num_top, .prompt_logprobs = kMaxLogprobs - num_top});
    CHECK(got->num_top == std::set<size_t>{static_cast<size_t>(num_top)});
    CHECK(got->num_prompt_top == std::set<size_t>{static_cast<size_t>(kMaxLogprobs - num_top)});
  }
}

TEST_CASE("rank group: log-probabilities of the whole vocabulary agree with the few that the device finds") {
  const auto prompts = make_prompts();
  const auto vocab_size = static_cast<int>(load_model_config(tied_model_dir()).value().vocab_size);
  REQUIRE(vocab_size > kMaxLogprobs);
  for (const Variant& variant : {Variant{}, Variant{.max_num_batched_tokens = 9}, Variant{.tensor_parallel_size = 2}}) {
    CAPTURE(variant.max_num_batched_tokens);
    CAPTURE(variant.tensor_parallel_size);
    const auto few = run_variant(variant, prompts, 4, {.temperature = 0, .logprobs = 3, .prompt_logprobs = 3});
    const auto all =
        run_variant(variant, prompts, 4, {.temperature = 0, .logprobs = vocab_size, .prompt_logprobs = vocab_size});
    const auto picked =
        run_variant(variant, prompts, 4, {.temperature = 0, .logprobs = 0, .logprob_token_ids = {7, 1}});
    const auto check = [&](const TokenLogprobs& some, const TokenLogprobs& whole) {
      REQUIRE(whole.top.size() == static_cast<size_t>(vocab_size));
      CHECK(whole.token_id == some.token_id);
      CHECK(whole.rank == some.rank);
      CHECK(whole.logprob == doctest::Approx(some.logprob).epsilon(1e-4));
      for (size_t k = 0; k < 3; ++k) {
        CHECK(whole.top[k].token_id == some.top[k].token_id);
        CHECK(whole.top[k].logprob == doctest::Approx(some.top[k].logprob).epsilon(1e-4));
      }
      double sum = 0;
      for (const TokenLogprobs::Top& top : whole.top) sum += std::exp(static_cast<double>(top.logprob));
      CHECK(sum == doctest::Approx(1).epsilon(1e-4));
      CHECK(std::ranges::is_sorted(whole.top, std::ranges::greater(), &TokenLogprobs::Top::logprob));
    };
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(all->tokens[i] == few->tokens[i]);
      REQUIRE(all->prompt_logprobs[i].size() == few->prompt_logprobs[i].size());
      for (size_t t = 0; t < few->prompt_logprobs[i].size(); ++t) {
        check(few->prompt_logprobs[i][t], all->prompt_logprobs[i][t]);
      }
      for (size_t t = 0; t < 4; ++t) {
        check(few->logprobs[i][t], all->logprobs[i][t]);
        const auto& top = picked->logprobs[i][t].top;
        REQUIRE(top.size() == 2);
        for (size_t k = 0; k < 2; ++k) {
          CHECK(top[k].token_id == (k == 0 ? 7 : 1));
          const auto same = std::ranges::find(all->logprobs[i][t].top, top[k].token_id, &TokenLogprobs::Top::token_id);
          CHECK(same->logprob == top[k].logprob);
        }
      }
    }
  }
}

TEST_CASE("rank group: a seed gives the same text alone and in a batch") {
  const auto prompts = make_prompts();
  const SamplingParams sampling{.temperature = 1.0f, .top_p = 0.9f, .repetition_penalty = 1.1f, .seed = 42};
  const auto batch = run_variant({}, prompts, kOutputLen, sampling);
  const auto alone = run_variant({.max_num_seqs = 1, .async = false}, prompts, kOutputLen, sampling);
  for (size_t i = 0; i < prompts.size(); ++i) CHECK(batch->tokens[i] == alone->tokens[i]);
}

}  // namespace spate
