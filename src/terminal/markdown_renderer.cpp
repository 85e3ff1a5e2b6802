#include "terminal/markdown_renderer.h"

#include <algorithm>
#include <utility>

namespace spate {
namespace {

constexpr std::string_view kBold = "\x1b[1m", kNotBold = "\x1b[22m", kItalic = "\x1b[3m", kNotItalic = "\x1b[23m";
constexpr std::string_view kDim = "\x1b[2m", kColour = "\x1b[36m", kNoColour = "\x1b[39m";
constexpr std::string_view kSpecial = "\\`*_\n";
constexpr size_t kNowhere = std::string_view::npos;

bool is_word(char c) {
  const auto u = static_cast<unsigned char>(c);
  return (u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || u >= 0x80;
}
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }
bool is_punctuation(char c) { return c > ' ' && c < 0x7f && !is_word(c); }

size_t run_length(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && text[end] == text[at]) ++end;
  return end - at;
}

// A span that begins at the front of `text`.
struct Span {
  enum class Kind { kNone, kUnknown, kCode, kEmphasis } kind = Kind::kNone;
  size_t marker = 0;  // bytes of its marker; kNowhere: of the characters that are text
  size_t length = 0;  // with both markers
};

// Where a run of exactly `marker` characters `c` closes what begins at the front. The run must be followed by another
// character (or the end of the line): only then is its length known.
size_t find_closer(std::string_view text, char c, size_t marker, bool is_line_end) {
  const std::string_view window = text.substr(0, MarkdownRenderer::kMaxHeldBytes);
  for (size_t at = marker; at < window.size();) {
    if (c != '`' && window[at] == '\\') {
      at += 2;
      continue;
    }
    if (window[at] != c) {
      ++at;
      continue;
    }
    const size_t run = run_length(window, at);
    const size_t end = at + run;
    const bool is_whole = end < window.size() || (is_line_end && end == text.size() && end < MarkdownRenderer::kMaxHeldBytes);
    const bool closes = c == '`' || (!is_space(window[at - 1]) && (c != '_' || end == text.size() || !is_word(text[end])));
    if (is_whole && run == marker && closes) return at;
    at = end;
  }
  return kNowhere;
}

Span span_at_front(std::string_view text, char previous, bool is_line_end) {
  const char c = text[0];
  const size_t run = run_length(text, 0);
  if (run == text.size() && !is_line_end && run < MarkdownRenderer::kMaxHeldBytes) return {.kind = Span::Kind::kUnknown};
  const bool opens = c == '`' || (run <= 3 && run < text.size() && !is_space(text[run]) && !(is_word(previous) && (c == '_' || run == 1)));
  if (!opens) return {.marker = run};
  const size_t closer = find_closer(text, c, run, is_line_end);
  if (closer != kNowhere) {
    return {.kind = c == '`' ? Span::Kind::kCode : Span::Kind::kEmphasis, .marker = run, .length = closer + run};
  }
  if (!is_line_end && text.size() < MarkdownRenderer::kMaxHeldBytes) return {.kind = Span::Kind::kUnknown};
  return {.marker = run};
}

enum class FenceEnd { kNo, kNotYet, kYes };

// Whether the line ends a fenced block, or may when more of it comes.
FenceEnd fence_end(std::string_view line, char c, size_t fence_length) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  if (indent > 3) return FenceEnd::kNo;
  if (indent == line.size()) return FenceEnd::kNotYet;
  const size_t run = line[indent] == c ? run_length(line, indent) : 0;
  const size_t last = line.find_first_not_of(' ', indent + run);
  if (run == 0 || last != kNowhere) return FenceEnd::kNo;
  if (run >= fence_length) return FenceEnd::kYes;
  return indent + run == line.size() ? FenceEnd::kNotYet : FenceEnd::kNo;
}

