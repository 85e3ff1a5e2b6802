// Goal    /metrics is valid Prometheus text with vLLM's names, and histograms count what was observed.
// Method  A small parser of the exposition format that refuses what Prometheus refuses: samples without a type,
//         duplicate series, buckets that fall, a +Inf bucket that is not the count.
#include "server/serving_metrics.h"

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "server/json_writer.h"
#include "server/metrics_compat.h"

#include "base/test.h"

namespace spate {
namespace {

struct Page {
  std::map<std::string, std::string> types;
  std::map<std::string, double> samples;  // "name{labels}"
  std::string problem;
};

// The family of a sample's name: histograms add suffixes.
std::string family_of(const Page& page, const std::string& name) {
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    const std::string tail(suffix);
    if (!name.ends_with(tail)) continue;
    const std::string base = name.substr(0, name.size() - tail.size());
    const auto type = page.types.find(base);
    if (type != page.types.end() && type->second == "histogram") return base;
  }
  return name;
}

Page parse_page(const std::string& text) {
  Page page;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string hash, keyword, name, type;
    if (line.starts_with("# ")) {
      fields >> hash >> keyword >> name >> type;
      if (keyword == "TYPE" && !page.types.emplace(name, type).second) page.problem = "two types: " + name;
      continue;
    }
    const size_t space = line.rfind(' ');
    const std::string series = line.substr(0, space);
    name = series.substr(0, series.find('{'));
    if (page.types.count(family_of(page, name)) == 0) page.problem = "no type: " + name;
    size_t used = 0;
    const double value = std::stod(line.substr(space + 1), &used);
    if (used != line.size() - space - 1) page.problem = "no number: " + line;
    if (!page.samples.emplace(series, value).second) page.problem = "twice: " + series;
  }
  if (!text.ends_with("\n")) page.problem = "no line break at the end";
  return page;
}

// What Prometheus refuses of a histogram: buckets out of order or falling, none for +Inf, another +Inf than the count.
// Empty: nothing.
std::string histogram_problem(const Page& page, const std::string& name, const std::string& labels) {
  std::map<double, double> buckets;  // by upper bound
  for (const auto& [series, value] : page.samples) {
    if (!series.starts_with(name + "_bucket" + labels.substr(0, labels.size() - 1))) continue;
    const size_t le = series.find("le=\"");
    if (le == std::string::npos) return "a bucket without le: " + series;
    const std::string bound = series.substr(le + 4, series.find('"', le + 4) - le - 4);
    buckets[bound == "+Inf" ? INFINITY : std::stod(bound)] = value;
  }
  if (buckets.size() < 2 || buckets.rbegin()->first != INFINITY) return "no bucket for +Inf";
  double last = 0;
  for (const auto& [bound, value] : buckets) {
    if (value < last) return "a bucket falls to " + std::to_string(value) + " at " + std::to_string(bound);
    last = value;
  }
  if (page.samples.at(name + "_count" + labels) != last) return "the count is not that of +Inf";
  return "";
}

}  // namespace

TEST_CASE("metrics: the page is valid and has the names that dashboards and autoscalers read") {
  ServingMetrics metrics;
  metrics.observe_first_token(0.03);
  metrics.observe_inter_token(0.02);
  metrics.observe_finished({.queue_seconds = 0.1,
                            .first_token_seconds = 0.2,
                            .e2e_seconds = 1.2,
                            .num_prompt_tokens = 7,
                            .num_cached_tokens = 3,
                            .num_generation_tokens = 11,
                            .num_preemptions = 2,
                            .max_tokens = 16,
                            .n = 2,
                            .finish_reason = FinishReason::kStop});
  HttpMetrics http;
  http.count("/v1/models", "GET", 200, 0.01);
  EngineStats stats;
  stats.num_running = 3;
  stats.kv_cache_usage = 0.25;
  stats.iteration_tokens[1] = 5;
  stats.iteration_tokens_sum = 20;
  stats.num_refused = 4;
  MetricsWriter out;
  metrics.render(out, stats, {.model_name = "a\"b\\c\nd", .cache_config = {{"block_size", "16"}}});
  ServingMetrics().render(out, EngineStats{}, {.model_name = "second", .cache_config = {}});
  http.render(out);
  render_process_metrics(out);
  const Page page = parse_page(out.take());
  CHECK(page.problem == "");

  const std::string labels = R"({model_name="a\"b\\c\nd",engine="0"})";
  CHECK(page.samples.at("vllm:num_requests_running" + labels) == 3);
  CHECK(page.samples.at(R"(vllm:num_requests_running{model_name="second",engine="0"})") == 0);
  CHECK(page.samples.at("vllm:kv_cache_usage_perc" + labels) == 0.25);
  CHECK(page.samples.at("vllm:request_success_total" + labels.substr(0, labels.size() - 1) +
                        R"(,finished_reason="stop"})") == 1);
  CHECK(page.samples.at("vllm:e2e_request_latency_seconds_sum" + labels) == 1.2);
  CHECK(page.samples.at("vllm:request_num_preemptions_sum" + labels) == 2);
  CHECK(page.samples.at("vllm:admission_rejections_total" + labels.substr(0, labels.size() - 1) +
                        R"(,reason="max_num_queued_reqs"})") == 4);
  CHECK(page.samples.at("vllm:request_prefill_kv_computed_tokens_sum" + labels) == 4);
  CHECK(page.samples.at("vllm:iteration_tokens_total_count" + labels) == 5);
  CHECK(page.samples.at(R"(http_requests_total{handler="/v1/models",method="GET",status="200"})") == 1);
  CHECK(page.samples.at("process_resident_memory_bytes") > 1e6);
  CHECK(page.samples.at("process_open_fds") > 2);
  CHECK(page.samples.at("process_start_time_seconds") > 1.6e9);
  for (const char* name :
       {"vllm:e2e_request_latency_seconds", "vllm:inter_token_latency_seconds", "vllm:time_to_first_token_seconds",
        "vllm:request_decode_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_queue_time_seconds",
        "vllm:request_generation_tokens", "vllm:request_prompt_tokens", "vllm:request_max_num_generation_tokens",
        "vllm:iteration_tokens_total", "vllm:request_params_n", "vllm:request_params_max_tokens",
        "vllm:request_num_preemptions"}) {
    INFO(name);
    CHECK(page.types.at(name) == "histogram");
    CHECK(histogram_problem(page, name, labels) == "");
  }
  for (const char* name : {"vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:num_preemptions_total",
                           "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"}) {
    CHECK(page.types.at(name) == "counter");
  }
  CHECK(page.types.at("vllm:cache_config_info") == "gauge");
}

