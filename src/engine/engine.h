// Engine: takes Requests from any thread, runs them together step by step on a StepExecutor, sends Outputs to their
// sinks.
//
// One engine thread owns the scheduler, the KV cache and the executor. It touches no string, socket or JSON. Every
// index of every request that submit() accepted ends in exactly one Output with a finish reason: also when it is
// cancelled, when the executor fails (kError with its Status) and at stop() (kError, unavailable).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "core/engine_config.h"
#include "core/request.h"
#include "core/step_executor.h"
#include "engine/inspection.h"

namespace spate {

// Counters since start and gauges; for /metrics and the log. A consistent snapshot of the end of a recent step.
struct EngineStats {
  // Gauges.
  int num_running = 0;        // sequences that have a row
  int num_waiting = 0;        // sequences that wait for one, those in the inbox included
  double kv_cache_usage = 0;  // 0..1: share of num_kv_blocks_used; reusable cached blocks are not in use
  int num_kv_blocks = 0;
  int num_kv_blocks_used = 0;    // held by sequences and transfers; more than 0 in an idle engine is a leak
  int num_kv_blocks_cached = 0;  // findable by prefix, held by nobody
  int num_transfers = 0;         // open: BlockTransfer

  // Counters.
  uint64_t num_steps = 0;
  uint64_t num_preemptions = 0;
  uint64_t prefix_cache_queries = 0;   // prompt tokens looked up
  uint64_t prefix_cache_hits = 0;      // of these, found
  uint64_t prompt_tokens = 0;          // of requests first scheduled; n > 1 counts once
  uint64_t prompt_tokens_cached = 0;   // of these, taken from the prefix cache
  uint64_t generation_tokens = 0;      // sent in Outputs
  uint64_t num_forks = 0;              // sequences that shared the prompt blocks of their request (n > 1)
  uint64_t num_drafts = 0;             // draft tokens that ran in collected steps
  uint64_t num_drafts_accepted = 0;    // of these, kept
  uint64_t num_drafts_relaxed = 0;     // of these, kept by relaxed acceptance: the model chose another token
  uint64_t num_drafted_rows = 0;       // row-steps that had drafts
  std::array<uint64_t, kMaxDrafts> num_accepted_at{};  // drafts accepted, by their place in the row-step
  uint64_t num_tokens_drafted_steps = 0;  // that steps with drafts gave, of all their rows
  double num_tokens_expected = 0;         // of these steps: what the controller of drafts had expected
  uint64_t num_nonfinite_rows = 0;     // sequences whose logits were not finite: their requests ended with an error
  uint64_t num_wasted_rows = 0;        // row-steps whose sequence had ended (the price of the overlapped loop)
  uint64_t num_refused = 0;            // submits refused for a full queue
  std::array<uint64_t, kNumFinishReasons> finished{};  // sequences ended, by FinishReason

  // Tokens a step ran: bucket i counts steps with at most kIterationTokenBuckets[i] tokens (not cumulative), the last
  // the rest.
  static constexpr std::array<int, 13> kIterationTokenBuckets = {1,   8,    16,   32,   64,   128,  256,
                                                                 512, 1024, 2048, 4096, 8192, 16384};
  std::array<uint64_t, 14> iteration_tokens{};
  uint64_t iteration_tokens_sum = 0;
  double device_seconds = 0;  // sum of StepResult::device_seconds
};

// The blocks of a sequence on their way to another place. They are not written, given to others or evicted before
// complete_transfer(), whatever becomes of the sequence.
struct BlockTransfer {
  uint64_t ticket = 0;
  int num_tokens = 0;              // whose keys and values they hold, once the steps submitted so far have run
  std::vector<int32_t> block_ids;  // in order of position; the last may be part-filled
};

class Engine {
 public:
  using Clock = std::function<double()>;  // seconds, never falling; called by any thread

  // The executors outlive the engine and are called by the engine thread only. `clock` is replaced in simulations.
  // draft_executor: runs the model that drafts (speculative/model_proposer.h), where runs_a_model(method).
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config, StepExecutor& executor, Clock clock = {},
                                                StepExecutor* draft_executor = nullptr);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- Any thread ---

  // Ok: the request is in, its sink will hear of it. Else nothing was kept and the sink is never called:
  //   invalid_argument    empty prompt, no sink, too many stop ids, an id that is running already, n below 1
  //   out_of_range        the prompt leaves no room for one token of output
  //   resource_exhausted  max_num_waiting requests wait already
  //   unavailable         draining or stopped; or the executor failed (its message)
  // Ranges of SamplingParams are the caller's business (validate_sampling_params).
  Status submit(Request request);
  // Several as one, in order: all are in or none is. max_num_waiting is asked once, before the first.
  Status submit_all(std::vector<Request> requests);

  // Ends one sequence (or all, index -1) at the next step: its last Output carries `reason` and no tokens. A stop
  // string found in the text is cancel(id, index, kStop). Nothing happens for an id or index that has ended already.
  void cancel(RequestId id, int index = -1, FinishReason reason = FinishReason::kAbort);

  // The transfer has read its blocks.
  void complete_transfer(uint64_t ticket);

  EngineStats stats() const;
  // What runs, waits and lies in the KV cache: made by the engine thread between two steps, so at a few hertz it costs
  // nothing that is measured. Empty once the engine has stopped.
  std::future<EngineInspection> inspect();
  // From now on nothing is found by its prefix, until it has been computed again; what runs keeps its blocks. How many
  // blocks could be found before. 0 once the engine has stopped.
  std::future<int> forget_prefixes();
  // Ok, or why no request will run any more (the executor's failure, stop()).
  Status health() const;
  const EngineConfig& config() const;

  // --- The engine thread: OutputSink::push(), or who calls step() ---

  // Of what a running sequence has computed; nullopt where it does not run. Requests that lack blocks wait until the
  // transfer is complete. Who opens transfers must complete them while the engine lives.
  std::optional<BlockTransfer> open_transfer(RequestId id, int index);

  // --- The owner's thread ---

  void start();  // runs the loop on a thread of its own until stop()
  // Refuses new requests from now on and waits until the running ones have ended; false: some still run after
  // `timeout`.
  bool drain(std::chrono::milliseconds timeout);
  // Ends all requests with an error (`reason`; else that the server shuts down), collects the steps in flight, joins the
  // thread. Further calls do nothing.
  void stop();
  void stop(Status reason);

  // --- Without start(): simulations, offline use ---

  // One turn of the loop: takes in what was submitted and cancelled, schedules and submits a step, collects one. False
  // when there was nothing to do.
  bool step();
  // Stops the program when an invariant of the scheduler or the KV cache is broken. Engine thread only.
  void check_integrity() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace spate
