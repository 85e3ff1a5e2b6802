// spate bench serve: load on a running OpenAI-compatible server. Flags, definitions and JSON keys are those of vLLM's
// bench serve.
//
//   TTFT   send to the first event that brings tokens: that has choices and, where the server counts along
//          (continuous_usage_stats), more completion tokens than the event before
//   ITL    gaps between such events; an event that only tells the role or the end is not one
//   TPOT   (latency - TTFT) / (output tokens - 1); latency is send to last token
//   Output tokens come from usage.completion_tokens of the last event.
//
// Several values of --request-rate or of --max-concurrency are several runs; --plot draws latency over them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "cli/bench_dataset.h"
#include "cli/bench_plot.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"
#include "cli/sse_client.h"

namespace spate {
namespace {

using nlohmann::ordered_json;

constexpr auto kReplaceInvalid = ordered_json::error_handler_t::replace;

struct Sample {
  bool ok = false;
  std::string error;
  double start = 0, ttft = 0, latency = 0;
  std::vector<double> itl;
  int64_t input_tokens = 0, output_tokens = 0;
};

struct Load {
  double request_rate = 0;  // requests/s; 0 or inf: all at once
  int max_concurrency = 0;  // 0: unbounded
  bool has_rate() const { return request_rate > 0 && std::isfinite(request_rate); }
};

// A request that waits for its turn: when it is sent and what it says.
struct Planned {
  double at_s = 0;
  std::string body;
};

struct ServerFacts {
  std::string model;
  int64_t vocab_size = 1000;
};

Result<ServerFacts> ask_server(const HttpTarget& target) {
  ASSIGN_OR_RETURN(const HttpReply reply, http_call(target, "/v1/models", ""));
  const ordered_json json = ordered_json::parse(reply.body, nullptr, false);
  if (reply.status != 200 || json.is_discarded() || !json.contains("data") || json["data"].empty()) {
    return unavailable("GET /v1/models of {}:{} answers {}: {}", target.host, target.port, reply.status, reply.body);
  }
  const ordered_json& first = json["data"][0];
  ServerFacts facts{.model = first.value("id", "")};
  if (first.contains("meta")) facts.vocab_size = first["meta"].value("n_vocab", facts.vocab_size);
  return facts;
}

// Arrival times: gamma gaps of mean 1 / rate, rescaled so that the total is num / rate.
std::vector<double> arrival_times(const Load& load, double burstiness, int num, uint64_t seed) {
  std::vector<double> times(static_cast<size_t>(num), 0.0);
  if (!load.has_rate()) return times;
  std::mt19937_64 engine(seed);
  std::gamma_distribution<double> gap(burstiness, 1.0 / (load.request_rate * burstiness));
  double at = 0;
  for (double& time : times) time = at += gap(engine);
  const double scale = at > 0 ? num / load.request_rate / at : 1;
  for (double& time : times) time *= scale;
  return times;
}

Result<std::vector<Planned>> plan_requests(const Arguments& arguments, const HttpTarget& target,
                                           const ServerFacts& facts, const std::string& model, const Load& load,
                                           int num, uint64_t seed) {
  const BenchArguments& bench = arguments.bench;
  const bool is_chat = bench.endpoint.find("chat") != std::string::npos;
  const CountTokens count_tokens = [&](const std::string& text) -> Result<int64_t> {
    const ordered_json body{{"prompt", text}, {"add_special_tokens", false}};
    ASSIGN_OR_RETURN(const HttpReply reply, http_call(target, "/tokenize", body.dump(-1, ' ', false, kReplaceInvalid)));
    const ordered_json json = ordered_json::parse(reply.body, nullptr, false);
    if (reply.status != 200 || !json.is_object()) return unavailable("POST /tokenize answers {}: {}", reply.status, reply.body);
    return json.value("count", int64_t{0});
  };
  ASSIGN_OR_RETURN(const std::vector<BenchPrompt> prompts,
                   make_bench_prompts(bench, is_chat, facts.vocab_size, num, seed, count_tokens));
  const std::vector<double> times = arrival_times(load, bench.burstiness, num, seed);
  std::vector<Planned> plan;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const BenchPrompt& prompt = prompts[i];
    ordered_json body{{"model", model},
                      {"max_tokens", prompt.output_len},
                      {"temperature", bench.temperature},
                      {"stream", true},
                      {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}},
                      {"ignore_eos", bench.ignore_eos}};
    if (is_chat) {
      body["messages"] = ordered_json::array({{{"role", "user"}, {"content", prompt.text}}});
    } else if (prompt.token_ids.empty()) {
      body["prompt"] = prompt.text;
    } else {
      body["prompt"] = prompt.token_ids;
    }
    plan.push_back({.at_s = times[i], .body = body.dump(-1, ' ', false, kReplaceInvalid)});
  }
  return plan;
}

