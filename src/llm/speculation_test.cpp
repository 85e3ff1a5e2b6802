// Goal    Speculation changes no answer: token ids, log-probabilities, finish reasons and stops are bit-identical with
//         and without it.
// Method  The bundled model with batch-invariant kernels, whole engines. Requests with all pairs of temperature, top-k,
//         top-p or min-p, penalties, logit_bias, logprobs, n, stop strings, min_tokens, a grammar and prompt logprobs run
//         under each row of a covering array: all pairs of a proposer, its settings, the loop, chunks, the size of the
//         cache (too small for all: sequences are preempted), prefix caching and ranks.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "base/test_support.h"
#include "grammar/compile_budget.h"
#include "grammar/ebnf.h"
#include "grammar/token_grammar.h"
#include "llm/loaded_model.h"
#include "quantizer/safetensors_writer.h"
#include "text/text_stream.h"
#include "weights/open_weights.h"

#include "base/test.h"

namespace spate {
namespace {

// --- the covering array ---

// Rows such that each pair of levels of each pair of factors comes in one at least: row by row, the level of each
// factor that covers most pairs that are still open.
std::vector<std::vector<int>> covering_array(const std::vector<int>& num_levels) {
  const size_t num_factors = num_levels.size();
  std::set<std::array<size_t, 4>> open;  // factor, level, later factor, its level
  for (size_t a = 0; a < num_factors; ++a) {
    for (size_t b = a + 1; b < num_factors; ++b) {
      for (int i = 0; i < num_levels[a]; ++i) {
        for (int k = 0; k < num_levels[b]; ++k) open.insert({a, static_cast<size_t>(i), b, static_cast<size_t>(k)});
      }
    }
  }
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> row(num_factors, -1);
    const std::array<size_t, 4> first = *open.begin();
    row[first[0]] = static_cast<int>(first[1]);
    row[first[2]] = static_cast<int>(first[3]);
    for (size_t f = 0; f < num_factors; ++f) {
      if (row[f] >= 0) continue;
      int best = -1;
      for (int level = 0; level < num_levels[f]; ++level) {
        int gain = 0;
        for (size_t g = 0; g < num_factors; ++g) {
          if (g == f || row[g] < 0) continue;
          const auto l = static_cast<size_t>(level), m = static_cast<size_t>(row[g]);
          gain += f < g ? open.contains({f, l, g, m}) : open.contains({g, m, f, l});
        }
        if (gain <= best) continue;
        best = gain;
        row[f] = level;
      }
    }
    for (size_t a = 0; a < num_factors; ++a) {
      for (size_t b = a + 1; b < num_factors; ++b) {
        open.erase({a, static_cast<size_t>(row[a]), b, static_cast<size_t>(row[b])});
      }
    }
    rows.push_back(row);
  }
  return rows;
}

// --- what is asked ---

struct Ask {
  std::string name;
  SamplingParams sampling;
  bool constrained = false;
};

// Of a request: all pairs of levels come in one of all_asks() at least.
enum AskFactor {
  kTemperature,
  kFilter,
  kPenalties,
  kBias,
  kLogprobs,
  kNumChoices,
  kStop,
  kMinTokens,
  kGrammar,
  kPromptLogprobs
};
const std::vector<int> kAskLevels = {2, 4, 2, 2, 3, 2, 2, 2, 2, 2};

Ask make_ask(const std::vector<int>& row) {
  Ask ask{.name = "", .sampling = {.temperature = row[kTemperature] == 1 ? 0.8f : 0, .max_tokens = 30}};
  SamplingParams& sampling = ask.sampling;
  if (row[kFilter] == 1) sampling.sampling_top_k = 5;
  if (row[kFilter] == 2) sampling.top_p = 0.8f;
  if (row[kFilter] == 3) sampling.min_p = 0.05f;
  if (row[kPenalties] == 1) {
    sampling.repetition_penalty = 1.05f;
    sampling.presence_penalty = 0.2f;
    sampling.frequency_penalty = 0.1f;
  }
  if (row[kBias] == 1) sampling.logit_bias = {{300, 6.0f}, {301, -100.0f}};
  if (row[kLogprobs] > 0) sampling.logprobs = row[kLogprobs] == 1 ? 0 : 3;
  if (row[kNumChoices] == 1) sampling.n = 3;
  if (row[kStop] == 1) sampling.stop = {"2 2 3", "8 8"};
  if (row[kMinTokens] == 1) sampling.min_tokens = 16;
  ask.constrained = row[kGrammar] == 1;
  if (row[kPromptLogprobs] == 1) sampling.prompt_logprobs = 1;
  for (const int level : row) ask.name += std::to_string(level);
  return ask;
}

std::vector<Ask> all_asks() {
  // Of these some reach the stop string.
  std::vector<Ask> asks = {
      {"greedy", {.temperature = 0, .max_tokens = 40}},
      {"stop string", {.temperature = 0, .max_tokens = 40, .stop = {"2 2 3", "8 8"}}},
      {"stop string, min_tokens", {.temperature = 0, .max_tokens = 40, .min_tokens = 16, .stop = {"2 2 3", "8 8"}}},
      {"grammar, greedy", {.temperature = 0, .max_tokens = 40, .logprobs = 1}, true},
  };
  for (const std::vector<int>& row : covering_array(kAskLevels)) asks.push_back(make_ask(row));
  return asks;
}

// A task that the model knows: the answer repeats the prompt.
std::string prompt_text(size_t ask) {
  std::string text = "<|im_start|>user\nCopy this exactly:";
  for (size_t i = 0; i < 24; ++i) text += " " + std::to_string((i * i + i / 5 + (i > 12 ? ask / 3 : 0)) % 10);
  return text + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
}

// --- one engine ---

struct Answer {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::string text, stop_string;
};

struct Run {
  std::vector<std::vector<Answer>> answers;  // [ask][index]
  EngineStats stats;
};

// Makes text of the tokens and ends a sequence at a stop string, as the server does.
class StoppingSink final : public OutputSink {
 public:
  StoppingSink(LoadedModel& model, const std::vector<Ask>& asks, Run& run) : model_(model), asks_(asks), run_(run) {}
  void push(std::vector<Output> outputs) override {
    for (Output& output : outputs) take(output);
  }

