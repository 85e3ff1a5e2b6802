// Goal    What a user types means what vLLM's users expect: suffixes, file below command line, errors that name the key.
//         The eval files are read as documented, and only the final answer counts.
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments.h"
#include "cli/bench_dataset.h"
#include "cli/eval_data.h"
#include "cli/find_models.h"
#include "cli/llm_arguments.h"
#include "cli/mock_argument.h"
#include "cli/pooling_argument.h"
#include "cli/serving.h"
#include "cli/serving_json.h"
#include "cli/serving_plan.h"
#include "cli/speculative_argument.h"
#include "cli/sse_client.h"

namespace spate {
namespace {

Result<Arguments> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "spate");
  return parse_arguments(static_cast<int>(words.size()), words.data());
}

std::string write_file(const TempDir& dir, const char* name, const std::string& text) {
  const std::filesystem::path path = dir.path() / name;
  std::ofstream(path) << text;
  return path.string();
}

// $HF_HUB_CACHE while it lives.
class HubCacheVariable {
 public:
  explicit HubCacheVariable(const std::string& folder) {
    if (const char* before = std::getenv("HF_HUB_CACHE")) before_ = before;
    ::setenv("HF_HUB_CACHE", folder.c_str(), 1);
  }
  ~HubCacheVariable() { before_ ? ::setenv("HF_HUB_CACHE", before_->c_str(), 1) : ::unsetenv("HF_HUB_CACHE"); }
  HubCacheVariable(const HubCacheVariable&) = delete;
  HubCacheVariable& operator=(const HubCacheVariable&) = delete;

 private:
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("arguments: vLLM's spellings") {
  const auto args = parse({"serve", "some/model", "--max-model-len", "4k", "--kv-cache-memory=2G", "--max-num-batched-tokens", "1K",
                           "--no-enable-prefix-caching", "--enable-chunked-prefill=false", "--tensor-parallel-size", "2", "--port",
                           "9000", "--served-model-name", "a", "b"});
  REQUIRE(args.ok());
  CHECK(args->command == "serve");
  CHECK(args->model.model == "some/model");
  CHECK(args->model.max_model_len == 4000);
  CHECK(args->model.kv_cache_memory == int64_t{2} << 30);
  CHECK(args->model.max_num_batched_tokens == 1024);
  CHECK_FALSE(args->model.enable_prefix_caching);
  CHECK_FALSE(args->model.enable_chunked_prefill);
  CHECK(args->model.async_scheduling);
  CHECK(args->model.tensor_parallel_size == 2);
  CHECK(args->serve.port == 9000);
  CHECK(args->serve.served_model_names == std::vector<std::string>{"a", "b"});
}

TEST_CASE("arguments: several models, on the command line and in the file") {
  const auto args = parse({"serve", "m", "--max-num-seqs", "3", "--dtype", "float32", "--model",
                           "b=path/b,quantization=int8,kv_cache_memory=2G,alias=x,alias=y,speculative-config={\"method\": \"ngram\", \"a\": 1}"});
  REQUIRE_MESSAGE(args.ok(), args.status().message());
  CHECK(args->model.model == "m");
  REQUIRE(args->serve.specs.size() == 1);
  const auto b = arguments_of_model(args->serve.specs[0], *args);
  REQUIRE(b.ok());
  CHECK(b->model.model == "path/b");
  CHECK(b->model.quantization == "int8");
  CHECK(b->model.kv_cache_memory == int64_t{2} << 30);
  CHECK(b->model.max_num_seqs == 0);  // of the first model alone
  CHECK(b->model.dtype == "float32");
  CHECK(b->model.speculative_config == "{\"method\": \"ngram\", \"a\": 1}");
  CHECK(b->serve.served_model_names == std::vector<std::string>{"b", "x", "y"});
  const TempDir dir;
  const std::string file = write_file(dir, "c.yaml", "model:\n  - m\n  - {name: b, path: p, max-num-seqs: 4, alias: [x, y]}\n");
  const auto from_file = parse({"serve", "other", "--config", file.c_str()});
  REQUIRE_MESSAGE(from_file.ok(), from_file.status().message());
  CHECK(from_file->model.model == "other");
  CHECK(from_file->serve.specs[0].aliases == std::vector<std::string>{"x", "y"});
  const auto message = [](std::vector<const char*> words) { return std::string(parse(std::move(words)).status().message()); };
  CHECK(message({"serve", "m", "n"}) == "--model: m and n are two models; give the second as NAME=n");
  CHECK(message({"serve", "m", "--model", "b=p,seqs=1"}).starts_with("--model b: a model has no setting 'seqs'; the nearest is"));
  CHECK(message({"serve", "m", "--model", "b=p,max-num-seqs=-1"}).starts_with("--model b: --max-num-seqs: must be at least 0"));
  CHECK(message({"serve", "m", "--model", "b=p,idle-unload-seconds=nan"}).find("got nan") != std::string::npos);
  const auto idle =
      parse({"serve", "m", "--idle-unload-seconds", "5", "--model", "b=p,idle_unload_seconds=0.5", "--model", "c=p"});
  REQUIRE_MESSAGE(idle.ok(), idle.status().message());
  CHECK(idle->serve.idle_unload_seconds == 5);
  CHECK(arguments_of_model(idle->serve.specs[0], *idle)->serve.idle_unload_seconds == 0.5);
  CHECK(arguments_of_model(idle->serve.specs[1], *idle)->serve.idle_unload_seconds == 5);
  CHECK(message({"serve", "m", "--model", "b="}) == "--model b=: must be NAME=PATH[,key=value...], got 'b='");
  CHECK(message({"serve", "m", "--model", "b=p", "--model", "c=q,alias=b"}) == "--model c=q,alias=b: the name b comes twice");
}

TEST_CASE("arguments: wrong ones are refused by name") {
  CHECK(parse({"serve"}).status().message().find("model") != std::string::npos);
  CHECK(parse({"serve", "m", "--max-num-sequences", "4"}).status().message().find("--max-num-sequences") != std::string::npos);
  CHECK(parse({"serve", "m", "--port", "70000"}).status().message().find("--port") != std::string::npos);
  CHECK(parse({"serve", "m", "--max-model-len", "4x"}).status().message().find("--max-model-len") != std::string::npos);
  CHECK(parse({"serve", "m", "--dtype", "int4"}).status().message().find("--dtype") != std::string::npos);
  CHECK_FALSE(parse({"fly"}).ok());
}

TEST_CASE("plan: a name that two models have is refused before weights are read") {
  const std::string first = (repo_root() / "models/mini-qwen3").string(), second = (repo_root() / "models/mini-ernie").string();
  const auto plan_of = [&](const char* name, const char* flag) {
    const std::string spec = std::string(name) + "=" + second;
    return plan_serving(parse({"serve", first.c_str(), "--device", "cpu", "--model", spec.c_str(), flag}).value());
  };
  CHECK(plan_of("b", "--kv-cache-memory=1M").ok());
  CHECK(plan_of("mini-qwen3", "--served-model-name=a").ok());
  CHECK(plan_of("mini-qwen3", "--kv-cache-memory=1M").status().message() ==
        fmt::format("--model: {} and {} are both named mini-qwen3; --served-model-name names the first, NAME=PATH the others", first,
                    second));
  CHECK(plan_of("b\n", "--kv-cache-memory=1M").status().message().find("no control characters") != std::string::npos);
}

TEST_CASE("arguments: threads that no device has are refused, also for commands without a model") {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"self-test"}, {"bench", "limits"}, {"generate", "m"}}) {
    for (const char* threads : {"--threads=-1", "--threads=5000"}) {
      std::vector<const char*> all = words;
      all.push_back(threads);
      CHECK(parse(all).status().message().find("not in range 0 to 1024") != std::string::npos);
    }
  }
}

