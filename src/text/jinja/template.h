// A Jinja template as chat templates use it: the language of jinja2 3.1 in the sandbox that transformers sets up
// (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, break/continue, {% generation %}, raise_exception,
// strftime_now, its own tojson, dict and namespace).
//
// Parsed once, immutable, rendered by any number of threads at the same time. A hostile template ends in a Status:
// steps, memory, output, stack and recursion are bounded (meter.h, Limits).
//
// Differences from jinja2, all of them errors here and not other text: integers have 64 bits; include, import and
// extends, `autoescape true`, scoped blocks, the filters random and urlize, the functions lipsum and self, and
// \N{...} in strings are not supported.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/jinja/meter.h"
#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace spate::jinja {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

class Template {
 public:
  // Errors: invalid_argument "line 12: unexpected '}'".
  static Result<Template> parse(std::string_view source);

  // `context`: a dict of the variables. `clock` is what strftime_now(format) gives.
  // Errors: invalid_argument "line 12: 'x' is undefined"; the text of raise_exception() comes without a line.
  Result<std::string> render(const Value& context, const Clock& clock, const Limits& limits = {}) const;

  // Does the template mention a variable, attribute or key of this name? For finding out what it supports.
  bool mentions(std::string_view name) const;
  const Body& body() const;

 private:
  struct Parsed;
  explicit Template(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

// The local time as strftime of the C library writes it (and %f: microseconds).
std::string system_strftime(const std::string& format);

}  // namespace spate::jinja
