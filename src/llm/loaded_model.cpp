#include "llm/loaded_model.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <fstream>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/system_memory.h"
#include "mock/mock_executor.h"
#include "model/model.h"
#include "rank/mtp_drafter.h"
#include "weights/gguf/gguf_path.h"
#include "weights/open_weights.h"
#include "weights/pooling_files.h"
#include "weights/quantization_config.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxChatTemplateBytes = 4 << 20;  // the longest known have 30 KB

// A KV cache in main memory shares it with everything else: at most 4 GiB, at most 30 % of what is free. 0: as much as
// the device's share of memory allows.
int64_t max_kv_cache_bytes(const BackEnd& back_end) {
  if (!back_end.shares_host_memory) return 0;
  return std::min(int64_t{4} << 30, system_memory().available_bytes * 3 / 10);
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
Status load_text(const LlmConfig& llm, const fs::path& model_path, LoadedModel& model) {
  const fs::path path = llm.tokenizer.empty() ? model_path : fs::path(llm.tokenizer);
  std::error_code error;
  const bool has_tokenizer = is_gguf_path(path) || fs::exists(path / "tokenizer.json", error);
  if (llm.dummy_weights && llm.tokenizer.empty() && !has_tokenizer) return ok_status();
  ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::load(path));
  std::string source, place = "chat template of " + path.string();
  if (!llm.chat_template.empty()) {
    place = "--chat-template";
    ASSIGN_OR_RETURN(source, read_chat_template(llm.chat_template));
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

void add_warnings(LoadedModel& model) {
  const int64_t num_ids = model.tokenizer == nullptr ? 0 : model.tokenizer->vocab_size();
  if (num_ids > model.config.vocab_size) {
    model.warnings.push_back(
        fmt::format("the tokenizer has ids up to {}, but vocab_size is {}: a prompt that needs an id from {} on is "
                    "refused. Does the tokenizer belong to this model?",
                    num_ids - 1, model.config.vocab_size, model.config.vocab_size));
  }
  for (const std::string& warning : model.warnings) log_warning("model", "{}: {}", model.name, warning);
}

// The draft model of --speculative-config.
struct DraftFiles {
  ModelConfig config;
  std::unique_ptr<const Tokenizer> tokenizer;  // null: it has none
  std::unique_ptr<WeightSource> weights;       // null with dummy weights
};

Result<DraftFiles> open_draft(const LlmConfig& llm, const ModelConfig& target) {
  const fs::path path = llm.speculative.model;
  std::error_code error;
  if (!fs::exists(path, error)) {
    return not_found("--speculative-config: model '{}' does not exist; give the folder that holds config.json, or a *.gguf file",
                     path.string());
  }
  const std::string where = fmt::format("--speculative-config: model {}", path.string());
  DraftFiles draft;
  Result<ModelConfig> config = load_model_config(path);
  if (!config.ok()) return config.status().with_context(where);
  draft.config = std::move(config).value();
  if (draft.config.vocab_size != target.vocab_size) {
    return invalid_argument("{}: its vocab_size is {}, the model's is {}; drafts must be tokens of the same vocabulary", where,
                            draft.config.vocab_size, target.vocab_size);
  }
  const bool has_tokenizer = is_gguf_path(path) || fs::exists(path / "tokenizer.json", error);
  if (has_tokenizer) {
    Result<std::unique_ptr<const Tokenizer>> tokenizer = Tokenizer::load(path);
    if (!tokenizer.ok()) return tokenizer.status().with_context(where);
    draft.tokenizer = std::move(tokenizer).value();
  } else if (!llm.dummy_weights) {
    return not_found("{}: it has no tokenizer.json, so its vocabulary cannot be compared with the model's", where);
  }
  if (llm.dummy_weights) return draft;
  Result<std::unique_ptr<WeightSource>> weights = open_weights(path);
  if (!weights.ok()) return weights.status().with_context(where);
  draft.weights = std::move(weights).value();
  return draft;
}

Result<EagleFiles> open_eagle_head(const LlmConfig& llm, const ModelConfig& target) {
  const fs::path path = llm.speculative.model;
  std::error_code error;
  if (!fs::exists(path, error)) {
    return not_found(
        "--speculative-config: model '{}' does not exist; give the folder that holds the head's config.json",
        path.string());
  }
  Result<EagleFiles> files = open_eagle(path, target, llm.dummy_weights);
  if (!files.ok()) return files.status().with_context(fmt::format("--speculative-config: model {}", path.string()));
  return files;
}

// Token for token the same.
Status check_vocabulary(const std::string& draft_path, const Tokenizer& draft, const Tokenizer& target) {
  const int32_t num_ids = std::max(draft.vocab_size(), target.vocab_size());
  for (int32_t id = 0; id < num_ids; ++id) {
    const std::string_view ours = id < target.vocab_size() ? target.token_text(id) : "";
    const std::string_view theirs = id < draft.vocab_size() ? draft.token_text(id) : "";
    if (ours == theirs) continue;
    return invalid_argument(
        "--speculative-config: model {} has another vocabulary: its token {} is '{}', the model's is '{}'", draft_path, id,
        theirs, ours);
  }
  return ok_status();
}

// In place of ranks. Its KV cache is accounted for as the host's back-end would store it, and takes no memory.
Result<MemoryPlan> plan_mock_memory(const RankGroupConfig& config) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, config.back_end->make_device({.num_threads = 1}));
  ASSIGN_OR_RETURN(const ModelMemory memory,
                   Model::memory(config.model, {}, {.act_dtype = config.act_dtype, .kv_dtype = config.kv_dtype, .limits = config.limits}));
  constexpr int64_t kAnySize = int64_t{1} << 50;
  return plan_memory({.ranks = {{.free_bytes = kAnySize, .kv_block_bytes = kv_block_bytes(*device, memory.kv_layers)}},
                      .limits = config.limits,
                      .model_max_len = config.model.max_position_embeddings,
                      .kv_cache_bytes = config.kv_cache_bytes,
                      .max_kv_cache_bytes = int64_t{4} << 30});
}

