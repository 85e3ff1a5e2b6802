#include "backend/cuda/kernel_modules.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/kernel_compiler.h"
#include "backend/cuda/kernel_worker.h"
#include "base/log.h"

namespace spate::cuda {
namespace {

// Of static shared memory, which the kernel list does not know, at most.
constexpr int kMaxStaticSharedBytes = 16 << 10;

// From the cache, or from `workers`; compiles what they lack. nvrtc: an error where there is none.
Result<std::string> cubin_of(const Result<const NvrtcApi*>& nvrtc, const KernelSources& sources,
                             std::string_view program, std::string_view architecture, const CubinCache& workers) {
  const CubinCache cache(CubinCache::default_folder());
  ASSIGN_OR_RETURN(const std::string key_ahead_of_time, program_key(kAheadOfTime, sources, program, architecture));
  if (std::optional<std::string> cubin = cache.find(key_ahead_of_time)) return *std::move(cubin);
  if (!nvrtc.ok()) return nvrtc.status();
  ASSIGN_OR_RETURN(const std::string key, program_key(compiler_name(**nvrtc), sources, program, architecture));
  if (std::optional<std::string> cubin = cache.find(key)) return *std::move(cubin);
  if (std::optional<std::string> cubin = workers.find(key)) return *std::move(cubin);
  ASSIGN_OR_RETURN(CompiledProgram compiled, compile_program(**nvrtc, sources, program, architecture));
  cache.store(key, compiled.cubin);
  return std::move(compiled.cubin);
}

}  // namespace

bool is_ahead_of_time(const KernelSources& sources, std::string_view program, std::string_view architecture) {
  const Result<std::string> key = program_key(kAheadOfTime, sources, program, architecture);
  return key.ok() && CubinCache(CubinCache::default_folder()).find(*key).has_value();
}

KernelModules::~KernelModules() {
  for (CUmodule module : modules_) api_.cuModuleUnload(module);
}

Status KernelModules::open(const std::string& kernel_dir, const std::string& architecture, int max_shared_bytes) {
  kernel_dir_ = kernel_dir;
  architecture_ = architecture;
  max_shared_bytes_ = max_shared_bytes;
  ASSIGN_OR_RETURN(sources_, KernelSources::load(kernel_dir));
  return ok_status();
}

std::string_view KernelModules::program_architecture() const {
  return api_.cuTensorMapEncodeTiled != nullptr ? std::string_view(architecture_) : std::string_view();
}

Status KernelModules::load(std::span<const std::string_view> programs) {
  std::vector<std::string_view> wanted, to_compile;
  std::ranges::copy_if(programs, std::back_inserter(wanted),
                       [&](std::string_view program) { return !loaded_.contains(program); });
  std::ranges::copy_if(wanted, std::back_inserter(to_compile),
                       [&](std::string_view program) { return !is_ahead_of_time(sources_, program, architecture_); });
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  CompileJob job{.architecture = architecture_, .kernel_dir = kernel_dir_, .folder = CubinCache::default_folder()};
  std::optional<WorkerFolder> folder;
  if (const std::vector<std::string_view> missing = programs_for_workers(to_compile, job); missing.size() > 1) {
    job.folder = folder.emplace(job.folder).path();
    compile_in_workers(missing, job);
  }
  const Result<const NvrtcApi*> nvrtc = nvrtc_api();
  for (const std::string_view program : wanted) {
    ASSIGN_OR_RETURN(const std::string cubin,
                     cubin_of(nvrtc, sources_, program, architecture_, CubinCache(job.folder)));
    RETURN_IF_ERROR(load_cubin(program, cubin));
  }
  return ok_status();
}

Status KernelModules::load_cubin(std::string_view program, const std::string& cubin) {
  CUmodule module = nullptr;
  if (const CUresult error = api_.cuModuleLoadData(&module, cubin.data()); error != CUDA_SUCCESS) {
    int version = 0;
    api_.cuDriverGetVersion(&version);
    return unavailable("the driver (CUDA {}.{}) does not load {}: {}", version / 1000, version % 1000 / 10, program,
                       driver_error(api_, error));
  }
  modules_.push_back(module);
  for (int i = 0; i < kNumKernels; ++i) {
    if (kKernels[i].program != program) continue;
    loaded_.insert(kKernels[i].program);
    is_loaded_[static_cast<size_t>(i)] = true;
    CUfunction& function = functions_[static_cast<size_t>(i)];
    if (api_.cuModuleGetFunction(&function, module, kKernels[i].function) != CUDA_SUCCESS) {
      return internal_error("{} has no kernel {}", program, kKernels[i].function);
    }
    const int shared_bytes = kKernels[i].shared_bytes;
    if (shared_bytes > 0 && api_.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                    shared_bytes) != CUDA_SUCCESS) {
      function = nullptr;
    }
  }
  return {};
}

KernelModules::Has KernelModules::has(KernelId kernel) const {
  const KernelInfo& info = kKernels[kernel.idx];
  if (info.is_for_hopper && program_architecture() != kHopper) return Has::kNo;
  if (is_loaded(kernel)) return function(kernel) != nullptr ? Has::kYes : Has::kNo;
  // What is for Hopper was made to fit it.
  if (info.is_for_hopper || info.shared_bytes == 0) return Has::kYes;
  if (info.shared_bytes > max_shared_bytes_) return Has::kNo;
  return info.shared_bytes + kMaxStaticSharedBytes <= max_shared_bytes_ ? Has::kYes : Has::kUnknown;
}

}  // namespace spate::cuda
