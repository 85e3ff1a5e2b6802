#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/rng.h"
#include "batch/plan_builder.h"
#include "engine/drafting.h"
#include "engine/inbox.h"
#include "engine/plan_writer.h"
#include "engine/request_life.h"
#include "scheduler/scheduler.h"

namespace spate {
namespace {

constexpr int kMaxStepsInFlight = 2;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

struct Engine::Impl {
  Impl(const EngineConfig& engine_config, StepExecutor& step_executor, StepExecutor* draft_executor, Clock engine_clock)
      : config(engine_config),
        executor(step_executor),
        clock(engine_clock ? std::move(engine_clock) : Clock(steady_seconds)),
        inbox(config.max_num_waiting),
        scheduler(config),
        seeds(random_seed()) {
    if (config.draft_source == DraftSource::kProposer) drafting.emplace(config, draft_executor, clock);
    stats.num_kv_blocks = config.num_kv_blocks;
    publish_stats(true);
  }

  // The loops.
  bool step();
  bool step_plain();
  bool step_overlapped();
  bool submit_step();
  void collect_step();
  void record_for_drafting(const ScheduledStep& step);
  bool waits_for_tokens() { return drafting && drafting->speculator().waits_for_tokens(); }
  void run();

  // What other threads asked for.
  void receive_commands();
  std::optional<BlockTransfer> open_transfer(RequestId id, int index);
  void take_in(SubmitCommand& command);
  void take_in(const CancelCommand& command);
  void take_in(const CompleteTransferCommand& command);
  void take_in(const InspectCommand& command);
  void take_in(const ForgetPrefixesCommand& command);

  // Results.
  void note_started(const ScheduledStep& step);
  void route_results(const ScheduledStep& step);
  void count_drafts(Sequence& seq, int num_drafts, size_t num_accepted);
  void deliver_prompt_logprobs(const ScheduledStep& step, const ScheduledSeq& scheduled,
                               std::vector<TokenLogprobs>& logprobs);
  void deliver_hidden_state(const ScheduledStep& step, const ScheduledSeq& scheduled, std::vector<float>& hidden_state);
  void deliver_tokens(const ScheduledStep& step, Sequence& seq, size_t first, size_t count);
  void end_nonfinite(const ScheduledStep& step, SequenceGroup& group);
  void end_sequence(Sequence& seq, Output output);
  void end_all(const Status& error);
  void fail(const Status& error);
  void shut_down();
  void finish_turn(bool worked);
  void publish_stats(bool wait);
  int num_transfers() const { return scheduler.kv_cache().tickets().num_open(ReleaseTickets::Kind::kTransfer); }

  const EngineConfig config;
  StepExecutor& executor;
  const Clock clock;
  Inbox inbox;
  Scheduler scheduler;
  std::optional<Drafting> drafting;  // with DraftSource::kProposer
  StepPlanBuilder builder;
  std::vector<uint32_t> late_masks;
  ConstraintsAhead constraints_ahead;
  Outbox outbox;

  ScheduledStep steps[kMaxStepsInFlight];  // a ring: steps[oldest_step] .. are in flight
  int oldest_step = 0;
  int num_in_flight = 0;
  StepResult result;
  bool host_runs_alone = false;     // the overlapped loop has collected a step before it planned the next
  double last_collect_seconds = 0;  // with drafting
  std::deque<StepRecord> step_records;  // collected steps, oldest first

  std::unordered_map<RequestId, std::unique_ptr<SequenceGroup>> groups;
  std::vector<std::unique_ptr<SequenceGroup>> ended_groups;  // some of their rows may be in flight
  std::vector<Command> commands;
  uint64_t num_arrivals = 0;
  Rng seeds;
  bool closed = false;  // failed or shut down
  std::thread thread;

