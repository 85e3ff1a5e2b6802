#include "grammar/token_grammar.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "core/step_plan.h"
#include "grammar/nfa.h"

namespace spate {
namespace {

constexpr int kManyChars = 20;                  // of ASCII: a walk there is a long one
constexpr int kMaxMissing = 16;                 // of ASCII, that a text's first character may not be
constexpr int kShortTree = -2, kLongTree = -3;  // beside those of rest_trees_
constexpr size_t kMaxRests = 10'000;            // of tokens in a tree: more take too long to sort
constexpr int kMaxRestsInRules = 64;            // for one mask, where a text may be read in very many ways
constexpr size_t kMaxSetsOfKnownMask = 128;     // of more, a mask is not looked for
// Nodes below one: for fewer, a run is not asked, or not looked for. To find one takes about 140 steps.
constexpr uint32_t kLeastSkipped = 8, kLeastSkippedByNew = 256;
constexpr int kLeastTextLength = 3;         // of a run, that texts of its characters are looked at for all grammars
constexpr int64_t kWalkedPerUnit = 8;       // nodes that are walked in the time of a unit of work
constexpr int64_t kWalkedPerRest = 5;       // nodes that are walked in the time in which a rest is sorted
constexpr int64_t kMostWorkOfPlace = 50'000;  // units, while sequences run: one that takes more ends the work ahead

}  // namespace

class TokenGrammar::Cursor final : public ConstraintCursor {
 public:
  explicit Cursor(TokenGrammar& owner) : owner_(owner), state_(owner.states_.initial()) {
    owner_.cursors_.push_back(this);
  }
  Cursor(const Cursor& other) : owner_(other.owner_), state_(other.state_), mask_(other.mask_) {
    owner_.cursors_.push_back(this);
  }
  ~Cursor() override { std::erase(owner_.cursors_, this); }

  Status append(int32_t token_id) override {
    owner_.forget_unused();
    mask_.reset();
    const std::string_view bytes = token_id >= 0 && token_id < owner_.trie_->vocab_size()
                                       ? std::string_view(owner_.trie_->token_bytes(token_id))
                                       : std::string_view();
    const int32_t next = bytes.empty() ? ParseStates::kDead : owner_.advance(state_, bytes);
    if (next == ParseStates::kDead) {
      return internal_error("token {} came, which the grammar does not allow at this place", token_id);
    }
    state_ = next;
    return ok_status();
  }
  Status prepare_mask() override {
    ASSIGN_OR_RETURN(mask_, owner_.mask_of(state_));
    if (mask_->is_empty && !may_end()) {
      return invalid_argument("the grammar goes on at this place, but no token of the vocabulary does");
    }
    return ok_status();
  }
  std::span<const uint32_t> mask() const override {
    CHECK(mask_ != nullptr, "prepare_mask() comes first");
    return mask_->words;
  }
  int32_t forced_token() const override { return owner_.forced_token(state_); }
  bool may_end() const override { return owner_.states_.accepts(state_); }
  bool must_end() const override { return may_end() && !owner_.states_.has_next(state_); }
  std::unique_ptr<ConstraintCursor> clone() const override { return std::make_unique<Cursor>(*this); }
  int32_t* state() { return &state_; }

 private:
  TokenGrammar& owner_;
  int32_t state_;
  std::shared_ptr<const Mask> mask_;
};

TokenGrammar::TokenGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                           TokenGrammarLimits limits)
    : trie_(std::move(trie)),
      limits_(limits),
      rules_end_inside_(grammar->num_rules() > 1),
      states_(std::move(grammar)),
      runs_(states_),
      next_cleanup_(limits.max_states),
      path_(static_cast<size_t>(trie_->max_depth()) + 1) {
  reserve();
  rest_by_place_.reserve(limits.max_states / 4);
}

// Room for all that is kept by state, so that no step waits for it to be moved.
void TokenGrammar::reserve() {
  states_.reserve(next_cleanup_);
  masks_.reserve(next_cleanup_);
  runs_.reserve(next_cleanup_);
  local_by_state_.reserve(next_cleanup_);
}

