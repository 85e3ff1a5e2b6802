// Flags of the commands that measure, score and quantise.
#include <CLI/CLI.hpp>
#include <limits>

#include "cli/flags.h"
#include "backend/registry/registry.h"

namespace spate {
namespace {

// Numbers in [0, 100], separated by commas.
CLI::Validator percentile_list() {
  const auto check = [](std::string& text) {
    for (const std::string& item : CLI::detail::split(text, ',')) {
      double number = -1;
      if (CLI::detail::lexical_cast(item, number) && number >= 0 && number <= 100) continue;
      return fmt::format("must be numbers in [0, 100] with commas between, got {}", text);
    }
    return std::string();
  };
  return {check, ""};
}

}  // namespace

void add_eval_flags(CLI::App* app, EvalArguments& e) {
  begin_group(app, "Evaluation");
  add_switch(app, "--json", e.json, "One JSON object: average, skills, perplexity, divergence");
  add_switch(app, "--graded", e.graded, "Ask the questions of graded.jsonl, some of which the model fails");
  app->add_option("--data", e.data, "Folder of questions.jsonl, graded.jsonl, text.txt; default: the model's eval/");
  add_count(app, "--max-questions", e.max_questions, "Of each skill; 0: all");
  app->add_option("--batch-size", e.batch_size, "Questions in flight")->check(CLI::Range(1, 4096));
  app->add_option("--outputs", e.outputs, "File for every answer, a JSON object a line");
  app->add_option("--write-reference", e.write_reference, "File for this run's predictions, to compare others with");
  app->add_option("--reference", e.reference,
                  "File that --write-reference made: print the mean divergence from it, in nats a token, and the share of equal "
                  "most probable tokens");
}

void add_self_test_flags(CLI::App* app, ModelArguments& m) {
  app->add_option("--device", m.device, "The device to check; auto: all that this machine has")
      ->check(CLI::IsMember(device_names()));
  app->add_option("--isa", m.isa, "CPU: this instruction set alone")->check(CLI::IsMember(instruction_sets()));
  app->add_option("-t,--threads", m.threads,
                  "Compute threads; 0: one for each physical core, within the quota of the control group")
      ->check(CLI::Range(0, 1024));
}

void add_quantize_flags(CLI::App* app, Arguments& arguments) {
  ModelArguments& m = arguments.model;
  QuantizeArguments& q = arguments.quantize;
  app->add_option("model,--model", m.model, "Model directory (Hugging Face layout) of floats, or its name in the local Hugging Face cache")->required();
  app->add_option("--out", q.out, "Directory to make; it appears when it is complete")->required();
  app->add_option("--to", q.to, "Weights of the layers")->check(CLI::IsMember({"int4", "int8"}));
  app->add_option("--group-size", q.group_size, "Weights that share a scale; 0: a row; default: 64 (int4), 0 (int8)")
      ->check(CLI::IsMember({-1, 0, 32, 64, 128}));
  add_switch(app, "--asymmetric", q.asymmetric, "A zero point for each group");
  app->add_option("--method", q.method, "rtn: round to nearest; awq, gptq: with the help of calibration text")
      ->check(CLI::IsMember({"rtn", "awq", "gptq"}));
  add_switch(app, "--act-order", q.act_order, "gptq: columns of large inputs first");
  app->add_option("--calibration-text", q.calibration_text,
                  "Text like what the model will see, documents separated by lines of <|endoftext|>; default: the "
                  "model's calibration.txt");
  add_count(app, "--calibration-tokens", q.calibration_tokens, "Most tokens of it that are used");
  app->add_option("--vocabulary", q.vocabulary, "int8: embedding table and lm_head too (vLLM does not load that)")
      ->check(CLI::IsMember({"none", "int8"}));
  app->add_option("--report-json", q.report_json, "File for the report");
  add_switch(app, "--no-eval", q.no_eval, "Do not ask the questions of the model's eval/ folder before and after");
  add_count(app, "--max-questions", q.max_questions, "Of each skill; 0: all");
  app->add_option("--device", m.device, "Where calibration runs; auto: a GPU when there is one, else the CPU")
      ->check(CLI::IsMember(device_names()));
  app->add_option("--isa", m.isa, "CPU: use at most this instruction set")->check(CLI::IsMember(instruction_sets()));
  app->add_option("-t,--threads", m.threads,
                  "CPU threads; 0: one for each physical core, within the quota of the control group")
      ->check(CLI::Range(0, 1024));
}

void add_kernels_flags(CLI::App* kernels, Arguments& arguments) {
  kernels->require_subcommand(1);
  CLI::App* compile = kernels->add_subcommand(
      "compile", "Compile the GPU kernels ahead of time; a server started with SPATE_KERNEL_CACHE=DIR needs no compiler");
  compile->add_option("--out", arguments.kernels.out, "Folder for them; it may have those of other architectures")
      ->required()
      ->check([](const std::string& folder) { return folder.empty() ? "needs the name of a folder" : ""; });
  CLI::App* report = kernels->add_subcommand("report", "Registers, shared memory, stack and spills of each GPU kernel");
  for (CLI::App* app : {compile, report}) {
    app->add_option("--arch", arguments.kernels.architecture, "Architecture: sm_80, sm_90a, sm_100, ...");
    app->add_option("--kernel-dir", arguments.model.kernel_dir, "Read kernel sources from this folder");
  }
  CLI::App* tune = kernels->add_subcommand(
      "tune", "Time the ways to share out a model's products on this GPU; later starts take the fastest");
  ModelArguments& m = arguments.model;
  tune->add_option("model,--model", m.model, "Folder with a config.json; weights are random")->required();
  tune->add_option("-q,--quantization", m.quantization, "Formats of the weights, as of serve");
  tune->add_option("--device", m.device, "The device; auto: a GPU when there is one")
      ->check(CLI::IsMember(device_names()));
  tune->add_option("--kernel-dir", m.kernel_dir, "Read kernel sources from this folder");
}

void add_bench_flags(CLI::App* bench, Arguments& arguments) {
  BenchArguments& b = arguments.bench;
  bench->require_subcommand(1);
  for (const char* name : {"throughput", "latency"}) {
    CLI::App* app = bench->add_subcommand(name, std::string(name) == "latency" ? "Time of one batch, as vLLM's bench latency"
                                                                               : "Tokens a second of many requests offline");
    add_model_flags(app, arguments.model);
    begin_group(app, "Load");
    add_count(app, "--input-len", b.input_len, "Prompt tokens; 0: 32 (latency), 1024 (throughput)");
    add_count(app, "--output-len", b.output_len, "Output tokens; 0: 128");
    app->add_option("--output-json", b.output_json, "File for the result");
    if (std::string(name) == "latency") {
      add_count(app, "--batch-size", b.batch_size, "Sequences in the batch", 1);
      add_count(app, "--num-iters-warmup", b.num_iters_warmup, "Iterations before the measurement");
      add_count(app, "--num-iters", b.num_iters, "Iterations measured", 1);
    } else {
      add_count(app, "--num-prompts", b.num_prompts, "Requests", 1);
      add_count(app, "--n", b.n, "Sequences a request", 1);
    }
  }
  CLI::App* serve = bench->add_subcommand("serve", "Load on a running server, as vLLM's bench serve");
  serve->add_option("--base-url", b.base_url, "http://host:port; default: from --host and --port");
  serve->add_option("--host", b.host, "Server address");
  serve->add_option("--port", b.port, "Server port");
  serve->add_option("--endpoint", b.endpoint, "/v1/completions or /v1/chat/completions");
  serve->add_option("--model,--served-model-name", b.served_model_name, "Model name; default: the server's first");
  serve->add_option("--api-key", b.api_key, "Bearer token");
  add_count(serve, "--num-prompts", b.num_prompts, "Requests", 1);
  add_count(serve, "--random-input-len,--input-len", b.input_len, "Prompt tokens; 0: 1024");
  add_count(serve, "--random-output-len,--output-len,--sharegpt-output-len,--custom-output-len,--prefix-repetition-output-len",
            b.output_len, "Output tokens; 0: those of the data set's answer, else 128");
  serve->add_option("--dataset-name", b.dataset_name, "Where prompts come from")
      ->check(CLI::IsMember({"random", "sharegpt", "custom", "prefix_repetition"}));
  serve->add_option("--dataset-path", b.dataset_path,
                    "sharegpt: JSON with conversations; custom: lines of {\"prompt\", \"output_tokens\"}");
  add_count(serve, "--prefix-repetition-prefix-len", b.prefix_len, "Tokens of each repeated prefix");
  add_count(serve, "--prefix-repetition-suffix-len", b.suffix_len, "Tokens behind it");
  add_count(serve, "--prefix-repetition-num-prefixes", b.num_prefixes, "How many prefixes")->check(CLI::Range(1, 1 << 20));
  serve->add_option("--random-range-ratio", b.random_range_ratio, "Lengths are drawn from [len*(1-r), len*(1+r)]")
      ->check(number_in(0, 1));
  add_count(serve, "--random-prefix-len", b.random_prefix_len, "Tokens that all prompts share");
  serve
      ->add_option("--request-rate", b.request_rates,
                   "Requests a second; 0 or inf: all at once; several with commas between: one run each")
      ->delimiter(',')
      ->check(number_in(0, std::numeric_limits<double>::infinity()));
  serve->add_option("--burstiness", b.burstiness, "Gamma shape of arrivals; 1: Poisson")->check(number_in(1e-3, 1e6));
  serve
      ->add_option("--max-concurrency", b.max_concurrencies,
                   "Requests in flight; 0: unbounded; several with commas between: one run each")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20));
  serve->add_option("--num-warmups", b.num_warmups, "Requests before the measurement")->check(CLI::Range(0, 1 << 20));
  serve->add_option("--temperature", b.temperature, "Of the requests")->check(number_in(0, 2));
  add_switch(serve, "--ignore-eos,!--no-ignore-eos", b.ignore_eos, "Always the full output length");
  serve->add_option("--metric-percentiles", b.metric_percentiles, "Percentiles to print: 50,99")->check(percentile_list());
  serve->add_option("--seed", arguments.model.seed, "Of prompts and arrivals")->check(seed_number());
  add_switch(serve, "--save-result", b.save_result, "Write the JSON result");
  serve->add_option("--result-filename,--output-json", b.result_filename,
                    "File for the result; of several runs an array");
  serve->add_option("--plot", b.plot, "SVG file for TTFT and ITL, median and p99, over the loads of several runs");
  CLI::App* limits = bench->add_subcommand("limits", "The physical limits of this machine: memory bandwidth, arithmetic");
  limits
      ->add_option("--device", arguments.model.device, "Whose limits; auto: a GPU's when there is one, else the CPU's")
      ->check(CLI::IsMember(device_names()));
  limits->add_option("--isa", arguments.model.isa, "CPU: those of this instruction set")
      ->check(CLI::IsMember(instruction_sets()));
  limits
      ->add_option("-t,--threads", arguments.model.threads,
                   "Compute threads; 0: one for each physical core, within the quota of the control group")
      ->check(CLI::Range(0, 1024));
  limits->add_option("--output-json", b.output_json, "File for the result");
  CLI::App* table = bench->add_subcommand("table", "Prefill and decode of model shapes beside the limits of this machine");
  add_model_flags(table, arguments.model, false);
  table->add_option("--configs", b.configs, "Folders with a config.json; weights are random");
  table->add_option("--formats", b.formats, "Weight formats: bf16, f32, or as --quantization; integers with an INT8 KV cache")
      ->delimiter(',')
      ->capture_default_str();
  table->add_option("--filter", b.filter, "Only rows whose name contains this text");
  add_count(
      table, "--row-seconds", b.row_seconds,
      "A row repeats its run for at most so long, and prompts that would take longer are left out with a line; 0: "
      "unbounded");
  table->add_option("--output-json", b.output_json, "File for the rows");
  table->add_option("--plot", b.plot, "SVG file for the share of its limit that each row reaches");
  CLI::App* speculation =
      bench->add_subcommand("speculation", "Tokens a second with drafts and without, and what was accepted");
  add_model_flags(speculation, arguments.model);
  speculation
      ->add_option("--task", b.task,
                   "edit: answers that repeat most of the prompt; prose: hardly anything repeats; questions: of the model's "
                   "eval/ folder, answered by the model itself; random: prompts and answers of random tokens, with drafts that "
                   "come true as often as --speculative-accept-rate says")
      ->check(CLI::IsMember({"edit", "prose", "questions", "random"}));
  speculation
      ->add_option("--speculative-accept-rate", b.speculative_accept_rate,
                   "random: simulated probability that a draft is accepted when those before it were")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add_count(speculation, "--input-len", b.input_len, "random: prompt tokens; 0: 128");
  add_count(speculation, "--batch-size", b.batch_size, "Sequences in the batch", 1);
  add_count(speculation, "--output-len", b.output_len, "prose, random: output tokens; 0: 128");
  add_count(speculation, "--num-iters-warmup", b.num_iters_warmup, "Turns before the measurement");
  add_count(speculation, "--num-iters", b.num_iters, "Turns measured", 1);
  speculation->add_option("--output-json", b.output_json, "File for the rows");
  CLI::App* grammar = bench->add_subcommand(
      "grammar", "What structured output costs the host: compiling ordinary grammars, the masks of one step");
  grammar->add_option("model,--model", arguments.model.model, "Model whose tokenizer is used")->required();
  add_count(grammar, "--num-rows", b.num_rows, "Sequences in the step", 1);
  grammar->add_option("--seed,--seeds", b.seeds, "Of the random texts; several with commas between: one figure each")
      ->delimiter(',')
      ->check(seed_number())
      ->capture_default_str();
  add_count(grammar, "--num-runs", b.num_runs, "Runs of the same steps; of each step the least time counts", 1);
  grammar
      ->add_option("--max-ahead-work", b.max_ahead_work,
                   "Units of work for masks found when a grammar is compiled; -1: as a server")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40));
  grammar
      ->add_option("--step-ms", b.step_ms,
                   "Time of the device's step, beside which more masks are found, as in a server; 0: none are")
      ->check(CLI::Range(0.0, 10'000.0))
      ->capture_default_str();
  grammar->add_option("--output-json", b.output_json, "File for the result");
  CLI::App* kernel =
      bench->add_subcommand("kernel", "Each op at the sizes of a model, beside the limits of this machine");
  add_model_flags(kernel, arguments.model);
  kernel->add_option("--filter", b.filter, "Only rows whose name contains this text");
  kernel->add_option("--output-json", b.output_json, "File for the rows");
  kernel->add_option("--plot", b.plot, "SVG file for the share of its limit that each row reaches");
}

}  // namespace spate
