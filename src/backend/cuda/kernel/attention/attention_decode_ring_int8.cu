// WHAT       As attention_decode_ring.cu over an int8 cache.
// SHAPES     q, out [num_seqs, num_heads, head_dim] bf16, outer strides free; cache int8, head_dim 64 or 128,
//            kv_block_size a power of two and a multiple of 16.
// LAYOUT     A tile is rows of 128 bytes, swizzled: a key each, or two neighbours of 64. A register of a loaded matrix
//            has 4 codes of a key, which are k 2 pair, 2 pair + 1, 2 pair + 8 and 2 pair + 9; of values 2 neighbours of
//            two keys, which are rows group and group + 8.
// NUMERICS   As attention_decode_ring.cu: the codes become bf16 exactly. A key's scale meets its fp32 dot, a value's
//            its probability before that is rounded to bf16.
// WORK       As attention_decode_ring.cu, with 8 warps, or at head_dim 128 in steps of many sequences 12; only these have
//            a merging warp, others stop at the end of a head tile to add. Rings of clusters too are of 2.
// ROOFLINE   Bytes of K and V over 4.65 TB/s.
// WARM       1.6 s: fast, bf16, int8-cache, head-64; fast, bf16, int8-cache, head-128
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_decode_ring.h"

namespace spate::cuda {

template <int kDim, bool kIsMany>
struct Int8Ring {
  static constexpr int kHeadDim = kDim, kWarps = decode_ring_int8_warps(kIsMany), kStages = kDecodeRingStages;
  static constexpr int kKeysAtOnce = 2, kValuesAtOnce = 2;
  static constexpr bool kHasScales = true, kHasMerger = kIsMany;
  struct alignas(1024) Stage {
    char keys[kTile * kDim], values[kTile * kDim];
    float key_scales[kTile], value_scales[kTile];
  };
  static constexpr uint32_t kScalesBytes = kTile * sizeof(float), kBytes = 2 * kTile * kDim + 2 * kScalesBytes;

  __device__ static void copy(const AttentionDecodeRingParams& params, const TilePlace& place, uint32_t at,
                              uint32_t bar) {
    const KvLayout& kv = params.attention.kv;
    const int row = place.kv_head * kv.kv_block_size + place.token_in_block;
    const int value_row = row + kv.num_kv_heads * kv.kv_block_size;
    copy_box_5d(at, params.kv, 0, row * kDim / 128, place.block_id, 0, 0, bar);
    copy_box_5d(at + kTile * kDim, params.kv, 0, value_row * kDim / 128, place.block_id, 0, 0, bar);
    const float* scales = kv.scales(place.block_id);
    copy_bytes(at + 2 * kTile * kDim, scales + row, kScalesBytes, bar);
    copy_bytes(at + 2 * kTile * kDim + kScalesBytes, scales + value_row, kScalesBytes, bar);
  }
  __device__ static int q_column(int c, int i) { return 16 * c + 4 * static_cast<int>(threadIdx.x % 4) + 2 * i; }
  __device__ static int out_column(int m, int i) {
    return 16 * m + 2 * static_cast<int>(threadIdx.x % kWarpSize / 4) + i;
  }
  __device__ static void keys(const Stage& stage, int c, uint32_t (&a)[2][4]) {
    uint32_t codes[4];  // keys group and group + 8 of chunk c, then of c + 1
    load_matrices(codes, at(stage.keys, c));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2] = codes_to_bf16(__byte_perm(codes[i], 0, 0x4140));
      a[i / 2][i % 2 + 2] = codes_to_bf16(__byte_perm(codes[i], 0, 0x4342));
    }
  }
  __device__ static void values(const Stage& stage, int m, uint32_t (&a)[2][4]) {
    uint32_t codes[4];  // keys 2 pair, 2 pair + 1 and 8 behind them of chunk m, then of m + 1
    load_matrices_transposed(codes, at(stage.values, m));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2 * 2] = codes_to_bf16(__byte_perm(codes[i], 0, 0x4240));
      a[i / 2][i % 2 * 2 + 1] = codes_to_bf16(__byte_perm(codes[i], 0, 0x4341));
    }
  }
  __device__ static float key_scale(const Stage& stage, int key) { return stage.key_scales[key]; }
  __device__ static float value_scale(const Stage& stage, int key) { return stage.value_scales[key]; }

 private:
  // Lane l: of key 8 (l / 8 % 2) + l % 8 the 16 codes of chunk c + l / 16.
  __device__ static uint32_t at(const char* rows, int c) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    const uint32_t byte = lane % 16 * kDim + (static_cast<uint32_t>(c) + lane / 16) * 16;
    return swizzled(static_cast<uint32_t>(__cvta_generic_to_shared(rows)), static_cast<int>(byte / 128),
                    static_cast<int>(byte % 128 / 16));
  }
};

extern "C" __global__ void __launch_bounds__(decode_ring_int8_warps(false) * kWarpSize, 2)
    attention_decode_ring_int8_d64(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<64, false>>(p);
}
extern "C" __global__ void __launch_bounds__(decode_ring_int8_warps(false) * kWarpSize, 2)
    attention_decode_ring_int8_d128(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<128, false>>(p);
}
extern "C" __global__ void __launch_bounds__((decode_ring_int8_warps(true) + 1) * kWarpSize, 1)
    attention_decode_ring_int8_d128_many(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Int8Ring<128, true>>(p);
}

extern "C" __global__ void __launch_bounds__(decode_ring_int8_warps(false) * kWarpSize, 2) __cluster_dims__(kDecodeClusterCtas, 1, 1)
    attention_decode_cluster_int8_d64(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_cluster<Int8Ring<64, false>>(p);
}
extern "C" __global__ void __launch_bounds__(decode_ring_int8_warps(false) * kWarpSize, 2) __cluster_dims__(kDecodeClusterCtas, 1, 1)
    attention_decode_cluster_int8_d128(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_cluster<Int8Ring<128, false>>(p);
}

}  // namespace spate::cuda
