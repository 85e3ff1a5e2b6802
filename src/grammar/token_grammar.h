// TokenGrammar: a Grammar over the tokens of a vocabulary. The mask of a situation is kept: the next sequence that
// comes to the same place gets it for nothing. Where the nesting alone is new, the mask is mostly that of the rule at
// hand, whatever called it (ParseStates::Part). That is found by one walk over the TokenTrie, in step with the grammar,
// and kept too; only tokens that go on behind the rule's end are looked at anew. The places of a long repetition ("up
// to 1,000 characters") share one mask where no token is long enough to tell them apart.
//
// The first thread to use it is the one that compiles; from the first start() on it belongs to the engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/token_constraint.h"
#include "grammar/parse_states.h"
#include "grammar/token_trie.h"

namespace spate {

struct TokenGrammarLimits {
  size_t max_states = 16384;          // situations kept, beyond what the sequences need
  size_t max_mask_bytes = 32 << 20;   // masks kept, beyond what the sequences need; as many of rules
  int64_t max_mask_work = 5'000'000;  // units (ParseStates) for one mask: about 50 ms; an ordinary one takes 10,000
  int64_t max_ahead_work = 150'000;   // units for masks of rules found before the first sequence: up to 5 ms
  size_t max_ahead_states = 4096;     // situations that are looked at for them
};

class TokenGrammar final : public TokenConstraint {
 public:
  // An error when the first mask takes too much work, or no token can begin a text. Where texts may go on in many ways,
  // as in a string, the masks of the rules are found here, so that no step waits for the walk.
  static Result<std::shared_ptr<TokenGrammar>> create(std::shared_ptr<const Grammar> grammar,
                                                      std::shared_ptr<const TokenTrie> trie,
                                                      TokenGrammarLimits limits = {});
  std::unique_ptr<ConstraintCursor> start() override;

  size_t num_states() const { return states_.num_states(); }
  size_t num_masks() const { return num_masks_; }

 private:
  class Cursor;
  struct Mask {
    std::vector<uint32_t> words;
    std::vector<int32_t> long_token_ids;  // those of the TokenTrie's long tokens that it allows
    bool is_empty = true;
  };
  TokenGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
               TokenGrammarLimits limits);
  Result<std::shared_ptr<const Mask>> mask_of(int32_t state);
  Result<std::shared_ptr<const Mask>> find_mask(int32_t state);
  // What a situation in a rule allows, whatever called the rule.
  struct Local {
    int32_t state = 0;
    bool knows_short_tokens = false, knows_long_tokens = false;
    bool knows_short_ends = false, knows_long_ends = false;
    std::vector<uint32_t> words;  // of short tokens
    std::vector<int32_t> long_token_ids;
    std::vector<uint32_t> short_ends, long_ends;  // inner nodes of the trees at which the rule may end
  };
  std::shared_ptr<const Mask> with_long_tokens(Mask mask, std::vector<int32_t> long_token_ids);
  std::vector<uint32_t> short_tokens_of(int32_t state);
  std::vector<int32_t> long_tokens_of(int32_t state);
  Local& local_of(int32_t state);
  const Local& short_tokens_in_rule(int32_t state, bool wants_ends);
  const Local& long_tokens_in_rule(int32_t state, bool wants_ends);
  // Where many characters lead on alike, as in a string: each of `chars` to `next`.
  struct Run {
    TokenTrie::CharSet chars;
    int32_t next = 0;
    int length = -1;         // so many of them can follow each other; -1: not counted yet
    int length_inside = -1;  // of these, before the text may be complete
  };
  // Tokens that are known before a walk: texts of some characters.
  struct KnownTexts {
    const TokenTrie::TextMasks* masks = nullptr;  // null: none are
    int length = 0, length_inside = 0;            // as Run's
  };
  const Run& run_of(int32_t state);
  Run* find_run(int32_t state);
  Run& uncounted_run_of(int32_t state);
  bool takes_wide_chars(int32_t state, int32_t target);
  bool completes_chars(int32_t open, int num_missing, int low, int high, int32_t target);
  KnownTexts known_texts_of(int32_t state);
  const TokenTrie::TextMasks* endless_texts_behind(int32_t state, bool wants_ends);
  void walk_ahead();
  template <typename TakeTokens>
  void walk(int32_t state, const TokenTrie::Tree& tree, uint32_t begin, uint32_t end, const KnownTexts& known,
            std::vector<uint32_t>* ends, const TakeTokens& take_tokens);
  template <typename TakeTokens>
  void walk_exits(int32_t state, const TokenTrie::TextMasks& masks, const TokenTrie::AsciiSet& other_first,
                  std::vector<uint32_t>* ends, const TakeTokens& take_tokens);
  bool has_room_for(size_t num_masks) const;
  int32_t forced_token(int32_t state);
  int32_t advance(int32_t state, std::string_view bytes);
  void forget_unused();

  const std::shared_ptr<const TokenTrie> trie_;
  const TokenGrammarLimits limits_;
  ParseStates states_;
  std::vector<std::shared_ptr<const Mask>> masks_;  // by state; null where not known
  size_t num_masks_ = 0;
  std::vector<std::unique_ptr<Local>> locals_;
  std::vector<Local*> local_by_state_;  // null where not known
  size_t next_cleanup_;                 // states at which the next one is due
  std::vector<Cursor*> cursors_;
  std::deque<Run> runs_;
  std::vector<Run*> run_by_state_;  // null where not known
  std::vector<int32_t> path_;       // of the walk: the situation at each depth
  std::vector<int> path_chars_;     // the characters up to there, where all are KnownTexts' ; else kNotKnown
};

}  // namespace spate
