#include "cli/llm_arguments.h"

#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "cli/mock_argument.h"
#include "cli/pooling_argument.h"
#include "cli/speculative_argument.h"

namespace spate {

DeviceOptions device_options(const ModelArguments& arguments) {
  return {.num_threads = arguments.threads,
          .deterministic = arguments.deterministic,
          .isa = arguments.isa,
          .kernel_dir = arguments.kernel_dir};
}

DType act_dtype_of(const ModelArguments& arguments) {
  return arguments.dtype == "float32" ? DType::kF32 : DType::kBf16;
}

DType kv_dtype_of(const ModelArguments& arguments) {
  if (arguments.kv_cache_dtype == "int8") return DType::kI8;
  if (arguments.kv_cache_dtype == "bfloat16") return DType::kBf16;
  return arguments.kv_cache_dtype == "float32" ? DType::kF32 : act_dtype_of(arguments);
}

Result<Quantization> quantization_of(const ModelArguments& arguments) {
  ASSIGN_OR_RETURN(const ActivationDType activations, parse_activation_dtype(arguments.activation_dtype));
  return parse_quantization(arguments.quantization, activations);
}

Result<LlmConfig> llm_config(const ModelArguments& arguments) {
  ASSIGN_OR_RETURN(const Quantization quantization, quantization_of(arguments));
  ASSIGN_OR_RETURN(SpeculativeConfig speculative, parse_speculative_config(arguments.speculative_config));
  speculative.jump_forward = arguments.jump_forward;
  ASSIGN_OR_RETURN(const PoolingOverride pooling, parse_pooler_config(arguments.pooler_config));
  if (!arguments.mock_script.empty() && arguments.device != kMockDevice) {
    return invalid_argument("--mock-script needs --device {}, got --device {}", kMockDevice, arguments.device);
  }
  ASSIGN_OR_RETURN(MockScript mock, read_mock_script(arguments.mock_script));
  return LlmConfig{.model = arguments.model,
                   .name = arguments.hub_name,
                   .tokenizer = arguments.tokenizer,
                   .chat_template = arguments.chat_template,
                   .dummy_weights = arguments.load_format == "dummy",
                   .use_generation_config = arguments.generation_config != "vllm",
                   .seed = arguments.seed,
                   .pooling = pooling,
                   .device = arguments.device,
                   .device_options = device_options(arguments),
                   .mock = std::move(mock),
                   .pin_threads = arguments.cpu_pin_threads,
                   .tensor_parallel_size = arguments.tensor_parallel_size,
                   .collective_time_limit_s = static_cast<double>(arguments.distributed_timeout_seconds),
                   .act_dtype = act_dtype_of(arguments),
                   .kv_dtype = kv_dtype_of(arguments),
                   .quantization = quantization,
                   .weight_cache = {.dir = arguments.weight_cache, .max_bytes = arguments.weight_cache_limit},
                   .max_model_len = arguments.max_model_len,
                   .max_num_seqs = arguments.max_num_seqs,
                   .max_num_batched_tokens = arguments.max_num_batched_tokens,
                   .kv_block_size = arguments.block_size,
                   .kv_cache_bytes = arguments.kv_cache_memory,
                   .device_memory_share = arguments.gpu_memory_utilization,
                   .max_num_waiting = arguments.max_num_waiting,
                   .long_prefill_token_threshold = arguments.long_prefill_token_threshold,
                   .max_prefill_stall_ms = arguments.max_prefill_stall_ms,
                   .enable_prefix_caching = arguments.enable_prefix_caching,
                   .enable_chunked_prefill = arguments.enable_chunked_prefill,
                   .async_scheduling = arguments.async_scheduling,
                   .speculative = std::move(speculative)};
}

Result<std::unique_ptr<LoadedModel>> load_model(const ModelArguments& arguments,
                                                const std::function<void(double)>& progress) {
  ASSIGN_OR_RETURN(const LlmConfig llm, llm_config(arguments));
  return load_model(llm, progress);
}

std::function<void(double)> progress_bar(std::string title) {
  const bool is_terminal = ::isatty(STDERR_FILENO) != 0;
  return [title = std::move(title), is_terminal, last = -1](double share) mutable {
    const int percent = static_cast<int>(share * 100);
    if (is_terminal ? percent == last : percent / 10 == last / 10 && last >= 0) return;
    const bool finished = percent >= 100 && last < 100;
    last = percent;
    if (is_terminal) {
      constexpr int kWidth = 40;
      const int filled = percent * kWidth / 100;
      std::fprintf(stderr, "\r%s [%s%s] %3d %%%s", title.c_str(), std::string(static_cast<size_t>(filled), '#').c_str(),
                   std::string(static_cast<size_t>(kWidth - filled), '.').c_str(), percent, finished ? "\n" : "");
    } else if (percent % 10 == 0 || finished) {
      log_info("load", "{}: {} %", title, percent / 10 * 10);
    }
  };
}

}  // namespace spate
