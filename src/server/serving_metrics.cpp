#include "server/serving_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace spate {
namespace {

const std::vector<double> kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                               1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kTokenBounds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                          .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kRequestBounds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kHttpBounds = {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120};
constexpr double kMaxTokens = 1'000'000;

MetricLabels with(MetricLabels labels, std::string name, std::string value) {
  labels.emplace_back(std::move(name), std::move(value));
  return labels;
}

template <typename T, size_t n>
void add_each(std::array<T, n>& to, const std::array<T, n>& from) {
  for (size_t i = 0; i < n; ++i) to[i] += from[i];
}

// The counters; gauges stay as they are.
void add_counters(EngineStats& to, const EngineStats& from) {
  to.num_steps += from.num_steps;
  to.num_preemptions += from.num_preemptions;
  to.prefix_cache_queries += from.prefix_cache_queries;
  to.prefix_cache_hits += from.prefix_cache_hits;
  to.prompt_tokens += from.prompt_tokens;
  to.prompt_tokens_cached += from.prompt_tokens_cached;
  to.generation_tokens += from.generation_tokens;
  to.num_forks += from.num_forks;
  to.num_drafts += from.num_drafts;
  to.num_drafts_accepted += from.num_drafts_accepted;
  to.num_drafts_relaxed += from.num_drafts_relaxed;
  to.num_drafted_rows += from.num_drafted_rows;
  add_each(to.num_accepted_at, from.num_accepted_at);
  to.num_tokens_drafted_steps += from.num_tokens_drafted_steps;
  to.num_tokens_expected += from.num_tokens_expected;
  to.num_nonfinite_rows += from.num_nonfinite_rows;
  to.num_wasted_rows += from.num_wasted_rows;
  to.num_refused += from.num_refused;
  add_each(to.finished, from.finished);
  add_each(to.iteration_tokens, from.iteration_tokens);
  to.iteration_tokens_sum += from.iteration_tokens_sum;
  to.device_seconds += from.device_seconds;
}

}  // namespace

ServingMetrics::ServingMetrics()
    : time_to_first_token_(kFirstTokenBounds),
      inter_token_latency_(kTokenBounds),
      time_per_output_token_(kTokenBounds),
      e2e_latency_(kRequestBounds),
      queue_time_(kRequestBounds),
      inference_time_(kRequestBounds),
      prefill_time_(kRequestBounds),
      decode_time_(kRequestBounds),
      prompt_tokens_(one_two_five_bounds(kMaxTokens)),
      generation_tokens_(one_two_five_bounds(kMaxTokens)),
      max_generation_tokens_(one_two_five_bounds(kMaxTokens)),
      params_max_tokens_(one_two_five_bounds(kMaxTokens)),
      prefill_computed_(one_two_five_bounds(kMaxTokens)),
      params_n_({1, 2, 5, 10, 20}),
      num_preemptions_({1, 2, 3, 4, 5, 10, 20}) {}

void ServingMetrics::observe_finished(const RequestTimes& times) {
  finished_[static_cast<size_t>(times.finish_reason)].add();
  generation_tokens_.observe(times.num_generation_tokens);
  num_preemptions_.observe(times.num_preemptions);
  e2e_latency_.observe(times.e2e_seconds);
  queue_time_.observe(times.queue_seconds);
  inference_time_.observe(times.e2e_seconds - times.queue_seconds);
  if (times.first_token_seconds > 0) {
    prefill_time_.observe(times.first_token_seconds - times.queue_seconds);
    const double decode_seconds = times.e2e_seconds - times.first_token_seconds;
    decode_time_.observe(decode_seconds);
    if (times.num_generation_tokens > 1) {
      time_per_output_token_.observe(decode_seconds / (times.num_generation_tokens - 1));
    }
  }
  if (!times.is_first_choice) return;
  prompt_tokens_.observe(times.num_prompt_tokens);
  prefill_computed_.observe(times.num_prompt_tokens - times.num_cached_tokens);
  max_generation_tokens_.observe(times.num_generation_tokens);
  params_max_tokens_.observe(times.max_tokens);
  params_n_.observe(times.n);
}

void ServingMetrics::render(MetricsWriter& out, const EngineStats& stats, const ModelLabels& labels) const {
  EngineStats all = stats;
  {
    const std::lock_guard lock(mutex_);
    add_counters(all, past_);
  }
  render_engine(out, all, labels);
  render_requests(out, {{"model_name", labels.model_name}, {"engine", "0"}});
}

void ServingMetrics::end_engine(const EngineStats& last) {
  const std::lock_guard lock(mutex_);
  add_counters(past_, last);
}

