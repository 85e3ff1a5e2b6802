// EngineLog: what each model's engine did since the last time, in the lines that people grep in vLLM's logs.
//
//   EngineLog log;
//   ... every few seconds ... const bool is_stuck = log.write(registry.all());
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/model_registry.h"

namespace spate {

// "Avg prompt throughput: ..." where steps ran or requests are there, and "SpecDecoding metrics: ..." where drafts ran.
// `seconds`: from `last` to `stats`, above 0.
std::vector<std::string> describe_rates(const EngineStats& stats, const EngineStats& last, double seconds);

// For one thread.
class EngineLog {
 public:
  // True: sequences of one run, and no step has ended for 300 s.
  bool write(std::span<const std::shared_ptr<ServedModel>> models);

 private:
  using Clock = std::chrono::steady_clock;
  struct Last {
    Clock::time_point time;
    Clock::time_point step_time;
    std::weak_ptr<Frontend> frontend;  // whose counters they are: those of another begin at 0
    EngineStats stats;
  };

  bool write_model(const std::string& title, const EngineStats& stats, Last& last) const;

  std::map<std::shared_ptr<ServedModel>, Last> last_;
  Clock::time_point written_ = Clock::now();
};

}  // namespace spate
