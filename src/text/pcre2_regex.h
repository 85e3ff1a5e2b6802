// One compiled regular expression, written for Oniguruma as tokenizer.json has them, run by PCRE2 with JIT.
//
// The pattern is translated where the two dialects differ: \s, \S and \w get Oniguruma's sets, \h its hexadecimal
// digit, script names mean the script and not its extensions, ^ and $ match at every line. Possessive {n,m}+ means
// a repeated group in Oniguruma and is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace spate {

class Pcre2Regex {
 public:
  static Result<Pcre2Regex> compile(std::string_view pattern);

  // The first match at or after byte `from` of valid UTF-8 `text`. A search that runs into PCRE2's limits (10
  // million steps) counts as no match: encode must end for every text. Thread-safe.
  bool find(std::string_view text, size_t from, size_t* start, size_t* end) const;

 private:
  struct Code;
  explicit Pcre2Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

// The pattern in PCRE2's dialect; split out for its test.
Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace spate
