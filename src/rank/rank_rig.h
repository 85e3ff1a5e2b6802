// For tests: requests through a whole engine over real ranks, and weights with a NaN in them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "backend/registry/registry.h"
#include "backend/test_device/recording_device.h"
#include "core/engine_config.h"
#include "core/request.h"
#include "rank/rank_group.h"

namespace spate {

struct RankRig {
  std::filesystem::path model_dir;
  const WeightSource* weights = nullptr;
  const BackEnd* back_end = nullptr;
  DType dtype = DType::kF32;
  // max_num_logits is smaller than a step's samples, so that logits come in pieces.
  EngineConfig engine{
      .limits = {.max_model_len = 64, .max_num_seqs = 8, .max_num_batched_tokens = 64, .max_num_logits = 5},
      .num_kv_blocks = 64};
  int tensor_parallel_size = 1;
};

struct RankAnswer {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<float> hidden_state;
  FinishReason finish_reason = FinishReason::kNone;
  Status error;
};

struct RankRun {
  std::vector<std::vector<RankAnswer>> answers;  // [request][index]
  // Of EngineStats.
  uint64_t num_nonfinite_rows = 0;
  uint64_t num_drafts = 0;
  uint64_t num_drafts_accepted = 0;
  std::vector<uint64_t> num_accepted_at;  // by place among a row's drafts
  uint64_t num_preemptions = 0;
  uint64_t prefix_cache_hits = 0;
  uint64_t num_steps = 0;
};

// Runs all requests to their end; ids and sinks are set here.
RankRun run_requests(const RankRig& rig, std::vector<Request> requests);

// The oracle behind a RecordingDevice. One at a time: the options of the latest hold.
BackEnd recorded_back_end(RecordingOptions options);

// The weights of another source, with a NaN in place of the first element of a row of one tensor.
class SpoiledWeights final : public WeightSource {
 public:
  SpoiledWeights(const WeightSource& inner, std::string tensor_name, int64_t row)
      : inner_(inner), tensor_name_(std::move(tensor_name)), row_(row) {}
  const std::vector<TensorEntry>& entries() const override { return inner_.entries(); }
  const TensorEntry* find(std::string_view name) const override { return inner_.find(name); }
  const std::string& file_name(int file_idx) const override { return inner_.file_name(file_idx); }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const override;
  void release(const TensorEntry& entry, int64_t begin, int64_t end) const override {
    inner_.release(entry, begin, end);
  }

 private:
  const WeightSource& inner_;
  const std::string tensor_name_;
  const int64_t row_;
};

}  // namespace spate
