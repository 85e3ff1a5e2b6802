// Rank: one device, its shard of the model, the state of the running sequences; runs StepPlans one behind the other.
//
// Everything here is called by the rank's own thread (rank/rank_group.h) but finish(), which the collecting thread
// calls for a step whose launch() has returned. Ranks of a group run the same plans in the same order and meet in
// collectives; rank 0 samples and reports.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/kv_storage.h"
#include "backend/ops.h"
#include "core/step_executor.h"
#include "model/model.h"
#include "parallel/communicators.h"
#include "rank/running_state.h"
#include "rank/step_in_flight.h"

namespace spate {

// Runs inside the steps of a rank.
class StepFollower {
 public:
  virtual ~StepFollower() = default;
  // False: hidden_states may be of the sampled tokens alone.
  virtual bool needs_all_tokens() const { return false; }
  // Behind the model's forward pass. Puts on ctx.stream what it keeps of the step; like the pass itself it may be replayed for
  // another step of the same StepKey. hidden_states: what Model::forward gave.
  virtual void follow(const StepContext& /*ctx*/, const Tensor& /*hidden_states*/) {}
  // Before the step, where blocks of the cache are copied: src_dst is that of KvCopyBlocksParams. Never replayed.
  virtual void copy_blocks(Stream& /*stream*/, const OpTable& /*ops*/, const Tensor& /*src_dst*/) {}
};

// Of a step of a layer that drafts (LayeredExecutor).
struct DraftStep {
  int layer_idx = 0;
  bool needs_all_tokens = false;  // the next layer reads the hidden states
};

class Rank {
 public:
  static constexpr int kMaxInFlight = 2;  // steps launched and not finished

  // Makes the model's parts on `device`, without reading weights. Ranks that share a device are told apart by rank_of_device
  // (0, 1 ...): a step of one is never replayed for another.
  static Result<std::unique_ptr<Rank>> create(std::shared_ptr<Device> device,
                                              Communicators communicators, const ModelConfig& config,
                                              const ModelOptions& options, const StepLimits& limits, int rank_of_device = 0);
  // Runs `model`, which belongs to somebody else, beside another rank: on its device and stream. So neither's steps overlap
  // the other's, and they may share memory.
  static Result<std::unique_ptr<Rank>> create_beside(const Rank& other, StepModel& model, Communicators communicators,
                                                     int rank_of_device);
  ~Rank();

  Model& model() { return *whole_model_; }  // not of create_beside()
  Device& device() { return *device_; }
  const std::vector<std::string>& decomposed_ops() const { return bound_.decomposed; }
  // Of one block of every layer.
  int64_t kv_block_bytes() const { return spate::kv_block_bytes(*device_, model_->kv_layers()); }
  Status allocate_kv_cache(int64_t num_blocks);
  // Outlives the rank. Before the first step.
  void set_follower(StepFollower* follower) { follower_ = follower; }

  // Waits for the late masks of a step; none where they will not come, and what the step samples is of no use.
  using WaitForMasks = std::function<std::span<const uint32_t>()>;
  // Gives a step to the device. Does not wait for it, nor for the step before it. `plan` is copied. wait_for_masks: of
  // a plan with late masks on the rank that samples; called when the forward pass has been given to the device.
  void launch(std::span<const std::byte> plan, const DraftStep& draft_step = {},
              const WaitForMasks& wait_for_masks = {});
  // Waits for the oldest step that was launched and not finished. Rank 0 only. An error of the communicator is final.
  Status finish(StepResult& result);

 private:
  Rank() = default;
  Status allocate();
  int max_top_logprobs() const;  // kMaxLogprobs, or the size of a smaller vocabulary
  StepKey step_key(const StepInFlight& step) const;
  StepBatch batch(const StepKey& key) const;
  RowState read_rows() const;  // the state as begin_step reads it

  // The parts of a step. What depends on more than the key is outside forward() and sample_and_finish().
  void copy_plan(std::span<const std::byte> plan, StepInFlight& step);
  void apply(const StepInFlight& step);
  void run_step(StepKey key, StepInFlight& step, const WaitForMasks& wait_for_masks);
  void copy_late_masks(StepInFlight& step, std::span<const uint32_t> masks);
  Tensor forward(const StepKey& key);
  void sample_and_finish(const StepKey& key, const Tensor& hidden_states);
  void sample(const StepContext& ctx, const Tensor& hidden_states, const StepKey& key);
  void read(const StepKey& key, StepInFlight& step);
  void read_prompt_logprobs(const StepContext& ctx, StepInFlight& step);
  void read_wide_logprobs(const StepContext& ctx, const StepKey& key, StepInFlight& step);
  void wait_for_logprobs(const Tensor& logits, const Tensor& target_ids, int num_top, std::vector<TokenLogprobs>& out);
  void read_hidden_states(const StepContext& ctx, StepInFlight& step);
  void compute_logprobs(const Tensor& logits, const Tensor& target_ids, int64_t first_output_row, int num_top);
  void copy_logprobs(StepInFlight& step, int64_t first_row, int64_t num_rows, bool with_top);
  void copy_rows(const Tensor& host, const Tensor& device, int64_t first_row, int64_t num_rows);

  std::shared_ptr<Device> device_;
  std::shared_ptr<Stream> stream_;
  std::unique_ptr<Stream> mask_stream_;  // late masks come on it
  std::unique_ptr<Event> masks_copied_;  // the last ones
  Communicators communicators_;
  Communicator* communicator_ = nullptr;  // communicators_.tp
  BoundOps bound_;
  std::unique_ptr<Model> whole_model_;
  StepModel* model_ = nullptr;  // whole_model_, or somebody else's
  StepFollower* follower_ = nullptr;
  StepLimits limits_;
  int min_expanded_query_len_ = 0;  // of the model on the device; 0: no long prompts
  RunningState state_;
  KvStorage kv_cache_;  // a view a layer
  Buffer plan_device_;  // one for all steps, so that a replayed step finds its plan; grows to the largest seen
  int plan_generation_ = 0;
  DraftStep draft_step_;  // the one that is launched
  Buffer wide_logits_;  // on the host, for wait_for_logprobs(); none before the first step that needs it
  std::vector<RowUpdate> row_updates_;  // the last one of each row: what the host must know of it
  std::array<StepInFlight, kMaxInFlight> steps_;
  uint64_t num_launched_ = 0;  // the rank's thread's
  uint64_t num_finished_ = 0;  // the collecting thread's
};

}  // namespace spate
