#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/host_device.h"
#include "core/step_plan.h"

namespace spate::cuda {

constexpr int kSampleThreads = 512;
constexpr int kSampleMaxVocab = 1 << 24;  // ids fit into 24 bits of a sort key
constexpr int kSampleClusterCtas = 8;     // that share a row
// Bytes of shared memory for a CTA's slice of a row; the first that suffices is taken. The largest one is more than
// devices without clusters have.
constexpr int kSampleSliceSmall = 64 * 1024, kSampleSliceMedium = 80 * 1024, kSampleSliceLarge = 176 * 1024;
constexpr int kMaxTopOfCta = 32;  // top tokens that logprobs finds in a CTA's slice

// Tokens of a CTA's slice, so that slices start at multiples of 16 bytes of a row.
SPATE_HOST_DEVICE constexpr int slice_length(int vocab_size, int num_ctas) {
  return ((vocab_size + num_ctas - 1) / num_ctas + 3) / 4 * 4;
}

struct SampleKernelParams {
  const float* logits;               // [num_logits, vocab_size]
  const int32_t* sample_state_rows;  // [num_logits]
  const int32_t* sample_offsets;     // [num_logits] or null
  const int32_t* sample_masks;       // [num_logits] or null
  const int32_t* sample_drafts;      // [num_logits] or null
  const char* plan;                  // that has the masks
  float* values;                     // [num_logits, values_stride] scratch of kernels without a slice in shared memory
  int32_t* next_token_ids;           // [num_logits]
  int32_t* is_relaxed;               // [num_logits] or null
  // The running state; strides in elements (bytes for sampling).
  const int32_t* token_ids;
  const int32_t* num_tokens;
  const char* sampling;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* stop_ids;
  int64_t logits_stride;
  int64_t values_stride;
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
  float* values;  // as of sample
  int64_t logits_stride;
  int64_t values_stride;
  int64_t top_ids_stride;
  int64_t top_logprobs_stride;
  int32_t vocab_size;
  int32_t num_top;
};

}  // namespace spate::cuda
