// One compiled regular expression, written for Oniguruma as tokenizer.json has them, run by PCRE2 with JIT;
// oniguruma_pattern.h says how it is translated.
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

}  // namespace spate
