#include "llm/offline.h"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>

namespace spate {
namespace {

// Collects every Output of a batch; shared by its requests.
class BatchSink final : public OutputSink {
 public:
  BatchSink(const std::vector<OfflineRequest>& requests, RequestId first_id,
            const std::function<void(size_t, const Output&)>& on_output)
      : first_id_(first_id), on_output_(on_output) {
    for (const OfflineRequest& request : requests) {
      results_.emplace_back(static_cast<size_t>(request.sampling.n));
      num_open_.push_back(request.sampling.n);
    }
  }

  void push(std::vector<Output> outputs) override {
    {
      const std::lock_guard lock(mutex_);
      for (Output& output : outputs) take(output);
    }
    changed_.notify_all();
  }

  // Waits until fewer than `count` requests are in flight, of `num_submitted`.
  void wait_below(size_t num_submitted, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_submitted - num_finished_ < count || !error_.ok(); });
  }

  Status error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  std::vector<std::vector<OfflineResult>> take_results() { return std::move(results_); }

 private:
  void take(Output& output) {
    const size_t i = output.request_id - first_id_;
    if (on_output_) on_output_(i, output);
    OfflineResult& result = results_[i][static_cast<size_t>(output.index)];
    result.token_ids.insert(result.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
    std::move(output.logprobs.begin(), output.logprobs.end(), std::back_inserter(result.logprobs));
    if (!output.prompt_logprobs.empty()) result.prompt_logprobs = std::move(output.prompt_logprobs);
    result.num_cached_tokens = std::max(result.num_cached_tokens, output.num_cached_tokens);
    if (output.finish_reason == FinishReason::kNone) return;
    result.finish_reason = output.finish_reason;
    if (output.finish_reason == FinishReason::kError && error_.ok()) error_ = output.error;
    if (--num_open_[i] == 0) ++num_finished_;
  }

  const RequestId first_id_;
  const std::function<void(size_t, const Output&)>& on_output_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<OfflineResult>> results_;
  std::vector<int> num_open_;  // sequences of each request that still run
  size_t num_finished_ = 0;
  Status error_;
};

RequestId next_ids(size_t count) {
  static RequestId next = 1;  // offline commands submit from one thread
  const RequestId first = next;
  next += count;
  return first;
}

}  // namespace

Result<std::vector<std::vector<OfflineResult>>> run_offline(Engine& engine, const std::vector<int32_t>& eos_token_ids,
                                                            std::vector<OfflineRequest> requests, int max_in_flight,
                                                            const std::function<void(size_t, const Output&)>& on_output) {
  const size_t count = requests.size();
  const RequestId first_id = next_ids(count);
  // Never more than the admission queue takes.
  const size_t queue_limit = static_cast<size_t>(engine.config().max_num_waiting);
  const size_t limit = max_in_flight > 0 ? std::min(static_cast<size_t>(max_in_flight), queue_limit) : queue_limit;
  const auto sink = std::make_shared<BatchSink>(requests, first_id, on_output);
  Status refused;
  size_t num_submitted = 0;
  for (; num_submitted < count && refused.ok() && sink->error().ok(); ++num_submitted) {
    sink->wait_below(num_submitted, limit);
    Request request;
    request.id = first_id + num_submitted;
    request.prompt_token_ids = std::move(requests[num_submitted].prompt_token_ids);
    request.sampling = std::move(requests[num_submitted].sampling);
    request.eos_token_ids = eos_token_ids;
    request.constraint = std::move(requests[num_submitted].constraint);
    request.speculate = requests[num_submitted].speculate;
    request.speculative_reference = std::move(requests[num_submitted].speculative_reference);
    request.relaxed = requests[num_submitted].relaxed;
    request.sink = sink;
    refused = engine.submit(std::move(request));
    if (!refused.ok()) break;
  }
  if (!refused.ok()) {
    for (size_t i = 0; i < num_submitted; ++i) engine.cancel(first_id + i);
  }
  sink->wait_below(num_submitted, 1);
  RETURN_IF_ERROR(refused);
  RETURN_IF_ERROR(sink->error());
  return sink->take_results();
}

}  // namespace spate