Sample send_request(const HttpTarget& target, const std::string& path, const std::string& body) {
  Sample sample;
  sample.start = now_s();
  double last = sample.start;
  const auto on_event = [&](std::string_view data) {
    if (data == "[DONE]") return false;
    const ordered_json json = ordered_json::parse(data, nullptr, false);
    if (json.is_discarded() || json.contains("error")) {
      sample.error = std::string(data);
      return false;
    }
    bool has_tokens = json.contains("choices") && !json["choices"].empty();
    if (json.contains("usage") && json["usage"].is_object()) {
      const int64_t output_tokens = json["usage"].value("completion_tokens", int64_t{0});
      has_tokens &= output_tokens > sample.output_tokens;
      sample.output_tokens = output_tokens;
      sample.input_tokens = json["usage"].value("prompt_tokens", int64_t{0});
    }
    if (has_tokens) {
      const double now = now_s();
      if (sample.ttft == 0) {
        sample.ttft = now - sample.start;
      } else {
        sample.itl.push_back(now - last);
      }
      last = now;
    }
    return true;
  };
  const Result<HttpReply> reply = http_call(target, path, body, on_event);
  sample.latency = last - sample.start;
  if (!reply.ok()) {
    sample.error = reply.status().message();
  } else if (reply->status != 200) {
    sample.error = fmt::format("{}: {}", reply->status, reply->body);
  } else if (sample.error.empty()) {
    sample.ok = true;
  }
  return sample;
}

// Sends every request at its time, at most max_concurrency in flight; a thread a request in flight.
std::vector<Sample> run_load(const HttpTarget& target, const std::string& path, const std::vector<Planned>& plan,
                             int max_concurrency) {
  std::vector<Sample> samples(plan.size());
  std::atomic<size_t> next{0};
  const double start = now_s();
  const auto worker = [&] {
    for (size_t i; (i = next.fetch_add(1)) < plan.size();) {
      const double wait = start + plan[i].at_s - now_s();
      if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
      samples[i] = send_request(target, path, plan[i].body);
    }
  };
  const size_t num_threads = max_concurrency > 0 ? std::min(plan.size(), static_cast<size_t>(max_concurrency)) : plan.size();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_threads; ++i) threads.emplace_back(worker);
  for (std::thread& thread : threads) thread.join();
  return samples;
}

std::vector<double> wanted_percentiles(const std::string& list) {
  std::vector<double> values;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) values.push_back(std::atof(item.c_str()));
  return values;
}

void report_latency(const char* key, const char* title, const std::vector<double>& seconds, const std::vector<double>& percents,
                    ordered_json& json) {
  double mean = 0, variance = 0;
  for (const double s : seconds) mean += s;
  mean /= std::max<double>(1, static_cast<double>(seconds.size()));
  for (const double s : seconds) variance += (s - mean) * (s - mean);
  variance /= std::max<double>(1, static_cast<double>(seconds.size()));
  const auto put = [&](const std::string& name, double value_s) {
    json[fmt::format("{}_{}_ms", name, key)] = value_s * 1000;
    std::printf("%-40s %10.2f\n", fmt::format("{} {} (ms):", name, title).c_str(), value_s * 1000);
  };
  put("mean", mean);
  put("median", percentile(seconds, 50));
  json[fmt::format("std_{}_ms", key)] = std::sqrt(variance) * 1000;
  for (const double p : percents) put(fmt::format("p{:g}", p), percentile(seconds, p));
  put("max", seconds.empty() ? 0 : *std::max_element(seconds.begin(), seconds.end()));
}

