#include "engine/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/fake_executor.h"

namespace spate {
namespace {

constexpr int32_t kEosTokenId = 0;
constexpr int kNumSystemPrompts = 4;
constexpr int kNumPastPrompts = 16;

// What has come back for one request.
struct Answer {
  struct Part {
    std::vector<int32_t> token_ids;
    FinishReason finish_reason = FinishReason::kNone;
    std::vector<float> hidden_state;
    int32_t stop_token_id = -1;
    bool cancelled = false;  // asked for; it may have ended before
    bool has_first = false;
    int num_preemptions = 0;
  };
  Request request;
  std::vector<Part> parts;
  std::vector<TokenLogprobs> prompt_logprobs;
  int num_unfinished = 0;
};

// The cache of a draft model: the target's blocks, and those of drafts that have none.
EngineConfig draft_config(EngineConfig config) {
  config.num_kv_blocks += config.limits.max_num_seqs * scratch_blocks_per_row(config.speculative, config.limits.kv_block_size);
  config.draft_source = DraftSource::kRepeat;
  return config;
}

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : options_(options), rng_(options.seed), executor_(options.config),
        draft_executor_(draft_config(options.config), options.num_draft_layers), sink_(std::make_shared<Sink>(*this)) {
    executor_.draft_hit_rate = options.draft_hit_rate;
    draft_executor_.miss_rate = 1 - options.draft_hit_rate;
    draft_executor_.reads_next_tokens = reads_next_tokens(options.config.speculative.method);
    draft_executor_.step_seconds = [this](const StepPlanHeader& header) {
      const double seconds = 0.0001 + 1e-6 * header.num_tokens;
      now_ += seconds;
      return seconds;
    };
    executor_.is_nonfinite = [this](const RowSampling& sampling, int num_tokens) {
      const auto it = nonfinite_from_.find(sampling.seed);
      return it != nonfinite_from_.end() && num_tokens >= it->second;
    };
    executor_.step_seconds = [this](const StepPlanHeader& header) {
      const double seconds = 0.001 + 1e-5 * header.num_tokens;
      now_ += seconds;
      return seconds;
    };
    Result<std::unique_ptr<Engine>> engine = Engine::create(options.config, executor_, [this] { return now_; }, &draft_executor_);
    CHECK(engine.ok(), "{}", engine.status().to_string());
    engine_ = std::move(engine).value();
    for (auto& prompt : system_prompts_) prompt = random_tokens(options.max_prompt_len);
  }

  SimulationReport run() {
    while (events() < options_.num_events) {
      arrive();
      cancel_some();
      transfer_some();
      turn();
    }
    while (turn() || !transfers_.empty()) transfer_some();
    CHECK(answers_.empty(), "{} requests have not ended", answers_.size());
    CHECK(engine_->stats().num_kv_blocks_used == 0, "{} blocks are leaked", engine_->stats().num_kv_blocks_used);
    CHECK(engine_->stats().num_running == 0 && engine_->stats().num_waiting == 0);
    finish_report();
    engine_->stop();
    return report_;
  }

 private:
  class Sink : public OutputSink {
   public:
    explicit Sink(Simulation& simulation) : simulation_(simulation) {}
    void push(std::vector<Output> outputs) override {
      for (Output& output : outputs) simulation_.receive(output);
    }

   private:
    Simulation& simulation_;
  };

  bool chance(double probability) { return rng_.uniform() < static_cast<float>(probability); }
  int between(int low, int high) { return low + static_cast<int>(rng_.below(static_cast<uint64_t>(high - low) + 1)); }

  std::vector<int32_t> random_tokens(int count) {
    std::vector<int32_t> token_ids(count);
    for (int32_t& token_id : token_ids) token_id = between(0, kFakeVocabSize - 1);
    return token_ids;
  }

  // A fresh prompt, or one that starts like an earlier one: a system prompt, or a conversation that goes on.
  std::vector<int32_t> make_prompt() {
    std::vector<int32_t> prompt;
    if (chance(0.5)) {
      prompt = system_prompts_[rng_.below(kNumSystemPrompts)];
    } else if (chance(0.5) && !past_prompts_.empty()) {
      prompt = past_prompts_[rng_.below(past_prompts_.size())];
    }
    const int len = chance(0.1) ? between(1, 3) : between(1, options_.max_prompt_len);
    if (static_cast<int>(prompt.size()) > len) prompt.resize(len);
    const std::vector<int32_t> rest = random_tokens(between(0, len - static_cast<int>(prompt.size())));
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    if (prompt.empty()) prompt = random_tokens(1);
    return prompt;
  }

