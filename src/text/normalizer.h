// Text to text before it is cut: Unicode normal forms, case, accents, replacements. tokenizer.json's normalizers
// are flattened into a list of steps that run in order. Immutable, thread-safe after it is built.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/precompiled_charsmap.h"
#include "text/split_matcher.h"

namespace spate {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

struct UnicodeFormStep {
  UnicodeForm form;
};
struct LowercaseStep {};
struct StripStep {  // white space at the ends
  bool left, right;
};
struct StripAccentsStep {};  // every combining mark
struct PrependStep {         // unless the text is empty
  std::string prefix;
};
struct ReplaceStep {
  SplitMatcher pattern;
  std::string content;
};
struct PrecompiledStep {
  PrecompiledCharsmap charsmap;
};
struct BertStep {
  bool clean_text, handle_chinese_chars, strip_accents, lowercase;
};
struct NmtStep {};             // control characters removed, odd spaces made plain
struct NormalizeBytesStep {};  // bytes become characters of GPT-2's alphabet
using NormalizerStep = std::variant<UnicodeFormStep, LowercaseStep, StripStep, StripAccentsStep, PrependStep,
                                    ReplaceStep, PrecompiledStep, BertStep, NmtStep, NormalizeBytesStep>;

class Normalizer {
 public:
  void add_step(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  void drop_prepend();  // every PrependStep
  // Takes and gives valid UTF-8. Returns `text` itself, or a view of `storage`, which it may overwrite.
  // *keeps_start, if asked for: whether the first character of the result comes from the first one of `text`, as far as the
  // `tokenizers` library's offsets say: false where leading characters were removed.
  std::string_view normalize(std::string_view text, std::string& storage, bool* keeps_start = nullptr) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// Exposed for tests.
std::string to_unicode_form(std::string_view text, UnicodeForm form);

}  // namespace spate