TEST_CASE("arguments: a count below its lowest is refused, not taken for a size") {
  const auto message = [](std::vector<const char*> words) { return std::string(parse(std::move(words)).status().message()); };
  CHECK(message({"bench", "serve", "--num-prompts", "-1"}) == "--num-prompts: must be at least 1, got -1");
  CHECK(message({"bench", "latency", "m", "--batch-size", "0"}) == "--batch-size: must be at least 1, got 0");
  CHECK(message({"bench", "latency", "m", "--num-iters", "0"}) == "--num-iters: must be at least 1, got 0");
  CHECK(message({"bench", "throughput", "m", "--n", "0"}) == "--n: must be at least 1, got 0");
  CHECK(message({"eval", "m", "--max-questions", "-3"}) == "--max-questions: must be at least 0, got -3");
  CHECK(message({"bench", "serve", "--input-len=-4"}).find("must be at least 0, got -4") != std::string::npos);
  CHECK(message({"serve", "m", "--max-model-len", "-5"}) == "--max-model-len: must be at least -1, got -5");
  CHECK(message({"serve", "m", "--max-num-seqs", "-1k"}) == "--max-num-seqs: must be at least 0, got -1000");
  CHECK(parse({"serve", "m", "--max-model-len", "-1"}).ok());
  CHECK(parse({"serve", "m", "--kv-cache-memory", "400G"}).ok());
}

TEST_CASE("arguments: a number that is none, or outside its bounds, is refused") {
  const auto is_refused = [](std::vector<const char*> words, const char* flag) {
    const Status status = parse(std::move(words)).status();
    INFO(flag, ": ", status.message());
    CHECK(status.message().starts_with(flag));
  };
  is_refused({"serve", "m", "--sse-ping-interval", "nan"}, "--sse-ping-interval: ");
  is_refused({"serve", "m", "--gpu-memory-utilization", "nan"}, "--gpu-memory-utilization: ");
  is_refused({"serve", "m", "--seed=-1"}, "--seed: must be a whole number in [0, 18446744073709551615], got -1");
  is_refused({"serve", "m", "--seed", "99999999999999999999999"}, "--seed: ");
  is_refused({"generate", "m", "--temperature", "nan"}, "--temperature: ");
  is_refused({"generate", "m", "--temperature=-2"}, "--temperature: must be a number in [0, 2], got -2");
  is_refused({"generate", "m", "--top-k=-9"}, "--top-k: ");
  is_refused({"bench", "serve", "--random-range-ratio", "5"}, "--random-range-ratio: ");
  is_refused({"bench", "serve", "--random-range-ratio", "nan"}, "--random-range-ratio: ");
  is_refused({"bench", "serve", "--burstiness", "0"}, "--burstiness: ");
  is_refused({"bench", "serve", "--request-rate", "nan"}, "--request-rate: ");
  is_refused({"bench", "serve", "--metric-percentiles", "50,abc"}, "--metric-percentiles: ");
  is_refused({"bench", "serve", "--metric-percentiles", "200"}, "--metric-percentiles: ");
  is_refused({"bench", "serve", "--num-warmups=-1"}, "--num-warmups: ");
  is_refused({"bench", "serve", "--max-concurrency=-1"}, "--max-concurrency: ");
  CHECK(parse({"bench", "serve", "--request-rate", "inf"}).ok());
  is_refused({"bench", "serve", "--request-rate", "1,-2"}, "--request-rate: ");
  CHECK(parse({"bench", "serve", "--request-rate", "1,2.5,inf"})->bench.request_rates ==
        std::vector<double>{1, 2.5, INFINITY});
  CHECK(parse({"bench", "serve", "--max-concurrency", "1,16"})->bench.max_concurrencies == std::vector<int>{1, 16});
  CHECK(parse({"serve", "m", "--seed", "18446744073709551615"}).ok());
}

