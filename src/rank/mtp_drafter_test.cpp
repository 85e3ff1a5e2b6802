// Goal    The drafts are exactly what the layer for multi-token prediction says of the whole text so far; a layer that is
//         right is believed; its steps can be replayed.
// Method  A tiny DeepSeek-V3 in f32 on the oracle. What the engine drafted and accepted, against a loop that knows no
//         cache, no batch and no proposer: it runs the model and the layer over all tokens again for each draft. Weights
//         made so that layer and model say the same. RecordingDevice. drafts_test.cpp compares answers.
#include <algorithm>
#include <functional>

#include "backend/kv_storage.h"
#include "base/test_support.h"
#include "batch/plan_builder.h"
#include "rank/plain_drafts.h"
#include "rank/rank_group.h"
#include "rank/rank_rig.h"
#include "weights/safetensors.h"

#include "base/test.h"

namespace spate {
namespace {

std::filesystem::path mtp_dir(int num_layers = 1) {
  return repo_root() / "test" / "goldens" / "model" / (num_layers == 1 ? "deepseek_v3_mtp" : "deepseek_v3_mtp2");
}

// --- the plain loop ---

class PlainDrafts {
 public:
  PlainDrafts(const WeightSource& weights, int num_layers)
      : config_(load_model_config(mtp_dir(num_layers)).value()), num_layers_(num_layers) {
    const ModelOptions options{.act_dtype = DType::kF32,
                               .kv_dtype = DType::kF32,
                               .limits = {.max_model_len = kPlainLen, .max_num_batched_tokens = kPlainLen},
                               .num_mtp_layers = num_layers};
    model_ = Model::create(config_, *device_.device, {}, options).value();
    CHECK(model_->load(weights).ok());
    kv_ = KvStorage::create(*device_.device, model_->kv_layers(), kPlainBlocks).value();
    mtp_kv_ = KvStorage::create(*device_.device, model_->mtp_kv_layers(), kPlainBlocks).value();
  }

  // The k tokens that are drafted behind `text`, greedily, with `bias` on some ids: one by each layer, over all tokens
  // again; then the last layer goes on from its own hidden state.
  std::vector<int32_t> behind(const std::vector<int32_t>& text, int k, const std::vector<std::pair<int32_t, float>>& bias) {
    const int n = static_cast<int>(text.size()) - 1;
    PlainStep known(0, std::vector<int32_t>(text.begin(), text.end() - 1));
    HostTensor hidden_states = copy_rows(model_->forward(known.context(device_, kv_)));
    std::vector<int32_t> drafts;
    for (int i = 0; i < k; ++i) {
      const bool is_chained = i >= num_layers_;
      const int layer_idx = is_chained ? num_layers_ - 1 : i;
      std::vector<int32_t> next(text.begin() + 1, text.end());
      next.insert(next.end(), drafts.begin(), drafts.end());
      next.erase(next.begin(), next.end() - (is_chained ? 1 : n));
      PlainStep inputs(is_chained ? n + i - num_layers_ : 0, next);
      const StepContext ctx = inputs.context(device_, mtp_kv_);
      const Tensor out = model_->mtp_forward(ctx, {.hidden_states = hidden_states.view(),
                                                   .mtp_idx = layer_idx,
                                                   .source_idx = is_chained ? layer_idx : layer_idx - 1});
      hidden_states = copy_rows(out);
      HostTensor newest = copy_rows(hidden_states.view().rows(out.dim(0) - 1, out.dim(0)));
      HostTensor first(DType::kI32, {1});
      first.span<int32_t>()[0] = 0;
      HostTensor logits = copy_rows(model_->compute_mtp_logits(ctx, layer_idx, newest.view(), first.view()));
      for (const auto& [id, value] : bias) logits.span<float>()[static_cast<size_t>(id)] += value;
      drafts.push_back(static_cast<int32_t>(std::ranges::max_element(logits.span<float>()) - logits.span<float>().begin()));
      if (i + 1 >= num_layers_) hidden_states = std::move(newest);
    }
    return drafts;
  }

