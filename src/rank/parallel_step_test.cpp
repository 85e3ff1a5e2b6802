// parallel_step_test.cpp
//
// Goal     Data-parallel ranks run plans of their own: each gives the tokens that it would give alone. A rank whose
//          plan is empty still makes every call that the others make. A layer reaches all groups of its rank's Place.
//          A peer that is gone ends the step, and every request, with an error.
// Method   A small model with random weights on threads; plans written by hand. A tap in the model stands for the
//          experts that ranks will share: behind every layer it exchanges over the groups that its StepContext has.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "backend/registry/registry.h"
#include "base/test.h"
#include "base/test_support.h"
#include "batch/plan_builder.h"
#include "engine/engine.h"
#include "rank/rank_group.h"

namespace spate {
namespace {

constexpr int kMaxLen = 64, kMaxTokens = 64;
constexpr int64_t kNumBlocks = 8;

ModelConfig small_config() {
  return load_model_config(repo_root() / "test" / "goldens" / "model" / "qwen3_tied_sharded").value();
}

// A step of at most one sequence, in row 0.
struct Work {
  std::vector<int32_t> new_tokens;  // the sequence enters its row with these; empty: it runs already
  int query_len = 0;                // 0: nothing runs
  int num_computed = 0;
};

std::vector<std::byte> write_work(uint64_t step_id, const Work& work) {
  StepPlanBuilder builder;
  builder.begin(step_id);
  if (!work.new_tokens.empty()) {
    builder.add_row({.row = 0, .num_computed_tokens = 0, .sampling = {}, .token_ids = work.new_tokens});
    const auto blocks = builder.add_blocks(0, 0, kMaxLen / 16);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  }
  if (work.query_len > 0) {
    builder.add_seq(
        {.row = 0, .query_len = work.query_len, .flags = kSample, .num_computed_tokens = work.num_computed});
  }
  const auto bytes = builder.finish();
  return {bytes.begin(), bytes.end()};
}

// A prompt and then one token a step; in steps where `rests` says so the plan is empty.
std::vector<Work> schedule(const std::vector<int32_t>& prompt, const std::vector<bool>& rests) {
  std::vector<Work> steps;
  int num_computed = 0;
  for (const bool rest : rests) {
    Work work;
    if (!rest && num_computed == 0) {
      work = {.new_tokens = prompt, .query_len = static_cast<int>(prompt.size())};
    } else if (!rest) {
      work = {.query_len = 1, .num_computed = num_computed};
    }
    num_computed += work.query_len;
    steps.push_back(work);
  }
  return steps;
}

RankGroupConfig group_config(const BackEnd& back_end, int tp, int dp) {
  return {.model = small_config(),
          .dummy_seed = 7,
          .back_end = &back_end,
          .device = {.num_threads = 1},
          .tensor_parallel_size = tp,
          .data_parallel_size = dp,
          .act_dtype = DType::kF32,
          .kv_dtype = DType::kF32,
          .limits = {.max_model_len = kMaxLen, .max_num_seqs = 2, .max_num_batched_tokens = kMaxTokens},
          .kv_cache_bytes = int64_t{1} << 24};
}

// The tokens of each data-parallel index.
std::vector<std::vector<int32_t>> run_schedules(const RankGroupConfig& config,
                                                const std::vector<std::vector<Work>>& schedules) {
  const auto group = RankGroup::create(config).value();
  std::vector<std::vector<int32_t>> tokens(schedules.size());
  std::vector<StepResult> results(schedules.size());
  for (size_t step = 0; step < schedules[0].size(); ++step) {
    std::vector<std::vector<std::byte>> plans;
    for (const auto& schedule : schedules) plans.push_back(write_work(step + 1, schedule[step]));
    const std::vector<std::span<const std::byte>> views(plans.begin(), plans.end());
    group->submit(views);
    const Status status = group->collect(results);
    REQUIRE_MESSAGE(status.ok(), status.to_string());
    for (size_t d = 0; d < schedules.size(); ++d) {
      CHECK(results[d].step_id == step + 1);
      CHECK(results[d].next_token_ids.size() == (schedules[d][step].query_len > 0 ? 1u : 0u));
      for (const int32_t id : results[d].next_token_ids) tokens[d].push_back(id);
    }
  }
  return tokens;
}

// The communicator of a rank that takes part in `num_calls` collectives and then stands still until the others have
// given up.
class MortalCommunicator final : public Communicator {
 public:
  MortalCommunicator(std::unique_ptr<Communicator> inner, int num_calls)
      : inner_(std::move(inner)), num_calls_(num_calls) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Status all_reduce_sum(Stream& s, const Tensor& x) override {
    return is_alive() ? inner_->all_reduce_sum(s, x) : wait_for_the_end();
  }
  Status all_gather(Stream& s, const Tensor& x, const Tensor& y) override {
    return is_alive() ? inner_->all_gather(s, x, y) : wait_for_the_end();
  }
  Status reduce_scatter_sum(Stream& s, const Tensor& x, const Tensor& y) override {
    return is_alive() ? inner_->reduce_scatter_sum(s, x, y) : wait_for_the_end();
  }
  Status gather_columns(Stream& s, const Tensor& x, const Tensor& y) override {
    return is_alive() ? inner_->gather_columns(s, x, y) : wait_for_the_end();
  }
  Status broadcast(Stream& s, const Tensor& x) override {
    return is_alive() ? inner_->broadcast(s, x) : wait_for_the_end();
  }
  Status dispatch(Stream& s, const AllToAllParams& p) override {
    return is_alive() ? inner_->dispatch(s, p) : wait_for_the_end();
  }
  Status combine(Stream& s, const AllToAllParams& p) override {
    return is_alive() ? inner_->combine(s, p) : wait_for_the_end();
  }
  Status send(Stream& s, const Tensor& x, int to) override {
    return is_alive() ? inner_->send(s, x, to) : wait_for_the_end();
  }
  Status receive(Stream& s, const Tensor& x, int from) override {
    return is_alive() ? inner_->receive(s, x, from) : wait_for_the_end();
  }
  Status error() const override { return inner_->error(); }
  void abort(const Status& reason) override { inner_->abort(reason); }

