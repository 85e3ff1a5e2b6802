#include "server/request_log.h"

#include <algorithm>

#include "base/log.h"
#include "base/log_fields.h"
#include "server/http_message.h"
#include "server/request_fields.h"

namespace spate {
namespace {

constexpr size_t kMaxNames = 256;

bool is_silent(const ServerConfig& config, const std::string& path) {
  const std::string& level = config.uvicorn_log_level;
  const auto& silent = config.disable_access_log_for_endpoints;
  return (level != "info" && level != "debug" && level != "trace") || std::ranges::find(silent, path) != silent.end() ||
         log_level() > LogLevel::kInfo;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) out += c > 0x1F && c < 0x7F ? c : '?';
  return out;
}

void log_request(const ServerConfig& config, const HttpSummary& summary) {
  if (is_silent(config, summary.path)) return;
  const std::string method = printable(summary.method), path = printable(summary.path);
  log_line(LogLevel::kInfo, "http",
           fmt::format("{} - \"{} {} HTTP/1.1\" {} {} {:.3f} s{}", summary.peer, method, path, summary.status,
                       http_status_text(summary.status), summary.seconds,
                       summary.request_id.empty() ? "" : ", id " + summary.request_id),
           {{"peer", summary.peer},
            {"method", method},
            {"path", path},
            {"status", std::to_string(summary.status), true},
            {"seconds", fmt::format("{:.6f}", summary.seconds), true},
            {"request_id", summary.request_id}});
}

void IgnoredNamesLog::note_unknown_field(const std::string& name) {
  const std::string shown = printable(name);
  if (!is_new(shown)) return;
  log_warning("server", "the request field \"{}\" is not known and is ignored (said once)", shown);
}

void IgnoredNamesLog::note_no_effect_field(const std::string& name) {
  if (!is_new(name)) return;
  for (const RequestField& field : request_fields()) {
    if (field.name != name || field.use != FieldUse::kNoEffect) continue;
    log_info("server", "the request field \"{}\" has no effect (said once): {}", name, field.help);
    return;
  }
  log_info("server", "the request field \"{}\" has no effect beside others of its request (said once)", name);
}

void IgnoredNamesLog::note_load_report_format(const std::string& format) {
  const std::string shown = printable(format);
  if (!is_new("endpoint-load-metrics-format " + shown)) return;
  log_warning("server", "endpoint-load-metrics-format \"{}\" is not known, there are text and json (said once)", shown);
}

bool IgnoredNamesLog::is_new(const std::string& shown) {
  const std::lock_guard lock(mutex_);
  return names_.size() < kMaxNames && names_.insert(shown).second;
}

}  // namespace spate
