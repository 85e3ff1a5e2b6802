#pragma once

#include <cstdint>

#include "core/step_plan.h"

namespace spate::cuda {

// One of both in pinned memory of the host.
struct CopyWordsKernelParams {
  const uint32_t* from;
  uint32_t* to;
  int32_t num_words;
};

struct ApplyUpdatesKernelParams {
  const char* plan;  // the image on the device
  // The running state; strides in elements (bytes for sampling).
  int32_t* state_token_ids;
  int32_t* num_tokens;
  int32_t* num_computed_tokens;
  int32_t* block_table;
  char* sampling;
  int32_t* bias_ids;
  int32_t* bias_values;  // bits of floats
  int32_t* stop_ids;
  int64_t token_ids_stride;
  int64_t block_table_stride;
  int64_t sampling_stride;
  int64_t bias_ids_stride;
  int64_t bias_values_stride;
  int64_t stop_ids_stride;
};

// Counts are those of the launch; the plan has as many or fewer.
struct BeginStepKernelParams {
  const char* plan;
  // The running state.
  int32_t* state_token_ids;
  const int32_t* num_tokens_of_row;
  const int32_t* num_computed_tokens;
  const int32_t* block_table;
  int64_t token_ids_stride;
  int64_t block_table_stride;
  // The inputs of the step.
  int32_t* token_ids;
  int32_t* positions;
  int32_t* slot_mapping;
  int32_t* seq_rows;
  int32_t* cu_seqlens_q;
  int32_t* seq_lens;
  int32_t* sample_token_idxs;
  int32_t* sample_state_rows;
  int32_t* sample_offsets;
  int32_t* sample_masks;
  int32_t* sample_drafts;
  int32_t num_tokens;
  int32_t num_seqs;
  int32_t num_logits;
  int32_t kv_block_size;
};

struct FinishStepKernelParams {
  const char* plan;
  const int32_t* next_token_ids;
  int32_t* num_accepted;  // or null
  int32_t* token_ids;
  int32_t* num_tokens;
  int32_t* num_computed_tokens;
  int64_t token_ids_stride;
  int32_t max_model_len;
};

}  // namespace spate::cuda
