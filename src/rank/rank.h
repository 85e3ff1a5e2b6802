// Rank: one device, its shard of the model, the state of the running sequences; runs StepPlans one after the other.
//
// Everything here is called by the rank's own thread (rank/rank_group.h). Ranks of a group run the same plans in the same
// order and meet in collectives; rank 0 samples and reports.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/ops.h"
#include "core/step_executor.h"
#include "model/model.h"
#include "parallel/communicator.h"
#include "rank/running_state.h"

namespace spate {

class Rank {
 public:
  // Makes the model's parts on `device`, without reading weights.
  static Result<std::unique_ptr<Rank>> create(std::unique_ptr<Device> device, std::unique_ptr<Communicator> communicator,
                                              const ModelConfig& config, const ModelOptions& options,
                                              const StepLimits& limits);

  Model& model() { return *model_; }
  Device& device() { return *device_; }
  const std::vector<std::string>& decomposed_ops() const { return bound_.decomposed; }
  // Of one block of every layer.
  int64_t kv_block_bytes() const;
  Status allocate_kv_cache(int64_t num_blocks);

  // Runs one step. On rank 0 fills `result`; other ranks pass nullptr.
  void run(std::span<const std::byte> plan, StepResult* result);

 private:
  // Where log-probabilities of up to `capacity` logits rows go, on the device and on the host.
  struct LogprobsBuffer {
    Buffer device;
    std::vector<std::byte> host;
    int capacity = 0;
    Tensor target_logprob, target_rank, top_ids, top_logprobs;  // device views, all rows
  };

  Rank() = default;
  Status allocate_arrays();
  void remember_row_updates(const StepPlanHeader& plan, const void* bytes);
  void run_on_device(const StepPlanHeader& plan, const void* plan_device, StepResult* result);
  void sample(const StepContext& ctx, const StepPlanHeader& plan, const StepInputs& inputs, StepResult* result);
  void compute_prompt_logprobs(const StepContext& ctx, const StepPlanHeader& plan, const void* bytes, StepResult& result);
  void compute_logprobs(const Tensor& logits, const Tensor& target_ids, std::span<const int32_t> num_top,
                        std::vector<TokenLogprobs>& out);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  BoundOps bound_;
  std::unique_ptr<Model> model_;
  StepLimits limits_;
  RunningState state_;
  Buffer kv_cache_;
  std::vector<KvView> kv_views_;  // [num_layers]
  Buffer plan_device_;            // grows to the largest plan seen
  Buffer arrays_;
  Tensor next_token_ids_;         // [max_num_seqs]
  Tensor arange_;                 // [max_num_batched_tokens + 1]: 0, 1, 2 ...
  LogprobsBuffer logprobs_;
  std::vector<RowUpdate> row_updates_;  // the last one of each row: what the host must know of it
  std::span<const std::byte> plan_host_;
};

}  // namespace spate
