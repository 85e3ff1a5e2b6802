// EagleConfig: an EAGLE-3 head, as its makers publish it: a folder with config.json ("LlamaForCausalLMEagle3") and
// *.safetensors. One layer that reads hidden states of three places of a model, and guesses tokens of a smaller
// vocabulary.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "weights/model_config.h"
#include "weights/weight_source.h"

namespace spate {

struct EagleConfig {
  static constexpr int64_t kNumInputs = 3;

  ModelConfig layer;  // vocab_size and max_position_embeddings are the target's
  int64_t draft_vocab_size = 0;
  std::array<int64_t, kNumInputs> layer_idxs = {};  // of the target, whose inputs the head takes: low, mid, high
  std::vector<int32_t> target_ids;                  // [draft_vocab_size] the target's id of each id of the head
};

// What config.json says, for a target. target_ids are those of a head with all tokens, in their order, else empty.
// Errors name the key, its value and what it must be.
Result<EagleConfig> parse_eagle_config(std::string_view json, const ModelConfig& target);

struct EagleFiles {
  EagleConfig config;
  std::unique_ptr<WeightSource> weights;  // null with dummy weights
};
// Reads the tables d2t and t2d too. dummy_weights: config.json alone, and the head's ids are spread over the target's.
Result<EagleFiles> open_eagle(const std::filesystem::path& dir, const ModelConfig& target, bool dummy_weights);

}  // namespace spate
