// MockScript: what --device mock answers, how long it takes and when it breaks. docs/mock.md describes the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spate {

constexpr const char* kMockDevice = "mock";  // as --device takes it

struct MockAnswer {
  std::string when;              // a part of the prompt's text; empty: every prompt
  std::string text;              // said again and again where nothing ends the answer
  bool echoes = false;           // says the prompt instead
  bool ends_nonfinite = false;   // where the answer would end, the logits are not finite
};

struct MockFault {
  enum class Kind : uint8_t {
    kFail,       // the step and all after it fail, as if the device were lost
    kNonfinite,  // the logits of the step's first row are not finite
    kHang,       // the step ends `seconds` late; it fails where that is longer than the time limit
  };
  uint64_t step = 0;  // 1, 2, 3 ...
  Kind kind = Kind::kFail;
  double seconds = 0;
};

struct MockScript {
  std::vector<MockAnswer> answers;  // the first that fits the prompt is taken; none: the prompt is echoed
  double load_seconds = 0;          // before the server is ready
  double step_seconds = 0;          // of every step
  double token_seconds = 0;         // and of every token in it, prompt tokens too
  std::vector<MockFault> faults;
};

}  // namespace spate
