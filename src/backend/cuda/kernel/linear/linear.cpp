#include "backend/cuda/kernel/linear/linear.h"

#include <algorithm>
#include <array>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/linear/linear_int4_groups.h"
#include "backend/cuda/kernel/linear/linear_integer.h"
#include "backend/cuda/kernel/linear/linear_rows.h"
#include "backend/cuda/kernel/linear/linear_split.h"
#include "backend/cuda/kernel/linear/wgmma_plan.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

struct LinearChoice {
  KernelId kernel;
  LaunchGrid grid;
};

// A CTA for each tile of columns and tokens.
LinearChoice tiled(KernelId kernel, const LinearKernelParams& p, int tile_m, int tile_n, int num_threads) {
  return {kernel,
          {.x = ceil_div(p.out_features, tile_n), .y = ceil_div(p.num_tokens, tile_m), .num_threads = num_threads}};
}

// linear_tile orders its tiles itself. The large tile is faster where it gives most SMs one.
LinearChoice choose_tile(const CudaDevice& device, const LinearKernelParams& p) {
  const auto num_tiles = [&](int tile_m, int tile_n) {
    return ceil_div(p.num_tokens, tile_m) * ceil_div(p.out_features, tile_n);
  };
  const int64_t num_large = num_tiles(kLinearTileLargeM, kLinearTileLargeN);
  if (device.has(kernel_id("linear_tile_large")) && 4 * num_large >= 3 * device.num_sms()) {
    return {kernel_id("linear_tile_large"), {.x = num_large, .num_threads = kLinearTileLargeThreads}};
  }
  return {kernel_id("linear_tile_small"),
          {.x = num_tiles(kLinearTileSmallM, kLinearTileSmallN), .num_threads = kLinearTileSmallThreads}};
}

LinearChoice choose_kernel(const CudaDevice& device, DType act, Codes codes, const LinearKernelParams& p) {
  if (act == DType::kBf16 && codes == Codes::kBf16) {
    // Few tokens: the kernels that stream W. Their sums have another order; all others give the same bits.
    constexpr int kStreamThreads = 32 * kLinearStreamWarps;
    if (!device.is_deterministic() && p.num_tokens <= 8)
      return tiled(kernel_id("linear_stream_m8"), p, 8, 16, kStreamThreads);
    if (!device.is_deterministic() && p.num_tokens <= 16)
      return tiled(kernel_id("linear_stream_m16"), p, 16, 32, kStreamThreads);
    if (p.is_x_aligned && p.in_features % 8 == 0 && device.has(kernel_id("linear_tile_small")))
      return choose_tile(device, p);
    return tiled(kernel_id("linear_mma"), p, kLinearMmaTileM, kLinearMmaTileN, kLinearMmaThreads);
  }
  const KernelId kernel = act == DType::kBf16     ? kernel_id("linear_fma_bf16_f32")
                          : codes == Codes::kBf16 ? kernel_id("linear_fma_f32_bf16")
                                                  : kernel_id("linear_fma_f32_f32");
  return tiled(kernel, p, kLinearFmaTileM, kLinearFmaTileN, kLinearFmaThreads);
}

// --- linear_wgmma ------------------------------------------------------------------------------------------------

bool fits_wgmma(const CudaDevice& device, const FloatProduct& product) {
  return device.has(kernel_id("linear_wgmma_n8")) && product.act == DType::kBf16 && product.codes == Codes::kBf16 &&
         product.params.is_x_aligned;
}

// The maps, the bias and the output.
void set_tensors(LinearWgmmaKernelParams& params, const CudaDevice& device, const LinearKernelParams& p,
                 int box_tokens) {
  params.x = make_bf16_map(device.api(), p.x, p.num_tokens, p.in_features, p.x_stride, box_tokens);
  params.weight = make_bf16_map(device.api(), p.weight, p.out_features, p.in_features, p.weight_stride, kWgmmaRows);
  params.bias = p.bias;
  params.out = p.out;
  params.out_stride = p.out_stride;
  params.is_out_f32 = p.is_out_f32;
  params.is_out_paired = p.is_out_paired;
}