 private:
  const ModelConfig config_;
  const int num_layers_;
  PlainDevice device_;
  std::unique_ptr<Model> model_;
  KvStorage kv_, mtp_kv_;
};

RankRig rig_of(const WeightSource& weights, int num_drafts, int num_layers = 1) {
  RankRig rig{.model_dir = mtp_dir(num_layers), .weights = &weights, .back_end = &oracle_back_end()};
  rig.engine.limits.max_model_len = 128;
  rig.engine.draft_source = DraftSource::kProposer;
  rig.engine.speculative = {.method = SpeculativeMethod::kMtp, .num_speculative_tokens = num_drafts, .adaptive = false};
  rig.engine.async_scheduling = false;
  return rig;
}

void check_drafts_of_plain_loop(int num_layers, std::initializer_list<int> nums_drafts) {
  const Checkpoint weights = Checkpoint::open(mtp_dir(num_layers)).value();
  PlainDrafts plain(weights, num_layers);
  const std::vector<Request> requests = requests_of({3, 32, 47, 65}, {9, 10, 11});
  for (const int num_drafts : nums_drafts) {
    CAPTURE(num_drafts);
    if (kIsThreadSanitized && num_drafts > 3) continue;
    RankRig rig = rig_of(weights, num_drafts, num_layers);
    rig.engine.limits.max_num_batched_tokens = 40;  // prompts in chunks, and what the layer catches up with
    for (const int tp : {1, 2}) {
      rig.tensor_parallel_size = tp;
      const RankRun run = run_requests(rig, requests);
      const DraftCounts expected = expected_counts(
          [&plain](const auto&... arguments) { return plain.behind(arguments...); }, requests, run, num_drafts);
      CHECK(run.num_drafts == expected.num_drafts);
      CHECK(run.num_drafts_accepted == expected.num_accepted);
      for (size_t i = 0; i < expected.accepted_at.size(); ++i) CHECK(run.num_accepted_at[i] == expected.accepted_at[i]);
      CHECK(expected.accepted_at[0] > 4);
      if (num_layers > 1) CHECK(expected.accepted_at[1] > 0);
    }
  }
}

TEST_CASE("the drafts are those of a plain loop over the whole text") { check_drafts_of_plain_loop(1, {1, 8}); }

TEST_CASE("two layers draft as a plain loop says, and the second one goes on") { check_drafts_of_plain_loop(2, {3}); }

// --- a layer that is right ---

class EditedWeights final : public WeightSource {
 public:
  using Edit = std::function<void(const std::string& name, int64_t first_row, HostTensor& rows)>;
  EditedWeights(const WeightSource& inner, Edit edit) : inner_(inner), edit_(std::move(edit)) {}
  const std::vector<TensorEntry>& entries() const override { return inner_.entries(); }
  const TensorEntry* find(std::string_view name) const override { return inner_.find(name); }
  const std::string& file_name(int file_idx) const override { return inner_.file_name(file_idx); }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const override {
    ASSIGN_OR_RETURN(const Tensor rows, inner_.rows(entry, begin, end, scratch));
    HostTensor copy(rows.dtype(), rows.dims());
    std::memcpy(copy.view().raw(), rows.raw(), static_cast<size_t>(rows.num_bytes()));
    edit_(entry.name, begin, copy);
    scratch = std::move(copy);
    return scratch.view();
  }
  void release(const TensorEntry& entry, int64_t begin, int64_t end) const override { inner_.release(entry, begin, end); }

 private:
  const WeightSource& inner_;
  const Edit edit_;
};

bool ends_with(const std::string& name, std::string_view end) { return name.ends_with(end); }

// Attention and experts add nothing: what follows a token is a function of the token alone. The layer passes the
// embedding of the token that it gets on: what it says of that token is what the model will say.
void repeat_the_model(const std::string& name, int64_t first_row, HostTensor& rows) {
  const auto values = rows.span<Bf16>();
  if (ends_with(name, "o_proj.weight") || ends_with(name, "down_proj.weight")) {
    std::ranges::fill(values, Bf16::from_float(0));
  } else if (name == "model.norm.weight" || ends_with(name, "enorm.weight") || ends_with(name, "shared_head.norm.weight")) {
    std::ranges::fill(values, Bf16::from_float(1));
  } else if (ends_with(name, "eh_proj.weight")) {
    const int64_t num_rows = rows.view().dim(0), width = rows.view().dim(1);
    std::ranges::fill(values, Bf16::from_float(0));
    for (int64_t i = 0; i < num_rows; ++i) values[static_cast<size_t>(i * width + first_row + i)] = Bf16::from_float(1);
  }
}

TEST_CASE("all drafts of a layer that says what the model says are accepted, sampled ones too") {
  const Checkpoint checkpoint = Checkpoint::open(mtp_dir()).value();
  const EditedWeights weights(checkpoint, repeat_the_model);
  std::vector<Request> requests = requests_of({3, 20, 47}, {9, 10, 11});
  for (Request& request : requests) request.sampling.logit_bias.clear();
  const RankRun greedy = run_requests(rig_of(weights, 4), requests);
  CHECK(greedy.num_drafts > 60);
  CHECK(greedy.num_drafts_accepted == greedy.num_drafts);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling = {.temperature = 0.9f,
                            .top_p = 0.95f,
                            .presence_penalty = 0.4f,
                            .seed = 3 + i,
                            .max_tokens = 40,
                            .min_tokens = 30,
                            .ignore_eos = true,
                            .logprobs = 1};
  }
  const RankRun sampled = run_requests(rig_of(weights, 4), requests);
  CHECK(sampled.num_drafts > 60);
  CHECK(sampled.num_drafts_accepted * 100 >= sampled.num_drafts * 95);  // norms of a norm round

