#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "base/test_support.h"
#include "cli/arguments.h"

namespace spate {

inline Result<Arguments> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "spate");
  return parse_arguments(static_cast<int>(words.size()), words.data());
}

inline std::string write_file(const TempDir& dir, const char* name, const std::string& text) {
  const std::filesystem::path path = dir.path() / name;
  std::ofstream(path) << text;
  return path.string();
}

}  // namespace spate