// Few rows of W, at least two steps of k for every CTA of a cluster. Half of the SMs at most: clusters find no room
// where the SMs of a GPC do not divide by 8.
bool fits_split(const CudaDevice& device, const LinearKernelParams& p) {
  return device.has(kernel_id("linear_split_n16")) && !device.is_deterministic() &&
         p.num_tokens > kWgmmaTileTokens[0] && p.num_tokens <= kWgmmaMaxTileTokens &&
         ceil_div(p.out_features, kWgmmaTileRows) * kSplitCtas * 2 <= device.num_sms() &&
         ceil_div(p.in_features, kWgmmaTileK) >= 2 * kSplitCtas;
}

// Tiles of fewer tokens where all their clusters still take half of the SMs at most: what a CTA multiplies and
// exchanges is the time of such a product.
size_t split_kernel_idx(const CudaDevice& device, int64_t num_tokens, int64_t num_row_tiles) {
  constexpr int64_t kSmallest = 32;
  const size_t largest = wgmma_kernel_idx(num_tokens);
  for (size_t idx = std::min(largest, wgmma_kernel_idx(kSmallest)); idx < largest; ++idx) {
    const int64_t num_ctas = num_row_tiles * ceil_div(num_tokens, kWgmmaTileTokens[idx]) * kSplitCtas;
    if (2 * num_ctas <= device.num_sms()) return idx;
  }
  return largest;
}

void launch_split(Stream& stream, const FloatProduct& product) {
  const LinearKernelParams& p = product.params;
  static constexpr std::array kKernelIds = {kernel_id("linear_split_n16"), kernel_id("linear_split_n32"),
                                            kernel_id("linear_split_n64"), kernel_id("linear_split_n128"),
                                            kernel_id("linear_split_n256")};
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_row_tiles = ceil_div(p.out_features, kWgmmaTileRows);
  const size_t idx = split_kernel_idx(device, p.num_tokens, num_row_tiles);
  const int64_t num_tiles = num_row_tiles * ceil_div(p.num_tokens, kWgmmaTileTokens[idx]);
  LinearWgmmaKernelParams params{};
  set_tensors(params, device, p, kWgmmaTileTokens[idx]);
  params.num_tokens = p.num_tokens;
  params.out_features = p.out_features;
  params.num_steps = static_cast<int32_t>(ceil_div(p.in_features, kWgmmaTileK));
  params.num_row_tiles = static_cast<int32_t>(num_row_tiles);
  params.num_tiles = static_cast<int32_t>(num_tiles);
  launch(stream, kKernelIds[idx - 1],
         {.x = num_tiles * kSplitCtas, .num_threads = kWgmmaThreads, .is_early = product.is_weight_constant}, params,
         {{"num_tokens", p.num_tokens}, {"out_features", p.out_features}, {"in_features", p.in_features}});
}

// Of a weight of gates, then ups: 8 rows of each by turns.
TensorMap make_gate_up_map(const DriverApi& api, const LinearKernelParams& p) {
  const int64_t row_bytes = p.weight_stride * 2, width = p.out_features / 2;
  return make_bf16_map_5d(api, p.weight, {p.in_features, 8, 2, width / 8, 1},
                          {row_bytes, width * row_bytes, 8 * row_bytes, 2 * width * row_bytes}, {64, 8, 2, 8, 1});
}

