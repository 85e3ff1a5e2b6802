// LoadedModel: a model directory or GGUF file turned into a running engine with its tokenizer and chat template; what every command
// that runs a model begins with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/arguments.h"
#include "engine/engine.h"
#include "rank/rank_group.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer.h"
#include "weights/generation_config.h"
#include "weights/model_config.h"
#include "weights/safetensors.h"

namespace spate {

struct LoadedModel {
  std::string name;  // the directory's last component, or the --served-model-name
  ModelConfig config;
  GenerationConfig generation;                   // empty with --generation-config vllm
  std::shared_ptr<const Tokenizer> tokenizer;    // null with --load-format dummy and no tokenizer files
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the model has none
  std::string chat_template_source;
  std::vector<int32_t> eos_token_ids;            // of generation_config.json, else config.json
  std::unique_ptr<RankGroup> ranks;              // outlives the engine
  std::shared_ptr<Engine> engine;                // not started
  std::vector<std::string> summary;              // lines for the start-up log
};

// `progress`: 0..1 of the weights. Every error names the file or the flag.
Result<std::unique_ptr<LoadedModel>> load_model(const ModelArguments& arguments, const std::function<void(double)>& progress = {});

DeviceOptions device_options(const ModelArguments& arguments);
DType act_dtype_of(const ModelArguments& arguments);  // --dtype
DType kv_dtype_of(const ModelArguments& arguments);   // --kv-cache-dtype

// The device of --device, resolved: "auto" looks for a GPU and says in one log line why the CPU is used instead.
struct DeviceChoice {
  std::string kind;
  DeviceFactory factory = nullptr;
};
Result<DeviceChoice> choose_device(const ModelArguments& arguments);

// A progress bar on a terminal; elsewhere one log line for each tenth.
std::function<void(double)> progress_bar(std::string title);

}  // namespace spate
