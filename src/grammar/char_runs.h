// CharRuns: the situations of a grammar from which many characters lead on alike, as in a string, and how far. A walk
// over texts then need not look at each of their bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "grammar/parse_states.h"
#include "grammar/token_trie.h"

namespace spate {

// Owned and called by one TokenGrammar.
class CharRuns {
 public:
  // Each of `chars` leads to `next`.
  struct Run {
    TokenTrie::CharSet chars;
    int32_t next = 0;
    int length = -1;         // so many of them can follow each other; -1: not counted yet
    int length_inside = -1;  // of these, before the text may be complete
  };
  explicit CharRuns(ParseStates& states) : states_(states) {}  // which must outlive this

  // Found with the work limit reached, a run says too little: nothing is skipped that should not be, and the mask is
  // dropped.
  const Run& at(int32_t state);
  Run& uncounted_at(int32_t state);  // the lengths may be missing
  Run* find(int32_t state);          // null: not looked for so far
  void reserve(size_t num_states) { run_by_state_.reserve(num_states); }
  void forget() {  // when situations get other numbers
    runs_.clear();
    run_by_state_.clear();
  }

 private:
  bool takes_wide_chars(int32_t state, int32_t target);
  bool completes_chars(int32_t open, int num_missing, int low, int high, int32_t target);

  ParseStates& states_;
  std::deque<Run> runs_;
  std::vector<Run*> run_by_state_;  // null where not known
};

}  // namespace spate
