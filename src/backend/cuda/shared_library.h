// A library opened at run time, from the first of several names that exists. Never closed: drivers do not like it.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace spate::cuda {

class SharedLibrary {
 public:
  // Names without a slash are looked up as the loader does (LD_LIBRARY_PATH, ld.so.cache). `what` opens the message:
  // "no CUDA driver: libcuda.so.1 was not found".
  static Result<SharedLibrary> open(const char* what, std::span<const std::string> names);

  // Sets *function to the symbol, or says that the library lacks it.
  template <typename Function>
  Status load(const char* symbol, Function*& function) const {
    void* address = nullptr;
    RETURN_IF_ERROR(find(symbol, address));
    function = reinterpret_cast<Function*>(address);
    return {};
  }
  const std::string& name() const { return name_; }

 private:
  SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  Status find(const char* symbol, void*& address) const;

  void* handle_;
  std::string name_;
};

}  // namespace spate::cuda
