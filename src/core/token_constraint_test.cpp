#include "core/token_constraint.h"

#include <doctest/doctest.h>

#include <vector>

namespace spate {
namespace {

class CountingConstraint final : public TokenConstraint {
 public:
  explicit CountingConstraint(int64_t work_left) : work_left_(work_left) {}
  std::unique_ptr<ConstraintCursor> start() override { return nullptr; }
  bool work_ahead(int64_t max_work) override {
    work_left_ -= max_work;
    if (max_work > 0) asked.push_back(max_work);
    return work_left_ > 0;
  }
  std::vector<int64_t> asked;

 private:
  int64_t work_left_;
};

TEST_CASE("constraints work ahead by turns, until each is done or gone") {
  ConstraintsAhead ahead;
  ahead.work_beside(1);  // none
  const auto some = std::make_shared<CountingConstraint>(5000), more = std::make_shared<CountingConstraint>(1'000'000),
             nothing = std::make_shared<CountingConstraint>(0);
  auto gone = std::make_shared<CountingConstraint>(5000);
  for (const std::shared_ptr<CountingConstraint>& each : {some, more, nothing, gone, some}) ahead.add(each);
  ahead.add(nullptr);
  gone.reset();
  for (int i = 0; i < 12; ++i) ahead.work_beside(1.44e-3);  // a 16th is 90 us, 3,000 units
  CHECK(some->asked == std::vector<int64_t>{3000, 3000});
  CHECK(more->asked.size() >= 8);
  CHECK(nothing->asked.empty());
  ahead.work_beside(100);
  CHECK(more->asked.back() == 20'000);
}

}  // namespace
}  // namespace spate
