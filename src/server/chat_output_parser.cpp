#include "server/chat_output_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace spate {
namespace {

using Kind = ChatPart::Kind;

constexpr std::string_view kSpace = " \t\r\n";
// Bytes of white space that are held back, because a marker may follow; older ones go out, so that a model that writes
// nothing but line breaks is not buffered for ever.
constexpr size_t kMaxHeldSpace = 256;

// Harmony: <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kStartMessage = "<|start|>";
constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
constexpr size_t kMaxHeadBytes = 1024;

// How much of the end of `text` is a beginning of `marker`.
size_t overlap(std::string_view text, std::string_view marker) {
  for (size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == marker.substr(0, length)) return length;
  }
  return 0;
}

size_t trailing_space(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

bool is_beginning(std::string_view text, std::string_view marker) {
  return text.size() < marker.size() && marker.starts_with(text);
}

}  // namespace

ChatOutputParser::ChatOutputParser(ChatOutputOptions options) : options_(std::move(options)), state_(State::kStart) {
  const ReasoningFormat* const reasoning = options_.reasoning;
  const ToolFormat* const tools = options_.tools;
  const bool is_harmony = (reasoning && reasoning->is_harmony) || (tools && tools->is_harmony);
  if (is_harmony) {
    for (const std::string_view end : kMessageEnds) reasoning_markers_.push_back({end, State::kMessage});
    content_markers_ = reasoning_markers_;
    call_ends_.assign(std::begin(kMessageEnds), std::end(kMessageEnds));
    state_ = State::kMessage;
    return;
  }
  if (reasoning) {
    reasoning_markers_.push_back({reasoning->end, State::kContentStart});
    for (const std::string_view drop : {reasoning->answer_begin, reasoning->answer_end}) {
      if (!drop.empty()) content_markers_.push_back({drop, State::kContent});
    }
  }
  if (tools) {
    if (!tools->section_begin.empty()) content_markers_.push_back({tools->section_begin, State::kCalls});
    if (!tools->call_end.empty()) call_ends_ = {tools->call_end};
    if (!tools->call_begin.empty()) content_markers_.push_back({tools->call_begin, State::kCall});
    if (!tools->body_end.empty()) content_markers_.push_back({tools->name_begin, State::kCall});
  }
  if (!reasoning) state_ = State::kContentStart;
  if (reasoning && options_.starts_in_reasoning) {
    state_ = State::kReasoning;
    skip_space_ = true;
  }
}

void ChatOutputParser::append(std::string_view text, std::vector<ChatPart>& parts) {
  parts_ = &parts;
  text_ += text;
  while (step(false)) {
  }
}

void ChatOutputParser::finish(std::vector<ChatPart>& parts, bool is_cut) {
  parts_ = &parts;
  is_cut_ = is_cut;
  while (step(true)) {
  }
}

// One move; false when more text is needed (or all is done).
bool ChatOutputParser::step(bool is_end) {
  switch (state_) {
    case State::kStart:
      return step_start(is_end);
    case State::kReasoning:
      return step_until(reasoning_markers_, Kind::kReasoning, is_end);
    case State::kContentStart:
      return step_content_start(is_end);
    case State::kContent:
      return step_until(content_markers_, Kind::kContent, is_end);
    case State::kCalls:
      return step_calls(is_end);
    case State::kCall:
      return step_call(is_end);
    case State::kCallTail:
      return step_call_tail(is_end);
    case State::kMessage:
      return step_message(is_end);
  }
  return false;
}

bool ChatOutputParser::step_start(bool is_end) {
  const std::string_view begin = options_.reasoning->begin;
  const size_t first = text_.find_first_not_of(kSpace);
  const std::string_view rest = first == std::string::npos ? std::string_view() : std::string_view(text_).substr(first);
  if (rest.starts_with(begin)) {
    text_.erase(0, first + begin.size());
    state_ = State::kReasoning;
    skip_space_ = true;
    return true;
  }
  if (!is_end && begin.starts_with(rest)) return false;  // may still become the marker
  state_ = State::kContentStart;
  return true;
}

// Gives out text of `kind` up to the first of the markers.
bool ChatOutputParser::step_until(const std::vector<Marker>& markers, Kind kind, bool is_end) {
  if (skip_space_) {
    skip_space();
    if (text_.empty()) return false;
    skip_space_ = false;
  }
  const Marker* found = nullptr;
  size_t pos = std::string::npos, num_held = 0;
  for (const Marker& marker : markers) {
    if (const size_t at = text_.find(marker.text); at < pos) {
      pos = at;
      found = &marker;
    }
    if (!is_end) num_held = std::max(num_held, overlap(text_, marker.text));
  }
  if (found) {
    const std::string_view before = std::string_view(text_).substr(0, pos);
    const size_t num_space = std::min(trailing_space(before), kMaxHeldSpace);
    emit(kind, before.substr(0, before.size() - num_space));
    if (!space_after_.empty()) space_before_ = std::exchange(space_after_, {});
    if (kind == Kind::kContent && num_space > 0) space_before_ = before.substr(before.size() - num_space);
    text_.erase(0, pos + found->text.size());
    skip_space_ = true;
    state_ = found->next;
    if (state_ == State::kCall) open_call(found->text);
    if (state_ == State::kMessage) text_.insert(0, found->text);
    return true;
  }
  if (!is_end && !markers.empty()) {
    const std::string_view free = std::string_view(text_).substr(0, text_.size() - num_held);
    num_held += std::min(trailing_space(free), kMaxHeldSpace);
  }
  emit(kind, std::string_view(text_).substr(0, text_.size() - num_held));
  text_.erase(0, text_.size() - num_held);
  return false;
}

