// spate serve: listen first, then read the weights, then answer until SIGTERM.
#include <chrono>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/llm_arguments.h"
#include "cli/serving.h"
#include "cli/version.h"
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

}  // namespace

Result<int> run_serve(const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(check_serving(arguments));
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