  Request make_request() {
    Request request;
    request.id = next_id_++;
    request.prompt_token_ids = make_prompt();
    SamplingParams& params = request.sampling;
    params.n = chance(0.15) ? between(2, 4) : 1;
    params.seed = rng_.next_u64();
    params.max_tokens = between(1, options_.max_tokens);
    params.min_tokens = chance(0.2) ? between(0, params.max_tokens) : 0;
    params.ignore_eos = chance(0.3);
    if (chance(0.2)) params.stop_token_ids = {between(1, 5), between(1, 5)};
    if (chance(0.1)) params.logprobs = between(0, 3);
    if (chance(0.05)) params.prompt_logprobs = between(0, 2);
    request.eos_token_ids = {kEosTokenId};
    request.priority = chance(0.2) ? between(-1, 1) : 0;
    request.reuse_scope = chance(0.2) ? "tenant" : "";
    request.sink = sink_;
    if (chance(options_.pooling_share)) {
      request.pooling = std::array{Pooling::kLast, Pooling::kMean, Pooling::kCls}[rng_.below(3)];
      params.n = 1;
      params.prompt_logprobs.reset();
      ++report_.num_pooled;
      return request;
    }
    if (chance(options_.nonfinite_share)) {
      nonfinite_from_[*params.seed] =
          static_cast<int>(request.prompt_token_ids.size()) + between(0, options_.max_tokens);
    }
    return request;
  }

  void arrive() {
    for (double rate = options_.arrivals_per_step; rate > 0; rate -= 1) {
      if (rate < 1 && !chance(rate)) return;
      Request request = make_request();
      if (chance(0.01)) check_refusals(request);
      Answer answer{.request = request,
                    .parts = std::vector<Answer::Part>(request.sampling.n),
                    .prompt_logprobs = {},
                    .num_unfinished = request.sampling.n};
      const RequestId id = request.id;
      const Status status = engine_->submit(std::move(request));
      if (status.code() == StatusCode::kResourceExhausted) {
        ++report_.num_refused;
        continue;
      }
      CHECK(status.ok(), "{}", status.to_string());
      ++report_.num_requests;
      alive_ids_.push_back(id);
      answers_.emplace(id, std::move(answer));
    }
  }

  void check_refusals(const Request& good) {
    Request bad = good;
    bad.prompt_token_ids = random_tokens(options_.config.max_seq_len() + (bad.pooling != Pooling::kNone));
    CHECK(engine_->submit(bad).code() == StatusCode::kOutOfRange);
    bad.prompt_token_ids.clear();
    CHECK(engine_->submit(bad).code() == StatusCode::kInvalidArgument);
  }

  void cancel_some() {
    if (alive_ids_.empty() || !chance(options_.arrivals_per_step * options_.cancel_share)) return;
    const RequestId id = alive_ids_[rng_.below(alive_ids_.size())];
    Answer& answer = answers_.at(id);
    const int index = chance(0.5) ? -1 : between(0, answer.request.sampling.n - 1);
    engine_->cancel(id, index, chance(0.5) ? FinishReason::kAbort : FinishReason::kStop);
    engine_->cancel(id + 1000000000);  // nobody's
    ++report_.num_cancels;
    for (int i = 0; i < answer.request.sampling.n; ++i) {
      if (index < 0 || index == i) answer.parts[i].cancelled = true;
    }
  }

  // What a transfer reads must be what it was opened for, whatever ran since: its blocks were given to nobody.
  struct Transfer {
    BlockTransfer blocks;
    std::vector<int32_t> token_ids;
    int64_t opened_turn = 0;
  };

  void transfer_some() {
    if (!alive_ids_.empty() && chance(options_.transfers_per_step)) {
      const RequestId id = alive_ids_[rng_.below(alive_ids_.size())];
      const Answer& answer = answers_.at(id);
      const int index = between(0, answer.request.sampling.n - 1);
      if (const auto blocks = engine_->open_transfer(id, index)) {
        std::vector<int32_t> token_ids = answer.request.prompt_token_ids;
        const std::vector<int32_t>& output = answer.parts[static_cast<size_t>(index)].token_ids;
        token_ids.insert(token_ids.end(), output.begin(), output.end());
        token_ids.resize(static_cast<size_t>(blocks->num_tokens));
        transfers_.push_back({*blocks, std::move(token_ids), num_turns_});
        ++report_.num_transfers;
      }
    }
    if (transfers_.empty() || !chance(0.1)) return;
    std::swap(transfers_[rng_.below(transfers_.size())], transfers_.back());
    if (transfers_.back().opened_turn == num_turns_) return;  // the step in flight may not have written the blocks yet
    check_transfer(transfers_.back());
    engine_->complete_transfer(transfers_.back().blocks.ticket);
    transfers_.pop_back();
  }

