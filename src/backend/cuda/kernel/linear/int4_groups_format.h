// The formats of linear_int4_groups.cu and linear_int4_offsets.cu for linear_skeleton.h.
#pragma once

#include "backend/cuda/kernel/linear/int4_groups_decode.h"
#include "backend/cuda/kernel/linear/linear_skeleton.h"
#include "backend/cuda/kernel/primitive/wgmma_rows.h"

namespace spate::cuda {

__device__ inline uint2 load_shared_pair(uint32_t address) {
  uint2 pair;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(address));
  return pair;
}

// kHasOffsets: also whole rows, whose scales are f32. kSilu: a stage is 64 gates, then their 64 ups; a warp takes 8 of
// each.
template <bool kHasOffsets, bool kSilu = false>
struct Int4GroupFormat {
  using Params = LinearInt4GroupKernelParams;
  using Sum = float;
  static constexpr bool kHasSilu = kSilu;
  static constexpr int kTileK = kInt4GroupTileK, kSteps = kTileK / kWgmmaK, kOutlierRows = 0;
  static constexpr int ring_bytes(int tokens) { return wgmma_ring_bytes(tokens); }
  static constexpr int kScaleBytes = kHasOffsets ? kInt4GroupOffsetBytes : kInt4GroupScaleBytes;
  static constexpr int kWeightBytes = kInt4GroupChunkBytes + kScaleBytes, kStageWeightBytes = kInt4GroupStageBytes;
  struct Operand {
    uint32_t rows[kSteps][4];
  };

  __device__ static const LinearWgmmaKernelParams& tiles(const Params& p) { return p.tiles; }
  __device__ static void load_weight(const Params& p, uint32_t shared, int row, int step, uint32_t barrier) {
    const int group = step * kTileK / p.layout.group_width;
    if constexpr (!kSilu) {
      copy_bytes(shared, p.weight + p.layout.chunk_offset(row, step), kInt4GroupChunkBytes, barrier);
      copy_bytes(shared + kInt4GroupChunkBytes, p.weight + p.layout.scale_offset(row, group), kScaleBytes, barrier);
      return;
    }
    // Loops stay loops: the loading thread of 128 tokens and more has 40 registers.
    constexpr int kHalfBytes = kInt4GroupChunkBytes / 2;
    const int half_bytes = kWgmmaTileRows / 2 * p.layout.scale_bytes;  // of the scales of a group
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int first = row / 2 + half * p.layout.num_rows / 2;
      copy_bytes(shared + static_cast<uint32_t>(half * kHalfBytes), p.weight + p.layout.word_offset(first, step, 0),
                 kHalfBytes, barrier);
      // Of the group and of the next one, which is read with groups of 32; or of rows.
      const char* from = p.weight + p.layout.scale_offset(first, group);
#pragma unroll 1
      for (int at = half * half_bytes; at < kScaleBytes; at += 2 * half_bytes, from += 2 * half_bytes) {
        copy_bytes(shared + static_cast<uint32_t>(kInt4GroupChunkBytes + at), from, static_cast<uint32_t>(half_bytes),
                   barrier);
      }
    }
  }
  __device__ static void take(const Params& p, Operand& operand, uint32_t weight, int consumer) {
    constexpr int kRowsApart = kSilu ? kWgmmaTileRows / 2 : 8, kWarpRows = kSilu ? 8 : 16;
    const int row = (consumer * 4 + static_cast<int>(threadIdx.x) % 128 / 32) * kWarpRows + threadIdx.x % 32 / 4;
    const uint32_t scales = weight + kInt4GroupChunkBytes;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto own = static_cast<uint32_t>(row + kRowsApart * r);
      const uint2 words = load_shared_pair(weight + own * kInt4GroupRowBytes + threadIdx.x % 4 * 8);
      auto scale = load_scale(p, scales, own);
      put_rows(operand, 0, r, words.x, scale);
      if (p.layout.has_half_steps()) scale = load_scale(p, scales, own + kWgmmaTileRows);
      put_rows(operand, 1, r, words.y, scale);
    }
    __syncwarp();  // all lanes have read before one gives the stage back
  }
  template <int kTokens>
  __device__ static void multiply(float (&sums)[kTokens / 2], const Operand& operand, uint32_t, uint32_t x, int) {
    const uint64_t b = wgmma_descriptor(x);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) wgmma_bf16_rows<kTokens>(sums, operand.rows[s], next_wgmma_k(b, s));
  }
  template <int kTokens, typename OutlierSteps>
  __device__ static void finish(const Params&, const float (&sums)[kTokens / 2], float (&values)[kTokens / 2], int, int,
                                OutlierSteps) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) values[i] = sums[i];
  }

 private:
  // idx: of a row in the scales of a stage.
  __device__ static auto load_scale(const Params& p, uint32_t scales, uint32_t idx) {
    if constexpr (!kHasOffsets) {
      uint16_t half;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(scales + idx * 2));
      return split_scale(half);
    } else {
      if (p.layout.scale_bytes == 8) {
        const uint2 both = load_shared_pair(scales + idx * 8);
        return ScaleAndOffset{__uint_as_float(both.x), __uint_as_float(both.y)};
      }
      uint32_t halves;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(halves) : "r"(scales + idx * 4));
      return halves_to_scale(halves);
    }
  }
  // Word j of row r of the lane's two.
  template <typename Scale>
  __device__ static void put_rows(Operand& operand, int j, int r, uint32_t word, const Scale& scale) {
    uint32_t values[4];
    decode_word(word, scale, values);
#pragma unroll
    for (int i = 0; i < 4; ++i) operand.rows[2 * j + i / 2][r + 2 * (i % 2)] = values[i];
  }
};

}  // namespace spate::cuda
