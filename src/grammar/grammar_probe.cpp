// For tests in other languages: what a JSON Schema's grammar allows. A line of JSON in, one out.
//   {"schema": ..., "texts": ["..."], "samples": 3, "seed": 7} -> {"allowed": [true], "samples": ["..."]} or {"error":
//   "..."}
// Samples are random texts of the grammar; those that do not end in time are left out.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/json_schema.h"
#include "grammar/parse_states.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSampleBytes = 500, kLongBytes = 80;

bool accepts(ParseStates& states, std::string_view text) {
  int32_t state = states.initial();
  for (const char c : text) {
    state = states.next(state, static_cast<uint8_t>(c));
    if (state == ParseStates::kDead) return false;
  }
  return states.accepts(state);
}

// Empty where it does not end in time. Long ones prefer what closes a value.
std::string sample(ParseStates& states, Rng& rng) {
  std::string text;
  int32_t state = states.initial();
  while (text.size() < kMaxSampleBytes) {
    std::vector<char> bytes;
    for (int byte = 0; byte < 256; ++byte) {
      if (states.next(state, static_cast<uint8_t>(byte)) != ParseStates::kDead)
        bytes.push_back(static_cast<char>(byte));
    }
    // Exponents make numbers that no double holds.
    if (bytes.size() > 2) std::erase_if(bytes, [](char byte) { return byte == 'e' || byte == 'E'; });
    if (states.accepts(state) && (bytes.empty() || rng.below(3) == 0)) return text;
    if (bytes.empty()) return "";
    char byte = bytes[rng.below(bytes.size())];
    const std::string_view liked = std::string_view("\"]}ab0 1").substr(0, text.size() > kLongBytes ? 3 : 8);
    for (int i = 0; i < (text.size() > kLongBytes ? 8 : 2); ++i) {
      const char other = bytes[rng.below(bytes.size())];
      if (liked.find(other) != std::string_view::npos) byte = other;
    }
    text += byte;
    state = states.next(state, static_cast<uint8_t>(byte));
  }
  return "";
}

Json answer(const Json& question) {
  CompileBudget budget;
  Result<Grammar> grammar = compile_json_schema(question["schema"], {}, budget);
  if (!grammar.ok()) return {{"error", grammar.status().message()}};
  ParseStates states(std::make_shared<const Grammar>(std::move(*grammar)));
  Json allowed = Json::array(), samples = Json::array();
  for (const Json& text : question["texts"]) allowed.push_back(accepts(states, text.get<std::string>()));
  Rng rng(question.value("seed", uint64_t{1}));
  for (int i = 0; i < question.value("samples", 0); ++i) {
    std::string text = sample(states, rng);
    if (!text.empty()) samples.push_back(std::move(text));
  }
  return {{"allowed", std::move(allowed)}, {"samples", std::move(samples)}};
}

}  // namespace
}  // namespace spate

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto question = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!question.is_object() || !question.contains("schema")) return 1;
    std::puts(spate::answer(question).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  }
  return 0;
}
