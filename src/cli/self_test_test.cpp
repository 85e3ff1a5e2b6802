// self_test_test.cpp
//
// Goal     spate self-test passes where a device computes what the oracle does, and fails where it does not.
// Method   The host back-end, each kind of model once; results that must not pass; a device that does not exist.
#include "cli/self_test.h"

#include <cmath>

#include "base/test.h"

namespace spate {
namespace {

TEST_CASE("self-test: the host back-end computes what the oracle computes") {
  SelfTest test;
  for (const SelfTestCase& one : {SelfTestCase{"dense", "none"}, {"experts", "int4"}, {"latent attention", "int8"}}) {
    CAPTURE(one.model);
    const auto result = test.run(one, host_back_end(), {.num_threads = 2});
    REQUIRE_MESSAGE(result.ok(), result.status().to_string());
    CHECK(result->ok());
    CHECK(result->num_compared > 200);
    CHECK(result->distance > 1e-6);  // bf16 is not f32: something was computed twice
  }
}

TEST_CASE("self-test: numbers that are far off, no numbers, or none compared do not pass") {
  CHECK_FALSE(SelfTestResult{.distance = 0.4, .max_distance = 0.02, .num_compared = 200}.ok());
  CHECK_FALSE(SelfTestResult{.distance = std::nan(""), .max_distance = 0.02, .num_compared = 200}.ok());
  CHECK_FALSE(SelfTestResult{.distance = 0, .max_distance = 0.02, .num_compared = 0}.ok());
  SelfTest test;
  CHECK_FALSE(test.run({"dense", "none"}, host_back_end(), {.num_threads = 1, .isa = "none such"}).ok());
}

}  // namespace
}  // namespace spate
