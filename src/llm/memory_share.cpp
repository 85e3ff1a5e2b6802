#include "llm/memory_share.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/kv_storage.h"
#include "backend/registry/registry.h"
#include "model/model.h"
#include "rank/eagle_drafter.h"
#include "rank/memory_plan.h"
#include "rank/mtp_drafter.h"
#include "weights/open_weights.h"

namespace spate {
namespace {

constexpr int64_t kMostHostKvBytes = int64_t{4} << 30;  // where nobody asked: as of a model alone (llm/loaded_model.cpp)

// Indices of the models that lie in `memory`.
std::vector<size_t> models_in(std::span<const ModelNeed> needs, const std::string& memory) {
  std::vector<size_t> found;
  for (size_t i = 0; i < needs.size(); ++i) {
    if (needs[i].memory == memory) found.push_back(i);
  }
  return found;
}

// What to lower where `needed` does not fit: the caches that were asked for, else a model less.
std::string advice(std::span<const ModelNeed> needs, const std::vector<size_t>& models) {
  std::string asked;
  for (const size_t i : models) {
    if (needs[i].kv_cache_bytes == 0) continue;
    asked += fmt::format("{}{} (now {})", asked.empty() ? "" : ", ", needs[i].name, format_bytes(needs[i].kv_cache_bytes));
  }
  const std::string lower = asked.empty() ? "" : fmt::format("Lower kv-cache-memory of {}, or ", asked);
  return lower + (asked.empty() ? "Lower" : "lower") +
         " max-model-len, max-num-seqs or max-num-batched-tokens, quantize a model, or serve one less";
}

// To each of `models` beyond what it needs at least: an equal part of `left`; what one cannot use goes to the others.
void share_equally(std::span<const ModelNeed> needs, std::vector<size_t> models, int64_t left, std::vector<int64_t>& parts) {
  const auto usable = [&](size_t i) { return needs[i].most_kv_bytes - needs[i].least_kv_bytes; };
  std::ranges::sort(models, {}, usable);
  for (size_t k = 0; k < models.size(); ++k) {
    const int64_t part = std::min(left / static_cast<int64_t>(models.size() - k), usable(models[k]));
    parts[models[k]] = needs[models[k]].least_kv_bytes + part;
    left -= part;
  }
}

Status share_one_memory(std::span<const ModelNeed> needs, const std::vector<size_t>& models, MemoryShares& shares) {
  int64_t free_bytes = needs[models.front()].free_bytes;
  double share = needs[models.front()].memory_share;
  for (const size_t i : models) {
    free_bytes = std::min(free_bytes, needs[i].free_bytes);
    share = std::min(share, needs[i].memory_share);
  }
  const auto to_share = static_cast<int64_t>(static_cast<double>(free_bytes) * share);
  int64_t left = to_share;
  std::vector<size_t> computed;
  for (const size_t i : models) {
    const ModelNeed& need = needs[i];
    const bool is_asked = need.kv_cache_bytes > 0;
    const int64_t kv_bytes = is_asked ? need.kv_cache_bytes : need.least_kv_bytes;
    if (need.fixed_bytes + kv_bytes > left) {
      return resource_exhausted(
          "memory ({}): the model {} does not fit{}: it needs {} for weights and workspace and {} of KV cache; of the {} that "
          "are free and may be used, {} are left. {}",
          need.memory, need.name, models.size() > 1 ? " beside the others" : "", format_bytes(need.fixed_bytes),
          format_bytes(kv_bytes), format_bytes(to_share), format_bytes(left), advice(needs, models));
    }
    left -= need.fixed_bytes + kv_bytes;
    shares.kv_cache_bytes[i] = kv_bytes;
    if (!is_asked) computed.push_back(i);
  }
  share_equally(needs, computed, left, shares.kv_cache_bytes);
  shares.lines.push_back(fmt::format("memory ({}): {} are free, {} may be used", needs[models.front()].memory,
                                     format_bytes(free_bytes), format_bytes(to_share)));
  for (const size_t i : models) {
    shares.lines.push_back(fmt::format("  {}: {} for weights and workspace, {} of KV cache ({})", needs[i].name,
                                       format_bytes(needs[i].fixed_bytes), format_bytes(shares.kv_cache_bytes[i]),
                                       needs[i].kv_cache_bytes > 0 ? "kv-cache-memory" : "its share at most"));
  }
  return ok_status();
}

}  // namespace

Result<ModelNeed> model_need(const std::string& name, const LlmConfig& llm) {
  ModelNeed need{.name = name, .kv_cache_bytes = llm.kv_cache_bytes};
  if (llm.device == kMockDevice) return need;
  ASSIGN_OR_RETURN(const BackEnd* const back_end, choose_back_end(llm.device, llm.device_options));
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(llm.model));
  const BackEndDefaults& defaults = back_end->defaults;
  const int64_t max_model_len = llm.max_model_len > 0 ? llm.max_model_len : config.max_position_embeddings;
  const int max_num_seqs = llm.max_num_seqs > 0 ? llm.max_num_seqs : defaults.max_num_seqs;
  std::unique_ptr<WeightSource> weights;
  if (!llm.dummy_weights) {
    ASSIGN_OR_RETURN(weights, open_weights(llm.model));
  }
  ModelOptions options{.act_dtype = llm.act_dtype,
                       .kv_dtype = llm.kv_dtype,
                       .quantization = llm.quantization,
                       .source = weights.get(),
                       .limits = {.max_model_len = static_cast<int>(max_model_len),
                                  .max_num_seqs = max_num_seqs,
                                  .max_num_batched_tokens = llm.max_num_batched_tokens > 0 ? llm.max_num_batched_tokens
                                                                                           : defaults.max_num_batched_tokens,
                                  .max_num_logits = defaults.max_num_logits,
                                  .kv_block_size = llm.kv_block_size}};
  DeviceOptions device_options = llm.device_options;
  device_options.num_threads = 1;
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, back_end->make_device(device_options));
  ASSIGN_OR_RETURN(const MemoryInfo free, device->memory_info());
  const int num_ranks = llm.tensor_parallel_size;
  int64_t block_bytes = 0;
  const bool has_mtp = llm.speculative.method == SpeculativeMethod::kMtp && config.num_mtp_layers > 0;
  options.num_mtp_layers = has_mtp ? num_mtp_layers_for(config, llm.speculative.num_speculative_tokens) : 0;
  EagleFiles eagle;
  if (llm.speculative.method == SpeculativeMethod::kEagle) {
    ASSIGN_OR_RETURN(eagle, open_eagle(llm.speculative.model, config, llm.dummy_weights));
  }
  const auto add_drafter = [&](const HiddenStateDrafter::Memory& memory) {
    need.fixed_bytes += memory.workspace_bytes;
    block_bytes += memory.kv_block_bytes;
  };
  for (int rank = 0; rank < num_ranks; ++rank) {
    ASSIGN_OR_RETURN(const ModelMemory memory, Model::memory(config, {.rank = rank, .size = num_ranks}, options));
    need.fixed_bytes += memory.weight_bytes + memory.workspace_bytes;
    block_bytes += kv_block_bytes(*device, memory.kv_layers);
    if (has_mtp) add_drafter(mtp_drafter_memory(*device, config, memory, options));
    if (llm.speculative.method != SpeculativeMethod::kEagle) continue;
    ModelOptions head_options = options;
    head_options.quantization = {};
    head_options.source = eagle.weights.get();
    ASSIGN_OR_RETURN(const ModelMemory head,
                     EagleHead::memory(eagle.config, {.rank = rank, .size = num_ranks}, head_options));
    need.fixed_bytes += head.weight_bytes;
    add_drafter(eagle_drafter_memory(*device, eagle.config, head, head_options));
  }
  const int64_t blocks_a_seq = (max_model_len + llm.kv_block_size - 1) / llm.kv_block_size;
  need.memory = back_end->name;
  need.free_bytes = back_end->shares_host_memory ? free.free_bytes : free.free_bytes * num_ranks;
  need.memory_share =
      llm.device_memory_share > 0 && !back_end->shares_host_memory ? llm.device_memory_share : defaults.memory_share;
  need.least_kv_bytes = llm.max_model_len > 0 ? blocks_a_seq * block_bytes : block_bytes;
  need.most_kv_bytes = blocks_a_seq * block_bytes * max_num_seqs;
  if (back_end->shares_host_memory) need.most_kv_bytes = std::min(need.most_kv_bytes, kMostHostKvBytes);
  need.most_kv_bytes = std::max(need.most_kv_bytes, need.least_kv_bytes);
  if (llm.speculative.method != SpeculativeMethod::kDraftModel) return need;
  LlmConfig draft = llm;
  draft.model = llm.speculative.model;
  draft.quantization = {};
  draft.speculative = {};
  ASSIGN_OR_RETURN(const ModelNeed draft_need, model_need(name, draft));
  need.fixed_bytes += draft_need.fixed_bytes;
  need.least_kv_bytes += draft_need.least_kv_bytes;
  need.most_kv_bytes += draft_need.most_kv_bytes;
  return need;
}

Result<MemoryShares> share_memory(std::span<const ModelNeed> needs) {
  MemoryShares shares{.kv_cache_bytes = std::vector<int64_t>(needs.size()), .lines = {}};
  std::vector<std::string> done;
  for (const ModelNeed& need : needs) {
    if (need.memory.empty() || std::ranges::find(done, need.memory) != done.end()) continue;
    done.push_back(need.memory);
    RETURN_IF_ERROR(share_one_memory(needs, models_in(needs, need.memory), shares));
  }
  return shares;
}

}  // namespace spate
