// spate bench latency and throughput: vLLM's definitions and JSON keys, without a server.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/bench_rows.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"
#include "cli/llm_arguments.h"
#include "cli/model_cost.h"

namespace spate {
namespace {

Status write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return ok_status();
  std::ofstream out(path);
  out << json.dump(2) << "\n";
  if (!out) return invalid_argument("--output-json: {} cannot be written", path);
  return ok_status();
}

// A started model, what its work costs, and how fast this machine can do it.
struct BenchModel {
  std::unique_ptr<LoadedModel> loaded;
  ModelCost cost;
  bool has_limits = false;  // measured in this process
  double bytes_per_s = 0, flops_per_s = 0;

  Roofline roofline(double bytes, double flops) const {
    return {.memory_s = bytes / bytes_per_s, .arithmetic_s = flops / flops_per_s};
  }
};

Result<BenchModel> load_for_bench(const Arguments& arguments) {
  ModelArguments model_arguments = arguments.model;
  model_arguments.enable_prefix_caching = false;  // random prompts; a hit would be a mistake
  if (model_arguments.max_prefill_stall_ms < 0) model_arguments.max_prefill_stall_ms = 0;  // nobody reads along
  BenchModel model;
  ASSIGN_OR_RETURN(model.loaded, load_model(model_arguments, progress_bar("weights")));
  for (const std::string& line : model.loaded->summary) log_info("bench", "{}", line);
  ASSIGN_OR_RETURN(const Quantization quantization, quantization_of(arguments.model));
  model.cost =
      model_cost(model.loaded->config, act_dtype_of(arguments.model), kv_dtype_of(arguments.model), quantization);
  if (model.loaded->back_end->measure_limits != nullptr) {
    const MachineLimits limits = measure_limits(*model.loaded->back_end, arguments.model);
    model.has_limits = limits.memory_bytes_per_s > 0;
    model.bytes_per_s = limits.memory_bytes_per_s;
    model.flops_per_s = matmul_flops(limits, quantization);
  }
  model.loaded->engine->start();
  return model;
}

// "decode: 61.2 tokens/s, 78.1 % of the 78.4 that memory allows (30.1 GB/s)"
void print_share(const BenchModel& model, const char* what, double tokens_per_s, double num_tokens,
                 const Roofline& best, nlohmann::ordered_json& json) {
  json[fmt::format("{}_tokens_per_s", what)] = tokens_per_s;
  std::printf("%s: %.1f tokens/s", what, tokens_per_s);
  if (model.has_limits && best.seconds() > 0) {
    const double limit = num_tokens / best.seconds();
    json[fmt::format("{}_limit_tokens_per_s", what)] = limit;
    json[fmt::format("{}_share_of_limit", what)] = tokens_per_s / limit;
    std::printf(", %.1f %% of the %.1f that %s allows (%.1f %s)", 100 * tokens_per_s / limit, limit,
                best.is_memory_bound() ? "memory" : "arithmetic",
                (best.is_memory_bound() ? model.bytes_per_s : model.flops_per_s) / 1e9,
                best.is_memory_bound() ? "GB/s" : "GFLOP/s");
  }
  std::printf("\n");
}

}  // namespace