Result<std::shared_ptr<TokenGrammar>> TokenGrammar::create(std::shared_ptr<const Grammar> grammar,
                                                           std::shared_ptr<const TokenTrie> trie,
                                                           TokenGrammarLimits limits) {
  std::shared_ptr<TokenGrammar> constraint(new TokenGrammar(std::move(grammar), std::move(trie), limits));
  Cursor first(*constraint);
  RETURN_IF_ERROR(first.prepare_mask());
  constraint->begin_ahead();
  return constraint;
}

void TokenGrammar::begin_ahead() {
  ahead_ = std::make_unique<Ahead>();
  ahead_->work_left = limits_.max_ahead_work + limits_.max_later_work;
  states_.set_work_limit(states_.work() + limits_.max_ahead_work);
  for_parts_of(states_.initial(), [&](Ahead::Place place) { ahead_->meet(place); });
  walk_ahead(limits_.max_ahead_work);
  is_ahead_ = false;
}

void TokenGrammar::Ahead::meet(Place place) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(place.local)} << 32 | static_cast<uint32_t>(place.rest);
  if (!is_met.insert(key).second) return;
  (targets.try_emplace(place.local).second ? met : met_again).push_back(place);
}

template <typename Take>
void TokenGrammar::for_parts_of(int32_t state, const Take& take) {
  for (const ParseStates::Part& part : states_.parts_of(states_.alike(state))) {
    take(Ahead::Place{part.local, states_.has_next(part.rest) ? part.rest : ParseStates::kDead});
  }
}

int64_t TokenGrammar::num_worked() const { return states_.work() + num_walked_ / kWalkedPerUnit; }

// Byte by byte through each rule, with each place that may stand behind it. What is beyond the limits is found when a
// sequence comes there. A place at which the work limit is reached is looked at again by the next call.
void TokenGrammar::walk_ahead(int64_t max_work) {
  const int64_t first = num_worked();
  Ahead& ahead = *ahead_;
  while (num_worked() - first < std::min(max_work, ahead.work_left)) {
    const bool is_new = ahead.num_looked_at < ahead.met.size();
    const bool is_end = !is_new && ahead.num_looked_at_again == ahead.met_again.size();
    if (is_end || has_too_many_rules() || ahead.num_looked_at + ahead.num_looked_at_again >= limits_.max_ahead_states) {
      ahead_.reset();
      return;
    }
    look_at(is_new ? ahead.met[ahead.num_looked_at] : ahead.met_again[ahead.num_looked_at_again], is_new);
    if (states_.is_over_limit()) break;
    ++(is_new ? ahead.num_looked_at : ahead.num_looked_at_again);
  }
  ahead.work_left -= num_worked() - first;
}

void TokenGrammar::look_at(Ahead::Place at, bool is_new) {
  Ahead& ahead = *ahead_;
  const auto take_nothing = [](std::span<const int32_t>) {};
  const auto take_no_set = [](const TokenSet*) {};
  const Local& local = short_tokens_in_rule(at.local, rules_end_inside_);
  long_tokens_in_rule(at.local, rules_end_inside_);
  int num_left = kMaxRestsInRules;
  if (at.rest != ParseStates::kDead) take_rests(local.short_ends, at.rest, num_left, take_nothing, take_no_set);
  std::vector<Ahead::Place>& found = ahead.targets[at.local];
  if (is_new) {
    int32_t last = ParseStates::kDead;
    for (int byte = 0; byte < 256 && !states_.is_over_limit(); ++byte) {
      const int32_t next = states_.next(at.local, static_cast<uint8_t>(byte));
      if (next == ParseStates::kDead || std::exchange(last, next) == next) continue;
      for_parts_of(next, [&](Ahead::Place place) {
        if (std::ranges::find(found, place) == found.end()) found.push_back(place);
      });
    }
  }
  const auto meet_inside = [&](Ahead::Place place) {
    ahead.meet({place.local, place.rest == ParseStates::kDead ? at.rest : place.rest});
  };
  const std::vector<Ahead::Place> inside = found;  // targets may grow
  for (const Ahead::Place& target : inside) {
    if (states_.is_over_limit()) return;
    meet_inside(target);
    if (target.rest != ParseStates::kDead) for_parts_of(target.rest, meet_inside);
  }
}

