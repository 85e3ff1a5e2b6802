#include "terminal/answer_screen.h"

#include <utility>

namespace spate {
namespace {

constexpr std::string_view kFaint = "\x1b[2m", kReset = "\x1b[0m", kClearLine = "\r\x1b[K";

std::string_view without_leading_space(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

}  // namespace

void AnswerScreen::put(std::string_view text) {
  if (text.empty()) return;
  write_(text);
  is_at_line_start_ = text.back() == '\n';
}

void AnswerScreen::begin_reasoning() {
  part_ = Part::kReasoning;
  if (options_.is_terminal) {
    if (options_.has_colours) put(kFaint);
  } else {
    put("<think>\n");
  }
}

void AnswerScreen::add_reasoning(std::string_view text) {
  // White space alone is no reasoning: models that were told not to think write an empty pair of markers.
  if (part_ != Part::kReasoning) text = without_leading_space(text);
  if (text.empty()) return;
  if (options_.hides_thinking) {
    if (options_.has_colours && !std::exchange(has_notice_, true))
      write_(std::string(kFaint) + "thinking..." + std::string(kReset));
    return;
  }
  if (part_ == Part::kContent) finish();  // reasoning between parts of the answer
  if (part_ == Part::kNothing) begin_reasoning();
  put(options_.keeps_bytes ? std::string(text) : filter_.append(text));
}

void AnswerScreen::end_reasoning() {
  put(filter_.finish());
  if (!is_at_line_start_) put("\n");
  if (options_.has_colours) write_(kReset);
  if (!options_.is_terminal) put("</think>\n");
}

void AnswerScreen::begin_content() {
  if (std::exchange(has_notice_, false)) write_(kClearLine);
  if (part_ == Part::kReasoning) {
    end_reasoning();
    put("\n");
  }
  part_ = Part::kContent;
}

void AnswerScreen::add_content(std::string_view text) {
  if (part_ != Part::kContent) {
    // Line breaks behind the reasoning. An answer of exact bytes keeps what it begins with.
    if (!options_.keeps_bytes || part_ == Part::kReasoning) text = without_leading_space(text);
    if (text.empty()) return;
    begin_content();
  }
  if (options_.keeps_bytes) return put(text);
  const std::string safe = filter_.append(text);
  put(options_.has_colours && options_.renders_markdown ? markdown_.append(safe) : safe);
}

void AnswerScreen::finish() {
  if (std::exchange(has_notice_, false)) write_(kClearLine);
  if (part_ == Part::kReasoning) end_reasoning();
  if (part_ == Part::kContent) {
    const std::string rest = filter_.finish();
    if (options_.has_colours && options_.renders_markdown) {
      put(markdown_.append(rest));
      put(markdown_.finish());
      write_(kReset);
    } else {
      put(rest);
    }
  }
  if (!is_at_line_start_) put("\n");
  part_ = Part::kNothing;
}

}  // namespace spate
