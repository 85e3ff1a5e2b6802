// Goal    Masks that come while their step runs give the answers of masks that come with the plan, and cost no step.
// Method  A constraint whose masks follow from the newest token, so that a mask of one token too early shows. Beside it
//         sequences without one. The loop that waits for each token is the oracle of the one that plans ahead: on one
//         rank and on two, and with steps that are replayed from memory.
#include <algorithm>
#include <memory>
#include <vector>

#include "batch/plan_builder.h"
#include "rank/rank_rig.h"
#include "weights/safetensors.h"

#include "base/test.h"
#include "base/test_support.h"

namespace spate {
namespace {

std::filesystem::path masked_model_dir() {
  return repo_root() / "test" / "goldens" / "model" / "qwen3_yarn_one_kv_head";
}

// Behind token t a token u may follow where t + u is no multiple of 3.
class NeighbourCursor final : public ConstraintCursor {
 public:
  explicit NeighbourCursor(int64_t vocab_size) : words_(static_cast<size_t>(mask_words_of(vocab_size))) {}
  Status append(int32_t token_id) override {
    if (!mask_allows(words_.data(), token_id)) return internal_error("token {} behind {}", token_id, newest_);
    newest_ = token_id;
    return ok_status();
  }
  Status prepare_mask() override {
    std::ranges::fill(words_, 0);
    for (size_t id = 0; id < words_.size() * 32; ++id) {
      if ((id + static_cast<size_t>(newest_)) % 3 != 0) words_[id / 32] |= uint32_t{1} << (id % 32);
    }
    return ok_status();
  }
  std::span<const uint32_t> mask() const override { return words_; }
  bool may_end() const override { return newest_ % 2 == 0; }
  bool must_end() const override { return false; }
  std::unique_ptr<ConstraintCursor> clone() const override { return std::make_unique<NeighbourCursor>(*this); }

 private:
  std::vector<uint32_t> words_;
  int32_t newest_ = 0;
};

// Behind an even token t t + 6 alone may follow, three times of four; where t % 10 is 4 it guesses wrong. Else as
// NeighbourCursor.
class ForcingCursor final : public ConstraintCursor {
 public:
  explicit ForcingCursor(int64_t vocab_size)
      : vocab_size_(static_cast<int32_t>(vocab_size)), words_(static_cast<size_t>(mask_words_of(vocab_size))) {}
  Status append(int32_t token_id) override {
    if (!allows(token_id)) return internal_error("token {} behind {}", token_id, newest_);
    newest_ = token_id;
    return ok_status();
  }
  Status prepare_mask() override {
    std::ranges::fill(words_, 0);
    for (int32_t id = 0; id < vocab_size_; ++id) {
      if (allows(id)) words_[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
    }
    return ok_status();
  }
  std::span<const uint32_t> mask() const override { return words_; }
  int32_t forced_token() const override {
    if (!is_forced()) return -1;
    return newest_ % 10 == 4 ? (newest_ + 8) % vocab_size_ : (newest_ + 6) % vocab_size_;
  }
  bool may_end() const override { return !is_forced(); }
  bool must_end() const override { return false; }
  std::unique_ptr<ConstraintCursor> clone() const override { return std::make_unique<ForcingCursor>(*this); }

 private:
  bool is_forced() const { return newest_ % 2 == 0 && newest_ / 6 % 4 != 0; }
  bool allows(int32_t id) const { return is_forced() ? id == (newest_ + 6) % vocab_size_ : (id + newest_) % 3 != 0; }
  int32_t vocab_size_;
  std::vector<uint32_t> words_;
  int32_t newest_ = 0;
};

template <typename Cursor>
class CursorConstraint final : public TokenConstraint {
 public:
  explicit CursorConstraint(int64_t vocab_size) : vocab_size_(vocab_size) {}
  std::unique_ptr<ConstraintCursor> start() override {
    auto cursor = std::make_unique<Cursor>(vocab_size_);
    CHECK(cursor->prepare_mask().ok());
    return cursor;
  }

