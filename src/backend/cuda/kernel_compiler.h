// One kernel source to a cubin, by NVRTC.
//
// A program is compiled for one architecture with fixed options; no size of a step is a part of it. Contraction is off,
// as in the host code: kernels write __fmaf_rn where they want it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/kernel_sources.h"
#include "backend/cuda/nvrtc_api.h"

namespace spate::cuda {

// "sm_90a" for compute capability 9.0, whose own instructions need the suffix; "sm_80" for 8.0 and so on.
std::string architecture_name(int capability_major, int capability_minor);
constexpr std::string_view kHopper = "sm_90a";

// Options that NVRTC and nvcc both know.
std::vector<std::string> compile_options(std::string_view architecture);

struct CompiledProgram {
  std::string cubin;
  std::string log;  // of the compiler and ptxas: registers, stack and spills of each kernel
  std::string ptx;  // with_log only
};

// `program` is a name below kKernelFolder: "rope/rope.cu". A compile error is an internal error with the compiler's
// log.
Result<CompiledProgram> compile_program(const NvrtcApi& nvrtc, const KernelSources& sources, std::string_view program,
                                        std::string_view architecture, bool with_log = false);

// What the cache knows a cubin by: everything that decides its bytes, as one text: sources, options, compiler
// (compiler_name). A cubin compiled ahead of time is known without its compiler, so that a machine that has none finds it.
Result<std::string> program_key(std::string_view compiler, const KernelSources& sources, std::string_view program,
                                std::string_view architecture);
std::string compiler_name(const NvrtcApi& nvrtc);  // "NVRTC 13.0"
constexpr std::string_view kAheadOfTime = "";      // in place of a compiler's name

// The programs of kKernels that compile for the architecture, each once.
std::vector<std::string_view> programs_for(std::string_view architecture);

}  // namespace spate::cuda
