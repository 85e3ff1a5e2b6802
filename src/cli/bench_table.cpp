// spate bench limits and spate bench table: what this machine can do, and how much of it the engine reaches.
//
// The table interleaves the measurement of the limits with that of the model, so that a share compares one minute with
// itself. Rows are those of docs/architecture.md: name, value, unit, limit, share, goal, command.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/log.h"
#include "cli/bench_plot.h"
#include "cli/bench_rows.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"
#include "cli/llm_arguments.h"
#include "cli/model_cost.h"

namespace spate {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// What is asked of every model shape, as shares of the limits of `limits`: of AMX, or of VNNI and BF16 in AVX-512; 0:
// nothing. Prefill of 8,192 tokens of the 0.6B shape in tok/s on two AMX cores.
struct Goals {
  double prefill_512_share = 0, prefill_8192 = 0, decode_share = 0, decode_32_share = 0;
};
Goals goals_of(const MachineLimits& limits, const Quantization& quantization) {
  if (limits.units == ProductUnits::kOther) return {};
  if (limits.units == ProductUnits::kVectors) {
    if (!quantization.enabled()) return {.prefill_512_share = 0.85, .decode_share = 0.88};
    if (quantization.linear.codes == Codes::kInt8) return {.prefill_512_share = 0.65, .decode_share = 0.88};
    return {.prefill_512_share = 0.60, .decode_share = 0.80};
  }
  if (!quantization.enabled()) return {.prefill_512_share = 0.45, .prefill_8192 = 1200, .decode_share = 0.88, .decode_32_share = 0.60};
  if (quantization.linear.codes == Codes::kInt8) {
    return {.prefill_512_share = 0.40, .prefill_8192 = 1600, .decode_share = 0.88, .decode_32_share = 0.63};
  }
  return {.prefill_512_share = 0.35, .prefill_8192 = 1500, .decode_share = 0.80, .decode_32_share = 0.60};
}

// What a row's command needs to measure the same.
std::string device_flags(const BackEnd& back_end, const ModelArguments& arguments) {
  std::string flags = fmt::format(" --device {}", back_end.name);
  if (back_end.shares_host_memory) flags += fmt::format(" --threads {}", compute_threads(arguments));
  if (!arguments.isa.empty() && !back_end.instruction_sets.empty()) flags += " --isa " + arguments.isa;
  return flags;
}

// Adds to rows and writes them after each one, so that a long run that is cut short leaves something. `format`: as
// --quantization, or "bf16". Integer weights come with an INT8 KV cache.
Status measure_model(const Arguments& arguments, const std::string& config_dir, const std::string& format,
                     std::vector<BenchRow>& rows) {
  Arguments run = arguments;
  run.model.model = config_dir;
  run.model.load_format = "dummy";
  run.model.enable_prefix_caching = false;
  run.model.max_prefill_stall_ms = 0;  // decode is measured while all sequences run: they start as soon as they can
  run.model.quantization = format == "bf16" || format == "f32" ? "none" : format;
  if (format == "f32") run.model.dtype = "float32";
  ASSIGN_OR_RETURN(const Quantization quantization, quantization_of(run.model));
  if (quantization.enabled() && run.model.kv_cache_dtype == "auto") run.model.kv_cache_dtype = "int8";
  if (run.model.max_model_len == 0) {
    ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(config_dir));
    run.model.max_model_len = std::min<int64_t>(8448, config.max_position_embeddings);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_model(run.model, progress_bar(config_dir + " " + format)));
  for (const std::string& line : model->summary) log_info("bench", "{}", line);
  model->engine->start();
  const BackEnd& back_end = *model->back_end;
  const bool has_limits = back_end.measure_limits != nullptr;
  const ModelCost cost = model_cost(model->config, act_dtype_of(run.model), kv_dtype_of(run.model), quantization);
  const std::string prefix = fmt::format("{}/{}/{}", back_end.name, model->name, format);
  const std::string command = fmt::format("spate bench table --configs {} --formats {}{}", config_dir, format,
                                          device_flags(back_end, run.model));

  const double row_s = arguments.bench.row_seconds > 0 ? arguments.bench.row_seconds : kUnbounded;
  const auto median_of = [&](const BenchBatch& batch, int num_runs, const auto& figure) {
    return median_of_runs(
        num_runs, row_s,
        [&](int run_idx) {
          BenchBatch fresh = batch;
          fresh.seed = static_cast<uint64_t>(run_idx) * 977 + arguments.model.seed;
          return run_batch(*model, fresh);
        },
        figure);
  };
  const auto limits_now = [&] { return measure_limits(back_end, run.model); };
  MachineLimits before = limits_now();
  const Goals goals = goals_of(before, quantization);
  // The limits of a row: what the machine showed before or after it, whichever is more. On a busy host single readings dip.
  const auto limits_of_row = [&] {
    const MachineLimits after = limits_now(), larger = larger_limits(before, after);
    before = after;
    return larger;
  };

