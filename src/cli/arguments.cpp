#include "cli/arguments.h"

#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "backend/registry/registry.h"
#include "cli/version.h"

namespace spate {
namespace {

// "2k" = 2000, "2K" = 2048, "1M", "4G" as powers of 1024: vLLM's spelling of whole numbers.
std::string expand_count_suffix(std::string& text) {
  if (text.empty()) return {};
  static const std::map<char, int64_t> kFactors = {{'k', 1000},    {'K', 1 << 10},        {'m', 1000000},
                                                   {'M', 1 << 20}, {'g', 1000000000}, {'G', int64_t{1} << 30}};
  const auto factor = kFactors.find(text.back());
  if (factor == kFactors.end()) return {};
  try {
    size_t used = 0;
    const double number = std::stod(text, &used);
    if (used + 1 != text.size()) return "'" + text + "' is not a number";
    text = std::to_string(static_cast<int64_t>(std::llround(number * static_cast<double>(factor->second))));
  } catch (const std::exception&) {
    return "'" + text + "' is not a number";
  }
  return {};
}

const CLI::Validator& count_suffix() {
  static const CLI::Validator validator(expand_count_suffix, "", "count");
  return validator;
}

template <typename T>
CLI::Option* add_count(CLI::App* app, const std::string& name, T& value, const std::string& help) {
  return app->add_option(name, value, help)->transform(count_suffix())->type_name("N");
}

std::vector<std::string> device_names() {
  std::vector<std::string> names = {"auto"};
  for (const BackEnd& back_end : back_ends()) names.emplace_back(back_end.name);
  return names;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const BackEnd& back_end : back_ends()) {
    for (const std::string_view isa : back_end.instruction_sets) names.emplace_back(isa);
  }
  return names;
}

// "256 on a GPU, 64 on a CPU"
std::string defaults_text(int BackEndDefaults::* setting) {
  std::string text;
  for (const BackEnd& back_end : back_ends()) {
    if (!back_end.is_automatic) continue;
    text += fmt::format("{}{} on a {}", text.empty() ? "" : ", ", back_end.defaults.*setting, back_end.hardware);
  }
  return text;
}

void add_model_options(CLI::App* app, ModelArguments& m, bool model_required = true) {
  auto* model = app->add_option("model,--model", m.model, "Model directory (Hugging Face layout), or a *.gguf file");
  if (model_required) model->required();
  app->add_option("--tokenizer", m.tokenizer, "Folder with the tokenizer files, or a *.gguf file; default: the model's");
  app->add_option("--load-format", m.load_format, "dummy: seeded random weights from config.json alone")
      ->check(CLI::IsMember({"auto", "safetensors", "gguf", "dummy"}));
  app->add_option("--dtype", m.dtype, "Weights and activations")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}));
  app->add_option("--device", m.device, "auto: a GPU when there is one, else the CPU")
      ->check(CLI::IsMember(device_names()));
  app->add_option("--isa", m.isa, "CPU: use at most this instruction set")->check(CLI::IsMember(instruction_sets()));
  app->add_option("--kernel-dir", m.kernel_dir, "GPU: read kernel sources from this folder");
  app->add_option("--generation-config", m.generation_config, "vllm: ignore the model's sampling defaults")
      ->check(CLI::IsMember({"auto", "vllm"}));
  app->add_option("--chat-template", m.chat_template, "File with the chat template to use");
  app->add_option("-q,--quantization", m.quantization,
                  "Keep weights in 8 or 4 bits: int8, int4 (groups of 64), int4-g128, int4-g32-asym, int4-g64-f16scales, ...");
  app->add_option(
         "--activation-dtype", m.activation_dtype,
         "What activations become in products with 8- or 4-bit weights, those of GPTQ, AWQ and GGUF checkpoints "
         "included; auto: int8; model: as --dtype, weights alone are 8 or 4 bits")
      ->check(CLI::IsMember({"auto", "model", "int8"}));
  app->add_option("--kv-cache-dtype", m.kv_cache_dtype, "Elements of the KV cache; auto: as --dtype")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32", "int8"}));
  app->add_option("-t,--threads", m.threads, "CPU compute threads; 0: all cores")->check(CLI::Range(0, 4096));
  app->add_flag(
         "--cpu-pin-threads", m.cpu_pin_threads,
         "Bind each CPU compute thread to a core of its own. For a machine with one server; off because two servers "
         "would choose the same cores, unless taskset or a cpuset gives each its own")
      ->capture_default_str();
  app->add_option("--tensor-parallel-size,--tp", m.tensor_parallel_size, "Ranks that share a model")
      ->check(CLI::Range(1, 64));
  app->add_option("--distributed-timeout-seconds", m.distributed_timeout_seconds,
                  "How long a rank waits for another before every request ends with an error")
      ->check(CLI::Range(1, 86400));
  add_count(app, "--max-model-len", m.max_model_len, "Tokens of prompt and output; 0 or -1: the largest that fits");
  add_count(app, "--max-num-seqs", m.max_num_seqs, "Sequences that run at once; 0: " + defaults_text(&BackEndDefaults::max_num_seqs));
  add_count(app, "--max-num-batched-tokens", m.max_num_batched_tokens, "Tokens of a step; 0: " + defaults_text(&BackEndDefaults::max_num_batched_tokens));
  app->add_option("--block-size", m.block_size, "Tokens in a KV block")->check(CLI::IsMember({16, 32, 64, 128}));
  add_count(app, "--kv-cache-memory,--kv-cache-memory-bytes", m.kv_cache_memory, "Bytes of KV cache (4G, 512M); 0: computed");
  app->add_option("--gpu-memory-utilization", m.gpu_memory_utilization, "Share of the GPU's free memory to use; 0: the back-end's default")
      ->check(CLI::Range(0.0, 0.0) | CLI::Range(0.05, 1.0));
  add_count(app, "--max-num-waiting", m.max_num_waiting,
            "Prompts that may wait; beyond, requests are answered 429. A request is taken with all its prompts or refused");
  add_count(app, "--long-prefill-token-threshold", m.long_prefill_token_threshold,
            "Most tokens of one prompt in a step while others wait; 0: a quarter of the budget");
  app->add_option("--max-prefill-stall-ms", m.max_prefill_stall_ms,
                  "Most milliseconds that prompts hold up running streams a step; 0: no limit; -1: " +
                      defaults_text(&BackEndDefaults::max_prefill_stall_ms))
      ->check(CLI::Range(-1, 60000));
  app->add_option("--max-logprobs", m.max_logprobs, "Most logprobs a request may ask for")->check(CLI::Range(0, 20));
  app->add_option("--seed", m.seed, "Seed of requests that bring none, and of dummy weights");
  app->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", m.enable_prefix_caching,
                "Reuse the KV cache of equal prompt beginnings (on)");
  app->add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill", m.enable_chunked_prefill,
                "Compute long prompts in pieces (on)");
  app->add_flag("--async-scheduling,!--no-async-scheduling", m.async_scheduling,
                "Schedule the next step while one runs (on)");
  app->add_flag("--deterministic", m.deterministic, "Batch-invariant kernels: the same bits whatever runs beside a request");
}

