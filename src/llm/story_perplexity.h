// Perplexity of a bundled model on the stories of models/mini-qwen3, which all of them know. For tests.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/test_support.h"
#include "llm/loaded_model.h"
#include "llm/offline.h"
#include "quant/quantization.h"

#include "base/test.h"

namespace spate {

// The first stories of the evaluation, each without its end.
inline std::vector<std::string> stories(size_t count) {
  std::ifstream in(repo_root() / "models" / "mini-qwen3" / "eval" / "text.txt");
  std::vector<std::string> texts;
  std::string text;
  for (std::string line; texts.size() < count && std::getline(in, line);) {
    if (line != "<|endoftext|>") {
      text += (text.empty() ? "" : "\n") + line;
    } else {
      texts.push_back(std::exchange(text, {}));
    }
  }
  REQUIRE(texts.size() == count);
  return texts;
}

// Of a token of these stories.
inline double story_perplexity(LoadedModel& model, size_t num_stories) {
  std::vector<OfflineRequest> requests;
  for (const std::string& story : stories(num_stories)) {
    OfflineRequest& request = requests.emplace_back();
    request.prompt_token_ids = model.tokenizer->encode(story);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    request.sampling.prompt_logprobs = 0;
  }
  model.engine->start();
  const auto results = run_offline(*model.engine, model.eos_token_ids, std::move(requests));
  model.engine->stop();
  REQUIRE_MESSAGE(results.ok(), results.status().to_string());
  double nll = 0;
  int num_tokens = 0;
  for (const auto& result : *results) {
    for (const TokenLogprobs& token : result.front().prompt_logprobs) {
      nll -= token.logprob;
      ++num_tokens;
    }
  }
  REQUIRE(num_tokens > 1000);
  return std::exp(nll / num_tokens);
}

inline LlmConfig story_config(const std::string& device, const std::filesystem::path& dir,
                              const std::string& quantization) {
  LlmConfig llm;
  llm.model = dir.string();
  llm.device = device;
  llm.quantization = parse_quantization(quantization).value();
  llm.max_num_seqs = 16;
  llm.kv_cache_bytes = 64 << 20;
  return llm;
}

inline double story_perplexity(const LlmConfig& llm, size_t num_stories) {
  const auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  return story_perplexity(**loaded, num_stories);
}

}  // namespace spate
