// TextStream: the token ids of one growing sequence to text that may be shown: no half character, no part of a stop
// string.
//
// Owned by one sequence, used by one thread at a time. What append() and finish() give out adds up to the decoded text,
// cut at the first stop string.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace spate {

// Finds the first of several stop strings in a text that comes in pieces, in time linear in the text (times the number
// of strings), and holds back the shortest tail that may still become one.
class StopMatcher {
 public:
  // Strings are not empty.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // Appends to `out` what is certain. True when a stop string is complete: nothing more comes, matched() names it. Of
  // several that end at the same byte the longest counts. A stop string that is completed while `may_stop` is false
  // does not count; one that began then and is completed later does.
  bool append(std::string_view text, std::string& out, bool may_stop = true);
  void finish(std::string& out);  // no more text: gives out what was held back
  bool is_matched() const { return matched_ >= 0; }
  const std::string& matched() const { return stops_[static_cast<size_t>(matched_)]; }

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<uint32_t>>
      borders_;                   // of each stop string: longest border of each prefix (Knuth, Morris, Pratt)
  std::vector<uint32_t> states_;  // of each stop string: how much of it the text ends with
  std::string held_;
  bool include_stop_;
  int matched_ = -1;
};

struct TextStreamOptions {
  DecodeOptions decode;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  int min_tokens = 0;  // a stop string that one of the first min_tokens tokens completes does not count
};

class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, TextStreamOptions options, std::span<const int32_t> prompt_ids);

  // False when a stop string is complete; later tokens must not be appended.
  bool append(int32_t token_id, std::string& out);
  void finish(std::string& out);
  bool is_stopped() const { return stops_.is_matched(); }
  const std::string& stop_string() const { return stops_.matched(); }

 private:
  IncrementalDecoder decoder_;
  StopMatcher stops_;
  const int min_tokens_;
  int num_tokens_ = 0;
};

}  // namespace spate
