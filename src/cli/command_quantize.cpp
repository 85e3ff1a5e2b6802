// spate quantize: a model directory of floats to one of 8- or 4-bit integers, with what it cost.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/cpu_cores.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/eval_data.h"
#include "cli/evaluation.h"
#include "cli/llm_arguments.h"
#include "quantizer/quantize_model.h"
#include "text/tokenizer.h"

namespace spate {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::atomic<bool> interrupted = false;

WeightSpec spec_of(const QuantizeArguments& arguments) {
  const bool int4 = arguments.to == "int4";
  const int64_t group_size = arguments.group_size >= 0 ? arguments.group_size : int4 ? 64 : 0;
  return integer_spec(int4 ? Codes::kInt4 : Codes::kInt8, group_size, arguments.asymmetric,
                      int4 && group_size != 0 && !arguments.asymmetric);
}

// The texts as token ids, cut to calibration_tokens in all. A model that brings a calibration.txt is calibrated on it.
Result<std::vector<std::vector<int32_t>>> calibration_tokens(const fs::path& model_dir, const ModelConfig& config,
                                                             const QuantizeArguments& arguments) {
  fs::path file = arguments.calibration_text;
  std::vector<std::vector<int32_t>> sequences;
  // A report on experts alone is not worth the memory of a layer of floats.
  if (file.empty() && config.experts.num_experts > 0 && arguments.method == "rtn") return sequences;
  if (file.empty()) file = model_dir / "calibration.txt";
  std::error_code error;
  if (!fs::exists(file, error)) {
    if (!arguments.calibration_text.empty()) return not_found("--calibration-text {}: does not exist", file.string());
    if (arguments.method == "rtn") return sequences;
    return not_found("--method {}: needs --calibration-text FILE; {} is not there", arguments.method, file.string());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, load_eval_texts(file));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::load(model_dir));
  int64_t rest = arguments.calibration_tokens;
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = tokenizer->encode(text);
    for (int64_t begin = 0, size = static_cast<int64_t>(ids.size()); begin < size && rest > 0;
         begin += kMaxCalibrationLen) {
      const int64_t end = std::min({size, begin + kMaxCalibrationLen, begin + rest});
      sequences.emplace_back(ids.begin() + begin, ids.begin() + end);
      rest -= end - begin;
    }
  }
  return sequences;
}

void print_report(const QuantizeReport& report) {
  std::printf("relative error, %%, on %lld calibration tokens   weights  outputs\n",
              static_cast<long long>(report.num_calibration_tokens));
  for (const MatrixReport& matrix : report.matrices) {
    std::printf("%-44s %9.3f", matrix.name.c_str(), matrix.weight_error * 100);
    std::printf(matrix.output_error < 0 ? "" : "%9.3f", matrix.output_error * 100);
    std::printf(matrix.num_expert_tokens < 0 ? "\n" : "  of %lld tokens\n",
                static_cast<long long>(matrix.num_expert_tokens));
  }
  const auto unseen = std::count_if(report.matrices.begin(), report.matrices.end(),
                                    [](const MatrixReport& matrix) { return matrix.num_expert_tokens == 0; });
  if (unseen > 0) {
    std::printf("%lld matrices are of experts that saw no calibration token; they are rounded to nearest\n",
                static_cast<long long>(unseen));
  }
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf("%.1f MiB -> %.1f MiB\n", mib(report.bytes_before), mib(report.bytes_after));
}

Json to_json(const EvalReport& report) {
  Json skills = Json::object();
  for (const auto& [name, skill] : report.skills) skills[name] = skill.score();
  return {{"average", report.average()}, {"perplexity", report.perplexity}, {"skills", std::move(skills)}};
}

Json to_json(const QuantizeReport& report) {
  Json matrices = Json::array();
  for (const MatrixReport& matrix : report.matrices) {
    matrices.push_back({{"name", matrix.name},
                        {"shape", {matrix.num_rows, matrix.in_features}},
                        {"weight_error", matrix.weight_error},
                        {"output_error", matrix.output_error < 0 ? Json() : Json(matrix.output_error)},
                        {"expert_tokens", matrix.num_expert_tokens < 0 ? Json() : Json(matrix.num_expert_tokens)}});
  }
  return {{"num_calibration_tokens", report.num_calibration_tokens},
          {"bytes_before", report.bytes_before},
          {"bytes_after", report.bytes_after},
          {"matrices", std::move(matrices)}};
}

