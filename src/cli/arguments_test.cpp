// Goal    What a user types means what vLLM's users expect: suffixes, limits, errors that name the flag.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments_test_support.h"
#include "cli/llm_arguments.h"
#include "cli/serving.h"
#include "cli/serving_json.h"
#include "cli/serving_plan.h"

namespace spate {

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
  CHECK(parse({"kernels", "compile", "--out", ""}).status().message().find("--out: needs the name") != std::string::npos);
  CHECK(parse({"quantize", "m", "--out", "d", "--group-size", "48"}).status().message().find("--group-size") != std::string::npos);
}

TEST_CASE("arguments: keys are not shown") {
  const auto args = parse({"serve", "m", "--api-key", "sesame"});
  REQUIRE(args.ok());
  for (const std::string& line : args->config_lines) CHECK(line.find("sesame") == std::string::npos);
  CHECK(args->non_default_args.find("sesame") == std::string::npos);
  CHECK(args->serve.api_keys == std::vector<std::string>{"sesame"});
}

}  // namespace spate
