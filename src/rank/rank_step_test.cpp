// Goal    A step depends on its key alone where it may be replayed, dummies change nothing, and the host never waits
//         for the device between two steps.
// Method  A tiny random Qwen3 in f32 behind the engine, with random requests. The reference device alone says what is
//         right; test devices around it record what steps launch, replay it, or run nothing before somebody waits.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/layer_products.h"
#include "backend/registry/registry.h"
#include "backend/test_device/deferred_device.h"
#include "backend/test_device/intercepting_device.h"
#include "backend/test_device/recording_device.h"
#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"
#include "batch/plan_builder.h"
#include "engine/engine.h"
#include "rank/rank_group.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

constexpr int kMaxModelLen = 64, kMaxNumSeqs = 8;

// The model of the tests, and one with latent attention.
constexpr const char *kModel = "qwen3_tied_sharded", *kLatentModel = "deepseek_v2_lite";

std::filesystem::path model_dir(const char* model = kModel) {
  return repo_root() / "test" / "goldens" / "model" / model;
}

// Factories are plain functions: this is what the one below puts around the reference device.
std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> wrap;

Result<std::unique_ptr<Device>> make_wrapped_device(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, oracle_back_end().make_device(options));
  return wrap(std::move(device));
}

std::unique_ptr<RankGroup> make_ranks(std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> wrapper,
                                      int tp = 1, const char* model = kModel) {
  wrap = std::move(wrapper);
  static BackEnd back_end;
  back_end = oracle_back_end();
  back_end.make_device = make_wrapped_device;
  const Checkpoint weights = Checkpoint::open(model_dir(model)).value();
  RankGroupConfig config;
  config.model = load_model_config(model_dir(model)).value();
  config.weights = &weights;
  config.back_end = &back_end;
  config.tensor_parallel_size = tp;
  config.act_dtype = DType::kF32;
  config.kv_dtype = DType::kF32;
  config.limits.max_num_seqs = kMaxNumSeqs;
  config.limits.max_num_batched_tokens = 48;
  config.limits.max_num_logits = 5;  // smaller than a step's samples, so that logits come in pieces
  config.limits.max_model_len = kMaxModelLen;
  config.kv_cache_bytes = int64_t{1} << 26;
  return RankGroup::create(config).value();
}

// What requests got, as text: one line each with ids and log-probabilities to the bit.
class TextSink final : public OutputSink {
 public:
  explicit TextSink(size_t num_requests) : texts(num_requests) {}
  void push(std::vector<Output> outputs) override {
    for (const Output& output : outputs) {
      std::string& text = texts[output.request_id];
      text += fmt::format(" [{}]", output.index);
      for (const int32_t id : output.token_ids) text += fmt::format(" {}", id);
      for (const auto* entries : {&output.prompt_logprobs, &output.logprobs}) {
        for (const TokenLogprobs& entry : *entries) add(text, entry);
      }
      if (output.finish_reason != FinishReason::kNone) {
        CHECK(output.finish_reason != FinishReason::kError);
        ++num_ended;
      }
    }
  }
  std::vector<std::string> texts;
  size_t num_ended = 0;

 private:
  static void add(std::string& text, const TokenLogprobs& entry) {
    text += fmt::format(" ({} {:a} {}", entry.token_id, entry.logprob, entry.rank);
    for (const TokenLogprobs::Top& top : entry.top) text += fmt::format(" {}:{:a}", top.token_id, top.logprob);
    text += ")";
  }
};

// Prompts of all lengths; greedy and seeded, with penalties, biases, forks and log-probabilities.
std::vector<Request> random_requests(int count, int64_t vocab_size) {
  Rng rng(test_seed(), 1);
  const auto one_in = [&](uint64_t n) { return rng.below(n) == 0; };
  std::vector<Request> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.id = i;
    request.prompt_token_ids.resize(1 + rng.below(one_in(2) ? 4 : 45));
    for (int32_t& id : request.prompt_token_ids)
      id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab_size)));
    SamplingParams& sampling = request.sampling;
    sampling.temperature = one_in(2) ? 0.0f : 0.8f;
    sampling.seed = rng.next_u64();
    sampling.max_tokens = static_cast<int>(1 + rng.below(12));
    sampling.ignore_eos = true;
    if (one_in(4)) sampling.repetition_penalty = 1.2f;
    if (one_in(4)) sampling.n = 2;
    if (one_in(3)) sampling.logprobs = static_cast<int>(rng.below(4));
    if (one_in(5)) sampling.prompt_logprobs = static_cast<int>(rng.below(3));
    if (one_in(6)) {  // plans beyond the first plan buffer
      for (int b = 0; b < kMaxLogitBias; ++b)
        sampling.logit_bias.emplace_back(b % vocab_size, 0.001f * static_cast<float>(b));
    }
  }
  return requests;
}