void add_serve_options(CLI::App* app, ServeArguments& s) {
  app->add_option("--host", s.host, "Address to listen on");
  app->add_option("--port", s.port, "Port to listen on; 0: any free one")->check(CLI::Range(0, 65535));
  app->add_option("--api-key", s.api_keys, "Keys that requests must bring as a bearer token");
  app->add_option("--served-model-name", s.served_model_names, "Names of the model in the API");
  app->add_option("--allowed-origins", s.allowed_origins, "Origins that browsers may call from");
  app->add_flag("--disable-access-log,--disable-uvicorn-access-log", s.disable_access_log, "No log line a request");
  app->add_flag("--enable-force-include-usage", s.enable_force_include_usage, "A usage chunk in every stream");
  app->add_option("--sse-ping-interval", s.sse_ping_interval, "Seconds between keep-alive comments of a silent stream")
      ->check(CLI::Range(0.0, 3600.0));
  app->add_option("--drain-delay", s.drain_delay, "Seconds after SIGTERM in which requests are still accepted")
      ->check(CLI::Range(0.0, 3600.0));
  app->add_option("--shutdown-timeout", s.shutdown_timeout, "Seconds that running requests get after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0));
}

void add_generate_options(CLI::App* app, GenerateArguments& g, bool chat) {
  if (!chat) app->add_option("-p,--prompt", g.prompts, "Prompt; may be given several times; default: lines of stdin");
  if (!chat) app->add_flag("--raw", g.raw, "Send the prompt as it is, without the chat template");
  if (!chat) app->add_flag("--ignore-eos", g.ignore_eos, "Go on after the end-of-sequence token");
  app->add_option("--system", g.system, "System message");
  app->add_option("--temperature", g.temperature, "0: greedy; default: the model's");
  app->add_option("--top-p", g.top_p, "Nucleus; default: the model's");
  app->add_option("--top-k", g.top_k, "Most probable tokens kept; default: the model's");
  add_count(app, "--max-tokens", g.max_tokens, "Most tokens of an answer")->check(CLI::Range(1, 1 << 30));
  app->add_flag("--no-thinking", g.no_thinking, "Chat template variable enable_thinking = false");
}

void add_quantize_options(CLI::App* app, Arguments& arguments) {
  ModelArguments& m = arguments.model;
  QuantizeArguments& q = arguments.quantize;
  app->add_option("model,--model", m.model, "Model directory (Hugging Face layout) of floats")->required();
  app->add_option("--out", q.out, "Directory to make; it appears when it is complete")->required();
  app->add_option("--to", q.to, "Weights of the layers")->check(CLI::IsMember({"int4", "int8"}));
  app->add_option("--group-size", q.group_size, "Weights that share a scale; 0: a row; default: 64 (int4), 0 (int8)")
      ->check(CLI::IsMember({-1, 0, 32, 64, 128}));
  app->add_flag("--asymmetric", q.asymmetric, "A zero point for each group");
  app->add_option("--method", q.method, "rtn: round to nearest; awq, gptq: with the help of calibration text")
      ->check(CLI::IsMember({"rtn", "awq", "gptq"}));
  app->add_flag("--act-order", q.act_order, "gptq: columns of large inputs first");
  app->add_option("--calibration-text", q.calibration_text,
                  "Text like what the model will see, documents separated by lines of <|endoftext|>; default: the "
                  "model's calibration.txt");
  add_count(app, "--calibration-tokens", q.calibration_tokens, "Most tokens of it that are used");
  app->add_option("--vocabulary", q.vocabulary, "int8: embedding table and lm_head too (vLLM does not load that)")
      ->check(CLI::IsMember({"none", "int8"}));
  app->add_option("--report-json", q.report_json, "File for the report");
  app->add_flag("--no-eval", q.no_eval, "Do not ask the questions of the model's eval/ folder before and after");
  app->add_option("--max-questions", q.max_questions, "Of each skill; 0: all");
  app->add_option("--device", m.device, "Where calibration runs; auto: a GPU when there is one, else the CPU")
      ->check(CLI::IsMember(device_names()));
  app->add_option("--isa", m.isa, "CPU: use at most this instruction set")->check(CLI::IsMember(instruction_sets()));
  app->add_option("-t,--threads", m.threads, "CPU threads; 0: all cores")->check(CLI::Range(0, 4096));
}

void add_bench_options(CLI::App* bench, Arguments& arguments) {
  BenchArguments& b = arguments.bench;
  bench->require_subcommand(1);
  for (const char* name : {"throughput", "latency"}) {
    CLI::App* app = bench->add_subcommand(name, std::string(name) == "latency" ? "Time of one batch, as vLLM's bench latency"
                                                                               : "Tokens a second of many requests offline");
    add_model_options(app, arguments.model);
    add_count(app, "--input-len", b.input_len, "Prompt tokens; 0: 32 (latency), 1024 (throughput)");
    add_count(app, "--output-len", b.output_len, "Output tokens; 0: 128");
    app->add_option("--output-json", b.output_json, "File for the result");
    if (std::string(name) == "latency") {
      add_count(app, "--batch-size", b.batch_size, "Sequences in the batch");
      app->add_option("--num-iters-warmup", b.num_iters_warmup, "Iterations before the measurement");
      app->add_option("--num-iters", b.num_iters, "Iterations measured");
    } else {
      add_count(app, "--num-prompts", b.num_prompts, "Requests");
      app->add_option("--n", b.n, "Sequences a request");
    }
  }
  CLI::App* serve = bench->add_subcommand("serve", "Load on a running server, as vLLM's bench serve");
  serve->add_option("--base-url", b.base_url, "http://host:port; default: from --host and --port");
  serve->add_option("--host", b.host, "Server address");
  serve->add_option("--port", b.port, "Server port");
  serve->add_option("--endpoint", b.endpoint, "/v1/completions or /v1/chat/completions");
  serve->add_option("--model,--served-model-name", b.served_model_name, "Model name; default: the server's first");
  serve->add_option("--api-key", b.api_key, "Bearer token");
  add_count(serve, "--num-prompts", b.num_prompts, "Requests");
  add_count(serve, "--random-input-len,--input-len", b.input_len, "Prompt tokens; 0: 1024");
  add_count(serve, "--random-output-len,--output-len", b.output_len, "Output tokens; 0: 128");
  serve->add_option("--random-range-ratio", b.random_range_ratio, "Lengths are drawn from [len*(1-r), len*(1+r)]");
  add_count(serve, "--random-prefix-len", b.random_prefix_len, "Tokens that all prompts share");
  serve->add_option("--request-rate", b.request_rate, "Requests a second; 0: all at once");
  serve->add_option("--burstiness", b.burstiness, "Gamma shape of arrivals; 1: Poisson");
  serve->add_option("--max-concurrency", b.max_concurrency, "Requests in flight; 0: unbounded");
  serve->add_option("--num-warmups", b.num_warmups, "Requests before the measurement");
  serve->add_option("--temperature", b.temperature, "Of the requests");
  serve->add_flag("--ignore-eos,!--no-ignore-eos", b.ignore_eos, "Always the full output length (on)");
  serve->add_option("--metric-percentiles", b.metric_percentiles, "Percentiles to print: 50,99");
  serve->add_option("--seed", arguments.model.seed, "Of prompts and arrivals");
  serve->add_flag("--save-result", b.save_result, "Write the JSON result");
  serve->add_option("--result-filename,--output-json", b.result_filename, "File for the result");
  CLI::App* limits = bench->add_subcommand("limits", "The physical limits of this machine: memory bandwidth, arithmetic");
  limits->add_option("-t,--threads", arguments.model.threads, "Compute threads; 0: all cores");
  limits->add_option("--output-json", b.output_json, "File for the result");
  CLI::App* table = bench->add_subcommand("table", "Prefill and decode of model shapes beside the limits of this machine");
  add_model_options(table, arguments.model, false);
  table->add_option("--configs", b.configs, "Folders with a config.json; weights are random");
  table->add_option("--formats", b.formats, "Weight formats: bf16, f32, or as --quantization; integers with an INT8 KV cache")
      ->delimiter(',')
      ->capture_default_str();
  table->add_option("--output-json", b.output_json, "File for the rows");
  CLI::App* kernel =
      bench->add_subcommand("kernel", "Each op at the sizes of a model, beside the limits of this machine");
  add_model_options(kernel, arguments.model);
  kernel->add_option("--filter", b.filter, "Only rows whose name contains this text");
  kernel->add_option("--output-json", b.output_json, "File for the rows");
}

// --- the --config file ------------------------------------------------------------------------------------------------

struct FileValue {
  std::string value;
  std::string source;  // "config.yaml:12"
};

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string nearest_flag(const CLI::App& app, const std::string& key) {
  std::string nearest;
  int best = 1 << 30;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const int distance = edit_distance(name, key);
      if (distance < best) {
        best = distance;
        nearest = name;
      }
    }
  }
  return nearest;
}

