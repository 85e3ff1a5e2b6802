#include "grammar/token_grammar.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/step_plan.h"

namespace spate {
namespace {

void allow(std::vector<uint32_t>& words, std::span<const int32_t> token_ids) {
  for (const int32_t id : token_ids) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
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
      path_(static_cast<size_t>(trie_->max_depth()) + 1) {}

Result<std::shared_ptr<TokenGrammar>> TokenGrammar::create(std::shared_ptr<const Grammar> grammar,
                                                           std::shared_ptr<const TokenTrie> trie,
                                                           TokenGrammarLimits limits) {
  std::shared_ptr<TokenGrammar> constraint(new TokenGrammar(std::move(grammar), std::move(trie), limits));
  Cursor first(*constraint);
  RETURN_IF_ERROR(first.prepare_mask());
  return constraint;
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

std::shared_ptr<const TokenGrammar::Mask> TokenGrammar::with_long_tokens(const Mask& mask,
                                                                         std::vector<int32_t> long_token_ids) {
  auto changed = std::make_shared<Mask>();
  changed->words = mask.words;
  for (const int32_t id : mask.long_token_ids) changed->words[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
  for (const int32_t id : long_token_ids) changed->words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  changed->is_empty = std::ranges::all_of(changed->words, [](uint32_t word) { return word == 0; });
  changed->long_token_ids = std::move(long_token_ids);
  ++num_masks_;
  return changed;
}

// The nodes from `begin` to `end` whose texts lead on from a situation that stands before them. `ends`: where a text is
// complete, of the nodes that lead on; null: not asked.
template <typename TakeTokens>
void TokenGrammar::walk(int32_t state, const TokenTrie::Tree& tree, uint32_t begin, uint32_t end,
                        std::vector<uint32_t>* ends, const TakeTokens& take_tokens) {
  if (begin == end) return;
  path_[tree.nodes[begin].depth - 1u] = state;
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = tree.nodes[i];
    const int32_t next = states_.next(path_[node.depth - 1u], node.byte);
    if (next == ParseStates::kDead) {
      i = node.subtree_end;
      continue;
    }
    path_[node.depth] = next;
    take_tokens(tree.tokens_of(node));
    ++i;
    if (ends != nullptr && i < node.subtree_end && states_.accepts(next)) ends->push_back(i - 1);
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

const TokenGrammar::Local& TokenGrammar::short_tokens_in_rule(int32_t state) {
  Local& local = local_of(state);
  if (local.knows_short_tokens) return local;
  local.words.assign(static_cast<size_t>(mask_words_of(trie_->vocab_size())), 0);
  local.short_ends.clear();
  const TokenTrie::Tree& tree = trie_->short_tokens();
  walk(state, tree, 0, static_cast<uint32_t>(tree.nodes.size()), &local.short_ends,
       [&](std::span<const int32_t> ids) { allow(local.words, ids); });
  local.knows_short_tokens = !states_.is_over_limit();
  return local;
}

const TokenGrammar::Local& TokenGrammar::long_tokens_in_rule(int32_t state) {
  Local& local = local_of(state);
  if (local.knows_long_tokens) return local;
  local.long_token_ids.clear();
  local.long_ends.clear();
  const TokenTrie::Tree& tree = trie_->long_tokens();
  walk(state, tree, 0, static_cast<uint32_t>(tree.nodes.size()), &local.long_ends,
       [&](std::span<const int32_t> ids) { append(local.long_token_ids, ids); });
  local.knows_long_tokens = !states_.is_over_limit();
  return local;
}

std::vector<uint32_t> TokenGrammar::short_tokens_of(int32_t state) {
  std::vector<uint32_t> words(static_cast<size_t>(mask_words_of(trie_->vocab_size())), 0);
  const TokenTrie::Tree& tree = trie_->short_tokens();
  for (const ParseStates::Part& part : states_.parts_of(state)) {
    const Local& local = short_tokens_in_rule(part.local);
    for (size_t i = 0; i < words.size(); ++i) words[i] |= local.words[i];
    if (!states_.has_next(part.rest)) continue;
    for (const uint32_t node : local.short_ends) {
      walk(part.rest, tree, node + 1, tree.nodes[node].subtree_end, nullptr,
           [&](std::span<const int32_t> ids) { allow(words, ids); });
    }
  }
  return words;
}

std::vector<int32_t> TokenGrammar::long_tokens_of(int32_t state) {
  std::vector<int32_t> token_ids;
  const TokenTrie::Tree& tree = trie_->long_tokens();
  for (const ParseStates::Part& part : states_.parts_of(state)) {
    const Local& local = long_tokens_in_rule(part.local);
    append(token_ids, local.long_token_ids);
    if (!states_.has_next(part.rest)) continue;
    for (const uint32_t node : local.long_ends) {
      walk(part.rest, tree, node + 1, tree.nodes[node].subtree_end, nullptr,
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
  local_by_state_.assign(states_.num_states(), nullptr);
  for (const auto& local : locals_) local_by_state_[static_cast<size_t>(local->state)] = local.get();
  masks_.clear();
  num_masks_ = 0;
  next_cleanup_ = std::max(limits_.max_states, 2 * states_.num_states());
}

}  // namespace spate
