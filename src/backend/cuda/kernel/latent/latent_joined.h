// latent_query.cu and latent_values.cu, for host and device: what stands around attention over latent vectors in decode
// of one sequence.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/latent/head_rows.h"
#include "backend/cuda/kernel/latent/latent_norm_rope_write.h"
#include "backend/cuda/kernel/latent/latent_short.h"
#include "backend/cuda/kernel/latent/latent_wgmma.h"

namespace spate::cuda {

constexpr int kLatentQueryThreads = 32 * kHeadRowsWarps;
constexpr int kLatentValuesWarps = 4;
constexpr int kLatentValuesRows = 4;  // of a warp

struct LatentQueryKernelParams {
  LatentNormRopeWriteKernelParams write;  // of one token
  HeadRowsKernelParams up;                // in_features at most kHeadRowsShortWidth
  int32_t num_pair_ctas;
  int32_t reads_early;  // nothing that still runs writes positions and slot_mapping
};

struct LatentValuesKernelParams {
  LatentWgmmaKernelParams attention;  // of one token; attention.out has the heads that one CTA has finished
  LatentShortKernelParams shorter;    // with num_parts the parts are those of latent_short, else of `attention`
  const char* weight;                 // [num_heads * out_features, kLatentRank] bf16, rows at multiples of 16 bytes
  void* out;                          // [num_heads, out_features] bf16
  int64_t weight_row_bytes;
  int64_t out_stride;  // elements from head to head
  int32_t out_features;
};

}  // namespace spate::cuda
