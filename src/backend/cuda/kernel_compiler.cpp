#include "backend/cuda/kernel_compiler.h"

#include "backend/cuda/kernel_list.h"

namespace spate::cuda {
namespace {

Result<const std::string*> program_text(const KernelSources& sources, std::string_view program) {
  const std::string name = std::string(kKernelFolder) + std::string(program);
  const std::string* text = sources.find(name);
  if (text == nullptr) return not_found("kernel source {} does not exist", name);
  return text;
}

constexpr int kFirstVersionWithCache = 13;

std::vector<std::string> nvrtc_options(std::string_view architecture) {
  std::vector<std::string> options = compile_options(architecture);
  // Headers that the host shares (core/step_plan.h) have functions without annotations: take them for the device's.
  options.emplace_back("--device-as-default-execution-space");
  return options;
}

// An nvrtcProgram for the length of a scope.
class Program {
 public:
  explicit Program(const NvrtcApi& nvrtc) : nvrtc_(nvrtc) {}
  ~Program() {
    if (program_ != nullptr) nvrtc_.nvrtcDestroyProgram(&program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult create(const std::string& text, const std::string& name, const KernelSources& sources) {
    std::vector<const char*> headers, include_names;
    for (const auto& [include_name, header] : sources.headers()) {
      headers.push_back(header.c_str());
      include_names.push_back(include_name.c_str());
    }
    return nvrtc_.nvrtcCreateProgram(&program_, text.c_str(), name.c_str(), static_cast<int>(headers.size()),
                                     headers.data(), include_names.data());
  }
  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
  }
  std::string log() const {
    size_t bytes = 0;
    if (nvrtc_.nvrtcGetProgramLogSize(program_, &bytes) != NVRTC_SUCCESS || bytes == 0) return {};
    std::string log(bytes, '\0');
    if (nvrtc_.nvrtcGetProgramLog(program_, log.data()) != NVRTC_SUCCESS) return {};
    log.resize(bytes - 1);  // the size counts the terminating zero
    return log;
  }
  nvrtcResult ptx(std::string& ptx) const {
    size_t bytes = 0;
    if (const nvrtcResult result = nvrtc_.nvrtcGetPTXSize(program_, &bytes); result != NVRTC_SUCCESS) return result;
    ptx.resize(bytes);
    return nvrtc_.nvrtcGetPTX(program_, ptx.data());
  }
  nvrtcResult cubin(std::string& cubin) const {
    size_t bytes = 0;
    if (const nvrtcResult result = nvrtc_.nvrtcGetCUBINSize(program_, &bytes); result != NVRTC_SUCCESS) return result;
    cubin.resize(bytes);
    return nvrtc_.nvrtcGetCUBIN(program_, cubin.data());
  }

 private:
  const NvrtcApi& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

}  // namespace

std::string architecture_name(int capability_major, int capability_minor) {
  const bool is_hopper = capability_major == 9 && capability_minor == 0;
  return fmt::format("sm_{}{}{}", capability_major, capability_minor, is_hopper ? "a" : "");
}

std::vector<std::string> compile_options(std::string_view architecture) {
  return {fmt::format("--gpu-architecture={}", architecture), "--std=c++20", "--fmad=false",
          "--ptxas-options=--verbose"};
}

Result<CompiledProgram> compile_program(const NvrtcApi& nvrtc, const KernelSources& sources, std::string_view program,
                                        std::string_view architecture, bool with_log) {
  ASSIGN_OR_RETURN(const std::string* text, program_text(sources, program));
  Program nvrtc_program(nvrtc);
  CompiledProgram compiled;
  std::vector<std::string> options = nvrtc_options(architecture);
  if (with_log && nvrtc.version_major >= kFirstVersionWithCache) options.emplace_back("--no-cache");
  nvrtcResult result = nvrtc_program.create(*text, std::string(program), sources);
  if (result == NVRTC_SUCCESS) result = nvrtc_program.compile(options);
  compiled.log = nvrtc_program.log();
  if (result == NVRTC_SUCCESS) result = nvrtc_program.cubin(compiled.cubin);
  if (result == NVRTC_SUCCESS && with_log) result = nvrtc_program.ptx(compiled.ptx);
  if (result != NVRTC_SUCCESS) {
    return internal_error("{} does not compile for {} with NVRTC {}.{}: {}\n{}", program, architecture,
                          nvrtc.version_major, nvrtc.version_minor, nvrtc.nvrtcGetErrorString(result), compiled.log);
  }
  return compiled;
}

std::string compiler_name(const NvrtcApi& nvrtc) {
  return fmt::format("NVRTC {}.{}", nvrtc.version_major, nvrtc.version_minor);
}

std::vector<std::string_view> programs_for(std::string_view architecture) {
  std::vector<std::string_view> programs;  // kKernels lists the kernels of a program together
  for (const KernelInfo& kernel : kKernels) {
    if (!programs.empty() && kernel.program == programs.back()) continue;
    if (!kernel.is_for_hopper || architecture == kHopper) programs.push_back(kernel.program);
  }
  return programs;
}

Result<std::string> program_key(std::string_view compiler, const KernelSources& sources, std::string_view program,
                                std::string_view architecture) {
  ASSIGN_OR_RETURN(const std::string* text, program_text(sources, program));
  std::string key(compiler);
  for (const std::string& option : nvrtc_options(architecture)) key += "\n" + option;
  key += fmt::format("\n{}\n{}", program, *text);
  for (const auto& [name, header] : sources.headers()) key += fmt::format("\n{}\n{}", name, header);
  return key;
}

}  // namespace spate::cuda
