// WHAT       As attention_decode_ring.cu over an int8 cache.
// SHAPES     q, out [num_seqs, num_heads, head_dim] bf16, outer strides free; cache int8, head_dim 64 or 128,
//            kv_block_size a power of two and a multiple of 16.
// LAYOUT     A tile is rows of 128 bytes, swizzled: a key each, or two neighbours of 64. A register of a loaded matrix
//            has 4 codes of a key, as the integer product takes them; of values 2 neighbours of two keys, which are rows
//            group and group + 8.
// NUMERICS   As attention_decode_ring.cu, but: q of a head becomes integers of 16 bits in units of 2^-n, the largest in
//            [2^14, 2^15): numbers down to 2^-7 of it stay exact, smaller ones are off by at most 2^-15 of it. Dots of
//            their high and low bytes by the codes are exact integers; a key's scale meets the sum of both. A value's
//            scale meets its probability; the product becomes fp16 in a unit, a power of two that grows with the scales
//            that a warp meets. Codes of values are fp16, exactly.
// WORK       As attention_decode_ring.cu, with 8 warps; only the kernels for many sequences have a merging warp, others
//            stop at the end of a head tile to add. Rings of clusters too are of 2.
//            *_rope_*: rms_norm and rope of q and k and the write of k and v besides (attention_decode_rope.h).
// ROOFLINE   Bytes of K and V over 4.65 TB/s. A tile of 4,224 bytes takes a warp 280 instructions, 85 of them on the
//            integer pipe of half rate: 170 cycles of a scheduler, in which the bytes take 842 (at 3.05 TB/s 1,283).
// WARM       1.6 s: fast, bf16, int8-cache, head-64; fast, bf16, int8-cache, head-128
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_decode_cluster.h"
#include "backend/cuda/kernel/attention/attention_decode_ring.h"
#include "backend/cuda/kernel/primitive/codes.h"

namespace spate::cuda {

template <int kDim, bool kIsMany, bool kMakesKeys = false>
struct Int8Ring {
  static constexpr int kHeadDim = kDim, kWarps = kDecodeRingInt8Warps, kStages = kDecodeRingStages;
  static constexpr int kValuesAtOnce = 2;
  static constexpr bool kHasScales = true, kHasMerger = kIsMany, kRopes = kMakesKeys;
  struct alignas(1024) Stage {
    char keys[kTile * kDim], values[kTile * kDim];
    float key_scales[kTile], value_scales[kTile];
  };
  static constexpr uint32_t kBytes = 2 * kTile * (kDim + sizeof(float));

  __device__ static void copy(const AttentionDecodeRingParams& params, const TilePlace& place, uint32_t at,
                              uint32_t bar) {
    const KvLayout& kv = params.attention.kv;
    const int row = place.kv_head * kv.kv_block_size + place.token_in_block;
    if constexpr (kIsMany) {
      copy_box_5d_once(at, params.kv, 0, row * kDim / 128, 0, place.block_id, 0, bar);
    } else {
      copy_box_5d(at, params.kv, 0, row * kDim / 128, 0, place.block_id, 0, bar);
    }
    copy_box_3d(at + 2 * kTile * kDim, params.scales, row, 0, place.block_id, bar);
  }
  __device__ static int out_column(int m, int i) {
    return 16 * m + 2 * static_cast<int>(threadIdx.x % kWarpSize / 4) + i;
  }
  // q of a head in units of 2^-shift, such that the largest is in [2^14, 2^15): bf16 numbers down to 2^-7 of it are
  // exact. The high and the low bytes are two products by the codes of keys, with exact sums.
  struct Query {
    uint2 fetched[kDim / 16];                        // bf16 of columns 16 c + 4 pair and the three behind it
    uint32_t high[kDim / 32][2], low[kDim / 32][2];  // bytes of columns 32 c + 16 i + 4 pair and the three behind it
    float scale[2];  // of heads 2 pair, 2 pair + 1: softmax_scale_log2e 2^-shift

