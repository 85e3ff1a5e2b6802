// Kernels compiled by several processes at once: NVRTC compiles one program at a time in a process. A worker is this
// program started again with other arguments; it compiles one program of kernels into the cache and ends.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spate::cuda {

// For main(), before anything else: the exit code if this process is a worker. Only programs that call it get workers.
std::optional<int> run_kernel_worker(int argc, char** argv);

// Fills the cache with the programs that it lacks, as many at once as the process has cores. What does not compile, and
// everything where there are no workers or no cache, stays missing.
void compile_in_workers(std::span<const std::string_view> programs, std::string_view architecture,
                        const std::string& kernel_dir);

}  // namespace spate::cuda
