// spate serve: listen first, then read the weights, then answer until SIGTERM.
#include <chrono>
#include <ctime>

#include <xxhash.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/llm_arguments.h"
#include "cli/version.h"
#include "server/json_writer.h"
#include "server/output_format.h"
#include "server/server.h"

namespace spate {
namespace {

ServerConfig server_config(const Arguments& arguments) {
  const ServeArguments& s = arguments.serve;
  ServerConfig config;
  config.host = s.host;
  config.port = s.port;
  config.uds = s.uds;
  config.root_path = s.root_path;
  config.api_key = s.api_keys;
  config.served_model_name = s.served_model_names;
  config.allowed_origins = s.allowed_origins;
  config.ui = s.ui;
  config.enable_force_include_usage = s.enable_force_include_usage;
  config.uvicorn_log_level = s.disable_access_log ? "warning" : s.uvicorn_log_level;
  if (s.disable_log_stats) config.log_stats_interval = 0;
  config.sse_ping_interval = s.sse_ping_interval;
  config.drain_delay = s.drain_delay;
  config.shutdown_timeout = s.shutdown_timeout;
  return config;
}

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

std::string describe_defaults(const SamplingDefaults& d) {
  std::string text;
  const auto add = [&](const char* name, const auto& value) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *value);
  };
  add("temperature", d.temperature);
  add("top_p", d.top_p);
  add("top_k", d.sampling_top_k);
  add("min_p", d.min_p);
  add("repetition_penalty", d.repetition_penalty);
  add("max_tokens", d.max_tokens);
  return text.empty() ? "the API's" : text + " (generation_config.json)";
}

// What /config answers. The lines of --print-config are "name: value  # source".
std::string about_json(const Arguments& arguments, const LoadedModel& model) {
  JsonWriter json;
  json.begin_object().key("settings").begin_array();
  for (const std::string& line : arguments.config_lines) {
    const size_t colon = line.find(": "), hash = line.rfind("  # ");
    json.begin_object().field("name", line.substr(0, colon));
    json.field("value", line.substr(colon + 2, hash - colon - 2)).field("source", line.substr(hash + 4)).end_object();
  }
  const ModelConfig& c = model.config;
  json.end_array().key("model").begin_object();
  json.field("name", model.name).field("path", arguments.model.model).field("architecture", c.architecture);
  json.field("num_layers", c.num_layers).field("hidden_size", c.hidden_size);
  json.field("intermediate_size", c.intermediate_size).field("num_heads", c.num_heads);
  json.field("num_kv_heads", c.num_kv_heads).field("head_dim", c.head_dim).field("vocab_size", c.vocab_size);
  json.field("max_position_embeddings", c.max_position_embeddings);
  json.field("tie_word_embeddings", c.tie_word_embeddings).end_object();
  json.key("memory").begin_object();
  json.field("weights", model.ranks->weight_bytes()).field("kv_cache", model.ranks->memory_plan().kv_cache_bytes);
  json.end_object().key("summary").begin_array();
  for (const std::string& line : model.summary) json.value(line);
  json.end_array().field("chat_template", model.chat_template_source).end_object();
  return json.take();
}

ServingModel serving_model(const Arguments& arguments, LoadedModel& model) {
  ServingModel serving;
  serving.engine = model.engine;
  serving.tokenizer = model.tokenizer;
  serving.chat_template = model.chat_template;
  serving.names = arguments.serve.served_model_names;
  if (serving.names.empty()) serving.names = {model.name};
  serving.root = arguments.model.model;
  serving.created = std::time(nullptr);
  serving.vocab_size = static_cast<int>(model.config.vocab_size);
  serving.hidden_size = model.config.hidden_size;
  serving.pooling = model.pooling;
  serving.eos_token_ids = model.eos_token_ids;
  serving.defaults = sampling_defaults(model.generation);
  serving.reasoning_parser = arguments.serve.reasoning_parser;
  serving.tool_call_parser = arguments.serve.tool_call_parser;
  serving.max_logprobs = arguments.model.max_logprobs;
  std::string settings;
  for (const std::string& line : arguments.config_lines) settings += line + "\n";
  serving.system_fingerprint = fmt::format("spate-{}-{:08x}", kVersion, XXH32(settings.data(), settings.size(), 0));
  serving.dtype = arguments.model.dtype == "float32" ? "float32" : "bfloat16";
  serving.about_json = about_json(arguments, model);
  return serving;
}

// "reasoning qwen3, tool calls hermes"
std::string describe_parsers(const ServingModel& serving) {
  const std::string source = serving.chat_template ? serving.chat_template->source() : "";
  const auto reasoning = find_reasoning_format(serving.reasoning_parser, source);
  const auto tools = find_tool_format(serving.tool_call_parser, source);
  const auto name_of = [](const auto& found) { return found.ok() && *found ? first_name((*found)->names) : "none"; };
  return fmt::format("reasoning {}, tool calls {}", name_of(reasoning), name_of(tools));
}

std::string address_of(const ServeArguments& serve, int port) {
  if (!serve.uds.empty()) return "unix:" + serve.uds;
  const bool is_ipv6 = serve.host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}{}", is_ipv6 ? "[" : "", serve.host, is_ipv6 ? "]" : "", port, serve.root_path);
}

// Before the weights are read: a mistyped path or template is said at once.
Status check_chat_template(const std::string& chat_template) {
  if (chat_template.empty()) return ok_status();
  ASSIGN_OR_RETURN(std::string source, read_chat_template(chat_template));
  const Result<ChatTemplate> parsed = ChatTemplate::parse(std::move(source), {});
  return parsed.ok() ? ok_status() : parsed.status().with_context("--chat-template");
}

}  // namespace

Result<int> run_serve(const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(check_chat_template(arguments.model.chat_template));
  RETURN_IF_ERROR(find_reasoning_format(arguments.serve.reasoning_parser, "").status());
  RETURN_IF_ERROR(find_tool_format(arguments.serve.tool_call_parser, "").status());
  Server server(server_config(arguments));
  RETURN_IF_ERROR(server.listen());
  log_info("serve", "spate {}, non-default args: {}", kVersion, arguments.non_default_args);
  const auto bar = progress_bar("weights");
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_model(arguments.model, [&](double share) {
                     server.set_loading(share);
                     bar(share);
                   }));
  if (!model->tokenizer) {
    return not_found("{}: serve needs a tokenizer.json; use --tokenizer with a folder that has one", arguments.model.model);
  }
  for (const std::string& line : model->summary) log_info("serve", "{}", line);
  model->engine->start();
  ServingModel serving = serving_model(arguments, *model);
  log_info("serve", "parsers: {}", describe_parsers(serving));
  log_info("serve", "sampling defaults: {}", describe_defaults(serving.defaults));
  server.set_ready(std::move(serving));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("serve", "ready after {:.3f} s, listening on {}", seconds, address_of(arguments.serve, server.port()));
  const int code = server.run();
  model->engine->stop();
  return code;
}

}  // namespace spate
