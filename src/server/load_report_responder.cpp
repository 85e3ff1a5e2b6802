#include "server/load_report_responder.h"

#include <fmt/format.h>

namespace spate {

LoadReportResponder::LoadReportResponder(std::shared_ptr<HttpResponder> inner, std::weak_ptr<Engine> engine,
                                         bool as_json)
    : PassingResponder(std::move(inner)), engine_(std::move(engine)), as_json_(as_json) {}

void LoadReportResponder::respond(HttpResponse response) {
  add_report(response.headers);
  PassingResponder::respond(std::move(response));
}

void LoadReportResponder::begin_stream(HttpHeaders headers) {
  add_report(headers);
  PassingResponder::begin_stream(std::move(headers));
}

void LoadReportResponder::add_report(HttpHeaders& headers) {
  const std::shared_ptr<Engine> engine = engine_.lock();
  if (!engine) return;
  const EngineStats stats = engine->stats();
  headers.emplace_back(
      "endpoint-load-metrics",
      as_json_
          ? fmt::format(R"(JSON {{"named_metrics": {{"kv_cache_usage_perc": {}, "num_requests_waiting": {:.1f}}}}})",
                        stats.kv_cache_usage, static_cast<double>(stats.num_waiting))
          : fmt::format("TEXT named_metrics.kv_cache_usage_perc={}, named_metrics.num_requests_waiting={:.1f}",
                        stats.kv_cache_usage, static_cast<double>(stats.num_waiting)));
}

}  // namespace spate