// Leaves of the document as "--key=value" arguments, sections flattened away.
Status flatten(const YAML::Node& node, const std::string& file, const CLI::App& app, std::map<std::string, FileValue>& sources,
               std::vector<std::string>& args) {
  for (const auto& entry : node) {
    std::string key = entry.first.as<std::string>();
    std::replace(key.begin(), key.end(), '_', '-');
    const YAML::Node& value = entry.second;
    if (value.IsMap()) {
      RETURN_IF_ERROR(flatten(value, file, app, sources, args));
      continue;
    }
    const std::string place = fmt::format("{}:{}", file, entry.first.Mark().line + 1);
    const CLI::Option* option = app.get_option_no_throw("--" + key);
    if (option == nullptr || key == "config" || key == "help") {
      return invalid_argument("{}: unknown key '{}'; the nearest is '{}'", place, key, nearest_flag(app, key));
    }
    const auto add = [&](const YAML::Node& scalar) { args.push_back(fmt::format("--{}={}", key, scalar.as<std::string>())); };
    if (value.IsSequence()) {
      for (const auto& item : value) add(item);
    } else if (!value.IsNull()) {
      add(value);
    }
    sources[option->get_lnames().front()] = {"", place};
  }
  return ok_status();
}

Status read_config_file(const std::string& path, const CLI::App& app, std::map<std::string, FileValue>& sources,
                        std::vector<std::string>& args) {
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (!root.IsMap()) return invalid_argument("--config {}: needs keys and values at the top level", path);
    return flatten(root, std::filesystem::path(path).filename().string(), app, sources, args);
  } catch (const YAML::BadFile&) {
    return not_found("--config {}: cannot be read", path);
  } catch (const YAML::Exception& e) {
    return invalid_argument("--config {}:{}: {}", path, e.mark.line + 1, e.msg);
  }
}

