#pragma once

#include <cstdint>

#include "core/step_plan.h"

namespace spate::cuda {

constexpr int kSampleThreads = 512;
constexpr int kSampleMaxVocab = 1 << 24;  // ids fit into 24 bits of a sort key

struct SampleKernelParams {
  const float* logits;         // [num_logits, vocab_size]
  const int32_t* sample_state_rows;  // [num_logits]
  const int32_t* sample_offsets;  // [num_logits] or null
  const int32_t* sample_masks;    // [num_logits] or null
  const char* plan;               // that has the masks
  float* adjusted;             // [num_logits, vocab_size] scratch
  int32_t* next_token_ids;     // [num_logits]
  // The running state; strides in elements (bytes for sampling).
  const int32_t* token_ids;
  const int32_t* num_tokens;
  const char* sampling;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* stop_ids;
  int64_t logits_stride;
  int64_t token_ids_stride;
  int64_t sampling_stride;
  int64_t bias_ids_stride;
  int64_t bias_values_stride;
  int64_t stop_ids_stride;
  int32_t vocab_size;
};

struct LogprobsKernelParams {
  const float* logits;        // [num_logits, vocab_size]
  const int32_t* target_ids;  // [num_logits]
  float* target_logprob;
  int32_t* target_rank;
  int32_t* top_ids;  // [num_logits, num_top] or null
  float* top_logprobs;
  int64_t logits_stride;
  int64_t top_ids_stride;
  int64_t top_logprobs_stride;
  int32_t vocab_size;
  int32_t num_top;
};

}  // namespace spate::cuda
