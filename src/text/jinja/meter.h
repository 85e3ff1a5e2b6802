// What one parse or one render may use: steps, memory, stack. Hostile templates end in a LimitError instead of an
// endless loop, a full memory or an overflown stack.
//
// The meter in use is a thread-local pointer, so that every helper (equality, repr, a filter) can charge it without
// a parameter. A render runs on one thread from begin to end; without a meter nothing is counted.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace spate::jinja {

// An error of the template or of what it was given; `line` is 0 until the interpreter knows it.
// Inside the folder errors are exceptions (they cross dozens of recursive calls); Template::parse and
// Template::render turn them into a Status.
struct Error : std::runtime_error {
  explicit Error(const std::string& message, bool raised_by_template = false)
      : std::runtime_error(message), verbatim(raised_by_template) {}
  int line = 0;
  bool verbatim = false;  // the text of raise_exception(): passed on without the line
};

// Never caught by anything in a template: the render is over.
struct LimitError : Error {
  using Error::Error;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

struct Limits {
  int64_t max_steps = 20'000'000;              // about one expression node or 64 copied bytes each; a second or so
  size_t max_output_bytes = size_t{16} << 20;  // rendered text, blocks being captured included; also of one string
  size_t max_live_bytes = size_t{256} << 20;   // values alive at one time
  size_t max_stack_bytes = size_t{1} << 20;    // of the calling thread
  int max_calls = 200;                         // macros and recursive loops inside one another
};

struct Meter {
  explicit Meter(const Limits& given) : limits(given), stack_base(current_frame()) {}
  static uintptr_t current_frame() { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }

  Limits limits;
  int64_t num_steps = 0;
  size_t live_bytes = 0;
  uintptr_t stack_base;
};

extern thread_local Meter* current_meter;

// Puts a meter in force for a scope. Scopes nest (a parse inside a render does not happen, a test's does).
class MeterScope {
 public:
  explicit MeterScope(Meter& meter) : previous_(current_meter) { current_meter = &meter; }
  ~MeterScope() { current_meter = previous_; }
  MeterScope(const MeterScope&) = delete;
  MeterScope& operator=(const MeterScope&) = delete;

 private:
  Meter* previous_;
};

void charge_steps(int64_t num_steps);
inline void charge_bytes_copied(size_t num_bytes) { charge_steps(static_cast<int64_t>(num_bytes / 64)); }
void charge_live_bytes(size_t num_bytes);
void release_live_bytes(size_t num_bytes);
void check_stack();
size_t max_string_bytes();
// Throws if a string of so many bytes is too long; call it before making the string.
void check_string_bytes(size_t num_bytes);

}  // namespace spate::jinja
