#include "backend/cuda/kernel_report.h"

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/kernel_compiler.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/kernel_worker.h"
#include "backend/cuda/ptxas_log.h"
#include "backend/cuda/warm_programs.h"

namespace spate {

Result<std::vector<KernelResources>> compile_cuda_kernels(const KernelCompileOptions& options) {
  using namespace cuda;
  CompileJob job{.architecture = options.architecture,
                 .kernel_dir = options.kernel_dir,
                 .folder = options.folder,
                 .is_ahead_of_time = true};
  std::error_code error;
  std::filesystem::create_directories(job.folder, error);
  if (error) return invalid_argument("{}: {}", job.folder.string(), error.message());
  ASSIGN_OR_RETURN(const KernelSources sources, KernelSources::load(job.kernel_dir));
  ASSIGN_OR_RETURN(const std::vector<std::string_view> longest_first,
                   warm_programs(sources, job.architecture, all_use_words()));
  compile_in_workers(longest_first, job);
  const CubinCache cache(job.folder);
  std::vector<KernelResources> kernels;
  for (const std::string_view program : programs_for(job.architecture)) {
    ASSIGN_OR_RETURN(const std::string key, program_key(kAheadOfTime, sources, program, job.architecture));
    // What no worker could compile says why here.
    if (!cache.find(key) || !cache.find(log_key(key))) RETURN_IF_ERROR(compile_into_cache(program, job));
    const std::optional<std::string> log = cache.find(log_key(key));
    if (!log) return resource_exhausted("{}: compiled kernels cannot be kept there", job.folder.string());
    const std::map<std::string, KernelUsage> usages = parse_ptxas_log(*log);
    for (const KernelInfo& kernel : kKernels) {
      if (kernel.program != program) continue;
      const auto usage = usages.find(kernel.function);
      if (usage == usages.end()) return internal_error("{}: the compiler's log lacks {}", program, kernel.function);
      kernels.push_back({.program = std::string(program),
                         .kernel = kernel.function,
                         .registers = usage->second.registers,
                         .shared_bytes = usage->second.shared_bytes + kernel.shared_bytes,
                         .stack_bytes = usage->second.stack_bytes,
                         .spill_bytes = usage->second.spill_bytes});
    }
  }
  return kernels;
}

}  // namespace spate