// Renders text of one line; gives the bytes used. is_line_end: nothing of the line comes behind it.
size_t write_inline(std::string_view text, char& previous, bool is_line_end, bool is_bold, bool is_italic, std::string& out) {
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    const size_t plain = std::min(rest.find_first_of(kSpecial), rest.size());
    if (plain > 0) {
      out += rest.substr(0, plain);
      previous = rest[plain - 1];
      at += plain;
      continue;
    }
    if (rest[0] == '\\') {
      if (rest.size() == 1 && !is_line_end) return at;
      const bool escapes = rest.size() > 1 && is_punctuation(rest[1]);
      out += escapes ? rest[1] : rest[0];
      previous = escapes ? rest[1] : rest[0];
      at += escapes ? 2 : 1;
      continue;
    }
    const Span span = span_at_front(rest, previous, is_line_end);
    if (span.kind == Span::Kind::kUnknown) return at;
    if (span.kind == Span::Kind::kNone) {
      out += rest.substr(0, span.marker);
      previous = rest[0];
      at += span.marker;
      continue;
    }
    const std::string_view inner = rest.substr(span.marker, span.length - 2 * span.marker);
    if (span.kind == Span::Kind::kCode) {
      out.append(kColour).append(inner).append(kNoColour);
    } else {
      const bool adds_bold = span.marker >= 2 && !is_bold, adds_italic = span.marker % 2 == 1 && !is_italic;
      if (adds_bold) out += kBold;
      if (adds_italic) out += kItalic;
      char inner_previous = rest[0];
      write_inline(inner, inner_previous, true, is_bold || adds_bold, is_italic || adds_italic, out);
      if (adds_italic) out += kNotItalic;
      if (adds_bold) out += kNotBold;
    }
    previous = rest[0];
    at += span.length;
  }
  return at;
}

}  // namespace

std::string MarkdownRenderer::append(std::string_view text) {
  pending_ += text;
  std::string out;
  while (!pending_.empty() && step(false, out)) {
  }
  return out;
}

std::string MarkdownRenderer::finish() {
  std::string out;
  while (!pending_.empty() && step(true, out)) {
  }
  if (place_ == Place::kText || place_ == Place::kCode) end_line(out);
  return out;
}

// False: more text is needed.
bool MarkdownRenderer::step(bool is_end, std::string& out) {
  switch (place_) {
    case Place::kLineStart:
      return start_line(is_end, out);
    case Place::kText:
      return write_text(is_end, out);
    case Place::kCodeStart:
      return start_code_line(is_end, out);
    case Place::kCode:
      return write_code(out);
  }
  return false;
}

bool MarkdownRenderer::start_line(bool is_end, std::string& out) {
  const size_t indent = pending_.find_first_not_of(" \t");
  if (indent == kNowhere) return is_end && begin_text(0);
  switch (pending_[indent]) {
    case '#':
      return start_heading(indent, is_end, out);
    case '-':
    case '*':
    case '+':
    case '_':
      return start_bullet_or_rule(indent, is_end, out);
    case '>':
      return start_quote(indent, is_end, out);
    case '`':
    case '~':
      return start_fence(indent, is_end, out);
    default:
      return begin_text(0);
  }
}

// The line is text behind its first num_used bytes, which have been written in another form.
bool MarkdownRenderer::begin_text(size_t num_used) {
  if (num_used > 0) previous_ = ' ';
  pending_.erase(0, num_used);
  place_ = Place::kText;
  return true;
}

bool MarkdownRenderer::start_heading(size_t indent, bool is_end, std::string& out) {
  const size_t run = run_length(pending_, indent), behind = indent + run;
  if (run > 6) return begin_text(0);
  if (behind == pending_.size()) return is_end && begin_text(0);
  if (pending_[behind] != ' ') return begin_text(0);
  out += kBold;
  is_heading_ = true;
  return begin_text(behind + 1);
}

bool MarkdownRenderer::start_bullet_or_rule(size_t indent, bool is_end, std::string& out) {
  const char c = pending_[indent];
  const std::string_view line = pending_;
  const size_t marks_end = std::min(line.find_first_not_of(std::string{c, ' '}, indent), line.size());
  if (marks_end == line.size() && !is_end && marks_end - indent < kMaxHeldBytes) return false;
  const std::string_view marks = line.substr(indent, marks_end - indent);
  const bool is_whole_line = marks_end == line.size() ? is_end : line[marks_end] == '\n';
  if (is_whole_line && c != '+' && std::count(marks.begin(), marks.end(), c) >= 3 && marks.size() < kMaxHeldBytes) {
    out += kDim;
    for (int i = 0; i < 24; ++i) out += "─";
    out += kNotBold;
    return begin_text(marks_end);
  }
  if (c != '_' && indent + 1 < pending_.size() && pending_[indent + 1] == ' ') {
    out.append(pending_, 0, indent).append("•");
    return begin_text(indent + 1);
  }
  return begin_text(0);
}