void ServingMetrics::render_engine(MetricsWriter& out, const EngineStats& stats, const ModelLabels& model) const {
  const MetricLabels labels{{"model_name", model.model_name}, {"engine", "0"}};
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  out.gauge("vllm:num_requests_running", "Sequences that run.", labels, stats.num_running);
  out.gauge("vllm:num_requests_waiting", "Sequences that wait to run.", labels, stats.num_waiting);
  out.family("vllm:num_requests_waiting_by_reason", "gauge", "Sequences that wait to run, by reason.");
  out.sample("vllm:num_requests_waiting_by_reason", with(labels, "reason", "capacity"), stats.num_waiting);
  out.sample("vllm:num_requests_waiting_by_reason", with(labels, "reason", "deferred"), 0);
  out.gauge("vllm:kv_cache_usage_perc", "KV cache in use, 0 to 1.", labels, stats.kv_cache_usage);
  MetricLabels cache = model.cache_config;
  cache.insert(cache.begin(), labels.begin(), labels.end());
  out.gauge("vllm:cache_config_info", "The KV cache's configuration, as labels.", cache, 1);
  // For routers that read it. A model that sleeps keeps nothing of its weights; there are no adapters.
  out.family("vllm:engine_sleep_state", "gauge", "1 where the engine is in that state.");
  for (const char* state : {"awake", "weights_offloaded", "discard_all"}) {
    out.sample("vllm:engine_sleep_state", with(labels, "sleep_state", state),
               std::string_view(state) == (model.is_asleep ? "discard_all" : "awake") ? 1 : 0);
  }
  MetricLabels adapters = labels;
  adapters.insert(adapters.end(), {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}});
  out.gauge("vllm:lora_requests_info", "Adapters in use, as labels.", adapters, 0);
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", labels,
              count(stats.prefix_cache_queries));
  out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", labels,
              count(stats.prefix_cache_hits));
  const double num_queries = count(stats.prefix_cache_queries);
  out.gauge("spate:prefix_cache_hit_rate", "Share of the prompt tokens looked up that were found, since the start.",
            labels, num_queries > 0 ? count(stats.prefix_cache_hits) / num_queries : 0);
  out.counter("vllm:num_preemptions_total", "Sequences preempted.", labels, count(stats.num_preemptions));
  out.counter("vllm:prompt_tokens_total", "Prompt tokens processed.", labels, count(stats.prompt_tokens));
  out.counter("vllm:generation_tokens_total", "Tokens of answers.", labels, count(told_tokens_.value()));
  out.counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.", labels,
              count(stats.prompt_tokens_cached));
  out.family("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where their KV came from.");
  out.sample("vllm:prompt_tokens_by_source_total", with(labels, "source", "local_compute"),
             count(stats.prompt_tokens - std::min(stats.prompt_tokens, stats.prompt_tokens_cached)));
  out.sample("vllm:prompt_tokens_by_source_total", with(labels, "source", "local_cache_hit"),
             count(stats.prompt_tokens_cached));
  const auto& bounds = EngineStats::kIterationTokenBuckets;
  out.histogram("vllm:iteration_tokens_total", "Tokens of a step.", labels, {bounds.begin(), bounds.end()},
                {stats.iteration_tokens.begin(), stats.iteration_tokens.end()}, count(stats.iteration_tokens_sum));
  out.gauge("spate:kv_blocks_used", "KV blocks that sequences hold; 0 when idle.", labels, stats.num_kv_blocks_used);
  out.gauge("spate:kv_blocks_cached", "KV blocks kept for their prefix only.", labels, stats.num_kv_blocks_cached);
  out.counter("spate:engine_steps_total", "Steps run.", labels, count(stats.num_steps));
  out.counter("spate:engine_wasted_rows_total", "Row-steps of sequences that had ended.", labels,
              count(stats.num_wasted_rows));
  out.counter("spate:engine_nonfinite_logits_total", "Requests ended because their logits were not finite.", labels,
              count(stats.num_nonfinite_rows));
  render_speculation(out, stats, labels);
  out.family("vllm:admission_rejections_total", "counter",
             "Requests refused because the queue was full, by its bound.");
  out.sample("vllm:admission_rejections_total", with(labels, "reason", "max_num_queued_reqs"),
             count(stats.num_refused));
  out.counter("spate:requests_refused_total", "Requests refused because the queue was full.", labels,
              count(stats.num_refused));
  out.counter("spate:device_seconds_total", "Seconds the device worked.", labels, stats.device_seconds);
}

