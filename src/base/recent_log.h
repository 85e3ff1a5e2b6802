// The last lines of the log, for those who look at a running server. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"

namespace spate {

struct RecentLogLine {
  uint64_t number = 0;  // the first of the process is 1
  int64_t unix_ms = 0;
  LogLevel level = LogLevel::kInfo;
  std::string component, message;  // a long message is cut
};
constexpr size_t kNumRecentLogLines = 1000, kMaxRecentLogMessage = 4000;

const char* log_level_name(LogLevel level);  // "INFO"
// Lines above number `after` of at least this level, oldest first.
std::vector<RecentLogLine> recent_log(uint64_t after, LogLevel least);

}  // namespace spate
