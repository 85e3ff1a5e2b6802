// ServingModel: what the front-end and the server need to know of a loaded model. Filled by the program that loaded it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/pooling.h"
#include "engine/engine.h"
#include "server/api_request.h"
#include "server/metrics.h"
#include "server/tracer.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer.h"

namespace spate {

struct ServingModel {
  std::shared_ptr<Engine> engine;  // started
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: chat requests are refused
  bool trust_request_chat_template = false;           // a request may bring its own
  std::shared_ptr<const nlohmann::ordered_json> template_kwargs;  // where requests do not say them; null: none

  std::vector<std::string> names;  // --served-model-name, at least one; the first is in answers
  std::string root;                // the model's folder or id
  int64_t created = 0;             // seconds since 1970
  int vocab_size = 0;              // of the logits
  int64_t hidden_size = 0;
  PoolingConfig pooling;           // of embeddings
  std::vector<int32_t> eos_token_ids;
  SamplingDefaults defaults;       // of generation_config.json
  std::string defaults_source = "generation_config.json";
  int max_logprobs = 20;           // --max-logprobs
  std::string reasoning_parser = "auto", tool_call_parser = "auto";  // names of output_format.h, checked
  std::string reasoning_end;  // where its budget is spent; empty: the format's mark
  bool return_tokens_as_token_ids = false;
  int stream_interval = 1;         // least tokens of a chunk
  RelaxedAcceptance relaxed;       // what requests get that do not say otherwise; top_k 0: none may have it
  std::string system_fingerprint;  // version and a hash of the configuration
  std::string dtype = "bfloat16";  // for vllm:cache_config_info
  MetricLabels cache_config;       // more labels for it
  std::string about_json = "{}";   // what /config answers: settings, facts about the model
  std::shared_ptr<Tracer> tracer;  // null: no traces

  // Above 0: the model is unloaded when no request has used it for so long, and loaded again by the next one.
  double idle_unload_seconds = 0;
  // Loads the same again, on the memory that is free then. One thread at a time; may be called as often as needed. Null
  // where the model stays.
  std::function<Result<ServingModel>(const std::function<void(double)>& progress)> reload;
};

}  // namespace spate
