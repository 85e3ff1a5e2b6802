// CHECK: what must always be true in our own code. It stays on in release builds; a failure prints the
// condition, the values and the place, then stops the program. Problems of callers are Status instead.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace spate {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

// Called after the message is printed and before abort: a back-end adds what it ran last.
using CheckFailureHook = void (*)();
void set_check_failure_hook(CheckFailureHook hook);

namespace detail {
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail

// CHECK(a == b, "a is {}, b is {}", a, b);  the message is optional. Headers say SPATE_CHECK(a == b, "a == b", ...):
// doctest's CHECK may stand where they are included, for a unity build compiles several tests in one unit.
#define SPATE_CHECK(condition, text, ...)                                                           \
  do {                                                                                              \
    if (!(condition)) [[unlikely]] {                                                                \
      ::spate::check_failed(__FILE__, __LINE__, text, ::spate::detail::check_message(__VA_ARGS__)); \
    }                                                                                               \
  } while (false)
#define CHECK(condition, ...) SPATE_CHECK(condition, #condition, __VA_ARGS__)

// Only in debug and sanitizer builds, for inner loops; in headers too.
#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
  } while (false)
#else
#define DCHECK(condition, ...) SPATE_CHECK(condition, #condition, __VA_ARGS__)
#endif

}  // namespace spate
