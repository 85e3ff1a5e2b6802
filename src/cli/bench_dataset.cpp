#include "cli/bench_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/rng.h"

namespace spate {
namespace {

using nlohmann::ordered_json;

int64_t drawn_length(Rng& rng, int64_t length, double ratio) {
  const int64_t low = std::max<int64_t>(1, static_cast<int64_t>(std::floor(static_cast<double>(length) * (1 - ratio))));
  const int64_t high = std::max(low, static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1 + ratio))));
  return low + static_cast<int64_t>(rng.below(static_cast<uint64_t>(high - low + 1)));
}

// Random content: words of a chat, token ids of a completion.
class RandomContent {
 public:
  RandomContent(Rng& rng, bool is_chat, int64_t vocab_size) : rng_(rng), is_chat_(is_chat), vocab_size_(vocab_size) {}
  void append(int64_t num_tokens, BenchPrompt& prompt) {
    for (int64_t i = 0; i < num_tokens; ++i) {
      const auto id = static_cast<int64_t>(rng_.below(static_cast<uint64_t>(vocab_size_)));
      if (is_chat_) {
        prompt.text += fmt::format("{} ", id % 1000);
      } else {
        prompt.token_ids.push_back(id);
      }
    }
  }

 private:
  Rng& rng_;
  const bool is_chat_;
  const int64_t vocab_size_;
};

std::vector<BenchPrompt> random_prompts(const BenchArguments& bench, Rng& rng, RandomContent& content, int num) {
  BenchPrompt prefix;
  content.append(bench.random_prefix_len, prefix);
  std::vector<BenchPrompt> prompts;
  for (int i = 0; i < num; ++i) {
    BenchPrompt prompt = prefix;
    const int64_t input_len = drawn_length(rng, bench.input_len > 0 ? bench.input_len : 1024, bench.random_range_ratio);
    prompt.output_len = drawn_length(rng, bench.output_len > 0 ? bench.output_len : 128, bench.random_range_ratio);
    content.append(input_len, prompt);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Each of a few prefixes with many endings, in random order.
std::vector<BenchPrompt> repeated_prefixes(const BenchArguments& bench, Rng& rng, RandomContent& content, int num) {
  std::vector<BenchPrompt> prefixes(static_cast<size_t>(bench.num_prefixes));
  for (BenchPrompt& prefix : prefixes) content.append(bench.prefix_len, prefix);
  std::vector<BenchPrompt> prompts;
  for (int i = 0; i < num; ++i) {
    BenchPrompt prompt = prefixes[static_cast<size_t>(i) % prefixes.size()];
    content.append(bench.suffix_len, prompt);
    prompt.output_len = bench.output_len > 0 ? bench.output_len : 128;
    prompts.push_back(std::move(prompt));
  }
  for (size_t i = prompts.size(); i > 1; --i) std::swap(prompts[i - 1], prompts[rng.below(i)]);
  return prompts;
}

// A JSON array, or a JSON object a line.
Result<std::vector<ordered_json>> read_records(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found("--dataset-path {}: cannot be read", path);
  std::vector<ordered_json> records;
  if (std::ws(in).peek() == '[') {
    const ordered_json array = ordered_json::parse(in, nullptr, false);
    if (!array.is_array()) return invalid_argument("--dataset-path {}: not a JSON array", path);
    records.assign(array.begin(), array.end());
  } else {
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      ordered_json record = ordered_json::parse(line, nullptr, false);
      if (!record.is_object()) return invalid_argument("--dataset-path {}:{}: not a JSON object", path, number);
      records.push_back(std::move(record));
    }
  }
  if (records.empty()) return invalid_argument("--dataset-path {}: no records", path);
  return records;
}

std::string string_in(const ordered_json& object, const char* name) {
  const auto value = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && value != object.end() && value->is_string() ? value->get<std::string>() : std::string();
}

// {"conversations": [{"value": prompt}, {"value": answer}, ...]}
Result<BenchPrompt> sharegpt_prompt(const ordered_json& record, int64_t output_len, const CountTokens& count_tokens) {
  const auto turns = record.is_object() ? record.find("conversations") : record.end();
  BenchPrompt prompt{.text = {}, .token_ids = {}, .output_len = output_len};
  if (!record.is_object() || turns == record.end() || !turns->is_array() || turns->size() < 2) return prompt;
  prompt.text = string_in((*turns)[0], "value");
  const std::string answer = string_in((*turns)[1], "value");
  if (output_len > 0 || answer.empty()) return prompt;
  ASSIGN_OR_RETURN(prompt.output_len, count_tokens(answer));
  return prompt;
}

// {"prompt": ..., "output_tokens": 12}
BenchPrompt custom_prompt(const ordered_json& record, int64_t output_len) {
  const auto count = record.is_object() ? record.find("output_tokens") : record.end();
  const bool has_count = record.is_object() && count != record.end() && count->is_number_integer();
  return {.text = string_in(record, "prompt"),
          .token_ids = {},
          .output_len = output_len > 0 ? output_len
                        : has_count    ? count->get<int64_t>()
                                       : 128};
}

Result<std::vector<BenchPrompt>> prompts_of_file(const BenchArguments& bench, Rng& rng, int num,
                                                 const CountTokens& count_tokens) {
  if (bench.dataset_path.empty()) return invalid_argument("--dataset-name {} needs --dataset-path", bench.dataset_name);
  ASSIGN_OR_RETURN(const std::vector<ordered_json> records, read_records(bench.dataset_path));
  std::vector<size_t> order(records.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  std::vector<BenchPrompt> prompts;
  for (size_t i = 0; prompts.size() < static_cast<size_t>(num); ++i) {
    if (i == order.size() && prompts.empty()) {
      return invalid_argument("--dataset-path {}: no record is of the form of {}", bench.dataset_path, bench.dataset_name);
    }
    if (i >= order.size()) {  // again from the beginning
      prompts.push_back(prompts[i - order.size()]);
      continue;
    }
    BenchPrompt prompt = custom_prompt(records[order[i]], bench.output_len);
    if (bench.dataset_name == "sharegpt") {
      ASSIGN_OR_RETURN(prompt, sharegpt_prompt(records[order[i]], bench.output_len, count_tokens));
    }
    if (!prompt.text.empty() && prompt.output_len > 0) prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

Result<std::vector<BenchPrompt>> make_bench_prompts(const BenchArguments& bench, bool is_chat, int64_t vocab_size, int num,
                                                    uint64_t seed, const CountTokens& count_tokens) {
  Rng rng(seed, 0x5e4e);
  RandomContent content(rng, is_chat, vocab_size);
  if (bench.dataset_name == "random") return random_prompts(bench, rng, content, num);
  if (bench.dataset_name == "prefix_repetition") return repeated_prefixes(bench, rng, content, num);
  return prompts_of_file(bench, rng, num, count_tokens);
}

}  // namespace spate
