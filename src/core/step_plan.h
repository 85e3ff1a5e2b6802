// StepPlan: everything a rank needs to run one step, as one flat, relocatable, versioned byte image.
//
// In one process it is passed by pointer; to another process or a device the same bytes are copied. All offsets are in bytes
// from the start of the image, all arrays are 8-byte aligned. The host decides what runs; the device holds the running state
// (RowState in backend/ops.h): the plan carries only differences to it. batch/ builds it, rank/ runs it.
//
//   StepPlanHeader | RowUpdate[num_row_updates] | BlockUpdate[num_block_updates] | BlockCopy[num_block_copies]
//                  | SeqStep[num_seqs] | int32 data: prompt tokens, block ids, bias ids, bias values (float bits), stop ids
#pragma once

#include <cstdint>

namespace spate {

constexpr uint32_t kStepPlanMagic = 0x4e4c5053;  // "SPLN"
constexpr uint32_t kStepPlanVersion = 1;
constexpr int kMaxLogitBias = 1024;  // entries of logit_bias a request may have
constexpr int kMaxStopIds = 64;      // eos and stop_token_ids together
constexpr int kMaxLogprobs = 20;     // top_logprobs a request may ask for

struct StepPlanHeader {
  uint32_t magic = kStepPlanMagic;
  uint32_t version = kStepPlanVersion;
  uint64_t step_id = 0;      // 1, 2, 3 ...
  uint32_t total_bytes = 0;
  int32_t num_row_updates = 0;
  int32_t num_block_updates = 0;
  int32_t num_block_copies = 0;
  int32_t num_seqs = 0;            // sequences that run in this step
  int32_t num_tokens = 0;          // sum of their query_len
  int32_t num_sampled = 0;         // how many have kSample
  int32_t num_prompt_logprobs = 0;  // how many have kPromptLogprobs
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;
  uint32_t row_updates_offset = 0;
  uint32_t block_updates_offset = 0;
  uint32_t block_copies_offset = 0;
  uint32_t seqs_offset = 0;
  uint32_t data_offset = 0;        // the int32 data
  uint32_t num_data = 0;           // int32 values in it
};

// Sampling parameters of a row as the device sees them.
struct RowSampling {
  uint64_t seed = 0;
  float temperature = 0;         // 0 = greedy
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t sampling_top_k = 0;    // 0 = all
  int32_t prompt_len = 0;        // tokens before this index are prompt: frequency and presence penalties skip them
  int32_t min_tokens_until = 0;  // stop_ids are masked while num_tokens is below this
  int32_t num_bias = 0;
  int32_t num_stop_ids = 0;
  int32_t num_logprobs = -1;     // -1 none; else so many top ones beside the sampled one's
};

// A sequence enters a row (new, resumed after preemption, forked). Its tokens are data[tokens_begin .. + num_tokens).
// Afterwards num_tokens[row] and num_computed_tokens[row] are as given; the block table comes as BlockUpdates.
struct RowUpdate {
  int32_t row = 0;
  int32_t num_tokens = 0;
  int32_t num_computed_tokens = 0;
  uint32_t tokens_begin = 0;       // index into data
  uint32_t bias_ids_begin = 0;
  uint32_t bias_values_begin = 0;  // float bits
  uint32_t stop_ids_begin = 0;
  int32_t num_prompt_logprobs = -1;  // with kPromptLogprobs: so many top ones beside the prompt token's; -1 none
  RowSampling sampling;
};

// block_table[row, first_block_idx .. + num_blocks) = data[blocks_begin .. + num_blocks)
struct BlockUpdate {
  int32_t row = 0;
  int32_t first_block_idx = 0;
  int32_t num_blocks = 0;
  uint32_t blocks_begin = 0;
};

struct BlockCopy {
  int32_t src_block_id = 0;
  int32_t dst_block_id = 0;
};

enum SeqStepFlags : uint32_t {
  kSample = 1,          // the last query token's logits are sampled
  kPromptLogprobs = 2,  // log-probabilities of the prompt tokens that follow the query tokens are wanted
};

struct SeqStep {
  int32_t row = 0;
  int32_t query_len = 0;
  uint32_t flags = 0;
  int32_t num_computed_tokens = 0;  // what the host believes; equals the device's value
};

static_assert(sizeof(StepPlanHeader) == 80 && sizeof(RowSampling) == 56 && sizeof(RowUpdate) == 88 &&
              sizeof(BlockUpdate) == 16 && sizeof(BlockCopy) == 8 && sizeof(SeqStep) == 16);

// Typed access to an image (host or device code of a back-end).
template <typename T>
const T* plan_array(const void* plan, uint32_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(plan) + offset);
}

}  // namespace spate
