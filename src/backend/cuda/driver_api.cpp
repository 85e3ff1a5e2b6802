#include "backend/cuda/driver_api.h"

#include "backend/cuda/shared_library.h"

namespace spate::cuda {
namespace {

// Functions with a version suffix are those that the driver's header maps the plain names to.
Status load_functions(const SharedLibrary& library, DriverApi& api) {
  RETURN_IF_ERROR(library.load("cuInit", api.cuInit));
  RETURN_IF_ERROR(library.load("cuDriverGetVersion", api.cuDriverGetVersion));
  RETURN_IF_ERROR(library.load("cuGetErrorName", api.cuGetErrorName));
  RETURN_IF_ERROR(library.load("cuGetErrorString", api.cuGetErrorString));
  RETURN_IF_ERROR(library.load("cuDeviceGetCount", api.cuDeviceGetCount));
  RETURN_IF_ERROR(library.load("cuDeviceGet", api.cuDeviceGet));
  RETURN_IF_ERROR(library.load("cuDeviceGetName", api.cuDeviceGetName));
  RETURN_IF_ERROR(library.load("cuDeviceGetAttribute", api.cuDeviceGetAttribute));
  RETURN_IF_ERROR(library.load("cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain));
  RETURN_IF_ERROR(library.load("cuDevicePrimaryCtxRelease_v2", api.cuDevicePrimaryCtxRelease));
  RETURN_IF_ERROR(library.load("cuCtxSetCurrent", api.cuCtxSetCurrent));
  RETURN_IF_ERROR(library.load("cuMemGetInfo_v2", api.cuMemGetInfo));
  RETURN_IF_ERROR(library.load("cuMemAlloc_v2", api.cuMemAlloc));
  RETURN_IF_ERROR(library.load("cuMemFree_v2", api.cuMemFree));
  RETURN_IF_ERROR(library.load("cuMemHostAlloc", api.cuMemHostAlloc));
  RETURN_IF_ERROR(library.load("cuMemFreeHost", api.cuMemFreeHost));
  RETURN_IF_ERROR(library.load("cuMemcpyHtoDAsync_v2", api.cuMemcpyHtoDAsync));
  RETURN_IF_ERROR(library.load("cuMemcpyDtoHAsync_v2", api.cuMemcpyDtoHAsync));
  RETURN_IF_ERROR(library.load("cuMemsetD8Async", api.cuMemsetD8Async));
  RETURN_IF_ERROR(library.load("cuStreamCreate", api.cuStreamCreate));
  RETURN_IF_ERROR(library.load("cuStreamDestroy_v2", api.cuStreamDestroy));
  RETURN_IF_ERROR(library.load("cuStreamSynchronize", api.cuStreamSynchronize));
  RETURN_IF_ERROR(library.load("cuStreamWaitEvent", api.cuStreamWaitEvent));
  RETURN_IF_ERROR(library.load("cuEventCreate", api.cuEventCreate));
  RETURN_IF_ERROR(library.load("cuEventDestroy_v2", api.cuEventDestroy));
  RETURN_IF_ERROR(library.load("cuEventRecord", api.cuEventRecord));
  RETURN_IF_ERROR(library.load("cuEventSynchronize", api.cuEventSynchronize));
  RETURN_IF_ERROR(library.load("cuEventElapsedTime", api.cuEventElapsedTime));
  RETURN_IF_ERROR(library.load("cuModuleLoadData", api.cuModuleLoadData));
  RETURN_IF_ERROR(library.load("cuModuleUnload", api.cuModuleUnload));
  RETURN_IF_ERROR(library.load("cuModuleGetFunction", api.cuModuleGetFunction));
  RETURN_IF_ERROR(library.load("cuFuncSetAttribute", api.cuFuncSetAttribute));
  RETURN_IF_ERROR(library.load("cuLaunchKernel", api.cuLaunchKernel));
  RETURN_IF_ERROR(library.load("cuStreamBeginCapture_v2", api.cuStreamBeginCapture));
  RETURN_IF_ERROR(library.load("cuStreamEndCapture", api.cuStreamEndCapture));
  RETURN_IF_ERROR(library.load("cuGraphInstantiateWithFlags", api.cuGraphInstantiate));
  RETURN_IF_ERROR(library.load("cuGraphDestroy", api.cuGraphDestroy));
  RETURN_IF_ERROR(library.load("cuGraphExecDestroy", api.cuGraphExecDestroy));
  RETURN_IF_ERROR(library.load("cuGraphLaunch", api.cuGraphLaunch));
  if (!library.load("cuLaunchKernelEx", api.cuLaunchKernelEx).ok()) api.cuLaunchKernelEx = nullptr;
  if (!library.load("cuTensorMapEncodeTiled", api.cuTensorMapEncodeTiled).ok()) api.cuTensorMapEncodeTiled = nullptr;
  return {};
}

Result<const DriverApi*> open_driver() {
  // Containers often get the driver mounted at a place of its own that ld.so.cache does not list.
  const std::string names[] = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"};
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::open("no CUDA driver", names));
  static DriverApi api;
  RETURN_IF_ERROR(load_functions(library, api).with_context("CUDA driver"));
  if (const CUresult error = api.cuInit(0); error != CUDA_SUCCESS) {
    return unavailable("no CUDA device: cuInit gave {}", driver_error(api, error));
  }
  return &api;
}

}  // namespace

Result<const DriverApi*> driver_api() {
  static const Result<const DriverApi*> api = open_driver();
  return api;
}

std::string driver_error(const DriverApi& api, CUresult error) {
  const char* name = nullptr;
  const char* text = nullptr;
  api.cuGetErrorName(error, &name);
  api.cuGetErrorString(error, &text);
  return fmt::format("{} ({}): {}", name ? name : "an unknown error", static_cast<int>(error), text ? text : "no text");
}

}  // namespace spate::cuda