 private:
  void take(Output& output) {
    Answer& answer = run_.answers.at(output.request_id).at(static_cast<size_t>(output.index));
    if (answer.finish_reason != FinishReason::kNone) return;  // a stop string ended it; the engine did not know yet
    const SamplingParams& sampling = asks_[output.request_id].sampling;
    auto& stream = streams_[{output.request_id, output.index}];
    if (stream == nullptr) {
      stream = std::make_unique<TextStream>(
          *model_.tokenizer, TextStreamOptions{.stop = sampling.stop, .min_tokens = sampling.min_tokens},
          std::vector<int32_t>{});
    }
    for (size_t i = 0; i < output.token_ids.size() && !stream->is_stopped(); ++i) {
      answer.token_ids.push_back(output.token_ids[i]);
      if (!output.logprobs.empty()) answer.logprobs.push_back(std::move(output.logprobs[i]));
      stream->append(output.token_ids[i], answer.text);
    }
    for (TokenLogprobs& entry : output.prompt_logprobs) answer.prompt_logprobs.push_back(std::move(entry));
    answer.finish_reason = output.finish_reason;
    if (!stream->is_stopped()) return;
    answer.stop_string = stream->stop_string();
    if (output.finish_reason == FinishReason::kNone) {
      model_.engine->cancel(output.request_id, output.index, FinishReason::kStop);
    }
    answer.finish_reason = FinishReason::kStop;
  }

  LoadedModel& model_;
  const std::vector<Ask>& asks_;
  Run& run_;
  std::map<std::pair<RequestId, int>, std::unique_ptr<TextStream>> streams_;
};

constexpr const char* kDigits = R"(root ::= [0-9] (" " [0-9])* "!")";

std::shared_ptr<TokenConstraint> grammar_of(const LoadedModel& model, const char* ebnf) {
  CompileBudget budget;
  auto grammar = compile_ebnf(ebnf, budget);
  REQUIRE_MESSAGE(grammar.ok(), grammar.status().message());
  std::vector<std::string> bytes(static_cast<size_t>(model.config.vocab_size));
  for (int32_t id = 0; id < model.tokenizer->vocab_size(); ++id) {
    if (model.tokenizer->is_special(id)) continue;
    bytes[static_cast<size_t>(id)] = model.tokenizer->token_bytes(id);
  }
  const auto trie = std::make_shared<const TokenTrie>(bytes, static_cast<int>(model.config.vocab_size));
  return TokenGrammar::create(std::make_shared<const Grammar>(std::move(grammar).value()), trie).value();
}

Run run_all(const LlmConfig& llm, const char* ebnf = kDigits) {
  auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  LoadedModel& model = **loaded;
  const std::vector<Ask> asks = all_asks();
  Run run;
  const auto sink = std::make_shared<StoppingSink>(model, asks, run);
  const auto constraint = grammar_of(model, ebnf);
  std::vector<Request> requests;
  for (size_t i = 0; i < asks.size(); ++i) {
    run.answers.emplace_back(static_cast<size_t>(asks[i].sampling.n));
    Request request{.id = i,
                    .prompt_token_ids = model.tokenizer->encode(prompt_text(i)),
                    .sampling = asks[i].sampling,
                    .eos_token_ids = model.eos_token_ids,
                    .sink = sink};
    request.sampling.seed = 5 + i;
    if (asks[i].constrained) request.constraint = constraint;
    requests.push_back(std::move(request));
  }
  REQUIRE(model.engine->submit_all(std::move(requests)).ok());
  while (model.engine->step()) model.engine->check_integrity();
  run.stats = model.engine->stats();
  CHECK(run.stats.num_kv_blocks_used == 0);
  CHECK(model.engine->health().ok());
  return run;
}

void check_equal(const std::vector<TokenLogprobs>& actual, const std::vector<TokenLogprobs>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    CHECK(actual[i].token_id == expected[i].token_id);
    CHECK(actual[i].logprob == expected[i].logprob);  // bit for bit
    CHECK(actual[i].rank == expected[i].rank);
    REQUIRE(actual[i].top.size() == expected[i].top.size());
    for (size_t k = 0; k < actual[i].top.size(); ++k) {
      CHECK(actual[i].top[k].token_id == expected[i].top[k].token_id);
      CHECK(actual[i].top[k].logprob == expected[i].top[k].logprob);
    }
  }
}