 private:
  bool is_alive() { return num_calls_-- > 0; }
  Status wait_for_the_end() const {
    while (inner_->error().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return inner_->error();
  }
  std::unique_ptr<Communicator> inner_;
  int num_calls_;
};

// Dispatches all rows to the group's rank 0 and brings them back, as experts that lie on one rank would. Returns how
// many came; -1 when what came back is not what went.
int64_t send_all_to_rank_0(Communicator& group, Stream& stream, const Tensor& x) {
  HostTensor there(DType::kF32, {kMaxTokens * group.size(), x.dim(1)}), back(DType::kF32, {x.dim(0), x.dim(1)});
  HostTensor sent(DType::kI32, {group.size()}), received(DType::kI32, {group.size()});
  std::ranges::fill(sent.span<int32_t>(), 0);
  sent.span<int32_t>()[0] = static_cast<int32_t>(x.dim(0));
  static_cast<void>(group.dispatch(stream, {.x = x, .send_counts = sent, .out = there, .receive_counts = received}));
  static_cast<void>(group.combine(stream, {.x = there, .send_counts = received, .out = back, .receive_counts = sent}));
  const auto values = back.span<float>();
  if (!std::equal(values.begin(), values.end(), x.data<float>())) return -1;
  const auto counts = received.span<int32_t>();
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int calls_before_death = 0;
Result<std::vector<std::unique_ptr<Communicator>>> make_mortal_group(const GroupOptions& options) {
  ASSIGN_OR_RETURN(auto ranks, make_in_process_group(options));
  ranks[1] = std::make_unique<MortalCommunicator>(std::move(ranks[1]), calls_before_death);
  return ranks;
}

struct ErrorSink final : OutputSink {
  void push(std::vector<Output> outputs) override {
    for (const Output& output : outputs) {
      if (output.finish_reason == FinishReason::kError) errors.push_back(output.error.message());
      num_ended += output.finish_reason != FinishReason::kNone;
    }
  }
  std::vector<std::string> errors;
  int num_ended = 0;
};

}  // namespace

TEST_CASE("data parallel: each index gives the tokens that it gives alone, beside others and beside empty plans") {
  const std::vector<int32_t> first = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3},
                             second = {2, 7, 1, 8, 2, 8};
  const auto busy = schedule(first, std::vector<bool>(8, false));
  const auto resting = schedule(second, {true, false, false, true, true, false, false, true});
  for (const BackEnd* back_end : {&oracle_back_end(), &host_back_end()}) {
    CAPTURE(back_end->name);
    const auto alone_first = run_schedules(group_config(*back_end, 1, 1), {busy});
    const auto alone_second = run_schedules(group_config(*back_end, 1, 1), {resting});
    REQUIRE(alone_first[0].size() == 8);
    REQUIRE(alone_second[0].size() == 4);
    for (const int tp : {1, 2}) {
      CAPTURE(tp);
      const auto together = run_schedules(group_config(*back_end, tp, 2), {busy, resting});
      CHECK(together[0] == alone_first[0]);
      CHECK(together[1] == alone_second[0]);
    }
  }
}

TEST_CASE("data parallel: a rank with an empty plan makes every collective call of the others") {
  const ModelConfig config = small_config();
  const StepLimits limits{
      .max_model_len = kMaxLen, .max_num_seqs = 2, .max_num_batched_tokens = kMaxTokens, .max_num_logits = 4};
  const ModelOptions options{.act_dtype = DType::kF32, .kv_dtype = DType::kF32, .limits = limits};
  const std::vector<std::vector<Work>> schedules = {
      schedule({5, 6, 7}, {false, false, true, true, false}),
      schedule({8, 9, 10, 11}, {true, false, false, true, true}),
  };
  for (const BackEnd* back_end : {&oracle_back_end(), &host_back_end()}) {
    CAPTURE(back_end->name);
    auto communicators = make_communicators(back_end->make_group, {.ep = 2, .dp = 2}, 60).value();
    std::vector<std::unique_ptr<Rank>> ranks(2);  // a rank that has gone is an error to the other
    std::vector<Status> statuses(2);
    // Behind every layer of every step:
    std::vector<std::vector<int64_t>> sums(2);          // tokens of both ranks, over dp
    std::vector<std::vector<int64_t>> num_received(2);  // rows that came over ep
    std::vector<std::vector<int>> group_sizes(2);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        const auto body = [&]() -> Status {
          ASSIGN_OR_RETURN(std::unique_ptr<Device> device, back_end->make_device({.num_threads = 1}));
          ASSIGN_OR_RETURN(ranks[r],
                           Rank::create(std::move(device), std::move(communicators[r]), config, options, limits));
          Rank* rank = ranks[r].get();
          RETURN_IF_ERROR(rank->model().load_dummy(7));
          RETURN_IF_ERROR(rank->allocate_kv_cache(kNumBlocks));
          rank->model().set_tap([&](const StepContext& ctx, int64_t, const Tensor& hidden_states) {
            const Communicators& groups = ctx.communicators;
            group_sizes[r] = {groups.tp->size(), groups.ep->size(), groups.dp->size(), groups.pp->size()};
            HostTensor num_tokens(DType::kI32, {1});
            num_tokens.span<int32_t>()[0] = static_cast<int32_t>(hidden_states.dim(0));
            static_cast<void>(groups.dp->all_reduce_sum(ctx.stream, num_tokens));
            sums[r].push_back(num_tokens.span<int32_t>()[0]);
            num_received[r].push_back(send_all_to_rank_0(*groups.ep, ctx.stream, hidden_states));
          });
          StepResult result;
          for (size_t step = 0; step < schedules[r].size(); ++step) {
            rank->launch(write_work(step + 1, schedules[r][step]));
            RETURN_IF_ERROR(rank->finish(result));
          }
          rank->model().set_tap({});
          return ok_status();
        };
        statuses[r] = body();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) CHECK_MESSAGE(status.ok(), status.to_string());
    std::vector<int64_t> expected;
    for (const int64_t num_tokens : {3, 5, 1, 0, 1})
      expected.insert(expected.end(), static_cast<size_t>(config.num_layers) + 1, num_tokens);
    CHECK(sums[0] == expected);
    CHECK(sums[1] == expected);
    CHECK(num_received[0] == expected);
    CHECK(num_received[1] == std::vector<int64_t>(expected.size(), 0));
    for (const std::vector<int>& sizes : group_sizes) CHECK(sizes == std::vector{1, 2, 2, 1});
  }
}

// The peer is lost at its first call, in the middle of a step, and some steps later.
TEST_CASE("tensor parallel: a lost peer ends every request with an error within the time limit") {
  for (const int num_calls : {0, 2, 40}) {
    CAPTURE(num_calls);
    for (const bool async : {false, true}) {
      calls_before_death = num_calls;
      BackEnd back_end = host_back_end();
      back_end.make_group = make_mortal_group;
      RankGroupConfig config = group_config(back_end, 2, 1);
      config.collective_time_limit_s = 0.3;
      const auto ranks = RankGroup::create(config).value();
      EngineConfig engine_config;
      engine_config.limits.max_model_len = kMaxLen;
      engine_config.limits.max_num_seqs = 2;
      engine_config.limits.max_num_batched_tokens = 64;
      engine_config.num_kv_blocks = kNumBlocks;
      engine_config.async_scheduling = async;
      const auto engine = Engine::create(engine_config, *ranks).value();
      const auto sink = std::make_shared<ErrorSink>();
      for (uint64_t i = 0; i < 3; ++i) {  // one more than run at once
        Request request;
        request.id = i;
        request.prompt_token_ids = {1, 2, 3};
        request.sampling.max_tokens = 40;
        request.sampling.ignore_eos = true;
        request.sink = sink;
        REQUIRE(engine->submit(std::move(request)).ok());
      }
      for (int step = 0; sink->num_ended < 3 && step < 200; ++step) engine->step();
      REQUIRE(sink->errors.size() == 3);
      for (const std::string& error : sink->errors) {
        CHECK(error.find("tp group of 2 ranks: rank 1 did not come to ") != std::string::npos);
        CHECK(error.find(" within 0.3 s") != std::string::npos);
      }
    }
  }
}

}  // namespace spate
