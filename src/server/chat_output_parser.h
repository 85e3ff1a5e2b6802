// ChatOutputParser: splits what a chat model writes into reasoning, content and tool calls, as the text comes, by the
// declarations of output_format.h.
//
// Whatever way the text is cut into pieces, the parts add up to the same. Markers that the model writes are taken out,
// white space around them too; between two pieces of content it stays once. Held back: what may become a marker, and
// white space before one.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/call_reader.h"
#include "server/output_format.h"

namespace spate {

struct ChatPart {
  enum class Kind { kContent, kReasoning, kToolName, kToolArguments };
  Kind kind = Kind::kContent;
  std::string text;   // for kToolName the function's name
  int tool_idx = -1;  // for the tool kinds: 0, 1, 2 ...
};

struct ChatOutputOptions {
  const ReasoningFormat* reasoning = nullptr;               // null: not parsed
  bool starts_in_reasoning = false;                         // the prompt ends with its beginning
  const ToolFormat* tools = nullptr;                        // null: not parsed
  std::shared_ptr<const nlohmann::ordered_json> functions;  // the request's tools, or null
  bool parallel_tool_calls = true;                          // false: calls after the first are dropped
};

class ChatOutputParser final : private CallSink {
 public:
  explicit ChatOutputParser(ChatOutputOptions options);
  void append(std::string_view text, std::vector<ChatPart>& parts);
  void finish(std::vector<ChatPart>& parts, bool is_cut = false);  // is_cut: at the limit of tokens
  int num_tool_calls() const { return num_tool_calls_; }
  bool is_in_reasoning() const { return state_ == State::kReasoning; }
  // What comes next is content unless it turns out to be a marker.
  bool is_in_content() const {
    return state_ == State::kStart || state_ == State::kContentStart || state_ == State::kContent;
  }

 private:
  // kMessage: harmony, between messages and in their heads. kCalls: between calls of a section. kCallTail: behind a call
  // that had no opening marker, where a closing one may follow.
  enum class State { kStart, kReasoning, kContentStart, kContent, kCalls, kCall, kCallTail, kMessage };
  struct Marker {
    std::string_view text;
    State next;
  };

  bool step(bool is_end);
  bool step_start(bool is_end);
  bool step_until(const std::vector<Marker>& markers, ChatPart::Kind kind, bool is_end);
  bool step_content_start(bool is_end);
  bool step_calls(bool is_end);
  bool step_call(bool is_end);
  bool step_call_tail(bool is_end);
  bool step_message(bool is_end);
  void open_call(std::string_view opener);
  void close_call(bool is_whole);
  bool take_marker(std::string_view marker);
  void skip_space();
  void begin_call(std::string name) override;
  void add_arguments(std::string_view json) override;
  bool knows_function(std::string_view name) const;
  void emit(ChatPart::Kind kind, std::string_view text, int tool_idx = -1);
  void append_part(ChatPart::Kind kind, std::string_view text, int tool_idx);

  ChatOutputOptions options_;
  State state_;
  std::vector<Marker> reasoning_markers_, content_markers_;
  std::vector<std::string_view> call_ends_;  // outside values
  bool skip_space_ = false;  // after a marker
  std::string space_before_, space_after_;  // the markers since the last content; written when more content comes
  std::string text_;         // not yet given out
  std::vector<ChatPart>* parts_ = nullptr;
  std::unique_ptr<CallReader> reader_;
  std::string raw_call_;  // of a call whose function is not known yet
  bool has_call_name_ = false, is_call_refused_ = false, is_cut_ = false;
  bool is_bare_call_ = false;  // without call_begin
  bool has_content_ = false;
  int num_tool_calls_ = 0;
};

}  // namespace spate
