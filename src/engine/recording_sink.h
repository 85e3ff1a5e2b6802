// RecordingSink: keeps all Outputs of its requests, for tests. Any thread may wait and read.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/request.h"

namespace spate {

class RecordingSink : public OutputSink {
 public:
  // One sequence's Outputs put together.
  struct Answer {
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs, prompt_logprobs;
    std::vector<float> hidden_state;
    FinishReason finish_reason = FinishReason::kNone;
    int32_t stop_token_id = -1;
    Status error;
    int num_cached_tokens = 0;
    int num_outputs = 0;
    int num_ends = 0;  // must become 1
  };

  void push(std::vector<Output> outputs) override {
    const std::lock_guard lock(mutex_);
    ++num_pushes_;
    for (Output& output : outputs) {
      Answer& answer = answers_[{output.request_id, output.index}];
      answer.token_ids.insert(answer.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
      for (TokenLogprobs& entry : output.logprobs) answer.logprobs.push_back(std::move(entry));
      if (!output.prompt_logprobs.empty()) answer.prompt_logprobs = std::move(output.prompt_logprobs);
      if (!output.hidden_state.empty()) answer.hidden_state = std::move(output.hidden_state);
      answer.finish_reason = output.finish_reason;
      answer.stop_token_id = output.stop_token_id;
      answer.error = output.error;
      answer.num_cached_tokens += output.num_cached_tokens;
      ++answer.num_outputs;
      answer.num_ends += output.finish_reason != FinishReason::kNone;
      num_ended_ += output.finish_reason != FinishReason::kNone;
    }
    changed_.notify_all();
  }

  Answer answer(RequestId id, int index = 0) const {
    const std::lock_guard lock(mutex_);
    const auto it = answers_.find({id, index});
    return it == answers_.end() ? Answer{} : it->second;
  }
  int num_pushes() const {
    const std::lock_guard lock(mutex_);
    return num_pushes_;
  }
  // Until so many sequences have ended; false after a minute.
  bool wait_for_ends(int num_ended) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return num_ended_ >= num_ended; });
  }
  // Until a sequence has sent so many tokens or has ended; false after a minute.
  bool wait_for_tokens(RequestId id, size_t num_tokens) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] {
      const auto it = answers_.find({id, 0});
      return it != answers_.end() && (it->second.token_ids.size() >= num_tokens || it->second.num_ends > 0);
    });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::pair<RequestId, int>, Answer> answers_;
  int num_pushes_ = 0;
  int num_ended_ = 0;
};

}  // namespace spate