bool TokenGrammar::work_ahead(int64_t max_work) {
  if (ahead_ == nullptr || max_work <= 0) return ahead_ != nullptr;
  states_.set_work_limit(states_.work() + kMostWorkOfPlace);
  walk_ahead(max_work);
  if (ahead_ != nullptr && (states_.is_over_limit() || ahead_->work_left <= 0)) ahead_.reset();
  return ahead_ != nullptr;
}

std::unique_ptr<ConstraintCursor> TokenGrammar::start() {
  auto cursor = std::make_unique<Cursor>(*this);
  const Status status = cursor->prepare_mask();
  CHECK(status.ok(), "{}", status.to_string());  // create() has found the same mask
  return cursor;
}

int32_t TokenGrammar::advance(int32_t state, std::string_view bytes) {
  states_.set_work_limit(INT64_MAX);
  for (const char c : bytes) {
    state = states_.next(state, static_cast<uint8_t>(c));
    if (state == ParseStates::kDead) break;
  }
  return state;
}

// The longest token of the text that must come: models mostly write it so. Several tokens may be allowed.
int32_t TokenGrammar::forced_token(int32_t state) {
  states_.set_work_limit(INT64_MAX);
  const TokenTrie::Tree& tree = trie_->short_tokens();
  int32_t longest = -1;
  size_t i = 0, end = tree.nodes.size();
  for (int byte = states_.forced_byte(state); byte >= 0; byte = states_.forced_byte(state)) {
    while (i < end && tree.nodes[i].byte != byte) i = tree.nodes[i].subtree_end;
    if (i >= end) break;
    const TokenTrie::Node& node = tree.nodes[i];
    if (node.num_tokens > 0) longest = tree.tokens_of(node).front();
    state = states_.next(state, static_cast<uint8_t>(byte));
    end = node.subtree_end;
    ++i;
  }
  return longest;
}

bool TokenGrammar::has_room_for(size_t num_masks) const {
  return num_masks * static_cast<size_t>(mask_words_of(trie_->vocab_size())) * 4 <= limits_.max_mask_bytes;
}

Result<std::shared_ptr<const TokenGrammar::Mask>> TokenGrammar::mask_of(int32_t state) {
  const auto index = static_cast<size_t>(state);
  if (index < masks_.size() && masks_[index] != nullptr) return masks_[index];
  if (!has_room_for(num_masks_ + 1)) {
    std::ranges::fill(masks_, nullptr);  // sequences hold the ones that they use
    mask_by_sets_.clear();
    num_masks_ = 0;
  }
  ++num_found_;
  ASSIGN_OR_RETURN(std::shared_ptr<const Mask> mask, find_mask(state));
  masks_.resize(std::max(masks_.size(), states_.num_states()));
  masks_[index] = mask;
  return mask;
}

// From the mask of the first situation that is alike; they differ in long tokens at most.
Result<std::shared_ptr<const TokenGrammar::Mask>> TokenGrammar::find_mask(int32_t state) {
  if (has_too_many_rules()) forget_rules();
  states_.set_work_limit(states_.work() + limits_.max_mask_work);
  const auto first = static_cast<size_t>(states_.alike(state));
  std::shared_ptr<const Mask> mask = first < masks_.size() ? masks_[first] : nullptr;
  if (mask == nullptr) mask = put_together(static_cast<int32_t>(first));
  if (first != static_cast<size_t>(state)) {
    std::vector<int32_t> long_token_ids = long_tokens_of(state);
    masks_.resize(std::max(masks_.size(), states_.num_states()));
    if (!states_.is_over_limit()) masks_[first] = mask;
    if (long_token_ids != mask->long_token_ids) mask = with_long_tokens(*mask, std::move(long_token_ids));
  }
  if (!states_.is_over_limit()) return mask;
  return invalid_argument(
      "the grammar is too ambiguous at this place: finding the allowed tokens takes more than {} units of work",
      limits_.max_mask_work);
}

