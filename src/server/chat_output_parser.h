// ChatOutputParser: splits what a chat model writes into reasoning (<think>...</think>), content and tool calls
// (<tool_call>{"name": ..., "arguments": ...}</tool_call>), as the text comes.
//
// Whatever way the text is cut into pieces, the parts add up to the same. Tags that the model writes are taken out,
// line breaks around them too. Held back: what may become a tag, and white space before one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/tool_call_scanner.h"

namespace spate {

struct ChatPart {
  enum class Kind { kContent, kReasoning, kToolName, kToolArguments };
  Kind kind = Kind::kContent;
  std::string text;   // for kToolName the function's name
  int tool_idx = -1;  // for the tool kinds: 0, 1, 2 ...
};

struct ChatOutputOptions {
  bool parse_reasoning = false;
  bool starts_in_reasoning = false;  // the prompt ends with <think>
  bool parse_tool_calls = false;
  bool parallel_tool_calls = true;  // false: calls after the first are dropped
};

class ChatOutputParser {
 public:
  explicit ChatOutputParser(ChatOutputOptions options);
  void append(std::string_view text, std::vector<ChatPart>& parts);
  void finish(std::vector<ChatPart>& parts);
  int num_tool_calls() const { return num_tool_calls_; }
  bool is_in_reasoning() const { return state_ == State::kReasoning; }
  bool is_in_tool_call() const { return state_ == State::kToolCall; }

 private:
  enum class State { kStart, kReasoning, kContent, kToolCall };

  bool step(std::vector<ChatPart>& parts, bool is_end);
  bool step_start(std::vector<ChatPart>& parts, bool is_end);
  bool step_until(std::string_view tag, ChatPart::Kind kind, State next, std::vector<ChatPart>& parts, bool is_end);
  bool step_tool_call(std::vector<ChatPart>& parts, bool is_end);
  void emit_tool_text(std::string_view text, std::vector<ChatPart>& parts);
  void end_tool_call(std::vector<ChatPart>& parts);
  void emit(ChatPart::Kind kind, std::string text, std::vector<ChatPart>& parts, int tool_idx = -1);

  ChatOutputOptions options_;
  State state_;
  bool skip_space_ = false;  // line breaks after a tag
  std::string text_;         // not yet given out
  ToolCallScanner scanner_;
  std::string raw_call_;  // of a call whose name is not known yet
  bool is_call_open_ = false;
  int num_tool_calls_ = 0;
};

}  // namespace spate