std::vector<std::string> run(StepExecutor& ranks, int num_requests, const char* model = kModel) {
  EngineConfig config;
  config.limits.max_model_len = kMaxModelLen;
  config.limits.max_num_seqs = kMaxNumSeqs;
  config.limits.max_num_batched_tokens = 48;
  config.num_kv_blocks = 40;
  auto engine = Engine::create(config, ranks).value();
  std::vector<Request> requests = random_requests(num_requests, load_model_config(model_dir(model)).value().vocab_size);
  const auto sink = std::make_shared<TextSink>(requests.size());
  size_t num_sequences = 0;
  for (Request& request : requests) {
    num_sequences += static_cast<size_t>(request.sampling.n);
    request.sink = sink;
    REQUIRE(engine->submit(std::move(request)).ok());
  }
  for (int step = 0; sink->num_ended < num_sequences; ++step) {
    REQUIRE(step < 5000);
    engine->step();
  }
  while (engine->step()) {
  }
  return sink->texts;
}

std::vector<std::string> run_recorded(const RecordingOptions& options, int num_requests, const char* model = kModel) {
  const auto wrapper = [&](std::unique_ptr<Device> device) { return make_recording_device(std::move(device), options); };
  return run(*make_ranks(wrapper, 1, model), num_requests, model);
}

std::vector<std::string> run_plain(int num_requests, const char* model = kModel) {
  return run(*make_ranks([](std::unique_ptr<Device> device) { return device; }, 1, model), num_requests, model);
}

constexpr int kNumRequests = 60;

// Checks that what ops are promised of their readers (backend/ops.h) is kept, in what a rank launches.
class PromiseDevice final : public InterceptingDevice {
 public:
  PromiseDevice(std::unique_ptr<Device> inner, int* num_promises)
      : InterceptingDevice(std::move(inner)), num_promises_(num_promises) {}

  void on_launch(Launch launch) override {
    const std::string& text = launch.text;
    if (!reader_.empty() && (text.starts_with("linear") || text.starts_with("expert_mlp"))) {
      INFO(text, " after a promise of ", reader_, " with ", out_);
      CHECK(text.find("(x: " + out_ + ",") != text.npos);
      CHECK(text.find(" weight: " + reader_ + ",") != text.npos);
      reader_.clear();
    }
    if (!reader_.empty()) {
      INFO(text, " reads or writes ", out_, " before the product");
      CHECK(text.find(out_.substr(0, out_.find(' ')) + " ") == text.npos);
    }
    if (const std::string reader = field(text, "reader"); reader.starts_with("0x") && reader != "0x0") {
      CHECK(reader_.empty());
      reader_ = reader;
      out_ = field(text, "out");
      ++*num_promises_;
    }
    launch.run();
  }

 private:
  // What stands behind "NAME: ", up to the next field.
  static std::string field(const std::string& text, const std::string& name) {
    const size_t at = text.find(", " + name + ": ");
    if (at == text.npos) return "";
    const size_t begin = at + name.size() + 4;
    size_t end = begin;
    for (int depth = 0; end < text.size() && (depth > 0 || (text[end] != ',' && text[end] != ')')); ++end) {
      depth += (text[end] == '[') - (text[end] == ']');
    }
    return text.substr(begin, end - begin);
  }

  int* num_promises_;
  std::string reader_, out_;  // of the promise that is not kept yet
};

TEST_CASE("what is promised to one product is read by that product alone") {
  for (const char* model : {kModel, kLatentModel}) {
    CAPTURE(std::string(model));
    int num_promises = 0;
    const auto wrapper = [&](std::unique_ptr<Device> device) {
      return std::make_unique<PromiseDevice>(std::move(device), &num_promises);
    };
    CHECK(run(*make_ranks(wrapper, 1, model), 12, model) == run_plain(12, model));
    CHECK(num_promises > 12);
  }
}

