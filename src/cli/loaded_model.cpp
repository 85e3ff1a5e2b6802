#include "cli/loaded_model.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "backend/cpu/cpu_device.h"
#include "backend/cuda/cuda_device.h"
#include "backend/reference/reference_device.h"
#include "base/log.h"
#include "weights/gguf/gguf_path.h"
#include "weights/open_weights.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

double memory_fraction(const DeviceChoice& device, const ModelArguments& arguments) {
  return device.kind == "cuda" ? arguments.gpu_memory_utilization : 0.9;
}

// The KV cache of a CPU shares the machine with everything else: at most 4 GiB, at most 30 % of what is free.
int64_t default_kv_bytes(const DeviceChoice& device, const ModelArguments& arguments, int64_t useful_bytes) {
  if (device.kind == "cuda" || arguments.kv_cache_memory > 0) return arguments.kv_cache_memory;
  const int64_t free_bytes = static_cast<int64_t>(::sysconf(_SC_AVPHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  return std::min({useful_bytes, int64_t{4} << 30, free_bytes * 3 / 10});
}

std::string model_name(const std::string& path) {
  fs::path p = fs::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  if (p.filename() == "config.json") p = p.parent_path();
  return is_gguf_path(p) ? p.stem().string() : p.filename().string();
}

Result<std::string> read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found("{}: cannot be read", path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::map<std::string, std::string> special_token_texts(const Tokenizer& tokenizer) {
  std::map<std::string, std::string> texts;
  const auto add = [&](const char* name, const std::optional<SpecialToken>& token) {
    if (token) texts[name] = token->text;
  };
  add("bos_token", tokenizer.bos_token());
  add("eos_token", tokenizer.eos_token());
  add("unk_token", tokenizer.unk_token());
  add("pad_token", tokenizer.pad_token());
  return texts;
}

// The tokenizer and template of --tokenizer, or of the model's folder or GGUF file. A dummy model may have none: then
// only token ids can be served.
Status load_text(const ModelArguments& arguments, const fs::path& model_path, LoadedModel& model) {
  const fs::path path = arguments.tokenizer.empty() ? model_path : fs::path(arguments.tokenizer);
  const bool has_tokenizer = is_gguf_path(path) || fs::exists(path / "tokenizer.json");
  if (arguments.load_format == "dummy" && arguments.tokenizer.empty() && !has_tokenizer) return ok_status();
  ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::load(path));
  std::string source, place = "chat template of " + path.string();
  if (!arguments.chat_template.empty()) {
    place = "--chat-template " + arguments.chat_template;
    ASSIGN_OR_RETURN(source, read_text(arguments.chat_template));
  } else if (const ChatTemplateSource* found = model.tokenizer->find_chat_template()) {
    source = found->source;
  }
  if (source.empty()) return ok_status();
  Result<ChatTemplate> parsed = ChatTemplate::parse(source, special_token_texts(*model.tokenizer));
  if (!parsed.ok()) return parsed.status().with_context(place);
  model.chat_template = std::make_shared<const ChatTemplate>(std::move(parsed).value());
  model.chat_template_source = std::move(source);
  return ok_status();
}

}  // namespace

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

Result<DeviceChoice> choose_device(const ModelArguments& arguments) {
  if (arguments.device == "cpu") return DeviceChoice{"cpu", make_cpu_device};
  if (arguments.device == "reference") return DeviceChoice{"reference", make_reference_device};
  const Status gpu = probe_cuda_device(device_options(arguments));
  if (gpu.ok()) return DeviceChoice{"cuda", make_cuda_device};
  if (arguments.device == "cuda") return gpu.with_context("--device cuda");
  log_info("device", "no GPU ({}): using the CPU", gpu.message());
  return DeviceChoice{"cpu", make_cpu_device};
}

Result<std::unique_ptr<LoadedModel>> load_model(const ModelArguments& arguments, const std::function<void(double)>& progress) {
  auto model = std::make_unique<LoadedModel>();
  const fs::path path = arguments.model;
  if (!fs::exists(path)) {
    return not_found("model: '{}' does not exist; give the folder that holds config.json, or a *.gguf file",
                     arguments.model);
  }
  const bool is_gguf = is_gguf_path(path);
  const fs::path dir = fs::is_directory(path) ? path : path.parent_path();
  model->name = model_name(arguments.model);
  ASSIGN_OR_RETURN(model->config, load_model_config(path));
  ASSIGN_OR_RETURN(model->generation, load_generation_config(is_gguf ? path : dir));
  model->eos_token_ids =
      model->generation.eos_token_ids.empty() ? model->config.eos_token_ids : model->generation.eos_token_ids;
  if (arguments.generation_config == "vllm") model->generation = GenerationConfig();
  ASSIGN_OR_RETURN(const DeviceChoice device, choose_device(arguments));
  const bool on_gpu = device.kind == "cuda";
  ASSIGN_OR_RETURN(const Quantization quantization, parse_quantization(arguments.quantization));

  // The tokenizer is read beside the weights: both take a second for a large model.
  Status text_status;
  std::thread text_thread([&] { text_status = load_text(arguments, is_gguf ? path : dir, *model); });
  std::unique_ptr<WeightSource> weights;
  RankGroupConfig config{
      .model = model->config,
      .weights = nullptr,
      .dummy_seed = arguments.seed,
      .device_factory = device.factory,
      .device = device_options(arguments),
      .pin_threads = arguments.cpu_pin_threads,
      .tensor_parallel_size = arguments.tensor_parallel_size,
      .act_dtype = act_dtype_of(arguments),
      .kv_dtype = kv_dtype_of(arguments),
      .quantization = quantization,
      .max_num_seqs = arguments.max_num_seqs > 0 ? arguments.max_num_seqs
                      : on_gpu                   ? 256
                                                 : 64,
      .max_num_batched_tokens = arguments.max_num_batched_tokens > 0 ? arguments.max_num_batched_tokens
                                : on_gpu                             ? 8192
                                                                     : 512,
      .max_num_logits = 64,
      .max_model_len = static_cast<int>(arguments.max_model_len),
      .kv_block_size = arguments.block_size,
      .kv_cache_bytes = 0,
      .memory_fraction = memory_fraction(device, arguments),
  };
  const auto load = [&]() -> Status {
    if (arguments.load_format != "dummy") {
      ASSIGN_OR_RETURN(weights, open_weights(path));
      config.weights = weights.get();
    }
    ASSIGN_OR_RETURN(const ModelMemory memory,
                     Model::memory(model->config, {.rank = 0, .size = 1},
                                   {.act_dtype = config.act_dtype, .kv_dtype = config.kv_dtype}));
    const int64_t len = arguments.max_model_len > 0 ? arguments.max_model_len : model->config.max_position_embeddings;
    const int64_t padded_len = (len + config.kv_block_size - 1) / config.kv_block_size * config.kv_block_size;
    config.kv_cache_bytes =
        default_kv_bytes(device, arguments, padded_len * config.max_num_seqs * memory.kv_bytes_per_token);
    ASSIGN_OR_RETURN(model->ranks, RankGroup::create(config, [&](int64_t done, int64_t total) {
                       if (progress) progress(total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
                     }));
    return ok_status();
  };
  const Status load_status = load();
  text_thread.join();
  RETURN_IF_ERROR(load_status);
  RETURN_IF_ERROR(text_status);
  if (progress) progress(1.0);

  const MemoryPlan& plan = model->ranks->memory_plan();
  EngineConfig engine_config;
  engine_config.max_model_len = static_cast<int>(plan.max_model_len);
  engine_config.max_num_seqs = config.max_num_seqs;
  engine_config.max_num_batched_tokens = config.max_num_batched_tokens;
  engine_config.kv_block_size = static_cast<int>(config.kv_block_size);
  engine_config.num_kv_blocks = static_cast<int>(plan.num_kv_blocks);
  engine_config.enable_prefix_caching = arguments.enable_prefix_caching;
  engine_config.enable_chunked_prefill = arguments.enable_chunked_prefill;
  engine_config.async_scheduling = arguments.async_scheduling;
  engine_config.long_prefill_token_threshold = arguments.long_prefill_token_threshold;
  engine_config.max_prefill_stall_ms = arguments.max_prefill_stall_ms >= 0 ? arguments.max_prefill_stall_ms : on_gpu ? 0 : 100;
  engine_config.max_num_waiting = arguments.max_num_waiting;
  RETURN_IF_ERROR(validate_engine_config(engine_config));
  ASSIGN_OR_RETURN(model->engine, Engine::create(engine_config, *model->ranks));

  model->summary = model->ranks->summary();
  model->summary.insert(model->summary.begin(), fmt::format("model {}, {}", model->name, model->config.architecture));
  model->summary.push_back(fmt::format("Maximum concurrency for {} tokens per request: {:.2f}x", plan.max_model_len,
                                       static_cast<double>(engine_config.kv_cache_tokens()) /
                                           static_cast<double>(plan.max_model_len)));
  if (plan.max_model_len_reduced) {
    model->summary.push_back(fmt::format("max_model_len is {} of the model's {}: that is what the KV cache holds "
                                         "(--kv-cache-memory)",
                                         plan.max_model_len, model->config.max_position_embeddings));
  }
  return model;
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
