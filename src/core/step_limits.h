// StepLimits: the largest step that a server runs. It fixes the sizes of plans, of the device's state and of workspaces,
// and is declared here alone: configs hold one and pass it on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/step_plan.h"

namespace spate {

struct StepLimits {
  int max_model_len = 0;              // tokens of prompt and output together, of one sequence; in a config 0 may mean: choose
  int max_num_seqs = 128;             // sequences that run at once: rows of device state
  int max_num_batched_tokens = 2048;  // tokens of one step
  int max_num_logits = 64;            // rows of logits computed at once: 64 x 151,936 x 4 bytes = 37 MiB
  int kv_block_size = 16;             // --block-size: tokens in a KV block

  int max_blocks_per_seq() const { return (max_model_len + kv_block_size - 1) / kv_block_size; }
  // Rows of logits that are sampled in one step: each sequence's, and its drafts'.
  int max_sampled_rows() const { return std::min(max_num_seqs * (1 + kMaxDrafts), max_num_batched_tokens); }
  // Tokens that may need log-probabilities in one step.
  int64_t max_logprobs_rows() const { return int64_t{max_sampled_rows()} + max_num_batched_tokens; }
};

}  // namespace spate