 private:
  const int64_t vocab_size_;
};

template <typename Cursor>
std::vector<Request> masked_requests(int64_t vocab_size) {
  const auto constraint = std::make_shared<CursorConstraint<Cursor>>(vocab_size);
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    Request request;
    for (int k = 0; k < 3 + 4 * i; ++k) request.prompt_token_ids.push_back(5 + k);
    request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .max_tokens = 20 + i};
    if (i == 4) request.sampling.n = 2;
    if (i == 5) request.sampling.logprobs = 3;
    request.sampling.seed = 11;
    request.eos_token_ids = {12};
    if (i != 2) request.constraint = constraint;
    requests.push_back(std::move(request));
  }
  return requests;
}

void check_equal_answers(const RankRun& run, const RankRun& expected) {
  REQUIRE(run.answers.size() == expected.answers.size());
  for (size_t i = 0; i < run.answers.size(); ++i) {
    for (size_t k = 0; k < run.answers[i].size(); ++k) {
      CAPTURE(i);
      const RankAnswer &answer = run.answers[i][k], &wanted = expected.answers[i][k];
      CHECK(answer.token_ids == wanted.token_ids);
      CHECK(answer.finish_reason == wanted.finish_reason);
      CHECK(answer.logprobs.size() == wanted.logprobs.size());
      CHECK(answer.error.ok());
    }
  }
}

// Runs the requests in the loop that waits for each token and in the one that plans ahead, changed by `change`, on one
// rank and on two, with room for all and with so little that sequences are preempted. All answers must be equal.
template <typename Change, typename Check>
void compare_loops(const std::vector<Request>& requests, const Change& change, const Check& check) {
  const Checkpoint weights = Checkpoint::open(masked_model_dir()).value();
  for (const BackEnd* back_end : {&oracle_back_end(), &host_back_end()}) {
    for (const int tp : {1, 2}) {
      for (const int num_kv_blocks : {64, 12}) {
        CAPTURE(tp);
        CAPTURE(num_kv_blocks);
        RankRig rig{.model_dir = masked_model_dir(), .weights = &weights, .back_end = back_end};
        rig.engine.num_kv_blocks = num_kv_blocks;
        rig.tensor_parallel_size = tp;
        rig.engine.async_scheduling = false;
        const RankRun plain = run_requests(rig, requests);
        rig.engine.async_scheduling = true;
        change(rig.engine);
        const RankRun ahead = run_requests(rig, requests);
        check_equal_answers(ahead, plain);
        if (num_kv_blocks < 64) CHECK(ahead.num_preemptions > 0);
        check(ahead, plain, num_kv_blocks);
      }
    }
  }
}

TEST_CASE("masks that come while their step runs change no answer, on one rank and on two") {
  const std::vector<Request> requests =
      masked_requests<NeighbourCursor>(load_model_config(masked_model_dir()).value().vocab_size);
  compare_loops(
      requests, [](EngineConfig&) {},
      [](const RankRun& ahead, const RankRun& plain, int num_kv_blocks) {
        // No token costs a step of its own but the last ones, of which the host learns a step later.
        if (num_kv_blocks == 64) CHECK(ahead.num_steps <= plain.num_steps + 3);
      });
}

// Request 2 has no constraint, so nobody waits: drafts run behind forced tokens in flight.
TEST_CASE("drafts behind tokens in flight change no answer, on one rank and on two") {
  std::vector<Request> requests =
      masked_requests<ForcingCursor>(load_model_config(masked_model_dir()).value().vocab_size);
  requests[2].sampling.max_tokens = 50;
  requests[2].sampling.ignore_eos = true;
  compare_loops(
      requests,
      [](EngineConfig& config) {
        config.draft_source = DraftSource::kProposer;
        config.speculative.adaptive = false;
      },
      [](const RankRun& drafted, const RankRun&, int) {
        CHECK(drafted.num_drafts_accepted > 10);
        CHECK(drafted.num_drafts > drafted.num_drafts_accepted);
      });
}

TEST_CASE("a step whose masks come later can be replayed, and never for one whose masks came with its plan") {
  const Checkpoint weights = Checkpoint::open(masked_model_dir()).value();
  const std::vector<Request> requests =
      masked_requests<NeighbourCursor>(load_model_config(masked_model_dir()).value().vocab_size);
  RankRig rig{.model_dir = masked_model_dir(), .weights = &weights, .back_end = &oracle_back_end()};
  rig.engine.async_scheduling = false;
  const RankRun plain = run_requests(rig, requests);
  rig.engine.async_scheduling = true;
  for (const bool replay : {false, true}) {
    RecordingLog log;
    const BackEnd back_end =
        recorded_back_end({.log = &log, .replay = replay, .padded_step = power_of_two_step, .identity = {}});
    rig.back_end = &back_end;
    check_equal_answers(run_requests(rig, requests), plain);
    CHECK(log.mismatches.empty());
    CHECK(log.num_repeated > 20);
  }
  RecordingLog log;
  const auto forget_part = [](StepKey key) {
    key.part = StepPart::kWhole;
    return key;
  };
  const BackEnd back_end = recorded_back_end({.log = &log, .padded_step = power_of_two_step, .identity = forget_part});
  rig.back_end = &back_end;
  run_requests(rig, requests);
  CHECK_FALSE(log.mismatches.empty());
}

TEST_CASE("a group that ends does not wait for masks that nobody will supply") {
  const Checkpoint weights = Checkpoint::open(masked_model_dir()).value();
  const ModelConfig model = load_model_config(masked_model_dir()).value();
  for (const int tp : {1, 2}) {
    RankGroupConfig config;
    config.model = model;
    config.weights = &weights;
    config.back_end = &host_back_end();
    config.tensor_parallel_size = tp;
    config.act_dtype = config.kv_dtype = DType::kF32;
    config.limits = {.max_model_len = 64, .max_num_seqs = 2, .max_num_batched_tokens = 32, .max_num_logits = 3};
    config.kv_cache_bytes = int64_t{1} << 24;
    auto ranks = RankGroup::create(config).value();
    StepPlanBuilder builder;
    builder.begin(1);
    const std::vector<int32_t> prompt = {5, 6, 7};
    builder.add_row({.row = 0, .sampling = {.prompt_len = 3}, .token_ids = prompt, .logit_bias = {}, .stop_ids = {}});
    builder.add_blocks(0, 0, 1)[0] = 0;
    builder.add_seq({.row = 0,
                     .query_len = 3,
                     .flags = kSample,
                     .first_mask = builder.expect_masks(1, mask_words_of(model.vocab_size))});
    ranks->submit(builder.finish());
    ranks.reset();  // ends, or the test never does
  }
}

}  // namespace
}  // namespace spate
