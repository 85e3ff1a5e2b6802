#include "server/log_api.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/recent_log.h"
#include "server/http_message.h"
#include "server/json_writer.h"

namespace spate {
namespace {

constexpr struct {
  const char* name;
  LogLevel level;
} kLevels[] = {
    {"", LogLevel::kDebug},  // absent: all
    {"debug", LogLevel::kDebug},     {"info", LogLevel::kInfo},
    {"warning", LogLevel::kWarning}, {"error", LogLevel::kError},
};

}  // namespace

std::optional<ApiError> answer_log(const HttpRequest& request, HttpResponder& responder) {
  const std::string level = query_value(request.query, "level"), number = query_value(request.query, "after");
  const auto* least = std::ranges::find_if(kLevels, [&](const auto& each) { return level == each.name; });
  if (least == std::end(kLevels)) {
    return bad_request("level",
                       fmt::format("level must be debug, info, warning or error, got {}", level.substr(0, 100)));
  }
  uint64_t after = 0;
  const char* const end = number.data() + number.size();
  const auto [read, error] = std::from_chars(number.data(), end, after);
  if (!number.empty() && (error != std::errc() || read != end)) {
    return bad_request("after", fmt::format("after must be the number of a line, got {}", number.substr(0, 100)));
  }
  JsonWriter json;
  json.begin_object().key("lines").begin_array();
  for (const RecentLogLine& line : recent_log(after, least->level)) {
    json.begin_object().field("number", line.number).field("time", static_cast<double>(line.unix_ms) / 1e3);
    json.field("level", log_level_name(line.level)).field("component", line.component);
    json.field("message", line.message).end_object();
  }
  responder.respond({.body = json.end_array().end_object().take()});
  return std::nullopt;
}

}  // namespace spate
