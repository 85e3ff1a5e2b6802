// CallReader: reads what stands inside a tool call, byte by byte, and tells of functions and arguments as soon as they
// are known. One for each CallBody.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/output_format.h"

namespace spate {

class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void begin_call(std::string name) = 0;
  virtual void add_arguments(std::string_view json) = 0;  // of the call that began last
};

class CallReader {
 public:
  virtual ~CallReader() = default;
  virtual void append(char c, CallSink& sink) = 0;
  // The call has ended, or the text has; is_cut: at its limit, and what is open stays open.
  virtual void finish(CallSink& sink, bool is_cut) = 0;
  virtual bool is_done() const = 0;                    // further bytes do not belong to it
  virtual bool is_in_value() const { return false; }  // a marker here is text
  virtual bool has_failed() const { return false; }
};

// `tools` as in the request, or null; they say which values of kKeyValues are strings.
std::unique_ptr<CallReader> make_call_reader(const ToolFormat& format, const nlohmann::ordered_json* tools);

// JSON of a Python literal: 'x', True, None, 1.5, [..], (..), {..}. Empty when it is none.
std::string json_of_python(std::string_view literal);

}  // namespace spate
