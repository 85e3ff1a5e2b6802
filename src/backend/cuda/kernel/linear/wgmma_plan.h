// The host's side of linear_skeleton.h: which kernel, and how its tiles are cut among CTAs.
#pragma once

#include <string_view>
#include <vector>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"

namespace spate::cuda {

struct WgmmaPlan {
  size_t kernel_idx;  // into kWgmmaTileTokens
  int tile_tokens;
  int box_tokens;  // of a copy of x: half as many where two CTAs share a tile's tokens
  int64_t num_ctas;
  // Without the maps, bias and output.
  LinearWgmmaKernelParams params;
};

struct WgmmaPlanOptions {
  bool are_sums_exact = false;  // of integers: cutting k changes no bit, so that it is allowed to --deterministic too
  bool has_teams = false;       // the largest tile is that of a team (SPATE_WGMMA_TEAM_KERNEL)
  // Of 4-bit weights: a tile's sums weigh more beside its W.
  bool prefers_small_tiles = false;
  std::string_view kernel = {};  // what a table of measured tiles knows the product by (tile_table.h); empty: no choice
};

// num_steps: of k, of kWgmmaStageRowBytes each.
WgmmaPlan plan_wgmma(const CudaDevice& device, int64_t num_tokens, int64_t out_features, int64_t num_steps,
                     WgmmaPlanOptions options);

// Ways to share out a product that are worth timing, each another one.
std::vector<TileChoice> tile_choices(int64_t num_sms, int64_t out_features, int64_t num_tokens);

// Into kWgmmaTileTokens: the smallest tile that has all tokens, or the largest one.
size_t wgmma_kernel_idx(int64_t num_tokens);

}  // namespace spate::cuda
