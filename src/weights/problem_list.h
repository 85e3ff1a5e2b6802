// What is wrong with a checkpoint, in one message.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace spate {

// "2 problems:" and a line each, of more than 60 the first 60.
inline std::string list_problems(std::vector<std::string> problems) {
  constexpr size_t kMaxListed = 60;
  const size_t total = problems.size();
  if (total > kMaxListed) {
    problems.resize(kMaxListed);
    problems.push_back(fmt::format("... and {} more", total - kMaxListed));
  }
  return fmt::format("{} problem{}:\n  {}", total, total == 1 ? "" : "s", fmt::join(problems, "\n  "));
}

}  // namespace spate
