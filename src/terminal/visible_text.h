// VisibleText: text of a model, a server or a file made safe for a terminal. Escape sequences are shown, not obeyed.
//
// Newline and tab stay. Every other control character (C0, DEL, C1) becomes visible: ESC is "^[", U+009B is "<9b>". A carriage
// return before a newline is dropped. Bytes that are not UTF-8 become U+FFFD.
#pragma once

#include <string>
#include <string_view>

namespace spate {

class VisibleText {
 public:
  // The part of the text that is certain; at most three bytes wait for what follows.
  std::string append(std::string_view text);
  std::string finish();

 private:
  std::string pending_;  // the beginning of a character, or a carriage return
};

std::string visible_text(std::string_view text);  // of a whole text

}  // namespace spate