void check_equal(const Run& actual, const Run& expected) {
  const std::vector<Ask> asks = all_asks();
  for (size_t i = 0; i < asks.size(); ++i) {
    for (size_t index = 0; index < expected.answers[i].size(); ++index) {
      INFO(asks[i].name << ", index " << index);
      const Answer &a = actual.answers[i][index], &e = expected.answers[i][index];
      CHECK(a.token_ids == e.token_ids);
      CHECK(a.text == e.text);
      CHECK(a.stop_string == e.stop_string);
      CHECK(a.finish_reason == e.finish_reason);
      check_equal(a.logprobs, e.logprobs);
      check_equal(a.prompt_logprobs, e.prompt_logprobs);
    }
  }
}

// --- the settings ---

LlmConfig mini_model() {
  LlmConfig llm;
  llm.model = (repo_root() / "models" / "mini-qwen3").string();
  llm.device = host_back_end().name;
  llm.device_options.deterministic = true;
  llm.max_model_len = 256;
  llm.max_num_seqs = 8;
  llm.kv_cache_bytes = int64_t{32} << 20;
  return llm;
}

std::string draft_model() { return (repo_root() / "models" / "mini-qwen3-draft").string(); }

// 16 blocks of 16 tokens: one sequence of the longest length. With a draft model a block has a place in two caches.
int64_t small_cache_bytes(const LlmConfig& llm) {
  static std::map<std::tuple<std::string, int, SpeculativeMethod, int>, int64_t> bytes;
  // Of mtp a draft more is a layer more, up to two.
  const int num_drafts = std::min(llm.speculative.num_speculative_tokens, 2);
  int64_t& known = bytes[{llm.model, llm.tensor_parallel_size, llm.speculative.method, num_drafts}];
  if (known == 0) {
    const auto model = load_model(llm);
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    const MemoryPlan& plan = (*model)->ranks->memory_plan();
    known = 16 * (plan.kv_cache_bytes / plan.num_kv_blocks);
  }
  return known;
}

// An EAGLE head for the bundled model, of its own weights: it looks at what the last layer takes, adds a little of a
// random attention, and says what the model's last norm and head make of it. So it is right now and then.
class EagleOfMini {
 public:
  static constexpr int kNumDrafted = 3096, kFirstPart = 3000, kGap = 2000;