  void check_transfer(const Transfer& transfer) const {
    const int kv_block_size = options_.config.limits.kv_block_size;
    for (size_t i = 0; i < transfer.blocks.block_ids.size(); ++i) {
      const int first = static_cast<int>(i) * kv_block_size;
      const int count = std::min(kv_block_size, transfer.blocks.num_tokens - first);
      const auto expected =
          std::span(transfer.token_ids).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      CHECK(executor_.holds(transfer.blocks.block_ids[i], expected, first),
            "block {} of {} of a transfer does not hold its tokens any more", i, transfer.blocks.block_ids.size());
    }
  }

  bool turn() {
    const bool worked = engine_->step();
    engine_->check_integrity();
    ++num_turns_;
    if (!worked && !answers_.empty()) {
      CHECK(!transfers_.empty(), "{} requests wait for nothing", answers_.size());
      ++report_.num_turns_blocked;
    }
    return worked;
  }

  void receive(Output& output) {
    Answer& answer = answers_.at(output.request_id);
    Answer::Part& part = answer.parts.at(output.index);
    CHECK(part.finish_reason == FinishReason::kNone, "an output after the last one");
    CHECK(output.queue_seconds >= 0);
    CHECK(output.error.ok() == (output.finish_reason != FinishReason::kError));
    if (!std::exchange(part.has_first, true)) {
      if (output.num_cached_tokens > 0) ++report_.num_prefix_hits;
      if (output.index == 0) answer.prompt_logprobs = std::move(output.prompt_logprobs);
    } else {
      CHECK(output.prompt_logprobs.empty());
    }
    if (answer.request.sampling.prompt_logprobs && output.index == 0) CHECK(output.num_cached_tokens == 0);
    CHECK(output.logprobs.size() == (answer.request.sampling.logprobs ? output.token_ids.size() : 0));
    for (size_t i = 0; i < output.logprobs.size(); ++i) {
      CHECK(output.logprobs[i].token_id == output.token_ids[i]);
      CHECK(output.logprobs[i].top.size() == static_cast<size_t>(*answer.request.sampling.logprobs));
    }
    part.token_ids.insert(part.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
    CHECK(output.num_preemptions >= part.num_preemptions);
    num_told_preemptions_ += output.num_preemptions - part.num_preemptions;
    part.num_preemptions = output.num_preemptions;
    part.finish_reason = output.finish_reason;
    part.stop_token_id = output.stop_token_id;
    part.hidden_state = std::move(output.hidden_state);
    if (output.finish_reason == FinishReason::kNone || --answer.num_unfinished > 0) return;
    verify(answer);
    std::erase(alive_ids_, output.request_id);
    answers_.erase(output.request_id);
  }

  void verify_pooled(const Answer& answer) {
    const Answer::Part& part = answer.parts[0];
    CHECK(part.token_ids.empty() && (part.cancelled || part.finish_reason == FinishReason::kStop));
    if (part.cancelled && part.hidden_state.empty()) return;
    CHECK(part.hidden_state == fake_pooled(answer.request.prompt_token_ids, answer.request.pooling),
          "request {}: another hidden state than the oracle's", answer.request.id);
  }

  void verify(const Answer& answer) {
    if (answer.request.pooling != Pooling::kNone) return verify_pooled(answer);
    for (int index = 0; index < answer.request.sampling.n; ++index) {
      const Answer::Part& part = answer.parts[index];
      const FakeAnswer expected = fake_generate(answer.request, index, options_.config);
      const bool complete = part.token_ids.size() == expected.token_ids.size() &&
                            part.finish_reason == expected.finish_reason &&
                            part.stop_token_id == expected.stop_token_id;
      CHECK(complete || part.cancelled || verify_nonfinite(answer, index, expected),
            "request {} index {}: {} tokens and {}, expected {} and {}", answer.request.id, index,
            part.token_ids.size(), finish_reason_name(part.finish_reason), expected.token_ids.size(),
            finish_reason_name(expected.finish_reason));
      CHECK(part.token_ids.size() <= expected.token_ids.size() &&
                std::equal(part.token_ids.begin(), part.token_ids.end(), expected.token_ids.begin()),
            "request {} index {}: other tokens than the oracle's", answer.request.id, index);
      report_.num_tokens_generated += static_cast<int64_t>(part.token_ids.size());
    }
    verify_prompt_logprobs(answer);
    if (past_prompts_.size() < kNumPastPrompts) past_prompts_.emplace_back();
    std::vector<int32_t>& past = past_prompts_[answer.request.id % past_prompts_.size()];
    past = answer.request.prompt_token_ids;
    past.insert(past.end(), answer.parts[0].token_ids.begin(), answer.parts[0].token_ids.end());
  }

  // Whether the request may have ended with an error. Sequence 0 must then have all tokens before the bad logits.
  bool verify_nonfinite(const Answer& answer, int index, const FakeAnswer& expected) {
    const auto it = nonfinite_from_.find(*answer.request.sampling.seed);
    if (it == nonfinite_from_.end() || answer.parts[index].finish_reason != FinishReason::kError) return false;
    const size_t num_finite = static_cast<size_t>(it->second) - answer.request.prompt_token_ids.size();
    if (index > 0) return answer.parts[0].finish_reason == FinishReason::kError;
    ++report_.num_nonfinite;
    return answer.parts[0].token_ids.size() == num_finite && num_finite < expected.token_ids.size();
  }

  void verify_prompt_logprobs(const Answer& answer) {
    const std::vector<int32_t>& prompt = answer.request.prompt_token_ids;
    if (!answer.request.sampling.prompt_logprobs) {
      CHECK(answer.prompt_logprobs.empty());
    } else if (!answer.parts[0].token_ids.empty()) {
      CHECK(answer.prompt_logprobs.size() == prompt.size() - 1, "{} prompt logprobs of {} tokens",
            answer.prompt_logprobs.size(), prompt.size());
      for (size_t i = 1; i < prompt.size(); ++i) {
        const TokenLogprobs& entry = answer.prompt_logprobs[i - 1];
        CHECK(entry.token_id == prompt[i] && entry.logprob == fake_logprob(std::span(prompt).first(i), prompt[i]));
        CHECK(entry.top.size() == static_cast<size_t>(*answer.request.sampling.prompt_logprobs));
      }
    }
  }

  int64_t events() {
    report_.num_preemptions = static_cast<int64_t>(engine_->stats().num_preemptions);
    return report_.num_events();
  }

  void finish_report() {
    const EngineStats stats = engine_->stats();
    report_.num_preemptions = static_cast<int64_t>(stats.num_preemptions);
    CHECK(num_told_preemptions_ == report_.num_preemptions, "sequences tell of {} preemptions, the engine of {}",
          num_told_preemptions_, report_.num_preemptions);
    report_.num_steps = static_cast<int64_t>(stats.num_steps);
    report_.num_wasted_rows = static_cast<int64_t>(stats.num_wasted_rows);
    report_.num_forks = static_cast<int64_t>(stats.num_forks);
    report_.num_tokens_computed = static_cast<int64_t>(executor_.num_tokens_computed());
    report_.num_blocks_copied = static_cast<int64_t>(executor_.num_blocks_copied());
    report_.num_drafts = static_cast<int64_t>(stats.num_drafts);
    report_.num_drafts_accepted = static_cast<int64_t>(stats.num_drafts_accepted);
    CHECK(stats.num_nonfinite_rows == static_cast<uint64_t>(report_.num_nonfinite));
    uint64_t num_finished = 0;
    for (const uint64_t count : stats.finished) num_finished += count;
    CHECK(stats.generation_tokens == static_cast<uint64_t>(report_.num_tokens_generated));
    CHECK(num_finished >= static_cast<uint64_t>(report_.num_requests));
  }

  const SimulationOptions options_;
  Rng rng_;
  double now_ = 0;
  FakeExecutor executor_;
  FakeExecutor draft_executor_;  // of SpeculativeMethod::kDraftModel
  std::shared_ptr<Sink> sink_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> system_prompts_[kNumSystemPrompts];
  std::vector<std::vector<int32_t>> past_prompts_;
  std::unordered_map<RequestId, Answer> answers_;
  std::vector<RequestId> alive_ids_;
  std::unordered_map<uint64_t, int> nonfinite_from_;  // seed of a request: tokens behind which logits are not finite
  std::vector<Transfer> transfers_;                   // open
  int64_t num_turns_ = 0;
  int64_t num_told_preemptions_ = 0;  // by the sequences
  RequestId next_id_ = 1;
  SimulationReport report_;
};

}  // namespace

std::string SimulationReport::to_string() const {
  return fmt::format(
      "{} events: {} requests, {} cancels, {} preemptions, {} prefix hits; {} forks, {} block copies, {} refused; {} "
      "steps, {} "
      "tokens generated, {} computed, {} pooled, {} wasted rows, {} of {} drafts accepted, {} not finite; {} transfers, {} turns "
      "blocked by them",
      num_events(), num_requests, num_cancels, num_preemptions, num_prefix_hits, num_forks, num_blocks_copied,
      num_refused, num_steps, num_tokens_generated, num_tokens_computed, num_pooled, num_wasted_rows, num_drafts_accepted,
      num_drafts, num_nonfinite, num_transfers, num_turns_blocked);
}

SimulationReport run_simulation(const SimulationOptions& options) { return Simulation(options).run(); }

}  // namespace spate
