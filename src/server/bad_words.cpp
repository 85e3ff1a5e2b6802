#include "server/bad_words.h"

#include <algorithm>
#include <utility>

namespace spate {
namespace {

using Sequence = std::vector<int32_t>;

void set_bit(std::vector<uint32_t>& mask, int32_t id, bool is_allowed) {
  const uint32_t bit = 1u << (id % 32);
  uint32_t& word = mask[static_cast<size_t>(id) / 32];
  word = is_allowed ? word | bit : word & ~bit;
}

bool is_in(const Sequence& ids, int32_t id) { return std::ranges::find(ids, id) != ids.end(); }

// What all sequences of a request share; immutable.
struct SharedWords {
  std::vector<int32_t> single_ids;  // forbidden everywhere
  std::vector<Sequence> sequences;  // of two tokens and more
  size_t longest = 1;               // tokens of the longest
  std::vector<int32_t> eos_token_ids;
  std::vector<uint32_t> free_mask;  // every token but single_ids
};

class BadWordsCursor final : public ConstraintCursor {
 public:
  BadWordsCursor(std::shared_ptr<const SharedWords> shared, std::unique_ptr<ConstraintCursor> inner)
      : shared_(std::move(shared)), inner_(std::move(inner)) {}

  Status append(int32_t token_id) override {
    if (is_stuck_) return stuck();
    if (inner_ != nullptr) RETURN_IF_ERROR(inner_->append(token_id));
    if (shared_->longest == 1) return ok_status();
    last_.push_back(token_id);
    if (last_.size() >= shared_->longest) last_.erase(last_.begin());
    return ok_status();
  }

  Status prepare_mask() override {
    if (inner_ != nullptr) RETURN_IF_ERROR(inner_->prepare_mask());
    prepare();
    return is_stuck_ ? stuck() : ok_status();
  }

  // Where nothing is allowed at the very start, the engine asks before it can be told: it gets the inner mask, and
  // hears of the error with the first token.
  void prepare() {
    forbidden_here_.clear();
    for (const Sequence& sequence : shared_->sequences) {
      const size_t num_before = sequence.size() - 1;
      if (num_before > last_.size()) continue;
      if (std::equal(sequence.begin(), sequence.end() - 1, last_.end() - static_cast<std::ptrdiff_t>(num_before))) {
        forbidden_here_.push_back(sequence.back());
      }
    }
    forbids_end_ = std::ranges::any_of(shared_->eos_token_ids, [this](int32_t id) { return is_forbidden(id); });
    has_own_mask_ = inner_ != nullptr || !forbidden_here_.empty() || forbids_end_;
    if (!has_own_mask_) return;
    if (inner_ != nullptr) {
      mask_.assign(inner_->mask().begin(), inner_->mask().end());
    } else {
      mask_ = shared_->free_mask;
    }
    if (forbids_end_ && (inner_ == nullptr || inner_->may_end())) {  // those end tokens that are left
      for (const int32_t id : shared_->eos_token_ids) set_bit(mask_, id, true);
    }
    for (const int32_t id : shared_->single_ids) set_bit(mask_, id, false);
    for (const int32_t id : forbidden_here_) set_bit(mask_, id, false);
    is_stuck_ = !may_end() && std::ranges::all_of(mask_, [](uint32_t word) { return word == 0; });
    if (is_stuck_ && inner_ != nullptr) mask_.assign(inner_->mask().begin(), inner_->mask().end());
  }

