// ServerConfig: the server's flags. Names are vLLM's in snake case where the meaning is the same.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "server/sha256.h"

namespace spate {

struct ServerConfig {
  std::string host = "127.0.0.1";
  int port = 8000;        // 0 takes a free one
  std::string uds;        // path of a Unix domain socket, instead of host and port
  std::string root_path;  // prefix that is taken off paths which begin with it

  std::vector<std::string> api_key;            // any of them opens the API; none: no key is asked for
  std::vector<Sha256> api_key_hashes;          // as api_key, kept as hashes
  bool asks_for_key() const { return !api_key.empty() || !api_key_hashes.empty(); }
  std::string ssl_certfile, ssl_keyfile;       // PEM files: HTTPS instead of HTTP; empty: none
  bool enable_admin = false;                   // /admin: models come and go; needs an api_key
  std::vector<std::string> metrics_compat;     // whose names /metrics has too; see metrics_compat.h
  bool metrics_auth = false;                   // /metrics asks for the key too
  std::vector<std::string> served_model_name;  // replaces the model's own names
  std::vector<std::string> allowed_origins;    // CORS; empty = none, "*" = all
  bool ui = true;                              // the web page at "/"
  bool slots = true;                           // /slots tells what runs
  bool enable_force_include_usage = false;     // streams end with a usage chunk, asked for or not
  bool enable_per_request_metrics = false;     // chats, completions and tokens tell their times, asked for or not

  // The access log is written at "info" and below ("debug", "trace"), as uvicorn has it.
  std::string uvicorn_log_level = "info";
  std::vector<std::string> disable_access_log_for_endpoints = {"/health",  "/livez", "/ping",
                                                               "/metrics", "/load",  "/debug/log"};
  int log_stats_interval = 10;  // seconds between the engine's log lines; 0 = never

  // Seconds, with their fractions.
  double sse_ping_interval = 15;  // of silence in a stream before a comment line; 0 = never
  double timeout_keep_alive = 75;
  double stream_write_timeout = 30;  // in which a stream's client must take something
  double drain_delay = 0;            // after SIGTERM, in which new requests are still taken
  double shutdown_timeout = 30;      // for running requests to end after that

  size_t max_body_bytes = size_t{64} << 20;
  size_t max_header_bytes = 64 << 10;
  size_t max_total_large_body_bytes = size_t{256} << 20;  // of bodies above 64 KiB, until they are prepared
  int max_connections = 4096;
  int num_reserve_connections = 64;  // beyond them, for health and metrics alone
  int num_io_threads = 1;
  int num_prepare_threads = 1;  // parse, render and tokenise; large requests have threads of their own
  bool handle_signals = true;   // SIGINT and SIGTERM drain, a second one aborts; SIGUSR1 logs the state
};

}  // namespace spate
