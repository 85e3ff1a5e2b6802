// vLLM's flags that change nothing here, and those that are refused: both with the reason, so that its command lines either
// work or say what to drop.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "cli/flags.h"

namespace spate {
namespace {

constexpr const char* kNoEffectGroup = "Accepted for vLLM's command lines";
constexpr const char* kRefusedGroup = "Known and not supported";

struct VllmFlag {
  const char* names;
  bool takes_value;
  const char* only_value;  // the value that has no effect; null: all; "": none, the flag is refused
  const char* reason;
};

constexpr VllmFlag kVllmFlags[] = {
    {"--enforce-eager,!--no-enforce-eager", false, nullptr,
     "steps are captured while they run; capture costs no start-up time"},
    {"--trust-remote-code,!--no-trust-remote-code", false, nullptr, "no code of a model's folder is run"},
    {"--enable-auto-tool-choice", false, nullptr, "calls are read whenever a request has tools"},
    {"--enable-prompt-tokens-details", false, nullptr, "usage always has them"},
    {"--enable-server-load-tracking", false, nullptr, "/load always counts"},
    {"--enable-request-id-headers", false, nullptr, "X-Request-Id is always sent"},
    {"--enable-tokenizer-info-endpoint", false, nullptr, "/tokenizer_info is always there"},
    {"--enable-sleep-mode", false, nullptr, "/sleep and /wake_up are there with --enable-admin"},
    {"--enable-log-requests,!--no-enable-log-requests", false, nullptr,
     "the access log has a line a request, without its text"},
    {"--disable-log-requests", false, nullptr, "the text of requests is never logged"},
    {"--disable-frontend-multiprocessing", false, nullptr, "there is one process"},
    {"--disable-custom-all-reduce", false, nullptr, "there is one all-reduce"},
    {"--distributed-executor-backend", true, nullptr, "ranks are threads of one process"},
    {"--runner", true, nullptr, "generation and embeddings are served together"},
    {"--convert", true, nullptr, "generation and embeddings are served together; --pooler-config says how"},
    {"--task", true, nullptr, "generation and embeddings are served together"},
    {"--embeddings,--embedding", false, nullptr, "/v1/embeddings is always there; --pooler-config says how"},
    {"--tokenizer-mode", true, nullptr, "there is one tokenizer"},
    {"--config-format", true, nullptr, "the format is seen from the files"},
    {"--download-dir", true, nullptr, "models are read from folders, nothing is downloaded"},
    {"--scheduling-policy", true, nullptr, "requests with a priority are served by it, all others in order of arrival"},
    {"--swap-space", true, nullptr, "a preempted sequence is computed again"},
    {"--max-seq-len-to-capture", true, nullptr, "steps of every length are captured"},
    {"--max-num-partial-prefills", true, nullptr, "the token budget decides how many prompts share a step"},
    {"--compilation-config", true, nullptr, "kernels are not compiled from a graph"},
    {"--guided-decoding-backend", true, nullptr, "there is one engine for structured output"},
    {"--limit-mm-per-prompt", true, nullptr, "models read text only"},
    {"--pipeline-parallel-size,--pp", true, "1", "layers are not split over ranks; use --tensor-parallel-size"},
    {"--data-parallel-size,--dp", true, "1", "start one server for each replica"},
    {"--cpu-offload-gb", true, "0", "weights stay where they are computed; --quantization makes them smaller"},
    {"--enable-reasoning", false, nullptr, "reasoning is told apart wherever the model reasons"},
    {"--chat-template-content-format", true, nullptr, "the text parts of a message reach the template as one text"},
    {"--allowed-methods", true, nullptr, "--allowed-origins allows what the API takes"},
    {"--allowed-headers", true, nullptr, "--allowed-origins allows what the API takes"},
    {"--allow-credentials", false, nullptr, "there are no cookies"},
    {"--disable-fastapi-docs", false, nullptr, "/openapi.json is a file, there is no page with forms"},
    {"--model-impl", true, nullptr, "there is one implementation of each model"},
    {"--attention-backend", true, nullptr, "the kernels follow from the device"},
    {"--structured-outputs-config", true, nullptr, "there is one engine for structured output"},
    {"--response-role", true, "assistant", "answers are the assistant's"},
    {"--api-server-count", true, "1", "there is one process"},
    {"--revision", true, "main",
     "of a name in the Hugging Face cache main is read; for another revision give its folder"},
    {"--tokenizer-revision", true, "main", "give the folder of the revision as --tokenizer"},
    {"--code-revision", true, nullptr, "no code of a model's folder is run"},
    {"--max-log-len", true, nullptr, "the text of requests is never logged"},
    {"--enable-log-deltas,!--no-enable-log-deltas", false, nullptr, "the text of answers is never logged"},
    {"--log-error-stack", false, nullptr, "an error is one line of the log"},
    {"--aggregate-engine-logging", false, nullptr, "there is one process"},
    {"--renderer-num-workers", true, nullptr, "there is one process"},
    {"--tokenizer-pool-size", true, nullptr, "there is one process"},
    {"--show-hidden-metrics-for-version", true, nullptr, "no metric is hidden"},
    {"--h11-max-incomplete-event-size", true, nullptr, "the head of a request may have 64 KiB"},
    {"--h11-max-header-count", true, nullptr, "the head of a request may have 64 KiB"},
    {"--use-tqdm-on-load,!--no-use-tqdm-on-load", false, nullptr, "the log tells how far loading is"},
    {"--model-loader-extra-config", true, nullptr, "there is one way to read weights"},
    {"--safetensors-load-strategy", true, nullptr, "there is one way to read weights"},
    {"--max-parallel-loading-workers", true, nullptr, "there is one way to read weights"},
    {"--cudagraph-capture-sizes,--cuda-graph-sizes", true, nullptr, "steps are captured while they run"},
    {"--max-cudagraph-capture-size", true, nullptr, "steps are captured while they run"},
    {"--optimization-level", true, nullptr, "kernels are not compiled from a graph"},
    {"--attention-config", true, nullptr, "the kernels follow from the device"},
    {"--kernel-config", true, nullptr, "the kernels follow from the device"},
    {"--moe-backend", true, nullptr, "the kernels follow from the device"},
    {"--disable-cascade-attn,!--no-disable-cascade-attn", false, nullptr, "attention has no cascade"},
    {"--disable-hybrid-kv-cache-manager,!--no-disable-hybrid-kv-cache-manager", false, nullptr,
     "there is one manager of the KV cache"},
    {"--use-v2-block-manager", false, nullptr, "there is one manager of the KV cache"},
    {"--prefix-caching-hash-algo", true, nullptr, "there is one hash"},
    {"--preemption-mode", true, nullptr, "a preempted sequence is computed again"},
    {"--max-long-partial-prefills", true, nullptr, "the token budget decides how many prompts share a step"},
    {"--num-scheduler-steps", true, nullptr, "the next step is prepared while one runs"},
    {"--mm-processor-kwargs", true, nullptr, "models read text only"},
    {"--mm-processor-cache-gb", true, nullptr, "models read text only"},
    {"--mm-encoder-tp-mode", true, nullptr, "models read text only"},
    {"--skip-mm-profiling", false, nullptr, "models read text only"},
    {"--language-model-only", false, nullptr, "models read text only"},
    {"--allowed-local-media-path", true, nullptr, "models read text only"},
    {"--data-parallel-size-local", true, "1", "start one server for each replica"},
    {"--decode-context-parallel-size,--dcp", true, "1", "a sequence is not split over ranks"},
    {"--prefill-context-parallel-size,--pcp", true, "1", "a sequence is not split over ranks"},
    {"--nnodes", true, "1", "the ranks of a model are threads of one process"},
    {"--fingerprint-mode", true, "full", "system_fingerprint has the version and a hash of the settings"},
    {"--headless", false, "", "the ranks of a model are threads of one process"},
    {"--hf-config-path", true, "", "config.json is read from the model's folder"},
    {"--rope-theta", true, "", "config.json is read as it is; change it in the model's folder"},
    {"--exclude-tools-when-tool-choice-none", false, "", "requests leave out what they do not want told"},
    {"--enable-prompt-embeds", false, "", "prompts are text or token ids"},
    {"--tool-server", true, "", "this server runs no tools"},
    {"--tool-parser-plugin", true, "", "no code of others is run"},
    {"--reasoning-parser-plugin", true, "", "no code of others is run"},
    {"--io-processor-plugin", true, "", "no code of others is run"},
    {"--logits-processor-pattern", true, "", "no code of others is run"},
    {"--scheduler-cls", true, "", "no code of others is run"},
    {"--worker-cls", true, "", "no code of others is run"},
    {"--worker-extension-cls", true, "", "no code of others is run"},
    {"--fully-sharded-loras", false, "", "there are no adapters"},
    {"--lora-dtype", true, "", "there are no adapters"},
    {"--enable-eplb", false, "", "experts are split by --tensor-parallel-size"},
    {"--kv-offloading-size", true, "", "the KV cache has one tier"},
    {"--kv-events-config", true, "", "changes of the KV cache are not published"},
    {"--ssl-ciphers", true, "", "OpenSSL's own hold"},
    {"--hf-overrides", true, "", "config.json is read as it is; change it in the model's folder"},
    {"--rope-scaling", true, "", "config.json is read as it is; change it in the model's folder"},
    {"--num-gpu-blocks-override", true, "", "use --kv-cache-memory"},
    {"--skip-tokenizer-init", false, "", "texts need the tokenizer"},
    {"--log-config-file", true, "", "use --log-level and --log-format"},
    {"--enable-log-outputs", false, "", "the text of answers is never logged"},
    {"--enable-early-stop", false, "", "FastDeploy's rule by probability is not built; use --repetition-detection"},
    {"--early-stop-config", true, "", "FastDeploy's rule by probability is not built; use --repetition-detection"},
    {"--enable-lora", false, "", "there are no adapters"},
    {"--lora-modules", true, "", "there are no adapters"},
    {"--max-loras", true, "", "there are no adapters"},
    {"--max-lora-rank", true, "", "there are no adapters"},
    {"--max-cpu-loras", true, "", "there are no adapters"},
    {"--logprobs-mode", true, "raw_logprobs", "logprobs are those of the model's distribution"},
    {"--logits-processors", true, "", "no code of others is run"},
    {"--enable-expert-parallel", false, "", "experts are split by --tensor-parallel-size"},
    {"--kv-transfer-config", true, "", "prefill and decode run in one process"},
    {"--ssl-ca-certs", true, "", "certificates of clients are not asked for"},
    {"--ssl-cert-reqs", true, "0", "certificates of clients are not asked for"},
    {"--enable-ssl-refresh", false, "", "start the server again when the certificate has changed"},
    {"--middleware", true, "", "no code of others is run"},
};

// vLLM's switches can all be turned off: --enable-lora, --no-enable-lora.
std::string with_negation(const std::string& names) {
  if (names.find('!') != std::string::npos) return names;
  return names + ",!--no-" + names.substr(2, names.find(',') - 2);
}

}  // namespace

void add_vllm_flags(CLI::App* app) {
  for (const VllmFlag& flag : kVllmFlags) {
    const std::string_view only = flag.only_value != nullptr ? flag.only_value : "any";
    begin_group(app, only.empty() ? kRefusedGroup : kNoEffectGroup);
    CLI::Option* option = flag.takes_value ? app->add_option_function<std::string>(
                                                 flag.names, [](const std::string&) {}, flag.reason)
                                           : app->add_flag_function(
                                                 with_negation(flag.names), [](int64_t) {}, flag.reason);
    if (flag.only_value == nullptr) continue;
    option->check(CLI::Validator(
        [&flag](std::string& value) {
          const bool asks_for_nothing = !flag.takes_value && value == "false";
          const bool is_taken = asks_for_nothing || value == flag.only_value;
          return is_taken ? std::string() : fmt::format("is not supported: {}", flag.reason);
        },
        ""));
  }
}

bool is_vllm_flag(const CLI::Option& option) {
  return option.get_group() == kNoEffectGroup || option.get_group() == kRefusedGroup;
}

std::vector<std::string> no_effect_notes(const CLI::App& app) {
  std::vector<std::string> notes;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_group() != kNoEffectGroup) continue;
    notes.push_back(fmt::format("--{} has no effect here: {}", option->get_lnames().front(), option->get_description()));
  }
  return notes;
}

}  // namespace spate
