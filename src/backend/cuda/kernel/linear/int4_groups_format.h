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

template <bool kHasOffsets>
struct StoredScale {
  using Type = ScalePair;
};
template <>
struct StoredScale<true> {
  using Type = LargeScale;
};

// kHasOffsets: also whole rows, whose scales are f32. kSilu: a stage is 64 gates, then their 64 ups; a warp takes 8 of
// each. Both are halves of int4_groups.h, in shared memory kChunks chunks of codes, then their scales; those of whole
// rows stand behind both.
template <bool kHasOffsets, bool kSilu, int kChunks>
struct Int4GroupFormat {
  using Params = LinearInt4GroupKernelParams;
  using Sum = float;
  static constexpr bool kHasSilu = kSilu;
  static constexpr int kTileK = kInt4GroupTileK, kStageSteps = kChunks, kSteps = kTileK / kWgmmaK, kOutlierRows = 0;
  static constexpr int ring_bytes(int tokens) { return wgmma_ring_bytes(tokens); }
  static constexpr int kStageWeightBytes = int4_groups_stage_bytes(kHasOffsets, kChunks);
  static constexpr int kHalfCodeBytes = kChunks * kInt4ChunkBytes;
  struct Operand {
    uint32_t rows[kSteps][4];
  };

  __device__ static const LinearWgmmaKernelParams& tiles(const Params& p) { return p.tiles; }

  // Of the scales of a half in a stage.
  __device__ static int half_scale_bytes(const Int4GroupLayout& layout) {
    const int num_places =
        kChunks == kInt4UnitChunks || layout.num_places <= 1 ? layout.num_places : layout.num_places / kInt4UnitChunks;
    return num_places * kInt4UnitRows * layout.scale_bytes;
  }

  // Where the stages of a segment come from: a half each, or both, which are neighbours.
  class Source {
   public:
    static constexpr int kParts = kSilu || kChunks < kInt4UnitChunks ? 2 : 1;

    __device__ Source(const Params& p, int row, int stage, int part) : layout_(p.layout), stage_(stage), part_(part) {
      const int first = kSilu ? row / 2 + part * (layout_.num_rows / 2) : row + part * kInt4UnitRows;
      unit_ = p.weight + layout_.unit_offset(first, stage * kChunks / kInt4UnitChunks);
      if constexpr (kHasOffsets) {
        row_scales_ = layout_.num_places == 0 ? p.weight + layout_.scale_offset(first, 0) : nullptr;
      }
    }
    __device__ uint32_t bytes() const {
      const uint32_t row_scale_bytes = kHasOffsets && row_scales_ != nullptr ? kRowScaleBytes : 0;
      return (2 * (kHalfCodeBytes + static_cast<uint32_t>(half_scale_bytes(layout_))) + row_scale_bytes) / kParts;
    }
    __device__ void load(uint32_t shared, uint32_t barrier) const {
      constexpr uint32_t kPartRowScaleBytes = kRowScaleBytes / kParts;
      const auto scale_bytes = static_cast<uint32_t>(half_scale_bytes(layout_));
      const uint32_t half_bytes = kHalfCodeBytes + scale_bytes, to = shared + static_cast<uint32_t>(part_) * half_bytes;
      const bool has_row_scales = kHasOffsets && row_scales_ != nullptr;
      if constexpr (kChunks == kInt4UnitChunks) {
        copy_bytes(to, unit_, 2 / kParts * half_bytes, barrier);
      } else {
        const int chunk = stage_ % kInt4UnitChunks;
        copy_bytes(to, unit_ + chunk * kInt4ChunkBytes, kInt4ChunkBytes, barrier);
        const int place = layout_.num_places > 1 ? chunk * static_cast<int>(scale_bytes) : 0;
        if (!has_row_scales) {
          copy_bytes(to + kInt4ChunkBytes, unit_ + kInt4UnitCodeBytes + place, scale_bytes, barrier);
        }
      }
      if (!has_row_scales) return;
      copy_bytes(shared + 2 * half_bytes + static_cast<uint32_t>(part_) * kPartRowScaleBytes, row_scales_,
                 kPartRowScaleBytes, barrier);
    }
    __device__ void advance() {
      if (kChunks == kInt4UnitChunks || stage_ % kInt4UnitChunks == kInt4UnitChunks - 1) {
        unit_ += 2 * layout_.unit_bytes;
      }
      ++stage_;
    }

   private:
    const Int4GroupLayout& layout_;
    const char* unit_;
    const char* row_scales_;
    int stage_;
    const int part_;
  };

