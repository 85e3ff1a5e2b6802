// StepInFlight: the host's side of a step between its launch and its result: the plan on its way down, the outputs on
// their way up, both in pinned memory, and what the result is to hold.
//
// Filled by the rank's thread while it launches the step; read by the thread that collects, once `done` is reached.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/step_executor.h"
#include "rank/running_state.h"

namespace spate {

class StepInFlight {
 public:
  // max_top_logprobs: kMaxLogprobs, or the size of a smaller vocabulary.
  static Result<StepInFlight> create(Device& device, const StepLimits& limits, int max_top_logprobs);

  // Copies the plan to pinned memory and notes what its result will hold. `rows` has the last update of each row, this
  // plan's included. The step before it in this memory is done.
  void take_plan(Device& device, std::span<const std::byte> plan, std::span<const RowUpdate> rows);
  const StepPlanHeader& header() const { return *static_cast<const StepPlanHeader*>(plan_.data()); }
  const void* plan() const { return plan_.data(); }
  // The place of late masks, behind the plan.
  std::span<uint32_t> late_masks() {
    auto* const masks = reinterpret_cast<uint32_t*>(static_cast<char*>(plan_.data()) + header().masks_offset);
    return {masks, static_cast<size_t>(late_mask_bytes(header()) / sizeof(uint32_t))};
  }
  std::span<const SeqStep> seqs() const;
  bool has_drafts() const { return header().num_logits > header().num_sampled; }
  bool has_relaxed() const { return has_relaxed_; }  // drafts that relaxed acceptance may keep

  // The largest number of top log-probabilities that a sampled sequence asks for; -1: none wants log-probabilities.
  int num_top_logprobs() const { return num_top_logprobs_; }
  // A sequence whose prompt's log-probabilities are wanted.
  struct PromptLogprobs {
    int seq_idx = 0;      // in the plan
    int first_token = 0;  // its first query token, in the step's tokens
    int count = 0;        // query tokens that a prompt token follows
    int num_top = 0;
  };
  std::span<const PromptLogprobs> prompts() const { return prompts_; }
  // More log-probabilities than the device finds: the host makes them of whole rows of logits.
  bool is_wide(int num_top) const { return num_top > kMaxLogprobs; }
  // Rows of logits of a sampled sequence that asks for so many.
  struct WideRows {
    int first_row = 0;
    int count = 0;
    int num_top = 0;
  };
  std::span<const WideRows> wide_rows() const { return wide_rows_; }
  // A sequence whose hidden states are wanted: the sum of those of `count` tokens of the step.
  struct Pooled {
    int first_token = 0;
    int count = 0;
  };
  std::span<const Pooled> pooled() const { return pooled_; }
  // Room for so many rows in pooled_rows. The step before it in this memory is done.
  void reserve_pooled_rows(Device& device, int64_t num_rows, DType dtype, int64_t hidden_size);

  // Fills all but device_seconds.
  void read_result(StepResult& result) const;

  std::unique_ptr<Event> started, done;
  StepOutputArrays outputs;  // on the host
  Tensor pooled_rows;        // [rows of pooled(), hidden_size] act, on the host; reserve_pooled_rows()
  std::vector<TokenLogprobs> wide_logprobs;         // of wide_rows(), one behind the other
  std::vector<TokenLogprobs> wide_prompt_logprobs;  // of those prompts() that are wide
  Tensor prompt_target_ids;  // [max_num_batched_tokens] i32, on the host: of prompts(), one behind the other

 private:
  void note_sampled(std::span<const RowUpdate> rows);
  void note_prompts(std::span<const RowUpdate> rows);
  void note_pooled();
  void read_pooled(StepResult& result) const;
  void read_sampled(StepResult& result) const;
  TokenLogprobs logprobs_of(int64_t output_row, int32_t token_id, int num_top) const;

  Buffer plan_;
  Buffer storage_;
  Buffer pooled_storage_;  // none before the first step that pools
  std::vector<Pooled> pooled_;
  std::vector<int> sampled_num_top_;  // of each sampled sequence: -1 none wanted
  std::vector<PromptLogprobs> prompts_;
  std::vector<WideRows> wide_rows_;
  int max_top_logprobs_ = 0;
  int num_top_logprobs_ = -1;
  bool has_relaxed_ = false;
};

}  // namespace spate
