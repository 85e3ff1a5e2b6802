#include "server/chat_output_parser.h"

#include <utility>

namespace spate {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kToolCall = "<tool_call>", kEndToolCall = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMaxHeldSpace =
    256;  // bytes; a model that writes nothing but line breaks must not be buffered for ever

// How much of the end of `text` is a beginning of `tag`.
size_t overlap(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == tag.substr(0, length)) return length;
  }
  return 0;
}

size_t trailing_space(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

ChatOutputParser::ChatOutputParser(ChatOutputOptions options)
    : options_(options),
      state_(!options.parse_reasoning      ? State::kContent
             : options.starts_in_reasoning ? State::kReasoning
                                           : State::kStart),
      skip_space_(state_ == State::kReasoning) {}

void ChatOutputParser::append(std::string_view text, std::vector<ChatPart>& parts) {
  text_ += text;
  while (step(parts, false)) {
  }
}

void ChatOutputParser::finish(std::vector<ChatPart>& parts) {
  while (step(parts, true)) {
  }
}

// One move; false when more text is needed (or all is done).
bool ChatOutputParser::step(std::vector<ChatPart>& parts, bool is_end) {
  switch (state_) {
    case State::kStart:
      return step_start(parts, is_end);
    case State::kReasoning:
      return step_until(kEndThink, ChatPart::Kind::kReasoning, State::kContent, parts, is_end);
    case State::kContent:
      if (!options_.parse_tool_calls && !skip_space_) {
        emit(ChatPart::Kind::kContent, std::exchange(text_, {}), parts);
        return false;
      }
      return step_until(options_.parse_tool_calls ? kToolCall : std::string_view(), ChatPart::Kind::kContent,
                        State::kToolCall, parts, is_end);
    case State::kToolCall:
      return step_tool_call(parts, is_end);
  }
  return false;
}

bool ChatOutputParser::step_start(std::vector<ChatPart>&, bool is_end) {
  const size_t first = text_.find_first_not_of(kSpace);
  const std::string_view rest = first == std::string::npos ? std::string_view() : std::string_view(text_).substr(first);
  if (rest.starts_with(kThink)) {
    text_.erase(0, first + kThink.size());
    state_ = State::kReasoning;
    skip_space_ = true;
    return true;
  }
  if (!is_end && kThink.starts_with(rest)) return false;  // may still become the tag
  state_ = State::kContent;
  return true;
}

bool ChatOutputParser::step_until(std::string_view tag, ChatPart::Kind kind, State next, std::vector<ChatPart>& parts,
                                  bool is_end) {
  if (skip_space_) {
    const size_t first = text_.find_first_not_of(kSpace);
    text_.erase(0, first == std::string::npos ? text_.size() : first);
    if (text_.empty()) return false;
    skip_space_ = false;
    if (tag.empty()) return true;
  }
  const size_t pos = text_.find(tag);
  if (pos != std::string::npos) {
    std::string before = text_.substr(0, pos);
    text_.erase(0, pos + tag.size());
    before.resize(before.size() - trailing_space(before));
    emit(kind, std::move(before), parts);
    state_ = next;
    skip_space_ = true;
    return true;
  }
  size_t num_held = 0;
  if (!is_end) {
    num_held = overlap(text_, tag);
    const size_t num_space = trailing_space(std::string_view(text_).substr(0, text_.size() - num_held));
    if (num_space <= kMaxHeldSpace) num_held += num_space;
  }
  emit(kind, text_.substr(0, text_.size() - num_held), parts);
  text_.erase(0, text_.size() - num_held);
  return false;
}

bool ChatOutputParser::step_tool_call(std::vector<ChatPart>& parts, bool is_end) {
  const size_t pos = text_.find(kEndToolCall);
  const bool is_closed = pos != std::string::npos;
  const size_t num_taken = is_closed ? pos : text_.size() - (is_end ? 0 : overlap(text_, kEndToolCall));
  emit_tool_text(std::string_view(text_).substr(0, num_taken), parts);
  text_.erase(0, num_taken);
  if (!is_closed && !is_end) return false;
  if (is_closed) text_.erase(0, kEndToolCall.size());
  end_tool_call(parts);
  state_ = State::kContent;
  skip_space_ = true;
  return is_closed;
}

void ChatOutputParser::emit_tool_text(std::string_view text, std::vector<ChatPart>& parts) {
  std::string arguments;
  if (!is_call_open_) raw_call_ += text;
  scanner_.append(text, arguments);
  const bool is_dropped = !options_.parallel_tool_calls && num_tool_calls_ > (is_call_open_ ? 1 : 0);
  if (scanner_.has_name() && !is_call_open_) {
    is_call_open_ = true;
    if (!is_dropped) emit(ChatPart::Kind::kToolName, scanner_.name(), parts, num_tool_calls_);
    ++num_tool_calls_;
  }
  if (!is_dropped) emit(ChatPart::Kind::kToolArguments, std::move(arguments), parts, num_tool_calls_ - 1);
}

void ChatOutputParser::end_tool_call(std::vector<ChatPart>& parts) {
  // No name: not a call after all. What the model wrote is given out as it is rather than lost.
  if (!is_call_open_ && !raw_call_.empty()) {
    emit(ChatPart::Kind::kContent, std::string(kToolCall) + raw_call_ + std::string(kEndToolCall), parts);
  }
  is_call_open_ = false;
  raw_call_.clear();
  scanner_ = ToolCallScanner();
}

void ChatOutputParser::emit(ChatPart::Kind kind, std::string text, std::vector<ChatPart>& parts, int tool_idx) {
  if (!text.empty()) parts.push_back({.kind = kind, .text = std::move(text), .tool_idx = tool_idx});
}

}  // namespace spate