  EagleOfMini() {
    const std::filesystem::path model = mini_model().model;
    const auto weights = open_weights(model).value();
    const TensorEntry &table = *weights->find("model.embed_tokens.weight"), &norm = *weights->find("model.norm.weight");
    REQUIRE(table.dtype_name == "BF16");
    constexpr int64_t kHidden = 320, kHeads = 8, kKvHeads = 4, kHeadDim = 64, kMlp = 64;
    const std::pair<std::string, std::vector<int64_t>> shapes[] = {
        {"fc.weight", {kHidden, 3 * kHidden}},
        {"midlayer.hidden_norm.weight", {kHidden}},
        {"midlayer.input_layernorm.weight", {kHidden}},
        {"midlayer.post_attention_layernorm.weight", {kHidden}},
        {"midlayer.self_attn.q_proj.weight", {kHeads * kHeadDim, 2 * kHidden}},
        {"midlayer.self_attn.k_proj.weight", {kKvHeads * kHeadDim, 2 * kHidden}},
        {"midlayer.self_attn.v_proj.weight", {kKvHeads * kHeadDim, 2 * kHidden}},
        {"midlayer.self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim}},
        {"midlayer.mlp.gate_proj.weight", {kMlp, kHidden}},
        {"midlayer.mlp.up_proj.weight", {kMlp, kHidden}},
        {"midlayer.mlp.down_proj.weight", {kHidden, kMlp}},
        {"norm.weight", {kHidden}},
        {"lm_head.weight", {kNumDrafted, kHidden}},
        {"d2t", {kNumDrafted}},
        {"t2d", {8192}},
    };
    std::vector<PlannedTensor> planned;
    for (const auto& [name, shape] : shapes) {
      const std::string dtype = name == "d2t" ? "I64" : name == "t2d" ? "BOOL" : "BF16";
      const int64_t num_elements = shape[0] * (shape.size() == 2 ? shape[1] : 1);
      planned.push_back({name, dtype, shape, num_elements * (dtype == "I64" ? 8 : dtype == "BOOL" ? 1 : 2)});
    }
    SafetensorsWriter writer = SafetensorsWriter::create(dir_.path(), planned).value();
    Rng rng(5);
    for (const PlannedTensor& tensor : planned) {
      std::string bytes(static_cast<size_t>(tensor.num_bytes), '\0');
      const auto value = [&](size_t i) -> float {
        const auto row = static_cast<int64_t>(i) / tensor.shape.back(),
                   column = static_cast<int64_t>(i) % tensor.shape.back();
        if (tensor.name == "fc.weight") return column == 2 * kHidden + row ? 1.0f : 0.0f;
        if (tensor.name.find("norm") != std::string::npos) return 1;
        return rng.gaussian() * (tensor.name.find("o_proj") != std::string::npos ? 0.05f : 0.03f);
      };
      if (tensor.name == "norm.weight") {
        HostTensor scratch;
        std::memcpy(bytes.data(), weights->rows(norm, 0, kHidden, scratch).value().raw(), bytes.size());
      } else if (tensor.name == "lm_head.weight") {
        for (int i = 0; i < kNumDrafted; ++i) {
          HostTensor scratch;
          const Tensor row = weights->rows(table, target_id(i), target_id(i) + 1, scratch).value();
          std::memcpy(bytes.data() + i * row.num_bytes(), row.raw(), static_cast<size_t>(row.num_bytes()));
        }
      } else if (tensor.name == "d2t") {
        for (int64_t i = 0; i < kNumDrafted; ++i) {
          const int64_t offset = target_id(static_cast<int>(i)) - i;
          std::memcpy(bytes.data() + 8 * i, &offset, 8);
        }
      } else if (tensor.name == "t2d") {
        for (int i = 0; i < kNumDrafted; ++i) bytes[static_cast<size_t>(target_id(i))] = 1;
      } else {
        for (size_t i = 0; 2 * i < bytes.size(); ++i) {
          const Bf16 element = Bf16::from_float(value(i));
          std::memcpy(bytes.data() + 2 * i, &element, 2);
        }
      }
      REQUIRE(writer.write(tensor.name, 0, bytes.data(), std::ssize(bytes)).ok());
    }
    REQUIRE(writer.finish().ok());
    std::ofstream(dir_.path() / "config.json")
        << R"({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
      "hidden_size": 320, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4,
      "head_dim": 64, "vocab_size": 8192, "draft_vocab_size": 3096, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
      "eagle_aux_hidden_state_layer_ids": [1, 3, 5]})";
  }
  std::string path() const { return dir_.path().string(); }

 private:
  static int target_id(int draft_id) { return draft_id < kFirstPart ? draft_id : draft_id + kGap; }
  const TempDir dir_;
};

// mini-deepseek with its layer for multi-token prediction twice.
class MiniOfTwoLayers {
 public:
  MiniOfTwoLayers() {
    const std::filesystem::path model = repo_root() / "models" / "mini-deepseek";
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}) {
      std::filesystem::copy(model / name, dir_.path() / name);
    }
    std::string config = read_file_or_die(model / "config.json");
    const std::string one = "\"num_nextn_predict_layers\": 1", first = "model.layers.5.", second = "model.layers.6.";
    REQUIRE(config.find(one) != std::string::npos);
    config.replace(config.find(one), one.size(), "\"num_nextn_predict_layers\": 2");
    std::ofstream(dir_.path() / "config.json") << config;
    const auto weights = open_weights(model).value();
    std::vector<PlannedTensor> planned;
    std::vector<const TensorEntry*> sources;
    for (const TensorEntry& entry : weights->entries()) {
      std::vector<std::string> names = {entry.name};
      if (entry.name.starts_with(first)) names.push_back(second + entry.name.substr(first.size()));
      for (const std::string& name : names) {
        planned.push_back({name, entry.dtype_name, entry.shape, static_cast<int64_t>(entry.num_bytes)});
        sources.push_back(&entry);
      }
    }
    SafetensorsWriter writer = SafetensorsWriter::create(dir_.path(), planned).value();
    for (size_t i = 0; i < planned.size(); ++i) {
      HostTensor scratch;
      const Tensor rows = weights->rows(*sources[i], 0, sources[i]->shape[0], scratch).value();
      REQUIRE(writer.write(planned[i].name, 0, static_cast<const char*>(rows.raw()), planned[i].num_bytes).ok());
    }
    REQUIRE(writer.finish().ok());
  }
  std::string path() const { return dir_.path().string(); }

 private:
  const TempDir dir_;
};

