#include "base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace spate {
namespace {
std::atomic<CheckFailureHook> failure_hook{nullptr};
}  // namespace

void set_check_failure_hook(CheckFailureHook hook) { failure_hook = hook; }

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "FATAL %s:%d: CHECK(%s)%s%s\n", file, line, condition, message.empty() ? "" : ": ",
               message.c_str());
  if (CheckFailureHook hook = failure_hook.load()) hook();
  std::fflush(stderr);
  std::abort();
}

}  // namespace spate
