// Regular expressions of tokenizer.json are Oniguruma's (Ruby syntax, UTF-8). PCRE2 runs them here, and the dialects
// differ.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace spate {

// The pattern in PCRE2's dialect, for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE. Every construct either means the same
// there or is refused by its name and place (kUnimplemented, kInvalidArgument); nothing is passed on that means
// something else.
//
//   \w \W            Oniguruma's set; outside of a class it also has the superscripts and fractions of Latin-1
//   \b \B            look-arounds of that set
//   \s \S \h \H \v   Oniguruma's white space, hexadecimal digit, vertical tab
//   [[a-c][^x]&&\w]  nested classes and intersections, by alternatives and look-aheads
//   [[:alpha:]]      POSIX names, by properties
//   (?m)             (?s): a dot that takes line breaks
//   a{,n}            a{0,n}
//   \p{Han}          the script, not its extensions
Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace spate
