// Goal    Speculation changes no answer: token ids, log-probabilities, finish reasons and stops are bit-identical with and
//         without it.
// Method  The bundled model with batch-invariant kernels, whole engines. Every way to ask for an answer runs under each
//         row of a covering array: all pairs of a proposer, its settings, the loop, chunks, the size of the cache (too
//         small for all: sequences are preempted), prefix caching and ranks.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/test_support.h"
#include "grammar/compile_budget.h"
#include "grammar/ebnf.h"
#include "grammar/token_grammar.h"
#include "llm/loaded_model.h"
#include "text/text_stream.h"
#include "base/test.h"

namespace spate {
namespace {

// --- what is asked ---

struct Ask {
  const char* name;
  SamplingParams sampling;
  bool constrained = false;
};

std::vector<Ask> all_asks() {
  return {
      {"greedy", {.temperature = 0, .max_tokens = 40}},
      {"greedy, log-probabilities", {.temperature = 0, .max_tokens = 30, .logprobs = 3}},
      {"temperature", {.temperature = 0.8f, .max_tokens = 30, .logprobs = 0}},
      {"top-k", {.sampling_top_k = 5, .max_tokens = 30}},
      {"top-p, min_tokens", {.temperature = 0.7f, .top_p = 0.8f, .max_tokens = 30, .min_tokens = 20}},
      {"min-p", {.temperature = 1.2f, .min_p = 0.05f, .max_tokens = 30}},
      {"penalties",
       {.temperature = 0.6f,
        .repetition_penalty = 1.05f,
        .presence_penalty = 0.2f,
        .frequency_penalty = 0.1f,
        .max_tokens = 30,
        .logprobs = 1}},
      {"logit_bias", {.temperature = 0, .logit_bias = {{300, 6.0f}, {301, -100.0f}}, .max_tokens = 30}},
      {"n", {.n = 3, .temperature = 0.7f, .max_tokens = 24}},
      {"stop string", {.temperature = 0, .max_tokens = 40, .stop = {"1 1 2"}}},
      {"stop string, min_tokens", {.temperature = 0, .max_tokens = 40, .min_tokens = 16, .stop = {"1 1 2"}}},
      {"prompt log-probabilities", {.temperature = 0, .max_tokens = 12, .prompt_logprobs = 1}},
      {"grammar, greedy", {.temperature = 0, .max_tokens = 40, .logprobs = 1}, true},
      {"grammar, sampled", {.n = 2, .temperature = 0.9f, .max_tokens = 30}, true},
  };
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

// --- the covering array ---

// Rows such that each pair of levels of each pair of factors comes in one at least: row by row, the level of each factor
// that covers most pairs that are still open.
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
  static std::map<std::pair<int, SpeculativeMethod>, int64_t> bytes;
  int64_t& known = bytes[{llm.tensor_parallel_size, llm.speculative.method}];
  if (known == 0) {
    const auto model = load_model(llm);
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    const MemoryPlan& plan = (*model)->ranks->memory_plan();
    known = 16 * (plan.kv_cache_bytes / plan.num_kv_blocks);
  }
  return known;
}

TEST_CASE("speculation changes no answer, over all pairs of settings") {
  enum Factor { kMethod, kDrafts, kAdaptive, kLoop, kChunks, kCache, kPrefix, kRanks };
  const SpeculativeMethod methods[] = {SpeculativeMethod::kNgram, SpeculativeMethod::kReference,
                                       SpeculativeMethod::kDraftModel};
  const int drafts[] = {1, 4, 16};
  std::map<int, Run> expected;  // by the number of ranks
  for (const int tp : {1, 2}) {
    LlmConfig llm = mini_model();
    llm.tensor_parallel_size = tp;
    expected.emplace(tp, run_all(llm));
    CHECK(expected.at(tp).stats.num_drafts == 0);
    const auto& answers = expected.at(tp).answers;
    const auto has_stop = [](const auto& choices) { return !choices[0].stop_string.empty(); };
    INFO("the first answer: " << answers[0][0].text << "; with a stop string: " << answers[9][0].text);
    CHECK(std::ranges::any_of(answers, has_stop));
  }
  std::set<SpeculativeMethod> preempted_with;
  for (const std::vector<int>& row : covering_array({3, 3, 2, 2, 2, 2, 2, 2})) {
    LlmConfig llm = mini_model();
    llm.speculative.method = methods[row[kMethod]];
    if (llm.speculative.method == SpeculativeMethod::kDraftModel) llm.speculative.model = draft_model();
    llm.speculative.num_speculative_tokens = drafts[row[kDrafts]];
    llm.speculative.adaptive = row[kAdaptive] == 1;
    llm.speculative.prompt_lookup_min = 1;  // short matches are wrong often
    llm.async_scheduling = row[kLoop] == 1;
    if (row[kChunks] == 1) llm.max_num_batched_tokens = 48;
    if (row[kCache] == 1) llm.kv_cache_bytes = small_cache_bytes(llm);
    llm.enable_prefix_caching = row[kPrefix] == 1;
    llm.tensor_parallel_size = 1 + row[kRanks];
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

TEST_CASE("the model's own layer changes no answer, over all pairs of settings") {
  enum Factor { kDrafts, kAdaptive, kLoop, kChunks, kCache, kPrefix, kRanks };
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
  for (const std::vector<int>& row : covering_array({3, 2, 2, 2, 2, 2, 2})) {
    LlmConfig llm = mini_deepseek(1 + row[kRanks]);
    llm.speculative = {.method = SpeculativeMethod::kMtp,
                       .num_speculative_tokens = drafts[row[kDrafts]],
                       .adaptive = row[kAdaptive] == 1};
    llm.async_scheduling = row[kLoop] == 1;
    if (row[kChunks] == 1) llm.max_num_batched_tokens = 48;
    if (row[kCache] == 1) llm.kv_cache_bytes = small_cache_bytes(llm);
    llm.enable_prefix_caching = row[kPrefix] == 1;
    INFO("drafts " << llm.speculative.num_speculative_tokens << ", adaptive " << row[kAdaptive] << ", overlapped "
                   << row[kLoop] << ", chunks " << row[kChunks] << ", small cache " << row[kCache] << ", prefix "
                   << row[kPrefix] << ", ranks " << 1 + row[kRanks]);
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
  CHECK(expected.answers[12][0].text.starts_with("{\"identifier\": "));
  for (const bool adaptive : {false, true}) {
    for (const bool async_scheduling : {false, true}) {
      for (const SpeculativeMethod method : {SpeculativeMethod::kNone, SpeculativeMethod::kNgram}) {
        INFO("adaptive " << adaptive << ", overlapped " << async_scheduling << ", method "
                         << speculative_method_name(method));
        llm.speculative = {.method = method, .jump_forward = true, .adaptive = adaptive};
        llm.async_scheduling = async_scheduling;
        const Run run = run_all(llm, kRecord);
        check_equal(run, expected);
        if (adaptive || method != SpeculativeMethod::kNone) continue;
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
