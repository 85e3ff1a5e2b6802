// RankGroup: all ranks of this process, a thread each, behind StepExecutor.
//
// Each data-parallel index runs plans of its own. All run their n-th step together, because layers may exchange rows across
// them: an index without work gets an empty plan. As a StepExecutor (one engine) there is one index.
//
// Made and used by one thread (the engine's); every rank's device, model and state are made and used by its own thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/registry/registry.h"
#include "core/place.h"
#include "core/step_executor.h"
#include "rank/memory_plan.h"
#include "rank/rank.h"
#include "weights/eagle_config.h"
#include "weights/model_config.h"
#include "weights/weight_cache.h"
#include "weights/weight_source.h"

namespace spate {

// A model that drafts for another, beside it on the same devices.
struct DraftModelConfig {
  ModelConfig model;
  const WeightSource* weights = nullptr;  // nullptr: seeded random weights
  int scratch_blocks_per_row = 1;         // blocks of its cache alone, behind those that it shares with the target
};

// The model's own layers for multi-token prediction draft (rank/mtp_drafter.h).
struct MtpDraftConfig {
  int num_layers = 1;              // the first ones of those that it has
  int scratch_blocks_per_row = 1;  // as in DraftModelConfig
};

// An EAGLE head drafts (rank/eagle_drafter.h).
struct EagleDraftConfig {
  EagleConfig head;
  const WeightSource* weights = nullptr;  // as in DraftModelConfig
  int scratch_blocks_per_row = 1;         // likewise
};

struct RankGroupConfig {
  ModelConfig model;
  const WeightSource* weights = nullptr;  // nullptr: seeded random weights (--load-format dummy)
  uint64_t dummy_seed = 0;
  const BackEnd* back_end = nullptr;
  DeviceOptions device;                   // device_idx is the first rank's; num_threads is of all ranks together
  bool pin_threads = false;               // CPU: bind every compute thread to a core of its own, if there are so many
  int tensor_parallel_size = 1;
  int data_parallel_size = 1;             // copies of the model, each with plans, KV cache and rows of its own
  double collective_time_limit_s = 60;    // how long a rank waits for another before the step fails
  DType act_dtype = DType::kBf16;
  DType kv_dtype = DType::kBf16;
  Quantization quantization;
  WeightCacheOptions weight_cache;
  StepLimits limits;                      // max_model_len 0 = the largest that fits, at most the model's
  int64_t kv_cache_bytes = 0;             // of all ranks together; 0 = computed
  int64_t max_kv_cache_bytes = 0;         // of all ranks together, where it is computed; 0 = no such limit
  double memory_fraction = 0.9;
  std::optional<DraftModelConfig> draft;  // one of these at most
  std::optional<MtpDraftConfig> mtp_draft;
  std::optional<EagleDraftConfig> eagle_draft;
};

class RankGroup final : public StepExecutor {
 public:
  // Makes the devices, computes the memory plan, reads the weights, allocates the KV cache.
  // `progress` is called by rank 0's thread with bytes of its shard.
  static Result<std::unique_ptr<RankGroup>> create(const RankGroupConfig& config, const LoadProgress& progress = {});
  ~RankGroup() override;

  const MemoryPlan& memory_plan() const { return memory_plan_; }
  // Lines for the start-up summary: device, weights, KV, decomposed ops.
  const std::vector<std::string>& summary() const { return summary_; }
  const std::string& device_description() const { return device_description_; }
  int64_t weight_bytes() const { return weight_bytes_; }  // of all ranks, without a draft model's
  // Runs what drafts between this executor's steps, a LayeredExecutor; null where nothing does.
  StepExecutor* draft_executor() const { return draft_executor_.get(); }

  void submit(std::span<const std::byte> plan) override;
  void supply_masks(std::span<const uint32_t> masks) override;
  Status collect(StepResult& result) override;
  // The same with a plan and a result for each data-parallel index.
  void submit(std::span<const std::span<const std::byte>> plans);
  void supply_masks(int dp_rank, std::span<const uint32_t> masks);
  Status collect(std::span<StepResult> results);
  int num_in_flight() const override { return static_cast<int>(num_submitted_ - num_collected_); }

 private:
  class Worker;
  class DraftExecutor;
  static constexpr int kMaxInFlight = Rank::kMaxInFlight;
  struct Slot;

  RankGroup();
  std::vector<std::unique_ptr<Worker>> workers_;  // by rank
  ParallelSizes sizes_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::unique_ptr<StepExecutor> draft_executor_;
  MemoryPlan memory_plan_;
  std::vector<std::string> summary_;
  std::string device_description_;
  int64_t weight_bytes_ = 0;
  uint64_t num_submitted_ = 0, num_collected_ = 0;
};

}  // namespace spate
