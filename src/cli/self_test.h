// SelfTest: tiny models with random weights, run by a device and by the oracle, and how far apart their predictions
// are. A wrong instruction set, a broken driver or a miscompiled kernel shows in seconds, without a model's files.
#pragma once

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/registry/registry.h"
#include "base/status.h"
#include "llm/offline.h"

namespace spate {

struct SelfTestCase {
  std::string_view model;         // "dense", "experts", "latent attention"
  std::string_view quantization;  // "none", "int8", "int4"
};
std::vector<SelfTestCase> self_test_cases();

struct SelfTestResult {
  double distance = 0;      // root mean square of the difference of log-probabilities, in nats
  double max_distance = 0;  // that passes: twice what roundings make; other weights would be 0.4 away
  int num_compared = 0;     // log-probabilities

  bool ok() const { return num_compared > 0 && distance <= max_distance; }  // false for NaN
};

class SelfTest {
 public:
  // Prompts and a few decode steps on `back_end` with bf16 activations, against the oracle in f32. Errors: the device
  // cannot be made or a step failed.
  Result<SelfTestResult> run(const SelfTestCase& one, const BackEnd& back_end, const DeviceOptions& device);

 private:
  using Answers = std::vector<std::vector<OfflineResult>>;
  std::map<std::pair<std::string_view, std::string_view>, Answers> expected_;  // by model and quantization
};

}  // namespace spate