TEST_CASE("arguments: bytes beyond 63 bits are refused, not taken for negative ones") {
  const auto status = parse({"serve", "m", "--kv-cache-memory", "99999999999999999999G"}).status();
  CHECK(status.message().find("'99999999999999999999G' is too large") != std::string::npos);
}

TEST_CASE("arguments: the script of --device mock") {
  const TempDir dir;
  const auto read = [&](const std::string& text) { return read_mock_script(write_file(dir, "mock.yaml", text)); };
  const auto script = read("load_ms: 5\nstep_ms: 2.5\nanswers:\n  - when: sun\n    text: warm\n  - ends: nonfinite\n"
                           "faults: [{step: 7, kind: hang, ms: 40}]\n");
  REQUIRE_MESSAGE(script.ok(), script.status().message());
  CHECK(script->load_seconds == 0.005);
  CHECK(script->step_seconds == 0.0025);
  REQUIRE(script->answers.size() == 2);
  CHECK(script->answers[0].when == "sun");
  CHECK(script->answers[0].text == "warm");
  CHECK(script->answers[1].echoes);
  CHECK(script->answers[1].ends_nonfinite);
  REQUIRE(script->faults.size() == 1);
  CHECK(script->faults[0].kind == MockFault::Kind::kHang);
  CHECK(script->faults[0].seconds == 0.04);
  CHECK(read(R"({"answers": [{"text": "JSON"}]})")->answers[0].text == "JSON");
  const auto has_error = [&](const std::string& text, const std::string& expected) {
    const std::string message = read(text).status().message();
    INFO(message);
    CHECK(message.find(expected) != std::string::npos);
  };
  has_error("step_ms: 1\nspeed: 2\n", "mock.yaml:2: the script has no field 'speed'; there are answers, faults, load_ms");
  has_error("step_ms: -1\n", "mock.yaml:1: step_ms: must be a number from 0 to 3.6e+06, got -1");
  has_error("step_ms: .nan\n", "step_ms: must be a number");
  has_error("step_ms: 1\nstep_ms: 2\n", "'step_ms' comes twice");
  has_error("answers:\n  - text: [1]\n", "text: must be a text");
  has_error("answers:\n  - ends: soon\n", "must be eos or nonfinite, got soon");
  has_error("faults:\n  - step: 0\n", "whole number from 1 on");
  has_error("faults:\n  - {step: 1, kind: burn}\n", "must be fail, nonfinite or hang, got burn");
  has_error("faults:\n  - {step: 1, kind: hang}\n", "kind hang needs ms");
  has_error("[", "mock.yaml:");
  CHECK(read_mock_script("/no/such/file").status().message().find("cannot be read") != std::string::npos);
  CHECK(llm_config({.model = "m", .mock_script = "x"}).status().message().find("needs --device mock") != std::string::npos);
}

TEST_CASE("arguments: command lines of vLLM's users work, and say what has no effect") {
  const auto args = parse({"serve", "m", "--enforce-eager", "--trust-remote-code", "--enable-prompt-tokens-details",
                           "--enable-server-load-tracking", "--enable-request-id-headers",
                           "--enable-tokenizer-info-endpoint", "--enable-auto-tool-choice",
                           "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1", "--uds", "/tmp/x", "--root-path", "/v", "--dtype", "half",
                           "--max-logprobs", "-1", "--max_model_len", "4k", "-tp", "2", "--pipeline-parallel-size", "1",
                           "--disable-log-stats", "--uvicorn-log-level", "warning", "--chat-template", "{{ x }}"});
  REQUIRE(args.ok());
  CHECK(args->serve.uds == "/tmp/x");
  CHECK(args->serve.root_path == "/v");
  CHECK(args->serve.disable_log_stats);
  CHECK(args->model.dtype == "bfloat16");
  CHECK(args->model.max_logprobs == -1);
  CHECK(args->model.max_model_len == 4000);
  CHECK(args->model.tensor_parallel_size == 2);
  CHECK(args->notes.size() == 9);
  const auto has_note = [&](const std::string& note) { return std::find(args->notes.begin(), args->notes.end(), note) != args->notes.end(); };
  CHECK(has_note("--trust-remote-code has no effect here: no code of a model's folder is run"));
  const std::string refused = parse({"serve", "m", "--pipeline-parallel-size", "2"}).status().message();
  CHECK(refused.find("use --tensor-parallel-size") != std::string::npos);
  CHECK(parse({"serve", "m", "--enable-lora"}).status().message().find("there are no adapters") != std::string::npos);
  CHECK_FALSE(parse({"serve", "m", "--root-path", "x"}).ok());
  const auto deployed = parse({"serve", "m", "--enable-reasoning", "--chat-template-content-format", "auto", "--response-role",
                               "assistant", "--revision", "main", "--allowed-methods", "[\"GET\"]", "--allow-credentials"});
  REQUIRE(deployed.ok());
  CHECK(deployed->notes.size() == 6);
  const auto refusal = [](const char* flag, const char* value) { return parse({"serve", "m", flag, value}).status().message(); };
  CHECK(refusal("--rope-scaling", "{}").find("change it in the model's folder") != std::string::npos);
  CHECK(refusal("--revision", "v2").find("give its folder") != std::string::npos);
  CHECK(refusal("--logprobs-mode", "processed_logits").find("model's distribution") != std::string::npos);
  CHECK(refusal("--logits-processors", "x.y").find("no code of others") != std::string::npos);
  CHECK(refusal("--max-cpu-loras", "2").find("there are no adapters") != std::string::npos);
  CHECK(parse({"serve", "m", "--logprobs-mode", "raw_logprobs"})->notes.size() == 1);
}

