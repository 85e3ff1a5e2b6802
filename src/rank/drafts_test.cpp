// Goal    Drafts never change an answer: tokens, log-probabilities and finish reasons are the same with and without
//         them.
// Method  The plainest proposer (DraftSource::kRepeat) over real ranks, and a layer for multi-token prediction of random
//         weights. A bias makes one token likely, so that of the drafts some are accepted and some are not. The bundled model on the host back-end with
//         batch-invariant kernels, and a tiny one on the oracle; greedy and every way to sample; both loops; one rank
//         and two; prompts that begin alike and come in chunks; memory so tight that sequences are preempted. Token
//         masks come with plans written by hand, whose drafts are partly right.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <utility>

#include "backend/registry/registry.h"
#include "base/test.h"
#include "base/test_support.h"
#include "batch/plan_builder.h"
#include "rank/rank_group.h"
#include "rank/rank_rig.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

constexpr int32_t kLikelyToken = 9;

Request request_of(std::vector<int32_t> prompt, SamplingParams sampling, float bias) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling = std::move(sampling);
  request.sampling.seed = 11;
  if (bias != 0) request.sampling.logit_bias = {{kLikelyToken, bias}};
  request.eos_token_ids = {12};
  return request;
}

std::vector<Request> all_requests(float bias) {
  const SamplingParams ways[] = {
      {.temperature = 0, .max_tokens = 20},
      {.temperature = 0, .max_tokens = 21, .logprobs = 3},
      {.max_tokens = 20, .logprobs = 0},
      {.sampling_top_k = 5, .max_tokens = 20},
      {.top_p = 0.7f, .max_tokens = 20, .min_tokens = 9},
      {.temperature = 1.3f, .min_p = 0.02f, .max_tokens = 20},
      {.repetition_penalty = 1.1f,
       .presence_penalty = 0.3f,
       .frequency_penalty = 0.2f,
       .max_tokens = 20,
       .logprobs = 1},
      {.n = 3, .max_tokens = 17},
      {.temperature = 0, .max_tokens = 10, .min_tokens = 4, .stop_token_ids = {kLikelyToken}},
      {.temperature = 0, .max_tokens = 12, .prompt_logprobs = 2},
  };
  std::vector<Request> requests;
  for (const SamplingParams& sampling : ways) {
    std::vector<int32_t> prompt{5, 6, 7, 8, 9, 10, 11, 12};
    prompt.insert(prompt.end(), requests.size(), static_cast<int32_t>(20 + requests.size()));
    requests.push_back(request_of(std::move(prompt), sampling, requests.size() == 8 ? 0 : bias));
  }
  return requests;
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

void check_equal(const RankRun& actual, const RankRun& expected) {
  for (size_t i = 0; i < expected.answers.size(); ++i) {
    for (size_t index = 0; index < expected.answers[i].size(); ++index) {
      CAPTURE(i);
      CAPTURE(index);
      const RankAnswer &a = actual.answers[i][index], &e = expected.answers[i][index];
      CHECK(a.token_ids == e.token_ids);
      CHECK(a.finish_reason == e.finish_reason);
      check_equal(a.logprobs, e.logprobs);
      check_equal(a.prompt_logprobs, e.prompt_logprobs);
    }
  }
}

// The same with prompts of 42 tokens, whose first 34 are common: two blocks.
std::vector<Request> long_requests(float bias) {
  std::vector<Request> requests = all_requests(bias);
  for (Request& request : requests) {
    std::vector<int32_t> prompt(34);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(14 + i % 5);
    prompt.insert(prompt.end(), request.prompt_token_ids.end() - 8, request.prompt_token_ids.end());
    request.prompt_token_ids = std::move(prompt);
  }
  return requests;
}

struct DraftVariant {
  int num_drafts;
  bool async_scheduling;
  int num_kv_blocks;
};

void check_drafts(RankRig rig, const std::vector<Request>& requests, std::initializer_list<DraftVariant> variants) {
  const SpeculativeConfig speculative = std::exchange(rig.engine.speculative, {});
  const RankRun expected = run_requests(rig, requests);
  CHECK(expected.num_drafts == 0);
  rig.engine.speculative = speculative;
  if (speculative.method != SpeculativeMethod::kNone) rig.engine.draft_source = DraftSource::kProposer;
  for (const DraftVariant& variant : variants) {
    CAPTURE(variant.num_drafts);
    CAPTURE(variant.async_scheduling);
    rig.engine.num_drafts = variant.num_drafts;
    rig.engine.speculative.num_speculative_tokens = variant.num_drafts;
    rig.engine.async_scheduling = variant.async_scheduling;
    rig.engine.num_kv_blocks = variant.num_kv_blocks;
    const RankRun run = run_requests(rig, requests);
    check_equal(run, expected);
    CHECK(run.num_drafts_accepted > 0);
    CHECK(run.num_drafts_accepted < run.num_drafts);
    CHECK((run.num_preemptions > 0) == (variant.num_kv_blocks < 64));
    CHECK((run.prefix_cache_hits > 0) == (requests[0].prompt_token_ids.size() > 32));
  }
}

void check_all(RankRig rig, float bias) {
  if (kIsThreadSanitized) {
    rig.tensor_parallel_size = 2;
    return check_drafts(rig, all_requests(bias), {{4, true, 64}});
  }
  check_drafts(rig, all_requests(bias),
               {{1, true, 64}, {4, true, 64}, {4, false, 64}, {kMaxDrafts, false, 64}, {3, true, 12}});
  rig.engine.limits.max_num_batched_tokens = 20;  // two steps and more a prompt
  rig.engine.limits.max_num_seqs = 4;             // later prompts find what the first ones have computed
  check_drafts(rig, long_requests(bias), {{4, true, 64}, {2, false, 64}, {3, true, 7}});
  rig.tensor_parallel_size = 2;
  check_drafts(rig, long_requests(bias), {{4, true, 64}, {3, false, 7}});
}

TEST_CASE("drafts change no answer: a tiny model on the oracle") {
  const std::filesystem::path dir = repo_root() / "test" / "goldens" / "model" / "qwen3_yarn_one_kv_head";
  const Checkpoint weights = Checkpoint::open(dir).value();
  check_all({.model_dir = dir, .weights = &weights, .back_end = &oracle_back_end()}, 3.0f);
}

TEST_CASE("drafts change no answer: the bundled model on the host back-end") {
  const std::filesystem::path dir = repo_root() / "models" / "mini-qwen3";
  const Checkpoint weights = Checkpoint::open(dir).value();
  check_all({.model_dir = dir, .weights = &weights, .back_end = &host_back_end(), .dtype = DType::kBf16}, 8.0f);
}

TEST_CASE("drafts change no answer: a layer for multi-token prediction, on the oracle and the host back-end") {
  std::string_view name = "deepseek_v3_mtp";
  SUBCASE("two layers") { name = "deepseek_v3_mtp2"; }
  SUBCASE("keys and values of heads") { name = "glm4_moe_mtp"; }
  SUBCASE("ERNIE's names") { name = "ernie4_5_moe_mtp"; }
  const std::filesystem::path dir = repo_root() / "test" / "goldens" / "model" / name;
  const Checkpoint weights = Checkpoint::open(dir).value();
  RankRig rig{.model_dir = dir, .weights = &weights, .back_end = &oracle_back_end()};
  rig.engine.speculative = {.method = SpeculativeMethod::kMtp, .adaptive = false};
  SUBCASE("host") { rig.back_end = &host_back_end(); }
  SUBCASE("host, bf16") {
    rig.back_end = &host_back_end();
    rig.dtype = DType::kBf16;
  }
  check_all(rig, 3.0f);
}

TEST_CASE("drafts change no answer: an EAGLE head, on the oracle and the host back-end") {
  const std::filesystem::path dir = repo_root() / "test" / "goldens" / "eagle";
  const Checkpoint weights = Checkpoint::open(dir / "target").value();
  RankRig rig{.model_dir = dir / "target", .weights = &weights, .back_end = &oracle_back_end()};
  rig.engine.speculative = {
      .method = SpeculativeMethod::kEagle, .model = (dir / "head_all_tokens").string(), .adaptive = false};
  SUBCASE("host") { rig.back_end = &host_back_end(); }
  SUBCASE("host, bf16") {
    rig.back_end = &host_back_end();
    rig.dtype = DType::kBf16;
  }
  check_all(rig, 3.0f);
}

// --- token masks ---

constexpr int kMaskedLen = 40;

// Allowed before the token at `position`: a few ids that change from place to place.
std::vector<uint32_t> mask_at(int position, int64_t vocab_size) {
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words_of(vocab_size)), 0);
  for (int id = position % 5; id < vocab_size; id += 3 + position % 4) {
    mask[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
  }
  return mask;
}