// Method, drafts, adaptive, overlapped loop, chunked prefill, small cache (preemption), prefix caching, ranks.
const std::vector<int> kSettingLevels = {4, 3, 2, 2, 2, 2, 2, 2};
// The same of one method, and how many layers draft.
const std::vector<int> kLayerSettingLevels = {3, 2, 2, 2, 2, 2, 2, 2};

// Counted anew, not by what covering_array() itself keeps of open pairs. All requests run under every row of settings,
// so pairs of a setting and a way to ask are covered too.
TEST_CASE("requests and settings cover all pairs of their levels") {
  for (const std::vector<int>& num_levels : {kAskLevels, kSettingLevels, kLayerSettingLevels}) {
    const std::vector<std::vector<int>> rows = covering_array(num_levels);
    CAPTURE(rows.size());
    CHECK(rows.size() <= 24);  // far from all combinations
    for (size_t a = 0; a < num_levels.size(); ++a) {
      for (size_t b = a + 1; b < num_levels.size(); ++b) {
        std::set<std::pair<int, int>> seen;
        for (const std::vector<int>& row : rows) {
          CHECK(row.size() == num_levels.size());
          seen.insert({row[a], row[b]});
        }
        CHECK(static_cast<int>(seen.size()) == num_levels[a] * num_levels[b]);
      }
    }
  }
  // The rows become requests that differ in what their levels say.
  const std::vector<Ask> asks = all_asks();
  const auto num_with = [&](const std::function<bool(const Ask&)>& has) { return std::ranges::count_if(asks, has); };
  const std::function<bool(const Ask&)> options[] = {
      [](const Ask& ask) { return ask.sampling.temperature == 0; },
      [](const Ask& ask) { return ask.sampling.temperature > 0; },
      [](const Ask& ask) { return ask.sampling.sampling_top_k > 0; },
      [](const Ask& ask) { return ask.sampling.top_p < 1; },
      [](const Ask& ask) { return ask.sampling.min_p > 0; },
      [](const Ask& ask) { return ask.sampling.repetition_penalty != 1 && ask.sampling.presence_penalty != 0; },
      [](const Ask& ask) { return !ask.sampling.logit_bias.empty(); },
      [](const Ask& ask) { return ask.sampling.logprobs.has_value(); },
      [](const Ask& ask) { return ask.sampling.n > 1; },
      [](const Ask& ask) { return !ask.sampling.stop.empty(); },
      [](const Ask& ask) { return ask.sampling.min_tokens > 0; },
      [](const Ask& ask) { return ask.constrained; },
  };
  for (size_t a = 0; a < std::size(options); ++a) {
    CAPTURE(a);
    CHECK(num_with(options[a]) > 0);
    for (size_t b = a + 1; b < std::size(options); ++b) {
      const bool excludes = a == 0 && b == 1;        // greedy is no temperature
      const bool is_filter_pair = a >= 2 && b <= 4;  // a request of the array has one filter
      if (excludes || is_filter_pair) continue;
      CAPTURE(b);
      CHECK(num_with([&](const Ask& ask) { return options[a](ask) && options[b](ask); }) > 0);
    }
  }
}

