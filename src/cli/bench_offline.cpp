// spate bench latency and throughput: vLLM's definitions and JSON keys, without a server.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"

namespace spate {
namespace {

Status write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return ok_status();
  std::ofstream out(path);
  out << json.dump(2) << "\n";
  if (!out) return invalid_argument("--output-json: {} cannot be written", path);
  return ok_status();
}

Result<std::unique_ptr<LoadedModel>> load_for_bench(const Arguments& arguments) {
  ModelArguments model_arguments = arguments.model;
  model_arguments.enable_prefix_caching = false;  // random prompts; a hit would be a mistake
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, load_model(model_arguments, progress_bar("weights")));
  for (const std::string& line : model->summary) log_info("bench", "{}", line);
  model->engine->start();
  return model;
}

}  // namespace

Result<int> run_bench_latency(const Arguments& arguments) {
  const BenchArguments& bench = arguments.bench;
  const int input_len = bench.input_len > 0 ? bench.input_len : 32;
  const int output_len = bench.output_len > 0 ? bench.output_len : 128;
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_for_bench(arguments));
  std::vector<double> latencies;
  for (int i = 0; i < bench.num_iters_warmup + bench.num_iters; ++i) {
    ASSIGN_OR_RETURN(const BenchTimes times, run_batch(*model, {.num_seqs = bench.batch_size,
                                                                .input_len = input_len,
                                                                .output_len = output_len,
                                                                .seed = arguments.model.seed + static_cast<uint64_t>(i)}));
    if (i >= bench.num_iters_warmup) latencies.push_back(times.total_s);
  }
  double sum = 0;
  for (const double latency : latencies) sum += latency;
  const double average = sum / static_cast<double>(latencies.size());
  nlohmann::ordered_json percentiles;
  std::printf("Avg latency: %.6f seconds\n", average);
  for (const int p : {10, 25, 50, 75, 90, 99}) {
    percentiles[std::to_string(p)] = percentile(latencies, p);
    std::printf("%d%% percentile latency: %.6f seconds\n", p, percentile(latencies, p));
  }
  RETURN_IF_ERROR(write_json(bench.output_json,
                             {{"avg_latency", average}, {"latencies", latencies}, {"percentiles", percentiles}}));
  return 0;
}

Result<int> run_bench_throughput(const Arguments& arguments) {
  const BenchArguments& bench = arguments.bench;
  const int input_len = bench.input_len > 0 ? bench.input_len : 1024;
  const int output_len = bench.output_len > 0 ? bench.output_len : 128;
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_for_bench(arguments));
  ASSIGN_OR_RETURN(const BenchTimes times, run_batch(*model, {.num_seqs = bench.num_prompts,
                                                              .input_len = input_len,
                                                              .output_len = output_len,
                                                              .n = bench.n,
                                                              .seed = arguments.model.seed}));
  const int64_t num_tokens = int64_t{bench.num_prompts} * input_len + times.num_output_tokens;
  std::printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n", bench.num_prompts / times.total_s,
              static_cast<double>(num_tokens) / times.total_s, static_cast<double>(times.num_output_tokens) / times.total_s);
  RETURN_IF_ERROR(write_json(bench.output_json, {{"elapsed_time", times.total_s},
                                                 {"num_requests", bench.num_prompts},
                                                 {"total_num_tokens", num_tokens},
                                                 {"requests_per_second", bench.num_prompts / times.total_s},
                                                 {"tokens_per_second", static_cast<double>(num_tokens) / times.total_s}}));
  return 0;
}

Result<int> run_bench(const Arguments& arguments) {
  const std::string& what = arguments.bench.what;
  if (what == "latency") return run_bench_latency(arguments);
  if (what == "throughput") return run_bench_throughput(arguments);
  if (what == "limits") return run_bench_limits(arguments);
  if (what == "table") return run_bench_table(arguments);
  return run_bench_serve(arguments);
}

}  // namespace spate
