#include "backend/cuda/nvrtc_api.h"

#include <glob.h>

#include <vector>

#include "backend/cuda/shared_library.h"

namespace spate::cuda {
namespace {

void append_matches(const char* pattern, std::vector<std::string>& names) {
  glob_t matches{};
  if (glob(pattern, 0, nullptr, &matches) == 0) {
    for (size_t i = 0; i < matches.gl_pathc; ++i) names.emplace_back(matches.gl_pathv[i]);
  }
  globfree(&matches);
}

std::vector<std::string> library_names() {
  std::vector<std::string> names = {"libnvrtc.so.13", "libnvrtc.so.12"};
  for (const char* pattern :
       {"/usr/local/cuda/lib64/libnvrtc.so.1[23]", "/usr/local/cuda-1[23]*/lib64/libnvrtc.so.1[23]",
        "/opt/cuda/lib64/libnvrtc.so.1[23]", "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[23]",
        "/opt/*/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[23]",
        "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[23]"}) {
    append_matches(pattern, names);
  }
  return names;
}

Status load_functions(const SharedLibrary& library, NvrtcApi& api) {
  RETURN_IF_ERROR(library.load("nvrtcGetErrorString", api.nvrtcGetErrorString));
  RETURN_IF_ERROR(library.load("nvrtcVersion", api.nvrtcVersion));
  RETURN_IF_ERROR(library.load("nvrtcCreateProgram", api.nvrtcCreateProgram));
  RETURN_IF_ERROR(library.load("nvrtcDestroyProgram", api.nvrtcDestroyProgram));
  RETURN_IF_ERROR(library.load("nvrtcCompileProgram", api.nvrtcCompileProgram));
  RETURN_IF_ERROR(library.load("nvrtcGetCUBINSize", api.nvrtcGetCUBINSize));
  RETURN_IF_ERROR(library.load("nvrtcGetCUBIN", api.nvrtcGetCUBIN));
  RETURN_IF_ERROR(library.load("nvrtcGetPTXSize", api.nvrtcGetPTXSize));
  RETURN_IF_ERROR(library.load("nvrtcGetPTX", api.nvrtcGetPTX));
  RETURN_IF_ERROR(library.load("nvrtcGetProgramLogSize", api.nvrtcGetProgramLogSize));
  RETURN_IF_ERROR(library.load("nvrtcGetProgramLog", api.nvrtcGetProgramLog));
  return {};
}

Result<const NvrtcApi*> open_nvrtc() {
  const std::vector<std::string> names = library_names();
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::open("NVRTC not found", names));
  static NvrtcApi api;
  RETURN_IF_ERROR(load_functions(library, api).with_context("NVRTC"));
  api.path = library.name();
  if (const nvrtcResult result = api.nvrtcVersion(&api.version_major, &api.version_minor); result != NVRTC_SUCCESS) {
    return unavailable("NVRTC: {} does not work: {}", api.path, api.nvrtcGetErrorString(result));
  }
  return &api;
}

}  // namespace

Result<const NvrtcApi*> nvrtc_api() {
  static const Result<const NvrtcApi*> api = open_nvrtc();
  return api;
}

}  // namespace spate::cuda