TEST_CASE("arguments: defaults of the server as JSON, by vLLM's fields") {
  const auto args =
      parse({"serve", "m", "--default-chat-template-kwargs", R"({"enable_thinking": false})", "--stream-interval", "4",
             "--override-generation-config", R"({"temperature": 0.5})", "--return-tokens-as-token-ids",
             "--enable-per-request-metrics", "--reasoning-config", R"({"reasoning_end_str": "x</think>"})"});
  REQUIRE(args.ok());
  CHECK(args->serve.stream_interval == 4);
  CHECK(args->serve.return_tokens_as_token_ids);
  CHECK(args->serve.enable_per_request_metrics);
  CHECK(check_serving(*args).ok());
  CHECK_FALSE(parse({"serve", "m", "--stream-interval", "0"}).ok());
  CHECK((*parse_template_kwargs(args->model.default_chat_template_kwargs))->at("enable_thinking") == false);
  CHECK(*parse_template_kwargs("") == nullptr);
  CHECK(parse_template_kwargs("[1]").status().message().find("must be a JSON object") != std::string::npos);
  CHECK(parse_template_kwargs("{").status().message().starts_with("--default-chat-template-kwargs: "));

  GenerationConfig config;
  config.do_sample = false;
  config.top_p = 0.5;
  config.eos_token_ids = {7};
  const auto overridden =
      override_generation_config(config, R"({"temperature": 0.25, "top_k": 3, "eos_token_id": [8, 9]})");
  REQUIRE(overridden.ok());
  CHECK(*overridden->temperature == 0.25);
  CHECK_FALSE(overridden->do_sample.has_value());
  CHECK(*overridden->top_p == 0.5);
  CHECK(*overridden->top_k == 3);
  CHECK(overridden->eos_token_ids == std::vector<int32_t>{8, 9});
  CHECK(override_generation_config({}, R"({"temprature": 1})").status().message().find("'temprature'") !=
        std::string::npos);
  CHECK_FALSE(override_generation_config({}, R"({"temperature": -1})").ok());
  CHECK_FALSE(check_serving(*parse({"serve", "m", "--override-generation-config", "7"})).ok());

  const ReasoningFormat format{.names = "qwen3", .begin = "<think>", .end = "</think>"};
  CHECK(*parse_reasoning_end(R"({"reasoning_start_str": "<think>", "reasoning_end_str": "Now.</think>"})", &format) ==
        "Now.</think>");
  CHECK(parse_reasoning_end("", nullptr)->empty());
  for (const char* wrong : {R"({"reasoning_end_str": "</think> x"})", R"({"reasoning_end_str": "</think></think>"})",
                            R"({"reasoning_end_str": 1})", R"({"reasoning_start_str": "<t>"})", R"({"x": 1})", "[]"}) {
    CHECK(parse_reasoning_end(wrong, &format).status().message().starts_with("--reasoning-config: "));
  }
  CHECK_FALSE(parse_reasoning_end("{}", nullptr).ok());
}

TEST_CASE("arguments: JSON by its fields, switches that are off, auto, as vLLM's users have them") {
  const auto args =
      parse({"serve", "m", "--speculative_config.method", "ngram", "--speculative-config.num_speculative_tokens=3",
             "--override-generation-config.temperature", "0.5", "--max-model-len", "auto", "--no-enable-lora"});
  REQUIRE(args.ok());
  CHECK(args->model.speculative_config == R"({"method":"ngram","num_speculative_tokens":3})");
  CHECK(args->model.override_generation_config == R"({"temperature":0.5})");
  CHECK(args->model.max_model_len == 0);
  CHECK(args->notes.empty());
  const auto error_of = [](std::initializer_list<const char*> words) { return parse(words).status().message(); };
  CHECK(error_of({"serve", "m", "--speculative-config.method", "ngram", "--speculative-config", "{}"})
            .find("give one of them") != std::string::npos);
  CHECK(
      error_of({"serve", "m", "--speculative-config.a", "1", "--speculative-config.a.b", "1"}).find("not an object") !=
      std::string::npos);
  CHECK(error_of({"serve", "m", "--speculative-config.a+", "1"}).find("lists are given as JSON") != std::string::npos);
  CHECK(error_of({"serve", "m", "--speculative-config.a"}).find("needs a value") != std::string::npos);
  CHECK(error_of({"serve", "m", "--speculativ-config.a", "1"}).find("the nearest is --speculative-config") !=
        std::string::npos);
  CHECK(parse({"serve", "m", "--max-model-len", "-1"})->model.max_model_len == 0);
  CHECK_FALSE(parse({"serve", "m", "--max-model-len", "most"}).ok());
  const TempDir dir;
  const std::string file =
      write_file(dir, "vllm.yaml", "enable-lora: false\nenable-expert-parallel: false\nmax-model-len: auto\n");
  CHECK(parse({"serve", "m", "--config", file.c_str()}).ok());
  const std::string asks = write_file(dir, "lora.yaml", "enable-lora: true\n");
  CHECK(error_of({"serve", "m", "--config", asks.c_str()}).find("there are no adapters") != std::string::npos);
}

TEST_CASE("arguments: typos get the nearest name") {
  CHECK(parse({"serve", "m", "--max-num-sequences", "4"}).status().message() ==
        "there is no flag --max-num-sequences; the nearest is --max-num-seqs");
  CHECK(parse({"serve", "m", "--prot=4"}).status().message() == "there is no flag --prot; the nearest is --port");
  CHECK(parse({"serv", "m"}).status().message() == "there is no command 'serv'; the nearest is 'serve'");
  CHECK(parse({"bench", "latncy"}).status().message() == "there is no command 'latncy'; the nearest is 'latency'");
  CHECK(parse({"completion", "bahs"}).status().message() ==
        "completion takes bash, zsh or fish, got 'bahs'; the nearest is 'bash'");
  CHECK_FALSE(parse({"completion"}).ok());
  CHECK(parse({"help"})->command.empty());
  CHECK(parse({"help", "serve"})->command.empty());
  CHECK(parse({"serve", "--help=cache"})->command.empty());
  CHECK_FALSE(parse({"help", "srve"}).ok());
}

