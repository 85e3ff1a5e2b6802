// Arguments: everything that the command line and a --config file can say, typed, checked, with the source of each value.
//
// Flags carry vLLM's names where the meaning is the same. A value comes from the command line, else from the YAML file given by
// --config (keys are the long flag names, sections allowed), else from its default. An unknown key is an error that names
// the nearest flag, on the command line too. The environment sets SPATE_API_KEY only, read in main.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/model_loader.h"

namespace spate {

// What loads and runs a model: all commands but `inspect` and `bench serve` take these.
struct ModelArguments {
  std::string model;                   // path, or a name that find_models() turns into one
  std::string hub_name;                // of a model found by its name in the Hugging Face cache
  std::string tokenizer;               // folder of tokenizer files; empty: the model's
  std::string load_format = "auto";    // auto, safetensors, dummy
  std::string dtype = "auto";          // auto, bfloat16, float32
  std::string quantization = "none";   // quant/quantization.h
  std::string activation_dtype = "auto";  // the same
  std::string kv_cache_dtype = "auto";  // auto: dtype; bfloat16, float32, int8
  std::string device = "auto";         // auto, a name of backend/registry, or mock
  std::string mock_script;             // file of device mock (cli/mock_argument.h); empty: prompts are echoed
  std::string isa;                     // cap on the instruction set of a CPU
  std::string kernel_dir;              // GPU kernel sources from this folder
  std::string generation_config = "auto";  // auto: the model's generation_config.json; vllm: ignore it
  std::string override_generation_config;  // JSON (cli/serving_json.h); empty: nothing
  std::string chat_template;           // file that replaces the model's template, or the template itself
  std::string default_chat_template_kwargs;  // JSON (cli/serving_json.h); empty: none
  int threads = 0;                     // cpu compute threads of all ranks; 0 = as many as the device takes
  bool cpu_pin_threads = false;        // bind them to cores
  std::string weight_cache;            // folder of packed weights; empty: none are kept
  int64_t weight_cache_limit = int64_t{64} << 30;  // bytes
  int tensor_parallel_size = 1;
  int distributed_timeout_seconds = 60;  // how long a rank waits for another
  int64_t max_model_len = 0;           // 0 = the largest that fits
  int max_num_seqs = 0;                // 0 = the back-end's default
  int max_num_batched_tokens = 0;      // 0 = the back-end's default
  int block_size = 16;
  int64_t kv_cache_memory = 0;         // bytes; 0 = computed
  double gpu_memory_utilization = 0;  // 0 = the back-end's default
  int max_num_waiting = 1024;
  int long_prefill_token_threshold = 0;
  int max_prefill_stall_ms = -1;       // -1 = the back-end's default
  int max_logprobs = 20;
  uint64_t seed = 0;
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  bool async_scheduling = true;
  bool deterministic = false;
  std::string pooler_config;           // JSON or a name (cli/pooling_argument.h); empty: as the model's files say
  std::string repetition_detection;    // JSON; empty: off
  bool jump_forward = true;
  std::string speculative_config;      // JSON (cli/speculative_argument.h); empty: none
};

struct ServeArguments {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string uds;        // path of a Unix domain socket; empty: host and port
  std::string root_path;  // prefix of all paths; empty: none
  std::vector<std::string> api_keys;
  std::string api_key_file;               // of hashes; empty: none
  std::string ssl_certfile, ssl_keyfile;  // PEM; empty: plain HTTP
  std::vector<std::string> served_model_names;
  std::vector<std::string> models;  // --model as given: one path, and models beside it
  std::vector<ModelSpec> specs;     // of the latter; ModelArguments::model is empty where there are only such
  bool enable_admin = false;        // models may be loaded and unloaded while the server runs
  double idle_unload_seconds = 0;   // a model that is not used for so long is unloaded; 0: never
  std::vector<std::string> allowed_origins;
  std::string metrics_compat = "vllm";
  std::string reasoning_parser = "auto", tool_call_parser = "auto";  // server/output_format.h
  std::string reasoning_config;                                      // JSON (cli/serving_json.h); empty: none
  bool trust_request_chat_template = false;                          // chat_template of requests
  bool return_tokens_as_token_ids = false;                           // where requests do not say it
  int stream_interval = 1;                                           // least tokens of a chunk
  bool ui = true;
  bool slots = true;
  std::string otlp_traces_endpoint;  // empty: no traces
  bool disable_access_log = false;
  std::string disable_access_log_for_endpoints;  // paths with commas, beside those of ServerConfig
  bool disable_log_stats = false;
  std::string uvicorn_log_level = "info";
  bool enable_force_include_usage = false;
  bool enable_per_request_metrics = false;
  double sse_ping_interval = 15;  // seconds
  double drain_delay = 0;         // seconds
  double shutdown_timeout = 30;   // seconds
};

struct RunArguments {
  std::string file;
  bool dry_run = false;
};

// chat and generate.
struct GenerateArguments {
  std::vector<std::string> prompts;
  std::string system;
  double temperature = -1;  // below 0: the model's default
  double top_p = -1;
  int top_k = -1;
  int max_tokens = 0;        // 0: 256 (generate), what is left of the context (chat)
  bool ignore_eos = false;
  bool raw = false;          // generate: the prompt goes in as it is, without the chat template
  bool no_thinking = false;  // chat template variable enable_thinking = false
  bool hide_thinking = false;
};

struct ChatArguments {
  std::string url;           // of a running server; empty: the model runs in this process
  std::string api_key_file;  // its first line is the key
  bool no_history = false;
};

struct EvalArguments {
  bool json = false;
  bool graded = false;          // graded.jsonl in place of questions.jsonl
  std::string data;             // folder of questions and text; empty: the model's eval/
  std::string write_reference;  // file for this run's predictions
  std::string reference;        // file of another run's
  int max_questions = 0;        // of each skill; 0 = all
  int batch_size = 64;          // questions in flight
  std::string outputs;          // file that gets every answer, a JSON object a line
};

struct QuantizeArguments {
  std::string to = "int4";      // int4, int8
  int group_size = -1;          // 0: one scale a row; -1: 64 for int4, 0 for int8
  bool asymmetric = false;
  std::string method = "rtn";   // rtn, awq, gptq
  bool act_order = false;       // gptq
  std::string calibration_text;  // file; empty: the model's calibration.txt
  int64_t calibration_tokens = 32768;
  std::string vocabulary = "none";  // none, int8
  std::string out;              // directory that does not exist yet
  std::string report_json;      // file
  bool no_eval = false;
  int max_questions = 0;        // of each skill; 0 = all
};

struct KernelsArguments {
  std::string what;  // compile, report, tune
  std::string architecture = "sm_90a";
  std::string out;  // folder of compile
};

struct BenchArguments {
  std::string what;  // serve, throughput, latency, limits, table, kernel
  // throughput, latency, serve
  int input_len = 0;            // 0: vLLM's default of the command
  int output_len = 0;
  int num_prompts = 1000;
  int batch_size = 8;
  int num_iters_warmup = 2;
  int num_iters = 10;
  int n = 1;
  std::string output_json;
  std::string plot;                      // table, kernel, serve: an SVG file
  std::string task = "edit";             // speculation: edit, prose, questions, random
  double speculative_accept_rate = 0.8;  // speculation, random: of drafts, simulated
  std::vector<std::string> configs;  // table
  std::vector<std::string> formats = {"bf16", "int8", "int4-g64"};  // table: of the weights, as --quantization
  int num_rows = 256;                                               // grammar
  std::vector<uint64_t> seeds = {1, 2, 3};                          // grammar: of the random texts
  int num_runs = 4;                                                 // grammar: of the same steps
  int64_t max_ahead_work = -1;  // grammar: units of work ahead when a grammar is compiled; -1: as a server
  double step_ms = 5;           // grammar: device time of a step, beside which masks are found ahead
  std::string filter;                                               // kernel, table: rows whose name contains it
  int row_seconds = 30;  // table: a row begins no run behind them; 0: unbounded
  // serve
  std::string base_url;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string endpoint = "/v1/completions";
  std::string served_model_name;
  std::vector<double> request_rates = {0};  // requests/s; 0 = all at once; several are run one after another
  double burstiness = 1.0;
  std::vector<int> max_concurrencies = {0};  // 0 = unbounded; likewise, where there is one request rate
  int num_warmups = 0;
  std::string dataset_name = "random";  // bench_dataset.h
  std::string dataset_path;
  int prefix_len = 256, suffix_len = 256, num_prefixes = 10;  // prefix_repetition
  double random_range_ratio = 0;
  int random_prefix_len = 0;
  double temperature = 0;
  bool ignore_eos = true;
  bool save_result = false;
  std::string result_filename;
  std::string metric_percentiles = "99";
  std::string api_key;
};

struct Arguments {
  std::string command;   // serve, chat, generate, eval, quantize, inspect, kernels, bench; empty: help or version was printed
  ModelArguments model;
  ServeArguments serve;
  RunArguments run;
  GenerateArguments generate;
  ChatArguments chat;
  EvalArguments eval;
  QuantizeArguments quantize;
  KernelsArguments kernels;
  BenchArguments bench;
  std::string completion_shell;
  std::string log_level = "info";
  std::string log_format = "text";
  bool print_config = false;
  // "--port = 8001  # cli": one line a flag of the command, for --print-config and the start-up log.
  std::vector<std::string> config_lines;
  std::vector<std::string> notes;  // lines for the log: flags that have no effect here, and why
  std::string non_default_args;  // "{'port': 8001}", for the log; never a key
};

// docs/flags.md
std::string flags_page();

// Those of the model that `spec` describes, beside the others of a server: what concerns the machine is as in `common`, what
// concerns one model (its files, formats, lengths, KV cache, parsers) is the default, then come the settings.
Result<Arguments> arguments_of_model(const ModelSpec& spec, const Arguments& common);

// Prints help or the version itself. Errors are invalid_argument with the text to show.
Result<Arguments> parse_arguments(int argc, const char* const* argv);

}  // namespace spate