// Score and perplexity of the model before and after, on the questions in its eval/ folder.
Status compare(const Arguments& arguments, const fs::path& eval_dir, Json& json) {
  const EvalArguments eval{.max_questions = arguments.quantize.max_questions};
  ModelArguments after_arguments = arguments.model;
  after_arguments.model = arguments.quantize.out;
  ASSIGN_OR_RETURN(const EvalReport before, evaluate(arguments.model, eval, eval_dir));
  ASSIGN_OR_RETURN(const EvalReport after, evaluate(after_arguments, eval, eval_dir));
  std::printf("%-20s %9s %9s %9s\n", "", "before", "after", "change");
  std::printf("%-20s %9.4f %9.4f %+9.4f\n", "average score", before.average(), after.average(),
              after.average() - before.average());
  if (before.perplexity > 0) {
    std::printf("%-20s %9.4f %9.4f %+8.2f%%\n", "perplexity", before.perplexity, after.perplexity,
                (after.perplexity / before.perplexity - 1) * 100);
  }
  json["eval"] = {{"before", to_json(before)}, {"after", to_json(after)}};
  return ok_status();
}

}  // namespace

Result<int> run_quantize(const Arguments& arguments) {
  const QuantizeArguments& quantize = arguments.quantize;
  fs::path model_dir = arguments.model.model;
  std::error_code error;
  if (!fs::is_directory(model_dir, error)) model_dir = model_dir.parent_path();
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model_dir));
  ASSIGN_OR_RETURN(auto calibration, calibration_tokens(model_dir, config, quantize));
  ASSIGN_OR_RETURN(const BackEnd* back_end, choose_back_end(arguments.model.device, device_options(arguments.model)));
  const int num_threads = arguments.model.threads > 0 ? arguments.model.threads : default_num_threads();
  const QuantizeOptions options{.spec = spec_of(quantize),
                                .method = quantize.method == "awq"    ? QuantizeMethod::kAwq
                                          : quantize.method == "gptq" ? QuantizeMethod::kGptq
                                                                      : QuantizeMethod::kRtn,
                                .act_order = quantize.act_order,
                                .quantize_vocabulary = quantize.vocabulary == "int8",
                                .num_threads = num_threads,
                                .calibration = std::move(calibration)};
  if (const int64_t group = options.spec.tile.columns; group > 0) {
    const int64_t of_expert = config.experts.intermediate_size;
    if (config.hidden_size % group != 0 || config.intermediate_size % group != 0 || of_expert % group != 0) {
      log_warning("quantize",
                  "groups of {} do not divide hidden_size {} and intermediate_size {}{}: vLLM does not load this",
                  group, config.hidden_size, config.intermediate_size,
                  of_expert > 0 ? fmt::format(" and {} of experts", of_expert) : "");
    }
  }
  std::optional<QuantizeReport> report;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                     back_end->make_device({.num_threads = num_threads, .isa = arguments.model.isa}));
    // The first Ctrl-C ends the run in order, the second at once.
    const auto previous = std::signal(SIGINT, [](int) {
      interrupted = true;
      std::signal(SIGINT, SIG_DFL);
    });
    Result<QuantizeReport> result = quantize_model(model_dir, quantize.out, *device, options,
                                                   progress_bar("quantizing"), [] { return interrupted.load(); });
    std::signal(SIGINT, previous);
    if (!result.ok()) return result.status();
    report = std::move(result).value();
  }
  print_report(*report);
  Json json = to_json(*report);
  const fs::path eval_dir = model_dir / "eval";
  if (!quantize.no_eval && fs::exists(eval_dir / "questions.jsonl", error)) {
    RETURN_IF_ERROR(compare(arguments, eval_dir, json));
  }
  if (!quantize.report_json.empty()) {
    std::ofstream out(quantize.report_json);
    out << json.dump(1) << "\n";
    if (!out.flush()) return resource_exhausted("--report-json {}: cannot be written", quantize.report_json);
  }
  return 0;
}

}  // namespace spate