// Joins the products of all layers, of any step, by running their parts.
class JoiningDevice final : public InterceptingDevice, public LayerProductsDevice {
 public:
  JoiningDevice(std::unique_ptr<Device> inner, int* num_joined)
      : InterceptingDevice(std::move(inner)), num_joined_(num_joined) {}

  void on_launch(Launch launch) override { launch.run(); }
  bool joins_layer_products(int64_t) const override { return true; }
  void layer_products(Stream& stream, const LayerProductsParams& params) override { join(stream, params); }
  void layer_products(Stream& stream, const ExpertLayerProductsParams& params) override { join(stream, params); }
  void latent_attention(Stream& stream, const LatentAttentionParams& params) override {
    decomposed_latent_attention(stream, params);
  }

 private:
  void join(Stream& stream, const auto& params) {
    check_params(params);
    decomposed_layer_products(stream, params);
    ++*num_joined_;
  }

  int* num_joined_;
};

TEST_CASE("a device that joins the products of a layer gives the same texts") {
  int num_joined = 0;
  const auto wrapper = [&](std::unique_ptr<Device> device) {
    return std::make_unique<JoiningDevice>(std::move(device), &num_joined);
  };
  // Dense layers; layers of experts; both by turns; latent attention, shared experts.
  for (const char* model : {kModel, "qwen3_moe", "qwen3_moe_fused", kLatentModel, "ernie4_5_moe"}) {
    CAPTURE(std::string(model));
    num_joined = 0;
    CHECK(run(*make_ranks(wrapper, 1, model), 12, model) == run_plain(12, model));
    CHECK(num_joined > 12);
  }
}

TEST_CASE("steps of equal keys launch the same, and what a ladder adds to a step changes nothing") {
  for (const auto& [model, num_requests] : {std::pair{kModel, kNumRequests}, {kLatentModel, kNumRequests / 4}}) {
    const std::vector<std::string> plain = run_plain(num_requests, model);
    for (const bool replay : {false, true}) {
      for (const bool padded : {false, true}) {
        CAPTURE(std::string(model));
        CAPTURE(replay);
        CAPTURE(padded);
        RecordingLog log;
        RecordingOptions options{.log = &log, .replay = replay};
        if (padded) options.padded_step = power_of_two_step;
        CHECK(run_recorded(options, num_requests, model) == plain);
        CHECK(log.mismatches == std::vector<std::string>());
        if (model == kModel) CHECK(log.num_repeated >= (padded ? log.num_steps / 4 : 1));
      }
    }
  }
}

// One sequence of a step that a test writes itself. It enters its row in this step.
struct SeqOfStep {
  int query_len = 0;
  int num_computed_tokens = 0;
  bool sample = false;
  int num_drafts = 0;  // of a decode row; part of query_len
  int num_logprobs = -1;
  int num_prompt_logprobs = -1;
  bool has_large_bias = false;
};

std::span<const std::byte> write_plan(StepPlanBuilder& builder, uint64_t step_id, const std::vector<SeqOfStep>& seqs) {
  static const std::vector<int32_t> token_ids(kMaxModelLen, 3);
  static const std::vector<std::pair<int32_t, float>> large_bias(kMaxLogitBias, {1, 0.5f});
  builder.begin(step_id);
  for (int32_t row = 0; row < static_cast<int32_t>(seqs.size()); ++row) {
    const SeqOfStep& seq = seqs[static_cast<size_t>(row)];
    const int num_tokens = seq.num_computed_tokens + seq.query_len - seq.num_drafts;
    builder.add_row({.row = row,
                     .num_computed_tokens = seq.num_computed_tokens,
                     .num_prompt_logprobs = seq.num_prompt_logprobs,
                     .sampling = {.prompt_len = num_tokens, .num_logprobs = seq.num_logprobs},
                     .token_ids = std::span(token_ids).first(static_cast<size_t>(num_tokens)),
                     .logit_bias = seq.has_large_bias ? std::span(large_bias) : std::span(large_bias).first(0),
                     .stop_ids = {}});
    builder.add_blocks(row, 0, 1)[0] = row;
    builder.add_seq(
        {.row = row,
         .query_len = seq.query_len,
         .phase = seq.num_drafts > 0 ? SeqPhase::kDecode : SeqPhase::kPrefill,
         .flags = (seq.sample ? kSample : 0u) | (seq.num_prompt_logprobs >= 0 ? kPromptLogprobs : 0u),
         .num_computed_tokens = seq.num_computed_tokens,
         .num_drafts = seq.num_drafts,
         .drafts_begin = builder.add_drafts(std::span(token_ids).first(static_cast<size_t>(seq.num_drafts)))});
  }
  return builder.finish();
}

