// Kernels compiled by several processes at once: NVRTC compiles one program at a time in a process. A worker is this
// program started again with other arguments; it compiles one program of kernels into the cache and ends.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace spate::cuda {

// For main(), before anything else: the exit code if this process is a worker. Only programs that call it get workers.
std::optional<int> run_kernel_worker(int argc, char** argv);

// For a process that its parent has just started: it is killed when the thread that started it ends, at the latest with
// the parent.
void end_with_parent(pid_t parent);

struct CompileJob {
  std::string architecture;
  std::string kernel_dir;        // sources; empty: the embedded ones
  std::filesystem::path folder;  // of the cache
  // Into a folder for other machines: known without a compiler's name, and with the compiler's log (log_key).
  bool is_ahead_of_time = false;
};

// What a cache knows the compiler's log of a cubin by.
std::string log_key(const std::string& program_key);

// Where workers leave what they compile: the cache's folder, or, where nothing can be kept there, one for temporary
// files, which goes with the object.
class WorkerFolder {
 public:
  explicit WorkerFolder(const std::filesystem::path& kept);
  ~WorkerFolder();
  WorkerFolder(const WorkerFolder&) = delete;
  WorkerFolder& operator=(const WorkerFolder&) = delete;
  // Empty: there is neither.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool is_temporary_ = false;
};

// Those that the cache lacks; none where workers cannot be started.
std::vector<std::string_view> programs_for_workers(std::span<const std::string_view> programs, const CompileJob& job);

// Fills the cache with the programs that it lacks, as many at once as the process has cores. What does not compile, and
// everything where there are no workers or no cache, stays missing.
void compile_in_workers(std::span<const std::string_view> programs, const CompileJob& job);

// Compiles one program into the cache, in this process.
Status compile_into_cache(std::string_view program, const CompileJob& job);

}  // namespace spate::cuda
