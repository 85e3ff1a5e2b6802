// TokenGrammar: a Grammar over the tokens of a vocabulary. The mask of a situation is kept: the next sequence that
// comes to the same place gets it for nothing. Where the nesting alone is new, the mask is mostly that of the rule at
// hand, whatever called it (ParseStates::Part). That is found by one walk over the TokenTrie, in step with the grammar,
// and kept too. What tokens have left behind the rule's end is made a tree of its own, and what a place there allows of
// it is kept again: a new nesting is put together of known parts. The places of a long repetition ("up to 1,000
// characters") share one mask where no token is long enough to tell them apart.
//
// The first thread to use it is the one that compiles; from the first start() on it belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/token_constraint.h"
#include "grammar/char_runs.h"
#include "grammar/parse_states.h"
#include "grammar/token_sets.h"
#include "grammar/token_trie.h"

namespace spate {

struct TokenGrammarLimits {
  size_t max_states = 16384;          // situations kept, beyond what the sequences need
  size_t max_mask_bytes = 32 << 20;   // masks kept, beyond what the sequences need; as many of rules
  int64_t max_mask_work = 5'000'000;  // units (ParseStates) for one mask: about 50 ms; an ordinary one takes 10,000
  int64_t max_ahead_work = 150'000;   // units for masks of rules found before the first sequence: up to 5 ms
  int64_t max_later_work = 1'500'000;  // and by work_ahead(), while sequences run
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
  bool work_ahead(int64_t max_work) override;

  size_t num_states() const { return states_.num_states(); }
  size_t num_masks() const { return num_masks_; }
  size_t num_masks_by_sets() const { return mask_by_sets_.size(); }
  // Since the start; for measurements.
  struct Counts {
    int64_t num_found = 0;   // masks of situations that had none
    int64_t num_made = 0;    // of these, no equal one was kept
    int64_t num_walked = 0;  // nodes of trees
    int64_t num_units = 0;   // of work (ParseStates)
  };
  Counts counts() const { return {num_found_, num_made_, num_walked_, states_.work()}; }

 private:
  class Cursor;
  static constexpr int kNoTree = -1;
  struct Mask {
    std::vector<uint32_t> words;
    std::vector<int32_t> long_token_ids;  // those of the TokenTrie's long tokens that it allows
    bool is_empty = true;
  };
  TokenGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
               TokenGrammarLimits limits);
  Result<std::shared_ptr<const Mask>> mask_of(int32_t state);
  Result<std::shared_ptr<const Mask>> find_mask(int32_t state);
  // Places inside tokens at which a rule may end, and what is left of the tokens behind them.
  struct Ends {
    std::vector<uint32_t> nodes;  // of the tree of long tokens
    int rests = kNoTree;          // of rest_trees_, of those found elsewhere
  };
  // What is left of tokens behind some nodes of a tree. Equal rests are one node of a tree of their own; more than
  // kMaxRests take too long to sort, and are walked where they stand.
  struct RestTree {
    int parent = kNoTree;  // the tree of `nodes`
    std::span<const uint32_t> nodes;
    std::unique_ptr<const TokenTrie::Tree> sorted;  // or null
  };
  // What a situation in a rule allows, whatever called the rule.
  struct Local {
    int32_t state = 0;
    bool knows_short_tokens = false, knows_long_tokens = false;
    bool knows_short_ends = false, knows_long_ends = false;
    const TokenSet* short_tokens = nullptr;
    std::vector<int32_t> long_token_ids;
    Ends short_ends, long_ends;
  };
  // What a situation in a rule allows of the rests of tokens.
  struct Rest {
    int32_t state = 0;
    const TokenSet* tokens = nullptr;
    Ends ends;
  };
  // What a mask is put together of.
  struct Parts {
    std::vector<const TokenSet*> sets;
    std::vector<std::span<const int32_t>> token_ids;  // beside them, of plain walks
    std::vector<uint32_t> words;                      // and these; mostly empty
  };
  std::shared_ptr<const Mask> with_long_tokens(Mask mask, std::vector<int32_t> long_token_ids);
  std::shared_ptr<const Mask> put_together(int32_t state);
  Parts short_parts_of(int32_t state);
  void write(Parts& parts);
  std::vector<int32_t> long_tokens_of(int32_t state);
  void reserve();
  Local& local_of(int32_t state);
  const Local& short_tokens_in_rule(int32_t state, bool wants_ends);
  const Local& long_tokens_in_rule(int32_t state, bool wants_ends);
  bool has_too_many_rules() const;
  void forget_rules();
  Ends ends_at(int tree, std::vector<uint32_t> nodes);
  const TokenTrie::Tree& tree_of(int tree) const;
  const Rest& rest_in_rule(int rests, int32_t state);
  template <typename TakeTokens>
  void walk_rests(int32_t state, int rests, std::vector<uint32_t>* ends, const TakeTokens& take_tokens);
  template <typename TakeTokens, typename TakeSet>
  void take_rests(const Ends& ends, int32_t state, int& num_left, const TakeTokens& take_tokens,
                  const TakeSet& take_set);
  // Tokens that are known before a walk: texts of up to `length` of some characters, but for those that begin with
  // one of `other_first`. None of them is complete before its end.
  struct KnownTexts {
    const TokenTrie::TextMasks* masks = nullptr;  // null: none are
    int length = 0;
    TokenTrie::AsciiSet other_first;
  };
  KnownTexts known_texts_of(int32_t state, bool wants_ends);
  // What of the rules is looked at before a sequence comes there. A place is a situation in a rule and what stands
  // behind the rule, if anything.
  struct Ahead {
    struct Place {
      int32_t local = ParseStates::kDead, rest = ParseStates::kDead;
      bool operator==(const Place&) const = default;
    };
    std::vector<Place> met, met_again;  // each situation first, then the others that may stand behind it
    size_t num_looked_at = 0, num_looked_at_again = 0;  // of these
    std::unordered_set<uint64_t> is_met;
    std::unordered_map<int32_t, std::vector<Place>> targets;  // by local
    int64_t work_left = 0;                                    // units