ordered_json report(const BenchArguments& bench, const Load& load, const std::string& model,
                    const std::vector<Sample>& samples, double duration) {
  int64_t completed = 0, input_tokens = 0, output_tokens = 0;
  std::vector<double> ttft, tpot, itl, e2el;
  std::map<int64_t, double> tokens_of_second;
  std::vector<std::pair<double, int>> edges;  // +1 at a start, -1 at an end
  double first_start = 1e300;
  for (const Sample& s : samples) first_start = std::min(first_start, s.start);
  for (const Sample& s : samples) {
    if (!s.ok) continue;
    ++completed;
    input_tokens += s.input_tokens;
    output_tokens += s.output_tokens;
    ttft.push_back(s.ttft);
    e2el.push_back(s.latency);
    if (s.output_tokens > 1) tpot.push_back((s.latency - s.ttft) / static_cast<double>(s.output_tokens - 1));
    itl.insert(itl.end(), s.itl.begin(), s.itl.end());
    double at = s.start + s.ttft - first_start;
    ++tokens_of_second[static_cast<int64_t>(at)];
    for (const double gap : s.itl) ++tokens_of_second[static_cast<int64_t>(at += gap)];
    edges.push_back({s.start, 1});
    edges.push_back({s.start + s.latency, -1});
  }
  std::sort(edges.begin(), edges.end());
  int concurrent = 0, max_concurrent = 0;
  for (const auto& [time, change] : edges) max_concurrent = std::max(max_concurrent, concurrent += change);
  double peak = 0;
  for (const auto& [second, count] : tokens_of_second) peak = std::max(peak, count);

  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y%m%d-%H%M%S", std::localtime(&now));
  ordered_json json{{"date", date},
                    {"backend", "openai"},
                    {"endpoint_type", "openai"},
                    {"model_id", model},
                    {"tokenizer_id", model},
                    {"num_prompts", samples.size()},
                    {"request_rate", load.has_rate() ? ordered_json(load.request_rate) : ordered_json("inf")},
                    {"burstiness", bench.burstiness},
                    {"max_concurrency", load.max_concurrency > 0 ? ordered_json(load.max_concurrency) : ordered_json()},
                    {"duration", duration},
                    {"completed", completed},
                    {"failed", static_cast<int64_t>(samples.size()) - completed},
                    {"total_input_tokens", input_tokens},
                    {"total_output_tokens", output_tokens},
                    {"request_throughput", static_cast<double>(completed) / duration},
                    {"output_throughput", static_cast<double>(output_tokens) / duration},
                    {"total_token_throughput", static_cast<double>(input_tokens + output_tokens) / duration},
                    {"max_output_tokens_per_s", peak},
                    {"max_concurrent_requests", max_concurrent}};
  std::printf("============ Serving Benchmark Result ============\n");
  const auto line = [](const char* name, double value, const char* format) {
    std::printf("%-40s ", name);
    std::printf(format, value);
    std::printf("\n");
  };
  if (load.has_rate()) line("Request rate configured (RPS):", load.request_rate, "%10.2f");
  if (load.max_concurrency > 0) line("Maximum request concurrency:", load.max_concurrency, "%10.0f");
  line("Successful requests:", static_cast<double>(completed), "%10.0f");
  line("Failed requests:", static_cast<double>(samples.size()) - static_cast<double>(completed), "%10.0f");
  line("Benchmark duration (s):", duration, "%10.2f");
  line("Total input tokens:", static_cast<double>(input_tokens), "%10.0f");
  line("Total generated tokens:", static_cast<double>(output_tokens), "%10.0f");
  line("Request throughput (req/s):", static_cast<double>(completed) / duration, "%10.2f");
  line("Output token throughput (tok/s):", static_cast<double>(output_tokens) / duration, "%10.2f");
  line("Peak output token throughput (tok/s):", peak, "%10.2f");
  line("Peak concurrent requests:", max_concurrent, "%10.0f");
  line("Total token throughput (tok/s):", static_cast<double>(input_tokens + output_tokens) / duration, "%10.2f");
  const std::vector<double> percents = wanted_percentiles(bench.metric_percentiles);
  report_latency("ttft", "TTFT", ttft, percents, json);
  report_latency("tpot", "TPOT", tpot, percents, json);
  report_latency("itl", "ITL", itl, percents, json);
  report_latency("e2el", "E2EL", e2el, percents, json);
  return json;
}

// The file for the result, empty when none is wanted. Opened before the load runs: whoever cannot write it hears of it now.
Result<std::string> open_result_file(const BenchArguments& bench) {
  if (!bench.save_result && bench.result_filename.empty()) return std::string();
  std::string path = bench.result_filename.empty() ? "bench_serve.json" : bench.result_filename;
  if (!std::ofstream(path, std::ios::app)) return invalid_argument("--result-filename: {} cannot be written", path);
  return path;
}

