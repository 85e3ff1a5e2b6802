// Goal    The script of --device mock is read as docs/mock.md says; its errors name the key.
#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments_test_support.h"
#include "cli/llm_arguments.h"
#include "cli/mock_argument.h"

namespace spate {

TEST_CASE("arguments: the script of --device mock") {
  const TempDir dir;
  const auto read = [&](const std::string& text) { return read_mock_script(write_file(dir, "mock.yaml", text)); };
  const auto script = read("load_ms: 5\nstep_ms: 2.5\nanswers:\n  - when: sun\n    text: warm\n  - ends: nonfinite\n"
                           "faults: [{step: 7, kind: hang, ms: 40}]\n");
  REQUIRE_MESSAGE(script.ok(), script.status().message());
  CHECK(script->load_seconds == 0.005);
  CHECK(script->step_seconds == 0.0025);
  REQUIRE(script->answers.size() == 2);
  CHECK(script->answers[0].when == "sun");
  CHECK(script->answers[0].text == "warm");
  CHECK(script->answers[1].echoes);
  CHECK(script->answers[1].ends_nonfinite);
  REQUIRE(script->faults.size() == 1);
  CHECK(script->faults[0].kind == MockFault::Kind::kHang);
  CHECK(script->faults[0].seconds == 0.04);
  CHECK(read(R"({"answers": [{"text": "JSON"}]})")->answers[0].text == "JSON");
  const auto has_error = [&](const std::string& text, const std::string& expected) {
    const std::string message = read(text).status().message();
    INFO(message);
    CHECK(message.find(expected) != std::string::npos);
  };
  has_error("step_ms: 1\nspeed: 2\n", "mock.yaml:2: the script has no field 'speed'; there are answers, faults, load_ms");
  has_error("step_ms: -1\n", "mock.yaml:1: step_ms: must be a number from 0 to 3.6e+06, got -1");
  has_error("step_ms: .nan\n", "step_ms: must be a number");
  has_error("step_ms: 1\nstep_ms: 2\n", "'step_ms' comes twice");
  has_error("answers:\n  - text: [1]\n", "text: must be a text");
  has_error("answers:\n  - ends: soon\n", "must be eos or nonfinite, got soon");
  has_error("faults:\n  - step: 0\n", "whole number from 1 on");
  has_error("faults:\n  - {step: 1, kind: burn}\n", "must be fail, nonfinite or hang, got burn");
  has_error("faults:\n  - {step: 1, kind: hang}\n", "kind hang needs ms");
  has_error("[", "mock.yaml:");
  CHECK(read_mock_script("/no/such/file").status().message().find("cannot be read") != std::string::npos);
  CHECK(llm_config({.model = "m", .mock_script = "x"}).status().message().find("needs --device mock") != std::string::npos);
}

}  // namespace spate
