// latent_cache_test.cpp
//
// Goal     A latent cache of 8-bit codes answers as one of BF16 does, and an answer does not depend on how it came
// about:
//          alone or beside others, from chunks of a prompt or from cached blocks, with drafts or without.
// Method   models/mini-deepseek on the CPU. Perplexity on stories within 0.5 % of BF16; greedy continuations that must
// be
//          equal token by token under --deterministic.
#include <vector>

#include "llm/story_perplexity.h"

#include "base/test.h"

namespace spate {
namespace {

LlmConfig int8_config() {
  LlmConfig llm = story_config("cpu", repo_root() / "models" / "mini-deepseek", "none");
  llm.kv_dtype = DType::kI8;
  llm.device_options.deterministic = true;
  return llm;
}

struct Continuations {
  std::vector<std::vector<int32_t>> token_ids;
  int64_t num_drafts = 0;
};

// Of the first halves of stories, `rounds` times; those of the last round.
Continuations continuations(const LlmConfig& llm, int rounds = 1) {
  const auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  LoadedModel& model = **loaded;
  Continuations all;
  model.engine->start();
  for (int round = 0; round < rounds; ++round) {
    std::vector<OfflineRequest> requests;
    for (const std::string& story : stories(6)) {
      OfflineRequest& request = requests.emplace_back();
      request.prompt_token_ids = model.tokenizer->encode(story.substr(0, story.size() / 2));
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 24;
    }
    const auto results = run_offline(*model.engine, model.eos_token_ids, std::move(requests));
    REQUIRE_MESSAGE(results.ok(), results.status().to_string());
    all.token_ids.clear();
    for (const auto& result : *results) all.token_ids.push_back(result.front().token_ids);
  }
  all.num_drafts = model.engine->stats().num_drafts;
  model.engine->stop();
  return all;
}

TEST_CASE("a latent cache of codes: perplexity") {
  LlmConfig llm = int8_config();
  const double int8 = story_perplexity(llm, 16);
  llm.kv_dtype = DType::kBf16;
  const double bf16 = story_perplexity(llm, 16);
  CHECK(int8 != bf16);
  CHECK(int8 < bf16 * 1.005);
  CHECK(int8 > bf16 * 0.995);
}

TEST_CASE("a latent cache of codes: an answer does not depend on its company, its chunks, cached blocks or drafts") {
  const Continuations together = continuations(int8_config());
  REQUIRE(together.token_ids.size() == 6);
  LlmConfig alone = int8_config();
  alone.max_num_seqs = 1;
  CHECK(continuations(alone).token_ids == together.token_ids);
  LlmConfig chunked = int8_config();
  chunked.max_num_batched_tokens = 32;
  CHECK(continuations(chunked).token_ids == together.token_ids);
  CHECK(continuations(int8_config(), 2).token_ids == together.token_ids);
  LlmConfig drafting = int8_config();
  drafting.speculative = {.method = SpeculativeMethod::kMtp, .num_speculative_tokens = 1, .adaptive = false};
  const Continuations drafted = continuations(drafting);
  CHECK(drafted.token_ids == together.token_ids);
  CHECK(drafted.num_drafts > 0);
}

}  // namespace
}  // namespace spate