// Where an answer that is nothing but calls would begin with one.
bool ChatOutputParser::step_content_start(bool is_end) {
  const ToolFormat* const tools = options_.tools;
  if (tools && tools->is_whole_answer) {
    const size_t first = text_.find_first_not_of(kSpace);
    if (first == std::string::npos) {
      if (!is_end) return false;
    } else {
      const std::string_view rest = std::string_view(text_).substr(first);
      if (!is_end && is_beginning(rest, tools->section_begin)) return false;
      if (rest.front() == (tools->body == CallBody::kPython ? '[' : '{')) {
        raw_call_ = text_.substr(0, first);
        text_.erase(0, first);
        open_call("");
        state_ = State::kCall;
        return true;
      }
    }
  }
  state_ = State::kContent;
  return true;
}

// Between the calls of a section.
bool ChatOutputParser::step_calls(bool is_end) {
  const ToolFormat& tools = *options_.tools;
  while (!text_.empty() &&
         (kSpace.find(text_[0]) != std::string_view::npos || tools.separator.find(text_[0]) != std::string_view::npos ||
          (tools.section_end == "]" && text_[0] == '['))) {
    text_.erase(0, 1);
  }
  if (text_.empty()) return false;
  for (const std::string_view marker : {tools.call_begin, tools.section_end}) {
    if (!is_end && is_beginning(text_, marker)) return false;
  }
  const char first = tools.body == CallBody::kPython ? '[' : '{';
  if (tools.call_begin.empty() ? text_[0] == first : take_marker(tools.call_begin)) {
    open_call(tools.call_begin);
    state_ = State::kCall;
    return true;
  }
  take_marker(tools.section_end);
  skip_space_ = true;
  state_ = State::kContent;
  return true;
}

bool ChatOutputParser::step_call(bool is_end) {
  const ToolFormat& tools = *options_.tools;
  size_t num_taken = 0;
  bool is_closed = false, is_at_end = false;  // is_at_end: of call_ends_
  while (num_taken < text_.size() && !is_closed) {
    const std::string_view rest = std::string_view(text_).substr(num_taken);
    if (!reader_->is_in_value()) {
      is_closed = is_at_end = std::ranges::any_of(call_ends_, [&](auto end) { return rest.starts_with(end); });
      bool may_be_end = std::ranges::any_of(call_ends_, [&](auto end) { return is_beginning(rest, end); });
      // The next call begins: the model forgot to close this one.
      if (has_call_name_ && !tools.call_begin.empty()) {
        is_closed |= rest.starts_with(tools.call_begin);
        may_be_end |= is_beginning(rest, tools.call_begin);
      }
      if (is_closed || (may_be_end && !is_end)) break;
    }
    if (!has_call_name_) raw_call_ += text_[num_taken];
    reader_->append(text_[num_taken++], *this);
    const bool is_done = (tools.call_end.empty() || is_bare_call_) && reader_->is_done();
    is_closed = is_done || reader_->has_failed() || is_call_refused_;
  }
  const bool is_refused = reader_->has_failed() || is_call_refused_ || !has_call_name_;
  text_.erase(0, num_taken);
  if (!is_closed && !is_end) return false;
  if (is_at_end) {
    raw_call_ += has_call_name_ ? "" : tools.call_end;
    text_.erase(0, tools.call_end.size());
  }
  close_call(is_closed);
  const bool in_section = !tools.section_begin.empty() && !is_refused;
  state_ = in_section ? State::kCalls : State::kContent;
  skip_space_ = !is_refused && !tools.is_harmony;
  if (is_bare_call_ && !is_refused) state_ = State::kCallTail;
  if (tools.is_harmony) state_ = State::kMessage;
  return is_closed || !text_.empty();
}

// Models that leave out the opening marker often write the closing one.
bool ChatOutputParser::step_call_tail(bool is_end) {
  skip_space();
  if (text_.empty() || (!is_end && is_beginning(text_, options_.tools->call_end))) return false;
  take_marker(options_.tools->call_end);
  state_ = State::kContent;
  return true;
}

