#include "backend/cuda/kernel_sources.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace spate::cuda {
namespace {

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in.good() && !in.eof()) return not_found("kernel source {} cannot be read", path.string());
  return std::move(text).str();
}

}  // namespace

Result<KernelSources> KernelSources::load(const std::string& kernel_dir) {
  KernelSources sources;
  for (const EmbeddedSource& source : embedded_sources()) {
    if (kernel_dir.empty() || !source.name.starts_with(kKernelFolder)) {
      sources.add(source.name, std::string(source.text));
    }
  }
  if (kernel_dir.empty()) return sources;

  std::error_code error;
  const std::filesystem::path folder(kernel_dir);
  std::filesystem::recursive_directory_iterator entries(folder, error);
  if (error) return not_found("kernel_dir {}: {}", kernel_dir, error.message());
  for (const std::filesystem::directory_entry& entry : entries) {
    const std::filesystem::path extension = entry.path().extension();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cu")) continue;
    ASSIGN_OR_RETURN(std::string text, read_file(entry.path()));
    sources.add(std::string(kKernelFolder) + entry.path().lexically_relative(folder).generic_string(), std::move(text));
  }
  return sources;
}

void KernelSources::add(std::string_view name, std::string text) {
  if (name.ends_with(".cu")) {
    programs_.emplace(name, std::move(text));
    return;
  }
  if (name == "backend/cuda/kernel/primitive/cstdint.h") {
    headers_.emplace("stdint.h", text);  // headers that the CPU's kernels share
    name = "cstdint";
  }
  headers_.emplace(name, std::move(text));
}

const std::string* KernelSources::find(std::string_view name) const {
  for (const auto* sources : {&programs_, &headers_}) {
    if (const auto it = sources->find(name); it != sources->end()) return &it->second;
  }
  return nullptr;
}

}  // namespace spate::cuda
