// Products with a matrix for each head: one row by head_rows.cu, bf16 by wgmma (head_product.cu), the rest by
// expert_product.cu.
#include <algorithm>
#include <array>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/expert/expert_product.h"
#include "backend/cuda/kernel/expert/expert_wgmma.h"
#include "backend/cuda/kernel/expert/weight_matrices.h"
#include "backend/cuda/kernel/latent/head_rows.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

bool fits_wgmma(const CudaDevice& device, const LinearHeadsParams& p) {
  const WeightDesc& desc = p.weight->desc();
  const auto is_aligned = [](const Tensor& rows, int64_t unit) {
    return reinterpret_cast<uintptr_t>(rows.raw()) % (2 * static_cast<uintptr_t>(unit)) == 0 &&
           rows.stride(0) % unit == 0 && rows.stride(1) % unit == 0;
  };
  return device.has(kernel_id("head_product_n8")) && p.x.dtype() == DType::kBf16 && is_bf16(*p.weight) &&
         desc.in_features % kWgmmaTileK == 0 && desc.out_features % 2 == 0 && is_aligned(p.x, 8) &&
         is_aligned(p.out, 2);
}

void run_heads_wgmma(Stream& stream, const LinearHeadsParams& p) {
  static constexpr std::array kKernelIds = {kernel_id("head_product_n8"),   kernel_id("head_product_n16"),
                                            kernel_id("head_product_n32"),  kernel_id("head_product_n64"),
                                            kernel_id("head_product_n128"), kernel_id("head_product_n256")};
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const WeightDesc& desc = p.weight->desc();
  const int64_t num_tokens = p.x.dim(0), num_heads = desc.num_matrices;
  size_t i = 0;
  while (i + 1 < kKernelIds.size() && kWgmmaTileTokens[i] < num_tokens) ++i;
  const int64_t weight_tiles = ceil_div(desc.out_features, kWgmmaTileRows);
  const int64_t num_tiles = weight_tiles * num_heads * ceil_div(num_tokens, kWgmmaTileTokens[i]);
  const ExpertWgmmaKernelParams params{
      .weight = bf16_rows_map(device.api(), *p.weight),
      .x = make_bf16_map(device.api(), p.x.raw(), num_tokens, (num_heads - 1) * p.x.stride(1) + desc.in_features,
                         p.x.stride(0), expert_box_rows(kWgmmaTileTokens[i])),
      .out = p.out.raw(),
      .out_stride = p.out.stride(0),
      .out_matrix_stride = p.out.stride(1),
      .x_matrix_columns = static_cast<int32_t>(p.x.stride(1)),
      .num_rows = static_cast<int32_t>(num_tokens),
      .num_matrices = static_cast<int32_t>(num_heads),
      .out_features = static_cast<int32_t>(desc.out_features),
      .num_steps = static_cast<int32_t>(desc.in_features / kWgmmaTileK),
      .num_weight_tiles = static_cast<int32_t>(weight_tiles),
      .is_whole = true,  // k is short
  };
  launch(stream, kKernelIds[i], {.x = std::min<int64_t>(device.num_sms(), num_tiles), .num_threads = kWgmmaThreads},
         params,
         {{"num_tokens", num_tokens},
          {"num_heads", num_heads},
          {"out_features", desc.out_features},
          {"in_features", desc.in_features}});
}

// One row: where the products of a layer of one token are joined, as results of other batches have other bits.
bool fits_rows(const CudaDevice& device, const LinearHeadsParams& p) {
  return p.x.dim(0) == 1 && device.joins_layer_products(1) && device.has(kernel_id("head_rows_short")) &&
         fits_wgmma(device, p) && p.weight->desc().in_features <= kHeadRowsLongWidth;
}

void run_head_rows(Stream& stream, const LinearHeadsParams& p) {
  const WeightDesc& desc = p.weight->desc();
  const HeadRowsKernelParams params{.x = p.x.raw(),
                                    .weight = p.weight->matrix(0),
                                    .out = p.out.raw(),
                                    .x_stride = p.x.stride(1),
                                    .out_stride = p.out.stride(1),
                                    .weight_row_bytes = weight_row_stride(desc) * 2,
                                    .num_rows = static_cast<int32_t>(desc.num_matrices * desc.out_features),
                                    .out_features = static_cast<int32_t>(desc.out_features),
                                    .in_features = static_cast<int32_t>(desc.in_features)};
  const bool is_short = desc.in_features <= kHeadRowsShortWidth;
  launch(stream, is_short ? kernel_id("head_rows_short") : kernel_id("head_rows_long"),
         {.x = ceil_div(params.num_rows, kHeadRowsWarps * (is_short ? kHeadRowsShort : kHeadRowsLong)),
          .num_threads = 32 * kHeadRowsWarps},
         params,
         {{"num_heads", desc.num_matrices}, {"out_features", desc.out_features}, {"in_features", desc.in_features}});
}

}  // namespace

void linear_heads(Stream& stream, const LinearHeadsParams& p) {
  check_params(p);
  const WeightDesc& desc = p.weight->desc();
  const int64_t num_tokens = p.x.dim(0), num_heads = desc.num_matrices;
  if (num_tokens == 0) return;
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (fits_rows(device, p)) return run_head_rows(stream, p);
  if (fits_wgmma(device, p)) return run_heads_wgmma(stream, p);
  const ExpertProductKernelParams params{
      .x = p.x.raw(),
      .weight = p.weight->data(),
      .out = p.out.raw(),
      .order = {},
      .x_stride = p.x.stride(0),
      .x_matrix_stride = p.x.stride(1),
      .weight_stride = weight_row_stride(desc),
      .weight_matrix_stride = desc.out_features * weight_row_stride(desc),
      .out_stride = p.out.stride(0),
      .out_matrix_stride = p.out.stride(1),
      .num_rows = static_cast<int32_t>(num_tokens),
      .out_features = static_cast<int32_t>(desc.out_features),
      .in_features = static_cast<int32_t>(desc.in_features),
  };
  launch(stream, product_kernel(p.x.dtype(), desc.spec.codes),
         {.x = num_heads * ceil_div(num_tokens, kProductTileM),
          .y = ceil_div(desc.out_features, kProductTileN),
          .num_threads = kProductThreads},
         params, {{"num_tokens", num_tokens}, {"num_heads", num_heads}, {"out_features", desc.out_features}});
}

}  // namespace spate::cuda
