// spate kernels compile, spate kernels report: the kernels of a back-end that compiles them when it starts.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "backend/registry/registry.h"
#include "cli/commands.h"

namespace spate {
namespace {

// A folder in the machine's folder for temporary files, which goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / fmt::format("spate-kernels-{}", getpid())) {}
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void print_resources(const std::vector<KernelResources>& kernels) {
  std::printf("%-38s %-34s %9s %9s %6s %6s\n", "program", "kernel", "registers", "shared", "stack", "spills");
  for (const KernelResources& one : kernels) {
    std::printf("%-38s %-34s %9d %9d %6d %6d\n", one.program.c_str(), one.kernel.c_str(), one.registers,
                one.shared_bytes, one.stack_bytes, one.spill_bytes);
  }
}

}  // namespace

Result<int> run_kernels(const Arguments& arguments) {
  const KernelsArguments& kernels = arguments.kernels;
  if (kernels.what == "tune") return run_kernels_tune(arguments);
  const auto back_end =
      std::ranges::find_if(back_ends(), [](const BackEnd& one) { return one.compile_kernels != nullptr; });
  if (back_end == back_ends().end()) return unimplemented("no back-end of this build compiles kernels");
  const bool is_report = kernels.what == "report";
  const TemporaryFolder temporary;
  const std::filesystem::path folder = is_report ? temporary.path() : std::filesystem::absolute(kernels.out);
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(
      const std::vector<KernelResources> compiled,
      back_end->compile_kernels(
          {.architecture = kernels.architecture, .kernel_dir = arguments.model.kernel_dir, .folder = folder}));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (is_report) {
    print_resources(compiled);
  } else {
    std::printf("%zu kernels for %s in %s after %.1f s. Start servers with SPATE_KERNEL_CACHE=%s\n", compiled.size(),
                kernels.architecture.c_str(), folder.c_str(), seconds.count(), folder.c_str());
  }
  return 0;
}

}  // namespace spate
