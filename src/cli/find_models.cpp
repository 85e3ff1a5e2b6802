#include "cli/find_models.h"

#include <cstdlib>

#include "base/log.h"
#include "cli/speculative_argument.h"
#include "llm/hub_cache.h"

namespace spate {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

// The draft model's name inside --speculative-config. What is wrong with the rest is said first: a model may take hours
// to get.
Status find_draft_model(std::string& speculative_config) {
  ASSIGN_OR_RETURN(const SpeculativeConfig config, parse_speculative_config(speculative_config));
  if (config.model.empty()) return ok_status();
  Result<FoundModel> found = find_model(config.model, hub_cache_folder());
  if (!found.ok()) return found.status().with_context("--speculative-config");
  if (!found->hub_name.empty()) speculative_config = with_draft_model(speculative_config, found->path.string());
  return ok_status();
}

}  // namespace

std::string hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string folder = environment(name); !folder.empty()) return folder;
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  return environment("HOME") + "/.cache/huggingface/hub";
}

Status find_models(ModelArguments& model) {
  if (!model.model.empty()) {
    ASSIGN_OR_RETURN(const FoundModel found, find_model(model.model, hub_cache_folder()));
    if (!found.hub_name.empty()) {
      log_info("model", "{} is {}", found.hub_name, found.path.string());
      model.hub_name = found.hub_name;
      model.model = found.path.string();
    }
  }
  if (!model.tokenizer.empty()) {
    Result<FoundModel> found = find_model(model.tokenizer, hub_cache_folder());
    if (!found.ok()) return found.status().with_context("--tokenizer");
    model.tokenizer = found->path.string();
  }
  return model.speculative_config.empty() ? ok_status() : find_draft_model(model.speculative_config);
}

}  // namespace spate
