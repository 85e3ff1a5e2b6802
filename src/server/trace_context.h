// The place of a request in a trace that began elsewhere: the header traceparent of W3C Trace Context, level 1.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spate {

struct TraceContext {
  std::string trace_id;  // 32 hexadecimal digits
  std::string span_id;   // 16, of the caller's span
  bool is_sampled = true;
};

// "00-<trace id>-<span id>-<flags>", in lower case. Of later versions the same four fields are read, as the standard
// asks. Nothing: the header is missing or malformed, and the request begins a trace of its own.
std::optional<TraceContext> parse_traceparent(std::string_view header);

}  // namespace spate
