#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>

namespace spate {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kInfo};
std::atomic<LogFormat> current_format{LogFormat::kText};

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "DEBUG";
    case LogLevel::kInfo: return "INFO";
    case LogLevel::kWarning: return "WARNING";
    case LogLevel::kError: return "ERROR";
    case LogLevel::kOff: break;
  }
  return "?";
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

void set_log_level(LogLevel level) { current_level = level; }
LogLevel log_level() { return current_level; }
void set_log_format(LogFormat format) { current_format = format; }

void log_line(LogLevel level, std::string_view component, const std::string& message) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const int millis = static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000);
  std::tm local{};
  localtime_r(&seconds, &local);
  const bool is_json = current_format.load() == LogFormat::kJson;
  char stamp[32];
  std::strftime(stamp, sizeof stamp, is_json ? "%Y-%m-%dT%H:%M:%S" : "%m-%d %H:%M:%S", &local);

  std::string line;
  if (is_json) {
    line = fmt::format("{{\"level\":\"{}\",\"time\":\"{}.{:03}\",\"component\":\"{}\",\"message\":\"", level_name(level),
                       stamp, millis, component);
    append_json_escaped(line, message);
    line += "\"}\n";
  } else {
    line = fmt::format("{} {}.{:03} [{}] {}\n", level_name(level), stamp, millis, component, message);
  }
  // A short write to stderr cannot be reported anywhere better.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace spate
