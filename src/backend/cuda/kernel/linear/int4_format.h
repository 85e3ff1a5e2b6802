// The format of linear_int4.cu and linear_int4_g32.cu for linear_skeleton.h.
#pragma once

#include "backend/cuda/kernel/linear/integer_sums.h"
#include "backend/cuda/kernel/linear/linear_skeleton.h"
#include "backend/cuda/kernel/primitive/shared_load.h"
#include "backend/cuda/kernel/primitive/wgmma_int8.h"

namespace spate::cuda {

// kMultipliers: of a row in a stage.
template <int kMultipliers>
struct Int4Format : IntegerFinish<Int4Format<kMultipliers>> {
  using Params = LinearIntegerKernelParams;
  using Sum = int32_t;
  static constexpr bool kHasSilu = false;
  static constexpr int kTileK = kIntegerTileK, kSteps = kTileK / 32, kBias = 128;
  static constexpr int kOutlierRows = kWgmmaRows;  // a stage has no room for more
  static constexpr int ring_bytes(int tokens) { return wgmma_ring_bytes(tokens); }
  static constexpr int kWeightBytes = kInt4CodeBytes + kWgmmaTileRows * kMultipliers,
                       kStageWeightBytes = kInt4StageWeightBytes;
  struct Operand {
    WgmmaRows rows[kSteps];
  };

  __device__ static const LinearWgmmaKernelParams& tiles(const Params& p) { return p.tiles; }
  __device__ static void load_weight(const Params& p, uint32_t shared, int row, int step, uint32_t barrier) {
    const char* chunk = p.weight + p.layout.chunk_offset(row, step * kTileK);
    if (p.tiles.num_tiles == p.tiles.num_row_tiles) {  // no other tile reads it
      copy_bytes_once(shared, chunk, kWeightBytes, barrier);
    } else {
      copy_bytes(shared, chunk, kWeightBytes, barrier);
    }
  }
  __device__ static void take(const Params&, Operand& operand, uint32_t weight, int consumer) {
    take(operand, weight, consumer);
  }
  __device__ static void take(Operand& operand, uint32_t weight, int consumer) {
    const int row = consumer * kWgmmaRows + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const auto own_row = [&](uint32_t r) { return static_cast<uint32_t>(row) + 8 * r; };
    take_rows(operand, [&](uint32_t r) { return weight + own_row(r) * kInt4RowBytes; },
              [&](uint32_t r) { return weight + kInt4CodeBytes + own_row(r) * kMultipliers; });
  }
  // The lane's two rows of a stage: where the codes and the multipliers of each stand.
  template <typename CodesAt, typename MultipliersAt>
  __device__ static void take_rows(Operand& operand, CodesAt codes_at, MultipliersAt multipliers_at) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint4 quad = load_shared_16(codes_at(r) + threadIdx.x % 4 * 16);
      const uint32_t address = multipliers_at(r);
      const uint32_t multipliers = kMultipliers == 4 ? load_shared_word(address) : load_shared_half(address);
      const uint32_t words[kSteps] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint32_t multiplier = multipliers >> (s * kMultipliers / kSteps * 8) & 0xff;
        const uint32_t offset = 0x80808080u - multiplier * 0x08080808u;
        operand.rows[s].words[r] = (words[s] & 0x0f0f0f0fu) * multiplier + offset;
        operand.rows[s].words[2 + r] = (words[s] >> 4 & 0x0f0f0f0fu) * multiplier + offset;
      }
    }
    __syncwarp();  // all lanes have read before one gives the stage back
  }
  template <int kTokens>
  __device__ static void multiply(int32_t (&sums)[kTokens / 2], const Operand& operand, uint32_t, uint32_t x, int) {
    const uint64_t b = wgmma_descriptor(x);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) wgmma_u8_s8<kTokens>(sums, operand.rows[s], next_wgmma_k(b, s));
  }
  // Of the code of W at (n, k).
  __device__ static auto code_of(const Params& p) {
    return [&p](int n, int k) {
      return value_of(p.weight[p.layout.code_offset(n, k)], p.weight[p.layout.multiplier_offset(n, k)], k);
    };
  }
  __device__ static void load_two_rows(const Params& p, int row, int k, int (&values)[2]) {
    const char *codes = p.weight + p.layout.code_offset(row, k),
               *multipliers = p.weight + p.layout.multiplier_offset(row, k);
    values[0] = value_of(codes[0], multipliers[0], k);
    values[1] = value_of(codes[kInt4RowBytes], multipliers[kMultipliers], k);
  }
  __device__ static int value_of(char codes, char multiplier, int k) {
    const int byte = static_cast<unsigned char>(codes);
    return ((IntegerLayout::is_high(k) ? byte >> 4 : byte & 15) - 8) * multiplier;
  }
};

template <int kMultipliers>
constexpr bool kHasTeams<Int4Format<kMultipliers>> = true;

}  // namespace spate::cuda
