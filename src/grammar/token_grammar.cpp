#include "grammar/token_grammar.h"

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "base/check.h"
#include "core/step_plan.h"
#include "grammar/nfa.h"

namespace spate {
namespace {

constexpr int kEndless = 255;           // a run's length: as long as any token, TokenTrie::Node::max_chars
constexpr int kNotKnown = INT_MAX / 2;  // more characters than any text has
constexpr int kManyChars = 20;          // of ASCII: a walk there is a long one
// Nodes below one: for fewer, a run is not asked, or not looked for. To find one takes about 140 steps.
constexpr uint32_t kLeastSkipped = 8, kLeastSkippedByNew = 256;

void allow(std::vector<uint32_t>& words, std::span<const int32_t> token_ids) {
  for (const int32_t id : token_ids) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
}

void forbid(std::vector<uint32_t>& words, std::span<const int32_t> token_ids) {
  for (const int32_t id : token_ids) words[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
}

void append(std::vector<int32_t>& token_ids, std::span<const int32_t> more) {
  token_ids.insert(token_ids.end(), more.begin(), more.end());
}

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
      states_(std::move(grammar)),
      next_cleanup_(limits.max_states),
      path_(static_cast<size_t>(trie_->max_depth()) + 1),
      path_chars_(path_.size()) {}

Result<std::shared_ptr<TokenGrammar>> TokenGrammar::create(std::shared_ptr<const Grammar> grammar,
                                                           std::shared_ptr<const TokenTrie> trie,
                                                           TokenGrammarLimits limits) {
  std::shared_ptr<TokenGrammar> constraint(new TokenGrammar(std::move(grammar), std::move(trie), limits));
  Cursor first(*constraint);
  RETURN_IF_ERROR(first.prepare_mask());
  constraint->walk_ahead();
  return constraint;
}

// Byte by byte from the start; what is beyond the limits is found when a sequence comes there.
void TokenGrammar::walk_ahead() {
  states_.set_work_limit(states_.work() + limits_.max_ahead_work);
  std::vector<int32_t> met{states_.initial()};
  std::vector<char> is_met;
  const auto meet = [&](int32_t state) {
    is_met.resize(std::max(is_met.size(), states_.num_states()), 0);
    if (state == ParseStates::kDead || std::exchange(is_met[static_cast<size_t>(state)], 1) != 0) return;
    met.push_back(state);
  };
  is_met.resize(states_.num_states(), 0);
  is_met[static_cast<size_t>(states_.initial())] = 1;
  for (size_t i = 0;
       i < met.size() && i < limits_.max_ahead_states && !states_.is_over_limit() && has_room_for(locals_.size() + 2);
       ++i) {
    if (run_of(met[i]).chars.ascii.size() >= kManyChars) {
      for (const ParseStates::Part& part : states_.parts_of(states_.alike(met[i]))) {
        const bool goes_on = states_.has_next(part.rest);
        short_tokens_in_rule(part.local, goes_on);
        long_tokens_in_rule(part.local, goes_on);
      }
    }
    for (int byte = 0; byte < 256; ++byte) meet(states_.next(met[i], static_cast<uint8_t>(byte)));
  }
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
    num_masks_ = 0;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Mask> mask, find_mask(state));
  masks_.resize(std::max(masks_.size(), states_.num_states()));
  masks_[index] = mask;
  return mask;
}

// From the mask of the first situation that is alike; they differ in long tokens at most.
Result<std::shared_ptr<const TokenGrammar::Mask>> TokenGrammar::find_mask(int32_t state) {
  states_.set_work_limit(states_.work() + limits_.max_mask_work);
  const auto first = static_cast<size_t>(states_.alike(state));
  std::shared_ptr<const Mask> mask = first < masks_.size() ? masks_[first] : nullptr;
  if (mask == nullptr) {
    mask = with_long_tokens({.words = short_tokens_of(static_cast<int32_t>(first))},
                            long_tokens_of(static_cast<int32_t>(first)));
  }
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

std::shared_ptr<const TokenGrammar::Mask> TokenGrammar::with_long_tokens(Mask mask,
                                                                         std::vector<int32_t> long_token_ids) {
  auto changed = std::make_shared<Mask>(std::move(mask));
  forbid(changed->words, changed->long_token_ids);
  allow(changed->words, long_token_ids);
  changed->is_empty = std::ranges::all_of(changed->words, [](uint32_t word) { return word == 0; });
  changed->long_token_ids = std::move(long_token_ids);
  ++num_masks_;
  return changed;
}

// Whether each character that is begun and lacks `num_missing` bytes, the next of them in [low, high], leads to
// `target`.
bool TokenGrammar::completes_chars(int32_t open, int num_missing, int low, int high, int32_t target) {
  if (open == ParseStates::kDead || states_.accepts(open)) return false;
  int32_t checked = ParseStates::kDead;
  for (int byte = low; byte <= high; ++byte) {
    const int32_t next = states_.next(open, static_cast<uint8_t>(byte));
    if (num_missing == 1 ? next != target
                         : next != checked && !completes_chars(next, num_missing - 1, 0x80, 0xBF, target)) {
      return false;
    }
    checked = next;
  }
  return true;
}

// Whether every character that is not ASCII leads from `state` to `target`.
bool TokenGrammar::takes_wide_chars(int32_t state, int32_t target) {
  struct Leads {
    int first, last, num_missing, low, high;
  };
  static constexpr Leads kLeads[] = {{0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
                                     {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F},
                                     {0xEE, 0xEF, 2, 0x80, 0xBF}, {0xF0, 0xF0, 3, 0x90, 0xBF},
                                     {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F}};
  return std::ranges::all_of(kLeads, [&](const Leads& leads) {
    int32_t checked = ParseStates::kDead;
    for (int byte = leads.first; byte <= leads.last; ++byte) {
      const int32_t open = states_.next(state, static_cast<uint8_t>(byte));
      if (open != checked && !completes_chars(open, leads.num_missing, leads.low, leads.high, target)) return false;
      checked = open;
      if (open == ParseStates::kDead) return false;
    }
    return true;
  });
}

// Null: not looked for so far.
TokenGrammar::Run* TokenGrammar::find_run(int32_t state) {
  const auto index = static_cast<size_t>(state);
  return index < run_by_state_.size() ? run_by_state_[index] : nullptr;
}

TokenGrammar::Run& TokenGrammar::uncounted_run_of(int32_t state) {
  if (Run* known = find_run(state)) return *known;
  const auto index = static_cast<size_t>(state);
  // The situation to which most characters of ASCII lead.
  std::array<int32_t, 128> targets;
  std::vector<std::pair<int32_t, int>> counts;
  for (int byte = 0; byte < 128; ++byte) {
    const int32_t next = targets[static_cast<size_t>(byte)] = states_.next(state, static_cast<uint8_t>(byte));
    if (next == ParseStates::kDead) continue;
    const auto known = std::ranges::find(counts, next, &std::pair<int32_t, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(next, 1);
    } else {
      ++known->second;
    }
  }
  Run run;
  if (!counts.empty()) {
    run.next = std::ranges::max_element(counts, {}, &std::pair<int32_t, int>::second)->first;
    for (int byte = 0; byte < 128; ++byte) {
      if (targets[static_cast<size_t>(byte)] == run.next) run.chars.ascii.add(byte);
    }
    run.chars.has_wide_chars = takes_wide_chars(state, run.next);
  }
  runs_.push_back(run);
  run_by_state_.resize(std::max(run_by_state_.size(), states_.num_states()));
  run_by_state_[index] = &runs_.back();
  return runs_.back();
}

// Found with the work limit reached, a run says too little: nothing is skipped that should not be, and the mask is
// dropped.
const TokenGrammar::Run& TokenGrammar::run_of(int32_t state) {
  Run& run = uncounted_run_of(state);
  if (run.length >= 0) return run;
  int length = 0, length_inside = 0;
  int32_t at = state;
  for (const Run* link = &run; length < kLookAheadBytes && link->next != ParseStates::kDead;) {
    if (!link->chars.contains(run.chars)) break;
    ++length;
    if (length_inside == length - 1 && !states_.accepts(link->next)) length_inside = length;
    if (link->next == at) {
      if (length_inside == length) length_inside = kEndless;
      length = kEndless;
      break;
    }
    at = link->next;
    link = &uncounted_run_of(at);
  }
  run.length = length;
  run.length_inside = length_inside;
  return run;
}

TokenGrammar::KnownTexts TokenGrammar::known_texts_of(int32_t state) {
  const Run& run = run_of(state);
  return {trie_->find_text_masks(run.chars), std::min(run.length, kLookAheadBytes),
          std::min(run.length_inside, kLookAheadBytes)};
}

// The nodes from `begin` to `end` whose texts lead on from a situation that stands before them; those of `known` may be
// left out. `ends`: where a text is complete, of the nodes that lead on; null: not asked. Below a node from which all
// characters lead on alike, nothing is looked at.
template <typename TakeTokens>
void TokenGrammar::walk(int32_t state, const TokenTrie::Tree& tree, uint32_t begin, uint32_t end,
                        const KnownTexts& known, std::vector<uint32_t>* ends, const TakeTokens& take_tokens) {
  if (begin == end) return;
  const size_t first_depth = tree.nodes[begin].depth - 1u;
  path_[first_depth] = state;
  path_chars_[first_depth] = known.masks != nullptr ? 0 : kNotKnown;
  const int known_length = ends != nullptr ? known.length_inside : known.length;
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = tree.nodes[i];
    const int32_t next = states_.next(path_[node.depth - 1u], node.byte);
    if (next == ParseStates::kDead) {
      i = node.subtree_end;
      continue;
    }
    path_[node.depth] = next;
    int num_chars = path_chars_[node.depth - 1u];
    if (num_chars != kNotKnown) {
      const bool is_known =
          node.byte < 0x80 ? known.masks->chars.ascii.has(node.byte) : known.masks->chars.has_wide_chars;
      num_chars = is_known ? num_chars + ((node.byte & 0xC0) != 0x80 ? 1 : 0) : kNotKnown;
    }
    path_chars_[node.depth] = num_chars;
    ++i;
    if (ends != nullptr && i < node.subtree_end && states_.accepts(next)) ends->push_back(i - 1);
    if (node.is_text && i < node.subtree_end) {
      const TokenTrie::CharSet below = tree.chars_below(node);
      if (num_chars + node.max_chars <= known_length && known.masks->chars.contains(below)) {
        i = node.subtree_end;
        continue;
      }
      const uint32_t num_below = node.subtree_end - i;
      if (num_below >= kLeastSkippedByNew || (num_below >= kLeastSkipped && find_run(next) != nullptr)) {
        if (uncounted_run_of(next).chars.contains(below) &&
            node.max_chars <= (ends != nullptr ? run_of(next).length_inside : run_of(next).length)) {
          take_tokens(tree.tokens_below(node));
          i = node.subtree_end;
          continue;
        }
      }
    }
    take_tokens(tree.tokens_of(node));
  }
}

// The texts that lead on from `state` once the first character has led to the next situation of its run, for as long as
// a short token is, and with wants_ends are complete nowhere; null: no kind that is kept. The first character may be
// any of theirs but for the few of ASCII that the run lacks: as in a key that must differ from the declared ones.
const TokenTrie::TextMasks* TokenGrammar::endless_texts_behind(int32_t state, bool wants_ends) {
  const TokenTrie::TextMasks* const masks = trie_->find_nearest_text_masks(run_of(state).chars);
  if (masks == nullptr || (wants_ends && states_.accepts(run_of(state).next))) return nullptr;
  const Run& behind = run_of(run_of(state).next);
  const int length = wants_ends ? behind.length_inside : behind.length;
  return behind.chars.contains(masks->chars) && length >= kLookAheadBytes ? masks : nullptr;
}

// walk() for all short tokens from a situation of endless_texts_behind. The tokens of such texts are known: what is
// left are those that leave them, and those that begin with `other_first`, which the run lacks.
template <typename TakeTokens>
void TokenGrammar::walk_exits(int32_t state, const TokenTrie::TextMasks& masks, const TokenTrie::AsciiSet& other_first,
                              std::vector<uint32_t>* ends, const TakeTokens& take_tokens) {
  const TokenTrie::Tree& tree = trie_->short_tokens();
  std::array<int32_t, kLookAheadBytes> behind_chars;  // by the number of characters
  behind_chars[0] = state;
  for (size_t n = 1; n < behind_chars.size(); ++n) behind_chars[n] = uncounted_run_of(behind_chars[n - 1]).next;
  auto exit = masks.exits.begin();
  for (uint32_t first = 0; first < tree.nodes.size();) {
    const uint32_t end = tree.nodes[first].subtree_end;
    const bool is_other = tree.nodes[first].byte < 0x80 && other_first.has(tree.nodes[first].byte);
    if (is_other) walk(state, tree, first, end, {}, ends, take_tokens);
    for (; exit != masks.exits.end() && exit->node < end; ++exit) {
      if (is_other) continue;
      int32_t at = behind_chars[exit->num_chars];
      for (int i = 0; i < exit->num_open; ++i) at = states_.next(at, exit->open[static_cast<size_t>(i)]);
      if (states_.next(at, exit->byte) == ParseStates::kDead) continue;
      walk(at, tree, exit->node, tree.nodes[exit->node].subtree_end, {}, ends, take_tokens);
    }
    first = end;
  }
}

TokenGrammar::Local& TokenGrammar::local_of(int32_t state) {
  const auto index = static_cast<size_t>(state);
  if (index < local_by_state_.size() && local_by_state_[index] != nullptr) return *local_by_state_[index];
  if (!has_room_for(locals_.size() + 1)) {
    locals_.clear();
    local_by_state_.clear();
  }
  locals_.push_back(std::make_unique<Local>(Local{.state = state}));
  local_by_state_.resize(std::max(local_by_state_.size(), index + 1));
  local_by_state_[index] = locals_.back().get();
  return *locals_.back();
}

const TokenGrammar::Local& TokenGrammar::short_tokens_in_rule(int32_t state, bool wants_ends) {
  Local& local = local_of(state);
  if (local.knows_short_tokens && (local.knows_short_ends || !wants_ends)) return local;
  const TokenTrie::Tree& tree = trie_->short_tokens();
  local.short_ends.clear();
  std::vector<uint32_t>* const ends = wants_ends ? &local.short_ends : nullptr;
  const auto take_tokens = [&](std::span<const int32_t> ids) { allow(local.words, ids); };
  if (const TokenTrie::TextMasks* const masks = endless_texts_behind(state, wants_ends)) {
    local.words = masks->words[kLookAheadBytes];
    const TokenTrie::AsciiSet other_first = masks->chars.ascii.without(run_of(state).chars.ascii);
    for (uint32_t first = 0; first < tree.nodes.size(); first = tree.nodes[first].subtree_end) {
      const TokenTrie::Node& node = tree.nodes[first];
      if (node.byte < 0x80 && other_first.has(node.byte)) forbid(local.words, tree.tokens_below(node));
    }
    walk_exits(state, *masks, other_first, ends, take_tokens);
  } else {
    const KnownTexts known = known_texts_of(state);
    if (known.masks != nullptr) {
      local.words = known.masks->words[static_cast<size_t>(known.length)];
    } else {
      local.words.assign(static_cast<size_t>(mask_words_of(trie_->vocab_size())), 0);
    }
    walk(state, tree, 0, static_cast<uint32_t>(tree.nodes.size()), known, ends, take_tokens);
  }
  local.knows_short_tokens = !states_.is_over_limit();
  local.knows_short_ends = wants_ends && local.knows_short_tokens;
  return local;
}

const TokenGrammar::Local& TokenGrammar::long_tokens_in_rule(int32_t state, bool wants_ends) {
  Local& local = local_of(state);
  if (local.knows_long_tokens && (local.knows_long_ends || !wants_ends)) return local;
  local.long_token_ids.clear();
  local.long_ends.clear();
  const TokenTrie::Tree& tree = trie_->long_tokens();
  walk(state, tree, 0, static_cast<uint32_t>(tree.nodes.size()), {}, wants_ends ? &local.long_ends : nullptr,
       [&](std::span<const int32_t> ids) { append(local.long_token_ids, ids); });
  local.knows_long_tokens = !states_.is_over_limit();
  local.knows_long_ends = wants_ends && local.knows_long_tokens;
  return local;
}

std::vector<uint32_t> TokenGrammar::short_tokens_of(int32_t state) {
  std::vector<uint32_t> words;
  const TokenTrie::Tree& tree = trie_->short_tokens();
  for (const ParseStates::Part& part : states_.parts_of(state)) {
    const bool goes_on = states_.has_next(part.rest);
    const Local& local = short_tokens_in_rule(part.local, goes_on);
    if (words.empty()) {
      words = local.words;
    } else {
      for (size_t i = 0; i < words.size(); ++i) words[i] |= local.words[i];
    }
    if (!goes_on) continue;
    for (const uint32_t node : local.short_ends) {
      walk(part.rest, tree, node + 1, tree.nodes[node].subtree_end, {}, nullptr,
           [&](std::span<const int32_t> ids) { allow(words, ids); });
    }
  }
  words.resize(static_cast<size_t>(mask_words_of(trie_->vocab_size())));  // where the text can only end
  return words;
}

std::vector<int32_t> TokenGrammar::long_tokens_of(int32_t state) {
  std::vector<int32_t> token_ids;
  const TokenTrie::Tree& tree = trie_->long_tokens();
  for (const ParseStates::Part& part : states_.parts_of(state)) {
    const bool goes_on = states_.has_next(part.rest);
    const Local& local = long_tokens_in_rule(part.local, goes_on);
    append(token_ids, local.long_token_ids);
    if (!goes_on) continue;
    for (const uint32_t node : local.long_ends) {
      walk(part.rest, tree, node + 1, tree.nodes[node].subtree_end, {}, nullptr,
           [&](std::span<const int32_t> ids) { append(token_ids, ids); });
    }
  }
  std::ranges::sort(token_ids);
  token_ids.erase(std::unique(token_ids.begin(), token_ids.end()), token_ids.end());
  return token_ids;
}

// Between walks, when many situations have been met: keeps those in which a sequence stands, and those of rules.
void TokenGrammar::forget_unused() {
  if (states_.num_states() < next_cleanup_) return;
  std::vector<int32_t*> used;
  for (Cursor* cursor : cursors_) used.push_back(cursor->state());
  for (const auto& local : locals_) used.push_back(&local->state);
  states_.keep_only(used);
  runs_.clear();
  run_by_state_.clear();
  local_by_state_.assign(states_.num_states(), nullptr);
  for (const auto& local : locals_) local_by_state_[static_cast<size_t>(local->state)] = local.get();
  masks_.clear();
  num_masks_ = 0;
  next_cleanup_ = std::max(limits_.max_states, 2 * states_.num_states());
}

}  // namespace spate