Status check_mock(const LlmConfig& llm) {
  const auto refused = [](std::string_view flag) {
    return invalid_argument("{}: --device mock runs no model, so there is nothing that it could change; leave it out", flag);
  };
  if (llm.tensor_parallel_size > 1) return refused("--tensor-parallel-size");
  if (llm.quantization.enabled()) return refused("--quantization");
  if (llm.speculative.use_relaxed_acceptance_for_thinking) {
    return refused("--speculative-config: use_relaxed_acceptance_for_thinking");
  }
  if (runs_a_model(llm.speculative.method)) {
    return refused(fmt::format("--speculative-config: method {}", speculative_method_name(llm.speculative.method)));
  }
  return ok_status();
}

// Which drafts run depends on what else runs, and on measured times.
Status check_relaxed_acceptance(const LlmConfig& llm) {
  if (!llm.speculative.use_relaxed_acceptance_for_thinking || !llm.device_options.deterministic) return ok_status();
  return invalid_argument(
      "--speculative-config: use_relaxed_acceptance_for_thinking makes answers depend on load, which --deterministic "
      "forbids; leave one of them out");
}

std::unique_ptr<StepExecutor> make_mock(const LlmConfig& llm, const StepLimits& limits, const LoadedModel& model) {
  MockExecutorConfig config{.script = llm.mock,
                            .eos_token_ids = model.eos_token_ids,
                            .max_num_seqs = limits.max_num_seqs,
                            .vocab_size = static_cast<int>(model.config.vocab_size),
                            .hidden_size = model.config.hidden_size,
                            .time_limit_s = llm.collective_time_limit_s};
  config.encode = [tokenizer = model.tokenizer](std::string_view text) { return tokenizer->encode(text); };
  config.decode = [tokenizer = model.tokenizer](std::span<const int32_t> ids) { return tokenizer->decode(ids, false); };
  std::this_thread::sleep_for(std::chrono::duration<double>(llm.mock.load_seconds));
  return std::make_unique<MockExecutor>(std::move(config));
}

}  // namespace

std::string model_name(const std::string& path) {
  fs::path p = fs::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  if (p.filename() == "config.json") p = p.parent_path();
  return is_gguf_path(p) ? p.stem().string() : p.filename().string();
}

Result<std::string> read_chat_template(const std::string& path_or_source) {
  if (path_or_source.find_first_of("{}\n") != std::string::npos) return path_or_source;
  std::ifstream in(path_or_source, std::ios::binary);
  std::error_code error;
  if (!in || fs::is_directory(path_or_source, error)) {
    return not_found("--chat-template {}: no file that can be read, and no template: that has braces", path_or_source);
  }
  std::string text(kMaxChatTemplateBytes + 1, '\0');  // no size is asked for: it may be a pipe
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return data_loss("--chat-template {}: cannot be read", path_or_source);
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxChatTemplateBytes) {
    return invalid_argument("--chat-template {}: has more than {} bytes", path_or_source, kMaxChatTemplateBytes);
  }
  if (text.empty()) return invalid_argument("--chat-template {}: is empty", path_or_source);
  return text;
}