    __device__ void fetch(const AttentionPagedKernelParams& p, int token, int first_head, int num_heads) {
      const int group = threadIdx.x % kWarpSize / 4, pair = threadIdx.x % 4;
      const Bf16* first = static_cast<const Bf16*>(p.q) + token * p.q_token_stride +
                          static_cast<int64_t>(first_head + group) * p.q_head_stride + 4 * pair;
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
        fetched[c] = group < num_heads ? *reinterpret_cast<const uint2*>(first + 16 * c) : make_uint2(0, 0);
      }
    }
    __device__ void rope(const DecodeRopeParams& rope, int token) {
      uint32_t words[kDim / 8];
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) words[i] = i % 2 == 0 ? fetched[i / 2].x : fetched[i / 2].y;
      norm_and_rope<kDim>(words, rope, rope.q_norm, token, [](int i) {
        return i / 2 * 16 + i % 2 * 2 + 4 * static_cast<int>(threadIdx.x % 4);
      });
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) fetched[c] = make_uint2(words[2 * c], words[2 * c + 1]);
    }
    __device__ void prepare(const AttentionPagedKernelParams& p) {
      uint32_t largest = 0;  // magnitude, as bits: of even columns and of odd ones
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
        largest = __vmaxu2(largest, __vmaxu2(fetched[c].x & 0x7fff7fffu, fetched[c].y & 0x7fff7fffu));
      }
      largest = max(largest >> 16, largest & 0xffffu);
      largest = max(largest, shuffle_xor(largest, 1));
      largest = max(largest, shuffle_xor(largest, 2));
      // 2^shift by the exponent of the largest, at least 2^-112, so that 2^shift is a number.
      const uint32_t exponent = max(largest >> 7, 15u);
      const float power = __uint_as_float((127 + 14 + 127 - exponent) << 23);
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
        // The low 16 bits of a float from 1.5 * 2^23 on are those of its integer.
        constexpr float kInteger = 0x1.8p23f;
        const auto bytes_of = [&](uint32_t two) {  // low bytes, then high bytes
          const float even = __fmaf_rn(low_float(two), power, kInteger), odd = __fmaf_rn(high_float(two), power, kInteger);
          return __byte_perm(__float_as_uint(even), __float_as_uint(odd), 0x5140);
        };
        const uint32_t first = bytes_of(fetched[c].x), second = bytes_of(fetched[c].y);
        high[c / 2][c % 2] = __byte_perm(first, second, 0x7632);
        low[c / 2][c % 2] = __byte_perm(first, second, 0x5410);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int head = 2 * static_cast<int>(threadIdx.x % 4) + j;
        const uint32_t exponent_of = __shfl_sync(0xffffffffu, exponent, 4 * head);
        const uint32_t bits = exponent_of == 255 ? 0x7fc00000u : (exponent_of - 14) << 23;  // NaN, infinity: NaN
        scale[j] = p.softmax_scale_log2e * __uint_as_float(bits);
      }
    }
    __device__ void scores(const Stage& stage, float (&score)[4]) const {
      const int group = threadIdx.x % kWarpSize / 4;
      int32_t high_dots[4] = {}, low_dots[4] = {};
#pragma unroll
      for (int c = 0; c < kDim / 32; ++c) {
        uint32_t codes[4];  // keys group and group + 8 of the first 16 columns, then of the others
        load_matrices(codes, at(stage.keys, 2 * c));
        mma_m16n8k32_s8(high_dots, codes, high[c]);
        mma_m16n8k32_s8_u8(low_dots, codes, low[c]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[i] = static_cast<float>(high_dots[i] * 256 + low_dots[i]) * (stage.key_scales[group + i / 2 * 8] * scale[i % 2]);
      }
    }
  };
  struct Fresh {
    alignas(16) char codes[2][kDim];  // of k, of v
    float scales[2];
    int32_t exists;
  };
  __device__ static void put(Fresh& fresh, const AttentionDecodeRingParams& params, int part, int l,
                             const uint32_t (&words)[2], const FreshPlace& place) {
    const KvLayout& kv = params.attention.kv;
    const float values[4] = {low_float(words[0]), high_float(words[0]), low_float(words[1]), high_float(words[1])};
    float top = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) top = Max()(top, magnitude_of(values[i]));
