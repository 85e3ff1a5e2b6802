// Tracer: a trace of each request, to an OpenTelemetry collector (OTLP over HTTP, JSON).
//
// A request is a span `llm_request` with vLLM's attributes, child of the caller's span where a traceparent came, and
// four spans in it, one after the other: queue, prefill, decode, detokenize (from the last token to the end of the
// answer). A thread of its own sends them in batches. Requests never wait for it: what a slow collector cannot take is
// dropped, counted and logged.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "server/trace_context.h"

namespace spate {

struct RequestTrace {
  using TimePoint = std::chrono::steady_clock::time_point;
  std::optional<TraceContext> parent;
  std::string request_id;
  std::string model;
  TimePoint arrival, scheduled, end;
  std::optional<TimePoint> first_token, last_token;  // absent: there was none
  int n = 1;
  int max_tokens = 0;
  double temperature = 0, top_p = 1;
  int64_t num_prompt_tokens = 0, num_cached_tokens = 0, num_completion_tokens = 0;
  std::string finish_reason;  // of the first choice
  std::string error;          // empty: none
};

// The body of an ExportTraceServiceRequest. Ids of spans and of traces without a parent are drawn.
std::string otlp_traces_json(const std::vector<RequestTrace>& traces, const std::string& service_name,
                             const std::string& service_version);

class Tracer {
 public:
  // Sends one body, on the tracer's thread; may take seconds, less when `should_stop` becomes true.
  using Send = std::function<Status(const std::string& body, const std::function<bool()>& should_stop)>;
  struct Options {
    std::string service_name = "spate";
    std::string service_version;
    size_t max_waiting = 8192;  // traces; beyond them new ones are dropped
    size_t max_batch = 512;
    std::chrono::milliseconds interval{1000};       // a batch is sent so long after its first trace at the latest
    std::chrono::milliseconds retry_delay{1000};    // before the second attempt; twice that before the third, the last
    std::chrono::milliseconds flush_timeout{2000};  // at the end, for what waits
  };
  Tracer(Options options, Send send);
  ~Tracer();  // sends what waits, within flush_timeout
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Any thread; never waits. Of a caller that does not want its request sampled, nothing is kept.
  void record(RequestTrace trace);
  uint64_t num_sent() const { return num_sent_; }
  uint64_t num_dropped() const { return num_dropped_; }

 private:
  void run();
  void send(const std::vector<RequestTrace>& batch);
  bool should_stop() const;  // the end has come and its time is over

  const Options options_;
  const Send send_;
  std::atomic<uint64_t> num_sent_{0}, num_dropped_{0};
  std::atomic<int64_t> stop_at_{0};                     // steady clock's ticks; 0: no end is near
  std::chrono::steady_clock::time_point next_warning_;  // the thread's own
  uint64_t num_warned_ = 0;                             // dropped until the last warning

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<RequestTrace> waiting_;
  bool is_stopping_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace spate