// The keys of the first and the last step differ in one field alone, and so do their launches.
struct KeyCase {
  const char* field;
  void (*forget)(StepKey&);
  std::vector<std::vector<SeqOfStep>> steps;
  const char* model = kModel;
};

// One case at least for each field of StepKey; decodes_only and part have theirs in mtp_drafter_test.cpp and
// late_masks_test.cpp.
std::vector<KeyCase> key_cases() {
  const SeqOfStep idle{.query_len = 4}, late{.query_len = 4, .num_computed_tokens = 1};
  const SeqOfStep shorter{.query_len = 2}, longer{.query_len = 5};
  const SeqOfStep sampled{.query_len = 4, .sample = true}, sampled_shorter{.query_len = 2, .sample = true};
  const SeqOfStep drafted{.query_len = 2, .num_computed_tokens = 1, .sample = true, .num_drafts = 1};
  const SeqOfStep with_logprobs{.query_len = 4, .sample = true, .num_logprobs = 2};
  const SeqOfStep with_top{.query_len = 4, .sample = true, .num_logprobs = 3};
  const SeqOfStep with_prompt_logprobs{.query_len = 4, .sample = true, .num_prompt_logprobs = 0};
  const std::vector<SeqOfStep> large(kMaxNumSeqs, {.query_len = 4, .has_large_bias = true});
  const auto forget_outputs = [](StepKey& key) { key.outputs = StepOutputs::kAllTokens; };
  const auto forget_num_top = [](StepKey& key) { key.num_top_logprobs = -1; };
  return {
      {"num_seqs", [](StepKey& key) { key.num_seqs = 0; }, {{sampled, idle}, {sampled, shorter, shorter}}},
      {"num_tokens", [](StepKey& key) { key.num_tokens = 0; }, {{sampled, idle}, {sampled, shorter}}},
      {"num_logits", [](StepKey& key) { key.num_logits = 0; }, {{sampled, idle, idle}, {sampled, sampled, idle}}},
      {"max_query_len",
       [](StepKey& key) { key.max_query_len = 0; },
       {{sampled, late}, {longer, {.query_len = 3, .sample = true}}}},
      {"max_seq_len", [](StepKey& key) { key.max_seq_len = 0; }, {{sampled, idle}, {sampled, late}}},
      {"outputs: all tokens, some", forget_outputs, {{with_prompt_logprobs, idle}, {sampled, idle}}},
      {"outputs: some, of all sequences", forget_outputs, {{idle, drafted}, {sampled, sampled_shorter}}},
      {"num_top_logprobs: none, some", forget_num_top, {{sampled, idle}, {with_logprobs, idle}}},
      {"num_top_logprobs: some, more", forget_num_top, {{with_logprobs, idle}, {with_top, idle}}},
      {"plan_generation", [](StepKey& key) { key.plan_generation = 0; }, {{sampled, idle}, large, {sampled, idle}}},
      {"long_prompts",
       [](StepKey& key) { key.long_prompts.num_keys = 0; },
       {{sampled, late, idle}, {sampled, late, late}},
       kLatentModel},
  };
}

RecordingLog run_steps(const KeyCase& key_case, std::function<StepKey(const StepKey&)> identity) {
  RecordingLog log;
  const auto wrapper = [&](std::unique_ptr<Device> device) {
    return make_recording_device(std::move(device), {.log = &log, .identity = identity});
  };
  const auto ranks = make_ranks(wrapper, 1, key_case.model);
  const std::vector<std::vector<SeqOfStep>>& steps = key_case.steps;
  StepPlanBuilder builder;
  StepResult result;
  for (size_t i = 0; i < steps.size(); ++i) {
    ranks->submit(write_plan(builder, i + 1, steps[i]));
    REQUIRE(ranks->collect(result).ok());
  }
  return log;
}

