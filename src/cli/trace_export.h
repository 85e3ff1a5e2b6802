// Traces over HTTP to an OpenTelemetry collector: what a server needs for --otlp-traces-endpoint.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "server/tracer.h"

namespace spate {

// `endpoint`: "http://host:4318/v1/traces"; without a path /v1/traces is added. Of the environment, as OpenTelemetry
// has it: OTEL_SERVICE_NAME (default spate) and OTEL_EXPORTER_OTLP_HEADERS ("name=value,name=value"). Nothing is sent
// before the first trace. Errors: invalid_argument (an endpoint or headers that cannot be read).
Result<std::shared_ptr<Tracer>> make_tracer(const std::string& endpoint);

}  // namespace spate
