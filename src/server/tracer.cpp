#include "server/tracer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "server/json_writer.h"
#include "server/random_hex.h"

namespace spate {
namespace {

using SteadyClock = std::chrono::steady_clock;
using TimePoint = RequestTrace::TimePoint;

constexpr int kMaxAttempts = 3;
constexpr auto kWarningInterval = std::chrono::seconds(60);
constexpr int kInternalKind = 1, kServerKind = 2;  // SpanKind
constexpr int kErrorCode = 2;                      // Status.StatusCode

double span_seconds(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

// Moments of the steady clock as nanoseconds since 1970, which OTLP's JSON has as text.
class UnixTime {
 public:
  std::string operator()(TimePoint time) const {
    const auto nanoseconds =
        std::chrono::duration_cast<std::chrono::nanoseconds>((system_ - (steady_ - time)).time_since_epoch());
    return std::to_string(nanoseconds.count());
  }

 private:
  const std::chrono::sys_time<std::chrono::nanoseconds> system_ = std::chrono::system_clock::now();
  const TimePoint steady_ = SteadyClock::now();
};

void write_attribute(JsonWriter& json, const char* name, const std::string& text) {
  json.begin_object()
      .field("key", name)
      .key("value")
      .begin_object()
      .field("stringValue", text)
      .end_object()
      .end_object();
}
void write_attribute(JsonWriter& json, const char* name, int64_t number) {
  json.begin_object().field("key", name).key("value").begin_object();
  json.field("intValue", std::to_string(number)).end_object().end_object();
}
void write_attribute(JsonWriter& json, const char* name, double number) {
  json.begin_object()
      .field("key", name)
      .key("value")
      .begin_object()
      .field("doubleValue", number)
      .end_object()
      .end_object();
}

struct SpanHead {
  const std::string& trace_id;
  const std::string& span_id;
  const std::string& parent_span_id;  // empty: none
  const char* name;
  int kind;
  TimePoint start, end;
};

void begin_span(JsonWriter& json, const UnixTime& unix_time, const SpanHead& head) {
  json.begin_object().field("traceId", head.trace_id).field("spanId", head.span_id);
  if (!head.parent_span_id.empty()) json.field("parentSpanId", head.parent_span_id);
  json.field("name", head.name).field("kind", head.kind);
  json.field("startTimeUnixNano", unix_time(head.start))
      .field("endTimeUnixNano", unix_time(std::max(head.start, head.end)));
}

// Names and units of vLLM's llm_request span; seconds.
void write_attributes(JsonWriter& json, const RequestTrace& trace) {
  json.key("attributes").begin_array();
  write_attribute(json, "gen_ai.request.id", trace.request_id);
  write_attribute(json, "gen_ai.response.model", trace.model);
  write_attribute(json, "gen_ai.request.n", static_cast<int64_t>(trace.n));
  write_attribute(json, "gen_ai.request.max_tokens", static_cast<int64_t>(trace.max_tokens));
  write_attribute(json, "gen_ai.request.temperature", trace.temperature);
  write_attribute(json, "gen_ai.request.top_p", trace.top_p);
  write_attribute(json, "gen_ai.usage.prompt_tokens", trace.num_prompt_tokens);
  write_attribute(json, "gen_ai.usage.completion_tokens", trace.num_completion_tokens);
  write_attribute(json, "spate.usage.cached_tokens", trace.num_cached_tokens);
  write_attribute(json, "gen_ai.latency.time_in_queue", span_seconds(trace.arrival, trace.scheduled));
  write_attribute(json, "gen_ai.latency.e2e", span_seconds(trace.arrival, trace.end));
  if (trace.first_token) {
    const TimePoint last = trace.last_token.value_or(*trace.first_token);
    write_attribute(json, "gen_ai.latency.time_to_first_token", span_seconds(trace.arrival, *trace.first_token));
    write_attribute(json, "gen_ai.latency.time_in_model_prefill", span_seconds(trace.scheduled, *trace.first_token));
    write_attribute(json, "gen_ai.latency.time_in_model_decode", span_seconds(*trace.first_token, last));
    write_attribute(json, "gen_ai.latency.time_in_model_inference", span_seconds(trace.scheduled, last));
  }
  if (!trace.finish_reason.empty()) write_attribute(json, "gen_ai.response.finish_reason", trace.finish_reason);
  json.end_array();
}

void write_trace(JsonWriter& json, const UnixTime& unix_time, const RequestTrace& trace) {
  const std::string trace_id = trace.parent ? trace.parent->trace_id : random_hex(32);
  const std::string parent_id = trace.parent ? trace.parent->span_id : std::string();
  const std::string request_id = random_hex(16);
  begin_span(json, unix_time, {trace_id, request_id, parent_id, "llm_request", kServerKind, trace.arrival, trace.end});
  write_attributes(json, trace);
  if (!trace.error.empty()) {
    json.key("status").begin_object().field("code", kErrorCode).field("message", trace.error).end_object();
  }
  json.end_object();
  const auto write_part = [&](const char* name, TimePoint start, TimePoint end) {
    begin_span(json, unix_time, {trace_id, random_hex(16), request_id, name, kInternalKind, start, end});
    json.end_object();
  };
  write_part("queue", trace.arrival, trace.scheduled);
  write_part("prefill", trace.scheduled, trace.first_token.value_or(trace.end));
  if (!trace.first_token) return;
  const TimePoint last = trace.last_token.value_or(*trace.first_token);
  write_part("decode", *trace.first_token, last);
  write_part("detokenize", last, trace.end);
}

}  // namespace

std::string otlp_traces_json(const std::vector<RequestTrace>& traces, const std::string& service_name,
                             const std::string& service_version) {
  const UnixTime unix_time;
  JsonWriter json;
  json.begin_object().key("resourceSpans").begin_array().begin_object();
  json.key("resource").begin_object().key("attributes").begin_array();
  write_attribute(json, "service.name", service_name);
  write_attribute(json, "service.version", service_version);
  json.end_array().end_object();
  json.key("scopeSpans").begin_array().begin_object();
  json.key("scope").begin_object().field("name", "spate").field("version", service_version).end_object();
  json.key("spans").begin_array();
  for (const RequestTrace& trace : traces) write_trace(json, unix_time, trace);
  json.end_array().end_object().end_array();
  json.end_object().end_array().end_object();
  return json.take();
}

Tracer::Tracer(Options options, Send send)
    : options_(std::move(options)), send_(std::move(send)), thread_([this] { run(); }) {}

Tracer::~Tracer() {
  stop_at_ = (SteadyClock::now() + options_.flush_timeout).time_since_epoch().count();
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Tracer::record(RequestTrace trace) {
  if (trace.parent && !trace.parent->is_sampled) return;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= options_.max_waiting) {
      ++num_dropped_;
      return;
    }
    waiting_.push_back(std::move(trace));
    if (waiting_.size() != 1 && waiting_.size() != options_.max_batch) return;
  }
  changed_.notify_all();
}

bool Tracer::should_stop() const {
  const int64_t stop_at = stop_at_;
  return stop_at != 0 && SteadyClock::now().time_since_epoch().count() >= stop_at;
}

void Tracer::run() {
  while (true) {
    std::vector<RequestTrace> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
      changed_.wait_for(lock, options_.interval,
                        [this] { return is_stopping_ || waiting_.size() >= options_.max_batch; });
      if (waiting_.empty()) return;
      const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(waiting_.size(), options_.max_batch));
      batch.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
      waiting_.erase(waiting_.begin(), end);
    }
    send(batch);
  }
}

void Tracer::send(const std::vector<RequestTrace>& batch) {
  const std::string body = otlp_traces_json(batch, options_.service_name, options_.service_version);
  Status status = unavailable("the server ends");
  for (int attempt = 1; attempt <= kMaxAttempts && !should_stop(); ++attempt) {
    status = send_(body, [this] { return should_stop(); });
    if (status.ok()) {
      num_sent_ += batch.size();
      break;
    }
    if (attempt == kMaxAttempts) break;
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, options_.retry_delay * attempt, [this] { return is_stopping_; })) break;
  }
  if (!status.ok()) num_dropped_ += batch.size();
  const auto now = SteadyClock::now();
  if (num_dropped_ == num_warned_ || now < next_warning_) return;
  log_warning("tracer", "{} traces are lost since the last such line{}", num_dropped_ - num_warned_,
              status.ok() ? std::string(": more came than could be sent") : ": " + status.message());
  num_warned_ = num_dropped_;
  next_warning_ = now + kWarningInterval;
}

}  // namespace spate
