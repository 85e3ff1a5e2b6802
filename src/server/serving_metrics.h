// What /metrics says: vLLM's names, so that its dashboards and autoscalers work unchanged.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "core/request.h"
#include "engine/engine.h"
#include "server/metrics.h"

namespace spate {

// A finished sequence's times and counts; seconds.
struct RequestTimes {
  double queue_seconds = 0;
  double first_token_seconds = 0;  // since arrival; 0 when there was no token
  double e2e_seconds = 0;
  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;
  int num_generation_tokens = 0;
  int num_preemptions = 0;
  int max_tokens = 0;
  int n = 1;
  bool is_first_choice = true;  // counts the prompt once
  FinishReason finish_reason = FinishReason::kNone;
};

// Of one model. Filled by its front-end, from any thread.
class ServingMetrics {
 public:
  ServingMetrics();

  void observe_first_token(double seconds) { time_to_first_token_.observe(seconds); }
  void observe_inter_token(double seconds) { inter_token_latency_.observe(seconds); }
  void count_told_tokens(size_t num_tokens) { told_tokens_.add(num_tokens); }
  void observe_finished(const RequestTimes& times);

  const Histogram& time_to_first_token() const { return time_to_first_token_; }
  const Histogram& inter_token_latency() const { return inter_token_latency_; }

  struct ModelLabels {
    std::string model_name;
    MetricLabels cache_config;  // labels of vllm:cache_config_info
    bool is_asleep = false;
  };
  void render(MetricsWriter& out, const EngineStats& stats, const ModelLabels& labels) const;
  // The engine ends and another one will follow: its counters are added to those of the next.
  void end_engine(const EngineStats& last);

 private:
  void render_engine(MetricsWriter& out, const EngineStats& stats, const ModelLabels& labels) const;
  void render_speculation(MetricsWriter& out, const EngineStats& stats, const MetricLabels& labels) const;
  void render_requests(MetricsWriter& out, const MetricLabels& labels) const;

  mutable std::mutex mutex_;                         // guards past_
  EngineStats past_;                                 // counters of engines that have ended
  std::array<Counter, kNumFinishReasons> finished_;  // by FinishReason
  Counter told_tokens_;                              // of answers: without what came behind a stop string
  Histogram time_to_first_token_, inter_token_latency_, time_per_output_token_;
  Histogram e2e_latency_, queue_time_, inference_time_, prefill_time_, decode_time_;
  Histogram prompt_tokens_, generation_tokens_, max_generation_tokens_, params_max_tokens_, prefill_computed_,
      params_n_, num_preemptions_;
};

// Of the server, whatever the model. Filled by the HTTP server, from any thread.
class HttpMetrics {
 public:
  HttpMetrics();
  void count(const std::string& handler, const std::string& method, int status, double seconds);
  void count_unknown_field() { unknown_fields_.add(); }
  void render(MetricsWriter& out) const;

 private:
  Counter unknown_fields_;
  Histogram duration_;
  mutable std::mutex mutex_;  // guards requests_
  std::map<std::tuple<std::string, std::string, int>, uint64_t> requests_;
};

// process_resident_memory_bytes and its like, from /proc/self.
void render_process_metrics(MetricsWriter& out);

}  // namespace spate
