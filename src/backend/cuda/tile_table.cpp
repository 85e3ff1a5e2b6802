#include "backend/cuda/tile_table.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "backend/cuda/kernel/linear/linear_wgmma.h"

namespace spate::cuda {
namespace {

constexpr std::string_view kTitle = "spate tile table 1";

std::string head_of(const TileTableKey& key) {
  return fmt::format("{}\ndevice {}\ndriver {}\nkernels {}\n", kTitle, key.device, key.driver_version, key.kernels);
}

// FNV-1a, of everything before the last line.
uint64_t checksum_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : text) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace

std::filesystem::path TileTable::path_of(const std::filesystem::path& folder, const TileTableKey& key) {
  std::string name = key.device;
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '-');
  return folder / fmt::format("tiles-{}.txt", name);
}

std::string TileTable::text(const TileTableKey& key) const {
  std::string text = head_of(key);
  for (const auto& [shape, ranges] : ranges_) {
    const auto& [kernel, out_features, num_steps] = shape;
    for (const Range& range : ranges) {
      text += fmt::format("{} {} {} {} {} {} {}\n", kernel, out_features, num_steps, range.min_num_tokens,
                          range.max_num_tokens, range.choice.tile_tokens,
                          kTileCutNames[static_cast<size_t>(range.choice.cut)]);
    }
  }
  return text + fmt::format("end {:016x}\n", checksum_of(text));
}

Result<TileTable> TileTable::parse(std::string_view text, const TileTableKey& key) {
  const std::string head = head_of(key);
  const size_t end = text.rfind("end ");
  if (end == std::string_view::npos ||
      text.substr(end) != fmt::format("end {:016x}\n", checksum_of(text.substr(0, end)))) {
    return invalid_argument("it is damaged");
  }
  if (!text.starts_with(head)) return invalid_argument("it is of another GPU, driver or version of the kernels");
  TileTable table;
  std::istringstream lines{std::string(text.substr(head.size(), end - head.size()))};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kernel, cut;
    int64_t out_features = 0, num_steps = 0, min_num_tokens = 0, max_num_tokens = 0;
    TileChoice choice;
    words >> kernel >> out_features >> num_steps >> min_num_tokens >> max_num_tokens >> choice.tile_tokens >> cut;
    const auto name = std::ranges::find(kTileCutNames, cut);
    const bool is_tile = std::ranges::find(kWgmmaTileTokens, choice.tile_tokens) != std::ranges::end(kWgmmaTileTokens);
    if (!words || name == kTileCutNames.end() || !is_tile) return invalid_argument("'{}' is no choice", line);
    choice.cut = static_cast<TileCut>(name - kTileCutNames.begin());
    table.set(kernel, out_features, num_steps, min_num_tokens, max_num_tokens, choice);
  }
  return table;
}

std::optional<TileChoice> TileTable::find(std::string_view kernel, int64_t out_features, int64_t num_steps,
                                          int64_t num_tokens) const {
  if (ranges_.empty()) return std::nullopt;
  const auto found = ranges_.find({std::string(kernel), out_features, num_steps});
  if (found == ranges_.end()) return std::nullopt;
  for (const Range& range : found->second) {
    if (range.min_num_tokens <= num_tokens && num_tokens <= range.max_num_tokens) return range.choice;
  }
  return std::nullopt;
}

void TileTable::set(const std::string& kernel, int64_t out_features, int64_t num_steps, int64_t min_num_tokens,
                    int64_t max_num_tokens, std::optional<TileChoice> choice) {
  std::vector<Range>& ranges = ranges_[{kernel, out_features, num_steps}];
  std::erase_if(ranges, [&](const Range& range) {
    return range.min_num_tokens <= max_num_tokens && min_num_tokens <= range.max_num_tokens;
  });
  if (choice) ranges.push_back({min_num_tokens, max_num_tokens, *choice});
  std::ranges::sort(ranges, {}, &Range::min_num_tokens);
}

size_t TileTable::size() const {
  size_t size = 0;
  for (const auto& [shape, ranges] : ranges_) size += ranges.size();
  return size;
}

}  // namespace spate::cuda
