#include "cli/trace_export.h"

#include <chrono>
#include <cstdlib>
#include <string_view>

#include "base/version.h"
#include "cli/sse_client.h"

namespace spate {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kSendTimeout = std::chrono::seconds(10);

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

Result<std::vector<std::pair<std::string, std::string>>> parse_headers(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> headers;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    // The value may be a secret: it is not shown.
    if (equals == 0 || equals == std::string_view::npos || pair.find_first_of("\r\n:") < equals) {
      return invalid_argument("OTEL_EXPORTER_OTLP_HEADERS: header {} is not name=value", headers.size() + 1);
    }
    headers.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    if (headers.back().second.find_first_of("\r\n") != std::string::npos) {
      return invalid_argument("OTEL_EXPORTER_OTLP_HEADERS: the value of {} has a line break", headers.back().first);
    }
  }
  return headers;
}

}  // namespace

Result<std::shared_ptr<Tracer>> make_tracer(const std::string& endpoint) {
  Result<HttpTarget> target = parse_base_url(endpoint);
  if (!target.ok()) return target.status().with_context("--otlp-traces-endpoint");
  ASSIGN_OR_RETURN(target->headers, parse_headers(environment("OTEL_EXPORTER_OTLP_HEADERS")));
  const std::string path = target->path_prefix.empty() ? "/v1/traces" : "";
  Tracer::Options options{.service_version = kVersion};
  if (std::string name = environment("OTEL_SERVICE_NAME"); !name.empty()) options.service_name = std::move(name);
  return std::make_shared<Tracer>(
      std::move(options),
      [target = *target, path](const std::string& body, const std::function<bool()>& should_stop) -> Status {
        const auto end = SteadyClock::now() + kSendTimeout;
        // The status says it all; a body may have any length.
        ASSIGN_OR_RETURN(const HttpReply reply, http_pass(
                                                    target, path, body, [](const HttpReply&) { return true; },
                                                    [](std::string_view) { return false; },
                                                    [&] { return should_stop() || SteadyClock::now() >= end; }));
        if (reply.status / 100 == 2) return ok_status();
        return unavailable("{}:{} answered {}", target.host, target.port, reply.status);
      });
}

}  // namespace spate
