#include "core/token_constraint.h"

#include <algorithm>

namespace spate {
namespace {

constexpr double kShareOfStep = 1.0 / 16, kMaxSeconds = 600e-6, kSecondsPerUnit = 30e-9;

}  // namespace

void ConstraintsAhead::add(const std::shared_ptr<TokenConstraint>& constraint) {
  if (constraint == nullptr || !constraint->work_ahead(0)) return;
  const bool is_known = std::ranges::any_of(constraints_, [&](const std::weak_ptr<TokenConstraint>& known) {
    return !known.owner_before(constraint) && !constraint.owner_before(known);
  });
  if (!is_known) constraints_.push_back(constraint);
}

void ConstraintsAhead::work_beside(double device_seconds) {
  if (constraints_.empty()) return;
  const double seconds = std::min(device_seconds * kShareOfStep, kMaxSeconds);
  const std::shared_ptr<TokenConstraint> constraint = constraints_.front().lock();
  constraints_.pop_front();
  if (constraint != nullptr && constraint->work_ahead(static_cast<int64_t>(seconds / kSecondsPerUnit))) {
    constraints_.push_back(constraint);
  }
}

}  // namespace spate