  EngineStats stats;  // the engine thread's own
  mutable std::mutex published_mutex;
  EngineStats published;
};

// --- the loops ---

bool Engine::Impl::step() {
  if (closed) return false;
  receive_commands();
  const bool worked = (config.async_scheduling ? step_overlapped() : step_plain()) || !commands.empty();
  CHECK(worked || scheduler.idle() || num_transfers() > 0, "{} sequences run and {} wait, but nothing can be scheduled",
        scheduler.num_running(), scheduler.num_waiting());
  finish_turn(worked);
  return worked;
}

// The host waits for each step: the slow obvious version.
bool Engine::Impl::step_plain() {
  if (!submit_step()) return false;
  collect_step();
  return true;
}

// The host runs one step behind: step i+1 is scheduled and given to the device while step i runs.
//
// Unless drafts pay, which follow the newest token. Masks follow it too, but come while their step runs.
bool Engine::Impl::step_overlapped() {
  const bool collects_first = num_in_flight > 0 && waits_for_tokens();
  if (collects_first) {
    collect_step();
    host_runs_alone = true;
  }
  if (closed) return true;
  const bool submitted = submit_step();
  if (num_in_flight == 0) return collects_first;
  if (num_in_flight == kMaxStepsInFlight || !submitted) collect_step();
  return true;
}

bool Engine::Impl::submit_step() {
  ScheduledStep& scheduled = steps[(oldest_step + num_in_flight) % kMaxStepsInFlight];
  if (drafting) {
    if (const Status status = drafting->propose(scheduler.running(), num_in_flight > 0); !status.ok()) {
      fail(status);
      return false;
    }
  }
  scheduler.schedule_step(scheduled);
  if (scheduled.empty()) return false;
  executor.submit(write_plan(scheduled, config.draft_source, builder));
  ++num_in_flight;
  note_started(scheduled);
  return true;
}

void Engine::Impl::collect_step() {
  const ScheduledStep& collected = steps[oldest_step];
  constraints_ahead.work_beside(result.device_seconds);
  if (const Status status = executor.collect(result); !status.ok()) return fail(status);
  CHECK(result.step_id == collected.step_id, "collected step {}, expected {}", result.step_id, collected.step_id);
  oldest_step = (oldest_step + 1) % kMaxStepsInFlight;
  --num_in_flight;
  stats.device_seconds += result.device_seconds;
  scheduler.retire_step(collected, result.num_accepted, result.device_seconds);
  if (drafting) record_for_drafting(collected);
  if (step_records.size() == kMaxStepRecords) step_records.pop_front();
  step_records.push_back(record_step(collected, result));
  route_results(collected);
  if (num_in_flight == 0 || !steps[oldest_step].masks_are_late) return;
  write_late_masks(steps[oldest_step], late_masks);
  executor.supply_masks(late_masks);
}

// What steps of decoding sequences cost, and what it costs that the host lets the device wait.
void Engine::Impl::record_for_drafting(const ScheduledStep& step) {
  const bool decodes_only = std::ranges::all_of(
      step.seqs, [](const ScheduledSeq& scheduled) { return scheduled.phase == SeqPhase::kDecode; });
  if (decodes_only) drafting->speculator().record_step(step.num_tokens, result.device_seconds);
  const double now = clock();
  const double drafting_seconds = drafting->speculator().drafting_seconds();
  const double gap = now - std::exchange(last_collect_seconds, now) - result.device_seconds - drafting_seconds;
  if (std::exchange(host_runs_alone, false) && decodes_only && gap > 0 && gap < result.device_seconds) {
    drafting->speculator().record_gap(gap);
  }
  DraftController::Outcome outcome{.step_seconds = result.device_seconds, .decodes_only = decodes_only};
  size_t num_sampled = 0;
  for (const ScheduledSeq& scheduled : step.seqs) {
    const size_t sampled_idx = num_sampled;
    num_sampled += scheduled.sample ? 1 : 0;
    if (scheduled.phase != SeqPhase::kDecode || !scheduled.sample) continue;
    ++outcome.num_rows;
    outcome.num_drafts += scheduled.num_drafts;
    outcome.num_tokens += 1 + (result.num_accepted.empty() ? 0 : result.num_accepted.at(sampled_idx));
  }
  if (outcome.num_rows > 0) drafting->speculator().settle(outcome);
}

void Engine::Impl::run() {
  while (true) {
    inbox.wait_for_work();
    while (!inbox.stop_requested() && step()) {
    }
    if (inbox.stop_requested()) return shut_down();
  }
}

// --- what other threads asked for ---

void Engine::Impl::receive_commands() {
  inbox.receive(commands);
  for (Command& command : commands) {
    std::visit([this](auto& each) { take_in(each); }, command);
  }
}

void Engine::Impl::take_in(SubmitCommand& command) {
  const uint64_t seed = command.request.sampling.seed.value_or(seeds.next_u64());
  auto group = create_group(std::move(command.request), config, num_arrivals++, seed);
  group->arrival_seconds = command.arrival_seconds;
  constraints_ahead.add(group->request.constraint);
  scheduler.add(*group);
  const RequestId id = group->request.id;
  groups.emplace(id, std::move(group));
}

void Engine::Impl::take_in(const CancelCommand& command) {
  const auto it = groups.find(command.id);
  if (it == groups.end()) return;  // it ended while the cancel was on its way
  // The group moves when its last sequence ends, but stays alive until finish_turn.
  SequenceGroup& group = *it->second;
  for (const auto& seq : group.seqs) {
    if (seq->state == SequenceState::kFinished || (command.index >= 0 && seq->key.index != command.index)) continue;
    Output output = make_output(*seq);
    output.finish_reason = command.reason;
    end_sequence(*seq, std::move(output));
  }
}

void Engine::Impl::take_in(const CompleteTransferCommand& command) { scheduler.complete_transfer({command.ticket}); }

void Engine::Impl::take_in(const InspectCommand& command) {
  std::vector<const Sequence*> seqs;
  for (const auto& [id, group] : groups) {
    for (const auto& seq : group->seqs) {
      if (seq->state != SequenceState::kFinished) seqs.push_back(seq.get());
    }
  }
  EngineInspection inspection;
  inspect_sequences(std::move(seqs), scheduler.kv_cache().pool(), clock(), inspection);
  inspection.steps.assign(step_records.begin(), step_records.end());
  command.answer->set_value(std::move(inspection));
}

void Engine::Impl::take_in(const ForgetPrefixesCommand& command) {
  command.answer->set_value(scheduler.forget_all_prefixes());
}

std::optional<BlockTransfer> Engine::Impl::open_transfer(RequestId id, int index) {
  const auto it = groups.find(id);
  if (it == groups.end()) return std::nullopt;
  const Sequence& seq = *it->second->seqs.at(static_cast<size_t>(index));
  if (seq.state != SequenceState::kRunning) return std::nullopt;
  BlockTransfer transfer;
  transfer.num_tokens = std::min(seq.num_computed_tokens, seq.num_known_tokens());
  const int num_blocks = scheduler.kv_cache().blocks_for(transfer.num_tokens);
  for (int i = 0; i < num_blocks; ++i) {
    transfer.block_ids.push_back(seq.blocks.leases[static_cast<size_t>(i)].block_id());
  }
  transfer.ticket = scheduler.open_transfer(seq, num_blocks).id;
  return transfer;
}

// --- results ---

void Engine::Impl::note_started(const ScheduledStep& step) {
  ++stats.num_steps;
  stats.iteration_tokens_sum += step.num_tokens;
  const auto& buckets = EngineStats::kIterationTokenBuckets;
  ++stats.iteration_tokens[std::ranges::lower_bound(buckets, step.num_tokens) - buckets.begin()];
  for (const ScheduledSeq& entered : step.new_rows) {
    Sequence& seq = *entered.seq;
    SequenceGroup& group = *seq.group;
    if (seq.queue_seconds < 0) seq.queue_seconds = clock() - group.arrival_seconds;
    if (std::exchange(group.has_started, true)) continue;
    inbox.request_started();
    stats.prompt_tokens += seq.prompt_len;
    stats.prompt_tokens_cached += seq.num_cached_tokens;
  }
}

void Engine::Impl::route_results(const ScheduledStep& step) {
  size_t num_sampled = 0, num_tokens = 0, num_prompt_logprobs = 0, num_hidden_states = 0;
  bool step_has_drafts = false;
  for (const ScheduledSeq& scheduled : step.seqs) {
    Sequence& seq = *scheduled.seq;
    stats.num_wasted_rows += seq.state == SequenceState::kFinished;
    if (scheduled.prompt_logprobs) {
      deliver_prompt_logprobs(step, scheduled, result.prompt_logprobs.at(num_prompt_logprobs++));
    }
    if (scheduled.pool_flag != 0) {
      deliver_hidden_state(step, scheduled, result.hidden_states.at(num_hidden_states++));
    }
    if (scheduled.sample) {
      const size_t num_accepted =
          result.num_accepted.empty() ? 0 : static_cast<size_t>(result.num_accepted.at(num_sampled));
      count_drafts(seq, scheduled.num_drafts, num_accepted);
      if (!result.num_relaxed.empty())
        stats.num_drafts_relaxed += static_cast<uint64_t>(result.num_relaxed.at(num_sampled));
      step_has_drafts |= scheduled.num_drafts > 0;
      deliver_tokens(step, seq, num_tokens, 1 + num_accepted);
      num_tokens += 1 + num_accepted;
      ++num_sampled;
    }
  }
  if (step_has_drafts) stats.num_tokens_drafted_steps += num_tokens;
  CHECK(num_tokens == result.next_token_ids.size(), "step {}: {} tokens came, {} were expected", step.step_id,
        result.next_token_ids.size(), num_tokens);
}

void Engine::Impl::count_drafts(Sequence& seq, int num_drafts, size_t num_accepted) {
  if (num_drafts == 0) return;
  seq.num_drafts_run += num_drafts;
  seq.num_drafts_accepted += static_cast<int>(num_accepted);
  ++stats.num_drafted_rows;
  stats.num_drafts += static_cast<uint64_t>(num_drafts);
  stats.num_drafts_accepted += num_accepted;
  for (size_t i = 0; i < num_accepted; ++i) ++stats.num_accepted_at[i];
}

void Engine::Impl::deliver_prompt_logprobs(const ScheduledStep& step, const ScheduledSeq& scheduled,
                                           std::vector<TokenLogprobs>& logprobs) {
  Sequence& seq = *scheduled.seq;
  if (seq.state == SequenceState::kFinished) return;
  const auto is_nonfinite = [](const TokenLogprobs& entry) { return entry.rank == 0; };
  if (std::ranges::any_of(logprobs, is_nonfinite)) return end_nonfinite(step, *seq.group);
  collect_prompt_logprobs(seq, scheduled.num_computed_tokens, logprobs);
}

void Engine::Impl::deliver_hidden_state(const ScheduledStep& step, const ScheduledSeq& scheduled,
                                        std::vector<float>& hidden_state) {
  Sequence& seq = *scheduled.seq;
  if (seq.state == SequenceState::kFinished) return;
  const auto is_finite = [](float value) { return std::isfinite(value); };
  if (!std::ranges::all_of(hidden_state, is_finite)) return end_nonfinite(step, *seq.group);
  if (!collect_hidden_state(seq, scheduled, hidden_state)) return;
  Output output = make_output(seq);
  output.hidden_state = std::move(seq.hidden_sum);
  output.finish_reason = FinishReason::kStop;
  end_sequence(seq, std::move(output));
}

// The tokens result.next_token_ids[first .. + count) of a sequence, up to the one that ends it.
void Engine::Impl::deliver_tokens(const ScheduledStep& step, Sequence& seq, size_t first, size_t count) {
  if (seq.state == SequenceState::kFinished) return;
  SequenceGroup& group = *seq.group;
  if (result.next_token_ids.at(first) == kNoToken) return end_nonfinite(step, group);
  Output output = make_output(seq);
  EndCheck end;
  bool finite = true;
  for (size_t i = first; i < first + count && end.reason == FinishReason::kNone; ++i) {
    const int32_t token_id = result.next_token_ids.at(i);
    finite = token_id != kNoToken;
    if (!finite) break;
    scheduler.append_token(seq, token_id);
    end = check_end(seq);
    output.error = advance_constraint(seq, end);
    output.token_ids.push_back(token_id);
    if (const std::optional<int> num_top = group.request.sampling.logprobs) {
      TokenLogprobs& logprobs = result.logprobs.at(i);
      pick_logprobs(group.request.sampling.logprob_token_ids, logprobs);
      if (group.request.sampling.logprob_token_ids.empty() && logprobs.top.size() > static_cast<size_t>(*num_top))
        logprobs.top.resize(static_cast<size_t>(*num_top));
      output.logprobs.push_back(std::move(logprobs));
    }
  }
  output.finish_reason = end.reason;
  output.stop_token_id = end.stop_token_id;
  stats.generation_tokens += output.token_ids.size();
  if (end.reason != FinishReason::kNone) return end_sequence(seq, std::move(output));
  outbox.add(*group.request.sink, std::move(output));
  if (!finite) end_nonfinite(step, group);
}

// The logits of one of its sequences were not finite: the request ends, the others of the step go on.
void Engine::Impl::end_nonfinite(const ScheduledStep& step, SequenceGroup& group) {
  ++stats.num_nonfinite_rows;
  const Status error = internal_error(
      "the model's logits are not finite in step {} (NaN or infinity): the request ends, its tokens so far are valid",
      step.step_id);
  log_error("engine", "request {}: {}", group.request.id, error.message());
  for (const auto& seq : group.seqs) {
    if (seq->state == SequenceState::kFinished) continue;
    scheduler.forget_prefix(*seq);  // its keys and values may hold NaN too
    Output output = make_output(*seq);
    output.finish_reason = FinishReason::kError;
    output.error = error;
    end_sequence(*seq, std::move(output));
  }
}

void Engine::Impl::end_sequence(Sequence& seq, Output output) {
  SequenceGroup& group = *seq.group;
  ++stats.finished[static_cast<size_t>(output.finish_reason)];
  scheduler.finish(seq);
  outbox.add(*group.request.sink, std::move(output));
  if (--group.num_unfinished > 0) return;
  const auto it = groups.find(group.request.id);
  ended_groups.push_back(std::move(it->second));
  groups.erase(it);
}

void Engine::Impl::finish_turn(bool worked) {
  outbox.flush();
  // After the flush: who submits again from push() may reuse the id.
  std::erase_if(ended_groups, [this](const std::unique_ptr<SequenceGroup>& group) {
    if (!std::exchange(group->has_been_reported, true)) inbox.request_ended(group->request.id, group->has_started);
    return std::ranges::all_of(group->seqs, [](const auto& seq) { return seq->num_steps_in_flight == 0; });
  });
  publish_stats(!worked);
}

void Engine::Impl::end_all(const Status& error) {
  closed = true;
  inbox.close(error, commands);
  for (Command& command : commands) {
    if (auto* submitted = std::get_if<SubmitCommand>(&command)) take_in(*submitted);
    if (auto* completed = std::get_if<CompleteTransferCommand>(&command)) take_in(*completed);
    if (auto* inspected = std::get_if<InspectCommand>(&command)) inspected->answer->set_value({});
    if (auto* forgotten = std::get_if<ForgetPrefixesCommand>(&command)) forgotten->answer->set_value(0);
  }
  std::vector<SequenceGroup*> unfinished;
  for (const auto& [id, group] : groups) unfinished.push_back(group.get());
  for (SequenceGroup* group : unfinished) {
    for (const auto& seq : group->seqs) {
      if (seq->state == SequenceState::kFinished) continue;
      Output output = make_output(*seq);
      output.finish_reason = FinishReason::kError;
      output.error = error;
      end_sequence(*seq, std::move(output));
    }
  }
  commands.clear();
}

// The executor is lost: nothing in flight will ever be collected.
void Engine::Impl::fail(const Status& error) {
  log_error("engine", "the executor failed, every request ends with its error: {}", error.to_string());
  for (; num_in_flight > 0; --num_in_flight) {
    for (const ScheduledSeq& scheduled : steps[oldest_step].seqs) scheduled.seq->num_steps_in_flight = 0;
    oldest_step = (oldest_step + 1) % kMaxStepsInFlight;
  }
  end_all(error);
  scheduler.abandon_steps();
}

void Engine::Impl::shut_down() {
  if (closed) return;
  end_all(inbox.stop_reason());
  while (num_in_flight > 0) collect_step();
  finish_turn(false);
}

void Engine::Impl::publish_stats(bool wait) {
  std::unique_lock lock(published_mutex, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;  // someone reads; the next step publishes again
  }
  const BlockPool& pool = scheduler.kv_cache().pool();
  stats.num_running = scheduler.num_running();
  stats.num_waiting = scheduler.num_waiting();
  stats.num_kv_blocks_used = pool.num_referenced();
  stats.num_kv_blocks_cached = pool.num_cached();
  stats.num_transfers = num_transfers();
  stats.kv_cache_usage = static_cast<double>(pool.num_referenced()) / pool.num_blocks();
  stats.num_preemptions = scheduler.stats().num_preemptions;
  stats.prefix_cache_queries = scheduler.stats().prefix_cache_queries;
  stats.prefix_cache_hits = scheduler.stats().prefix_cache_hits;
  stats.num_forks = scheduler.stats().num_forks;
  if (drafting) stats.num_tokens_expected = drafting->speculator().num_tokens_expected();
  published = stats;
}

// --- Engine ---

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { stop(); }

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config, StepExecutor& executor, Clock clock,
                                               StepExecutor* draft_executor) {
  RETURN_IF_ERROR(validate_engine_config(config));
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Impl>(config, executor, draft_executor, std::move(clock))));
}

