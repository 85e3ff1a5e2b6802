#include "backend/cuda/kernel/linear/wgmma_plan.h"

#include <algorithm>
#include <iterator>

#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

// CTAs of one tile.
int team_ctas(const WgmmaPlanOptions& options, size_t kernel_idx) {
  return options.has_teams && kWgmmaTileTokens[kernel_idx] == kWgmmaMaxTileTokens ? kWgmmaTeamCtas : 1;
}

// How many of num_tiles tiles one CTA (or team) computes each; the rest is cut along k. A last round of tiles that
// leaves few SMs idle is not cut: CTAs that work at different k share less in L2.
int64_t num_whole_tiles(int64_t num_ctas, int64_t num_tiles, int64_t num_tokens) {
  if (num_tokens <= kWgmmaMaxTileTokens) return 0;
  const int64_t rest = num_tiles % num_ctas;
  return num_tiles >= num_ctas && 10 * rest > 7 * num_ctas ? num_tiles : num_tiles - rest;
}

// More tokens than a tile has, and few rows of W: tiles of 128 tokens that fill most SMs, one each, take about half the
// time of a tile of 256. Fewer tiles of 256, cut along k, are as fast only where they are under 0.45 an SM, since their
// sums have to be added.
bool fills_sms_with_half_tiles(const CudaDevice& device, int64_t num_tokens, int64_t num_row_tiles) {
  if (num_tokens <= kWgmmaMaxTileTokens) return false;
  return num_row_tiles * ceil_div(num_tokens, kWgmmaMaxTileTokens / 2) <= device.num_sms() &&
         20 * num_row_tiles * ceil_div(num_tokens, kWgmmaMaxTileTokens) >= 9 * device.num_sms();
}

// Of one tile of rows of W and many tokens: the smallest tiles with which each SM has one at most, where most have
// one. A team of tiles of 256 tokens would have one CTA with nothing to do. -1: none.
int idx_of_one_row_tile(const CudaDevice& device, int64_t num_row_tiles, int64_t num_tokens) {
  constexpr int64_t kSmallest = 32;
  if (num_row_tiles > 1 || num_tokens <= kWgmmaMaxTileTokens) return -1;
  for (size_t idx = wgmma_kernel_idx(kSmallest); kWgmmaTileTokens[idx] < kWgmmaMaxTileTokens; ++idx) {
    const int64_t num_tiles = ceil_div(num_tokens, kWgmmaTileTokens[idx]);
    if (num_tiles <= device.num_sms()) return 2 * num_tiles > device.num_sms() ? static_cast<int>(idx) : -1;
  }
  return -1;
}

struct Tiling {
  size_t kernel_idx;  // into kWgmmaTileTokens
  int64_t num_tiles, num_whole_tiles;
};

// num_row_tiles: of kWgmmaTileRows, whatever a team has; the tiling's tiles are those of teams.
Tiling tiling_by_rule(const CudaDevice& device, int64_t num_row_tiles, int64_t num_tokens,
                      const WgmmaPlanOptions& options) {
  const bool may_cut = options.are_sums_exact || !device.is_deterministic();
  Tiling tiling{.kernel_idx = wgmma_kernel_idx(num_tokens)};
  // So few tiles that 8 CTAs share one: of half as many tokens, whose sums one CTA adds in a quarter of the time.
  if (may_cut && num_tokens > 64 && num_tokens <= kWgmmaMaxTileTokens && 8 * num_row_tiles <= device.num_sms()) {
    --tiling.kernel_idx;
  }
  // By int4 a CTA's sums of 128 tokens take longer to add than 64 tokens a tile cost, which read W twice from L2.
  constexpr int64_t kFewRowTiles = 48;
  if (may_cut && options.prefers_small_tiles && num_tokens > 64 && num_tokens <= 128 && num_row_tiles <= kFewRowTiles &&
      kWgmmaTileTokens[tiling.kernel_idx] == 128) {
    --tiling.kernel_idx;
  }
  const int small_idx = options.has_teams ? idx_of_one_row_tile(device, num_row_tiles, num_tokens) : -1;
  const bool has_half_tiles = small_idx < 0 && fills_sms_with_half_tiles(device, num_tokens, num_row_tiles);
  if (has_half_tiles) --tiling.kernel_idx;
  if (small_idx >= 0) tiling.kernel_idx = static_cast<size_t>(small_idx);
  const int team = team_ctas(options, tiling.kernel_idx);
  tiling.num_tiles = ceil_div(num_row_tiles, team) * ceil_div(num_tokens, kWgmmaTileTokens[tiling.kernel_idx]);
  tiling.num_whole_tiles = may_cut && !has_half_tiles && small_idx < 0
                               ? num_whole_tiles(device.num_sms() / team, tiling.num_tiles, num_tokens)
                               : tiling.num_tiles;
  return tiling;
}