// --- after parsing ------------------------------------------------------------------------------------------------------

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + value;
  return text;
}

void describe(const CLI::App& app, const std::map<std::string, FileValue>& file, const std::vector<std::string>& cli_args,
              Arguments& arguments) {
  std::string non_default;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string name = option->get_lnames().front();
    if (name == "help" || name == "config" || name == "print-config") continue;
    std::string source = "default";
    std::string value = option->count() > 0 ? joined(option->reduced_results()) : option->get_default_str();
    if (option->count() > 0) {
      const bool on_command_line = std::any_of(cli_args.begin(), cli_args.end(), [&](const std::string& arg) {
        for (const std::string& spelling : option->get_lnames()) {
          if (arg == "--" + spelling || arg.rfind("--" + spelling + "=", 0) == 0) return true;
        }
        for (const std::string& spelling : option->get_snames()) {
          if (arg.rfind("-" + spelling, 0) == 0 && arg.rfind("--", 0) != 0) return true;
        }
        return false;
      });
      const auto from_file = file.find(name);
      source = on_command_line || from_file == file.end() ? "cli" : from_file->second.source;
      if (name.find("key") != std::string::npos) value = "(set)";
      non_default += fmt::format("{}'{}': '{}'", non_default.empty() ? "" : ", ", name, value);
    } else if (option->get_expected_min() == 0) {  // a flag
      value = name.rfind("enable-prefix", 0) == 0 || name.rfind("enable-chunked", 0) == 0 || name == "async-scheduling" ||
                      name == "ignore-eos"
                  ? "true"
                  : "false";
    }
    arguments.config_lines.push_back(fmt::format("{}: {}  # {}", name, value.empty() ? "\"\"" : value, source));
  }
  arguments.non_default_args = "{" + non_default + "}";
}

}  // namespace