Status Engine::submit(Request request) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return submit_all(std::move(requests));
}

Status Engine::submit_all(std::vector<Request> requests) {
  for (const Request& request : requests) RETURN_IF_ERROR(validate_request(request, impl_->config));
  return impl_->inbox.submit(std::move(requests), impl_->clock());
}

void Engine::cancel(RequestId id, int index, FinishReason reason) {
  CHECK(reason != FinishReason::kNone);
  impl_->inbox.cancel({.id = id, .index = index, .reason = reason});
}

void Engine::complete_transfer(uint64_t ticket) { impl_->inbox.complete_transfer({.ticket = ticket}); }

std::optional<BlockTransfer> Engine::open_transfer(RequestId id, int index) { return impl_->open_transfer(id, index); }

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(impl_->published_mutex);
    stats = impl_->published;
  }
  stats.num_waiting += impl_->inbox.num_submitted();
  stats.num_refused = impl_->inbox.num_refused();
  return stats;
}

std::future<int> Engine::forget_prefixes() {
  auto answer = std::make_shared<std::promise<int>>();
  std::future<int> num_blocks = answer->get_future();
  impl_->inbox.forget_prefixes({.answer = std::move(answer)});
  return num_blocks;
}

std::future<EngineInspection> Engine::inspect() {
  auto answer = std::make_shared<std::promise<EngineInspection>>();
  std::future<EngineInspection> inspection = answer->get_future();
  impl_->inbox.inspect({.answer = std::move(answer)});
  return inspection;
}

Status Engine::health() const { return impl_->inbox.health(); }
const EngineConfig& Engine::config() const { return impl_->config; }

void Engine::start() {
  CHECK(!impl_->thread.joinable(), "the engine runs already");
  impl_->thread = std::thread([this] { impl_->run(); });
}

bool Engine::drain(std::chrono::milliseconds timeout) {
  impl_->inbox.refuse_new();
  if (!impl_->thread.joinable()) {
    while (step()) {
    }
  }
  return impl_->inbox.wait_until_idle(timeout);
}

void Engine::stop() { stop(unavailable("the server is shutting down")); }
void Engine::stop(Status reason) {
  impl_->inbox.request_stop(std::move(reason));
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  } else {
    impl_->shut_down();
  }
}

bool Engine::step() { return impl_->step(); }
void Engine::check_integrity() const { impl_->scheduler.check_integrity(); }

}  // namespace spate