// The instrument: it must see what it is for.
TEST_CASE("metrics: a histogram whose buckets fall, or whose count is another, is noticed") {
  const std::string good =
      "# TYPE t histogram\nt_bucket{le=\"1.0\"} 1\nt_bucket{le=\"10.0\"} 2\nt_bucket{le=\"+Inf\"} 3\nt_sum{} "
      "9\nt_count{} 3\n";
  const auto problem_after = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    return histogram_problem(parse_page(text), "t", "{}");
  };
  CHECK(problem_after("", "") == "");
  CHECK(problem_after("le=\"1.0\"} 1", "le=\"1.0\"} 3").find("falls") != std::string::npos);
  CHECK(problem_after("le=\"+Inf\"} 3", "le=\"+Inf\"} 1").find("falls") != std::string::npos);
  CHECK(problem_after("t_count{} 3", "t_count{} 4").find("count") != std::string::npos);
  CHECK(problem_after("t_bucket{le=\"+Inf\"} 3\n", "").find("+Inf") != std::string::npos);
}

TEST_CASE("metrics: the names of other engines beside ours, the same samples") {
  EngineStats stats;
  stats.num_running = 3;
  stats.prefix_cache_queries = 40;
  stats.prefix_cache_hits = 10;
  MetricsWriter out;
  ServingMetrics metrics;
  metrics.render(out, stats, {.model_name = "# HELP vllm:num_requests_running x", .cache_config = {}});
  const std::string text = out.take();
  CHECK(with_metric_aliases(text, {}) == text);
  CHECK(with_metric_aliases(text, {"vllm"}) == text);
  const Page ours = parse_page(text), all = parse_page(with_metric_aliases(text, {"sglang", "legacy", "fastdeploy"}));
  CHECK(all.problem == "");
  size_t num_samples = ours.samples.size();
  for (const MetricAlias& alias : metric_aliases()) {
    INFO(alias.alias);
    const std::string name(alias.name), other(alias.alias);
    REQUIRE(ours.types.count(name) == 1);
    REQUIRE(all.types.count(other) == 1);
    CHECK(all.types.at(other) == ours.types.at(name));
    for (const auto& [series, value] : ours.samples) {
      if (family_of(ours, series.substr(0, series.find('{'))) != name) continue;
      ++num_samples;
      CHECK(all.samples.at(other + series.substr(name.size())) == value);
    }
  }
  CHECK(all.samples.size() == num_samples);
  const std::string labels = "{model_name=\"# HELP vllm:num_requests_running x\",engine=\"0\"}";
  CHECK(all.samples.at("sglang:num_running_reqs" + labels) == 3);
  CHECK(all.samples.at("vllm:gpu_prefix_cache_hit_rate" + labels) == 0.25);
  CHECK(parse_metric_dialects("sglang,legacy").value() == std::vector<std::string>{"sglang", "legacy"});
  CHECK(parse_metric_dialects("sglang,").status().message().find("got ''") != std::string::npos);
  CHECK(parse_metric_dialects("tgi").status().message().find("got 'tgi'") != std::string::npos);
}

TEST_CASE("metrics: without a model the page is valid too") {
  MetricsWriter out;
  HttpMetrics().render(out);
  render_process_metrics(out);
  const Page page = parse_page(out.take());
  CHECK(page.problem == "");
  CHECK(page.types.count("vllm:num_requests_running") == 0);
}

TEST_CASE("histogram: a value on a bound belongs to it; buckets are cumulative on the page only") {
  Histogram histogram({1, 2, 5});
  for (const double value : {0.5, 1.0, 1.5, 5.0, 9.0}) histogram.observe(value);
  CHECK(histogram.counts() == std::vector<uint64_t>{2, 1, 1, 1});
  CHECK(histogram.sum() == 17.0);
  CHECK(one_two_five_bounds(20) == std::vector<double>{1, 2, 5, 10, 20});
}

TEST_CASE("json writer: any bytes become valid JSON") {
  std::string out;
  append_json_string("a\"\\\n\x01\xff\xc3\xa9\xed\xa0\x80\xf0\x9f\x98\x80\xc3", out);
  CHECK(out ==
        "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\"");
  std::string number;
  append_json_number(0.1f, number);
  append_json_number(-INFINITY, number);
  CHECK(number == "0.1null");
}

}  // namespace spate
