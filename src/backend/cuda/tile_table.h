// TileTable: measured choices of tiles, by kernel, shape and tokens, of one kind of GPU (spate kernels tune). A text
// file in the folder of compiled kernels; a start reads it, and what it does not say the rule of plan_wgmma() decides.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/status.h"

namespace spate::cuda {

// Whose k is cut among CTAs: of no tile, of those that are left when each CTA has as many whole ones, of all.
enum class TileCut : uint8_t { kNone, kRest, kAll };
constexpr std::array<std::string_view, 3> kTileCutNames = {"none", "rest", "all"};

struct TileChoice {
  int tile_tokens = 0;
  TileCut cut = TileCut::kNone;
  bool operator==(const TileChoice&) const = default;
};

// What the figures of a table hold for.
struct TileTableKey {
  std::string device;      // "NVIDIA H100 80GB HBM3"
  int driver_version = 0;  // as the driver counts, 13000
  std::string kernels;     // of the sources
};

class TileTable {
 public:
  // invalid_argument: the text is damaged, or its key another one.
  static Result<TileTable> parse(std::string_view text, const TileTableKey& key);
  std::string text(const TileTableKey& key) const;
  // Below `folder`.
  static std::filesystem::path path_of(const std::filesystem::path& folder, const TileTableKey& key);

  std::optional<TileChoice> find(std::string_view kernel, int64_t out_features, int64_t num_steps,
                                 int64_t num_tokens) const;
  // For min_num_tokens to max_num_tokens; nullopt forgets. What was said of a part of this range is forgotten as a
  // whole.
  void set(const std::string& kernel, int64_t out_features, int64_t num_steps, int64_t min_num_tokens,
           int64_t max_num_tokens, std::optional<TileChoice> choice);
  size_t size() const;

 private:
  struct Range {
    int64_t min_num_tokens, max_num_tokens;
    TileChoice choice;
  };
  using Shape = std::tuple<std::string, int64_t, int64_t>;  // kernel, out_features, num_steps
  std::map<Shape, std::vector<Range>> ranges_;
};

}  // namespace spate::cuda
