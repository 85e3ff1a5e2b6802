// LoadedModel: a model directory or GGUF file turned into an engine with its tokenizer and chat template.
//
// Every command that runs a model begins with load_model(); a library may call it too.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/registry/registry.h"
#include "base/status.h"
#include "core/pooling.h"
#include "engine/engine.h"
#include "llm/llm_config.h"
#include "rank/rank_group.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer.h"
#include "weights/generation_config.h"
#include "weights/model_config.h"
#include "weights/safetensors.h"

namespace spate {

struct LoadedModel {
  std::string name;  // LlmConfig::name, else the directory's last component or the GGUF file's name
  ModelConfig config;
  GenerationConfig generation;                   // empty with --generation-config vllm
  std::shared_ptr<const Tokenizer> tokenizer;    // null with --load-format dummy and no tokenizer files
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the model has none
  std::string chat_template_source;
  PoolingConfig pooling;                         // of embeddings
  std::vector<int32_t> eos_token_ids;            // of generation_config.json, else config.json
  const BackEnd* back_end = nullptr;             // that it runs on
  std::unique_ptr<RankGroup> ranks;              // outlives the engine; null with --device mock
  std::unique_ptr<StepExecutor> mock;            // outlives the engine; null with any other device
  MemoryPlan memory_plan;
  int64_t weight_bytes = 0;                      // of all ranks, without a draft model's
  int64_t num_parameters = 0;                    // the same, tied ones once
  std::shared_ptr<Engine> engine;                // not started
  std::vector<std::string> warnings;             // what the model's files get wrong; logged by load_model
  std::vector<std::string> summary;              // lines for the start-up log
};

// The name of a model that has no other: that of its directory, or of its GGUF file without the ending.
std::string model_name(const std::string& path);

// The template that --chat-template names or is: a value with braces or line breaks is the template itself.
Result<std::string> read_chat_template(const std::string& path_or_source);

// `progress`: 0..1 of the weights. Every error names the file or the flag.
Result<std::unique_ptr<LoadedModel>> load_model(const LlmConfig& llm, const std::function<void(double)>& progress = {});

}  // namespace spate
