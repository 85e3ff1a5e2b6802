// Reads one tool call of the Hermes form, {"name": "f", "arguments": {...}}, while it is being written: the name as
// soon as it is known, then the arguments' JSON text as it comes.
#pragma once

#include <string>
#include <string_view>

namespace spate {

class ToolCallScanner {
 public:
  // Appends to `arguments` what is new of their text. Until has_name(), arguments wait inside.
  void append(std::string_view text, std::string& arguments);
  void finish(std::string& arguments);  // no more text; arguments that waited for a name that never came stay inside
  bool has_name() const { return has_name_; }
  const std::string& name() const { return name_; }
  bool is_complete() const { return depth_ == 0 && has_begun_; }

 private:
  void append_char(char c, std::string& arguments);
  void begin_value();
  void end_value();

  int depth_ = 0;  // open brackets; 1 = inside the call's object
  bool has_begun_ = false;
  bool in_string_ = false;
  bool is_escaped_ = false;
  bool is_value_ = false;  // at depth 1: after the colon
  bool in_arguments_ = false;
  bool has_name_ = false;
  std::string key_, string_;  // at depth 1, raw with escapes
  std::string name_;
  std::string waiting_;  // arguments before the name
};

}  // namespace spate
