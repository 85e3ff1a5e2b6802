#include "backend/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/attention/attention_paged.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/kv/kv_layout.h"
#include "backend/cuda/kernel/latent/latent.h"
#include "backend/cuda/kernel/latent/latent_expanded.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/step/step.h"
#include "backend/cuda/kernel_compiler.h"
#include "backend/cuda/kernel_worker.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/warm_programs.h"
#include "base/log.h"

namespace spate {

namespace cuda {
namespace {

// Of each GPU: whether a device of this process has the right to kernels whose CTAs wait for each other. Two at once
// could each hold SMs that the other waits for.
std::array<std::atomic_flag, 64> grid_barrier_rights;

bool has_all_ahead_of_time(const GpuFacts& gpu, const std::string& kernel_dir) {
  const Result<KernelSources> sources = KernelSources::load(kernel_dir);
  const std::string architecture = architecture_name(gpu.capability_major, gpu.capability_minor);
  return sources.ok() && std::ranges::all_of(programs_for(architecture), [&](std::string_view program) {
           return is_ahead_of_time(*sources, program, architecture);
         });
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Device>> make_cuda_device(const DeviceOptions& options) {
  return cuda::CudaDevice::make(options);
}

std::optional<int> run_cuda_worker(int argc, char** argv) { return cuda::run_kernel_worker(argc, argv); }

Status probe_cuda_device(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const cuda::DriverApi* api, cuda::driver_api());
  ASSIGN_OR_RETURN(const cuda::GpuFacts gpu, cuda::find_gpu(*api, options.device_idx));
  const Status compiler = cuda::nvrtc_api().status();
  return compiler.ok() || cuda::has_all_ahead_of_time(gpu, options.kernel_dir) ? ok_status() : compiler;
}

namespace cuda {
namespace {

constexpr int kMinCapabilityMajor = 8;  // mma.sync and conversions of bf16
constexpr int64_t kMib = 1 << 20;

CUdeviceptr address_of(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

CUstream handle_of(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

}  // namespace

// --- context and stream --------------------------------------------------------------------------------------------

Result<GpuFacts> find_gpu(const DriverApi& api, int device_idx) {
  int num_devices = 0;
  if (const CUresult error = api.cuDeviceGetCount(&num_devices); error != CUDA_SUCCESS || num_devices == 0) {
    return unavailable("no CUDA device: the driver sees no GPU");
  }
  if (device_idx < 0 || device_idx >= num_devices) {
    return invalid_argument("CUDA device {} does not exist: the driver sees {}, numbered from 0", device_idx,
                            num_devices);
  }
  GpuFacts gpu;
  char name[128] = "";
  const auto ask = [&](int& value, CUdevice_attribute attribute) {
    return api.cuDeviceGetAttribute(&value, attribute, gpu.device);
  };
  CUresult error = api.cuDeviceGet(&gpu.device, device_idx);
  if (error == CUDA_SUCCESS) error = ask(gpu.capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  if (error == CUDA_SUCCESS) error = ask(gpu.capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  if (error == CUDA_SUCCESS) error = ask(gpu.num_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  if (error == CUDA_SUCCESS) error = ask(gpu.max_shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  if (error == CUDA_SUCCESS) error = api.cuDeviceGetName(name, sizeof name, gpu.device);
  if (error != CUDA_SUCCESS) {
    return unavailable("CUDA device {} cannot be asked for its properties: {}", device_idx, driver_error(api, error));
  }
  gpu.name = name;
  if (gpu.capability_major < kMinCapabilityMajor) {
    return unimplemented("CUDA device {} ({}) has compute capability {}.{}; {}.0 or later is needed", device_idx, name,
                         gpu.capability_major, gpu.capability_minor, kMinCapabilityMajor);
  }
  return gpu;
}

Result<std::unique_ptr<Context>> Context::open(const DriverApi& api, const GpuFacts& gpu) {
  CUcontext handle = nullptr;
  if (const CUresult error = api.cuDevicePrimaryCtxRetain(&handle, gpu.device); error != CUDA_SUCCESS) {
    return unavailable("the CUDA device {} cannot be used: {}; --device cpu runs without it", gpu.name,
                       driver_error(api, error));
  }
  return std::make_unique<Context>(api, gpu.device, handle);
}

Context::~Context() { api_.cuDevicePrimaryCtxRelease(device_); }

void Context::make_current() const { check_driver(api_, api_.cuCtxSetCurrent(handle_), "cuCtxSetCurrent"); }

CudaStream::CudaStream(CudaDevice& device) : Stream(device), cuda_device_(device) {
  device.make_current();
  check_driver(device.api(), device.api().cuStreamCreate(&handle_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

bool CudaStream::has_settled(const void* kv) const {
  const auto written = kv_written_.find(kv);
  return num_ended_ >= step_written_ && (written == kv_written_.end() || num_ended_ >= written->second);
}

void CudaStream::note_launch(bool is_early, bool writes_step) {
  if (!is_early) num_ended_ = num_launches_;
  ++num_launches_;
  if (writes_step) step_written_ = num_launches_;
}

CudaStream::~CudaStream() {
  cuda_device_.make_current();
  cuda_device_.api().cuStreamDestroy(handle_);
}

CudaEvent::CudaEvent(CudaDevice& device) : device_(device) {
  device.make_current();
  check_driver(device.api(), device.api().cuEventCreate(&handle_, 0), "cuEventCreate");
}

CudaEvent::~CudaEvent() {
  device_.make_current();
  device_.api().cuEventDestroy(handle_);
}

void CudaEvent::record(Stream& stream) {
  device_.make_current();
  check_driver(device_.api(), device_.api().cuEventRecord(handle_, handle_of(stream)), "cuEventRecord");
}

void CudaEvent::stream_wait(Stream& stream) {
  device_.make_current();
  check_driver(device_.api(), device_.api().cuStreamWaitEvent(handle_of(stream), handle_, 0), "cuStreamWaitEvent");
}

void CudaEvent::host_wait() {
  device_.make_current();
  check_driver(device_.api(), device_.api().cuEventSynchronize(handle_), "the work before an event");
}

double CudaEvent::seconds_since(const Event& earlier) const {
  device_.make_current();
  float milliseconds = 0;
  const CUevent start = static_cast<const CudaEvent&>(earlier).handle_;
  check_driver(device_.api(), device_.api().cuEventElapsedTime(&milliseconds, start, handle_), "cuEventElapsedTime");
  return milliseconds * 1e-3;
}

// --- start-up ------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Device>> CudaDevice::make(const DeviceOptions& options) {
  install_failure_hook();
  ASSIGN_OR_RETURN(const DriverApi* api, driver_api());
  ASSIGN_OR_RETURN(const GpuFacts gpu, find_gpu(*api, options.device_idx));
  ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::open(*api, gpu));
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(context)));
  device->make_current();
  device->is_deterministic_ = options.deterministic;
  RETURN_IF_ERROR(device->describe(gpu));
  RETURN_IF_ERROR(device->modules_.open(options.kernel_dir, device->architecture_, device->max_shared_bytes_));
  RETURN_IF_ERROR(device->read_tile_table(gpu));
  RETURN_IF_ERROR(device->allocate_shared_state());
  device->ops_ = cuda_ops();
  if (!device->is_deterministic_ && options.device_idx < std::ssize(grid_barrier_rights)) {
    std::atomic_flag& right = grid_barrier_rights[static_cast<size_t>(options.device_idx)];
    if (!right.test_and_set()) device->grid_barrier_right_ = &right;
  }
  return std::unique_ptr<Device>(std::move(device));
}

Status CudaDevice::describe(const GpuFacts& gpu) {
  architecture_ = architecture_name(gpu.capability_major, gpu.capability_minor);
  num_sms_ = gpu.num_sms;
  max_shared_bytes_ = gpu.max_shared_bytes;
  launches_early_ = gpu.capability_major >= 9 && api().cuLaunchKernelEx != nullptr;
  ASSIGN_OR_RETURN(const MemoryInfo memory, memory_info());
  description_ = fmt::format("{}, {}, {} GiB", gpu.name, architecture_, memory.total_bytes / (1024 * kMib));
  return {};
}

Status CudaDevice::prepare(const DeviceUse& use) {
  const auto start = std::chrono::steady_clock::now();
  const std::set<std::string> words = use_words(use, modules_.program_architecture(), is_deterministic_);
  ASSIGN_OR_RETURN(const std::vector<std::string_view> programs,
                   warm_programs(modules_.sources(), modules_.program_architecture(), words));
  make_current();
  RETURN_IF_ERROR(modules_.load(programs));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const Result<const NvrtcApi*> nvrtc = nvrtc_api();
  log_info("cuda", "{} of {} programs of kernels for {} ready in {:.2f} s ({})", programs.size(),
           programs_for(modules_.program_architecture()).size(), architecture_, seconds.count(),
           nvrtc.ok() ? fmt::format("{}, {}", compiler_name(**nvrtc), (*nvrtc)->path) : "compiled ahead of time");
  return {};
}

// A step of a key runs before it is captured, so that a capture finds its kernels loaded. One that does not is given
// up, and the step runs as it is.
bool CudaDevice::load(KernelId kernel) const {
  if (modules_.is_loaded(kernel)) return true;
  if (graphs_.is_capturing()) {
    graphs_.give_up_capture();
    return false;
  }
  const std::string_view program = kKernels[kernel.idx].program;
  const auto start = std::chrono::steady_clock::now();
  make_current();
  const Status status = modules_.load(program);
  CHECK(status.ok(), "{}", status.message());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (seconds.count() > 0.1)
    log_info("cuda", "{} was made ready at its first use, in {:.1f} s", program, seconds.count());
  return true;
}

bool CudaDevice::has(KernelId kernel) const {
  const KernelModules::Has has = modules_.has(kernel);
  if (has != KernelModules::Has::kUnknown) return has == KernelModules::Has::kYes;
  return load(kernel) && modules_.function(kernel) != nullptr;
}

Status CudaDevice::allocate_shared_state() {
  if (!has(kernel_id("linear_wgmma_n8"))) return {};
  const size_t num_ctas = static_cast<size_t>(num_sms_);
  ASSIGN_OR_RETURN(partial_sums_,
                   allocate(num_ctas * kWgmmaMaxTileTokens * kWgmmaTileRows * sizeof(float), MemoryKind::kDevice));
  ASSIGN_OR_RETURN(partial_flags_,
                   allocate((2 * num_ctas + kExpertStreamArrivals) * sizeof(uint32_t), MemoryKind::kDevice));
  ASSIGN_OR_RETURN(work_counters_, allocate((2 + kExpertChainMaxExperts) * sizeof(uint64_t), MemoryKind::kDevice));
  const std::unique_ptr<Stream> stream = create_stream();
  fill_bytes(*stream, partial_flags_.data(), 0, partial_flags_.bytes());
  fill_bytes(*stream, work_counters_.data(), 0, work_counters_.bytes());
  synchronize(*stream);
  return {};
}

CudaDevice::~CudaDevice() {
  make_current();
  graphs_.clear();
  if (grid_barrier_right_ != nullptr) grid_barrier_right_->clear();
  partial_sums_.reset();
  partial_flags_.reset();
  work_counters_.reset();
  workspace_.reset();
  pack_buffer_.reset();
  pack_staging_.reset();
  integer_scratch_buffer_.reset();
  outlier_scratch_buffer_.reset();
  pack_stream_.reset();
}

// --- memory and copies ---------------------------------------------------------------------------------------------

Result<MemoryInfo> CudaDevice::memory_info() {
  make_current();
  size_t free_bytes = 0, total_bytes = 0;
  if (const CUresult error = api().cuMemGetInfo(&free_bytes, &total_bytes); error != CUDA_SUCCESS) {
    return unavailable("the memory of the CUDA device is not known: {}", driver_error(api(), error));
  }
  return MemoryInfo{.total_bytes = static_cast<int64_t>(total_bytes), .free_bytes = static_cast<int64_t>(free_bytes)};
}

Result<Buffer> CudaDevice::allocate(size_t bytes, MemoryKind kind) {
  make_current();
  const size_t bytes_or_one = bytes == 0 ? 1 : bytes;  // the driver refuses zero
  void* data = nullptr;
  CUresult error = CUDA_SUCCESS;
  if (kind == MemoryKind::kDevice) {
    CUdeviceptr address = 0;
    error = api().cuMemAlloc(&address, bytes_or_one);
    data = reinterpret_cast<void*>(address);
  } else {
    error = api().cuMemHostAlloc(&data, bytes_or_one, CU_MEMHOSTALLOC_PORTABLE);
  }
  if (error == CUDA_SUCCESS) {
    if (kind == MemoryKind::kPinnedHost) {
      const std::lock_guard lock(pinned_mutex_);
      pinned_[reinterpret_cast<uintptr_t>(data)] = bytes;
    }
    return Buffer(data, bytes, kind, this);
  }
  CHECK(error == CUDA_ERROR_OUT_OF_MEMORY, "CUDA: an allocation of {} bytes failed with {}", bytes,
        driver_error(api(), error));
  if (kind == MemoryKind::kPinnedHost)
    return resource_exhausted("cannot pin {:.1f} MiB of host memory", bytes / (kMib * 1.0));
  ASSIGN_OR_RETURN(const MemoryInfo memory, memory_info());
  return resource_exhausted("cannot allocate {:.1f} MiB on {}: {:.1f} of {:.1f} MiB are free", bytes / (kMib * 1.0),
                            description_, static_cast<double>(memory.free_bytes) / kMib,
                            static_cast<double>(memory.total_bytes) / kMib);
}

void CudaDevice::deallocate(void* data, size_t, MemoryKind kind) noexcept {
  make_current();
  if (kind == MemoryKind::kPinnedHost) {
    const std::lock_guard lock(pinned_mutex_);
    pinned_.erase(reinterpret_cast<uintptr_t>(data));
  }
  const CUresult error = kind == MemoryKind::kDevice ? api().cuMemFree(address_of(data)) : api().cuMemFreeHost(data);
  // A static object may outlive the driver: its memory went with the process's context.
  if (error != CUDA_ERROR_DEINITIALIZED) check_driver(api(), error, "freeing memory");
}

std::unique_ptr<Stream> CudaDevice::create_stream() { return std::make_unique<CudaStream>(*this); }

bool CudaDevice::copies_words(const void* host, const void* device, size_t bytes) const {
  constexpr size_t kMaxBytes = 1 << 16;
  const auto at = reinterpret_cast<uintptr_t>(host);
  if (bytes > kMaxBytes || (at | reinterpret_cast<uintptr_t>(device) | bytes) % sizeof(uint32_t) != 0) return false;
  if (!modules_.is_loaded(kernel_id("copy_words"))) return false;
  const std::lock_guard lock(pinned_mutex_);
  const auto behind = pinned_.upper_bound(at);
  if (behind == pinned_.begin()) return false;
  const auto& [begin, size] = *std::prev(behind);
  return at + bytes <= begin + size;
}

void CudaDevice::copy_words(Stream& stream, void* dst, const void* src, size_t bytes) {
  constexpr int kThreads = 128;
  const CopyWordsKernelParams params{.from = static_cast<const uint32_t*>(src),
                                     .to = static_cast<uint32_t*>(dst),
                                     .num_words = static_cast<int32_t>(bytes / sizeof(uint32_t))};
  launch(stream, kernel_id("copy_words"), {.x = ceil_div(params.num_words, kThreads), .num_threads = kThreads}, params,
         {{"num_words", params.num_words}});
}

void CudaDevice::copy_to_device(Stream& stream, void* dst, const void* src_host, size_t bytes) {
  if (bytes == 0) return;
  if (copies_words(src_host, dst, bytes)) return copy_words(stream, dst, src_host, bytes);
  make_current();
  check_driver(api(), api().cuMemcpyHtoDAsync(address_of(dst), src_host, bytes, handle_of(stream)), "copy_to_device");
}

void CudaDevice::copy_to_host(Stream& stream, void* dst_host, const void* src, size_t bytes) {
  if (bytes == 0) return;
  if (copies_words(dst_host, src, bytes)) return copy_words(stream, dst_host, src, bytes);
  make_current();
  check_driver(api(), api().cuMemcpyDtoHAsync(dst_host, address_of(src), bytes, handle_of(stream)), "copy_to_host");
}

void CudaDevice::fill_bytes(Stream& stream, void* dst, int byte, size_t bytes) {
  if (bytes == 0) return;
  make_current();
  check_driver(api(),
               api().cuMemsetD8Async(address_of(dst), static_cast<unsigned char>(byte), bytes, handle_of(stream)),
               "fill_bytes");
}

void CudaDevice::synchronize(Stream& stream) {
  make_current();
  check_driver(api(), api().cuStreamSynchronize(handle_of(stream)), "the work of a stream");
  static_cast<CudaStream&>(stream).note_end();
}

void* CudaDevice::workspace(size_t bytes) {
  if (bytes > workspace_.bytes()) {
    graphs_.clear();
    workspace_.reset();  // waits for the ops that still use it
    Result<Buffer> larger = allocate(bytes, MemoryKind::kDevice);
    CHECK(larger.ok(), "the workspace of an op: {}", larger.status().message());
    workspace_ = std::move(larger).value();
  }
  return workspace_.data();
}

void CudaDevice::run_step(Stream& stream, const StepKey& key, const std::function<void()>& step) {
  graphs_.run(static_cast<CudaStream&>(stream), key, step);
}

int64_t CudaDevice::op_workspace_bytes(const OpLimits& limits) const {
  const bool may_expand_kv = !is_deterministic_ && has(kernel_id("attention_prefill_wgmma_int8_d128"));
  return std::max({sample_workspace_bytes(limits.max_num_logits, limits.vocab_size), expert_workspace_bytes(limits),
                   limits.has_latent_attention ? latent_workspace_bytes(num_sms_) : 0,
                   limits.max_long_keys > 0 ? expanded_workspace_bytes(limits.max_long_keys) : 0,
                   may_expand_kv ? prefill_workspace_bytes(limits) : 0});
}

int CudaDevice::min_expanded_query_len(const LatentShape& shape) const {
  const bool fits = shape.kv_lora_rank == kLatentRank && shape.qk_nope_head_dim == kExpandedNopeDim &&
                    shape.qk_rope_head_dim == kExpandedRopeDim && shape.v_head_dim == kExpandedValueDim &&
                    shape.act_dtype == DType::kBf16;
  return fits && !is_deterministic_ && has(kernel_id("attention_latent_expanded_wgmma")) ? kExpandedMinQueryLen : 0;
}

bool CudaDevice::supports_kv(const KvLayerDesc& desc) const {
  if (desc.head_dim > kAttentionMaxHeadDim || desc.kv_lora_rank > kLatentMaxRank ||
      desc.latent_width() > kLatentMaxWidth) {
    return false;
  }
  return desc.dtype == DType::kF32 || desc.dtype == DType::kBf16 || desc.dtype == DType::kI8;
}

int64_t CudaDevice::kv_block_bytes(const KvLayerDesc& desc) const {
  if (desc.kind == KvKind::kLatent) {
    if (desc.dtype == DType::kI8) return latent_codes_block_bytes(desc.kv_block_size, desc.latent_width());
    return desc.kv_block_size * padded_head_dim(desc.latent_width()) * dtype_bytes(desc.dtype);
  }
  const int64_t rows = 2 * desc.num_kv_heads * desc.kv_block_size;
  if (desc.dtype == DType::kI8) {
    return rows * (padded_head_dim(desc.head_dim, true) + static_cast<int64_t>(sizeof(float)));
  }
  return rows * padded_head_dim(desc.head_dim) * dtype_bytes(desc.dtype);
}

}  // namespace cuda
}  // namespace spate