TEST_CASE("every field of a step's key is necessary") {
  [[maybe_unused]] const auto& [num_seqs, num_tokens, num_logits, max_query_len, max_seq_len, outputs, num_top_logprobs,
                                plan_generation, long_prompts, decodes_only,
                                part] = StepKey();  // a new field does not compile: it needs a case
  for (const KeyCase& key_case : key_cases()) {
    CAPTURE(std::string(key_case.field));
    const RecordingLog with_key = run_steps(key_case, {});
    CHECK(with_key.num_repeated == 0);
    const RecordingLog with_less = run_steps(key_case, [&](StepKey key) {
      key_case.forget(key);
      return key;
    });
    CHECK(with_less.num_repeated == 1);
    CHECK(with_less.mismatches.size() == 1);
  }
}

TEST_CASE("the next step is launched before the one in flight has begun") {
  DeferredLog log;
  const auto ranks =
      make_ranks([&](std::unique_ptr<Device> device) { return make_deferred_device(std::move(device), &log); });
  const auto plain = make_ranks([](std::unique_ptr<Device> device) { return device; });
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  const auto plan = [&](StepPlanBuilder& builder, uint64_t step_id) {
    builder.begin(step_id);
    if (step_id == 1) {
      builder.add_row(
          {.row = 0, .num_prompt_logprobs = 1, .sampling = {.prompt_len = 5, .num_logprobs = 2}, .token_ids = prompt});
      builder.add_blocks(0, 0, 1)[0] = 0;
      builder.add_seq({.row = 0, .query_len = 5, .flags = kSample | kPromptLogprobs});
    } else {
      builder.add_seq({.row = 0,
                       .query_len = 1,
                       .phase = SeqPhase::kDecode,
                       .flags = kSample,
                       .num_computed_tokens = 3 + static_cast<int32_t>(step_id)});
    }
    return builder.finish();
  };
  StepPlanBuilder first, second;
  const int64_t num_run_before = log.num_run;
  ranks->submit(plan(first, 1));
  ranks->submit(plan(second, 2));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int64_t num_launched = -1;  // until the rank's thread has launched both: nothing new for a while
  while (log.num_steps < 2 || num_launched != log.num_launched) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    num_launched = log.num_launched;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(log.num_run == num_run_before);

  StepResult result, expected;
  for (uint64_t step_id = 1; step_id <= 6; ++step_id) {
    if (step_id > 2) ranks->submit(plan(first, step_id));
    plain->submit(plan(first, step_id));
    REQUIRE(plain->collect(expected).ok());
    REQUIRE(ranks->collect(result).ok());
    if (step_id == 1) CHECK(log.num_run < log.num_launched);  // waits for its own step only
    CHECK(result.step_id == step_id);
    CHECK(result.next_token_ids == expected.next_token_ids);
    REQUIRE(result.logprobs.size() == 1);
    CHECK(result.logprobs[0].logprob == expected.logprobs[0].logprob);
    CHECK(result.logprobs[0].top.size() == 2);
    CHECK(result.prompt_logprobs.size() == (step_id == 1 ? 1 : 0));
  }
  CHECK(ranks->num_in_flight() == 0);
}

TEST_CASE("a device that runs everything late gives the same texts") {
  DeferredLog log;
  const auto ranks =
      make_ranks([&](std::unique_ptr<Device> device) { return make_deferred_device(std::move(device), &log); });
  CHECK(run(*ranks, kNumRequests) == run_plain(kNumRequests));
  CHECK(log.num_steps > 20);
}

TEST_CASE("steps of equal keys launch the same on every rank of a group") {
  RecordingLog logs[2];
  std::atomic<int> num_devices = 0;
  const auto ranks = make_ranks(
      [&](std::unique_ptr<Device> device) {
        RecordingLog* log = &logs[num_devices++];
        return make_recording_device(std::move(device), {.log = log, .padded_step = power_of_two_step});
      },
      2);
  run(*ranks, 20);
  for (const RecordingLog& log : logs) {
    CHECK(log.mismatches == std::vector<std::string>());
    CHECK(log.num_repeated > 0);
    CHECK(log.num_steps == logs[0].num_steps);
  }
}

}  // namespace
}  // namespace spate
