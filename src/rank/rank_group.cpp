#include "rank/rank_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/cpu_cores.h"
#include "base/log.h"
#include "parallel/communicators.h"

namespace spate {

// A plan on its way to the ranks: free again when all have launched it.
struct RankGroup::Slot {
  std::vector<std::vector<std::byte>> plans;  // one for each data-parallel index
  std::mutex mutex;
  std::condition_variable all_launched;
  int num_launching = 0;  // ranks that have not launched it

  void wait_until_launched() {
    std::unique_lock lock(mutex);
    all_launched.wait(lock, [this] { return num_launching == 0; });
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
  std::unique_ptr<Device> device;
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
    device.reset();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
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
std::string linear_formats(const RankGroupConfig& config, const std::map<std::string, CodesOnDevice>& codes) {
  std::set<std::string> names;
  for (const auto& [stored, format] : codes) names.insert(weight_spec_name(format.computed));
  if (!names.empty()) return fmt::format("{}", fmt::join(names, ", "));
  const Quantization& wanted = config.quantization;
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
    return unimplemented("--kv-cache-dtype: a {}KV cache of {} does not run on {} yet",
                         desc.kind == KvKind::kLatent ? "latent " : "", dtype_name(desc.dtype), device.kind());
  }
  return ok_status();
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
  const int num_threads = std::max(1, (config.device.num_threads > 0 ? config.device.num_threads : num_cores) / size);
  if (config.pin_threads && num_threads * size > num_cores) {
    log_warning("rank", "compute threads are not bound: {} of them, {} cores", num_threads * size, num_cores);
  }
  RETURN_IF_ERROR(on_all_ranks([&](int r, Worker& worker) -> Status {
    DeviceOptions options = config.device;
    options.device_idx += r;
    options.num_threads = num_threads;
    if (config.pin_threads) options.core_ids = cores_of_rank(r, size, num_threads);
    ASSIGN_OR_RETURN(worker.device, config.back_end->make_device(options));
    ASSIGN_OR_RETURN(memory[static_cast<size_t>(r)], worker.device->memory_info());
    return ok_status();
  }));
  const Device& first_device = *group->workers_[0]->device;
  group->device_description_ = fmt::format("{}: {}", first_device.kind(), first_device.description());

  // The ranks' devices are of one kind.
  const bool has_experts = config.model.experts.num_experts > 0;
  const WeightSupport supports = [&first_device, has_experts](const WeightSpec& spec) {
    return first_device.supports(spec) && (!has_experts || first_device.supports_experts(spec));
  };

  const Quantization& quantization = config.quantization;
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
                       .limits = config.limits};
  StepLimits limits = config.limits;
  if (limits.max_model_len == 0) limits.max_model_len = static_cast<int>(config.model.max_position_embeddings);
  MemoryPlanInput plan_input{.shares_memory = config.back_end->shares_host_memory,
                             .limits = config.limits,
                             .model_max_len = config.model.max_position_embeddings,
                             .kv_cache_bytes = config.kv_cache_bytes,
                             .max_kv_cache_bytes = config.max_kv_cache_bytes,
                             .memory_fraction = config.memory_fraction};
  const int64_t op_workspace_bytes = first_device.op_workspace_bytes(
      {.max_num_logits = config.limits.max_num_logits,
       .vocab_size = config.model.vocab_size,
       .max_num_tokens = has_experts ? config.limits.max_num_batched_tokens : 0,
       .num_experts_per_tok = config.model.experts.num_experts_per_tok,
       .hidden_size = config.model.hidden_size,
       .expert_intermediate_size = config.model.experts.intermediate_size,
       .has_latent_attention = config.model.latent.kv_lora_rank > 0});
  for (int r = 0; r < size; ++r) {
    ASSIGN_OR_RETURN(const ModelMemory model_memory, Model::memory(config.model, place_of(r, sizes).tp, options));
    RETURN_IF_ERROR(check_kv_layers(first_device, model_memory.kv_layers));
    plan_input.ranks.push_back(
        {.free_bytes = memory[static_cast<size_t>(r)].free_bytes,
         .weight_bytes = model_memory.weight_bytes,
         .workspace_bytes = model_memory.workspace_bytes + op_workspace_bytes + RunningState::num_bytes(limits),
         .kv_block_bytes = kv_block_bytes(first_device, model_memory.kv_layers)});
  }
  ASSIGN_OR_RETURN(group->memory_plan_, plan_memory(plan_input));
  limits.max_model_len = static_cast<int>(group->memory_plan_.max_model_len);
  options.limits = limits;

  // 3. Models and weights.
  std::vector<Device*> devices;
  for (const auto& worker : group->workers_) devices.push_back(worker->device.get());
  ASSIGN_OR_RETURN(std::vector<Communicators> communicators,
                   make_communicators(config.back_end->make_group, sizes, config.collective_time_limit_s, devices));
  const Status loaded = on_all_ranks([&](int r, Worker& worker) -> Status {
    ASSIGN_OR_RETURN(worker.rank, Rank::create(std::move(worker.device), std::move(communicators[static_cast<size_t>(r)]),
                                               config.model, options, limits));
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
    const int64_t block_bytes = worker.rank->kv_block_bytes(), planned = plan_input.ranks[static_cast<size_t>(r)].kv_block_bytes;
    CHECK(block_bytes == planned, "rank {}: a KV block of {} bytes, {} planned", r, block_bytes, planned);
    return worker.rank->allocate_kv_cache(plan.num_kv_blocks);
  }));

  Rank& rank = *group->workers_[0]->rank;
  const std::map<std::string, CodesOnDevice> codes = codes_of_checkpoint(config, supports);
  for (const auto& worker : group->workers_) group->weight_bytes_ += worker->rank->model().weight_bytes();
  group->summary_ = {
      fmt::format("device {}{}", group->device_description_, size > 1 ? fmt::format(", {} ranks", size) : ""),
      fmt::format("weights {} of {}, workspace {} and state {} a rank", format_bytes(group->weight_bytes_),
                  linear_formats(config, codes), format_bytes(rank.model().workspace_bytes() + op_workspace_bytes),
                  format_bytes(RunningState::num_bytes(limits))),
      fmt::format("KV cache {} = {} tokens in {} blocks", format_bytes(plan.kv_cache_bytes),
                  plan.num_kv_blocks * config.limits.kv_block_size, plan.num_kv_blocks),
  };
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
  slot.num_launching = static_cast<int>(workers_.size());  // the step before it here was collected: nobody else looks
  for (size_t r = 0; r < workers_.size(); ++r) {
    const auto dp_rank = static_cast<size_t>(place_of(static_cast<int>(r), sizes_).dp.rank);
    workers_[r]->post([&slot, dp_rank, rank = workers_[r]->rank.get()] {
      rank->launch(slot.plans[dp_rank]);
      const std::lock_guard lock(slot.mutex);
      if (--slot.num_launching == 0) slot.all_launched.notify_all();
    });
  }
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