  // The same with two layers.
  const Checkpoint checkpoint_of_two = Checkpoint::open(mtp_dir(2)).value();
  const EditedWeights weights_of_two(checkpoint_of_two, repeat_the_model);
  const RankRun two_layers = run_requests(rig_of(weights_of_two, 4, 2), requests);
  CHECK(two_layers.num_drafts > 60);
  CHECK(two_layers.num_drafts_accepted * 100 >= two_layers.num_drafts * 95);
}

// --- replay ---

void check_replay(int num_layers) {
  const Checkpoint weights = Checkpoint::open(mtp_dir(num_layers)).value();
  const std::vector<Request> requests = requests_of({3, 20, 32, 47, 65}, {9, 10, 11});
  RankRig rig = rig_of(weights, 3, num_layers);
  const RankRun plain = run_requests(rig, requests);
  for (const bool replay : {false, true}) {
    RecordingLog log;
    const BackEnd back_end =
        recorded_back_end({.log = &log, .replay = replay, .padded_step = power_of_two_step, .identity = {}});
    rig.back_end = &back_end;
    const RankRun run = run_requests(rig, requests);
    CHECK(log.mismatches.empty());
    CHECK(log.num_repeated > 20);
    CHECK(run.num_drafts == plain.num_drafts);
    CHECK(run.num_drafts_accepted == plain.num_drafts_accepted);
    for (size_t i = 0; i < requests.size(); ++i) CHECK(run.answers[i][0].token_ids == plain.answers[i][0].token_ids);
  }
}

TEST_CASE("steps of the model and of the layer can be replayed") { check_replay(1); }
TEST_CASE("a step of one layer is not replayed for another") { check_replay(2); }

// The layer's first and second step of a text of two tokens have the same counts.
TEST_CASE("a key says whether all sequences decode") {
  const Checkpoint weights = Checkpoint::open(mtp_dir()).value();
  for (const bool forget : {false, true}) {
    CAPTURE(forget);
    RecordingLog log;
    const BackEnd back_end = recorded_back_end({.log = &log, .identity = [forget](StepKey key) {
                                                  if (forget) key.decodes_only = false;
                                                  key.max_seq_len = 0;
                                                  return key;
                                                }});
    RankGroupConfig config{.model = load_model_config(mtp_dir()).value(), .weights = &weights, .back_end = &back_end};
    config.act_dtype = config.kv_dtype = DType::kF32;
    config.limits = {.max_model_len = 32, .max_num_seqs = 2, .max_num_batched_tokens = 16, .max_num_logits = 4};
    config.kv_cache_bytes = 1 << 22;
    config.mtp_draft.emplace();
    const auto ranks = RankGroup::create(config).value();
    const std::vector<int32_t> text = {5, 6};
    StepPlanBuilder builder;
    StepResult result;
    for (const SeqPhase phase : {SeqPhase::kPrefill, SeqPhase::kDecode}) {
      const int step = phase == SeqPhase::kDecode ? 1 : 0;
      builder.begin(static_cast<uint64_t>(1 + step));
      if (step == 0) {
        builder.add_row({.row = 0, .sampling = {.prompt_len = 2}, .token_ids = text, .logit_bias = {}, .stop_ids = {}});
        builder.add_blocks(0, 0, 1)[0] = 0;
      }
      builder.add_seq({.row = 0, .query_len = 1, .phase = phase, .flags = kSample, .num_computed_tokens = step});
      ranks->draft_executor()->submit(builder.finish());
      REQUIRE(ranks->draft_executor()->collect(result).ok());
    }
    CHECK(log.num_repeated == (forget ? 1 : 0));
    CHECK(log.mismatches.size() == (forget ? 1u : 0u));
  }
}

// --- refusals ---

TEST_CASE("a model without such a layer is refused") {
  RankGroupConfig config{.model = load_model_config(repo_root() / "test/goldens/model/qwen3_tied_sharded").value(),
                         .back_end = &oracle_back_end()};
  config.mtp_draft.emplace();
  CHECK(RankGroup::create(config).status().message() ==
        "--speculative-config: method mtp needs a layer for multi-token prediction: config.json of Qwen3ForCausalLM has no "
        "num_nextn_predict_layers");
  config.model.num_mtp_layers = 1;  // of an architecture whose layers are not built
  const std::string unknown = RankGroup::create(config).status().message();
  CHECK(unknown.find("--speculative-config: method mtp: Qwen3ForCausalLM: 1 layers") == 0);
  config.model = load_model_config(mtp_dir()).value();
  config.data_parallel_size = 2;
  CHECK(RankGroup::create(config).status().message().find("method mtp runs beside one copy of the model") != std::string::npos);
}

}  // namespace
}  // namespace spate
