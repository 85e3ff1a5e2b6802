#include "cli/serving.h"

#include <ctime>

#include <xxhash.h>

#include "base/version.h"
#include "cli/serving_json.h"
#include "server/json_writer.h"
#include "server/output_format.h"
#include "server/relaxed_acceptance.h"

namespace spate {
namespace {

SamplingDefaults sampling_defaults(const GenerationConfig& generation) {
  SamplingDefaults defaults;
  if (generation.do_sample.has_value() && !*generation.do_sample) {
    defaults.temperature = 0.0f;
  } else if (generation.temperature) {
    defaults.temperature = static_cast<float>(*generation.temperature);
  }
  if (generation.top_p) defaults.top_p = static_cast<float>(*generation.top_p);
  if (generation.min_p) defaults.min_p = static_cast<float>(*generation.min_p);
  if (generation.repetition_penalty) defaults.repetition_penalty = static_cast<float>(*generation.repetition_penalty);
  if (generation.top_k) defaults.sampling_top_k = static_cast<int>(*generation.top_k);
  if (generation.max_new_tokens) defaults.max_tokens = static_cast<int>(*generation.max_new_tokens);
  return defaults;
}

// What /config answers. The lines of --print-config are "name: value  # source".
std::string about_json(const Arguments& arguments, const LoadedModel& model, const std::string& name) {
  JsonWriter json;
  json.begin_object().key("settings").begin_array();
  for (const std::string& line : arguments.config_lines) {
    const size_t colon = line.find(": "), hash = line.rfind("  # ");
    json.begin_object().field("name", line.substr(0, colon));
    json.field("value", line.substr(colon + 2, hash - colon - 2)).field("source", line.substr(hash + 4)).end_object();
  }
  const ModelConfig& c = model.config;
  json.end_array().key("model").begin_object();
  json.field("name", name).field("path", arguments.model.model).field("architecture", c.architecture);
  json.field("num_parameters", model.num_parameters);
  json.field("num_layers", c.num_layers).field("hidden_size", c.hidden_size);
  json.field("intermediate_size", c.intermediate_size).field("num_heads", c.num_heads);
  json.field("num_kv_heads", c.num_kv_heads).field("head_dim", c.head_dim).field("vocab_size", c.vocab_size);
  json.field("max_position_embeddings", c.max_position_embeddings);
  json.field("tie_word_embeddings", c.tie_word_embeddings).end_object();
  json.key("memory").begin_object();
  json.field("weights", model.weight_bytes).field("kv_cache", model.memory_plan.kv_cache_bytes);
  json.end_object().key("summary").begin_array();
  for (const std::string& line : model.summary) json.value(line);
  json.end_array().field("chat_template", model.chat_template_source).end_object();
  return json.take();
}

Status check_chat_template(const std::string& chat_template) {
  if (chat_template.empty()) return ok_status();
  ASSIGN_OR_RETURN(std::string source, read_chat_template(chat_template));
  const Result<ChatTemplate> parsed = ChatTemplate::parse(std::move(source), {});
  return parsed.ok() ? ok_status() : parsed.status().with_context("--chat-template");
}

Result<RepetitionDetection> repetition_detection_of(const ModelArguments& model) {
  if (model.repetition_detection.empty()) return RepetitionDetection{};
  Result<RepetitionDetection> detection = parse_repetition_detection(model.repetition_detection);
  if (!detection.ok()) return detection.status().with_context("--repetition-detection");
  return detection;
}

}  // namespace

Status check_serving(const Arguments& arguments) {
  RETURN_IF_ERROR(repetition_detection_of(arguments.model).status());
  RETURN_IF_ERROR(check_chat_template(arguments.model.chat_template));
  RETURN_IF_ERROR(parse_template_kwargs(arguments.model.default_chat_template_kwargs).status());
  RETURN_IF_ERROR(override_generation_config({}, arguments.model.override_generation_config).status());
  RETURN_IF_ERROR(find_reasoning_format(arguments.serve.reasoning_parser, "").status());
  return find_tool_format(arguments.serve.tool_call_parser, "").status();
}

Result<ServingModel> serving_model(const Arguments& arguments, LoadedModel& model) {
  ServingModel serving;
  serving.engine = model.engine;
  serving.tokenizer = model.tokenizer;
  serving.chat_template = model.chat_template;
  serving.trust_request_chat_template = arguments.serve.trust_request_chat_template;
  serving.names = arguments.serve.served_model_names;
  if (serving.names.empty()) serving.names = {model.name};
  serving.root = arguments.model.model;
  serving.created = std::time(nullptr);
  serving.vocab_size = static_cast<int>(model.config.vocab_size);
  serving.hidden_size = model.config.hidden_size;
  serving.pooling = model.pooling;
  serving.eos_token_ids = model.eos_token_ids;
  ASSIGN_OR_RETURN(const GenerationConfig generation,
                   override_generation_config(model.generation, arguments.model.override_generation_config));
  if (generation.eos_token_ids != model.generation.eos_token_ids) serving.eos_token_ids = generation.eos_token_ids;
  for (const int32_t id : serving.eos_token_ids) {
    if (id < 0 || id >= serving.vocab_size) return invalid_argument("eos_token_id {} is not in the vocabulary", id);
  }
  serving.defaults = sampling_defaults(generation);
  if (!arguments.model.override_generation_config.empty()) serving.defaults_source = "--override-generation-config";
  serving.defaults.repetition_detection =
      repetition_detection_of(arguments.model).value();  // check_serving() has seen it
  serving.reasoning_parser = arguments.serve.reasoning_parser;
  serving.tool_call_parser = arguments.serve.tool_call_parser;
  ASSIGN_OR_RETURN(
      const ReasoningFormat* reasoning,
      find_reasoning_format(serving.reasoning_parser, model.chat_template ? model.chat_template->source() : ""));
  ASSIGN_OR_RETURN(serving.reasoning_end, parse_reasoning_end(arguments.serve.reasoning_config, reasoning));
  ASSIGN_OR_RETURN(serving.template_kwargs, parse_template_kwargs(arguments.model.default_chat_template_kwargs));
  serving.return_tokens_as_token_ids = arguments.serve.return_tokens_as_token_ids;
  serving.stream_interval = arguments.serve.stream_interval;
  ASSIGN_OR_RETURN(serving.relaxed,
                   relaxed_acceptance(model.engine->config().speculative, reasoning, model.tokenizer.get()));
  const auto vocab_size = static_cast<int>(model.config.vocab_size);
  const int asked = arguments.model.max_logprobs;
  serving.max_logprobs = asked < 0 ? std::max(asked, vocab_size) : std::min(asked, std::max(kMaxLogprobs, vocab_size));
  std::string settings;
  for (const std::string& line : arguments.config_lines) settings += line + "\n";
  serving.system_fingerprint = fmt::format("spate-{}-{:08x}", kVersion, XXH32(settings.data(), settings.size(), 0));
  serving.dtype = arguments.model.dtype == "float32" ? "float32" : "bfloat16";
  serving.about_json = about_json(arguments, model, serving.names.front());
  return serving;
}

LogLevel parse_log_level(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

}  // namespace spate
