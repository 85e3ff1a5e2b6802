#include "backend/cuda/kernel_worker.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/kernel_compiler.h"
#include "base/log.h"

namespace spate::cuda {
namespace {

constexpr const char* kFlag = "--compile-cuda-kernels";  // then architecture, kernel_dir, program
constexpr int kNumArguments = 5;
constexpr const char* kThisProgram = "/proc/self/exe";

std::atomic<bool> may_start_workers = false;

// Whether the program is in the cache now.
bool compile_into_cache(const std::string& architecture, const std::string& kernel_dir, const std::string& program) {
  const Result<const NvrtcApi*> nvrtc = nvrtc_api();
  const Result<KernelSources> sources = KernelSources::load(kernel_dir);
  if (!nvrtc.ok() || !sources.ok()) return false;
  const Result<std::string> key = program_key(**nvrtc, *sources, program, architecture);
  const Result<CompiledProgram> compiled = compile_program(**nvrtc, *sources, program, architecture);
  if (!key.ok() || !compiled.ok()) return false;
  CubinCache(CubinCache::default_folder()).store(*key, compiled->cubin);
  return true;
}

void run_worker(std::string_view architecture, const std::string& kernel_dir, std::string_view program) {
  std::string arguments[] = {"spate", kFlag, std::string(architecture), kernel_dir, std::string(program)};
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
  return compile_into_cache(argv[2], argv[3], argv[4]) ? 0 : 1;
}

void compile_in_workers(std::span<const std::string_view> programs, std::string_view architecture,
                        const std::string& kernel_dir) {
  const Result<const NvrtcApi*> nvrtc = nvrtc_api();
  const Result<KernelSources> sources = KernelSources::load(kernel_dir);
  const std::filesystem::path folder = CubinCache::default_folder();
  if (!may_start_workers || folder.empty() || !nvrtc.ok() || !sources.ok()) return;
  std::vector<std::string_view> missing;
  for (const std::string_view program : programs) {
    const Result<std::string> key = program_key(**nvrtc, *sources, program, architecture);
    if (key.ok() && !CubinCache(folder).find(*key)) missing.push_back(program);
  }
  if (missing.size() < 2) return;
  const size_t num_workers = std::min<size_t>(missing.size(), std::max(1u, std::thread::hardware_concurrency()));
  log_info("cuda", "compiling {} programs of kernels for {} in {} processes; later starts find them in {}",
           missing.size(), architecture, num_workers, folder.string());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_workers; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < missing.size(); at = next++) run_worker(architecture, kernel_dir, missing[at]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace spate::cuda
