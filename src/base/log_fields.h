// A log line whose parts are also members of the JSON object of --log-format json, for those who filter by them. In
// text the message says them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/log.h"

namespace spate {

struct LogField {
  std::string_view name;
  std::string value;
  bool is_number = false;
};

void log_line(LogLevel level, std::string_view component, const std::string& message,
              std::initializer_list<LogField> fields);

}  // namespace spate
