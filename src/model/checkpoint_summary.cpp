#include "model/checkpoint_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace spate {
namespace {

// "model.layers.12.mlp" -> {"model.layers.", 12, ".mlp"}: the first component that is a number.
struct NumberedName {
  std::string before, after;
  std::optional<int> number;
};

NumberedName split_name(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    int number = 0;
    const auto [stop, error] = std::from_chars(name.data() + begin, name.data() + end, number);
    if (error == std::errc() && stop == name.data() + end) return {name.substr(0, begin), name.substr(end), number};
    begin = end + 1;
  }
  return {name, "", std::nullopt};
}

}  // namespace

CheckpointSummary summarize_checkpoint(const WeightSource& source) {
  CheckpointSummary summary;
  struct Numbers {
    size_t group_idx;
    int first, last;
    NumberedName name;
  };
  std::map<std::string, Numbers> known;
  for (const TensorEntry& entry : source.entries()) {
    const NumberedName name = split_name(entry.name);
    const std::string key = fmt::format("{}|{}|{}|{}", name.before, name.after, entry.dtype_name, entry.shape_string());
    const int number = name.number.value_or(0);
    const auto [found, is_new] = known.emplace(key, Numbers{summary.groups.size(), number, number, name});
    if (is_new) summary.groups.push_back({.name = entry.name, .dtype_name = entry.dtype_name, .shape = entry.shape});
    Numbers& numbers = found->second;
    numbers.first = std::min(numbers.first, number);
    numbers.last = std::max(numbers.last, number);
    TensorGroup& group = summary.groups[numbers.group_idx];
    group.num_tensors += 1;
    group.num_bytes += static_cast<int64_t>(entry.num_bytes);
    summary.num_tensors += 1;
    summary.num_elements += entry.num_elements();
    summary.num_bytes += static_cast<int64_t>(entry.num_bytes);
    summary.dtype_bytes[entry.dtype_name] += static_cast<int64_t>(entry.num_bytes);
  }
  for (const auto& [key, numbers] : known) {
    if (numbers.first == numbers.last) continue;
    summary.groups[numbers.group_idx].name =
        fmt::format("{}{{{}..{}}}{}", numbers.name.before, numbers.first, numbers.last, numbers.name.after);
  }
  return summary;
}

std::string format_checkpoint_summary(const CheckpointSummary& summary) {
  std::string text;
  size_t width = 5;
  for (const TensorGroup& group : summary.groups) width = std::max(width, group.dtype_name.size());
  for (const TensorGroup& group : summary.groups) {
    const std::string shape = fmt::format(
        "{}[{}]", group.num_tensors > 1 ? fmt::format("{} x ", group.num_tensors) : "", fmt::join(group.shape, ", "));
    text += fmt::format("  {:<{}} {:<22} {}\n", group.dtype_name, width, shape, group.name);
  }
  text += fmt::format("  {} tensors, {} elements,", summary.num_tensors, summary.num_elements);
  for (const auto& [dtype_name, bytes] : summary.dtype_bytes) {
    text += fmt::format(" {:.3f} GB {}", static_cast<double>(bytes) / 1e9, dtype_name);
  }
  return text + "\n";
}

}  // namespace spate