// A mask that was put together of the same sets before is the same mask.
std::shared_ptr<const TokenGrammar::Mask> TokenGrammar::put_together(int32_t state) {
  std::vector<int32_t> long_token_ids =
      long_tokens_of(state);  // first: rules may be forgotten here, and sets with them
  Parts parts = short_parts_of(state);
  std::ranges::sort(parts.sets);
  parts.sets.erase(std::unique(parts.sets.begin(), parts.sets.end()), parts.sets.end());
  const bool may_know = parts.token_ids.empty() && parts.words.empty() &&
                        parts.sets.size() + long_token_ids.size() <= kMaxSetsOfKnownMask;
  std::vector<uint64_t> key;
  if (may_know) {
    for (const TokenSet* set : parts.sets) key.push_back(reinterpret_cast<uintptr_t>(set));
    key.push_back(0);
    for (const int32_t id : long_token_ids) key.push_back(static_cast<uint64_t>(id));
    if (const auto known = mask_by_sets_.find(key); known != mask_by_sets_.end()) return known->second;
  }
  write(parts);
  std::shared_ptr<const Mask> mask = with_long_tokens({.words = std::move(parts.words)}, std::move(long_token_ids));
  if (may_know && !states_.is_over_limit()) mask_by_sets_.emplace(std::move(key), mask);
  return mask;
}

std::shared_ptr<const TokenGrammar::Mask> TokenGrammar::with_long_tokens(Mask mask,
                                                                         std::vector<int32_t> long_token_ids) {
  auto changed = std::make_shared<Mask>(std::move(mask));
  forbid(changed->words, changed->long_token_ids);
  allow(changed->words, long_token_ids);
  changed->is_empty = std::ranges::all_of(changed->words, [](uint32_t word) { return word == 0; });
  changed->long_token_ids = std::move(long_token_ids);
  ++num_masks_;
  ++num_made_;
  return changed;
}

// The most texts of one kind that lead on from `state`; with wants_ends none after which the rule may end before their
// last character is there. The first character may be any of theirs but for few: as in a key that must differ from the
// declared ones.
TokenGrammar::KnownTexts TokenGrammar::known_texts_of(int32_t state, bool wants_ends) {
  const CharRuns::Run& run = runs_.at(state);
  if (run.next == ParseStates::kDead || run.chars.ascii.size() < kManyChars) return {};
  if (wants_ends && states_.accepts(run.next)) return {};
  const CharRuns::Run& behind = runs_.at(run.next);
  TokenTrie::CharSet chars = run.chars;
  int length = wants_ends ? run.length_inside : run.length;
  const int length_behind = 1 + (wants_ends ? behind.length_inside : behind.length);
  if (length_behind >= std::min(length, kLookAheadBytes) && behind.chars.ascii.size() >= kManyChars &&
      behind.chars.ascii.without(run.chars.ascii).size() <= kMaxMissing &&
      (run.chars.has_wide_chars || !behind.chars.has_wide_chars)) {
    chars = behind.chars;
    length = length_behind;
  }
  const TokenTrie::TextMasks* const masks = trie_->text_masks_for(chars, is_ahead_ && length >= kLeastTextLength);
  if (masks == nullptr || masks->chars.ascii.size() < kManyChars || length == 0) return {};
  return {masks, std::min(length, kLookAheadBytes), masks->chars.ascii.without(run.chars.ascii)};
}

