#include "backend/cuda/kernel/linear/linear_int4_groups.h"

#include <algorithm>
#include <array>
#include <bit>

#include "backend/cuda/kernel/linear/wgmma_plan.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

// --- up to kRowsTokens tokens ------------------------------------------------------------------------------------

KernelId rows_kernel_of(const Int4GroupLayout& layout, int64_t x_bytes) {
  using Ids = std::array<KernelId, 2>;
  static constexpr Ids kPlain = {kernel_id("linear_int4_rows"), kernel_id("linear_int4_rows_wide")};
  static constexpr Ids kPlain32 = {kernel_id("linear_int4_rows_g32"), kernel_id("linear_int4_rows_g32_wide")};
  static constexpr Ids kOffsets = {kernel_id("linear_int4_rows_offsets"), kernel_id("linear_int4_rows_offsets_wide")};
  static constexpr Ids kOffsets32 = {kernel_id("linear_int4_rows_offsets_g32"),
                                     kernel_id("linear_int4_rows_offsets_g32_wide")};
  const bool has_many_scales = layout.group_width < kInt4RowsTileK;
  const Ids& ids =
      layout.scale_bytes == 2 ? (has_many_scales ? kPlain32 : kPlain) : (has_many_scales ? kOffsets32 : kOffsets);
  return ids[x_bytes > kInt4RowsSmallBytes ? 1 : 0];
}

int64_t rows_x_bytes(const LinearKernelParams& p) { return p.num_tokens * int4_rows_x_bytes(p.in_features); }

bool fits_rows(const CudaDevice& device, const LinearKernelParams& p, const Int4GroupLayout& layout) {
  return !device.is_deterministic() && p.num_tokens <= kRowsTokens && p.in_features % kInt4RowsTileK == 0 &&
         p.in_features >= kRowsWarps * kInt4RowsTileK && layout.scale_bytes < 8 &&
         std::has_single_bit(static_cast<uint32_t>(layout.group_width)) && rows_x_bytes(p) <= kInt4RowsLargeBytes;
}

// has_silu: out is silu(gate) * up, the rows of the weight are gates, then ups.
void launch_rows(Stream& stream, const LinearKernelParams& p, const Int4GroupLayout& layout, bool has_silu) {
  constexpr int kCtasPerSm = 2, kGroupRows = 16;
  const int64_t max_ctas = kCtasPerSm * static_cast<CudaStream&>(stream).cuda_device().num_sms();
  const int64_t num_groups = ceil_div(p.out_features, kGroupRows);
  const LinearInt4RowsKernelParams params{
      .rows = {.x = p.x,
               .weight = static_cast<const char*>(p.weight),
               .bias = p.bias,
               .out = p.out,
               .x_stride = p.x_stride,
               .weight_stride = 0,
               .out_stride = p.out_stride,
               .num_tokens = p.num_tokens,
               .out_features = p.out_features,
               .num_steps = p.in_features / kInt4RowsTileK,
               .num_groups = static_cast<int32_t>(num_groups),
               .group_step = has_silu ? kGroupRows / 2 : kGroupRows,
               .pair_step = has_silu ? p.out_features / 2 : kGroupRows / 2,
               .has_silu = has_silu,
               .is_out_f32 = p.is_out_f32},
      .layout = layout,
      .place_shift = std::countr_zero(static_cast<uint32_t>(layout.place_width / 32))};
  launch(stream, rows_kernel_of(layout, rows_x_bytes(p)),
         {.x = std::min(num_groups, max_ctas), .num_threads = 32 * kRowsWarps}, params,
         {{"num_tokens", p.num_tokens}, {"out_features", p.out_features}, {"in_features", p.in_features}});
}

// --- more tokens -------------------------------------------------------------------------------------------------

// has_silu: out is silu(gate) * up, the rows of the weight are gates, then ups.
void launch_wgmma(Stream& stream, const LinearKernelParams& p, const Int4GroupLayout& layout, bool has_silu) {
  using Ids = std::array<KernelId, std::size(kWgmmaTileTokens)>;
  static constexpr Ids kPlain = {kernel_id("linear_int4_groups_n8"),   kernel_id("linear_int4_groups_n16"),
                                 kernel_id("linear_int4_groups_n32"),  kernel_id("linear_int4_groups_n64"),
                                 kernel_id("linear_int4_groups_n128"), kernel_id("linear_int4_groups_n256")};
  static constexpr Ids kOffsets = {kernel_id("linear_int4_offsets_n8"),   kernel_id("linear_int4_offsets_n16"),
                                   kernel_id("linear_int4_offsets_n32"),  kernel_id("linear_int4_offsets_n64"),
                                   kernel_id("linear_int4_offsets_n128"), kernel_id("linear_int4_offsets_n256")};
  static constexpr Ids kPlainSilu = {
      kernel_id("linear_int4_groups_silu_n8"),   kernel_id("linear_int4_groups_silu_n16"),
      kernel_id("linear_int4_groups_silu_n32"),  kernel_id("linear_int4_groups_silu_n64"),
      kernel_id("linear_int4_groups_silu_n128"), kernel_id("linear_int4_groups_silu_n256")};
  static constexpr Ids kOffsetsSilu = {
      kernel_id("linear_int4_offsets_silu_n8"),   kernel_id("linear_int4_offsets_silu_n16"),
      kernel_id("linear_int4_offsets_silu_n32"),  kernel_id("linear_int4_offsets_silu_n64"),
      kernel_id("linear_int4_offsets_silu_n128"), kernel_id("linear_int4_offsets_silu_n256")};
  const Ids& of_plain = has_silu ? kPlainSilu : kPlain;
  const Ids& ids = layout.scale_bytes == 2 ? of_plain : has_silu ? kOffsetsSilu : kOffsets;
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const WgmmaPlan plan = plan_wgmma(device, p.num_tokens, p.out_features, ceil_div(p.in_features, kInt4GroupTileK),
                                    {.are_sums_exact = false});
  LinearInt4GroupKernelParams params{
      .tiles = plan.params, .weight = static_cast<const char*>(p.weight), .layout = layout};
  params.tiles.x = make_bf16_map(device.api(), p.x, p.num_tokens, p.in_features, p.x_stride, plan.tile_tokens);
  params.tiles.weight = params.tiles.x;  // prefetched as it is; W comes without a map
  params.tiles.bias = p.bias;
  params.tiles.out = p.out;
  params.tiles.out_stride = p.out_stride;
  params.tiles.is_out_f32 = p.is_out_f32;
  params.tiles.is_out_paired = p.is_out_paired;
  launch(stream, ids[plan.kernel_idx], {.x = plan.num_ctas, .num_threads = kWgmmaThreads}, params,
         {{"num_tokens", p.num_tokens}, {"out_features", p.out_features}, {"in_features", p.in_features}});
}