// has_silu: out is silu(gate) * up, the rows of the weight are gates, then ups.
void launch_wgmma(Stream& stream, const FloatProduct& product, bool has_silu) {
  const LinearKernelParams& p = product.params;
  using Ids = std::array<KernelId, std::size(kWgmmaTileTokens)>;
  static constexpr Ids kPlain = {kernel_id("linear_wgmma_n8"),   kernel_id("linear_wgmma_n16"),
                                 kernel_id("linear_wgmma_n32"),  kernel_id("linear_wgmma_n64"),
                                 kernel_id("linear_wgmma_n128"), kernel_id("linear_wgmma_n256")};
  static constexpr Ids kSilu = {kernel_id("linear_silu_wgmma_n8"),   kernel_id("linear_silu_wgmma_n16"),
                                kernel_id("linear_silu_wgmma_n32"),  kernel_id("linear_silu_wgmma_n64"),
                                kernel_id("linear_silu_wgmma_n128"), kernel_id("linear_silu_wgmma_n256")};
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const WgmmaPlan plan = plan_wgmma(device, p.num_tokens, p.out_features, ceil_div(p.in_features, kWgmmaTileK),
                                    {.has_teams = true, .kernel = has_silu ? "linear_silu_wgmma" : "linear_wgmma"});
  LinearWgmmaKernelParams params = plan.params;
  set_tensors(params, device, p, plan.box_tokens);
  if (has_silu) params.weight = make_gate_up_map(device.api(), p);
  launch(stream, (has_silu ? kSilu : kPlain)[plan.kernel_idx],
         {.x = plan.num_ctas, .num_threads = kWgmmaThreads, .is_early = product.is_weight_constant}, params,
         {{"num_tokens", p.num_tokens}, {"out_features", p.out_features}, {"in_features", p.in_features}});
}

// --- up to kRowsTokens tokens ------------------------------------------------------------------------------------

// Where linear_rows runs instead of linear_wgmma. A row's sum has another order there than in whole tiles.
bool fits_rows(const CudaDevice& device, const FloatProduct& product) {
  const LinearKernelParams& params = product.params;
  return fits_wgmma(device, product) && device.has(kernel_id("linear_rows_8")) && !device.is_deterministic() &&
         params.num_tokens <= kRowsTokens && params.in_features % kRowsTileK == 0 &&
         params.in_features >= kRowsWarps * kRowsTileK;
}

// Groups of 8 rows where those of 16 give some CTA over a tenth more than its share, and 8 share out better.
bool wants_small_groups(int64_t out_features, int64_t max_ctas) {
  const auto most = [&](int64_t rows) { return ceil_div(ceil_div(out_features, rows), max_ctas) * rows; };
  return 10 * most(16) * max_ctas > 11 * out_features && most(8) < most(16);
}

// has_silu: out is silu(gate) * up, the rows of the weight are gates, then ups.
void launch_rows(Stream& stream, const FloatProduct& product, bool has_silu) {
  const LinearKernelParams& p = product.params;
  constexpr int kCtasPerSm = 2, kGroupRows = 16;
  const int64_t max_ctas = kCtasPerSm * static_cast<CudaStream&>(stream).cuda_device().num_sms();
  const bool is_small = !has_silu && wants_small_groups(p.out_features, max_ctas);
  const int rows = is_small ? kGroupRows / 2 : kGroupRows;
  const int64_t num_groups = ceil_div(p.out_features, rows);
  const LinearRowsKernelParams params{.x = p.x,
                                      .weight = static_cast<const char*>(p.weight),
                                      .bias = p.bias,
                                      .out = p.out,
                                      .x_stride = p.x_stride,
                                      .weight_stride = p.weight_stride,
                                      .out_stride = p.out_stride,
                                      .num_tokens = p.num_tokens,
                                      .out_features = p.out_features,
                                      .num_steps = p.in_features / kRowsTileK,
                                      .num_groups = static_cast<int32_t>(num_groups),
                                      .group_step = has_silu ? kGroupRows / 2 : rows,
                                      .pair_step = has_silu ? p.out_features / 2 : kGroupRows / 2,
                                      .has_silu = has_silu,
                                      .is_out_f32 = p.is_out_f32};
  launch(stream, is_small ? kernel_id("linear_rows_8") : kernel_id("linear_rows_16"),
         {.x = std::min(num_groups, max_ctas), .num_threads = 32 * kRowsWarps, .is_early = product.is_weight_constant},
         params, {{"num_tokens", p.num_tokens}, {"out_features", p.out_features}, {"in_features", p.in_features}});
}