TEST_CASE("speculation changes no answer, over all pairs of settings") {
  enum Factor { kMethod, kDrafts, kAdaptive, kLoop, kChunks, kCache, kPrefix, kRanks };
  const SpeculativeMethod methods[] = {SpeculativeMethod::kNgram, SpeculativeMethod::kReference,
                                       SpeculativeMethod::kDraftModel, SpeculativeMethod::kEagle};
  const EagleOfMini eagle;
  const int drafts[] = {1, 4, 16};
  std::map<int, Run> expected;  // by the number of ranks
  for (const int tp : {1, 2}) {
    LlmConfig llm = mini_model();
    llm.tensor_parallel_size = tp;
    expected.emplace(tp, run_all(llm));
    CHECK(expected.at(tp).stats.num_drafts == 0);
    const auto& answers = expected.at(tp).answers;
    const auto has_stop = [](const auto& choices) { return !choices[0].stop_string.empty(); };
    INFO("the first answer: " << answers[0][0].text << "; with a stop string: " << answers[1][0].text);
    CHECK(std::ranges::any_of(answers, has_stop));
  }
  std::set<SpeculativeMethod> preempted_with;
  for (const std::vector<int>& row : covering_array(kSettingLevels)) {
    LlmConfig llm = mini_model();
    llm.tensor_parallel_size = 1 + row[kRanks];
    llm.speculative.method = methods[row[kMethod]];
    if (llm.speculative.method == SpeculativeMethod::kDraftModel) llm.speculative.model = draft_model();
    if (llm.speculative.method == SpeculativeMethod::kEagle) llm.speculative.model = eagle.path();
    llm.speculative.num_speculative_tokens = drafts[row[kDrafts]];
    llm.speculative.adaptive = row[kAdaptive] == 1;
    llm.speculative.prompt_lookup_min = 1;  // short matches are wrong often
    llm.async_scheduling = row[kLoop] == 1;
    if (row[kChunks] == 1) llm.max_num_batched_tokens = 48;
    if (row[kCache] == 1) llm.kv_cache_bytes = small_cache_bytes(llm);
    llm.enable_prefix_caching = row[kPrefix] == 1;
    INFO("method " << speculative_method_name(llm.speculative.method) << ", drafts "
                   << llm.speculative.num_speculative_tokens << ", adaptive " << row[kAdaptive] << ", overlapped "
                   << row[kLoop] << ", chunks " << row[kChunks] << ", small cache " << row[kCache] << ", prefix "
                   << row[kPrefix] << ", ranks " << 1 + row[kRanks]);
    const Run run = run_all(llm);
    check_equal(run, expected.at(llm.tensor_parallel_size));
    CHECK((run.stats.num_preemptions == 0 || row[kCache] == 1));
    if (run.stats.num_preemptions > 0) preempted_with.insert(llm.speculative.method);
    CHECK((run.stats.prefix_cache_hits > 0) == (row[kPrefix] == 1));
    if (llm.speculative.adaptive) continue;
    CHECK(run.stats.num_drafts_accepted > 0);
    CHECK(run.stats.num_drafts_accepted < run.stats.num_drafts);
    CHECK(run.stats.num_drafted_rows <= run.stats.num_drafts);
    CHECK(run.stats.num_accepted_at[0] <= run.stats.num_drafted_rows);
  }
  CHECK(preempted_with.size() == std::size(methods));
}

TEST_CASE("the model's own layers change no answer, over all pairs of settings") {
  enum Factor { kDrafts, kAdaptive, kLoop, kChunks, kCache, kPrefix, kRanks, kLayers };
  const MiniOfTwoLayers two_layers;
  const int drafts[] = {1, 2, 5};
  const auto mini_deepseek = [](int tp) {
    LlmConfig llm = mini_model();
    llm.model = (repo_root() / "models" / "mini-deepseek").string();
    llm.tensor_parallel_size = tp;
    return llm;
  };
  std::map<int, Run> expected;  // by the number of ranks
  for (const int tp : {1, 2}) expected.emplace(tp, run_all(mini_deepseek(tp)));
  int64_t num_preemptions = 0;
  for (const std::vector<int>& row : covering_array(kLayerSettingLevels)) {
    LlmConfig llm = mini_deepseek(1 + row[kRanks]);
    if (row[kLayers] == 1) llm.model = two_layers.path();
    llm.speculative = {.method = SpeculativeMethod::kMtp,
                       .num_speculative_tokens = drafts[row[kDrafts]],
                       .adaptive = row[kAdaptive] == 1};
    llm.async_scheduling = row[kLoop] == 1;
    if (row[kChunks] == 1) llm.max_num_batched_tokens = 48;
    if (row[kCache] == 1) llm.kv_cache_bytes = small_cache_bytes(llm);
    llm.enable_prefix_caching = row[kPrefix] == 1;
    INFO("drafts " << llm.speculative.num_speculative_tokens << ", adaptive " << row[kAdaptive] << ", overlapped "
                   << row[kLoop] << ", chunks " << row[kChunks] << ", small cache " << row[kCache] << ", prefix "
                   << row[kPrefix] << ", ranks " << 1 + row[kRanks] << ", layers " << 1 + row[kLayers]);
    const Run run = run_all(llm);
    check_equal(run, expected.at(llm.tensor_parallel_size));
    num_preemptions += static_cast<int64_t>(run.stats.num_preemptions);
    CHECK((run.stats.prefix_cache_hits > 0) == (row[kPrefix] == 1));
    if (llm.speculative.adaptive) continue;
    CHECK(run.stats.num_drafts_accepted > 0);
    CHECK(run.stats.num_drafts_accepted < run.stats.num_drafts);
  }
  CHECK(num_preemptions > 0);
}

