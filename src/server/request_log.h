// What the log says of requests: a line for each (the access log), and one for each name that was ignored.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "server/http_server.h"
#include "server/server_config.h"

namespace spate {

// A client's text for the log: no control characters, at most 200 bytes.
std::string printable(std::string_view text);

// The line of an answered request; none where the flags silence it.
void log_request(const ServerConfig& config, const HttpSummary& summary);

// Names that requests brought and nothing was done with: each is told once, and 256 of them at most. Thread-safe.
class IgnoredNamesLog {
 public:
  void note_unknown_field(const std::string& name);
  void note_no_effect_field(const std::string& name);
  void note_load_report_format(const std::string& format);  // of the header endpoint-load-metrics-format

 private:
  bool is_new(const std::string& shown);

  std::mutex mutex_;
  std::set<std::string> names_;
};

}  // namespace spate
