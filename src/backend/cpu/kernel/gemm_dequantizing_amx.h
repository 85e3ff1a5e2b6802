// Products of bf16 with integer weights on AMX tiles: codes become the bf16 tiles that a float weight would have, in
// scratch, and gemm_amx.h multiplies them. Up to 16 rows 16 steps of 32 k at a time, 64 KB of four n-blocks; more rows
// all of K of a pair of n-blocks, once for each chunk of rows, whose x stays in L2.
#pragma once

#include "backend/cpu/kernel/dequantize.h"
#include "backend/cpu/kernel/gemm_amx.h"

namespace spate::cpu::SPATE_ISA {

// The product as one with a float weight.
static GemmParams by_floats(const GemmParams& p) {
  GemmParams floats = p;
  floats.weight_ints = {};
  return floats;
}

static GemmPlan dequantizing_amx_plan(const GemmParams& p, int num_threads) {
  GemmPlan plan = amx_plan(by_floats(p), num_threads);
  if (p.m <= 16) {
    plan.scratch_bytes += 4 * kStepBlock * kTileBytes;
    return plan;
  }
  const int64_t rows_in_l2 = max_of(32, kXBytesInL2 / (k_steps(p) * 64) / 32 * 32);
  plan.rows_per_chunk = min_of(plan.rows_per_chunk, rows_in_l2);
  plan.n_blocks_per_group = blocks_per_pair(p);
  plan.scratch_bytes =
      2 * k_steps(p) * kTileBytes + 2 * 32 * kPairBytes + plan.rows_per_chunk * (kNBlock * 2 + kPairBytes);
  return plan;
}

static void dequantizing_few_rows(const GemmParams& p, int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
  const int64_t steps = k_steps(p), block_bytes = p.weight_ints.block_bytes;
  const bool packed = p.k % kKStep != 0;
  TileRows a{.base = packed ? p.packed_x : static_cast<const char*>(p.x),
             .row_stride = packed ? steps * 64 : p.x_stride * 2,
             .step_stride = 64,
             .block_stride = 0};
  const char* all_of_x = a.base;
  const int64_t group_blocks = 2 * blocks_per_pair(p), stride = 4 * kNBlock;
  auto* sums = reinterpret_cast<float*>(scratch);
  char* tiles = scratch + 16 * stride * 4;
  amx_fence();
  amx_begin(p.m);
  for (int64_t first = first_n_block; first < first_n_block + num_n_blocks; first += group_blocks) {
    const int64_t count = min_of(group_blocks, first_n_block + num_n_blocks - first);
    const int64_t num_blocks = p.silu_and_mul ? 2 * count : count;
    for (int64_t step = 0; step < steps; step += kStepBlock) {
      const int64_t num_steps = min_of(kStepBlock, steps - step);
      for (int64_t j = 0; j < num_blocks; ++j) {
        const int64_t n_block = j < count ? first + j : first + j - count + p.up_blocks;
        dequantize_n_block<Elem::kBf16>(p.weight_ints, p.weight + n_block * block_bytes, step * kKStep,
                                        num_steps * kKStep, tiles + j * kStepBlock * kTileBytes);
      }
      amx_fence();
      a.base = all_of_x + step * a.step_stride;
      const auto b = [&](int64_t s, int64_t j) { return tiles + (j * kStepBlock + s) * kTileBytes; };
      amx_row_product<false>(a, b, num_blocks, num_steps, sums, stride, step > 0);
      amx_fence();
    }
    finish_n_blocks(p, 0, p.m, first, count, sums, sums + count * kNBlock, stride);
  }
  amx_end();
}

static void dequantizing_gemm_amx(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                                  int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
  if (p.m <= 16) return dequantizing_few_rows(p, first_n_block, num_n_blocks, scratch);
  const int64_t num_k = k_steps(p) * kKStep, tile_bytes = k_steps(p) * kTileBytes;
  const int64_t num_blocks = p.silu_and_mul ? 2 : num_n_blocks;
  for (int64_t j = 0; j < num_blocks; ++j) {
    const int64_t n_block = first_n_block + (p.silu_and_mul ? j * p.up_blocks : j);
    dequantize_n_block<Elem::kBf16>(p.weight_ints, p.weight + n_block * p.weight_ints.block_bytes, 0, num_k,
                                    scratch + j * tile_bytes);
  }
  // The pair as if it lay in a whole weight.
  GemmParams floats = by_floats(p);
  floats.weight = scratch - first_n_block * tile_bytes;
  floats.up_blocks = 1;
  gemm_amx(floats, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch + 2 * tile_bytes);
}

}  // namespace spate::cpu::SPATE_ISA