void ChatOutputParser::open_call(std::string_view opener) {
  const ToolFormat& tools = *options_.tools;
  reader_ = make_call_reader(tools, options_.functions.get());
  raw_call_ += opener;
  has_call_name_ = is_call_refused_ = false;
  is_bare_call_ = !tools.body_end.empty() && opener == tools.name_begin;
  if (!is_bare_call_) return;
  for (const char c : opener) reader_->append(c, *this);
}

void ChatOutputParser::close_call(bool is_whole) {
  reader_->finish(*this, is_cut_ && !is_whole);
  // No name: not a call after all. What the model wrote is given out as it is rather than lost.
  if (!has_call_name_) emit(Kind::kContent, raw_call_);
  raw_call_.clear();
  reader_.reset();
}

bool ChatOutputParser::take_marker(std::string_view marker) {
  if (marker.empty() || !text_.starts_with(marker)) return false;
  text_.erase(0, marker.size());
  return true;
}

void ChatOutputParser::skip_space() {
  const size_t num_space = std::min(text_.find_first_not_of(kSpace), text_.size());
  space_after_ += std::string_view(text_).substr(0, std::min(num_space, kMaxHeldSpace - space_after_.size()));
  text_.erase(0, num_space);
}

// Harmony: the head of a message says what its text is.
bool ChatOutputParser::step_message(bool is_end) {
  for (const std::string_view end : {kMessageEnds[0], kMessageEnds[1], kMessageEnds[2]}) {
    if (take_marker(end)) return true;
  }
  if (text_.empty()) return false;
  skip_space_ = false;
  size_t pos = text_[0] == '<' ? text_.find(kMessage) : std::string::npos;
  if (pos > kMaxHeadBytes) pos = std::string::npos;
  const bool may_be_head = text_[0] == '<' && text_.size() < kMaxHeadBytes + kMessage.size();
  if (pos == std::string::npos && may_be_head && !is_end) return false;
  const bool is_head = text_.starts_with(kChannel) || text_.starts_with(kStartMessage);
  if (pos == std::string::npos && is_head && may_be_head) {
    text_.clear();  // cut off inside a head
    return false;
  }
  if (pos == std::string::npos || !is_head) {
    if (!take_marker(kChannel)) take_marker(kStartMessage);
    state_ = State::kContent;
    return true;
  }
  const std::string head = text_.substr(0, pos);
  text_.erase(0, pos + kMessage.size());
  constexpr std::string_view kTo = "to=functions.";
  const size_t to = head.find(kTo);
  if (to != std::string::npos && options_.tools && options_.tools->is_harmony) {
    const size_t begin = to + kTo.size();
    open_call("");
    for (const char c : head.substr(begin, head.find_first_of(" <\n", begin) - begin)) reader_->append(c, *this);
    for (const char c : options_.tools->name_end) reader_->append(c, *this);
    state_ = State::kCall;
    return true;
  }
  const bool is_reasoning = options_.reasoning && head.find("<|channel|>analysis") != std::string::npos;
  state_ = is_reasoning ? State::kReasoning : State::kContent;
  return true;
}

void ChatOutputParser::begin_call(std::string name) {
  has_call_name_ = true;
  const bool must_be_known = is_bare_call_ || (options_.tools->is_whole_answer && num_tool_calls_ == 0);
  if (must_be_known && !knows_function(name)) {
    has_call_name_ = false;
    is_call_refused_ = true;
    return;
  }
  raw_call_.clear();
  ++num_tool_calls_;
  if (options_.parallel_tool_calls || num_tool_calls_ == 1) emit(Kind::kToolName, name, num_tool_calls_ - 1);
}

void ChatOutputParser::add_arguments(std::string_view json) {
  if (is_call_refused_ || (!options_.parallel_tool_calls && num_tool_calls_ > 1)) return;
  emit(Kind::kToolArguments, json, num_tool_calls_ - 1);
}

bool ChatOutputParser::knows_function(std::string_view name) const {
  if (!options_.functions) return true;
  return std::ranges::any_of(*options_.functions, [&](const auto& tool) { return tool["function"]["name"] == name; });
}

void ChatOutputParser::emit(Kind kind, std::string_view text, int tool_idx) {
  if (text.empty()) return;
  if (kind == Kind::kContent) {
    std::string& space = space_after_.empty() ? space_before_ : space_after_;
    if (has_content_ && !space.empty()) append_part(kind, space, tool_idx);
    has_content_ = true;
    space_before_.clear();
    space_after_.clear();
  }
  append_part(kind, text, tool_idx);
}

void ChatOutputParser::append_part(Kind kind, std::string_view text, int tool_idx) {
  const bool goes_on =
      !parts_->empty() && kind != Kind::kToolName && parts_->back().kind == kind && parts_->back().tool_idx == tool_idx;
  if (goes_on) {
    parts_->back().text += text;
  } else {
    parts_->push_back({.kind = kind, .text = std::string(text), .tool_idx = tool_idx});
  }
}

}  // namespace spate