    void meet(Place place);
  };
  void begin_ahead();
  void walk_ahead(int64_t max_work);
  void look_at(Ahead::Place at, bool is_new);
  template <typename Take>
  void for_parts_of(int32_t state, const Take& take);
  int64_t num_worked() const;
  template <typename TakeTokens>
  void walk(int32_t state, const TokenTrie::Tree& tree, uint32_t begin, uint32_t end, std::vector<uint32_t>* ends,
            const TakeTokens& take_tokens);
  template <typename TakeTokens>
  void walk_exits(int32_t state, const KnownTexts& known, std::vector<uint32_t>* ends, const TakeTokens& take_tokens);
  bool has_room_for(size_t num_masks) const;
  int32_t forced_token(int32_t state);
  int32_t advance(int32_t state, std::string_view bytes);
  void forget_unused();

  const std::shared_ptr<const TokenTrie> trie_;
  const TokenGrammarLimits limits_;
  const bool rules_end_inside_;  // some rule is called, and may end where a text goes on
  ParseStates states_;
  CharRuns runs_;
  std::vector<std::shared_ptr<const Mask>> masks_;  // by state; null where not known
  size_t num_masks_ = 0;
  // By the addresses of the sets of which it was put together, in order, and its long tokens. The places of a list have
  // few masks, whatever their nesting and however many of them there may be.
  std::unordered_map<std::vector<uint64_t>, std::shared_ptr<const Mask>, ListHash> mask_by_sets_;
  TokenSets token_sets_;
  std::vector<std::unique_ptr<Local>> locals_;
  size_t rules_bytes_ = 0;              // what locals_, rests_ and rest_trees_ take
  std::vector<Local*> local_by_state_;  // null where not known
  std::vector<RestTree> rest_trees_;
  std::unordered_map<std::vector<uint32_t>, int, ListHash> tree_numbers_;  // by nodes and, last, the tree they are of
  std::vector<std::unique_ptr<Rest>> rests_;
  std::unordered_map<uint64_t, Rest*> rest_by_place_;  // tree << 32 | state
  size_t next_cleanup_;                                // states at which the next one is due
  std::vector<Cursor*> cursors_;
  std::vector<int32_t> path_;                              // of the walk: the situation at each depth
  int64_t num_found_ = 0, num_made_ = 0, num_walked_ = 0;  // Counts
  std::unique_ptr<Ahead> ahead_;                           // null: nothing is left to look at
  bool is_ahead_ = true;                                   // the grammar is being compiled: texts may be looked at for all grammars
};

}  // namespace spate