Result<int> run_bench_latency(const Arguments& arguments) {
  const BenchArguments& bench = arguments.bench;
  const int input_len = bench.input_len > 0 ? bench.input_len : 32;
  const int output_len = bench.output_len > 0 ? bench.output_len : 128;
  ASSIGN_OR_RETURN(const BenchModel model, load_for_bench(arguments));
  std::vector<double> latencies, prefill_rates, decode_rates;
  for (int i = 0; i < bench.num_iters_warmup + bench.num_iters; ++i) {
    ASSIGN_OR_RETURN(const BenchTimes times,
                     run_batch(*model.loaded, {.num_seqs = bench.batch_size,
                                               .input_len = input_len,
                                               .output_len = output_len,
                                               .seed = arguments.model.seed + static_cast<uint64_t>(i)}));
    if (i < bench.num_iters_warmup) continue;
    latencies.push_back(times.total_s);
    prefill_rates.push_back(bench.batch_size * input_len / times.prefill_s);
    if (times.decode_s > 0) decode_rates.push_back(static_cast<double>(times.num_decode_tokens) / times.decode_s);
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
  nlohmann::ordered_json json{{"avg_latency", average}, {"latencies", latencies}, {"percentiles", percentiles}};
  const ModelCost& cost = model.cost;
  print_share(model, "prefill", median(prefill_rates), bench.batch_size * input_len,
              model.roofline(step_weight_bytes(cost, int64_t{bench.batch_size} * input_len),
                             bench.batch_size * prefill_flops(cost, input_len)),
              json);
  if (!decode_rates.empty()) {
    const int64_t seq_len = input_len + output_len / 2;
    print_share(model, "decode", median(decode_rates), bench.batch_size,
                model.roofline(decode_step_bytes(cost, bench.batch_size, seq_len),
                               decode_step_flops(cost, bench.batch_size, seq_len)),
                json);
  }
  RETURN_IF_ERROR(write_json(bench.output_json, json));
  return 0;
}

Result<int> run_bench_throughput(const Arguments& arguments) {
  const BenchArguments& bench = arguments.bench;
  const int input_len = bench.input_len > 0 ? bench.input_len : 1024;
  const int output_len = bench.output_len > 0 ? bench.output_len : 128;
  ASSIGN_OR_RETURN(const BenchModel model, load_for_bench(arguments));
  ASSIGN_OR_RETURN(const BenchTimes times, run_batch(*model.loaded, {.num_seqs = bench.num_prompts,
                                                                     .input_len = input_len,
                                                                     .output_len = output_len,
                                                                     .n = bench.n,
                                                                     .seed = arguments.model.seed}));
  const int64_t num_tokens = int64_t{bench.num_prompts} * input_len + times.num_output_tokens;
  std::printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n", bench.num_prompts / times.total_s,
              static_cast<double>(num_tokens) / times.total_s, static_cast<double>(times.num_output_tokens) / times.total_s);
  nlohmann::ordered_json json{{"elapsed_time", times.total_s},
                              {"num_requests", bench.num_prompts},
                              {"total_num_tokens", num_tokens},
                              {"requests_per_second", bench.num_prompts / times.total_s},
                              {"tokens_per_second", static_cast<double>(num_tokens) / times.total_s}};
  // At best the sequences run in full batches whose decode steps also carry the prompts of the next ones.
  const int64_t seq_len = input_len + output_len / 2, num_seqs = int64_t{bench.num_prompts} * bench.n;
  const int64_t batch = std::min<int64_t>(num_seqs, model.loaded->engine->config().limits.max_num_seqs);
  const double num_steps =
      static_cast<double>(output_len) * std::ceil(static_cast<double>(num_seqs) / static_cast<double>(batch));
  const double flops = bench.num_prompts * prefill_flops(model.cost, input_len) +
                       output_len * decode_step_flops(model.cost, num_seqs, seq_len);
  print_share(model, "throughput", static_cast<double>(num_tokens) / times.total_s, static_cast<double>(num_tokens),
              model.roofline(num_steps * decode_step_bytes(model.cost, batch, seq_len), flops), json);
  RETURN_IF_ERROR(write_json(bench.output_json, json));
  return 0;
}

Result<int> run_bench(const Arguments& arguments) {
  const std::string& what = arguments.bench.what;
  if (what == "latency") return run_bench_latency(arguments);
  if (what == "throughput") return run_bench_throughput(arguments);
  if (what == "limits") return run_bench_limits(arguments);
  if (what == "grammar") return run_bench_grammar(arguments);
  if (what == "speculation") return run_bench_speculation(arguments);
  if (what == "table") return run_bench_table(arguments);
  if (what == "kernel") return run_bench_kernel(arguments);
  return run_bench_serve(arguments);
}

}  // namespace spate