struct MaskedText {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;
  int num_drafts = 0, num_accepted = 0;
};

// One sequence with a mask for every token that it may choose. draft_at(position) proposes the token there.
MaskedText generate_masked(RankGroup& ranks, const RowSampling& sampling, int64_t vocab_size, int num_drafts,
                           const std::function<int32_t(int)>& draft_at) {
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9};
  const int prompt_len = static_cast<int>(prompt.size());
  MaskedText text;
  StepPlanBuilder builder;
  StepResult result;
  int num_tokens = prompt_len;
  static uint64_t step_id = 0;
  for (bool first = true; num_tokens < kMaskedLen; first = false) {
    const int k = first ? 0 : std::min(num_drafts, kMaskedLen - 1 - num_tokens);
    builder.begin(++step_id);
    if (first) {
      builder.add_row({.row = 0, .sampling = sampling, .token_ids = prompt, .logit_bias = {}, .stop_ids = {}});
      const std::span<int32_t> block_ids = builder.add_blocks(0, 0, 4);
      for (size_t i = 0; i < block_ids.size(); ++i) block_ids[i] = static_cast<int32_t>(3 - i);
    }
    std::vector<int32_t> drafts;
    for (int i = 0; i < k; ++i) drafts.push_back(draft_at(num_tokens + i));
    int first_mask = 0;
    std::vector<std::vector<uint32_t>> masks;  // until finish()
    for (int i = 0; i <= k; ++i) masks.push_back(mask_at(num_tokens + i, vocab_size));
    for (int i = 0; i <= k; ++i) {
      const int32_t mask_idx = builder.add_mask(masks[static_cast<size_t>(i)]);
      if (i == 0) first_mask = mask_idx;
    }
    builder.add_seq({.row = 0,
                     .query_len = first ? prompt_len : 1 + k,
                     .phase = first ? SeqPhase::kPrefill : SeqPhase::kDecode,
                     .flags = kSample,
                     .num_computed_tokens = first ? 0 : num_tokens - 1,
                     .num_drafts = k,
                     .drafts_begin = builder.add_drafts(drafts),
                     .first_mask = first_mask});
    ranks.submit(builder.finish());
    REQUIRE(ranks.collect(result).ok());
    text.num_drafts += k;
    text.num_accepted += static_cast<int>(result.next_token_ids.size()) - 1;
    for (size_t i = 0; i < result.next_token_ids.size(); ++i) {
      const int32_t id = result.next_token_ids[i];
      REQUIRE(id >= 0);
      CHECK(mask_allows(mask_at(num_tokens, vocab_size).data(), id));
      text.token_ids.push_back(id);
      text.logprobs.push_back(result.logprobs.at(i));
      ++num_tokens;
    }
  }
  return text;
}