// --- anything else -----------------------------------------------------------------------------------------------

// Few rows of W by several tokens run on other kernels as floats, with another order of sums.
bool has_few_rows(const LinearKernelParams& p) { return p.num_tokens > kRowsTokens && p.out_features <= 256; }

// Rows of W become floats in the workspace, some at a time, and then a product of floats.
void linear_expanded(Stream& stream, const LinearParams& p, const LinearKernelParams& whole,
                     const Int4GroupLayout& layout) {
  constexpr int64_t kBytesAtOnce = 32 << 20;
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const DType act = p.x.dtype();
  const int64_t row_bytes = whole.weight_stride * dtype_bytes(act), out_bytes = dtype_bytes(p.out.dtype());
  const int64_t rows_at_once =
      std::max<int64_t>(kWgmmaTileRows, kBytesAtOnce / row_bytes / kWgmmaTileRows * kWgmmaTileRows);
  const int64_t num_rows = std::min<int64_t>(rows_at_once, whole.out_features);
  void* floats = device.workspace(static_cast<size_t>(num_rows * row_bytes));
  for (int64_t begin = 0; begin < whole.out_features; begin += rows_at_once) {
    const int64_t count = std::min<int64_t>(rows_at_once, whole.out_features - begin);
    const ExpandInt4GroupsKernelParams expand{.matrix = static_cast<const char*>(whole.weight),
                                              .out = floats,
                                              .layout = layout,
                                              .out_stride = whole.weight_stride,
                                              .first_row = static_cast<int32_t>(begin)};
    launch(stream, act == DType::kF32 ? kernel_id("expand_int4_groups_f32") : kernel_id("expand_int4_groups_bf16"),
           {.x = count, .num_threads = kInt4GroupThreads}, expand, {{"num_rows", count}, {"width", layout.width}});
    FloatProduct product{.act = act,
                         .codes = act == DType::kF32 ? Codes::kF32 : Codes::kBf16,
                         .params = whole,
                         .is_weight_constant = false};
    product.params.weight = floats;
    product.params.out_features = static_cast<int32_t>(count);
    if (whole.bias != nullptr) product.params.bias = static_cast<const char*>(whole.bias) + begin * dtype_bytes(act);
    product.params.out = static_cast<char*>(whole.out) + begin * out_bytes;
    linear_floats(stream, product);
  }
}

LinearKernelParams params_of(const LinearParams& p) {
  return linear_kernel_params(p, p.weight->matrix(p.matrix_idx), weight_row_stride(p.weight->desc()));
}

}  // namespace

void linear_int4_groups(Stream& stream, const LinearParams& p) {
  const LinearKernelParams params = params_of(p);
  const Int4GroupLayout layout = int4_group_layout(p.weight->desc());
  if (params.num_tokens == 0 || params.out_features == 0) return;
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (p.x.dtype() != DType::kBf16 || !params.is_x_aligned) return linear_expanded(stream, p, params, layout);
  if (fits_rows(device, params, layout)) return launch_rows(stream, params, layout, false);
  if (!device.is_deterministic() && has_few_rows(params)) return linear_expanded(stream, p, params, layout);
  launch_wgmma(stream, params, layout, false);
}

bool linear_silu_and_mul_int4_groups(Stream& stream, const LinearSiluAndMulParams& p) {
  const LinearKernelParams params =
      params_of({.x = p.x, .weight = p.weight, .bias = p.bias, .out = p.out, .matrix_idx = p.matrix_idx});
  const Int4GroupLayout layout = int4_group_layout(p.weight->desc());
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (p.x.dtype() != DType::kBf16 || !params.is_x_aligned || params.num_tokens == 0 || params.out_features == 0 ||
      params.out_features % 16 != 0) {
    return false;
  }
  if (fits_rows(device, params, layout)) {
    launch_rows(stream, params, layout, true);
    return true;
  }
  // Half a tile of gates and half a tile of ups lie in one tile of the weight each.
  if (params.out_features % kWgmmaTileRows != 0 || params.bias != nullptr || !params.is_out_paired ||
      (!device.is_deterministic() && has_few_rows(params))) {
    return false;
  }
  launch_wgmma(stream, params, layout, true);
  return true;
}

}  // namespace spate::cuda