// The nodes from `begin` to `end` whose texts lead on from a situation that stands before them. `ends`: where a text is
// complete, of the nodes that lead on; null: not asked. Below a node from which all characters lead on alike, nothing
// is looked at.
template <typename TakeTokens>
void TokenGrammar::walk(int32_t state, const TokenTrie::Tree& tree, uint32_t begin, uint32_t end,
                        std::vector<uint32_t>* ends, const TakeTokens& take_tokens) {
  if (begin == end) return;
  path_[tree.nodes[begin].depth - 1u] = state;
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = tree.nodes[i];
    ++num_walked_;
    const int32_t next = states_.next(path_[node.depth - 1u], node.byte);
    if (next == ParseStates::kDead) {
      i = node.subtree_end;
      continue;
    }
    path_[node.depth] = next;
    ++i;
    if (ends != nullptr && i < node.subtree_end && states_.accepts(next)) ends->push_back(i - 1);
    if (node.is_text && i < node.subtree_end) {
      const uint32_t num_below = node.subtree_end - i;
      if (num_below >= kLeastSkippedByNew || (num_below >= kLeastSkipped && runs_.find(next) != nullptr)) {
        if (runs_.uncounted_at(next).chars.contains(tree.chars_below(node)) &&
            node.max_chars <= (ends != nullptr ? runs_.at(next).length_inside : runs_.at(next).length)) {
          take_tokens(tree.tokens_below(node));
          i = node.subtree_end;
          continue;
        }
      }
    }
    if (node.num_tokens > 0) take_tokens(tree.tokens_of(node));
  }
}

// walk() for all short tokens but those of the known texts: for tokens that leave them, are longer, or begin otherwise.
template <typename TakeTokens>
void TokenGrammar::walk_exits(int32_t state, const KnownTexts& known, std::vector<uint32_t>* ends,
                              const TakeTokens& take_tokens) {
  const TokenTrie::Tree& tree = trie_->short_tokens();
  std::vector<std::pair<uint32_t, uint32_t>> others;  // nodes
  for (uint32_t first = 0; first < tree.nodes.size(); first = tree.nodes[first].subtree_end) {
    const TokenTrie::Node& node = tree.nodes[first];
    if (node.byte >= 0x80 || !known.other_first.has(node.byte)) continue;
    others.emplace_back(first, node.subtree_end);
    walk(state, tree, first, node.subtree_end, ends, take_tokens);
  }
  const auto walk_from = [&](int32_t at, uint32_t node) {
    if (std::ranges::any_of(others, [&](const auto& other) { return other.first <= node && node < other.second; }))
      return;
    walk(at, tree, node, tree.nodes[node].subtree_end, ends, take_tokens);
  };
  const auto walk_group = [&](int32_t at, int byte, std::span<const uint32_t> nodes) {
    if (nodes.empty() || states_.next(at, static_cast<uint8_t>(byte)) == ParseStates::kDead) return;
    for (const uint32_t node : nodes) walk_from(at, node);
  };
  std::array<int32_t, kLookAheadBytes + 1> behind;  // by the number of characters
  behind[0] = state;
  for (int n = 0; n <= known.length; ++n) {
    const auto at = static_cast<size_t>(n);
    if (n > 0) behind[at] = runs_.uncounted_at(behind[at - 1]).next;
    for (int byte = 0; byte < 256; ++byte) {
      walk_group(behind[at], byte, known.masks->exits.of(n, byte));
      if (n == known.length) walk_group(behind[at], byte, known.masks->longer.of(n, byte));
    }
  }
  for (const TokenTrie::TextMasks::BrokenChar& broken : known.masks->broken_chars) {
    if (broken.num_chars >= known.length) continue;  // longer
    int32_t at = behind[broken.num_chars];
    for (int i = 0; i < broken.num_open; ++i) at = states_.next(at, broken.open[static_cast<size_t>(i)]);
    if (states_.next(at, broken.byte) != ParseStates::kDead) walk_from(at, broken.node);
  }
}

TokenGrammar::Local& TokenGrammar::local_of(int32_t state) {
  const auto index = static_cast<size_t>(state);
  if (index < local_by_state_.size() && local_by_state_[index] != nullptr) return *local_by_state_[index];
  if (has_too_many_rules()) forget_rules();
  locals_.push_back(std::make_unique<Local>(Local{.state = state}));
  rules_bytes_ += sizeof(Local);
  local_by_state_.resize(std::max(local_by_state_.size(), index + 1));
  local_by_state_[index] = locals_.back().get();
  return *locals_.back();
}

