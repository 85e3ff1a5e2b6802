// The store of a tile of linear_skeleton.h: from the sums of wgmma to rows of tokens, with a bias or silu.
#pragma once

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/primitive/bf16.h"

namespace spate::cuda {

// Rows of bf16 pairs become columns: lane l has elements (l / 4, 2 (l % 4)) and the next of an 8 x 8 matrix, and gets
// those of the transposed one.
__device__ inline uint32_t transpose_8x8(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Of 8 gates, their 8 ups and 8 columns as wgmma has them: act(act(silu(act(gate))) * act(up)), transposed.
__device__ inline uint32_t silu_of_8x8(const float* own) {
  const auto product = [&](int i) { return silu_times<Bf16>(round_to<Bf16>(own[i]), round_to<Bf16>(own[2 + i])); };
  return transpose_8x8(pack_bf16(product(0), product(1)));
}

// The same bits of two gates and their two ups, not transposed. Rounded in pairs: to round one value is an operation of
// the special units, of which silu has two already.
__device__ inline uint32_t silu_of_pair(const float* gates, const float* ups) {
  const uint32_t gate = pack_bf16(gates[0], gates[1]), up = pack_bf16(ups[0], ups[1]);
  const uint32_t factor = pack_bf16(silu<Bf16>(low_float(gate)), silu<Bf16>(high_float(gate)));
  return pack_bf16(low_float(factor) * low_float(up), high_float(factor) * high_float(up));
}

// The 16 rows of W from `row` on of which a warp stores sums, and their bias.
class TileRows {
 public:
  __device__ TileRows(const LinearWgmmaKernelParams& p, int row) : p_(p), row_(row) {
    is_whole_ = row + 16 <= p.out_features;
    if (p.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int feature = row + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i;
      if (feature >= p.out_features) continue;
      bias_[i] = p.is_bias_f32 ? static_cast<const float*>(p.bias)[feature]
                               : to_float(static_cast<const Bf16*>(p.bias)[feature]);
    }
  }
  // Sums of the tokens from `token` to + 7, as wgmma leaves them.
  __device__ void store(int token, float a, float b, float c, float d) const {
    if (token >= p_.num_tokens) return;
    const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    const float values[4] = {a + bias_[0], b + bias_[0], c + bias_[1], d + bias_[1]};
    if (!p_.is_out_f32 && p_.is_out_paired && is_whole_) {
      const uint32_t first = transpose_8x8(pack_bf16(values[0], values[1]));
      const uint32_t second = transpose_8x8(pack_bf16(values[2], values[3]));
      if (token + group < p_.num_tokens) {
        Bf16* out = static_cast<Bf16*>(p_.out) + (token + group) * p_.out_stride + row_ + 2 * pair;
        *reinterpret_cast<uint32_t*>(out) = first;
        *reinterpret_cast<uint32_t*>(out + 8) = second;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = token + 2 * pair + i % 2, feature = row_ + group + i / 2 * 8;
      if (column >= p_.num_tokens || feature >= p_.out_features) continue;
      const int64_t offset = column * p_.out_stride + feature;
      if (p_.is_out_f32) {
        static_cast<float*>(p_.out)[offset] = values[i];
      } else {
        static_cast<Bf16*>(p_.out)[offset] = from_float<Bf16>(values[i]);
      }
    }
  }

 private:
  const LinearWgmmaKernelParams& p_;
  int row_;
  bool is_whole_;
  float bias_[2] = {};
};

template <int kTokens>
__device__ inline void store_tile(const LinearWgmmaKernelParams& p, const float (&acc)[kTokens / 2], int row,
                                  int token) {
  const TileRows rows(p, row);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    rows.store(token + 8 * j, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
  }
}

// Of gates and ups by turns, `row` the first of the warp's 16 among both.
template <int kTokens>
__device__ inline void store_silu_tile(const LinearWgmmaKernelParams& p, const float (&acc)[kTokens / 2], int row,
                                       int token) {
  if (row >= p.out_features) return;
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  Bf16* out = static_cast<Bf16*>(p.out) + (token + group) * p.out_stride + row / 2 + 2 * pair;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    if (token + 8 * j >= p.num_tokens) break;
    const uint32_t both = silu_of_8x8(acc + 4 * j);
    if (token + 8 * j + group < p.num_tokens) *reinterpret_cast<uint32_t*>(out + 8 * j * p.out_stride) = both;
  }
}

// Results of the largest tile go through shared memory: 16 bytes of one token a thread, whole lines a warp.

__device__ inline void sync_warpgroup() {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + static_cast<int>(threadIdx.x) / 128) : "memory");
}

