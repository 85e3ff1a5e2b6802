#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>

#include "backend/registry/registry.h"
#include "mock/mock_script.h"
#include "server/metrics_compat.h"
#include "server/output_format.h"

namespace spate {
namespace {

constexpr double kMaxIdleSeconds = 7 * 86400;

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
    if (!(std::abs(number) * static_cast<double>(factor->second) < 9e18)) return "'" + text + "' is too large";
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

// What is no number at all is refused where it is converted.
CLI::Validator not_below(int lowest) {
  const auto check = [lowest](const std::string& text) {
    int64_t number = 0;
    const bool is_number = CLI::detail::lexical_cast(text, number);
    return is_number && number < lowest ? fmt::format("must be at least {}, got {}", lowest, text) : std::string();
  };
  return {check, ""};
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

// "hermes, llama3_json, ..."
template <typename Format>
std::string format_names(std::span<const Format> formats) {
  std::string text;
  for (const Format& format : formats) {
    const std::string name = first_name(format.names);
    if (!text.ends_with(name)) text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

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

template <typename T>
CLI::Option* add_count(CLI::App* app, const std::string& name, T& value, const std::string& help, int lowest) {
  return app->add_option(name, value, help)->transform(count_suffix())->check(not_below(lowest))->type_name("N");
}
template CLI::Option* add_count(CLI::App*, const std::string&, int&, const std::string&, int);
template CLI::Option* add_count(CLI::App*, const std::string&, int64_t&, const std::string&, int);

CLI::Validator number_in(double lowest, double highest) {
  const auto check = [lowest, highest](std::string& text) {
    double number = 0;
    const bool is_number = CLI::detail::lexical_cast(text, number);
    const bool is_in = is_number && number >= lowest && number <= highest;  // NaN is not
    return is_in ? std::string() : fmt::format("must be a number in [{:g}, {:g}], got {}", lowest, highest, text);
  };
  return {check, fmt::format("FLOAT in [{:g} - {:g}]", lowest, highest)};
}

CLI::Validator seed_number() {
  const auto check = [](std::string& text) {
    uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    const bool is_seed = error == std::errc() && end == text.data() + text.size();
    return is_seed ? std::string() : fmt::format("must be a whole number in [0, {}], got {}", UINT64_MAX, text);
  };
  return {check, ""};
}

CLI::Option* add_switch(CLI::App* app, const std::string& names, bool& value, const std::string& help) {
  return app->add_flag(names, value, help)->default_str(value ? "true" : "false");
}

void begin_group(CLI::App* app, const std::string& group) { app->option_defaults()->group(group); }

void add_model_flags(CLI::App* app, ModelArguments& m, bool model_required, std::vector<std::string>* models) {
  begin_group(app, "Model");
  const std::string help = "Model directory (Hugging Face layout), a *.gguf file, or a name that the local Hugging Face cache has";
  CLI::Option* const model =
      models == nullptr
          ? app->add_option("model,--model", m.model, help)
          : app->add_option(
                   "model,--model", *models,
                   help +
                       ". NAME=PATH[,key=value...] serves a model beside it, as often as it is given; keys are the "
                       "flags of the groups Model, Device and Memory without dashes, the two parsers, "
                       "idle-unload-seconds, and alias")
                ->expected(1)
                ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (model_required) model->required();
  app->add_option("--tokenizer", m.tokenizer, "Folder with the tokenizer files, or a *.gguf file; default: the model's");
  app->add_option("--load-format", m.load_format, "dummy: seeded random weights from config.json alone")
      ->check(CLI::IsMember({"auto", "safetensors", "gguf", "dummy"}));
  app->add_option("--dtype", m.dtype, "Weights and activations; half and float16 compute in bfloat16")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32", "half", "float16", "float"}));
  begin_group(app, "Device");
  std::vector<std::string> devices = device_names();
  devices.emplace_back(kMockDevice);
  app->add_option("--device", m.device,
                  "auto: a GPU when there is one, else the CPU; mock: no model, scripted answers (docs/mock.md)")
      ->check(CLI::IsMember(devices));
  app->add_option("--mock-script", m.mock_script, "File with the answers, delays and faults of --device mock; default: prompts are echoed");
  app->add_option("--isa", m.isa, "CPU: use at most this instruction set")->check(CLI::IsMember(instruction_sets()));
  app->add_option("--kernel-dir", m.kernel_dir, "GPU: read kernel sources from this folder");
  begin_group(app, "Model");
  app->add_option("--generation-config", m.generation_config, "vllm: ignore the model's sampling defaults")
      ->check(CLI::IsMember({"auto", "vllm"}));
  app->add_option("--override-generation-config", m.override_generation_config,
                  "Sampling defaults in place of generation_config.json's, as JSON: {\"temperature\": 0.5}");
  app->add_option("--chat-template", m.chat_template, "File with the chat template to use, or the template itself");
  app->add_option(
      "--default-chat-template-kwargs", m.default_chat_template_kwargs,
      "Variables of the chat template where requests do not say them, as JSON: {\"enable_thinking\": false}");
  app->add_option("-q,--quantization", m.quantization,
                  "Keep weights in 8 or 4 bits: int8, int4 (groups of 64), int4-g128, int4-g32-asym, int4-g64-f16scales, ...");
  app->add_option(
         "--activation-dtype", m.activation_dtype,
         "What activations become in products with 8- or 4-bit weights, those of GPTQ, AWQ and GGUF checkpoints "
         "included; auto: int8; model: as --dtype, weights alone are 8 or 4 bits")
      ->check(CLI::IsMember({"auto", "model", "int8"}));
  begin_group(app, "Memory and scheduling");
  app->add_option("--kv-cache-dtype", m.kv_cache_dtype, "Elements of the KV cache; auto: as --dtype")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32", "int8"}));
  begin_group(app, "Device");
  app->add_option("-t,--threads", m.threads,
                  "CPU compute threads; 0: one for each physical core, within the quota of the control group")
      ->check(CLI::Range(0, 1024));
  add_switch(app, "--cpu-pin-threads", m.cpu_pin_threads,
             "Bind each CPU compute thread to a core of its own. For a machine with one server; off because two servers "
             "would choose the same cores, unless taskset or a cpuset gives each its own");
  app->add_option("--weight-cache", m.weight_cache,
                  "CPU: folder that keeps packed weights; a later start of the same model maps them and packs nothing");
  add_count(app, "--weight-cache-limit", m.weight_cache_limit,
            "Bytes that --weight-cache may take; the least recently used model goes first", 1);
  app->add_option("--tensor-parallel-size,--tp", m.tensor_parallel_size, "Ranks that share a model")
      ->check(CLI::Range(1, 64));
  app->add_option("--distributed-timeout-seconds", m.distributed_timeout_seconds,
                  "How long a rank waits for another before every request ends with an error")
      ->check(CLI::Range(1, 86400));
  begin_group(app, "Memory and scheduling");
  add_count(app, "--max-model-len", m.max_model_len,
            "Tokens of prompt and output; auto, 0 or -1: the largest that fits", -1)
      ->transform(CLI::Validator([](std::string& text) { return text == "auto" ? (text = "0", "") : ""; }, ""));
  add_count(app, "--max-num-seqs", m.max_num_seqs, "Sequences that run at once; 0: " + defaults_text(&BackEndDefaults::max_num_seqs));
  add_count(app, "--max-num-batched-tokens", m.max_num_batched_tokens, "Tokens of a step; 0: " + defaults_text(&BackEndDefaults::max_num_batched_tokens));
  app->add_option("--block-size", m.block_size, "Tokens in a KV block")->check(CLI::IsMember({16, 32, 64, 128}));
  add_count(app, "--kv-cache-memory,--kv-cache-memory-bytes", m.kv_cache_memory, "Bytes of KV cache (4G, 512M); 0: computed");
  app->add_option("--gpu-memory-utilization", m.gpu_memory_utilization, "Share of the GPU's free memory to use; 0: the back-end's default")
      ->check(number_in(0.0, 0.0) | number_in(0.05, 1.0));
  add_count(app, "--max-num-waiting", m.max_num_waiting,
            "Prompts that may wait; beyond, requests are answered 429. A request is taken with all its prompts or refused");
  add_count(app, "--long-prefill-token-threshold", m.long_prefill_token_threshold,
            "Most tokens of one prompt in a step while others wait; 0: a quarter of the budget");
  app->add_option("--max-prefill-stall-ms", m.max_prefill_stall_ms,
                  "Most milliseconds that prompts hold up running streams a step, more where more prompts wait than "
                  "streams run; "
                  "0: no limit; -1: " +
                      defaults_text(&BackEndDefaults::max_prefill_stall_ms))
      ->check(CLI::Range(-1, 60000));
  app->add_option("--max-logprobs", m.max_logprobs,
                  "Most logprobs a request may ask for; -1: the whole vocabulary. More than 20 cost the device a wait "
                  "in each step")
      ->check(CLI::Range(-1, INT32_MAX));
  app->add_option("--seed", m.seed, "Seed of requests that bring none, and of dummy weights")
      ->check(seed_number());
  add_switch(app, "--enable-prefix-caching,!--no-enable-prefix-caching", m.enable_prefix_caching,
                "Reuse the KV cache of equal prompt beginnings");
  add_switch(app, "--enable-chunked-prefill,!--no-enable-chunked-prefill", m.enable_chunked_prefill,
                "Compute long prompts in pieces");
  add_switch(app, "--async-scheduling,!--no-async-scheduling", m.async_scheduling,
                "Schedule the next step while one runs");
  add_switch(app, "--deterministic", m.deterministic, "Batch-invariant kernels: the same bits whatever runs beside a request");
  app->add_option("--pooler-config,--override-pooler-config,--pooling", m.pooler_config,
                  "What makes an embedding, where the model's files do not say it: last, mean, cls, or JSON: "
                  "{\"pooling_type\": \"LAST\", \"normalize\": true}");
  app->add_option("--repetition-detection", m.repetition_detection,
                  "Where requests do not say it, ends answers that repeat a pattern of tokens: "
                  "{\"max_pattern_size\": 32, \"min_pattern_size\": 1, \"min_count\": 4}; off by default");
  add_switch(app, "--jump-forward,!--no-jump-forward", m.jump_forward,
             "Draft the tokens that a grammar leaves no choice about: one step for several");
  app->add_option("--speculative-config", m.speculative_config,
                  "Drafts, as JSON: {\"method\": \"ngram\"}; methods and fields: docs/speculation.md");
}

void add_parser_flags(CLI::App* app, ServeArguments& s) {
  app->add_option("--reasoning-parser", s.reasoning_parser,
                  "How the model writes its reasoning: auto (seen from the chat template), none, or " +
                      format_names(reasoning_formats()));
  app->add_option("--tool-call-parser", s.tool_call_parser,
                  "How the model writes tool calls: auto (seen from the chat template), none, or " +
                      format_names(tool_formats()));
  app->add_option(
      "--reasoning-config", s.reasoning_config,
      "What ends a reasoning whose budget is spent, as JSON: {\"reasoning_end_str\": \"Time to answer.</think>\"}; "
      "default: the mark alone");
}

void add_idle_flag(CLI::App* app, ServeArguments& s) {
  app->add_option("--idle-unload-seconds", s.idle_unload_seconds,
                  "Unload a model, and free its memory, when no request has used it for so long; the next request "
                  "waits until it is "
                  "loaded again. 0: never")
      ->check(number_in(0.0, kMaxIdleSeconds));
}

void add_serve_flags(CLI::App* app, ServeArguments& s) {
  begin_group(app, "Server");
  app->add_option("--host", s.host, "Address to listen on");
  app->add_option("--port", s.port, "Port to listen on; 0: any free one")->check(CLI::Range(0, 65535));
  app->add_option("--uds", s.uds, "Unix domain socket to listen on, instead of host and port");
  app->add_option("--root-path", s.root_path, "Prefix of all paths, where a proxy passes it on")
      ->check(CLI::Validator([](std::string& path) { return path.starts_with('/') ? "" : "must begin with /"; }, ""));
  app->add_option("--api-key", s.api_keys, "Keys that requests must bring as a bearer token");
  app->add_option("--api-key-file", s.api_key_file, "File of more keys, a SHA-256 a line: printf %s KEY | sha256sum");
  app->add_option("--ssl-certfile", s.ssl_certfile,
                  "PEM file with the certificate and its chain: HTTPS instead of HTTP");
  app->add_option("--ssl-keyfile", s.ssl_keyfile, "PEM file with its key; default: --ssl-certfile has it too");
  add_switch(app, "--enable-admin", s.enable_admin,
             "/admin/models: load and unload models while the server runs, any path that it can read; needs --api-key");
  add_idle_flag(app, s);
  app->add_option("--served-model-name", s.served_model_names, "Names of the model in the API; of the one without NAME=");
  app->add_option("--allowed-origins", s.allowed_origins, "Origins that browsers may call from");
  add_parser_flags(app, s);
  add_switch(app, "--trust-request-chat-template", s.trust_request_chat_template,
             "Render chats with the `chat_template` that their request brings");
  add_switch(app, "--return-tokens-as-token-ids", s.return_tokens_as_token_ids,
             "Logprobs name tokens as token_id:N where requests do not say it");
  add_count(app, "--stream-interval", s.stream_interval, "Least tokens of a chunk; requests may ask for more", 1);
  add_switch(app, "--ui,!--no-ui", s.ui, "The web page at /");
  add_switch(app, "--slots,!--no-slots", s.slots, "/slots, which tells what runs");
  add_switch(app, "--disable-access-log,--disable-uvicorn-access-log", s.disable_access_log, "No log line a request");
  app->add_option("--disable-access-log-for-endpoints", s.disable_access_log_for_endpoints,
                  "Paths without a log line a request, with commas: /v1/models,/tokenize; those of health and metrics "
                  "have none anyway");
  app->add_option("--uvicorn-log-level", s.uvicorn_log_level, "warning and above: no log line a request")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical"}));
  app->add_option("--metrics-compat", s.metrics_compat,
                  "Whose names /metrics has besides vLLM's: legacy (vLLM's of before V1), sglang, fastdeploy, several "
                  "with commas")
      ->check(CLI::Validator(
          [](std::string& text) {
            const Result<std::vector<std::string>> dialects = parse_metric_dialects(text);
            return dialects.ok() ? "" : dialects.status().message();
          },
          ""));
  app->add_option("--otlp-traces-endpoint", s.otlp_traces_endpoint,
                  "Collector that gets a trace of each request: http://host:4318/v1/traces (OTLP over HTTP, JSON). The environment's "
                  "OTEL_SERVICE_NAME and OTEL_EXPORTER_OTLP_HEADERS hold");
  add_switch(app, "--disable-log-stats", s.disable_log_stats, "No line on throughput and load every ten seconds");
  add_switch(app, "--enable-force-include-usage", s.enable_force_include_usage, "Usage in every chunk of every stream, as with continuous_usage_stats");
  add_switch(app, "--enable-per-request-metrics", s.enable_per_request_metrics,
             "Times of its request in every answer, or in the last chunk of its stream, as with collect_metrics");
  app->add_option("--sse-ping-interval", s.sse_ping_interval, "Seconds between keep-alive comments of a silent stream")
      ->check(number_in(0.0, 3600.0));
  app->add_option("--drain-delay", s.drain_delay, "Seconds after SIGTERM in which requests are still accepted")
      ->check(number_in(0.0, 3600.0));
  app->add_option("--shutdown-timeout", s.shutdown_timeout, "Seconds that running requests get after SIGTERM")
      ->check(number_in(0.0, 86400.0));
}

void add_run_flags(CLI::App* app, RunArguments& r) {
  begin_group(app, "Deployment");
  app->add_option("file,--file", r.file, "YAML file of engines and graphs (docs/deployment.md)")->required();
  add_switch(app, "--dry-run", r.dry_run, "Check the file, print what would be started, and end");
}

void add_generate_flags(CLI::App* app, GenerateArguments& g, bool chat) {
  begin_group(app, "Generation");
  if (!chat) app->add_option("-p,--prompt", g.prompts, "Prompt; may be given several times; default: lines of stdin");
  if (!chat) add_switch(app, "--raw", g.raw, "Send the prompt as it is, without the chat template");
  if (!chat) add_switch(app, "--ignore-eos", g.ignore_eos, "Go on after the end-of-sequence token");
  app->add_option("--system", g.system, "System message");
  app->add_option("--temperature", g.temperature, "0: greedy; default: the model's")->check(number_in(0, 2));
  app->add_option("--top-p", g.top_p, "Nucleus; default: the model's")->check(number_in(0, 1));
  app->add_option("--top-k", g.top_k, "Most probable tokens kept; 0: all; -1: as the model says")
      ->check(CLI::Range(-1, INT32_MAX));
  add_count(app, "--max-tokens", g.max_tokens, chat ? "Most tokens of an answer; 0: what is left of the context" : "Most tokens of an answer; 0: 256")
      ->check(CLI::Range(0, 1 << 30));
  add_switch(app, "--no-thinking", g.no_thinking, "Chat template variable enable_thinking = false");
  add_switch(app, "--hide-thinking", g.hide_thinking, "Show the answer without the reasoning before it");
}

void add_chat_flags(CLI::App* app, ChatArguments& c) {
  begin_group(app, "Server");
  app->add_option("--url", c.url, "Talk to a running server, http://host:port, instead of loading a model; MODEL is then a name of its list");
  app->add_option("--api-key-file", c.api_key_file, "File whose first line is the server's key; default: SPATE_API_KEY");
  begin_group(app, "Generation");
  add_switch(app, "--no-history", c.no_history, "Keep what is typed in memory only, not in ~/.local/state/spate/chat_history");
}

void add_common_flags(CLI::App* app, Arguments& arguments, std::string& config_path) {
  begin_group(app, "Configuration and log");
  app->add_option("--config", config_path, "YAML file; keys are the long flag names");
  add_switch(app, "--print-config", arguments.print_config, "Print every setting with its source and stop");
  app->add_option("--log-level", arguments.log_level, "Least important lines shown")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
  app->add_option("--log-format", arguments.log_format, "Of log lines")->check(CLI::IsMember({"text", "json"}));
}

}  // namespace spate
