// The format of expert_int4.cu and expert_int4_g32.cu for expert_skeleton.h.
//
// Rows of W go through registers, so that a stage of gate_up may hold 64 rows of gate, then 64 of up. Those of gate are a
// half of a chunk, those of up may lie in two chunks. Bulk copies need multiples of 16 bytes: multipliers of up are copied
// from the multiple before their first one, and stand as far behind a multiple as they do in the chunk.
#pragma once

#include "backend/cuda/kernel/expert/expert_integer.h"
#include "backend/cuda/kernel/linear/int4_format.h"

namespace spate::cuda {

template <int kMultipliers>
struct ExpertInt4 : Int4Format<kMultipliers> {
  using Base = Int4Format<kMultipliers>;
  using typename Base::Operand;
  static constexpr bool kHasWeightMap = false, kHasScales = true;
  static constexpr int kHalf = kWgmmaTileRows / 2;  // rows of gate in a stage
  static constexpr int kHalfCodeBytes = kHalf * kInt4RowBytes, kHalfMultiplierBytes = kHalf * kMultipliers;
  static constexpr uint32_t kMultipliersAt = kInt4CodeBytes, kUpMultipliersAt = kMultipliersAt + kHalfMultiplierBytes;

  // How far the multipliers of the rows of up stand behind a multiple of 16.
  __device__ static uint32_t up_shift(const ExpertWgmmaKernelParams& p) {
    return static_cast<uint32_t>(p.out_features * kMultipliers) % 16;
  }
  template <ExpertKind kKind>
  __device__ static uint32_t stage_weight_bytes(const ExpertWgmmaKernelParams& p) {
    return Base::kWeightBytes + (has_silu(kKind) && up_shift(p) > 0 ? 16 : 0);
  }
  template <ExpertKind kKind>
  __device__ static void load_weight(const ExpertWgmmaKernelParams& p, uint32_t shared, const ExpertSegment& segment,
                                     int step, uint32_t barrier) {
    const IntegerLayout& layout = p.integer.layout;
    const char* weight = expert_matrix(p, segment.matrix);
    const int k = step * Base::kTileK;
    if constexpr (!has_silu(kKind)) {
      const int row = segment.weight_tile * kWgmmaTileRows;
      copy_bytes(shared, weight + layout.chunk_offset(row, k), Base::kWeightBytes, barrier);
      return;
    }
    const int gate = segment.weight_tile * kHalf, up = p.out_features + gate;
    const char* chunk = weight + layout.chunk_offset(gate, k);
    copy_bytes(shared, chunk + gate % kWgmmaTileRows * kInt4RowBytes, kHalfCodeBytes, barrier);
    copy_bytes(shared + kMultipliersAt, chunk + kInt4CodeBytes + gate % kWgmmaTileRows * kMultipliers,
               kHalfMultiplierBytes, barrier);

    const int in_chunk = up % kWgmmaTileRows, here = min(kHalf, kWgmmaTileRows - in_chunk);
    const uint32_t shift = up_shift(p);
    const auto rounded_up = [](uint32_t bytes) { return (bytes + 15) / 16 * 16; };
    chunk = weight + layout.chunk_offset(up, k);
    copy_bytes(shared + kHalfCodeBytes, chunk + in_chunk * kInt4RowBytes, static_cast<uint32_t>(here * kInt4RowBytes),
               barrier);
    copy_bytes(shared + kUpMultipliersAt, chunk + kInt4CodeBytes + in_chunk * kMultipliers - shift,
               rounded_up(shift + static_cast<uint32_t>(here * kMultipliers)), barrier);
    if (here == kHalf) return;
    // Behind the last row of W comes what nobody reads: the chunk of that row will do.
    const int there = kHalf - here, next = min(up + here, (layout.num_rows - 1) / kWgmmaTileRows * kWgmmaTileRows);
    chunk = weight + layout.chunk_offset(next, k);
    copy_bytes(shared + static_cast<uint32_t>(kHalfCodeBytes + here * kInt4RowBytes), chunk,
               static_cast<uint32_t>(there * kInt4RowBytes), barrier);
    copy_bytes(shared + kUpMultipliersAt + shift + static_cast<uint32_t>(here * kMultipliers), chunk + kInt4CodeBytes,
               rounded_up(static_cast<uint32_t>(there * kMultipliers)), barrier);
  }
  template <ExpertKind kKind>
  __device__ static void take(const ExpertWgmmaKernelParams& p, Operand& operand, uint32_t weight, int consumer) {
    if constexpr (!has_silu(kKind)) {
      Base::take(operand, weight, consumer);
      return;
    }
    const int row = consumer * kHalf / 2 + static_cast<int>(threadIdx.x) % 128 / 32 * 8 + threadIdx.x % 32 / 4;
    const auto own_row = static_cast<uint32_t>(row);
    const uint32_t shift = up_shift(p);
    Base::take_rows(
        operand, [&](uint32_t r) { return weight + r * kHalfCodeBytes + own_row * kInt4RowBytes; },
        [&](uint32_t r) { return weight + kMultipliersAt + r * (kHalfMultiplierBytes + shift) + own_row * kMultipliers; });
  }
  __device__ static auto code_at(const ExpertWgmmaKernelParams& p) {
    return [&layout = p.integer.layout](const char* weight, int row, int k) {
      const int byte = static_cast<unsigned char>(weight[layout.code_offset(row, k)]);
      const int code = (IntegerLayout::is_high(k) ? byte >> 4 : byte & 15) - 8;
      return code * weight[layout.multiplier_offset(row, k)];
    };
  }
  SPATE_EXPERT_INTEGER_FINISH(Base::kBias)
};

}  // namespace spate::cuda