// Of rests also by number: those that are kept when situations are forgotten make that a long step.
bool TokenGrammar::has_too_many_rules() const {
  return rules_bytes_ + token_sets_.num_bytes() > limits_.max_mask_bytes || rests_.size() > limits_.max_states / 4;
}

void TokenGrammar::forget_rules() {
  if (ahead_ != nullptr) ahead_->work_left = 0;  // what is found would be forgotten again
  mask_by_sets_.clear();
  token_sets_.clear();
  locals_.clear();
  local_by_state_.clear();
  rests_.clear();
  rest_by_place_.clear();
  rest_trees_.clear();
  tree_numbers_.clear();
  rules_bytes_ = 0;
}

const TokenGrammar::Local& TokenGrammar::short_tokens_in_rule(int32_t state, bool wants_ends) {
  Local& local = local_of(state);
  if (local.knows_short_tokens && (local.knows_short_ends || !wants_ends)) return local;
  const TokenTrie::Tree& tree = trie_->short_tokens();
  std::vector<uint32_t> ends;
  TokenSet tokens;
  const auto take_tokens = [&](std::span<const int32_t> ids) { tokens.add(ids, trie_->vocab_size()); };
  const KnownTexts known = known_texts_of(state, wants_ends);
  if (known.masks != nullptr) {
    tokens.words = known.masks->words[static_cast<size_t>(known.length)];
    for (uint32_t first = 0; first < tree.nodes.size(); first = tree.nodes[first].subtree_end) {
      const TokenTrie::Node& node = tree.nodes[first];
      if (node.byte < 0x80 && known.other_first.has(node.byte)) forbid(tokens.words, tree.tokens_below(node));
    }
    walk_exits(state, known, wants_ends ? &ends : nullptr, take_tokens);
  } else {
    walk(state, tree, 0, static_cast<uint32_t>(tree.nodes.size()), wants_ends ? &ends : nullptr, take_tokens);
  }
  local.short_tokens = token_sets_.keep(std::move(tokens));
  local.short_ends = ends_at(kShortTree, std::move(ends));
  local.knows_short_tokens = !states_.is_over_limit();
  local.knows_short_ends = wants_ends && local.knows_short_tokens;
  return local;
}

const TokenGrammar::Local& TokenGrammar::long_tokens_in_rule(int32_t state, bool wants_ends) {
  Local& local = local_of(state);
  if (local.knows_long_tokens && (local.knows_long_ends || !wants_ends)) return local;
  local.long_token_ids.clear();
  std::vector<uint32_t> ends;
  const TokenTrie::Tree& tree = trie_->long_tokens();
  walk(state, tree, 0, static_cast<uint32_t>(tree.nodes.size()), wants_ends ? &ends : nullptr,
       [&](std::span<const int32_t> ids) { append(local.long_token_ids, ids); });
  rules_bytes_ += 4 * local.long_token_ids.size();
  local.long_ends = ends_at(kLongTree, std::move(ends));
  local.knows_long_tokens = !states_.is_over_limit();
  local.knows_long_ends = wants_ends && local.knows_long_tokens;
  return local;
}

const TokenTrie::Tree& TokenGrammar::tree_of(int tree) const {
  if (tree == kShortTree) return trie_->short_tokens();
  return tree == kLongTree ? trie_->long_tokens() : *rest_trees_[static_cast<size_t>(tree)].sorted;
}

