// The prompts of `spate bench serve`, by vLLM's names of data sets: random, sharegpt, custom, prefix_repetition.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/arguments.h"

namespace spate {

struct BenchPrompt {
  std::string text;                // or:
  std::vector<int64_t> token_ids;  // not empty
  int64_t output_len = 0;
};

// The tokens of a text; for answers of a file that fix the length of the output.
using CountTokens = std::function<Result<int64_t>(const std::string& text)>;

// `num` prompts, the same for the same seed. A file with fewer gives some of them again. Random prompts are texts for chats
// and token ids otherwise.
Result<std::vector<BenchPrompt>> make_bench_prompts(const BenchArguments& bench, bool is_chat, int64_t vocab_size, int num,
                                                    uint64_t seed, const CountTokens& count_tokens);

}  // namespace spate