#pragma unroll
    for (int mask = 1; mask < kDim / 4; mask *= 2) top = Max()(top, shuffle_xor(top, mask));
    const CodeScale scale = code_scale(top);
    char* block = static_cast<char*>(kv.data) + place.slot / kv.kv_block_size * kv.block_bytes;
    const int in_block = place.slot % kv.kv_block_size;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t first = static_cast<uint32_t>(code_of(values[2 * i], scale.inverse)) & 0xff;
      const uint32_t second = static_cast<uint32_t>(code_of(values[2 * i + 1], scale.inverse)) & 0xff;
      const uint16_t two = static_cast<uint16_t>(first | second << 8);
      const int column = kDim / 2 * i + 2 * l;
      *reinterpret_cast<uint16_t*>(fresh.codes[part] + column) = two;
      if (place.is_written) {
        *reinterpret_cast<uint16_t*>(block + kv.row_offset(part, place.kv_head, in_block) + column) = two;
      }
    }
    if (l == 0) {
      fresh.scales[part] = scale.scale;
      if (place.is_written) {
        kv.scales(place.slot / kv.kv_block_size)[kv.scale_idx(part, place.kv_head, in_block)] = scale.scale;
      }
    }
  }
  __device__ static void take(Stage& stage, int key, const Fresh& fresh) {
    constexpr int kChunks = kDim / 16;
    const int lane = threadIdx.x % kWarpSize, part = lane / kChunks, byte = key * kDim + lane % kChunks * 16;
    if (part < 2) {
      char* rows = part == 0 ? stage.keys : stage.values;
      *reinterpret_cast<uint4*>(rows + swizzled(0, byte / 128, byte % 128 / 16)) =
          *reinterpret_cast<const uint4*>(fresh.codes[part] + lane % kChunks * 16);
    } else if (lane == kWarpSize - 1) {
      stage.key_scales[key] = fresh.scales[0];
      stage.value_scales[key] = fresh.scales[1];
    }
  }
  __device__ static uint32_t pack(float a, float b) { return pack_f16(a, b); }
  __device__ static void add_product(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16_f16(acc, a, b);
  }
  __device__ static void values(const Stage& stage, int m, uint32_t (&a)[2][4]) {
    uint32_t codes[4];  // keys 2 pair, 2 pair + 1 and 8 behind them of chunk m, then of m + 1
    load_matrices_transposed(codes, at(stage.values, m));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Behind the exponent of 1024 a byte is 1024 more.
      const uint32_t bytes = codes[i] ^ 0x80808080u;  // 128 + code
      a[i / 2][i % 2 * 2] = add_f16x2(__byte_perm(bytes, 0x64646464u, 0x4240), 0xe480e480u);  // - 1152
      a[i / 2][i % 2 * 2 + 1] = add_f16x2(__byte_perm(bytes, 0x64646464u, 0x4341), 0xe480e480u);
    }
  }
  __device__ static float value_scale(const Stage& stage, int key) { return stage.value_scales[key]; }

 private:
  // Lane l: of key 8 (l / 8 % 2) + l % 8 the 16 codes of chunk c + l / 16; c is even.
  __device__ static uint32_t at(const char* rows, int c) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t byte = lane % 16 * kDim + lane / 16 * 16;
    return swizzled(static_cast<uint32_t>(__cvta_generic_to_shared(rows)), static_cast<int>(byte / 128),
                    static_cast<int>(byte % 128 / 16)) ^ static_cast<uint32_t>(c * 16);
  }
};

extern "C" __global__ void __launch_bounds__(kDecodeRingInt8Warps * kWarpSize, 2)
    attention_decode_ring_int8_d64(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<64, false>>(p);
}
extern "C" __global__ void __launch_bounds__(kDecodeRingInt8Warps * kWarpSize, 2)
    attention_decode_ring_int8_d128(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<128, false>>(p);
}
extern "C" __global__ void __maxnreg__(136)
    attention_decode_ring_int8_d64_many(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<64, true>>(p);
}
extern "C" __global__ void __maxnreg__(136)
    attention_decode_ring_int8_d128_many(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<128, true>>(p);
}

extern "C" __global__ void __maxnreg__(136)
    attention_decode_ring_rope_int8_d64(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<64, true, true>>(p);
}
extern "C" __global__ void __maxnreg__(136)
    attention_decode_ring_rope_int8_d128(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<128, true, true>>(p);
}

extern "C" __global__ void __launch_bounds__(kDecodeRingInt8Warps * kWarpSize, 2) __cluster_dims__(kDecodeClusterCtas, 1, 1)
    attention_decode_cluster_int8_d64(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_cluster<Int8Ring<64, false>>(p);
}
extern "C" __global__ void __launch_bounds__(kDecodeRingInt8Warps * kWarpSize, 2) __cluster_dims__(kDecodeClusterCtas, 1, 1)
    attention_decode_cluster_int8_d128(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_cluster<Int8Ring<128, false>>(p);
}

}  // namespace spate::cuda