Result<std::unique_ptr<LoadedModel>> load_model(const LlmConfig& llm, const std::function<void(double)>& progress) {
  auto model = std::make_unique<LoadedModel>();
  RETURN_IF_ERROR(validate_speculative_config(llm.speculative));  // before weights are read
  RETURN_IF_ERROR(check_relaxed_acceptance(llm));
  const fs::path path = llm.model;
  std::error_code error;
  if (!fs::exists(path, error)) {
    return not_found("model: '{}' {}; give the folder that holds config.json, or a *.gguf file", llm.model,
                     error ? "cannot be opened: " + error.message() : "does not exist");
  }
  const bool is_gguf = is_gguf_path(path);
  const fs::path dir = fs::is_directory(path, error) ? path : path.parent_path();
  model->name = llm.name.empty() ? model_name(llm.model) : llm.name;
  ASSIGN_OR_RETURN(model->config, load_model_config(path));
  ASSIGN_OR_RETURN(model->generation, load_generation_config(is_gguf ? path : dir));
  ASSIGN_OR_RETURN(model->pooling, load_pooling_config(is_gguf ? path : dir));
  if (llm.pooling.pooling) {
    model->pooling.pooling = *llm.pooling.pooling;
    model->pooling.source = "--pooler-config";
  }
  if (llm.pooling.normalize) model->pooling.normalize = *llm.pooling.normalize;
  model->eos_token_ids =
      model->generation.eos_token_ids.empty() ? model->config.eos_token_ids : model->generation.eos_token_ids;
  if (!llm.use_generation_config) model->generation = GenerationConfig();
  const bool is_mock = llm.device == kMockDevice;
  if (is_mock) {
    RETURN_IF_ERROR(check_mock(llm));
    model->back_end = &host_back_end();
  } else {
    ASSIGN_OR_RETURN(model->back_end, choose_back_end(llm.device, llm.device_options));
  }
  const BackEnd& back_end = *model->back_end;
  const BackEndDefaults& defaults = back_end.defaults;

  // The tokenizer is read beside the weights: both take a second for a large model. What either throws comes out here,
  // once both have ended.
  std::future<Status> text =
      std::async(std::launch::async, [&] { return load_text(llm, is_gguf ? path : dir, *model); });
  std::unique_ptr<WeightSource> weights;
  DraftFiles draft;
  EagleFiles eagle;
  RankGroupConfig config{
      .model = model->config,
      .weights = nullptr,
      .dummy_seed = llm.seed,
      .back_end = model->back_end,
      .device = llm.device_options,
      .pin_threads = llm.pin_threads,
      .tensor_parallel_size = llm.tensor_parallel_size,
      .collective_time_limit_s = llm.collective_time_limit_s,
      .act_dtype = llm.act_dtype,
      .kv_dtype = llm.kv_dtype,
      .quantization = llm.quantization,
      .weight_cache = llm.weight_cache,
      .limits = {.max_model_len = static_cast<int>(llm.max_model_len),
                 .max_num_seqs = llm.max_num_seqs > 0 ? llm.max_num_seqs : defaults.max_num_seqs,
                 .max_num_batched_tokens =
                     llm.max_num_batched_tokens > 0 ? llm.max_num_batched_tokens : defaults.max_num_batched_tokens,
                 .max_num_logits = defaults.max_num_logits,
                 .kv_block_size = llm.kv_block_size},
      .kv_cache_bytes = llm.kv_cache_bytes,
      .max_kv_cache_bytes = llm.max_kv_cache_bytes > 0 ? llm.max_kv_cache_bytes : max_kv_cache_bytes(back_end),
      .memory_fraction =
          llm.device_memory_share > 0 && !back_end.shares_host_memory ? llm.device_memory_share : defaults.memory_share,
  };
  const auto load = [&]() -> Status {
    RETURN_IF_ERROR(validate_step_limits(config.limits, llm.enable_chunked_prefill));  // before weights are read
    if (is_mock) {
      ASSIGN_OR_RETURN(model->memory_plan, plan_mock_memory(config));
      return ok_status();
    }
    if (!llm.dummy_weights) {
      ASSIGN_OR_RETURN(weights, open_weights(path));
      config.weights = weights.get();
    } else if (!is_gguf) {
      ASSIGN_OR_RETURN(config.quantization, dummy_quantization(dir, llm.quantization, config.act_dtype == DType::kF32));
    }
    if (llm.speculative.method == SpeculativeMethod::kDraftModel) {
      ASSIGN_OR_RETURN(draft, open_draft(llm, model->config));
      config.draft = {.model = draft.config,
                      .weights = draft.weights.get(),
                      .scratch_blocks_per_row = scratch_blocks_per_row(llm.speculative, llm.kv_block_size)};
    }
    if (llm.speculative.method == SpeculativeMethod::kMtp) {
      config.mtp_draft = {.num_layers = num_mtp_layers_for(model->config, llm.speculative.num_speculative_tokens),
                          .scratch_blocks_per_row = scratch_blocks_per_row(llm.speculative, llm.kv_block_size)};
    }
    if (llm.speculative.method == SpeculativeMethod::kEagle) {
      ASSIGN_OR_RETURN(eagle, open_eagle_head(llm, model->config));
      config.eagle_draft = {.head = eagle.config,
                            .weights = eagle.weights.get(),
                            .scratch_blocks_per_row = scratch_blocks_per_row(llm.speculative, llm.kv_block_size)};
    }
    RETURN_IF_ERROR(check_layout(llm.quantization, weights != nullptr ? weights->layout() : std::string_view()));
    ASSIGN_OR_RETURN(model->ranks, RankGroup::create(config, [&](int64_t done, int64_t total) {
                       if (progress) progress(total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
                     }));
    model->memory_plan = model->ranks->memory_plan();
    model->weight_bytes = model->ranks->weight_bytes();
    return ok_status();
  };
  const Status load_status = load();
  const Status text_status = text.get();
  RETURN_IF_ERROR(load_status);
  RETURN_IF_ERROR(text_status);
  if (draft.tokenizer != nullptr && model->tokenizer != nullptr) {
    RETURN_IF_ERROR(check_vocabulary(llm.speculative.model, *draft.tokenizer, *model->tokenizer));
  }
  if (progress) progress(1.0);
  add_warnings(*model);
  ASSIGN_OR_RETURN(const ModelMemory whole,
                   Model::memory(config.model, {}, {.act_dtype = config.act_dtype, .limits = config.limits}));
  model->num_parameters = whole.num_parameters;

  const MemoryPlan& plan = model->memory_plan;
  EngineConfig engine_config;
  engine_config.limits = config.limits;
  engine_config.limits.max_model_len = static_cast<int>(plan.max_model_len);
  engine_config.num_kv_blocks = static_cast<int>(plan.num_kv_blocks);
  engine_config.enable_prefix_caching = llm.enable_prefix_caching;
  engine_config.enable_chunked_prefill = llm.enable_chunked_prefill;
  engine_config.async_scheduling = llm.async_scheduling;
  engine_config.long_prefill_token_threshold = llm.long_prefill_token_threshold;
  engine_config.max_prefill_stall_ms = llm.max_prefill_stall_ms >= 0 ? llm.max_prefill_stall_ms : defaults.max_prefill_stall_ms;
  engine_config.max_num_waiting = llm.max_num_waiting;
  engine_config.speculative = llm.speculative;
  if (llm.speculative.method != SpeculativeMethod::kNone || llm.speculative.jump_forward)
    engine_config.draft_source = DraftSource::kProposer;
  RETURN_IF_ERROR(validate_engine_config(engine_config));
  if (is_mock) {
    if (model->tokenizer == nullptr) {
      return not_found("--device mock: {} has no tokenizer.json; use --tokenizer with a folder that has one", llm.model);
    }
    model->mock = make_mock(llm, engine_config.limits, *model);
    ASSIGN_OR_RETURN(model->engine, Engine::create(engine_config, *model->mock));
    model->summary = {fmt::format("device mock: no model runs, answers are scripted; KV cache of {} tokens",
                                  engine_config.kv_cache_tokens())};
  } else {
    ASSIGN_OR_RETURN(model->engine, Engine::create(engine_config, *model->ranks, {}, model->ranks->draft_executor()));
    model->summary = model->ranks->summary();
  }
  model->summary.insert(model->summary.begin(), fmt::format("model {}, {}", model->name, model->config.architecture));
  model->summary.push_back(fmt::format("Maximum concurrency for {} tokens per request: {:.2f}x", plan.max_model_len,
                                       static_cast<double>(engine_config.kv_cache_tokens()) /
                                           static_cast<double>(plan.max_model_len)));
  if (llm.speculative.method != SpeculativeMethod::kNone) {
    model->summary.push_back(fmt::format("speculation: {}, at most {} drafts a sequence and step{}",
                                         speculative_method_name(llm.speculative.method),
                                         llm.speculative.num_speculative_tokens,
                                         llm.speculative.adaptive ? "" : ", always as many as are proposed"));
    if (llm.speculative.use_relaxed_acceptance_for_thinking) {
      model->summary.push_back(
          fmt::format("relaxed acceptance changes answers: while they reason, drafts stand that are among the {} most "
                      "probable tokens and within {} of the first",
                      llm.speculative.relaxed_topk, llm.speculative.relaxed_delta));
    }
  }
  if (model->pooling.pooling != Pooling::kNone) {
    model->summary.push_back(fmt::format("embeddings: pooling {} ({}){}", pooling_name(model->pooling.pooling),
                                         model->pooling.source, model->pooling.normalize ? ", normalised" : ""));
  }
  if (plan.max_model_len_reduced) {
    model->summary.push_back(fmt::format("max_model_len is {} of the model's {}: that is what the KV cache holds "
                                         "(--kv-cache-memory)",
                                         plan.max_model_len, model->config.max_position_embeddings));
  }
  return model;
}

}  // namespace spate
