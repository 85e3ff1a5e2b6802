#include "rank/rank_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/cpu_cores.h"
#include "base/log.h"
#include "core/layered_executor.h"
#include "parallel/communicators.h"
#include "rank/drafter.h"
#include "rank/eagle_drafter.h"
#include "rank/mtp_drafter.h"

namespace spate {

// A plan on its way to the ranks: free again when all have launched it.
struct RankGroup::Slot {
  std::vector<std::vector<std::byte>> plans;  // one for each data-parallel index
  std::vector<std::vector<uint32_t>> masks;   // likewise: late ones that have come; empty before that
  bool no_masks_come = false;                 // any more
  std::mutex mutex;
  std::condition_variable masks_have_come;
  std::condition_variable all_launched;
  int num_launching = 0;  // ranks that have not launched it

  void launched() {
    const std::lock_guard lock(mutex);
    if (--num_launching == 0) all_launched.notify_all();
  }
  void wait_until_launched() {
    std::unique_lock lock(mutex);
    all_launched.wait(lock, [this] { return num_launching == 0; });
  }
  void supply_masks(size_t dp_rank, std::span<const uint32_t> words) {
    const std::lock_guard lock(mutex);
    masks[dp_rank].assign(words.begin(), words.end());
    masks_have_come.notify_all();
  }
  void expect_no_masks() {
    const std::lock_guard lock(mutex);
    no_masks_come = true;
    masks_have_come.notify_all();
  }
  std::span<const uint32_t> wait_for_masks(size_t dp_rank) {
    std::unique_lock lock(mutex);
    masks_have_come.wait(lock, [&] { return no_masks_come || !masks[dp_rank].empty(); });
    return masks[dp_rank];
  }
};

// A rank's thread: runs what it is given, in order.
class RankGroup::Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  ~Worker() {
    post([this] { stopping_ = true; });
    thread_.join();
  }

  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }
  // Runs `task` on the thread and waits for its Status.
  std::future<Status> call(std::function<Status()> task) {
    auto packaged = std::make_shared<std::packaged_task<Status()>>(std::move(task));
    std::future<Status> future = packaged->get_future();
    post([packaged] { (*packaged)(); });
    return future;
  }

  // Used by the thread's tasks only.
  std::optional<CoreBinding> binding;
  std::shared_ptr<Device> device;
  std::unique_ptr<Drafter> drafter;  // outlives the rank, which it follows
  std::unique_ptr<Rank> rank;

 private:
  void loop() {
    while (!stopping_) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
    rank.reset();
    drafter.reset();
    device.reset();
    binding.reset();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

// One plan at a time, on the ranks' own threads.
class RankGroup::DraftExecutor final : public LayeredExecutor {
 public:
  explicit DraftExecutor(const std::vector<std::unique_ptr<Worker>>& workers) : workers_(workers) { slot_.plans.resize(1); }
  ~DraftExecutor() override { slot_.wait_until_launched(); }

  int num_layers() const override { return workers_[0]->drafter->num_layers(); }
  void select_layer(int layer_idx) override {
    CHECK(num_in_flight_ == 0 && 0 <= layer_idx && layer_idx < num_layers(), "layer {} of {}, {} steps in flight",
          layer_idx, num_layers(), num_in_flight_);
    layer_idx_ = layer_idx;
  }
  void submit(std::span<const std::byte> plan) override {
    CHECK(num_in_flight_ == 0, "a step of the drafter is in flight already");
    ++num_in_flight_;
    slot_.plans[0].assign(plan.begin(), plan.end());
    slot_.num_launching = static_cast<int>(workers_.size());
    for (const auto& worker : workers_) {
      worker->post([this, drafter = worker->drafter.get()] {
        drafter->launch(slot_.plans[0], layer_idx_);
        slot_.launched();
      });
    }
  }
  void supply_masks(std::span<const uint32_t> /*masks*/) override { CHECK(false, "a drafter samples under no masks"); }
  Status collect(StepResult& result) override {
    CHECK(num_in_flight_ == 1, "no step of the drafter is in flight");
    --num_in_flight_;
    slot_.wait_until_launched();
    return workers_[0]->drafter->finish(result);
  }
  int num_in_flight() const override { return num_in_flight_; }

 private:
  const std::vector<std::unique_ptr<Worker>>& workers_;  // of the group, which owns this
  Slot slot_;
  int layer_idx_ = 0;
  int num_in_flight_ = 0;
};

namespace {

// A format of the checkpoint's codes, and what its matrices are on the device.
struct CodesOnDevice {
  WeightSpec stored, computed;
};

// By the stored format's name.
std::map<std::string, CodesOnDevice> codes_of_checkpoint(const RankGroupConfig& config, const WeightSupport& supports) {
  std::map<std::string, CodesOnDevice> formats;
  if (config.weights == nullptr) return formats;
  const WeightSpec plain{.codes = config.act_dtype == DType::kF32 ? Codes::kF32 : Codes::kBf16};
  for (const TensorEntry& entry : config.weights->entries()) {
    if (!entry.quantized) continue;
    const WeightSpec wanted = config.quantization.with_activations(*entry.quantized);
    formats[weight_spec_name(*entry.quantized)] = {*entry.quantized, runnable_spec(wanted, plain, supports)};
  }
  return formats;
}

// Of the layers' matrices, as they are on the device: "bf16", or the formats of a quantised checkpoint.
std::string linear_formats(const RankGroupConfig& config, const Quantization& wanted,
                           const std::map<std::string, CodesOnDevice>& codes) {
  std::set<std::string> names;
  for (const auto& [stored, format] : codes) names.insert(weight_spec_name(format.computed));
  if (!names.empty()) return fmt::format("{}", fmt::join(names, ", "));
  return wanted.enabled() ? weight_spec_name(wanted.linear) : std::string(dtype_name(config.act_dtype));
}

// What is made of a checkpoint of codes, whose makers left activations in 16 bits: a line for each of its formats.
std::vector<std::string> checkpoint_lines(const RankGroupConfig& config,
                                          const std::map<std::string, CodesOnDevice>& codes) {
  std::vector<std::string> lines;
  for (const auto& [stored, format] : codes) {
    std::string line = fmt::format("{} checkpoint: weights of {} ", config.weights->layout(), stored);
    if (format.computed.stores_as(format.stored)) {
      line += fmt::format("stay so; activations {}", activations_text(format.computed));
      if (format.computed.quantizes_activations()) {
        line += fmt::format(" in their products (--activation-dtype model keeps {})", dtype_name(config.act_dtype));
      }
    } else {
      line += fmt::format("become {}: the {} back-end does not compute with {}", weight_spec_name(format.computed),
                          config.back_end->name, weight_spec_name(config.quantization.with_activations(format.stored)));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

Status check_kv_layers(const Device& device, const std::vector<KvLayerDesc>& groups) {
  for (const KvLayerDesc& desc : groups) {
    if (device.supports_kv(desc)) continue;
    const bool is_latent = desc.kind == KvKind::kLatent;
    if (device.supports_kv({.kind = desc.kind, .dtype = desc.dtype})) {  // but not of this width
      return unimplemented("a {} does not run on {} yet",
                           is_latent ? fmt::format("latent KV cache with kv_lora_rank {} and qk_rope_head_dim {}",
                                                   desc.kv_lora_rank, desc.qk_rope_head_dim)
                                     : fmt::format("KV cache with head_dim {}", desc.head_dim),
                           device.kind());
    }
    return unimplemented("--kv-cache-dtype: a {}KV cache of {} does not run on {} yet", is_latent ? "latent " : "",
                         dtype_name(desc.dtype), device.kind());
  }
  return ok_status();
}

Status check_experts(const Device& device, const ModelConfig& model) {
  if (model.experts.num_experts <= device.max_experts()) return ok_status();
  return unimplemented("{} experts a layer do not run on {} yet, which takes at most {}; use --device {}",
                       model.experts.num_experts, device.kind(), device.max_experts(), host_back_end().name);
}

// 0 without latent attention.
int min_expanded_query_len(const RankGroupConfig& config, const ModelConfig& model, const Device& device) {
  return model.latent.kv_lora_rank > 0 ? device.min_expanded_query_len(latent_shape(model, config.act_dtype)) : 0;
}

OpLimits op_limits(const ModelConfig& model, DType act_dtype, const StepLimits& limits, int min_expanded_query_len,
                   const std::vector<KvLayerDesc>& kv_layers) {
  int64_t max_long_keys = 0;
  if (min_expanded_query_len > 0) {
    const int64_t max_model_len = limits.max_model_len > 0 ? limits.max_model_len : model.max_position_embeddings;
    const int64_t max_seqs = std::min(limits.max_num_seqs, limits.max_num_batched_tokens / min_expanded_query_len);
    max_long_keys = std::min<int64_t>(kMaxLongKeys, max_seqs * max_model_len);
  }
  KvLayerDesc int8_kv;
  for (const KvLayerDesc& layer : kv_layers) {
    const bool is_larger = layer.num_kv_heads * layer.head_dim > int8_kv.num_kv_heads * int8_kv.head_dim;
    if (layer.dtype == DType::kI8 && is_larger) int8_kv = layer;
  }
  const bool has_int8_kv = int8_kv.num_kv_heads > 0;
  return {.max_num_logits = limits.max_num_logits,
          .vocab_size = model.vocab_size,
          .max_num_tokens = model.experts.num_experts > 0 ? limits.max_num_batched_tokens : 0,
          .num_experts_per_tok = model.experts.num_experts_per_tok,
          .hidden_size = model.hidden_size,
          .expert_intermediate_size = model.experts.intermediate_size,
          .has_latent_attention = model.latent.kv_lora_rank > 0,
          .max_long_keys = max_long_keys,
          .num_latent_heads = max_long_keys > 0 ? model.num_heads : 0,
          .latent = max_long_keys > 0 ? latent_shape(model, act_dtype) : LatentShape{},
          .max_num_seqs = has_int8_kv ? limits.max_num_seqs : 0,
          .max_seq_len = has_int8_kv ? limits.max_model_len : 0,
          .int8_kv = int8_kv};
}

// What the model and its drafter launch. A format more than that costs the start some time.
DeviceUse device_use(const RankGroupConfig& config, const std::map<std::string, CodesOnDevice>& codes,
                     const std::vector<KvLayerDesc>& kv_layers, const std::vector<KvLayerDesc>& draft_kv_layers) {
  DeviceUse use{.act_dtype = config.act_dtype, .kv_layers = kv_layers};
  use.kv_layers.insert(use.kv_layers.end(), draft_kv_layers.begin(), draft_kv_layers.end());
  // Formats of codes, then the one of floats, which routers, heads and what is not quantised have.
  for (const auto& [stored, format] : codes) use.weights.push_back(format.computed);
  if (config.quantization.enabled()) {
    use.weights.push_back(config.quantization.linear);
    use.weights.push_back(config.quantization.vocabulary);
  }
  const bool has_codes = !use.weights.empty();
  if (config.model.experts.num_experts > 0) use.expert_weights = use.weights;
  use.weights.push_back({.codes = config.act_dtype == DType::kF32 ? Codes::kF32 : Codes::kBf16});
  const bool has_float_experts = config.model.experts.num_experts > 0 && !has_codes;
  const bool has_draft_experts = config.draft && config.draft->model.experts.num_experts > 0;
  if (has_float_experts || has_draft_experts) use.expert_weights.push_back(use.weights.back());
  return use;
}

// What a drafter takes of one rank's memory.
struct DraftMemory {
  int64_t weight_bytes = 0, workspace_bytes = 0, op_workspace_bytes = 0, scratch_bytes = 0, kv_block_bytes = 0;
};

bool has_drafter(const RankGroupConfig& config) { return config.draft || config.mtp_draft || config.eagle_draft; }

int64_t num_scratch_blocks(const RankGroupConfig& config, const StepLimits& limits) {
  const int blocks_per_row = config.draft       ? config.draft->scratch_blocks_per_row
                             : config.mtp_draft ? config.mtp_draft->scratch_blocks_per_row
                                                : config.eagle_draft->scratch_blocks_per_row;
  return int64_t{limits.max_num_seqs} * blocks_per_row;
}

Status check_mtp_layer(const ModelConfig& model) {
  if (model.num_mtp_layers > 0) return ok_status();
  return invalid_argument(
      "--speculative-config: method mtp needs a layer for multi-token prediction: config.json of {} has no "
      "num_nextn_predict_layers",
      model.architecture);
}

// The layer's weights are among the model's.
DraftMemory memory_of_mtp(const RankGroupConfig& config, const ModelMemory& model, const ModelOptions& options,
                          const Device& device) {
  const HiddenStateDrafter::Memory memory = mtp_drafter_memory(device, config.model, model, options);
  return {.workspace_bytes = memory.workspace_bytes,
          .scratch_bytes = num_scratch_blocks(config, options.limits) * memory.scratch_block_bytes,
          .kv_block_bytes = memory.kv_block_bytes};
}

Result<DraftMemory> memory_of_eagle(const RankGroupConfig& config, const TensorParallel& tp,
                                    const ModelOptions& options, const Device& device) {
  const EagleConfig& head = config.eagle_draft->head;
  Result<ModelMemory> head_memory = EagleHead::memory(head, tp, options);
  if (!head_memory.ok()) return head_memory.status().with_context("--speculative-config: model");
  const HiddenStateDrafter::Memory memory = eagle_drafter_memory(device, head, *head_memory, options);
  return DraftMemory{
      .weight_bytes = head_memory->weight_bytes,
      .workspace_bytes = memory.workspace_bytes,
      .op_workspace_bytes = device.op_workspace_bytes(op_limits(head.layer, config.act_dtype, options.limits, 0, head_memory->kv_layers)),
      .scratch_bytes = num_scratch_blocks(config, options.limits) * memory.scratch_block_bytes,
      .kv_block_bytes = memory.kv_block_bytes};
}

Result<DraftMemory> memory_of_draft(const RankGroupConfig& config, const TensorParallel& tp, const ModelOptions& options,
                                    const StepLimits& limits, const Device& device) {
  Result<ModelMemory> memory = Model::memory(config.draft->model, tp, options);
  if (!memory.ok()) return memory.status().with_context("--speculative-config: model");
  const Status cache = check_kv_layers(device, memory->kv_layers);
  if (!cache.ok()) return cache.with_context("--speculative-config: model");
  DraftMemory draft{.weight_bytes = memory->weight_bytes,
                    .workspace_bytes = memory->workspace_bytes + RunningState::num_bytes(limits),
                    .op_workspace_bytes =
                        device.op_workspace_bytes(op_limits(config.draft->model, config.act_dtype, limits,
                                                            options.min_expanded_query_len, memory->kv_layers)),
                    .kv_block_bytes = kv_block_bytes(device, memory->kv_layers)};
  draft.scratch_bytes = num_scratch_blocks(config, limits) * draft.kv_block_bytes;
  return draft;
}

// All ranks' statuses; the first error wins.
Status wait_all(std::vector<std::future<Status>>& futures) {
  Status first;
  for (std::future<Status>& future : futures) {
    Status status = future.get();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace

RankGroup::RankGroup() {
  for (int i = 0; i < kMaxInFlight; ++i) slots_.push_back(std::make_unique<Slot>());
}

RankGroup::~RankGroup() {
  draft_executor_.reset();
  for (const auto& slot : slots_) slot->expect_no_masks();
  for (const auto& slot : slots_) slot->wait_until_launched();
}

Result<std::unique_ptr<RankGroup>> RankGroup::create(const RankGroupConfig& config, const LoadProgress& progress) {
  const ParallelSizes sizes{.tp = config.tensor_parallel_size, .dp = config.data_parallel_size};
  RETURN_IF_ERROR(check_parallel_sizes(sizes));
  const int size = sizes.num_ranks();
  if (size > config.back_end->max_ranks) {
    return unimplemented("--tensor-parallel-size {}: the {} back-end runs at most {}; use that, or --device {}", size,
                         config.back_end->name, config.back_end->max_ranks, host_back_end().name);
  }
  if (has_drafter(config) && sizes.dp > 1) {
    return unimplemented(
        "--speculative-config: method {} runs beside one copy of the model, not --data-parallel-size {}",
        config.draft       ? "draft_model"
        : config.mtp_draft ? "mtp"
                           : "eagle",
        sizes.dp);
  }
  if (config.mtp_draft) RETURN_IF_ERROR(check_mtp_layer(config.model));
  std::unique_ptr<RankGroup> group(new RankGroup());
  group->sizes_ = sizes;
  for (int r = 0; r < size; ++r) group->workers_.push_back(std::make_unique<Worker>());
  const auto on_all_ranks = [&](const std::function<Status(int, Worker&)>& task) {
    std::vector<std::future<Status>> futures;
    for (int r = 0; r < size; ++r) {
      Worker& worker = *group->workers_[static_cast<size_t>(r)];
      futures.push_back(worker.call([&task, r, &worker] { return task(r, worker); }));
    }
    return wait_all(futures);
  };

  // 1. Devices.
  std::vector<MemoryInfo> memory(static_cast<size_t>(size));
  const int num_cores = static_cast<int>(usable_cores().size());
  const int num_threads =
      std::max(1, (config.device.num_threads > 0 ? config.device.num_threads : default_num_threads()) / size);
  if (config.pin_threads && num_threads * size > num_cores) {
    log_warning("rank", "compute threads are not bound: {} of them, {} cores", num_threads * size, num_cores);
  }
  RETURN_IF_ERROR(on_all_ranks([&](int r, Worker& worker) -> Status {
    DeviceOptions options = config.device;
    options.device_idx += r;
    options.num_threads = num_threads;
    if (config.pin_threads) {
      options.core_ids = cores_of_rank(r, size, num_threads);
    } else if (config.back_end->shares_host_memory) {
      // A rank's memory lies where its threads run.
      worker.binding.emplace(cores_near_rank(usable_topology(), r, size));
    }
    ASSIGN_OR_RETURN(worker.device, config.back_end->make_device(options));
    return ok_status();
  }));
  const Device& first_device = *group->workers_[0]->device;
  group->device_description_ = fmt::format("{}: {}", first_device.kind(), first_device.description());

  // The ranks' devices are of one kind.
  RETURN_IF_ERROR(check_experts(first_device, config.model));
  if (config.draft) RETURN_IF_ERROR(check_experts(first_device, config.draft->model));
  const bool has_experts = config.model.experts.num_experts > 0;
  const auto support_for = [&first_device](bool experts) -> WeightSupport {
    return [&first_device, experts](const WeightSpec& spec) {
      return first_device.supports(spec) && (!experts || first_device.supports_experts(spec));
    };
  };
  const WeightSupport supports = support_for(has_experts);

  Quantization quantization = config.quantization;
  if (quantization.imitates_checkpoint) {
    quantization.linear = runnable_spec(quantization.linear, quantization.vocabulary, supports);
  }
  for (const WeightSpec& spec : {quantization.linear, quantization.vocabulary}) {
    if (!quantization.enabled() || supports(spec)) continue;
    return unimplemented("--quantization: {}weights of {} do not run on {} yet; use a checkpoint's bf16 weights or --device {}",
                         has_experts ? "experts with " : "", weight_spec_name(spec), first_device.kind(),
                         host_back_end().name);
  }


  // 2. The memory plan.
  ModelOptions options{.act_dtype = config.act_dtype,
                       .kv_dtype = config.kv_dtype,
                       .quantization = quantization,
                       .source = config.weights,
                       .supports_weight = supports,
                       .limits = config.limits,
                       .num_mtp_layers = config.mtp_draft ? config.mtp_draft->num_layers : 0,
                       .weight_cache = config.weight_cache,
                       .min_expanded_query_len = min_expanded_query_len(config, config.model, first_device)};
  StepLimits limits = config.limits;
  if (limits.max_model_len == 0) limits.max_model_len = static_cast<int>(config.model.max_position_embeddings);
  MemoryPlanInput plan_input{.shares_memory = config.back_end->shares_host_memory,
                             .limits = config.limits,
                             .model_max_len = config.model.max_position_embeddings,
                             .kv_cache_bytes = config.kv_cache_bytes,
                             .max_kv_cache_bytes = config.max_kv_cache_bytes,
                             .memory_fraction = config.memory_fraction};
  ModelOptions draft_options = options;
  if (config.draft) {
    draft_options.num_mtp_layers = 0;
    draft_options.min_expanded_query_len = min_expanded_query_len(config, config.draft->model, first_device);
    draft_options.quantization = {};  // a small model: as its checkpoint has it
    draft_options.source = config.draft->weights;
    draft_options.supports_weight = support_for(config.draft->model.experts.num_experts > 0);
  }
  if (config.eagle_draft) {
    draft_options.min_expanded_query_len = 0;
    draft_options.quantization = {};  // as its checkpoint has it
    draft_options.source = config.eagle_draft->weights;
    draft_options.supports_weight = support_for(false);
    draft_options.weight_cache = {};
  }
  std::vector<KvLayerDesc> kv_layers, draft_kv_layers;
  if (const Result<ModelMemory> of_model = Model::memory(config.model, place_of(0, sizes).tp, options); of_model.ok()) {
    kv_layers = of_model->kv_layers;
  }
  if (config.draft) {
    const Result<ModelMemory> of_draft = Model::memory(config.draft->model, place_of(0, sizes).tp, draft_options);
    if (of_draft.ok()) draft_kv_layers = of_draft->kv_layers;
  } else if (config.eagle_draft) {
    const Result<ModelMemory> of_head =
        EagleHead::memory(config.eagle_draft->head, place_of(0, sizes).tp, draft_options);
    if (of_head.ok()) draft_kv_layers = of_head->kv_layers;
  }
  const DeviceUse use = device_use(config, codes_of_checkpoint(config, supports), kv_layers, draft_kv_layers);
  const Status ready = on_all_ranks([&](int r, Worker& worker) -> Status {
    RETURN_IF_ERROR(worker.device->prepare(use));
    ASSIGN_OR_RETURN(memory[static_cast<size_t>(r)], worker.device->memory_info());
    return ok_status();
  });
  RETURN_IF_ERROR(ready);
  std::vector<DraftMemory> draft_memory(static_cast<size_t>(size));  // zeros without drafts
  int64_t op_workspace_bytes = 0;                                    // a device's ops share it, whichever model runs
  for (int r = 0; r < size; ++r) {
    Result<ModelMemory> memory_of_model = Model::memory(config.model, place_of(r, sizes).tp, options);
    if (!memory_of_model.ok() && config.mtp_draft) {
      return memory_of_model.status().with_context("--speculative-config: method mtp");
    }
    ASSIGN_OR_RETURN(const ModelMemory model_memory, std::move(memory_of_model));
    RETURN_IF_ERROR(check_kv_layers(first_device, model_memory.kv_layers));
    DraftMemory& draft = draft_memory[static_cast<size_t>(r)];
    if (config.draft) {
      ASSIGN_OR_RETURN(draft, memory_of_draft(config, place_of(r, sizes).tp, draft_options, limits, first_device));
    } else if (config.mtp_draft) {
      ModelOptions limited = options;
      limited.limits = limits;
      draft = memory_of_mtp(config, model_memory, limited, first_device);
    } else if (config.eagle_draft) {
      ModelOptions limited = draft_options;
      limited.limits = limits;
      ASSIGN_OR_RETURN(draft, memory_of_eagle(config, place_of(r, sizes).tp, limited, first_device));
    }
    op_workspace_bytes =
        std::max({op_workspace_bytes, draft.op_workspace_bytes,
                  first_device.op_workspace_bytes(op_limits(config.model, config.act_dtype, limits,
                                                            options.min_expanded_query_len, model_memory.kv_layers))});
    plan_input.ranks.push_back(
        {.free_bytes = memory[static_cast<size_t>(r)].free_bytes,
         .weight_bytes = model_memory.weight_bytes,
         .workspace_bytes = model_memory.workspace_bytes + op_workspace_bytes + RunningState::num_bytes(limits),
         .kv_block_bytes = kv_block_bytes(first_device, model_memory.kv_layers)});
    plan_input.ranks.back().weight_bytes += draft.weight_bytes;
    plan_input.ranks.back().workspace_bytes += draft.workspace_bytes + draft.scratch_bytes;
    plan_input.ranks.back().kv_block_bytes += draft.kv_block_bytes;
  }
  ASSIGN_OR_RETURN(group->memory_plan_, plan_memory(plan_input));
  limits.max_model_len = static_cast<int>(group->memory_plan_.max_model_len);
  options.limits = limits;
  draft_options.limits = limits;
  if (config.draft && config.draft->model.max_position_embeddings < limits.max_model_len) {
    return invalid_argument(
        "--speculative-config: model reaches {} positions, sequences up to {}: use --max-model-len {}, or another draft",
        config.draft->model.max_position_embeddings, limits.max_model_len, config.draft->model.max_position_embeddings);
  }

  // 3. Models and weights.
  std::vector<Device*> devices;
  for (const auto& worker : group->workers_) devices.push_back(worker->device.get());
  ASSIGN_OR_RETURN(std::vector<Communicators> communicators,
                   make_communicators(config.back_end->make_group, sizes, config.collective_time_limit_s, devices));
  std::vector<Communicators> draft_communicators;
  if (has_drafter(config)) {
    ASSIGN_OR_RETURN(draft_communicators,
                     make_communicators(config.back_end->make_group, sizes, config.collective_time_limit_s, devices));
  }
  const Status loaded = on_all_ranks([&](int r, Worker& worker) -> Status {
    ASSIGN_OR_RETURN(worker.rank, Rank::create(worker.device, std::move(communicators[static_cast<size_t>(r)]),
                                               config.model, options, limits));
    if (config.draft) {
      ASSIGN_OR_RETURN(std::unique_ptr<Rank> draft,
                       Rank::create(worker.device, std::move(draft_communicators[static_cast<size_t>(r)]),
                                    config.draft->model, draft_options, limits, 1));
      RETURN_IF_ERROR(config.draft->weights != nullptr ? draft->model().load(*config.draft->weights, {})
                                                       : draft->model().load_dummy(config.dummy_seed, {}));
      worker.drafter = std::make_unique<ModelDrafter>(std::move(draft));
    } else if (config.mtp_draft) {
      ASSIGN_OR_RETURN(worker.drafter,
                       make_mtp_drafter(*worker.rank, std::move(draft_communicators[static_cast<size_t>(r)]), options));
    } else if (config.eagle_draft) {
      Result<std::unique_ptr<Drafter>> drafter =
          make_eagle_drafter(*worker.rank, config.eagle_draft->head,
                             std::move(draft_communicators[static_cast<size_t>(r)]), draft_options, config.dummy_seed);
      if (!drafter.ok()) return drafter.status().with_context("--speculative-config: model");
      worker.drafter = std::move(drafter).value();
    }
    worker.rank->set_follower(worker.drafter.get());
    const LoadProgress report = r == 0 ? progress : LoadProgress();
    Model& model = worker.rank->model();
    RETURN_IF_ERROR(config.weights != nullptr ? model.load(*config.weights, report)
                                              : model.load_dummy(config.dummy_seed, report));
    return ok_status();
  });
  RETURN_IF_ERROR(loaded);

  // 4. KV cache.
  const MemoryPlan& plan = group->memory_plan_;
  RETURN_IF_ERROR(on_all_ranks([&](int r, Worker& worker) {
    const int64_t planned = plan_input.ranks[static_cast<size_t>(r)].kv_block_bytes;
    int64_t block_bytes = worker.rank->kv_block_bytes();
    if (worker.drafter != nullptr) block_bytes += worker.drafter->kv_block_bytes();
    CHECK(block_bytes == planned, "rank {}: a KV block of {} bytes, {} planned", r, block_bytes, planned);
    const Status status = worker.rank->allocate_kv_cache(plan.num_kv_blocks);
    if (worker.drafter == nullptr || !status.ok()) return status;
    return worker.drafter->allocate_kv_cache(plan.num_kv_blocks, num_scratch_blocks(config, limits));
  }));
  if (has_drafter(config)) group->draft_executor_ = std::make_unique<DraftExecutor>(group->workers_);

  Rank& rank = *group->workers_[0]->rank;
  const std::map<std::string, CodesOnDevice> codes = codes_of_checkpoint(config, supports);
  for (const auto& worker : group->workers_) group->weight_bytes_ += worker->rank->model().weight_bytes();
  group->summary_ = {
      fmt::format("device {}{}", group->device_description_, size > 1 ? fmt::format(", {} ranks", size) : ""),
      fmt::format("weights {} of {}, workspace {} and state {} a rank", format_bytes(group->weight_bytes_),
                  linear_formats(config, quantization, codes),
                  format_bytes(rank.model().workspace_bytes() + op_workspace_bytes),
                  format_bytes(RunningState::num_bytes(limits))),
      fmt::format("KV cache {} = {} tokens in {} blocks", format_bytes(plan.kv_cache_bytes),
                  plan.num_kv_blocks * config.limits.kv_block_size, plan.num_kv_blocks),
  };
  if (config.draft) {
    const DraftMemory& draft = draft_memory[0];
    group->summary_.push_back(fmt::format(
        "draft model {}: weights {}, workspace and state {}, {} of each KV block and {} of its own for drafts, a rank",
        config.draft->model.architecture, format_bytes(draft.weight_bytes), format_bytes(draft.workspace_bytes),
        format_bytes(draft.kv_block_bytes), format_bytes(draft.scratch_bytes)));
  }
  if (config.mtp_draft) {
    const DraftMemory& draft = draft_memory[0];
    group->summary_.push_back(fmt::format(
        "multi-token prediction: {}; state {}, {} of each KV block and {} of its own for drafts, a rank",
        config.mtp_draft->num_layers == 1 ? "the model's own layer"
                                          : fmt::format("{} of the model's own layers", config.mtp_draft->num_layers),
        format_bytes(draft.workspace_bytes), format_bytes(draft.kv_block_bytes), format_bytes(draft.scratch_bytes)));
  }
  if (config.eagle_draft) {
    const DraftMemory& draft = draft_memory[0];
    group->summary_.push_back(fmt::format(
        "EAGLE head of {} tokens: weights {}, workspace and state {}, {} of each KV block and {} of its own for "
        "drafts, a rank",
        config.eagle_draft->head.draft_vocab_size, format_bytes(draft.weight_bytes),
        format_bytes(draft.workspace_bytes), format_bytes(draft.kv_block_bytes), format_bytes(draft.scratch_bytes)));
  }
  for (std::string& line : checkpoint_lines(config, codes)) group->summary_.push_back(std::move(line));
  std::string decomposed;
  for (const std::string& op : rank.decomposed_ops()) decomposed += (decomposed.empty() ? "" : ", ") + op;
  if (!decomposed.empty()) group->summary_.push_back("ops run as decompositions: " + decomposed);
  return group;
}

void RankGroup::submit(std::span<const std::byte> plan) { submit(std::span(&plan, 1)); }

void RankGroup::submit(std::span<const std::span<const std::byte>> plans) {
  CHECK(num_in_flight() < kMaxInFlight, "{} steps are in flight already", num_in_flight());
  CHECK(static_cast<int>(plans.size()) == sizes_.dp, "{} plans for a data parallel size of {}", plans.size(), sizes_.dp);
  Slot& slot = *slots_[num_submitted_++ % kMaxInFlight];
  slot.plans.resize(plans.size());
  for (size_t d = 0; d < plans.size(); ++d) slot.plans[d].assign(plans[d].begin(), plans[d].end());
  slot.masks.assign(plans.size(), {});
  slot.num_launching = static_cast<int>(workers_.size());  // the step before it here was collected: nobody else looks
  for (size_t r = 0; r < workers_.size(); ++r) {
    const auto dp_rank = static_cast<size_t>(place_of(static_cast<int>(r), sizes_).dp.rank);
    workers_[r]->post([&slot, dp_rank, rank = workers_[r]->rank.get()] {
      rank->launch(slot.plans[dp_rank], {}, [&slot, dp_rank] { return slot.wait_for_masks(dp_rank); });
      slot.launched();
    });
  }
}

void RankGroup::supply_masks(std::span<const uint32_t> masks) { supply_masks(0, masks); }

void RankGroup::supply_masks(int dp_rank, std::span<const uint32_t> masks) {
  // The ranks copy them to where those of the step before may still be read until it is collected.
  CHECK(num_in_flight() == 1 && !masks.empty(), "{} words of masks for {} steps in flight", masks.size(),
        num_in_flight());
  slots_[(num_submitted_ - 1) % kMaxInFlight]->supply_masks(static_cast<size_t>(dp_rank), masks);
}

Status RankGroup::collect(StepResult& result) { return collect(std::span(&result, 1)); }

// The step's event is waited for here, by the engine's thread: the ranks' own threads are free to launch the next step
// meanwhile.
Status RankGroup::collect(std::span<StepResult> results) {
  CHECK(num_in_flight() > 0, "nothing is in flight");
  CHECK(static_cast<int>(results.size()) == sizes_.dp, "{} results for a data parallel size of {}", results.size(), sizes_.dp);
  slots_[num_collected_++ % kMaxInFlight]->wait_until_launched();
  Status first;
  for (size_t r = 0; r < workers_.size(); ++r) {
    const Place place = place_of(static_cast<int>(r), sizes_);
    if (place.tp.rank != 0) continue;
    const Status status = workers_[r]->rank->finish(results[static_cast<size_t>(place.dp.rank)]);
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace spate
