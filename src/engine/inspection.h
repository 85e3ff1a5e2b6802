// EngineInspection: what the engine is doing, for people who watch it. Plain data, made on request between two steps.
#pragma once

#include <cstdint>
#include <vector>

#include "core/request.h"

namespace spate {

struct SequenceInspection {
  enum class Phase : uint8_t { kWaiting, kPrefill, kDecode };
  RequestId id = 0;
  int index = 0;  // of the n sequences of the request
  Phase phase = Phase::kWaiting;
  double age_seconds = 0;  // since its request came
  int prompt_len = 0;
  int num_cached_tokens = 0;    // of the prompt, found in the prefix cache
  int num_computed_tokens = 0;  // in the KV cache once the steps in flight have run
  int num_output_tokens = 0;
  int num_blocks = 0;
  int num_drafts = 0, num_drafts_accepted = 0;  // that ran in collected steps
};

// A step that was collected: its tokens by what they were for.
struct StepRecord {
  uint64_t step_id = 0;
  int num_seqs = 0;
  int num_prefill_tokens = 0;
  int num_decode_tokens = 0;  // drafts included
  int num_drafts = 0, num_drafts_accepted = 0;
  int num_cached_tokens = 0;  // that sequences which entered with it brought from the prefix cache: not computed
  int num_wasted_tokens = 0;  // of sequences that had ended before the step was collected
  double device_seconds = 0;  // 0: not known
};

constexpr int kMaxStepRecords = 300;
constexpr int kMaxInspectedWaiting = 200;

struct EngineInspection {
  static constexpr int32_t kFreeBlock = -1, kCachedBlock = -2;
  static constexpr int32_t kSharedBlock = -3;  // held by several sequences, or by a step in flight only

  std::vector<SequenceInspection> seqs;  // that run, then the first of those that wait
  int num_running = 0, num_waiting = 0;  // of all
  std::vector<StepRecord> steps;         // the last ones, oldest first
  std::vector<int32_t> block_owners;     // [num_kv_blocks]: an index in seqs or one of the constants
};

}  // namespace spate
