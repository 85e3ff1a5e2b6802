// NVRTC, the run-time compiler of CUDA C++, opened at run time. It needs no GPU.
//
// Threads: nvrtc_api() is thread-safe and opens the library once; NVRTC itself serialises compilations inside a
// process.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace spate::cuda {

using nvrtcProgram = struct _nvrtcProgram*;
enum nvrtcResult : int { NVRTC_SUCCESS = 0, NVRTC_ERROR_COMPILATION = 6 };

struct NvrtcApi {
  const char* (*nvrtcGetErrorString)(nvrtcResult result);
  nvrtcResult (*nvrtcVersion)(int* major, int* minor);
  nvrtcResult (*nvrtcCreateProgram)(nvrtcProgram* program, const char* source, const char* name, int num_headers,
                                    const char* const* headers, const char* const* include_names);
  nvrtcResult (*nvrtcDestroyProgram)(nvrtcProgram* program);
  nvrtcResult (*nvrtcCompileProgram)(nvrtcProgram program, int num_options, const char* const* options);
  nvrtcResult (*nvrtcGetCUBINSize)(nvrtcProgram program, size_t* bytes);
  nvrtcResult (*nvrtcGetCUBIN)(nvrtcProgram program, char* cubin);
  nvrtcResult (*nvrtcGetPTXSize)(nvrtcProgram program, size_t* bytes);
  nvrtcResult (*nvrtcGetPTX)(nvrtcProgram program, char* ptx);
  nvrtcResult (*nvrtcGetProgramLogSize)(nvrtcProgram program, size_t* bytes);
  nvrtcResult (*nvrtcGetProgramLog)(nvrtcProgram program, char* log);

  int version_major = 0;
  int version_minor = 0;
  std::string path;  // of the library that was opened
};

// Looks for version 13, then 12: as the loader does (LD_LIBRARY_PATH, ld.so.cache), then where toolkits and the wheels
// of package managers put it. "NVRTC not found: ..." when it is nowhere.
Result<const NvrtcApi*> nvrtc_api();

}  // namespace spate::cuda
