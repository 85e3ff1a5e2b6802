// What rank_rig.h declares; a file of tests because it uses the engine.
#include "rank/rank_rig.h"

#include <cstring>
#include <utility>

#include "engine/engine.h"
#include "rank/mtp_drafter.h"

namespace spate {
namespace {

class AnswerSink final : public OutputSink {
 public:
  explicit AnswerSink(RankRun& run) : run_(run) {}
  void push(std::vector<Output> outputs) override {
    for (Output& output : outputs) {
      RankAnswer& answer = run_.answers.at(output.request_id).at(static_cast<size_t>(output.index));
      CHECK(answer.finish_reason == FinishReason::kNone, "an output after the last one");
      answer.token_ids.insert(answer.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
      for (TokenLogprobs& entry : output.logprobs) answer.logprobs.push_back(std::move(entry));
      for (TokenLogprobs& entry : output.prompt_logprobs) answer.prompt_logprobs.push_back(std::move(entry));
      if (!output.hidden_state.empty()) answer.hidden_state = std::move(output.hidden_state);
      answer.finish_reason = output.finish_reason;
      answer.error = output.error;
    }
  }

 private:
  RankRun& run_;
};

RecordingOptions recording;

Result<std::unique_ptr<Device>> make_recorded_device(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, oracle_back_end().make_device(options));
  return make_recording_device(std::move(device), recording);
}

}  // namespace

BackEnd recorded_back_end(RecordingOptions options) {
  recording = std::move(options);
  BackEnd back_end = oracle_back_end();
  back_end.make_device = make_recorded_device;
  return back_end;
}

RankRun run_requests(const RankRig& rig, std::vector<Request> requests) {
  RankGroupConfig config;
  config.model = load_model_config(rig.model_dir).value();
  config.weights = rig.weights;
  config.back_end = rig.back_end;
  config.device.deterministic = true;
  config.tensor_parallel_size = rig.tensor_parallel_size;
  config.act_dtype = rig.dtype;
  config.kv_dtype = rig.dtype;
  config.limits = rig.engine.limits;
  config.kv_cache_bytes = int64_t{1} << 26;
  if (rig.engine.speculative.method == SpeculativeMethod::kMtp) {
    config.mtp_draft = {
        .num_layers = num_mtp_layers_for(config.model, rig.engine.speculative.num_speculative_tokens),
        .scratch_blocks_per_row = scratch_blocks_per_row(rig.engine.speculative, rig.engine.limits.kv_block_size)};
  }
  EagleFiles eagle;
  if (rig.engine.speculative.method == SpeculativeMethod::kEagle) {
    eagle = open_eagle(rig.engine.speculative.model, config.model, false).value();
    config.eagle_draft = {
        .head = eagle.config,
        .weights = eagle.weights.get(),
        .scratch_blocks_per_row = scratch_blocks_per_row(rig.engine.speculative, rig.engine.limits.kv_block_size)};
  }
  auto ranks = RankGroup::create(config).value();
  CHECK(ranks->memory_plan().num_kv_blocks >= rig.engine.num_kv_blocks, "a cache of {} blocks",
        ranks->memory_plan().num_kv_blocks);

  RankRun run;
  auto engine = Engine::create(rig.engine, *ranks, {}, ranks->draft_executor()).value();
  const auto sink = std::make_shared<AnswerSink>(run);
  for (size_t i = 0; i < requests.size(); ++i) {
    run.answers.emplace_back(static_cast<size_t>(requests[i].sampling.n));
    requests[i].id = i;
    requests[i].sink = sink;
  }
  for (Request& request : requests) {
    const Status status = engine->submit(std::move(request));
    CHECK(status.ok(), "{}", status.to_string());
  }
  while (engine->step()) engine->check_integrity();
  const EngineStats stats = engine->stats();
  CHECK(stats.num_kv_blocks_used == 0 && engine->health().ok());
  run.num_nonfinite_rows = stats.num_nonfinite_rows;
  run.num_drafts = stats.num_drafts;
  run.num_drafts_accepted = stats.num_drafts_accepted;
  run.num_accepted_at.assign(std::begin(stats.num_accepted_at), std::end(stats.num_accepted_at));
  run.num_preemptions = stats.num_preemptions;
  run.prefix_cache_hits = stats.prefix_cache_hits;
  run.num_steps = stats.num_steps;
  return run;
}

Result<Tensor> SpoiledWeights::rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const {
  ASSIGN_OR_RETURN(const Tensor rows, inner_.rows(entry, begin, end, scratch));
  if (entry.name != tensor_name_ || row_ < begin || row_ >= end) return rows;
  HostTensor copy(rows.dtype(), rows.dims());
  std::memcpy(copy.view().raw(), rows.raw(), static_cast<size_t>(rows.num_bytes()));
  const auto row_bytes = static_cast<size_t>(rows.num_bytes() / (end - begin));
  // All ones is a NaN in f32, bf16 and f16.
  std::memset(static_cast<char*>(copy.view().raw()) + static_cast<size_t>(row_ - begin) * row_bytes, 0xff,
              static_cast<size_t>(dtype_bytes(rows.dtype())));
  scratch = std::move(copy);
  return scratch.view();
}

}  // namespace spate
