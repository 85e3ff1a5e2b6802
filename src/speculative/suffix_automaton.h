// SuffixAutomaton: of a text of token ids. It reads another text token by token and knows, after each, the longest
// suffix of what it read that occurs in its own text, and where. Both are O(1) a token, amortised.
//
// It may be made in parts. Once complete it does not change: sequences share one and have a Match each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spate {

class SuffixAutomaton {
 public:
  explicit SuffixAutomaton(std::vector<int32_t> text);  // knows nothing of the text before extend()
  // Takes in the next tokens of the text, max_tokens at most; returns how many.
  size_t extend(size_t max_tokens);
  bool is_complete() const { return num_known_ == text_.size(); }

  // The longest suffix of the tokens read so far that occurs in the text.
  struct Match {
    int32_t state = 0;
    int32_t length = 0;
  };
  void read(Match& match, int32_t token_id) const;
  // Where the text goes on after the match's first occurrence: an index into text().
  int32_t first_end(const Match& match) const { return states_[static_cast<size_t>(match.state)].first_end; }
  std::span<const int32_t> text() const { return text_; }

 private:
  struct State {
    int32_t length = 0;     // of the longest string that leads here
    int32_t link = -1;      // to the state of its longest suffix that occurs in more places
    int32_t first_end = 0;  // behind its first occurrence
    int32_t first_edge = -1;
  };
  // All edges are in one hash table; each state also chains its own, for the copies that append() makes.
  struct Edge {
    int32_t from;
    int32_t token_id;
    int32_t to;
    int32_t next;  // of the same state
  };

  void append(int32_t token_id);
  int32_t copy_with_length(int32_t state, int32_t length);
  int32_t find_edge(int32_t state, int32_t token_id) const;  // -1: none
  void add_edge(int32_t state, int32_t token_id, int32_t to);
  size_t slot(int32_t state, int32_t token_id) const;

  std::vector<int32_t> text_;
  size_t num_known_ = 0;  // tokens of the text
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // of edges, by hash of (from, token_id), open addressing; -1 free
  int32_t last_ = 0;
};

}  // namespace spate
