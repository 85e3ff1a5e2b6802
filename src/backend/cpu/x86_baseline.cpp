// On a CPU without the instructions that the whole program is built with, one line and not "Illegal instruction".
// Compiled without them, and run before every other constructor: it uses nothing but the C library.
#include <unistd.h>

namespace {

[[gnu::constructor(101)]] void refuse_older_cpus() {
  __builtin_cpu_init();
  // Of x86-64-v3; every CPU that has these has the rest of it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2")) {
    return;
  }
  constexpr char kMessage[] =
      "spate: this CPU lacks AVX2, FMA or BMI2; spate needs x86-64-v3. A virtual machine may hide what its host has\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  ::_exit(1);
}

}  // namespace