// Four 8 x 8 matrices, transposed: lane l has the address of row l % 8 of the matrix l / 8.
__device__ inline void store_transposed(uint32_t shared, const uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(matrices[0]),
               "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

// row: the warpgroup's first.
__device__ inline bool can_stage_tile(const LinearWgmmaKernelParams& p, int row) {
  const uint64_t places = reinterpret_cast<uint64_t>(p.out) | static_cast<uint64_t>(p.out_stride) * 2;
  return !p.is_out_f32 && row + kWgmmaRows <= p.out_features && places % 16 == 0;
}

// Where 16 bytes of a token stand in a buffer: chunk c of 8 features of token t, such that 8 tokens' and those of a
// whole line fall on different banks, as the copy engine swizzles rows of 64 or 128 bytes.
template <bool kHasSilu>
__device__ inline uint32_t staged_place(uint32_t buffer, uint32_t t, uint32_t c) {
  constexpr int kChunks = (kHasSilu ? kWgmmaRows / 2 : kWgmmaRows) / 8;
  return buffer + (t * kChunks + (kHasSilu ? c ^ t / 2 % 4 : c ^ t % 8)) * 16;
}

// Of the warpgroup's 64 rows of W: values of kTokens tokens, the first of which is `values`, as bf16 into a buffer.
// bias: of the thread's two rows of W. kRoundsPairs: with silu_of_pair(), which the others were not measured with.
template <bool kHasSilu, int kTokens, bool kRoundsPairs = false>
__device__ inline void stage_results(const float* values, const float (&bias)[2], uint32_t buffer) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
  for (int t = 0; t < kTokens; t += kHasSilu ? 32 : 16) {
    const float* own = values + t / 2;
    uint32_t matrices[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kHasSilu && kRoundsPairs) {
        matrices[i] = silu_of_pair(own + 4 * i, own + 4 * i + 2);
      } else if constexpr (kHasSilu) {
        const auto product = [&](int j) {
          return silu_times<Bf16>(round_to<Bf16>(own[4 * i + j]), round_to<Bf16>(own[4 * i + 2 + j]));
        };
        matrices[i] = pack_bf16(product(0), product(1));
      } else {
        matrices[i] = pack_bf16(own[2 * i] + bias[i % 2], own[2 * i + 1] + bias[i % 2]);
      }
    }
    const auto first = static_cast<uint32_t>(t);
    if constexpr (kHasSilu) {
      store_transposed(staged_place<kHasSilu>(buffer, first + lane, warp), matrices);
    } else {
      store_transposed(staged_place<kHasSilu>(buffer, first + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2),
                       matrices);
    }
  }
}

// Chunk i of a buffer, of its tokens one behind the other, to the token's row of out.
template <bool kHasSilu>
__device__ inline void store_staged_chunk(uint32_t buffer, uint32_t i, Bf16* out, int64_t out_stride) {
  constexpr int kChunks = (kHasSilu ? kWgmmaRows / 2 : kWgmmaRows) / 8;
  const uint32_t t = i / kChunks, chunk = i % kChunks;
  uint4 piece;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
               : "r"(staged_place<kHasSilu>(buffer, t, chunk)));
  *reinterpret_cast<uint4*>(out + static_cast<int>(t) * out_stride + chunk * 8) = piece;
}

// The warpgroup's 64 rows of W: values of kTokens tokens to rows of out, of which there are num_rows; out is the first
// one, at the warpgroup's first feature.
template <bool kHasSilu, int kTokens>
__device__ inline void store_through_shared(Bf16* out, int64_t out_stride, int num_rows,
                                            const float (&values)[kTokens / 2], const float (&bias)[2],
                                            uint32_t staging) {
  constexpr int kFeatures = kHasSilu ? kWgmmaRows / 2 : kWgmmaRows, kChunks = kFeatures / 8;
  constexpr int kFits = kWgmmaStagingBytes / (2 * kFeatures), kPassTokens = kTokens < kFits ? kTokens : kFits;
  const uint32_t thread = threadIdx.x % 128;
#pragma unroll
  for (int first = 0; first < kTokens; first += kPassTokens) {
    if (first >= num_rows) break;
    sync_warpgroup();  // all have read what was there
    stage_results<kHasSilu, kPassTokens>(values + first / 2, bias, staging);
    sync_warpgroup();
#pragma unroll
    for (uint32_t i = 0; i < kPassTokens * kChunks / 128; ++i) {
      const uint32_t own = i * 128 + thread;
      if (first + static_cast<int>(own) / kChunks >= num_rows) continue;
      store_staged_chunk<kHasSilu>(staging, own, out + first * out_stride, out_stride);
    }
  }
}

// As store_tile() and store_silu_tile(), of the warpgroup's 64 rows from `row` on.
template <bool kHasSilu, int kTokens>
__device__ inline void store_staged_tile(const LinearWgmmaKernelParams& p, const float (&acc)[kTokens / 2], int row,
                                         int token, uint32_t staging) {
  float bias[2] = {};
  if (!kHasSilu && p.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int feature = row + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) + 8 * i;
      bias[i] = p.is_bias_f32 ? static_cast<const float*>(p.bias)[feature]
                              : to_float(static_cast<const Bf16*>(p.bias)[feature]);
    }
  }
  Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_stride + (kHasSilu ? row / 2 : row);
  store_through_shared<kHasSilu, kTokens>(out, p.out_stride, p.num_tokens - token, acc, bias, staging);
}

}  // namespace spate::cuda
