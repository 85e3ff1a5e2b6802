// KernelModules: the compiled programs of one GPU's context, each loaded before it is needed (load) or at the first
// launch of one of its kernels.
//
// Threads: as Device; the context is current. Programs that the cache lacks are compiled by one device of the process
// at a time; the others find them in the cache.
#pragma once

#include <array>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/driver_api.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/kernel_sources.h"

namespace spate::cuda {

// Whether the cache has what `spate kernels compile` made of the program.
bool is_ahead_of_time(const KernelSources& sources, std::string_view program, std::string_view architecture);

class KernelModules {
 public:
  explicit KernelModules(const DriverApi& api) : api_(api) {}
  ~KernelModules();  // the context is current
  KernelModules(const KernelModules&) = delete;
  KernelModules& operator=(const KernelModules&) = delete;

  // architecture: what kernels are compiled for. max_shared_bytes: what a CTA of the GPU can have.
  Status open(const std::string& kernel_dir, const std::string& architecture, int max_shared_bytes);

  const KernelSources& sources() const { return sources_; }
  // The architecture whose programs run here: "" where the driver has no tensor maps, and no kernel can be for Hopper
  // only.
  std::string_view program_architecture() const;

  // Compiles what the cache lacks, in the order given, many at once, and loads all.
  Status load(std::span<const std::string_view> programs);
  Status load(std::string_view program) { return load({&program, 1}); }

  // What can be said without loading the kernel's program: kUnknown where only the driver knows whether the shared
  // memory of the GPU is enough.
  enum class Has { kNo, kYes, kUnknown };
  Has has(KernelId kernel) const;
  bool is_loaded(KernelId kernel) const { return is_loaded_[static_cast<size_t>(kernel.idx)]; }
  // Of a loaded program; null: the GPU has too little shared memory.
  CUfunction function(KernelId kernel) const { return functions_[static_cast<size_t>(kernel.idx)]; }

 private:
  Status load_cubin(std::string_view program, const std::string& cubin);

  const DriverApi& api_;
  KernelSources sources_;
  std::string kernel_dir_, architecture_;
  int max_shared_bytes_ = 0;
  std::vector<CUmodule> modules_;
  std::set<std::string_view> loaded_;  // programs
  std::array<bool, kNumKernels> is_loaded_{};
  std::array<CUfunction, kNumKernels> functions_{};
};

}  // namespace spate::cuda
