// On a CPU without the instructions that the whole program is built with, one line and not "Illegal instruction", nor
// the wrong counts of a CPU that takes LZCNT for BSR. Compiled without them, and run before every other constructor: it
// uses nothing but the C library.
#include <unistd.h>

#include <cstring>

namespace {

void say(const char* text) { [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text)); }

[[gnu::constructor(101)]] void refuse_older_cpus() {
  __builtin_cpu_init();
  const struct {
    bool is_present;
    const char* name;
  } features[] = {
      {__builtin_cpu_supports("avx2") != 0, "AVX2"},   {__builtin_cpu_supports("fma") != 0, "FMA"},
      {__builtin_cpu_supports("bmi") != 0, "BMI1"},    {__builtin_cpu_supports("bmi2") != 0, "BMI2"},
      {__builtin_cpu_supports("f16c") != 0, "F16C"},   {__builtin_cpu_supports("lzcnt") != 0, "LZCNT"},
      {__builtin_cpu_supports("movbe") != 0, "MOVBE"},
  };
  bool is_complete = true;
  for (const auto& feature : features) {
    if (feature.is_present) continue;
    say(is_complete ? "spate: this CPU lacks " : ", ");
    say(feature.name);
    is_complete = false;
  }
  if (is_complete) return;
  say("; spate needs x86-64-v3. A virtual machine may hide what its host has\n");
  ::_exit(1);
}

}  // namespace
