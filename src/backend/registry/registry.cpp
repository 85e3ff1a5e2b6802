#include "backend/registry/registry.h"

#include <fmt/format.h>

#include <array>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/limits.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/kernel_report.h"
#include "backend/cuda/limits.h"
#include "backend/reference/reference_device.h"
#include "base/log.h"

namespace spate {
namespace {

Status probe_nothing(const DeviceOptions&) { return ok_status(); }

constexpr std::array<BackEnd, 3> kBackEnds = {{
    {.name = "cuda",
     .hardware = "GPU",
     .probe = probe_cuda_device,
     .make_device = make_cuda_device,
     .defaults = {.max_num_seqs = 256,
                  .max_num_batched_tokens = 8192,
                  .max_num_logits = 256,
                  .max_prefill_stall_ms = 60,
                  .memory_share = 0.92},
     .is_automatic = true,
     .shares_host_memory = false,
     .max_ranks = 1,
     .make_group = nullptr,
     .instruction_sets = {},
     .run_worker = run_cuda_worker,
     .compile_kernels = compile_cuda_kernels,
     .measure_limits = measure_cuda_machine_limits},
    {.name = "cpu",
     .hardware = "CPU",
     .probe = probe_nothing,
     .make_device = make_cpu_device,
     .defaults = {.max_num_seqs = 64,
                  .max_num_batched_tokens = 512,
                  .max_num_logits = 64,
                  .max_prefill_stall_ms = 200,
                  .memory_share = 0.9},
     .is_automatic = true,
     .shares_host_memory = true,
     .max_ranks = 64,
     .make_group = make_in_process_group,
     .instruction_sets = kCpuInstructionSets,
     .run_worker = nullptr,
     .compile_kernels = nullptr,
     .measure_limits = measure_cpu_machine_limits},
    {.name = "reference",
     .hardware = "reference",
     .probe = probe_nothing,
     .make_device = make_reference_device,
     .defaults = {.max_num_seqs = 64,
                  .max_num_batched_tokens = 512,
                  .max_num_logits = 64,
                  .max_prefill_stall_ms = 200,
                  .memory_share = 0.9},
     .is_automatic = false,
     .shares_host_memory = true,
     .max_ranks = 64,
     .make_group = make_in_process_group,
     .instruction_sets = {},
     .run_worker = nullptr,
     .compile_kernels = nullptr,
     .measure_limits = nullptr},
}};

}  // namespace

std::span<const BackEnd> back_ends() { return kBackEnds; }

const BackEnd* find_back_end(std::string_view name) {
  for (const BackEnd& back_end : kBackEnds) {
    if (back_end.name == name) return &back_end;
  }
  return nullptr;
}

std::optional<int> run_back_end_worker(int argc, char** argv) {
  for (const BackEnd& back_end : kBackEnds) {
    if (back_end.run_worker == nullptr) continue;
    if (const std::optional<int> code = back_end.run_worker(argc, argv)) return code;
  }
  return std::nullopt;
}

const BackEnd& host_back_end() { return kBackEnds[1]; }
const BackEnd& oracle_back_end() { return kBackEnds[2]; }

std::string back_end_names(std::string_view separator) {
  std::string names;
  for (const BackEnd& back_end : kBackEnds) {
    names += fmt::format("{}{}", names.empty() ? "" : separator, back_end.name);
  }
  return names;
}

Result<const BackEnd*> choose_back_end(std::string_view name, const DeviceOptions& options) {
  if (name != "auto") {
    const BackEnd* back_end = find_back_end(name);
    if (back_end == nullptr) return invalid_argument("--device {}: there is auto, {}", name, back_end_names(", "));
    if (const Status status = back_end->probe(options); !status.ok()) {
      return status.with_context(fmt::format("--device {}", name));
    }
    return back_end;
  }
  std::string reasons;
  for (const BackEnd& back_end : kBackEnds) {
    if (!back_end.is_automatic) continue;
    const Status status = back_end.probe(options);
    if (status.ok()) {
      if (!reasons.empty()) log_info("device", "{}: using the {}", reasons, back_end.hardware);
      return &back_end;
    }
    reasons += fmt::format("{}no {} ({})", reasons.empty() ? "" : ", ", back_end.hardware, status.message());
  }
  return unavailable("--device auto: {}", reasons);
}

}  // namespace spate
