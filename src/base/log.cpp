#include "base/log.h"

#include "base/log_fields.h"
#include "base/recent_log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <deque>
#include <mutex>

namespace spate {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kInfo};
std::atomic<LogFormat> current_format{LogFormat::kText};

class RecentLog {
 public:
  void add(RecentLogLine line) {
    const std::lock_guard lock(mutex_);
    line.number = ++newest_;
    lines_.push_back(std::move(line));
    if (lines_.size() > kNumRecentLogLines) lines_.pop_front();
  }
  std::vector<RecentLogLine> after(uint64_t number, LogLevel least) {
    const std::lock_guard lock(mutex_);
    std::vector<RecentLogLine> found;
    for (const RecentLogLine& line : lines_) {
      if (line.number > number && line.level >= least) found.push_back(line);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::deque<RecentLogLine> lines_;
  uint64_t newest_ = 0;
};

RecentLog& kept_lines() {
  static auto* kept = new RecentLog;  // never destroyed: threads may log to the end
  return *kept;
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
}

}  // namespace

const char* log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
    case LogLevel::kOff:
      break;
  }
  return "?";
}

std::vector<RecentLogLine> recent_log(uint64_t after, LogLevel least) { return kept_lines().after(after, least); }

void set_log_level(LogLevel level) { current_level = level; }
LogLevel log_level() { return current_level; }
void set_log_format(LogFormat format) { current_format = format; }

void log_line(LogLevel level, std::string_view component, const std::string& message) {
  log_line(level, component, message, {});
}

void log_line(LogLevel level, std::string_view component, const std::string& message,
              std::initializer_list<LogField> fields) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const int millis = static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000);
  const bool is_json = current_format.load() == LogFormat::kJson;  // for machines: the time of UTC
  std::tm parts{};
  is_json ? gmtime_r(&seconds, &parts) : localtime_r(&seconds, &parts);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, is_json ? "%Y-%m-%dT%H:%M:%S" : "%m-%d %H:%M:%S", &parts);

  std::string line;
  if (is_json) {
    line = fmt::format("{{\"level\":\"{}\",\"time\":\"{}.{:03}Z\",\"component\":\"{}\",\"message\":\"",
                       log_level_name(level), stamp, millis, component);
    append_json_escaped(line, message);
    line += '"';
    for (const LogField& field : fields) {
      const char* quote = field.is_number ? "" : "\"";
      line += fmt::format(",\"{}\":{}", field.name, quote);
      append_json_escaped(line, field.value);
      line += quote;
    }
    line += "}\n";
  } else {
    line = fmt::format("{} {}.{:03} [{}] {}\n", log_level_name(level), stamp, millis, component, message);
  }
  // A short write to stderr cannot be reported anywhere better.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  const auto unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  kept_lines().add({.unix_ms = unix_ms,
                    .level = level,
                    .component = std::string(component),
                    .message = message.substr(0, kMaxRecentLogMessage)});
}

}  // namespace spate
