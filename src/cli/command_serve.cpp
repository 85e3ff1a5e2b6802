// spate serve: listen first, then read the weights, then answer until SIGTERM.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/llm_arguments.h"
#include "cli/serving_plan.h"
#include "cli/trace_export.h"
#include "server/api_key.h"
#include "server/metrics_compat.h"
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
  config.ssl_certfile = s.ssl_certfile;
  config.ssl_keyfile = s.ssl_keyfile.empty() ? s.ssl_certfile : s.ssl_keyfile;
  config.enable_admin = s.enable_admin;
  config.allowed_origins = s.allowed_origins;
  config.metrics_compat = parse_metric_dialects(s.metrics_compat).value();  // the flag's check has seen it
  config.ui = s.ui;
  config.slots = s.slots;
  config.enable_force_include_usage = s.enable_force_include_usage;
  config.enable_per_request_metrics = s.enable_per_request_metrics;
  config.uvicorn_log_level = s.disable_access_log ? "warning" : s.uvicorn_log_level;
  for (std::istringstream paths(s.disable_access_log_for_endpoints); !paths.eof();) {
    std::string path;
    std::getline(paths, path, ',');
    if (!path.empty()) config.disable_access_log_for_endpoints.push_back(path);
  }
  if (s.disable_log_stats) config.log_stats_interval = 0;
  config.sse_ping_interval = s.sse_ping_interval;
  config.drain_delay = s.drain_delay;
  config.shutdown_timeout = s.shutdown_timeout;
  return config;
}

std::string serving_address(const ServeArguments& serve, int port) {
  if (!serve.uds.empty()) return "unix:" + serve.uds;
  const bool is_ipv6 = serve.host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}{}", serve.ssl_certfile.empty() ? "http" : "https", is_ipv6 ? "[" : "", serve.host,
                     is_ipv6 ? "]" : "", port, serve.root_path);
}

// In single quotes for a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// A command that asks this server, as the log shows it. The key itself is not shown.
std::string curl_command(const ServeArguments& serve, int port, const std::string& model) {
  const bool has_uds = !serve.uds.empty(), is_any_host = serve.host == "0.0.0.0" || serve.host == "::";
  ServeArguments reached = serve;
  if (is_any_host) reached.host = "127.0.0.1";
  const nlohmann::ordered_json body = {{"model", model}, {"messages", {{{"role", "user"}, {"content", "Hello!"}}}}};
  return fmt::format("curl {}{}/v1/chat/completions -H 'Content-Type: application/json'{} -d {}",
                     has_uds ? "--unix-socket " + quoted(serve.uds) + " http://localhost" + serve.root_path : "",
                     has_uds ? "" : serving_address(reached, port),
                     serve.api_keys.empty() && serve.api_key_file.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'",
                     quoted(body.dump()));
}

}  // namespace

Result<int> run_serve(const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  std::signal(SIGUSR1, SIG_IGN);  // until the server has a state to write
  ServerConfig config = server_config(arguments);
  if (!arguments.serve.api_key_file.empty()) {
    ASSIGN_OR_RETURN(config.api_key_hashes, read_api_key_file(arguments.serve.api_key_file));
  }
  if (config.ssl_certfile.empty() && !arguments.serve.ssl_keyfile.empty()) {
    return invalid_argument("--ssl-keyfile needs --ssl-certfile");
  }
  if (!config.ssl_certfile.empty() && !config.uds.empty()) {
    return invalid_argument("--ssl-certfile and --uds do not go together: a Unix socket speaks plain HTTP");
  }
  if (std::ranges::find(config.api_key, "") != config.api_key.end()) {
    return invalid_argument(
        "--api-key or SPATE_API_KEY is empty, so no request could come in: give a key, or leave it out");
  }
  if (config.enable_admin && !config.asks_for_key()) {
    return invalid_argument("--enable-admin needs --api-key: who may load models may read the files of this machine");
  }
  std::shared_ptr<Tracer> tracer;
  if (!arguments.serve.otlp_traces_endpoint.empty()) {
    ASSIGN_OR_RETURN(tracer, make_tracer(arguments.serve.otlp_traces_endpoint));
  }
  ASSIGN_OR_RETURN(const ServingPlan plan, plan_serving(arguments));
  Server server(std::move(config));
  RETURN_IF_ERROR(server.listen());
  log_info("serve", "spate {}, non-default args: {}", kVersion, arguments.non_default_args);
  for (const std::string& line : plan.lines) log_info("serve", "{}", line);
  const auto bar = progress_bar("weights");
  std::string first_name;
  for (size_t i = 0; i < plan.models.size(); ++i) {
    ASSIGN_OR_RETURN(ServingModel model,
                     load_serving_model(plan.models[i], plan.kv_cache_bytes[i], tracer, [&](double share) {
                       const double of_all = (static_cast<double>(i) + share) / static_cast<double>(plan.models.size());
                       server.set_loading(of_all);
                       bar(of_all);
                     }));
    if (first_name.empty()) first_name = model.names.front();
    RETURN_IF_ERROR(server.add_model(std::move(model)));
  }
  server.set_loader(model_loader(arguments, tracer));
  server.set_ready();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("serve", "ready after {:.3f} s, listening on {}", seconds, serving_address(arguments.serve, server.port()));
  log_info("serve", "try: {}", curl_command(arguments.serve, server.port(), first_name));
  return server.run();
}

}  // namespace spate
