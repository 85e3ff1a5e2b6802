// The registry of back-ends: all that the rest of the program knows of a kind of hardware beside its Device.
//
// A new chip is a folder beside this one and an entry in registry.cpp. No other folder names a back-end: tools/tidy
// checks that. Thread-safe: the table is constant.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "backend/kernel_resources.h"
#include "backend/machine_limits.h"
#include "parallel/communicator.h"

namespace spate {

// What a setting becomes where the operator gives none.
struct BackEndDefaults {
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int max_num_logits = 0;        // rows of logits at once: 256 x 151,936 x 4 bytes = 148 MiB
  int max_prefill_stall_ms = 0;  // 0: no limit
  double memory_share = 0;       // of the device's free memory, for weights, workspace and KV cache
};

struct BackEnd {
  std::string_view name;      // as --device takes it
  std::string_view hardware;  // for people: "GPU"
  // Ok, or one line that says why this machine cannot run it. Takes no memory of the device.
  Status (*probe)(const DeviceOptions& options) = nullptr;
  DeviceFactory make_device = nullptr;
  BackEndDefaults defaults;
  bool is_automatic = false;        // --device auto may choose it
  bool shares_host_memory = false;  // its devices allocate from the machine's main memory, all from the same
  int max_ranks = 1;                // in one process
  // Makes the groups of its ranks. nullptr: it has no collectives, and max_ranks is 1.
  GroupFactory make_group = nullptr;
  std::span<const std::string_view> instruction_sets;  // what DeviceOptions::isa may be
  // For processes that the back-end starts of this program: does a worker's work and returns its exit code. nullopt:
  // the process is no worker, and may have some.
  std::optional<int> (*run_worker)(int argc, char** argv) = nullptr;
  // Compiles its kernels ahead of time. nullptr: they are part of the program.
  Result<std::vector<KernelResources>> (*compile_kernels)(const KernelCompileOptions& options) = nullptr;
  // The limits of a device made with these options. nullptr: they are not measured; benches print no shares.
  MachineLimits (*measure_limits)(const DeviceOptions& options) = nullptr;
};

// The fastest first.
std::span<const BackEnd> back_ends();
const BackEnd* find_back_end(std::string_view name);  // nullptr: there is none
const BackEnd& host_back_end();                       // runs on every machine that the program runs on
const BackEnd& oracle_back_end();                     // what the others are compared with

// For main(), before anything else: the exit code where this process is a back-end's worker.
std::optional<int> run_back_end_worker(int argc, char** argv);

// Names, joined: "cuda|cpu|reference".
std::string back_end_names(std::string_view separator);

// The back-end called `name`, or with "auto" the first that this machine can run. Logs why a better one is not used.
// invalid_argument: there is no such back-end; other errors: this machine cannot run it.
Result<const BackEnd*> choose_back_end(std::string_view name, const DeviceOptions& options);

}  // namespace spate