// Fields with long names, as of a JSON Schema: most of the text is no choice of the model.
constexpr const char* kRecord =
    R"(root ::= "{\"identifier\": " [0-9]{1,3} ", \"description\": \"" [a-z ]{0,12} "\", \"is_available\": " ("true" | "false") "}")";

TEST_CASE("what a grammar forces comes in fewer steps, and no answer changes") {
  LlmConfig llm = mini_model();
  llm.speculative.jump_forward = false;
  const Run expected = run_all(llm, kRecord);
  CHECK(expected.stats.num_drafts == 0);
  REQUIRE(all_asks()[3].constrained);
  CHECK(expected.answers[3][0].text.starts_with("{\"identifier\": "));
  for (const bool adaptive : {false, true}) {
    for (const bool async_scheduling : {false, true}) {
      for (const SpeculativeMethod method : {SpeculativeMethod::kNone, SpeculativeMethod::kNgram}) {
        INFO("adaptive " << adaptive << ", overlapped " << async_scheduling << ", method "
                         << speculative_method_name(method));
        llm.speculative = {.method = method, .jump_forward = true, .adaptive = adaptive};
        llm.async_scheduling = async_scheduling;
        const Run run = run_all(llm, kRecord);
        check_equal(run, expected);
        // The overlapped loop does not wait for what a form forces while requests without one run.
        if (adaptive || async_scheduling || method != SpeculativeMethod::kNone) continue;
        // The model may divide a forced text into other tokens than the longest ones, and this one often does.
        CHECK(run.stats.num_drafts_accepted >= 30);
      }
    }
  }
}

TEST_CASE("a request may turn speculation off, and a text that it brings is followed") {
  LlmConfig llm = mini_model();
  llm.speculative = {.method = SpeculativeMethod::kReference, .num_speculative_tokens = 8, .adaptive = false};
  auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  LoadedModel& model = **loaded;
  Run run;
  const std::vector<Ask> asks(3, {"", {.temperature = 0, .max_tokens = 32}});
  run.answers.resize(3, std::vector<Answer>(1));
  const auto sink = std::make_shared<StoppingSink>(model, asks, run);
  const auto ask = [&](RequestId id, bool speculate, std::vector<std::vector<int32_t>> reference) {
    const uint64_t before = model.engine->stats().num_drafts_accepted;
    REQUIRE(model.engine
                ->submit({.id = id,
                          .prompt_token_ids = model.tokenizer->encode("The story of a little bird: "),
                          .sampling = asks[id].sampling,
                          .speculate = speculate,
                          .speculative_reference = std::move(reference),
                          .sink = sink})
                .ok());
    while (model.engine->step()) model.engine->check_integrity();
    return model.engine->stats().num_drafts_accepted - before;
  };
  CHECK(ask(0, false, {}) == 0);
  const std::vector<int32_t> text = run.answers[0][0].token_ids;
  CHECK(model.engine->stats().num_drafts == 0);
  // Nearly all of the answer comes from the text: two tokens lead into it, and one of each step is the model's.
  CHECK(ask(1, true, {text}) >= text.size() * 3 / 4);
  CHECK(run.answers[1][0].token_ids == text);
  CHECK(ask(2, false, {text}) == 0);
  CHECK(run.answers[2][0].token_ids == text);
}

