// BeamSearchParams: how a beam search runs and when it ends. Names and meanings are vLLM's.
#pragma once

#include <cstdint>

namespace spate {

enum class EarlyStopping : uint8_t {
  kNever,      // when nothing better can come
  kHeuristic,  // when nothing better comes from answers as long as now
  kAtOnce,     // when there are as many complete answers as beams
};

struct BeamSearchParams {
  int width = 0;  // 0: no beam search
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNever;
};

}  // namespace spate
