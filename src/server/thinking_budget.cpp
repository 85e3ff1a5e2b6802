#include "server/thinking_budget.h"

#include <string_view>
#include <utility>

namespace spate {
namespace {

// What all sequences of a request share; immutable.
struct SharedBudget {
  ThinkingBudget budget;
  const Tokenizer& tokenizer;
  std::vector<int32_t> end_token_ids;              // of forced_end
  std::vector<uint32_t> free_mask;                 // every token
  std::vector<std::vector<uint32_t>> forced_masks;  // each of end_token_ids alone
};

// Whether some proper beginning of `marker` ends the text.
bool ends_inside(std::string_view text, std::string_view marker) {
  for (size_t count = std::min(text.size(), marker.size() - 1); count > 0; --count) {
    if (text.ends_with(marker.substr(0, count))) return true;
  }
  return false;
}

class BudgetCursor final : public ConstraintCursor {
 public:
  BudgetCursor(std::shared_ptr<const SharedBudget> shared, std::unique_ptr<ConstraintCursor> inner)
      : shared_(std::move(shared)), inner_(std::move(inner)) {
    if (shared_->budget.has_begun) begin_thinking({});
  }

  Status append(int32_t token_id) override {
    if (inner_ != nullptr) RETURN_IF_ERROR(inner_->append(token_id));
    switch (state_) {
      case State::kBefore:
        text_ += shared_->tokenizer.token_bytes(token_id);
        look_for_begin();
        break;
      case State::kThinking:
        text_ += shared_->tokenizer.token_bytes(token_id);
        ++num_tokens_;
        look_for_end();
        break;
      case State::kForced:
        if (token_id != shared_->end_token_ids[num_forced_]) {
          return internal_error("token {} came where the end of the reasoning was forced", token_id);
        }
        if (++num_forced_ == shared_->end_token_ids.size()) state_ = State::kDone;
        break;
      case State::kDone:
        break;
    }
    return ok_status();
  }

  Status prepare_mask() override {
    if (inner_ == nullptr) return ok_status();
    RETURN_IF_ERROR(inner_->prepare_mask());
    if (state_ == State::kForced && !mask_allows(inner_->mask().data(), shared_->end_token_ids[num_forced_])) {
      return invalid_argument("the request's grammar or its bad_words do not allow the end of the reasoning");
    }
    return ok_status();
  }

  std::span<const uint32_t> mask() const override {
    if (state_ == State::kForced) return shared_->forced_masks[num_forced_];
    return inner_ != nullptr ? inner_->mask() : std::span<const uint32_t>(shared_->free_mask);
  }
  bool may_draft(int32_t token_id) const override {
    if (state_ == State::kForced || inner_ == nullptr) return mask_allows(mask().data(), token_id);
    return inner_->may_draft(token_id);
  }
  int32_t forced_token() const override {
    if (state_ == State::kForced) return shared_->end_token_ids[num_forced_];
    return inner_ != nullptr ? inner_->forced_token() : -1;
  }
  bool may_end() const override { return state_ != State::kForced && (inner_ == nullptr || inner_->may_end()); }
  bool must_end() const override { return state_ != State::kForced && inner_ != nullptr && inner_->must_end(); }
  bool may_relax() const override { return state_ == State::kThinking && inner_ == nullptr; }
  bool is_done() const override { return state_ == State::kDone && inner_ == nullptr; }
  std::unique_ptr<ConstraintCursor> clone() const override {
    auto copy = std::make_unique<BudgetCursor>(shared_, inner_ != nullptr ? inner_->clone() : nullptr);
    copy->state_ = state_;
    copy->text_ = text_;
    copy->num_tokens_ = num_tokens_;
    copy->num_forced_ = num_forced_;
    return copy;
  }

 private:
  enum class State : uint8_t { kBefore, kThinking, kForced, kDone };

  void begin_thinking(std::string text) {
    state_ = State::kThinking;
    text_ = std::move(text);
    look_for_end();
  }

  // The answer so far is white space and a part of the marker, or there is no reasoning.
  void look_for_begin() {
    const std::string& begin = shared_->budget.begin;
    const size_t first = text_.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return;
    const std::string_view text = std::string_view(text_).substr(first);
    if (text.starts_with(begin)) return begin_thinking(std::string(text.substr(begin.size())));
    if (!std::string_view(begin).starts_with(text)) state_ = State::kDone;
  }

  void look_for_end() {
    const std::string& end = shared_->budget.end;
    if (text_.find(end) != std::string::npos) {
      state_ = State::kDone;
      return;
    }
    if (text_.size() > end.size()) text_.erase(0, text_.size() - end.size());
    if (num_tokens_ < shared_->budget.max_tokens) return;
    // A marker that the model has begun itself may be finished.
    const int64_t max_tokens = shared_->budget.max_tokens + static_cast<int64_t>(end.size());
    if (num_tokens_ < max_tokens && ends_inside(text_, end)) return;
    state_ = State::kForced;
  }

  const std::shared_ptr<const SharedBudget> shared_;
  const std::unique_ptr<ConstraintCursor> inner_;
  State state_ = State::kBefore;
  std::string text_;  // kBefore: the answer; kThinking: its last bytes
  int num_tokens_ = 0;
  size_t num_forced_ = 0;
};

class ThinkingLimit final : public TokenConstraint {
 public:
  ThinkingLimit(std::shared_ptr<const SharedBudget> shared, std::shared_ptr<TokenConstraint> inner)
      : shared_(std::move(shared)), inner_(std::move(inner)) {}
  std::unique_ptr<ConstraintCursor> start() override {
    return std::make_unique<BudgetCursor>(shared_, inner_ != nullptr ? inner_->start() : nullptr);
  }
  bool work_ahead(int64_t max_work) override { return inner_ != nullptr && inner_->work_ahead(max_work); }

 private:
  const std::shared_ptr<const SharedBudget> shared_;
  const std::shared_ptr<TokenConstraint> inner_;
};

}  // namespace

std::shared_ptr<TokenConstraint> limit_thinking(ThinkingBudget budget, const Tokenizer& tokenizer, int vocab_size,
                                                std::shared_ptr<TokenConstraint> inner) {
  if (budget.forced_end.empty()) budget.forced_end = budget.end;
  std::vector<int32_t> end_token_ids = tokenizer.encode(budget.forced_end, {.add_special_tokens = false});
  auto shared = std::make_shared<SharedBudget>(SharedBudget{.budget = std::move(budget),
                                                            .tokenizer = tokenizer,
                                                            .end_token_ids = std::move(end_token_ids),
                                                            .free_mask = {},
                                                            .forced_masks = {}});
  const auto num_words = static_cast<size_t>(mask_words_of(vocab_size));
  shared->free_mask.assign(num_words, ~0u);
  if (vocab_size % 32 != 0) shared->free_mask.back() = (1u << (vocab_size % 32)) - 1;
  for (const int32_t id : shared->end_token_ids) {
    std::vector<uint32_t>& mask = shared->forced_masks.emplace_back(num_words, 0u);
    mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  return std::make_shared<ThinkingLimit>(std::move(shared), std::move(inner));
}

}  // namespace spate