// What the runs differ in, each with its value; one run where nothing has several values.
Result<std::vector<Load>> loads_of(const BenchArguments& bench) {
  if (bench.request_rates.size() > 1 && bench.max_concurrencies.size() > 1) {
    return invalid_argument("give several values of --request-rate or of --max-concurrency, not of both");
  }
  std::vector<Load> loads;
  for (const double rate : bench.request_rates) {
    for (const int concurrency : bench.max_concurrencies)
      loads.push_back({.request_rate = rate, .max_concurrency = concurrency});
  }
  if (!bench.plot.empty() && loads.size() < 2) {
    return invalid_argument(
        "--plot draws latency over load: give several values, --request-rate 1,2,4 or --max-concurrency 1,4,16");
  }
  return loads;
}

std::string name_of(const Load& load, bool by_rate) {
  if (by_rate) return load.has_rate() ? fmt::format("{:g}/s", load.request_rate) : "all at once";
  return load.max_concurrency > 0 ? fmt::format("{}", load.max_concurrency) : "unbounded";
}

LatencyPoint latency_point(const std::string& load, const std::vector<Sample>& samples, double output_throughput) {
  std::vector<double> ttft, itl;
  for (const Sample& sample : samples) {
    if (!sample.ok) continue;
    ttft.push_back(sample.ttft * 1000);
    for (const double gap : sample.itl) itl.push_back(gap * 1000);
  }
  return {.load = load,
          .output_throughput = output_throughput,
          .ttft_ms_median = percentile(ttft, 50),
          .ttft_ms_p99 = percentile(ttft, 99),
          .itl_ms_median = percentile(itl, 50),
          .itl_ms_p99 = percentile(itl, 99)};
}

}  // namespace

Result<int> run_bench_serve(const Arguments& arguments) {
  const BenchArguments& bench = arguments.bench;
  ASSIGN_OR_RETURN(const std::vector<Load> loads, loads_of(bench));
  ASSIGN_OR_RETURN(const std::string result_path, open_result_file(bench));
  if (!bench.plot.empty() && !std::ofstream(bench.plot, std::ios::app)) {
    return invalid_argument("--plot: {} cannot be written", bench.plot);
  }
  HttpTarget target{.host = bench.host, .port = bench.port};
  if (!bench.base_url.empty()) {
    Result<HttpTarget> parsed = parse_base_url(bench.base_url);
    if (!parsed.ok()) return parsed.status().with_context("--base-url");
    target = std::move(parsed).value();
  }
  target.api_key = bench.api_key;
  ASSIGN_OR_RETURN(const ServerFacts facts, ask_server(target));
  const std::string model = bench.served_model_name.empty() ? facts.model : bench.served_model_name;
  const uint64_t seed = arguments.model.seed;
  if (bench.num_warmups > 0) {
    ASSIGN_OR_RETURN(const std::vector<Planned> warm_up,
                     plan_requests(arguments, target, facts, model, loads[0], bench.num_warmups, seed + 1));
    run_load(target, bench.endpoint, warm_up, loads[0].max_concurrency);
  }
  const bool over_rate = bench.request_rates.size() > 1;
  ordered_json results = ordered_json::array();
  std::vector<LatencyPoint> points;
  bool all_ok = true;
  for (size_t i = 0; i < loads.size(); ++i) {
    const Load& load = loads[i];
    // Prompts of its own for each run: equal ones would lie in the prefix cache.
    const uint64_t run_seed = i == 0 ? seed : seed + 1 + i;
    ASSIGN_OR_RETURN(const std::vector<Planned> plan,
                     plan_requests(arguments, target, facts, model, load, bench.num_prompts, run_seed));
    const double start = now_s();
    const std::vector<Sample> samples = run_load(target, bench.endpoint, plan, load.max_concurrency);
    results.push_back(report(bench, load, model, samples, now_s() - start));
    const auto failed = std::find_if(samples.begin(), samples.end(), [](const Sample& sample) { return !sample.ok; });
    if (failed != samples.end()) {
      std::fprintf(stderr, "first error: %s\n", failed->error.c_str());
      all_ok = false;
    }
    points.push_back(latency_point(name_of(load, over_rate), samples, results.back()["output_throughput"]));
  }
  if (!result_path.empty()) {
    std::ofstream out(result_path);
    out << (results.size() == 1 ? results[0] : results).dump(2) << "\n";
    if (!out) return invalid_argument("--result-filename: {} cannot be written", result_path);
  }
  if (!bench.plot.empty()) {
    const char* load_name = over_rate ? "request rate" : "requests in flight";
    RETURN_IF_ERROR(write_svg(bench.plot, plot_latency(fmt::format("{}: latency over {}", model, load_name), points)));
  }
  return all_ok ? 0 : 1;
}

}  // namespace spate
