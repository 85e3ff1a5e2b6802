#include "weights/gguf/gguf_path.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace spate {
namespace {

constexpr std::string_view kTail = "-00000-of-00000";
constexpr int kMaxFiles = 1000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool is_gguf_path(const std::filesystem::path& path) { return path.extension() == ".gguf"; }

std::vector<std::filesystem::path> gguf_files(const std::filesystem::path& path) {
  const std::string stem = path.stem().string();
  if (stem.size() < kTail.size()) return {path};
  const size_t at = stem.size() - kTail.size();
  const bool fits = std::equal(kTail.begin(), kTail.end(), stem.begin() + static_cast<std::ptrdiff_t>(at),
                               [](char pattern, char c) { return pattern == '0' ? is_digit(c) : pattern == c; });
  int count = 0;
  std::from_chars(stem.data() + stem.size() - 5, stem.data() + stem.size(), count);
  if (!fits || count < 1 || count > kMaxFiles) return {path};
  std::vector<std::filesystem::path> files;
  for (int i = 1; i <= count; ++i) {
    files.push_back(path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", stem.substr(0, at), i, count));
  }
  return files;
}

}  // namespace spate
