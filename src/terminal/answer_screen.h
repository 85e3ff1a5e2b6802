// AnswerScreen: one answer on stdout as it comes: reasoning apart from the answer, Markdown rendered.
//
//   terminal     reasoning dimmed, or "thinking..." while it is hidden; Markdown; control characters made visible
//   else         plain text: reasoning between lines of <think> and </think>; no escape sequence of ours
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "terminal/markdown_renderer.h"
#include "terminal/visible_text.h"

namespace spate {

struct ScreenOptions {
  bool is_terminal = false;
  bool has_colours = false;  // of a terminal: not "dumb", no NO_COLOR
  bool renders_markdown = true;
  bool hides_thinking = false;
  bool keeps_bytes = false;  // no terminal: text exactly as the model wrote it
};

class AnswerScreen {
 public:
  using Write = std::function<void(std::string_view)>;
  AnswerScreen(ScreenOptions options, Write write) : options_(options), write_(std::move(write)) {}

  void add_reasoning(std::string_view text);
  void add_content(std::string_view text);
  void finish();  // also of an answer that was cut: the line ends, and no colour is left on

 private:
  enum class Part { kNothing, kReasoning, kContent };
  void begin_reasoning();
  void begin_content();
  void end_reasoning();
  void put(std::string_view text);

  const ScreenOptions options_;
  const Write write_;
  Part part_ = Part::kNothing;
  bool has_notice_ = false;  // "thinking..." stands on the line
  VisibleText filter_;
  MarkdownRenderer markdown_;
  bool is_at_line_start_ = true;
};

}  // namespace spate