bool MarkdownRenderer::start_quote(size_t indent, bool is_end, std::string& out) {
  if (indent + 1 == pending_.size() && !is_end) return false;
  const bool has_space = indent + 1 < pending_.size() && pending_[indent + 1] == ' ';
  out.append(pending_, 0, indent).append(kDim).append("│ ").append(kNotBold);
  pending_.erase(0, indent + (has_space ? 2 : 1));
  previous_ = ' ';
  return true;  // what is quoted may be a heading or a bullet
}

bool MarkdownRenderer::start_fence(size_t indent, bool is_end, std::string& out) {
  const char c = pending_[indent];
  const size_t run = run_length(pending_, indent), behind = indent + run;
  const std::string_view window = std::string_view(pending_).substr(0, kMaxHeldBytes);
  size_t line_end = window.find('\n');
  if (behind == pending_.size() && !is_end && pending_.size() < kMaxHeldBytes) return false;
  if (run < 3) return begin_text(0);
  if (line_end == kNowhere) {
    if (!is_end && pending_.size() < kMaxHeldBytes) return false;
    if (pending_.size() >= kMaxHeldBytes) return begin_text(0);
    line_end = pending_.size();
  }
  if (c == '`' && window.substr(behind, line_end - behind).find('`') != kNowhere) return begin_text(0);  // code in the line
  out.append(kDim).append(window.substr(0, line_end)).append(kNotBold);
  fence_character_ = c;
  fence_length_ = run;
  if (line_end < pending_.size()) out += '\n';
  pending_.erase(0, line_end + 1);
  place_ = Place::kCodeStart;
  return true;
}

bool MarkdownRenderer::start_code_line(bool is_end, std::string& out) {
  const size_t newline = pending_.find('\n');
  const std::string_view line = std::string_view(pending_).substr(0, std::min(newline, kMaxHeldBytes));
  const bool is_line_end = (newline != kNowhere || is_end) && line.size() < kMaxHeldBytes;
  const FenceEnd found = fence_end(line, fence_character_, fence_length_);
  if (found != FenceEnd::kNo && newline == kNowhere && !is_end && pending_.size() < kMaxHeldBytes) return false;
  place_ = found == FenceEnd::kYes && is_line_end ? Place::kText : Place::kCode;
  if (place_ == Place::kCode) return true;
  out.append(kDim).append(line).append(kNotBold);
  pending_.erase(0, line.size());
  return true;
}

bool MarkdownRenderer::write_text(bool is_end, std::string& out) {
  const size_t newline = pending_.find('\n');
  const bool is_line_end = newline != kNowhere || is_end;
  const size_t used = write_inline(std::string_view(pending_).substr(0, newline), previous_, is_line_end, is_heading_, false, out);
  pending_.erase(0, used);
  if (newline == kNowhere) return false;  // what is left waits; with is_end nothing is
  pending_.erase(0, 1);
  end_line(out);
  out += '\n';
  return true;
}

bool MarkdownRenderer::write_code(std::string& out) {
  const size_t length = std::min(pending_.find('\n'), pending_.size());
  if (length > 0 && !is_code_coloured_) {
    out += kColour;
    is_code_coloured_ = true;
  }
  out.append(pending_, 0, length);
  const bool has_newline = length < pending_.size();
  pending_.erase(0, length + (has_newline ? 1 : 0));
  if (!has_newline) return true;
  end_line(out);
  out += '\n';
  place_ = Place::kCodeStart;
  return true;
}

void MarkdownRenderer::end_line(std::string& out) {
  if (std::exchange(is_heading_, false)) out += kNotBold;
  if (std::exchange(is_code_coloured_, false)) out += kNoColour;
  previous_ = '\n';
  place_ = Place::kLineStart;
}

}  // namespace spate
