#include "backend/cuda/shared_library.h"

#include <dlfcn.h>

#include <cstring>

namespace spate::cuda {

Result<SharedLibrary> SharedLibrary::open(const char* what, std::span<const std::string> names) {
  std::string problem;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return SharedLibrary(handle, name);
    // A library that is there but does not load makes the more useful message.
    const char* error = dlerror();
    const bool is_missing = error == nullptr || std::strstr(error, "cannot open shared object file") != nullptr;
    if (!is_missing && problem.empty()) problem = error;
  }
  if (problem.empty()) return not_found("{}: {} was not found", what, names.front());
  return unavailable("{}: {}", what, problem);
}

Status SharedLibrary::find(const char* symbol, void*& address) const {
  address = dlsym(handle_, symbol);
  if (address == nullptr) return unavailable("{} has no {}: it is too old", name_, symbol);
  return {};
}

}  // namespace spate::cuda