// Rules that end at the same places, as all strings do, share what is behind.
TokenGrammar::Ends TokenGrammar::ends_at(int tree, std::vector<uint32_t> nodes) {
  if (nodes.empty() || states_.is_over_limit()) return {};
  std::ranges::sort(nodes);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  if (tree == kLongTree) {
    rules_bytes_ += 4 * nodes.size();
    return {.nodes = std::move(nodes)};
  }
  nodes.push_back(static_cast<uint32_t>(tree));
  const auto [it, is_new] = tree_numbers_.try_emplace(std::move(nodes), static_cast<int>(rest_trees_.size()));
  if (!is_new) return {.rests = it->second};
  const TokenTrie::Tree& parent = tree_of(tree);
  RestTree made{.parent = tree, .nodes = std::span(it->first).first(it->first.size() - 1)};
  size_t num_rests = 0;
  for (const uint32_t node : made.nodes) {
    num_rests += parent.tokens_below(parent.nodes[node]).size() - parent.nodes[node].num_tokens;
  }
  rules_bytes_ += sizeof(RestTree) + 4 * it->first.size();
  if (num_rests <= kMaxRests) {
    made.sorted = std::make_unique<const TokenTrie::Tree>(TokenTrie::texts_behind(parent, made.nodes));
    rules_bytes_ += sizeof(TokenTrie::Node) * made.sorted->nodes.size() + 4 * made.sorted->token_ids.size() +
                    sizeof(TokenTrie::AsciiSet) * made.sorted->ascii_sets.size();
    num_walked_ += kWalkedPerRest * static_cast<int64_t>(num_rests);
  }
  rest_trees_.push_back(std::move(made));
  return {.rests = it->second};
}

// `ends` are nodes of the sorted tree, or else of the parent.
template <typename TakeTokens>
void TokenGrammar::walk_rests(int32_t state, int rests, std::vector<uint32_t>* ends, const TakeTokens& take_tokens) {
  const RestTree& texts = rest_trees_[static_cast<size_t>(rests)];
  if (texts.sorted != nullptr) {
    walk(state, *texts.sorted, 0, static_cast<uint32_t>(texts.sorted->nodes.size()), ends, take_tokens);
    return;
  }
  const TokenTrie::Tree& parent = tree_of(texts.parent);
  for (const uint32_t node : texts.nodes) {
    walk(state, parent, node + 1, parent.nodes[node].subtree_end, ends, take_tokens);
  }
}

const TokenGrammar::Rest& TokenGrammar::rest_in_rule(int rests, int32_t state) {
  const uint64_t place = uint64_t{static_cast<uint32_t>(rests)} << 32 | static_cast<uint32_t>(state);
  const auto known = rest_by_place_.find(place);
  if (known != rest_by_place_.end()) return *known->second;
  rests_.push_back(std::make_unique<Rest>(Rest{.state = state}));
  Rest& rest = *rests_.back();
  std::vector<uint32_t> ends;
  TokenSet tokens;
  walk_rests(state, rests, &ends, [&](std::span<const int32_t> ids) { tokens.add(ids, trie_->vocab_size()); });
  rest.tokens = token_sets_.keep(std::move(tokens));
  const RestTree& texts = rest_trees_[static_cast<size_t>(rests)];
  rest.ends = ends_at(texts.sorted != nullptr ? rests : texts.parent, std::move(ends));
  rules_bytes_ += sizeof(Rest);
  if (!states_.is_over_limit()) rest_by_place_[place] = &rest;
  return rest;
}

// The tokens of which a part of a rule has led to `ends` and what is left leads on from `state`, which may be the end
// of rules again. num_left: so many places of rules may be looked at.
template <typename TakeTokens, typename TakeSet>
void TokenGrammar::take_rests(const Ends& ends, int32_t state, int& num_left, const TakeTokens& take_tokens,
                              const TakeSet& take_set) {
  if (ends.rests == kNoTree) {
    const TokenTrie::Tree& texts = trie_->long_tokens();
    for (const uint32_t node : ends.nodes) {
      walk(state, texts, node + 1, texts.nodes[node].subtree_end, nullptr, take_tokens);
    }
    return;
  }
  const std::span<const ParseStates::Part> parts = states_.parts_of(state);
  num_left -= static_cast<int>(parts.size());
  if (num_left < 0) return walk_rests(state, ends.rests, nullptr, take_tokens);
  for (const ParseStates::Part& part : parts) {
    const Rest& rest = rest_in_rule(ends.rests, part.local);
    take_set(rest.tokens);
    if (states_.has_next(part.rest)) take_rests(rest.ends, part.rest, num_left, take_tokens, take_set);
  }
}