TEST_CASE("arguments: docs/flags.md is what the table says") {
  std::ifstream file(repo_root() / "docs/flags.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  INFO("spate help flags > docs/flags.md");
  CHECK((page == flags_page()));
}

TEST_CASE("arguments: quantize") {
  const auto args = parse({"quantize", "m", "--to", "int4", "--group-size", "128", "--asymmetric", "--method", "gptq", "--act-order",
                           "--calibration-tokens", "8k", "--vocabulary", "int8", "--no-eval", "--out", "d"});
  REQUIRE(args.ok());
  CHECK(args->command == "quantize");
  CHECK(args->quantize.group_size == 128);
  CHECK(args->quantize.calibration_tokens == 8000);
  CHECK(args->quantize.asymmetric);
  CHECK(args->quantize.act_order);
  CHECK(args->quantize.no_eval);
  CHECK(args->quantize.out == "d");
  CHECK(parse({"quantize", "m"}).status().message().find("--out") != std::string::npos);
  CHECK(parse({"quantize", "m", "--out", "d", "--group-size", "48"}).status().message().find("--group-size") != std::string::npos);
}

TEST_CASE("arguments: --config is below the command line, knows sections, names unknown keys with their line") {
  const TempDir dir;
  const std::string good = write_file(dir, "good.yaml", "server:\n  port: 8123\n  host: 0.0.0.0\nmax_num_seqs: 7\nasync-scheduling: false\n");
  const auto args = parse({"serve", "m", "--config", good.c_str(), "--port", "9000"});
  REQUIRE(args.ok());
  CHECK(args->serve.port == 9000);
  CHECK(args->serve.host == "0.0.0.0");
  CHECK(args->model.max_num_seqs == 7);
  CHECK_FALSE(args->model.async_scheduling);
  const auto has_line = [&](const std::string& line) {
    return std::find(args->config_lines.begin(), args->config_lines.end(), line) != args->config_lines.end();
  };
  CHECK(has_line("port: 9000  # cli"));
  CHECK(has_line("host: 0.0.0.0  # good.yaml:3"));
  CHECK(has_line("block-size: 16  # default"));

  const std::string bad = write_file(dir, "bad.yaml", "port: 1\nmax-modellen: 5\n");
  const std::string message = parse({"serve", "m", "--config", bad.c_str()}).status().message();
  CHECK(message == "bad.yaml:2: unknown key 'max-modellen'; the nearest is 'max-model-len'");
  const auto message_of = [&](const char* text) {
    const std::string file = write_file(dir, "twice.yaml", text);
    return std::string(parse({"serve", "m", "--config", file.c_str()}).status().message());
  };
  CHECK(message_of("port: 1\nserver:\n  port: 2\n") == "twice.yaml:3: 'port' stands at twice.yaml:1 already");
  CHECK(message_of("port: [1, 2]\n") == "twice.yaml:1: 'port' takes one value, got [1, 2]");
  CHECK(message_of("config: x\n") == "twice.yaml:1: 'config' belongs on the command line");
  CHECK(message_of("server: &a\n  more: *a\n") == "twice.yaml:2: nested deeper than 64 levels, or an alias of itself");
  CHECK(message_of("port: 1\n---\nport: 2\n") == "twice.yaml:3: a second document in the file");
  CHECK(message_of("\"a\"\"\"b\n") == "twice.yaml:1: a second document in the file");
  CHECK(message_of("? [a]\n: 1\n") == "twice.yaml:1: a key must be a text");
  CHECK(message_of("port: \"1\\02\"\n") == "twice.yaml:1: a text with a NUL character");
  CHECK(message_of(std::string(5 << 20, '#').c_str()) == "twice.yaml:1: the file has more than 4194304 bytes");
  const std::string pipe = dir.path() / "pipe.yaml";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] { std::ofstream(pipe) << "port: 7\n"; });
  const Result<Arguments> piped = parse({"serve", "m", "--config", pipe.c_str()});
  writer.join();
  REQUIRE(piped.ok());
  CHECK(piped->serve.port == 7);
  const std::string broken = write_file(dir, "broken.yaml", "port: [1\n");
  CHECK(parse({"serve", "m", "--config", broken.c_str()}).status().message().find("broken.yaml:") != std::string::npos);
  CHECK(parse({"serve", "m", "--config", "/no/such/file"}).status().message().find("cannot be read") != std::string::npos);
  const std::string folder = dir.path().string();
  CHECK(parse({"serve", "m", "--config", folder.c_str()}).status().message() == "--config " + folder + ": is a folder, not a file");
}

TEST_CASE("arguments: a damaged --config ends in arguments or in one line of an error, whatever the damage") {
  const TempDir dir;
  const std::string whole =
      "server: {port: 8123, api_key: [a, b]}\nmodel:\n  - models/a\n  - {name: b, path: models/b, alias: [x, y]}\n"
      "speculative-config: {method: ngram, num_speculative_tokens: 3}\nmax_model_len: 4k\n";
  const uint64_t seed = test_seed();
  Rng rng(seed);
  const std::string_view pieces = "{}[]:,-&*!|>'\"%@\n\t #\\0~?<";
  for (int round = 0; round < 300; ++round) {
    std::string text = whole;
    for (uint64_t i = 0; i <= rng.below(4); ++i) {
      const size_t at = rng.below(text.size());
      const char piece = rng.below(4) == 0 ? static_cast<char>(rng.below(256)) : pieces[rng.below(pieces.size())];
      if (rng.below(3) == 0) {
        text.erase(at, 1 + rng.below(8));
      } else if (rng.below(2) == 0) {
        text.insert(at, 1 + rng.below(3), piece);
      } else {
        text[at] = piece;
      }
    }
    const std::string path = write_file(dir, "damaged.yaml", text);
    INFO("seed ", seed, " round ", round, ": ", text);
    const auto args = parse({"serve", "--config", path.c_str()});
    if (!args.ok()) CHECK(!args.status().message().empty());
  }
}