  // A lane of a warpgroup that multiplies: its two rows of W of a stage.
  class Reader {
   public:
    __device__ Reader(const Params& p, int consumer) : layout_(p.layout) {
      const auto warp = static_cast<int>(threadIdx.x) % 128 / 32, group = static_cast<int>(threadIdx.x) % 32 / 4;
      row_ = kSilu ? (consumer * 4 + warp) * 8 + group : warp * 16 + group;
      const uint32_t half_bytes = static_cast<uint32_t>(kHalfCodeBytes + half_scale_bytes(layout_));
      half_ = kSilu ? 0 : static_cast<uint32_t>(consumer) * half_bytes;
      second_ = kSilu ? half_bytes : 0;
      if constexpr (kHasOffsets) {
        row_scales_ = 2 * half_bytes + static_cast<uint32_t>((kSilu ? 0 : consumer * kInt4UnitRows) + row_) * kRowScale;
      }
    }
    // Reads the codes of a stage, which take() makes operands of. One stage at a time.
    __device__ void read(uint32_t weight) {
      weight_ = weight;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          codes_[c][r] = load_shared_pair(
              half(r) + static_cast<uint32_t>(c * kInt4ChunkBytes + row(r) * kInt4GroupRowBytes) + threadIdx.x % 4 * 8);
        }
      }
      if (kHasOffsets && layout_.num_places == 0) return;
      load_scales(0);
    }
    __device__ void take(Operand& operand, int chunk) {
      if (kHasOffsets && layout_.num_places == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint2 both =
              load_shared_pair(weight_ + row_scales_ + static_cast<uint32_t>(r) * kRowScale * (kSilu ? 64 : 8));
          const ScaleAndOffset scale{__uint_as_float(both.x), __uint_as_float(both.y)};
          put_rows(operand, 0, r, codes_[chunk][r].x, scale);
          put_rows(operand, 1, r, codes_[chunk][r].y, scale);
        }
      } else if (layout_.num_places == 4) {
        if (chunk > 0) load_scales(2);
#pragma unroll
        for (int r = 0; r < 2; ++r) put_rows(operand, 0, r, codes_[chunk][r].x, scales_[r]);
        load_scales(chunk * 2 + 1);
#pragma unroll
        for (int r = 0; r < 2; ++r) put_rows(operand, 1, r, codes_[chunk][r].y, scales_[r]);
      } else {
        if (chunk > 0 && layout_.num_places == 2) load_scales(1);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          put_rows(operand, 0, r, codes_[chunk][r].x, scales_[r]);
          put_rows(operand, 1, r, codes_[chunk][r].y, scales_[r]);
        }
      }
    }

   private:
    __device__ uint32_t half(int r) const { return weight_ + half_ + (r == 0 ? 0 : second_); }
    __device__ int row(int r) const { return row_ + (kSilu ? 0 : 8 * r); }
    __device__ void load_scales(int place) {
      constexpr int kScaleBytes = kHasOffsets ? 4 : 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t at =
            half(r) + static_cast<uint32_t>(kHalfCodeBytes + (place * kInt4UnitRows + row(r)) * kScaleBytes);
        if constexpr (kHasOffsets) {
          uint32_t halves;
          asm volatile("ld.shared.u32 %0, [%1];" : "=r"(halves) : "r"(at));
          scales_[r] = halves_to_large_scale(halves);
        } else {
          uint16_t scale;
          asm volatile("ld.shared.u16 %0, [%1];" : "=h"(scale) : "r"(at));
          scales_[r] = split_scale(scale);
        }
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

    const Int4GroupLayout& layout_;
    uint32_t weight_, half_, second_, row_scales_;
    int row_;
    uint2 codes_[kChunks][2];
    typename StoredScale<kHasOffsets>::Type scales_[2];
  };

  template <int kTokens>
  __device__ static void multiply(float (&sums)[kTokens / 2], const Operand& operand, uint32_t x) {
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
  static constexpr uint32_t kRowScale = 8, kRowScaleBytes = kWgmmaTileRows * kRowScale;
};

#define SPATE_INT4_GROUP_KERNEL(prefix, has_offsets, has_silu, tokens)                                 \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1)                                       \
      prefix##_n##tokens(const __grid_constant__ LinearInt4GroupKernelParams p) {                      \
    linear_wgmma<Int4GroupFormat<has_offsets, has_silu, int4_groups_stage_chunks(tokens)>, tokens>(p); \
  }
#define SPATE_INT4_GROUP_KERNELS(prefix, has_offsets, has_silu) \
  SPATE_INT4_GROUP_KERNEL(prefix, has_offsets, has_silu, 8)     \
  SPATE_INT4_GROUP_KERNEL(prefix, has_offsets, has_silu, 16)    \
  SPATE_INT4_GROUP_KERNEL(prefix, has_offsets, has_silu, 32)    \
  SPATE_INT4_GROUP_KERNEL(prefix, has_offsets, has_silu, 64)    \
  SPATE_INT4_GROUP_KERNEL(prefix, has_offsets, has_silu, 128)   \
  SPATE_INT4_GROUP_KERNEL(prefix, has_offsets, has_silu, 256)

}  // namespace spate::cuda
