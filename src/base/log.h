// Log lines on stderr: "INFO 11-21 10:11:12.123 [engine] message" or one JSON object a line.
// Thread-safe; a line is one write(2). Not for the step loop's hot path.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace spate {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

void set_log_level(LogLevel level);
LogLevel log_level();
void set_log_format(LogFormat format);
void log_line(LogLevel level, std::string_view component, const std::string& message);

#define SPATE_LOGGER(name, level)                                                                     \
  template <typename... Args>                                                                         \
  void name(std::string_view component, fmt::format_string<Args...> format, Args&&... args) {         \
    if (log_level() <= level) log_line(level, component, fmt::format(format, std::forward<Args>(args)...)); \
  }
SPATE_LOGGER(log_debug, LogLevel::kDebug)
SPATE_LOGGER(log_info, LogLevel::kInfo)
SPATE_LOGGER(log_warning, LogLevel::kWarning)
SPATE_LOGGER(log_error, LogLevel::kError)
#undef SPATE_LOGGER

}  // namespace spate