TokenGrammar::Parts TokenGrammar::short_parts_of(int32_t state) {
  Parts parts;
  int num_left = kMaxRestsInRules;
  for (const ParseStates::Part& part : states_.parts_of(state)) {
    if (has_too_many_rules()) write(parts);  // local_of() forgets them, and sets with them
    const bool goes_on = states_.has_next(part.rest);
    const Local& local = short_tokens_in_rule(part.local, goes_on);
    parts.sets.push_back(local.short_tokens);
    if (!goes_on) continue;
    take_rests(
        local.short_ends, part.rest, num_left, [&](std::span<const int32_t> ids) { parts.token_ids.push_back(ids); },
        [&](const TokenSet* set) { parts.sets.push_back(set); });
  }
  return parts;
}

// All parts into `words`.
void TokenGrammar::write(Parts& parts) {
  std::vector<uint32_t>& words = parts.words;
  if (words.empty()) {
    // That of a string, if there is one: its copy saves to set all to zero.
    const auto most = std::ranges::find_if(parts.sets, [](const TokenSet* set) { return !set->words.empty(); });
    if (most != parts.sets.end()) words = (*most)->words;
    words.resize(static_cast<size_t>(mask_words_of(trie_->vocab_size())));
    if (most != parts.sets.end()) parts.sets.erase(most);
  }
  for (const TokenSet* set : parts.sets) {
    if (!set->words.empty()) allow(words, set->words);
    allow(words, set->ids);
  }
  for (const std::span<const int32_t> ids : parts.token_ids) allow(words, ids);
  parts.sets.clear();
  parts.token_ids.clear();
}

std::vector<int32_t> TokenGrammar::long_tokens_of(int32_t state) {
  std::vector<int32_t> token_ids;
  int num_left = kMaxRestsInRules;
  for (const ParseStates::Part& part : states_.parts_of(state)) {
    const bool goes_on = states_.has_next(part.rest);
    const Local& local = long_tokens_in_rule(part.local, goes_on);
    append(token_ids, local.long_token_ids);
    if (!goes_on) continue;
    const auto take_tokens = [&](std::span<const int32_t> ids) { append(token_ids, ids); };
    // Their ends have no tree of rests, so no set is taken.
    take_rests(local.long_ends, part.rest, num_left, take_tokens, [](const TokenSet*) {});
  }
  std::ranges::sort(token_ids);
  token_ids.erase(std::unique(token_ids.begin(), token_ids.end()), token_ids.end());
  return token_ids;
}

// Between walks, when many situations have been met: keeps those in which a sequence stands, and those of rules.
void TokenGrammar::forget_unused() {
  if (states_.num_states() < next_cleanup_) return;
  ahead_.reset();  // it knows situations by number
  std::vector<int32_t*> used;
  for (Cursor* cursor : cursors_) used.push_back(cursor->state());
  for (const auto& local : locals_) used.push_back(&local->state);
  std::vector<std::pair<uint64_t, Rest*>> rests(rest_by_place_.begin(), rest_by_place_.end());
  for (const auto& [place, rest] : rests) used.push_back(&rest->state);
  states_.keep_only(used);
  runs_.forget();
  local_by_state_.assign(states_.num_states(), nullptr);
  for (const auto& local : locals_) local_by_state_[static_cast<size_t>(local->state)] = local.get();
  rest_by_place_.clear();
  for (const auto& [place, rest] : rests) {
    rest_by_place_[(place & ~uint64_t{UINT32_MAX}) | static_cast<uint32_t>(rest->state)] = rest;
  }
  masks_.clear();
  num_masks_ = mask_by_sets_.size();  // as the sets, these are of no situation
  next_cleanup_ = std::max(limits_.max_states, 2 * states_.num_states());
  reserve();
}

}  // namespace spate