Result<Arguments> parse_arguments(int argc, const char* const* argv) {
  Arguments arguments;
  CLI::App app{"Spate serves large language models on the CPU you have, on one GPU, or on several.", "spate"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("spate ") + kVersion);
  app.option_defaults()->always_capture_default();
  std::string config_path;

  const auto add_command = [&](const char* name, const char* help) {
    CLI::App* command = app.add_subcommand(name, help);
    command->option_defaults()->always_capture_default();
    return command;
  };
  const auto finish_command = [&](CLI::App* command) {
    command->add_option("--config", config_path, "YAML file; keys are the long flag names");
    command->add_flag("--print-config", arguments.print_config, "Print every setting with its source and stop");
    command->add_option("--log-level", arguments.log_level, "Least important lines shown")
        ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
    command->add_option("--log-format", arguments.log_format, "Of log lines")->check(CLI::IsMember({"text", "json"}));
  };
  CLI::App* serve = add_command("serve", "Serve a model over the OpenAI protocol");
  add_model_options(serve, arguments.model);
  add_serve_options(serve, arguments.serve);
  CLI::App* chat = add_command("chat", "Talk to a model in the terminal");
  add_model_options(chat, arguments.model);
  add_generate_options(chat, arguments.generate, true);
  CLI::App* generate = add_command("generate", "Answer prompts given on the command line or stdin");
  add_model_options(generate, arguments.model);
  add_generate_options(generate, arguments.generate, false);
  CLI::App* eval = add_command("eval", "Score a model on the questions in its eval/ folder");
  add_model_options(eval, arguments.model);
  eval->add_flag("--json", arguments.eval.json, "One JSON object: average, skills, perplexity");
  eval->add_option("--max-questions", arguments.eval.max_questions, "Of each skill; 0: all");
  eval->add_option("--batch-size", arguments.eval.batch_size, "Questions in flight")->check(CLI::Range(1, 4096));
  eval->add_option("--outputs", arguments.eval.outputs, "File for every answer, a JSON object a line");
  CLI::App* quantize = add_command("quantize", "Write a model with 8- or 4-bit weights, and say what it costs");
  add_quantize_options(quantize, arguments);
  CLI::App* inspect = add_command("inspect", "Print architecture, tensors, memory need and whether it fits");
  add_model_options(inspect, arguments.model);
  CLI::App* bench = add_command("bench", "Measure: serve, throughput, latency, limits, kernel, table");
  add_bench_options(bench, arguments);
  std::vector<CLI::App*> leaves = {serve, chat, generate, eval, quantize, inspect};
  for (CLI::App* sub : bench->get_subcommands([](CLI::App*) { return true; })) leaves.push_back(sub);
  for (CLI::App* command : leaves) {
    finish_command(command);
    for (CLI::Option* option : command->get_options()) {
      // Lists take all their values; everything else takes the last, so that the command line wins over the file.
      const std::string name = option->get_lnames().empty() ? "" : option->get_lnames().front();
      const bool is_list = name == "api-key" || name == "served-model-name" || name == "allowed-origins" || name == "prompt" || name == "configs";
      if (!is_list && name != "help") option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }

  std::vector<std::string> cli_args(argv + 1, argv + argc);
  std::map<std::string, FileValue> file_sources;
  const auto parse = [&](std::vector<std::string> args) {
    std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
    app.parse(args);
  };
  try {
    // The file's values go in front of the command line's, behind the command words.
    size_t num_command_words = 0;
    CLI::App* command = &app;
    while (num_command_words < cli_args.size()) {
      const auto next = command->get_subcommands([&](CLI::App* sub) { return sub->get_name() == cli_args[num_command_words]; });
      if (next.empty()) break;
      command = next.front();
      ++num_command_words;
    }
    for (size_t i = num_command_words; i < cli_args.size(); ++i) {
      std::string path;
      if (cli_args[i] == "--config" && i + 1 < cli_args.size()) path = cli_args[i + 1];
      if (cli_args[i].rfind("--config=", 0) == 0) path = cli_args[i].substr(9);
      if (path.empty()) continue;
      std::vector<std::string> file_args;
      RETURN_IF_ERROR(read_config_file(path, *command, file_sources, file_args));
      std::vector<std::string> merged(cli_args.begin(), cli_args.begin() + static_cast<std::ptrdiff_t>(num_command_words));
      merged.insert(merged.end(), file_args.begin(), file_args.end());
      merged.insert(merged.end(), cli_args.begin() + static_cast<std::ptrdiff_t>(num_command_words), cli_args.end());
      parse(merged);
      break;
    }
    if (!app.parsed()) parse(cli_args);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {
      app.exit(e);
      return arguments;
    }
    return invalid_argument("{}", e.what());
  }
  for (CLI::App* command : leaves) {
    if (!command->parsed()) continue;
    arguments.command = command->get_parent() == bench ? "bench" : command->get_name();
    if (command->get_parent() == bench) arguments.bench.what = command->get_name();
    describe(*command, file_sources, cli_args, arguments);
  }
  arguments.model.max_model_len = std::max<int64_t>(arguments.model.max_model_len, 0);
  return arguments;
}

}  // namespace spate