TEST_CASE("arguments: --speculative-config is JSON, or YAML in the file") {
  const auto args = parse({"serve", "m", "--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 5})"});
  REQUIRE(args.ok());
  const SpeculativeConfig ngram = parse_speculative_config(args->model.speculative_config).value();
  CHECK(ngram.method == SpeculativeMethod::kNgram);
  CHECK(ngram.num_speculative_tokens == 5);

  const TempDir dir;
  const std::string file = write_file(
      dir, "spec.yaml", "speculative-config:\n  method: reference\n  prompt_lookup_max: 1\nport: 8123\n");
  const auto from_file = parse({"serve", "m", "--config", file.c_str()});
  REQUIRE_MESSAGE(from_file.ok(), from_file.status().message());
  CHECK(from_file->serve.port == 8123);
  const SpeculativeConfig reference = parse_speculative_config(from_file->model.speculative_config).value();
  CHECK(reference.method == SpeculativeMethod::kReference);
  CHECK(reference.prompt_lookup_min == 1);
  CHECK(reference.prompt_lookup_max == 1);

  CHECK(parse_speculative_config("")->method == SpeculativeMethod::kNone);

  const auto message = [](const std::string& text) {
    return std::string(parse_speculative_config(text).status().message());
  };
  for (const char* text :
       {R"({"method": "ngram"}{"num_speculative_tokens": 100})", R"({"method": "ngram"}, {"model": "m"})",
        "method: ngram\n---\nnum_speculative_tokens: 100", R"({"method": "ngram"} x)"}) {
    CHECK(message(text).starts_with("--speculative-config must be one object, got more behind it: "));
  }
  CHECK(parse_speculative_config("---\n{\"method\": \"ngram\"}  # look-ups\n").ok());
  CHECK(message("{method: ngram, method: reference}") == "--speculative-config: the field method comes twice");
  CHECK(message("{}") == "--speculative-config needs the field method: ngram, reference, draft_model, mtp or eagle");
  CHECK(message(R"({"method": "ngarm"})") ==
        "--speculative-config: method must be ngram, reference, draft_model, mtp or eagle, got 'ngarm'");
  CHECK(parse_speculative_config(R"({"method": "mtp", "num_speculative_tokens": 2})")->method == SpeculativeMethod::kMtp);
  CHECK(parse_speculative_config(R"({"method": "deepseek_mtp"})")->method == SpeculativeMethod::kMtp);
  CHECK(parse_speculative_config(R"({"method": "ernie_mtp"})")->method == SpeculativeMethod::kMtp);
  const SpeculativeConfig eagle = parse_speculative_config(R"({"method": "eagle3", "model": "head"})").value();
  CHECK(eagle.method == SpeculativeMethod::kEagle);
  CHECK(eagle.model == "head");
  CHECK(message(R"({"method": "eagle"})") == "--speculative-config: method eagle needs the field model: a folder");
  CHECK(message(R"({"method": "eagle", "model": "head", "num_speculative_tokens": 17})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 17");
  CHECK(message(R"({"method": "medusa"})") ==
        "--speculative-config: method medusa is not built; there are ngram, reference, draft_model, mtp and eagle");
  CHECK(message(R"({"method": "mtp", "num_speculative_tokens": 100})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 100");
  CHECK(message(R"({"method": "mtp", "model": "m"})") ==
        "--speculative-config: model is a field of the methods draft_model and eagle, got it with mtp");
  CHECK(message(R"({"method": "ngram", "num_speculative_tokens": 0})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 0");
  CHECK(message(R"({"method": "ngram", "num_speculative_tokens": "many"})") ==
        "--speculative-config: num_speculative_tokens must be a whole number, got 'many'");
  CHECK(message(R"({"method": "ngram", "ngram_size": 2})").find("unknown field 'ngram_size'") != std::string::npos);
  // What vLLM and TensorRT-LLM publish: it works, or is refused with the field and the reason.
  CHECK(parse_speculative_config(R"({"method": "ngram_gpu", "num_speculative_tokens": 5, "prompt_lookup_max": 4})")
            ->method == SpeculativeMethod::kNgram);
  CHECK(parse_speculative_config(R"({"method": "[ngram]", "num_speculative_tokens": 5})")->method ==
        SpeculativeMethod::kNgram);
  CHECK(parse_speculative_config(R"({"method": "glm4_moe_mtp", "num_speculative_tokens": 1})")->method ==
        SpeculativeMethod::kMtp);
  for (const char* method :
       {"suffix", "mlp_speculator", "dflash", "mimo_mtp", "qwen3_next_mtp", "extract_hidden_states"}) {
    CHECK(message(fmt::format(R"({{"method": "{}", "num_speculative_tokens": 3}})", method)) ==
          fmt::format(
              "--speculative-config: method {} is not built; there are ngram, reference, draft_model, mtp and eagle",
              method));
  }
  CHECK(message(R"({"model": "facebook/opt-125m", "num_speculative_tokens": 5})") ==
        "--speculative-config needs the field method: ngram, reference, draft_model, mtp or eagle");
  CHECK(
      message(
          R"({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 2,
                    "method": "eagle"})") ==
      "--speculative-config: draft_tensor_parallel_size is not a field: a draft model is sharded as the model is");
  CHECK(message(R"({"method": "ngram", "disable_by_batch_size": 4})") ==
        "--speculative-config: disable_by_batch_size is not a field: a controller runs as many drafts as pay, at any "
        "batch");
  CHECK(message(R"({"decoding_type": "MTP", "max_draft_len": 3})") ==
        "--speculative-config: decoding_type is not a field: it is method here");
  for (const char* number : {"3.5", "null", "[3]", "{}", "99999999999", "\"three\"", "true"}) {
    CHECK(message(fmt::format(R"({{"method": "ngram", "num_speculative_tokens": {}}})", number))
              .find("num_speculative_tokens must be a whole number") != std::string::npos);
  }
  CHECK(message(R"({"method": "ngram", "num_speculative_tokens": -1})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got -1");
  CHECK(parse_speculative_config(R"({"method": "ngram", "num_speculative_tokens": "3"})")->num_speculative_tokens == 3);
  const SpeculativeConfig relaxed =
      parse_speculative_config(R"({"method": "mtp", "use_relaxed_acceptance_for_thinking": true, "relaxed_topk": 10,
                                   "relaxed_delta": 0.6, "relaxed_by_default": false})")
          .value();
  CHECK(relaxed.use_relaxed_acceptance_for_thinking);
  CHECK(relaxed.relaxed_topk == 10);
  CHECK(relaxed.relaxed_delta == 0.6f);
  CHECK_FALSE(relaxed.relaxed_by_default);
  CHECK(message(R"({"method": "mtp", "relaxed_top_n": 10})") ==
        "--speculative-config: relaxed_top_n is not a field: it is relaxed_topk here");
  CHECK(
      message(
          R"({"method": "mtp", "use_relaxed_acceptance_for_thinking": true, "relaxed_topk": 10, "relaxed_delta": ".nan"})") ==
      "--speculative-config: relaxed_delta must be above 0 and at most 1, got nan");
  for (const char* text : {"[]", "null", "1", "\"ngram\"", "{", "{\"method\":", "\x01", "{\"method\": null}",
                           "{\"method\": [\"ngram\"]}"}) {
    CHECK(message(text).find("--speculative-config") == 0);
  }
  CHECK(message("ngram").find("must be an object") != std::string::npos);
  CHECK(message("{[a]: 1}") == "--speculative-config: a key must be a word, got [a]");
  CHECK(message("{").find("--speculative-config: ") == 0);
}

TEST_CASE("arguments: the draft model is found in the Hugging Face cache, whether JSON or YAML names it") {
  const TempDir dir;
  const std::filesystem::path hub = dir.path() / "hub: #1";  // quoted in YAML
  const std::filesystem::path snapshot = hub / "models--acme--tiny" / "snapshots" / "0123abcd";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(hub / "models--acme--tiny" / "refs");
  std::ofstream(snapshot / "config.json") << "{}";
  std::ofstream(hub / "models--acme--tiny" / "refs" / "main") << "0123abcd";
  const HubCacheVariable cache(hub.string());
  const std::string file = write_file(dir, "draft.yaml",
                                      "speculative-config:\n  method: draft_model\n  model: acme/tiny\n"
                                      "  num_speculative_tokens: \"3\"\n");
  const auto from_file = parse({"serve", "m", "--config", file.c_str()});
  REQUIRE_MESSAGE(from_file.ok(), from_file.status().message());
  for (const std::string& text :
       {std::string(R"({"method": "draft_model", "model": "acme/tiny", "num_speculative_tokens": 3})"),
        std::string("{method: draft_model, model: acme/tiny, num_speculative_tokens: 3}"),
        std::string("method: draft_model\nmodel: acme/tiny\nnum_speculative_tokens: 3\n"),
        from_file->model.speculative_config}) {
    INFO(text);
    ModelArguments arguments;
    arguments.speculative_config = text;
    REQUIRE(find_models(arguments).ok());
    const auto config = parse_speculative_config(arguments.speculative_config);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    CHECK(config->model == snapshot.string());
    CHECK(config->method == SpeculativeMethod::kDraftModel);
    CHECK(config->num_speculative_tokens == 3);
  }
  ModelArguments missing;
  missing.speculative_config = "{method: eagle, model: acme/none}";
  CHECK(find_models(missing).message().starts_with("--speculative-config: model: 'acme/none' does not exist here"));
}

TEST_CASE("arguments: --pooler-config is a name, JSON, or YAML in the file") {
  const auto pooling_of = [](const std::string& text) { return parse_pooler_config(text); };
  CHECK_FALSE(pooling_of("")->pooling);
  CHECK(*pooling_of("mean")->pooling == Pooling::kMean);
  const auto args = parse({"serve", "m", "--override-pooler-config", R"({"pooling_type": "LAST", "normalize": false})"});
  REQUIRE_MESSAGE(args.ok(), args.status().message());
  CHECK(*pooling_of(args->model.pooler_config)->pooling == Pooling::kLast);
  CHECK(*pooling_of(args->model.pooler_config)->normalize == false);
  CHECK(*pooling_of("seq_pooling_type: CLS\nuse_activation: true")->normalize == true);
  const auto message = [&](const std::string& text) { return std::string(pooling_of(text).status().message()); };
  CHECK(message("max") == "--pooler-config: pooling_type must be last, mean or cls, got 'max'");
  CHECK(message(R"({"pooling_type": "none"})") == "--pooler-config: pooling_type must be last, mean or cls, got 'none'");
  CHECK(message("last\n---\nmean") == "--pooler-config must be one YAML document; a second begins in line 3");
  CHECK(message(R"({"normalize": 3})") == "--pooler-config: normalize must be true or false, got '3'");
  CHECK(message(R"({"softmax": true})").find("unknown field 'softmax'") != std::string::npos);
  CHECK(message("[1]").find("must be last, mean, cls or an object") != std::string::npos);
}

TEST_CASE("arguments: keys are not shown") {
  const auto args = parse({"serve", "m", "--api-key", "sesame"});
  REQUIRE(args.ok());
  for (const std::string& line : args->config_lines) CHECK(line.find("sesame") == std::string::npos);
  CHECK(args->non_default_args.find("sesame") == std::string::npos);
  CHECK(args->serve.api_keys == std::vector<std::string>{"sesame"});
}

TEST_CASE("eval data: questions and documents as written, errors with their line") {
  const TempDir dir;
  const auto questions = load_eval_questions(write_file(
      dir, "q.jsonl",
      "{\"skill\": \"sort\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \" 1 2 \", \"enable_thinking\": false}\n\n"
      "{\"skill\": \"copy\", \"messages\": [], \"answer\": \"a\", \"max_tokens\": 9}\n"));
  REQUIRE(questions.ok());
  REQUIRE(questions->size() == 2);
  CHECK((*questions)[0].answer == "1 2");
  CHECK((*questions)[0].kwargs["enable_thinking"] == false);
  CHECK((*questions)[1].max_tokens == 9);
  CHECK(load_eval_questions(write_file(dir, "bad.jsonl", "{\"skill\": 1}\n")).status().message().find("bad.jsonl:1") !=
        std::string::npos);
  const auto texts = load_eval_texts(write_file(dir, "t.txt", "one\ntwo\n<|endoftext|>\n\n<|endoftext|>\nthree\n"));
  REQUIRE(texts.ok());
  CHECK(*texts == std::vector<std::string>{"one\ntwo", "three"});
}

TEST_CASE("eval: only what follows the last </think> counts") {
  CHECK(final_answer("<think>\n7\n</think>\n\n 12 \n") == "12");
  CHECK(final_answer("12") == "12");
  CHECK(final_answer("<think>1</think>2</think>3") == "3");
  CHECK(final_answer("<think> never ends") == "<think> never ends");
}

TEST_CASE("bench serve: prompts of the data sets") {
  const TempDir dir;
  int num_counted = 0;
  const CountTokens count = [&](const std::string& text) -> Result<int64_t> { return ++num_counted, static_cast<int64_t>(text.size()); };
  BenchArguments bench;
  bench.input_len = 4;
  bench.output_len = 3;
  bench.random_prefix_len = 2;
  const auto random = make_bench_prompts(bench, false, 50, 5, 1, count);
  REQUIRE(random.ok());
  REQUIRE(random->size() == 5);
  CHECK((*random)[4].token_ids.size() == 6);
  CHECK((*random)[4].token_ids[1] == (*random)[0].token_ids[1]);
  CHECK((*make_bench_prompts(bench, true, 50, 1, 1, count))[0].token_ids.empty());

  bench.dataset_name = "prefix_repetition";
  bench.prefix_len = 3;
  bench.suffix_len = 2;
  bench.num_prefixes = 2;
  const auto repeated = make_bench_prompts(bench, false, 50, 8, 1, count);
  REQUIRE(repeated.ok());
  std::map<std::vector<int64_t>, int> prefixes;
  for (const BenchPrompt& prompt : *repeated) ++prefixes[{prompt.token_ids.begin(), prompt.token_ids.begin() + 3}];
  CHECK(prefixes.size() == 2);

  bench.output_len = 0;
  bench.dataset_name = "sharegpt";
  bench.dataset_path = write_file(dir, "s.json", R"([{"conversations":[{"value":"ask"},{"value":"reply"}]},{"x":1}])");
  const auto shared = make_bench_prompts(bench, true, 50, 3, 1, count);
  REQUIRE(shared.ok());
  REQUIRE(shared->size() == 3);
  CHECK((*shared)[2].text == "ask");
  CHECK((*shared)[2].output_len == 5);
  CHECK(num_counted == 1);
  bench.dataset_name = "custom";
  bench.dataset_path = write_file(dir, "c.jsonl", "{\"prompt\":\"p\",\"output_tokens\":7}\n");
  CHECK((*make_bench_prompts(bench, true, 50, 1, 1, count))[0].output_len == 7);
  bench.dataset_path = write_file(dir, "bad.jsonl", "{\"prompt\":\"p\"}\n[]\n{\n");
  CHECK(make_bench_prompts(bench, true, 50, 1, 1, count).status().message().find("bad.jsonl:2: not a JSON object") != std::string::npos);
  bench.dataset_path = write_file(dir, "none.jsonl", "{\"text\":\"p\"}\n");
  CHECK(make_bench_prompts(bench, true, 50, 1, 1, count).status().message().find("no record is of the form") != std::string::npos);
  bench.dataset_path = "";
  CHECK(make_bench_prompts(bench, true, 50, 1, 1, count).status().message().find("needs --dataset-path") != std::string::npos);
}

TEST_CASE("bench serve: base urls") {
  CHECK(parse_base_url("http://10.0.0.1:81/v1")->port == 81);
  CHECK(parse_base_url("http://10.0.0.1:81/v1")->path_prefix.empty());
  CHECK(parse_base_url("http://host/llm/v1/")->path_prefix == "/llm");
  CHECK(parse_base_url("http://[::1]:81/")->host == "::1");
  CHECK(parse_base_url("http://[::1]:81/")->port == 81);
  CHECK(parse_base_url("http://[::1]")->port == 80);
  CHECK_FALSE(parse_base_url("http://:81").ok());
  CHECK(parse_base_url("http://host")->port == 80);
  CHECK_FALSE(parse_base_url("https://host").ok());
  for (const char* url : {"http://host:x", "http://host:80x", "http://host:99999999999", "http://me@host:1",
                          "http://ho st:1", "http://host:1/a\r\nX: y"}) {
    CHECK_FALSE(parse_base_url(url).ok());
  }
}

}  // namespace spate