TEST_CASE("a draft model that cannot draft is refused by name") {
  const TempDir dir;
  const auto message = [](LlmConfig llm, const std::string& model) {
    llm.speculative.method = SpeculativeMethod::kDraftModel;
    llm.speculative.model = model;
    const auto loaded = load_model(llm);
    return loaded.ok() ? std::string() : loaded.status().message();
  };
  const auto copy_of_draft = [&](const char* name, const char* file, const std::string& from, const std::string& to) {
    const std::filesystem::path copy = dir.path() / name;
    std::filesystem::copy(draft_model(), copy);
    std::string text = read_file_or_die(copy / file);
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), to);
    std::ofstream(copy / file) << text;
    return copy.string();
  };
  CHECK(message(mini_model(), "") == "--speculative-config: method draft_model needs the field model: a folder, or a *.gguf file");
  CHECK(message(mini_model(), "nowhere") ==
        "--speculative-config: model 'nowhere' does not exist; give the folder that holds config.json, or a *.gguf file");
  const std::string other_size = copy_of_draft("size", "config.json", "\"vocab_size\": 8192", "\"vocab_size\": 8191");
  CHECK(message(mini_model(), other_size) ==
        "--speculative-config: model " + other_size +
            ": its vocab_size is 8191, the model's is 8192; drafts must be tokens of the same vocabulary");
  const std::string other_token = copy_of_draft("token", "tokenizer.json", "<|im_end|>", "<|im_over|>");
  CHECK(message(mini_model(), other_token) == "--speculative-config: model " + other_token +
                                                  " has another vocabulary: its token 8185 is '<|im_over|>', the model's is "
                                                  "'<|im_end|>'");
  const std::string other_model = copy_of_draft("model", "config.json", "Qwen3ForCausalLM", "BertForMaskedLM");
  CHECK(message(mini_model(), other_model).find("--speculative-config: model " + other_model) == 0);
  const std::string no_tokenizer = copy_of_draft("no tokenizer", "config.json", "8192", "8192");
  std::filesystem::remove(std::filesystem::path(no_tokenizer) / "tokenizer.json");
  CHECK(message(mini_model(), no_tokenizer).find("it has no tokenizer.json") != std::string::npos);
  const std::string no_embedding = copy_of_draft("no embedding", "model.safetensors", "embed_tokens", "embed_tokenz");
  CHECK(message(mini_model(), no_embedding).find("embed_tokens") != std::string::npos);
  const std::string short_draft =
      copy_of_draft("short", "config.json", "\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 128");
  CHECK(message(mini_model(), short_draft) ==
        "--speculative-config: model: --max-model-len 256: the model has 128 positions; use at most that");
  LlmConfig longest = mini_model();
  longest.max_model_len = 0;
  longest.kv_cache_bytes = int64_t{256} << 20;
  CHECK(message(longest, short_draft) ==
        "--speculative-config: model reaches 128 positions, sequences up to 4096: use --max-model-len 128, or another draft");
}

TEST_CASE("what cannot speculate is refused before weights are read, by field and bound") {
  const auto message = [](const SpeculativeConfig& speculative) {
    LlmConfig llm = mini_model();
    llm.speculative = speculative;
    const auto loaded = load_model(llm);
    return loaded.ok() ? std::string() : std::string(loaded.status().message());
  };
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kReference, SpeculativeMethod::kDraftModel,
                                         SpeculativeMethod::kMtp, SpeculativeMethod::kEagle}) {
    for (const int k : {-1, 0, 17, 100}) {
      CHECK(message({.method = method, .num_speculative_tokens = k, .model = runs_a_model(method) ? draft_model() : ""}) ==
            "--speculative-config: num_speculative_tokens must be in [1, 16], got " + std::to_string(k));
    }
  }
  CHECK(message({.method = SpeculativeMethod::kMtp}) ==
        "--speculative-config: method mtp needs a layer for multi-token prediction: config.json of Qwen3ForCausalLM has no "
        "num_nextn_predict_layers");
  CHECK(message({.method = SpeculativeMethod::kEagle}) ==
        "--speculative-config: method eagle needs the field model: a folder");
  CHECK(message({.method = SpeculativeMethod::kEagle, .model = "nowhere"}) ==
        "--speculative-config: model 'nowhere' does not exist; give the folder that holds the head's config.json");
  const std::string other = (repo_root() / "test" / "goldens" / "eagle" / "head").string();
  const std::string refused = message({.method = SpeculativeMethod::kEagle, .model = other});
  INFO(refused);
  CHECK(refused.find("--speculative-config: model " + other + ": config.json: ") == 0);
  CHECK(refused.find("hidden_size is 48, needs 320: the head belongs to a model of that size") != std::string::npos);
  CHECK(refused.find("vocab_size is 160, needs 8192: drafts must be tokens of the same vocabulary") != std::string::npos);
  CHECK(message({.method = SpeculativeMethod::kEagle, .model = draft_model()}) ==
        "--speculative-config: model " + draft_model() +
            ": config.json: architectures is [Qwen3ForCausalLM], needs LlamaForCausalLMEagle3: an EAGLE-3 head");
}

TEST_CASE("a draft model that is the target itself is always right") {
  LlmConfig llm = mini_model();
  llm.speculative = {.method = SpeculativeMethod::kDraftModel, .num_speculative_tokens = 4, .model = llm.model, .adaptive = false};
  const Run run = run_all(llm);
  // The same weights, the same noise, the same masks: only batches of other sizes round otherwise, and not under --deterministic.
  CHECK(run.stats.num_drafts_accepted > 0);
  CHECK(run.stats.num_drafts_accepted * 100 >= run.stats.num_drafts * 97);
}

}  // namespace
}  // namespace spate
