// Cuts normalized text into the pieces that the model (BPE, Unigram, WordPiece) then tokenizes one by one.
//
// tokenizer.json's pre-tokenizers are flattened into a list of steps; each step hands its pieces to the next at
// once, so that the usual split + byte-level case copies nothing. Immutable, thread-safe after it is built.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/split_matcher.h"

namespace spate {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme { kAlways, kNever, kFirst };

struct SplitStep {
  SplitMatcher matcher;
  SplitBehavior behavior;
  bool invert = false;  // the matches are what is kept, the gaps are the delimiter
};
struct PrefixSpaceStep {};  // a space in front of a piece that does not begin with one
struct ByteMapStep {};      // bytes become characters of GPT-2's alphabet
struct MetaspaceStep {
  std::string replacement;  // one character, usually U+2581
  PrependScheme prepend_scheme;
};
using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, ByteMapStep, MetaspaceStep>;

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  virtual void add_piece(std::string_view piece) = 0;  // never empty; valid during the call
};

class PreTokenizer {
 public:
  void add_step(PreTokenizerStep step) { steps_.push_back(std::move(step)); }
  // Drops a final ByteMapStep: the model then gets raw bytes. False when there is none.
  bool take_final_byte_map();

  // What add_prefix_space of tokenizer_config.json changes: no step puts anything in front of a text; or byte-level pieces begin
  // with a space. The latter is for pre-tokenizers that end with ByteLevel.
  void drop_prefix();
  void add_prefix_space();
  // Whether the result depends on is_text_start.
  bool depends_on_text_start() const;

  // is_text_start: `text` is the very beginning of what the caller encodes (PrependScheme::kFirst).
  void run(std::string_view text, bool is_text_start, PieceSink& sink) const { run_step(0, text, is_text_start, sink); }

 private:
  void run_step(size_t step_idx, std::string_view text, bool is_text_start, PieceSink& sink) const;
  void run_split(const SplitStep& step, size_t step_idx, std::string_view text, bool is_text_start,
                 PieceSink& sink) const;

  std::vector<PreTokenizerStep> steps_;
};

}  // namespace spate
