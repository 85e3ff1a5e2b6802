// MarkdownRenderer: the Markdown of an answer as text with colours, while it comes.
//
// Headings, bold, italic, code, fenced blocks, bullets, quotes and rules; all else stays as it is written. Line breaks are
// those of the text: the terminal wraps. However the text is cut into pieces, the pieces of the result add up to the same: what
// cannot be decided yet is held back, at most to the end of the line and at most kMaxHeldBytes from a marker.
//
// The text must be harmless already (VisibleText); the renderer adds SGR sequences only, and every line ends without any
// left on.
#pragma once

#include <string>
#include <string_view>

namespace spate {

class MarkdownRenderer {
 public:
  static constexpr size_t kMaxHeldBytes = 400;  // a span of emphasis or code is no longer

  std::string append(std::string_view text);
  std::string finish();

 private:
  enum class Place { kLineStart, kText, kCodeStart, kCode };

  bool step(bool is_end, std::string& out);
  bool start_line(bool is_end, std::string& out);
  bool start_code_line(bool is_end, std::string& out);
  bool write_text(bool is_end, std::string& out);
  bool write_code(std::string& out);
  bool start_heading(size_t indent, bool is_end, std::string& out);
  bool start_bullet_or_rule(size_t indent, bool is_end, std::string& out);
  bool start_quote(size_t indent, bool is_end, std::string& out);
  bool start_fence(size_t indent, bool is_end, std::string& out);
  bool begin_text(size_t num_used);
  void end_line(std::string& out);

  Place place_ = Place::kLineStart;
  std::string pending_;
  char previous_ = '\n';  // the source character before pending_
  bool is_heading_ = false;
  bool is_code_coloured_ = false;
  char fence_character_ = '`';
  size_t fence_length_ = 0;
};

}  // namespace spate
