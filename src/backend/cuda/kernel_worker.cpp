#include "backend/cuda/kernel_worker.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/kernel_compiler.h"
#include "base/log.h"

namespace spate::cuda {
namespace {

// Then the process that starts it, architecture, kernel_dir, folder, kind, program.
constexpr const char* kFlag = "--compile-cuda-kernels";
constexpr int kNumArguments = 8;
constexpr const char* kAheadOfTimeKind = "ahead-of-time";
constexpr const char* kThisProgram = "/proc/self/exe";

std::atomic<bool> may_start_workers = false;

Result<std::string> key_of(const NvrtcApi& nvrtc, const KernelSources& sources, std::string_view program,
                           const CompileJob& job) {
  return program_key(job.is_ahead_of_time ? kAheadOfTime : compiler_name(nvrtc), sources, program, job.architecture);
}

void run_worker(const CompileJob& job, std::string_view program) {
  std::string arguments[] = {"spate",
                             kFlag,
                             std::to_string(getpid()),
                             job.architecture,
                             job.kernel_dir,
                             job.folder.string(),
                             job.is_ahead_of_time ? kAheadOfTimeKind : "",
                             std::string(program)};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, kThisProgram, nullptr, nullptr, argv.data(), environ) != 0) return;
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::optional<int> run_kernel_worker(int argc, char** argv) {
  if (argc != kNumArguments || std::string_view(argv[1]) != kFlag) {
    may_start_workers = true;
    return std::nullopt;
  }
  end_with_parent(std::atoi(argv[2]));
  const CompileJob job{.architecture = argv[3],
                       .kernel_dir = argv[4],
                       .folder = argv[5],
                       .is_ahead_of_time = std::string_view(argv[6]) == kAheadOfTimeKind};
  return compile_into_cache(argv[7], job).ok() ? 0 : 1;
}

void end_with_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended before the line above
}

std::string log_key(const std::string& program_key) { return program_key + "\nlog"; }

Status compile_into_cache(std::string_view program, const CompileJob& job) {
  ASSIGN_OR_RETURN(const NvrtcApi* nvrtc, nvrtc_api());
  ASSIGN_OR_RETURN(const KernelSources sources, KernelSources::load(job.kernel_dir));
  ASSIGN_OR_RETURN(const std::string key, key_of(*nvrtc, sources, program, job));
  // NVRTC's own cache keeps no log.
  ASSIGN_OR_RETURN(const CompiledProgram compiled,
                   compile_program(*nvrtc, sources, program, job.architecture, job.is_ahead_of_time));
  const CubinCache cache(job.folder);
  cache.store(key, compiled.cubin);
  if (job.is_ahead_of_time) cache.store(log_key(key), compiled.log);
  return ok_status();
}

WorkerFolder::WorkerFolder(const std::filesystem::path& kept) : path_(kept) {
  if (CubinCache(kept).is_writable()) return;
  log_warning("cuda", "compiled kernels are not kept: {}; the environment variable SPATE_KERNEL_CACHE names a folder",
              kept.empty() ? "there is no home folder" : fmt::format("{} cannot be written", kept.string()));
  std::error_code error;
  std::string name = (std::filesystem::temp_directory_path(error) / "spate-kernels-XXXXXX").string();
  path_ = error || mkdtemp(name.data()) == nullptr ? std::string() : name;
  is_temporary_ = !path_.empty();
}

WorkerFolder::~WorkerFolder() {
  std::error_code error;
  if (is_temporary_) std::filesystem::remove_all(path_, error);
}

std::vector<std::string_view> programs_for_workers(std::span<const std::string_view> programs, const CompileJob& job) {
  std::vector<std::string_view> missing;
  const Result<const NvrtcApi*> nvrtc = nvrtc_api();
  const Result<KernelSources> sources = KernelSources::load(job.kernel_dir);
  if (!may_start_workers || !nvrtc.ok() || !sources.ok()) return missing;
  const CubinCache cache(job.folder);
  for (const std::string_view program : programs) {
    const Result<std::string> key = key_of(**nvrtc, *sources, program, job);
    if (key.ok() && !(cache.find(*key) && (!job.is_ahead_of_time || cache.find(log_key(*key))))) {
      missing.push_back(program);
    }
  }
  return missing;
}

void compile_in_workers(std::span<const std::string_view> programs, const CompileJob& job) {
  if (job.folder.empty()) return;
  const std::vector<std::string_view> missing = programs_for_workers(programs, job);
  if (missing.size() < 2) return;
  const size_t num_workers = std::min<size_t>(missing.size(), std::max(1u, std::thread::hardware_concurrency()));
  log_info("cuda", "compiling {} programs of kernels for {} in {} processes; later starts find them in {}",
           missing.size(), job.architecture, num_workers, job.folder.string());
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> threads;  // joined also where the system lends no more
  for (size_t i = 0; i < num_workers; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < missing.size(); at = next++) run_worker(job, missing[at]);
    });
  }
}

}  // namespace spate::cuda