TEST_CASE("drafts change no answer under token masks, on one rank and on two") {
  const std::filesystem::path dir = repo_root() / "test" / "goldens" / "model" / "qwen3_yarn_one_kv_head";
  const Checkpoint weights = Checkpoint::open(dir).value();
  const ModelConfig model = load_model_config(dir).value();
  for (const BackEnd* back_end : {&oracle_back_end(), &host_back_end()}) {
    for (const int tp : {1, 2}) {
      RankGroupConfig config;
      config.model = model;
      config.weights = &weights;
      config.back_end = back_end;
      config.device.deterministic = true;
      config.tensor_parallel_size = tp;
      config.act_dtype = config.kv_dtype = DType::kF32;
      config.limits.max_num_seqs = 2;
      config.limits.max_num_batched_tokens = 32;
      config.limits.max_num_logits = 3;
      config.limits.max_model_len = 64;
      config.kv_cache_bytes = int64_t{1} << 24;
      const auto ranks = RankGroup::create(config).value();
      for (const RowSampling& sampling :
           {RowSampling{.prompt_len = 5, .num_logprobs = 2},
            RowSampling{.seed = 9, .temperature = 0.9f, .top_p = 0.9f, .prompt_len = 5, .num_logprobs = 0}}) {
        CAPTURE(back_end->name);
        CAPTURE(tp);
        const MaskedText plain = generate_masked(*ranks, sampling, model.vocab_size, 0, {});
        for (const int num_drafts : {1, 3, kMaxDrafts}) {
          // Two of three drafts are what the model will choose; the others it may not choose.
          const auto draft_at = [&](int position) {
            const int32_t chosen = plain.token_ids[static_cast<size_t>(position - 5)];
            return position % 3 == 2 ? chosen + 1 : chosen;
          };
          const MaskedText drafted = generate_masked(*ranks, sampling, model.vocab_size, num_drafts, draft_at);
          CHECK(drafted.token_ids == plain.token_ids);
          check_equal(drafted.logprobs, plain.logprobs);
          CHECK(drafted.num_accepted > 0);
          CHECK(drafted.num_accepted < drafted.num_drafts);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spate