Tiling tiling_of(const TileChoice& choice, int64_t num_sms, int64_t num_row_tiles, int64_t num_tokens,
                 const WgmmaPlanOptions& options) {
  Tiling tiling{.kernel_idx = wgmma_kernel_idx(choice.tile_tokens)};
  const int team = team_ctas(options, tiling.kernel_idx);
  tiling.num_tiles = ceil_div(num_row_tiles, team) * ceil_div(num_tokens, choice.tile_tokens);
  if (choice.cut == TileCut::kNone) tiling.num_whole_tiles = tiling.num_tiles;
  if (choice.cut == TileCut::kRest) tiling.num_whole_tiles = tiling.num_tiles - tiling.num_tiles % (num_sms / team);
  return tiling;
}

// So many CTAs share num_tiles tiles of num_steps steps, at most num_ctas: fewer where then each has an equal part of
// one tile that is at most a sixteenth longer.
int64_t num_sharing_ctas(int64_t num_tiles, int64_t num_steps, int64_t num_ctas) {
  const int64_t num_shared_steps = num_tiles * num_steps, each = ceil_div(num_shared_steps, num_ctas);
  for (int64_t run = each; 16 * run <= 17 * each; ++run) {
    if (num_steps % run == 0) return num_shared_steps / run;
  }
  return num_ctas;
}

}  // namespace

std::vector<TileChoice> tile_choices(int64_t num_sms, int64_t out_features, int64_t num_tokens) {
  constexpr size_t kMaxSmaller = 2;  // tiles than the one that has all tokens
  const int64_t num_row_tiles = ceil_div(out_features, kWgmmaTileRows);
  const size_t largest = wgmma_kernel_idx(num_tokens);
  std::vector<TileChoice> choices;
  for (size_t idx = largest - std::min(largest, kMaxSmaller); idx <= largest; ++idx) {
    std::vector<int64_t> seen;
    for (const TileCut cut : {TileCut::kNone, TileCut::kRest, TileCut::kAll}) {
      const TileChoice choice{kWgmmaTileTokens[idx], cut};
      const int64_t num_whole = tiling_of(choice, num_sms, num_row_tiles, num_tokens, {}).num_whole_tiles;
      if (std::ranges::find(seen, num_whole) != seen.end()) continue;
      seen.push_back(num_whole);
      choices.push_back(choice);
    }
  }
  return choices;
}

size_t wgmma_kernel_idx(int64_t num_tokens) {
  size_t idx = 0;
  while (idx + 1 < std::size(kWgmmaTileTokens) && kWgmmaTileTokens[idx] < num_tokens) ++idx;
  return idx;
}

WgmmaPlan plan_wgmma(const CudaDevice& device, int64_t num_tokens, int64_t out_features, int64_t num_steps,
                     WgmmaPlanOptions options) {
  constexpr int64_t kMinSteps = 8;  // of k a CTA: fewer take longer to add than to multiply
  WgmmaPlan plan{};
  int64_t num_row_tiles = ceil_div(out_features, kWgmmaTileRows);
  const std::optional<TileChoice> measured = device.tile_choice(options.kernel, out_features, num_steps, num_tokens);
  const Tiling tiling = measured ? tiling_of(*measured, device.num_sms(), num_row_tiles, num_tokens, options)
                                 : tiling_by_rule(device, num_row_tiles, num_tokens, options);
  plan.kernel_idx = tiling.kernel_idx;
  plan.tile_tokens = kWgmmaTileTokens[plan.kernel_idx];
  const int team = team_ctas(options, plan.kernel_idx);
  plan.box_tokens = plan.tile_tokens / team;
  num_row_tiles = ceil_div(num_row_tiles, team);
  const int64_t num_tiles = tiling.num_tiles, num_whole = tiling.num_whole_tiles;
  const int64_t num_shared_steps = (num_tiles - num_whole) * num_steps;
  const int64_t num_teams = device.num_sms() / team;
  int64_t num_sharing = std::clamp<int64_t>(num_shared_steps / kMinSteps, 1, num_teams);
  if (options.prefers_small_tiles && num_tokens > 64 && num_tokens <= 128 && num_shared_steps > 0) {
    num_sharing = num_sharing_ctas(num_tiles - num_whole, num_steps, num_sharing);
  }
  plan.num_ctas = team * std::min<int64_t>(num_teams, std::max(num_whole, num_sharing));
  plan.params.partial = device.partial_sums();
  plan.params.arrived = device.partial_flags();
  plan.params.num_tokens = static_cast<int32_t>(num_tokens);
  plan.params.out_features = static_cast<int32_t>(out_features);
  plan.params.num_steps = static_cast<int32_t>(num_steps);
  plan.params.num_row_tiles = static_cast<int32_t>(num_row_tiles);
  plan.params.num_tiles = static_cast<int32_t>(num_tiles);
  plan.params.num_whole_tiles = static_cast<int32_t>(num_whole);
  plan.params.num_sharing_ctas = static_cast<int32_t>(num_sharing);
  return plan;
}

}  // namespace spate::cuda