FloatProduct float_product(const LinearParams& p) {
  const PackedWeight& weight = *p.weight;
  return {.act = p.x.dtype(),
          .codes = weight.desc().spec.codes,
          .params = linear_kernel_params(p, weight.matrix(p.matrix_idx), weight_row_stride(weight.desc()))};
}

// False: the decomposition has to do it.
bool linear_silu_and_mul_bf16(Stream& stream, const LinearSiluAndMulParams& p) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const FloatProduct product =
      float_product({.x = p.x, .weight = p.weight, .bias = p.bias, .out = p.out, .matrix_idx = p.matrix_idx});
  const LinearKernelParams& params = product.params;
  if (params.num_tokens == 0 || params.out_features == 0 || params.out_features % 16 != 0) return false;
  if (fits_rows(device, product)) {
    launch_rows(stream, product, true);
    return true;
  }
  if (!fits_wgmma(device, product) || fits_split(device, params) || params.bias != nullptr || !params.is_out_paired) {
    return false;
  }
  launch_wgmma(stream, product, true);
  return true;
}

}  // namespace

LinearKernelParams linear_kernel_params(const LinearParams& p, const void* weight, int64_t weight_stride) {
  const WeightDesc& desc = p.weight->desc();
  const int64_t x_bytes = p.x.stride(0) * dtype_bytes(p.x.dtype());
  return {
      .x = p.x.raw(),
      .weight = weight,
      .bias = p.bias.defined() ? p.bias.raw() : nullptr,
      .out = p.out.raw(),
      .x_stride = p.x.stride(0),
      .weight_stride = weight_stride,
      .out_stride = p.out.stride(0),
      .num_tokens = static_cast<int32_t>(p.x.dim(0)),
      .out_features = static_cast<int32_t>(desc.out_features),
      .in_features = static_cast<int32_t>(desc.in_features),
      .is_x_aligned = reinterpret_cast<uintptr_t>(p.x.raw()) % 16 == 0 && x_bytes % 16 == 0,
      .is_out_f32 = p.out.dtype() == DType::kF32,
      .is_out_paired = reinterpret_cast<uintptr_t>(p.out.raw()) % 4 == 0 && p.out.stride(0) % 2 == 0,
  };
}

void linear_floats(Stream& stream, const FloatProduct& product) {
  const LinearKernelParams& params = product.params;
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (fits_rows(device, product)) return launch_rows(stream, product, false);
  if (fits_wgmma(device, product))
    return fits_split(device, params) ? launch_split(stream, product) : launch_wgmma(stream, product, false);
  LinearChoice choice = choose_kernel(device, product.act, product.codes, params);
  choice.grid.is_early = product.is_weight_constant;
  launch(
      stream, choice.kernel, choice.grid, params,
      {{"num_tokens", params.num_tokens}, {"out_features", params.out_features}, {"in_features", params.in_features}});
}

void linear(Stream& stream, const LinearParams& p) {
  check_params(p);
  const WeightDesc& desc = p.weight->desc();
  if (is_int4_group_spec(desc.spec)) return linear_int4_groups(stream, p);
  if (desc.spec.has_integer_codes()) return linear_integer(stream, p);
  if (p.x.dim(0) == 0 || desc.out_features == 0) return;
  linear_floats(stream, float_product(p));
}

void linear_silu_and_mul(Stream& stream, const LinearSiluAndMulParams& p) {
  check_params(p);
  const WeightSpec& spec = p.weight->desc().spec;
  const bool is_done = is_int4_group_spec(spec)   ? linear_silu_and_mul_int4_groups(stream, p)
                       : spec.has_integer_codes() ? linear_silu_and_mul_integer(stream, p)
                                                  : linear_silu_and_mul_bf16(stream, p);
  if (!is_done) decompositions().linear_silu_and_mul(stream, p);
}

}  // namespace spate::cuda
