#include "server/allowed_tokens.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace spate {
namespace {

struct Allowed {
  std::vector<uint32_t> mask;  // without end tokens
  bool may_end = false;
};

class AllowedTokensCursor final : public ConstraintCursor {
 public:
  explicit AllowedTokensCursor(std::shared_ptr<const Allowed> allowed) : allowed_(std::move(allowed)) {}
  Status append(int32_t token_id) override {
    if (mask_allows(allowed_->mask.data(), token_id)) return ok_status();
    return internal_error("token {} came, which is not one of allowed_token_ids", token_id);
  }
  Status prepare_mask() override { return ok_status(); }
  std::span<const uint32_t> mask() const override { return allowed_->mask; }
  bool may_end() const override { return allowed_->may_end; }
  bool must_end() const override { return false; }
  std::unique_ptr<ConstraintCursor> clone() const override { return std::make_unique<AllowedTokensCursor>(allowed_); }

 private:
  const std::shared_ptr<const Allowed> allowed_;
};

class AllowedTokensConstraint final : public TokenConstraint {
 public:
  explicit AllowedTokensConstraint(std::shared_ptr<const Allowed> allowed) : allowed_(std::move(allowed)) {}
  std::unique_ptr<ConstraintCursor> start() override { return std::make_unique<AllowedTokensCursor>(allowed_); }

 private:
  const std::shared_ptr<const Allowed> allowed_;
};

}  // namespace

std::shared_ptr<TokenConstraint> allow_tokens(std::span<const int32_t> token_ids,
                                              std::span<const int32_t> eos_token_ids, int vocab_size) {
  auto allowed = std::make_shared<Allowed>();
  allowed->mask.assign(static_cast<size_t>(mask_words_of(vocab_size)), 0);
  for (const int32_t id : token_ids) {
    const bool ends = std::ranges::find(eos_token_ids, id) != eos_token_ids.end();
    allowed->may_end |= ends;
    if (!ends) allowed->mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  return std::make_shared<AllowedTokensConstraint>(std::move(allowed));
}

}  // namespace spate
