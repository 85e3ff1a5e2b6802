// config_golden_test.cpp
//
// Goal     A config.json means what it means in transformers, or it is refused with the key and the reason.
// Method   test/goldens/config/cases.jsonl (tools/goldens/make_config_goldens.py): configs of published models, small
//          ones that differ in a key, and for each what transformers makes of it: its class, sizes, the window of each
//          layer and the frequencies of RoPE. Those are floats that both sides round: a relative distance of 1e-6.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/test_support.h"
#include "layer/rotary_embedding.h"
#include "model/decoder.h"
#include "model/part_factory.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::json;

void check_facts(const ModelConfig& config, const Json& expected) {
  // A Mistral with layer_types is of class Ministral there; here both are one family.
  const std::string model_class = expected["class"];
  CHECK(config.architecture == (model_class == "MinistralForCausalLM" ? "MistralForCausalLM" : model_class));
  CHECK(config.num_heads == expected["num_heads"].get<int64_t>());
  CHECK(config.num_kv_heads == expected["num_kv_heads"].get<int64_t>());
  CHECK(config.head_dim == expected["head_dim"].get<int64_t>());
  CHECK(config.max_position_embeddings == expected["max_position_embeddings"].get<int64_t>());
  CHECK(config.rms_norm_eps == expected["rms_norm_eps"].get<double>());
  CHECK(config.tie_word_embeddings == expected["tie_word_embeddings"].get<bool>());
  CHECK(config.eos_token_ids == expected["eos_token_ids"].get<std::vector<int32_t>>());

  const auto family = find_family(config);
  REQUIRE_MESSAGE(family.ok(), family.status().to_string());
  ParameterFactory parameters(nullptr, nullptr, {}, {});
  const ModelOptions options;
  const DecoderParts parts = (*family)->make(PartFactory(config, parameters, options)).value();
  std::vector<int64_t> windows;
  for (const DecoderLayer& layer : parts.layers) {
    windows.push_back(dynamic_cast<const GroupedQueryAttention&>(*layer.self_attn).spec().window);
  }
  CHECK(windows == expected["windows"].get<std::vector<int64_t>>());

  const RopeFrequencies rope = rope_frequencies(config.rope, config.rotary_dim(), config.max_position_embeddings,
                                                config.max_position_embeddings);
  const auto inv_freq = expected["inv_freq"].get<std::vector<double>>();
  CHECK(rope.inv_freq.size() == inv_freq.size());
  for (size_t j = 0; j < std::min(inv_freq.size(), rope.inv_freq.size()); ++j) {
    const double actual = static_cast<double>(rope.inv_freq[j]);
    CHECK_MESSAGE(std::abs(actual - inv_freq[j]) <= 1e-6 * inv_freq[j],
                  fmt::format("inv_freq[{}] is {}, needs {}", j, actual, inv_freq[j]));
  }
  CHECK(rope.attention_factor == doctest::Approx(expected["attention_factor"].get<double>()).epsilon(1e-6));
}

TEST_CASE("config.json means what it means in transformers") {
  std::istringstream lines(read_file_or_die(repo_root() / "test" / "goldens" / "config" / "cases.jsonl"));
  int num_facts = 0, num_refused = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json one = Json::parse(line);
    const std::string name = one["name"];
    CAPTURE(name);
    const auto config = parse_model_config(one["config"].dump());
    if (one.contains("refused")) {
      const std::string refused = one["refused"];
      CHECK_MESSAGE((!config.ok() && config.status().message().find(refused) != std::string::npos),
                    fmt::format("needs \"{}\", says: {}", refused, config.status().to_string()));
      ++num_refused;
      continue;
    }
    ++num_facts;
    CHECK_MESSAGE(config.ok(), config.status().to_string());
    if (config.ok()) check_facts(*config, one);
  }
  CHECK(num_facts > 80);
  CHECK(num_refused > 40);
}

}  // namespace
}  // namespace spate
