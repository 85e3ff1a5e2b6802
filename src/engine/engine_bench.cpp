// What the host costs a step: schedule, plan, route, Outputs; the executor answers at once. In the overlapped loop this
// time is hidden while a step of the device takes longer. With drafts (ngram, four a row, all right) no step overlaps: their
// row is what planning, proposing and verifying cost. Prints one JSON array of bench rows.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"

namespace spate {
namespace {

class InstantExecutor : public StepExecutor {
 public:
  void submit(std::span<const std::byte> plan) override {
    const auto& header = *reinterpret_cast<const StepPlanHeader*>(plan.data());
    std::vector<int32_t> num_drafts;  // accepted, all of them
    const auto* seqs = plan_array<SeqStep>(plan.data(), header.seqs_offset);
    for (int i = 0; i < header.num_seqs && header.num_logits > header.num_sampled; ++i) {
      if ((seqs[i].flags & kSample) != 0) num_drafts.push_back(seqs[i].num_drafts);
    }
    steps_.push_back({header, std::move(num_drafts)});
  }
  void supply_masks(std::span<const uint32_t> /*masks*/) override {}
  Status collect(StepResult& result) override {
    result.step_id = steps_.front().header.step_id;
    result.next_token_ids.assign(steps_.front().header.num_logits, 7);
    result.num_accepted = std::move(steps_.front().num_drafts);
    steps_.pop_front();
    return ok_status();
  }
  int num_in_flight() const override { return static_cast<int>(steps_.size()); }

 private:
  struct Step {
    StepPlanHeader header;
    std::vector<int32_t> num_drafts;
  };
  std::deque<Step> steps_;
};

class DiscardingSink : public OutputSink {
 public:
  void push(std::vector<Output>) override {}
};

struct Row {
  int num_seqs;
  int prompt_len;
  bool one_sink;  // else a sink each, as streaming clients have
  int num_drafts = 0;
};

// Microseconds of a step in which all sequences decode; the best of 9 runs of 100 steps.
double step_us(const Row& row) {
  EngineConfig config{.limits = {.max_model_len = 8192, .max_num_seqs = row.num_seqs, .max_num_batched_tokens = 8192},
                      .num_kv_blocks = row.num_seqs * 512,
                      .max_num_waiting = row.num_seqs};
  if (row.num_drafts > 0) {
    config.draft_source = DraftSource::kProposer;
    config.speculative = {
        .method = SpeculativeMethod::kNgram, .num_speculative_tokens = row.num_drafts, .adaptive = false};
  }
  InstantExecutor executor;
  Result<std::unique_ptr<Engine>> engine = Engine::create(config, executor);
  CHECK(engine.ok(), "{}", engine.status().to_string());
  auto sink = std::make_shared<DiscardingSink>();
  for (int i = 0; i < row.num_seqs; ++i) {
    Request request;
    request.id = static_cast<RequestId>(i) + 1;
    request.prompt_token_ids.assign(row.prompt_len, i);
    request.sampling.max_tokens = 7000;
    request.sink = row.one_sink ? sink : std::make_shared<DiscardingSink>();
    CHECK((*engine)->submit(std::move(request)).ok());
  }
  while ((*engine)->stats().generation_tokens < static_cast<uint64_t>(row.num_seqs) * 20) (*engine)->step();
  std::vector<double> microseconds;
  for (int run = 0; run < 9; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) (*engine)->step();
    microseconds.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
                           100);
  }
  return *std::ranges::min_element(microseconds);
}

int run_bench() {
  std::string rows;
  for (const Row& row : {Row{1, 512, false}, Row{64, 512, false}, Row{256, 512, false}, Row{256, 512, true},
                         Row{1, 512, false, 4}, Row{64, 512, false, 4}, Row{256, 512, false, 4}}) {
    rows += fmt::format(
        "{}  {{\"name\": \"host/engine/step{}/{}/batch{}\", \"value\": {:.1f}, \"unit\": \"us\", \"command\": "
        "\"engine_bench\"}}",
        rows.empty() ? "" : ",\n", row.num_drafts > 0 ? "-drafts" : "", row.one_sink ? "one-sink" : "sink-each",
        row.num_seqs, step_us(row));
  }
  fmt::print("[\n{}\n]\n", rows);
  return 0;
}

}  // namespace
}  // namespace spate

int main() { return spate::run_bench(); }
