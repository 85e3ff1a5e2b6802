#include "backend/test_device/recording_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>

#include "backend/test_device/launch_text.h"

namespace spate {
namespace {

class RecordingDevice final : public InterceptingDevice {
 public:
  RecordingDevice(std::unique_ptr<Device> inner, RecordingOptions options)
      : InterceptingDevice(std::move(inner)), options_(std::move(options)) {}

  StepKey padded_step(const StepKey& exact, const StepKey& largest) const override {
    return options_.padded_step ? options_.padded_step(exact, largest) : inner().padded_step(exact, largest);
  }

  void on_launch(Launch launch) override {
    launch.run();
    if (in_step_) launches_.push_back(std::move(launch));
  }

  void run_step(Stream&, const StepKey& key, const std::function<void()>& step) override {
    const std::string identity = launch_text(options_.identity ? options_.identity(key) : key);
    const auto recorded = recorded_.find(identity);
    ++options_.log->num_steps;
    options_.log->num_repeated += recorded != recorded_.end();
    if (recorded != recorded_.end() && options_.replay) {
      for (const Launch& launch : recorded->second) launch.run();
      return;
    }
    launches_.clear();
    in_step_ = true;
    step();
    in_step_ = false;
    if (recorded == recorded_.end()) {
      recorded_.emplace(identity, std::move(launches_));
    } else {
      compare(identity, recorded->second);
    }
  }

 private:
  void compare(const std::string& identity, const std::vector<Launch>& recorded) {
    const auto text = [](const std::vector<Launch>& launches, size_t i) {
      return i < launches.size() ? launches[i].text : std::string("nothing");
    };
    for (size_t i = 0; i < std::max(recorded.size(), launches_.size()); ++i) {
      if (text(recorded, i) == text(launches_, i)) continue;
      options_.log->mismatches.push_back(
          fmt::format("launch {} of {}: {}, recorded was {}", i, identity, text(launches_, i), text(recorded, i)));
      return;
    }
  }

  RecordingOptions options_;
  std::map<std::string, std::vector<Launch>> recorded_;
  std::vector<Launch> launches_;  // of the step in progress
  bool in_step_ = false;
};

int rounded_up(int count, int largest) {
  return count <= 0 ? count : std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(count))), largest);
}

}  // namespace

std::unique_ptr<Device> make_recording_device(std::unique_ptr<Device> inner, RecordingOptions options) {
  return std::make_unique<RecordingDevice>(std::move(inner), std::move(options));
}

StepKey power_of_two_step(const StepKey& exact, const StepKey& largest) {
  StepKey key = exact;
  key.num_seqs = rounded_up(exact.num_seqs, largest.num_seqs);
  key.num_tokens = rounded_up(exact.num_tokens, largest.num_tokens);
  key.num_logits = rounded_up(exact.num_logits, largest.num_logits);
  key.max_query_len = rounded_up(exact.max_query_len, largest.max_query_len);
  key.max_seq_len = rounded_up(exact.max_seq_len, largest.max_seq_len);
  key.num_top_logprobs = exact.num_top_logprobs > 0 ? largest.num_top_logprobs : exact.num_top_logprobs;
  return key;
}

}  // namespace spate