  const auto add_row = [&](const BenchRow& row) {
    print_row(row);
    rows.push_back(row);
    return write_rows(arguments.bench.output_json, rows);
  };
  const auto is_wanted = [&](const std::string& name) {
    return name.find(arguments.bench.filter) != std::string::npos;
  };
  // Prefill: from the submit to the first token, one lm_head row included. A longer prompt takes at least as long for a
  // token as the one before it.
  double least_s_per_token = 0;
  for (const int len : {512, 2048, 8192}) {
    const std::string name = fmt::format("{}/prefill/{}", prefix, len);
    if (len >= model->engine->config().max_seq_len() || !is_wanted(name)) continue;
    if (const double least_s = least_s_per_token * len; least_s > row_s) {
      log_info("bench", "{}: left out, one run takes {:.0f} s or more; --row-seconds {:.0f} measures it", name, least_s,
               std::ceil(least_s));
      continue;
    }
    ASSIGN_OR_RETURN(const double value, median_of({.input_len = len, .output_len = 1}, len > 2048 ? 2 : 5,
                                                   [&](const BenchTimes& t) { return len / t.total_s; }));
    least_s_per_token = 1 / value;
    const MachineLimits limits = limits_of_row();
    const double limit = matmul_flops(limits, quantization) / prefill_flops(cost, len) * len;
    const bool has_8192_goal = len == 8192 && model->name == "qwen3-0.6b";
    RETURN_IF_ERROR(add_row({.name = name,
                             .value = value,
                             .unit = "tok/s",
                             .limit = has_limits ? limit : 0,
                             .goal = len == 512 && has_limits ? goals.prefill_512_share * limit
                                     : has_8192_goal          ? goals.prefill_8192
                                                              : 0,
                             .command = command}));
  }
  // Decode: a step reads the weights once, of experts those that are used, and the keys and values of each sequence.
  for (const int num_seqs : {1, 4, 16, 32}) {
    const std::string name = fmt::format("{}/decode/batch{}", prefix, num_seqs);
    if (!is_wanted(name)) continue;
    const int input_len = num_seqs == 1 ? 16 : 128;
    const int output_len = 64;
    ASSIGN_OR_RETURN(
        const double value,
        median_of({.num_seqs = num_seqs, .input_len = input_len, .output_len = output_len}, 3, [](const BenchTimes& t) {
          return t.decode_s > 0 ? static_cast<double>(t.num_decode_tokens) / t.decode_s : 0;
        }));
    if (value == 0) {
      log_warning("bench",
                  "{}: left out, its sequences never ran all at once: --max-num-seqs or --kv-cache-memory is too small",
                  name);
      continue;
    }
    const MachineLimits limits = limits_of_row();
    const double step_bytes = decode_step_bytes(cost, num_seqs, input_len + output_len / 2);
    const double limit = limits.memory_bytes_per_s / step_bytes * num_seqs;
    RETURN_IF_ERROR(add_row({.name = name,
                             .value = value,
                             .unit = "tok/s",
                             .limit = has_limits ? limit : 0,
                             .goal = num_seqs == 1    ? goals.decode_share * limit
                                     : num_seqs == 32 ? goals.decode_32_share * limit
                                                      : 0,
                             .command = command}));
  }
  model->engine->stop();
  return ok_status();
}

std::vector<BenchRow> rows_of_limits(const BackEnd& back_end, const ModelArguments& arguments) {
  return limit_rows(back_end, measure_limits(back_end, arguments),
                    "spate bench limits" + device_flags(back_end, arguments));
}

}  // namespace

Result<int> run_bench_limits(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const BackEnd* back_end, choose_back_end(arguments.model.device, device_options(arguments.model)));
  const std::vector<BenchRow> rows = rows_of_limits(*back_end, arguments.model);
  for (const BenchRow& row : rows) print_row(row);
  RETURN_IF_ERROR(write_rows(arguments.bench.output_json, rows));
  return 0;
}

Result<int> run_bench_table(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const BackEnd* back_end, choose_back_end(arguments.model.device, device_options(arguments.model)));
  std::vector<BenchRow> rows = rows_of_limits(*back_end, arguments.model);
  for (const BenchRow& row : rows) print_row(row);
  RETURN_IF_ERROR(write_rows(arguments.bench.output_json, rows));
  for (const std::string& config : arguments.bench.configs) {
    for (const std::string& format : arguments.bench.formats) {
      RETURN_IF_ERROR(measure_model(arguments, config, format, rows));
    }
  }
  RETURN_IF_ERROR(write_plot(arguments.bench.plot, "Share of the limits of this machine", rows));
  return 0;
}

}  // namespace spate
