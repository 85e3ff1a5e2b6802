// Tells an engine's load with the head of the answer, where the request's header endpoint-load-metrics-format asks for it
// (ORCA's load report).
#pragma once

#include <memory>

#include "engine/engine.h"
#include "server/passing_responder.h"

namespace spate {

class LoadReportResponder final : public PassingResponder {
 public:
  // `as_json`: the report as JSON, else as text.
  LoadReportResponder(std::shared_ptr<HttpResponder> inner, std::weak_ptr<Engine> engine, bool as_json);
  void respond(HttpResponse response) override;
  void begin_stream(HttpHeaders headers) override;

 private:
  void add_report(HttpHeaders& headers);

  const std::weak_ptr<Engine> engine_;
  const bool as_json_;
};

}  // namespace spate