  std::span<const uint32_t> mask() const override { return has_own_mask_ ? mask_ : shared_->free_mask; }
  bool may_draft(int32_t token_id) const override {
    return inner_ != nullptr ? !is_forbidden(token_id) && inner_->may_draft(token_id)
                             : mask_allows(mask().data(), token_id);
  }
  int32_t forced_token() const override { return inner_ != nullptr ? inner_->forced_token() : -1; }
  bool may_end() const override { return !forbids_end_ && (inner_ == nullptr || inner_->may_end()); }
  bool must_end() const override { return inner_ != nullptr && inner_->must_end(); }
  std::unique_ptr<ConstraintCursor> clone() const override {
    auto copy = std::make_unique<BadWordsCursor>(shared_, inner_ != nullptr ? inner_->clone() : nullptr);
    copy->last_ = last_;
    copy->forbidden_here_ = forbidden_here_;
    copy->mask_ = mask_;
    copy->has_own_mask_ = has_own_mask_;
    copy->forbids_end_ = forbids_end_;
    copy->is_stuck_ = is_stuck_;
    return copy;
  }

 private:
  bool is_forbidden(int32_t id) const { return is_in(shared_->single_ids, id) || is_in(forbidden_here_, id); }
  static Status stuck() {
    return invalid_argument("bad_words forbid every token that the form of the answer allows at this place");
  }

  const std::shared_ptr<const SharedWords> shared_;
  const std::unique_ptr<ConstraintCursor> inner_;
  Sequence last_;  // tokens of the answer, fewer than `longest`
  Sequence forbidden_here_;
  std::vector<uint32_t> mask_;  // with has_own_mask_
  bool has_own_mask_ = false, forbids_end_ = false, is_stuck_ = false;
};

class BadWords final : public TokenConstraint {
 public:
  BadWords(std::shared_ptr<const SharedWords> shared, std::shared_ptr<TokenConstraint> inner)
      : shared_(std::move(shared)), inner_(std::move(inner)) {}
  std::unique_ptr<ConstraintCursor> start() override {
    auto cursor = std::make_unique<BadWordsCursor>(shared_, inner_ != nullptr ? inner_->start() : nullptr);
    cursor->prepare();
    return cursor;
  }
  bool work_ahead(int64_t max_work) override { return inner_ != nullptr && inner_->work_ahead(max_work); }

 private:
  const std::shared_ptr<const SharedWords> shared_;
  const std::shared_ptr<TokenConstraint> inner_;
};

}  // namespace

std::vector<Sequence> bad_sequences(const std::vector<std::string>& words, const Tokenizer& tokenizer) {
  std::vector<Sequence> sequences;
  for (const std::string& word : words) {
    const std::string text = word.substr(std::min(word.size(), word.find_first_not_of(" \t\r\n\f\v")));
    Sequence plain = tokenizer.encode(text, {.add_special_tokens = false});
    Sequence spaced = tokenizer.encode(" " + text, {.add_special_tokens = false});
    // Else it has a token for the space, and the word's own behind it.
    const bool is_another = !plain.empty() && spaced.size() == plain.size() && spaced.front() != plain.front();
    if (!plain.empty()) sequences.push_back(std::move(plain));
    if (is_another) sequences.push_back(std::move(spaced));
  }
  return sequences;
}

std::shared_ptr<TokenConstraint> forbid_sequences(std::vector<Sequence> sequences,
                                                  const std::vector<int32_t>& eos_token_ids, int vocab_size,
                                                  std::shared_ptr<TokenConstraint> inner) {
  auto shared = std::make_shared<SharedWords>();
  shared->eos_token_ids = eos_token_ids;
  shared->free_mask.assign(static_cast<size_t>(mask_words_of(vocab_size)), ~0u);
  if (vocab_size % 32 != 0) shared->free_mask.back() = (1u << (vocab_size % 32)) - 1;
  for (Sequence& sequence : sequences) {
    shared->longest = std::max(shared->longest, sequence.size());
    if (sequence.size() == 1) {
      shared->single_ids.push_back(sequence.front());
      set_bit(shared->free_mask, sequence.front(), false);
    } else {
      shared->sequences.push_back(std::move(sequence));
    }
  }
  return std::make_shared<BadWords>(std::move(shared), std::move(inner));
}

}  // namespace spate