void ServingMetrics::render_speculation(MetricsWriter& out, const EngineStats& stats, const MetricLabels& labels) const {
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  out.counter("vllm:spec_decode_num_drafts_total", "Row-steps that had drafts.", labels, count(stats.num_drafted_rows));
  out.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens that ran.", labels, count(stats.num_drafts));
  out.counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that were kept.", labels,
              count(stats.num_drafts_accepted));
  out.counter("spate:spec_decode_num_relaxed_tokens_total",
              "Of these, tokens that the model did not choose: relaxed acceptance.", labels,
              count(stats.num_drafts_relaxed));
  out.family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
             "Draft tokens accepted, by their place among the drafts of a row-step.");
  for (size_t i = 0; i < stats.num_accepted_at.size(); ++i) {
    out.sample("vllm:spec_decode_num_accepted_tokens_per_pos_total", with(labels, "position", std::to_string(i)),
               count(stats.num_accepted_at[i]));
  }
  out.counter("spate:spec_decode_step_tokens_total", "Tokens that steps with drafts gave.", labels,
              count(stats.num_tokens_drafted_steps));
  out.counter("spate:spec_decode_expected_step_tokens_total", "Of these steps: what the controller of drafts expected.",
              labels, stats.num_tokens_expected);
}

void ServingMetrics::render_requests(MetricsWriter& out, const MetricLabels& labels) const {
  out.family("vllm:request_success_total", "counter", "Sequences finished, by reason.");
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort,
                                    FinishReason::kError, FinishReason::kRepetition}) {
    out.sample("vllm:request_success_total", with(labels, "finished_reason", std::string(finish_reason_name(reason))),
               static_cast<double>(finished_[static_cast<size_t>(reason)].value()));
  }
  out.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", labels, time_to_first_token_);
  out.histogram("vllm:inter_token_latency_seconds", "Between tokens of a sequence.", labels, inter_token_latency_);
  out.histogram("vllm:request_time_per_output_token_seconds", "Mean time between a request's tokens.", labels,
                time_per_output_token_);
  out.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", labels, e2e_latency_);
  out.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", labels, queue_time_);
  out.histogram("vllm:request_inference_time_seconds", "From the first step to the end.", labels, inference_time_);
  out.histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", labels, prefill_time_);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", labels, decode_time_);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", labels, prompt_tokens_);
  out.histogram("vllm:request_generation_tokens", "Generated tokens of a sequence.", labels, generation_tokens_);
  out.histogram("vllm:request_max_num_generation_tokens", "Most generated tokens of a request.", labels,
                max_generation_tokens_);
  out.histogram("vllm:request_params_max_tokens", "max_tokens of requests.", labels, params_max_tokens_);
  out.histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed, the cached ones left out.", labels,
                prefill_computed_);
  out.histogram("vllm:request_num_preemptions", "Preemptions of a sequence.", labels, num_preemptions_);
  out.histogram("vllm:request_params_n", "n of requests.", labels, params_n_);
}

HttpMetrics::HttpMetrics() : duration_(kHttpBounds) {}

void HttpMetrics::count(const std::string& handler, const std::string& method, int status, double seconds) {
  duration_.observe(seconds);
  const std::lock_guard lock(mutex_);
  ++requests_[{handler, method, status}];
}

void HttpMetrics::render(MetricsWriter& out) const {
  out.family("http_requests_total", "counter", "HTTP requests answered.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : requests_) {
      const auto& [handler, method, status] = key;
      out.sample("http_requests_total", {{"handler", handler}, {"method", method}, {"status", std::to_string(status)}},
                 static_cast<double>(count));
    }
  }
  out.histogram("http_request_duration_seconds", "From a request's first byte to the end of its answer.", {},
                duration_);
  out.counter("spate:unknown_request_fields_total", "Request fields that are not known and were ignored.", {},
              static_cast<double>(unknown_fields_.value()));
}

void render_process_metrics(MetricsWriter& out) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  out.counter("process_cpu_seconds_total", "CPU time of the process.", {},
              seconds(usage.ru_utime) + seconds(usage.ru_stime));

  std::ifstream statm("/proc/self/statm");
  double virtual_pages = 0, resident_pages = 0;
  statm >> virtual_pages >> resident_pages;
  const double page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  out.gauge("process_virtual_memory_bytes", "Virtual memory.", {}, virtual_pages * page_bytes);
  out.gauge("process_resident_memory_bytes", "Resident memory.", {}, resident_pages * page_bytes);

  std::error_code error;
  double num_fds = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++num_fds;
  }
  out.gauge("process_open_fds", "Open file descriptors.", {}, num_fds);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  out.gauge("process_max_fds", "Most file descriptors.", {}, static_cast<double>(limit.rlim_cur));

  // Field 22 of stat is the start in clock ticks since boot; the name in field 2 may hold spaces.
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string line;
  std::getline(stat, line);
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  double seconds_up = 0;
  uptime >> seconds_up;
  const double start = std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  out.gauge("process_start_time_seconds", "Start of the process, seconds since 1970.", {},
            std::floor(now - seconds_up + start));
}

}  // namespace spate
