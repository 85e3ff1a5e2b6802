#include "server/trace_context.h"

namespace spate {
namespace {

constexpr size_t kVersionAt = 0, kTraceIdAt = 3, kSpanIdAt = 36, kFlagsAt = 53, kLength = 55;
constexpr std::string_view kHexDigits = "0123456789abcdef";

bool is_hex(std::string_view text) { return text.find_first_not_of(kHexDigits) == std::string_view::npos; }
bool is_zero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  if (header.size() < kLength) return std::nullopt;
  const std::string_view version = header.substr(kVersionAt, 2);
  if (!is_hex(version) || version == "ff") return std::nullopt;
  const bool has_more = header.size() > kLength;
  if (has_more && (version == "00" || header[kLength] != '-')) return std::nullopt;
  if (header[kTraceIdAt - 1] != '-' || header[kSpanIdAt - 1] != '-' || header[kFlagsAt - 1] != '-') return std::nullopt;
  const std::string_view trace_id = header.substr(kTraceIdAt, 32), span_id = header.substr(kSpanIdAt, 16);
  const std::string_view flags = header.substr(kFlagsAt, 2);
  if (!is_hex(trace_id) || is_zero(trace_id) || !is_hex(span_id) || is_zero(span_id) || !is_hex(flags))
    return std::nullopt;
  const size_t low_digit = kHexDigits.find(flags[1]);
  return TraceContext{std::string(trace_id), std::string(span_id), (low_digit & 1) != 0};
}

}  // namespace spate
