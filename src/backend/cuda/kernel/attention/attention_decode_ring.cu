// WHAT       Attention of one query token a sequence over its paged cache, as attention_decode.cu, through a ring in
//            shared memory.
// SHAPES     q, out [num_seqs, num_heads, head_dim] bf16, outer strides free; cache bf16, head_dim 64 or 128,
//            kv_block_size a power of two and a multiple of 16.
// LAYOUT     A tile is atoms of 8 keys by 64 columns, swizzled. Keys are rows of operand A of the scores, columns of v
//            those of the sums; query heads are the 8 columns of operand B.
// NUMERICS   As attention_decode.cu, but the base of a warp's softmax moves only when a maximum grows by 2^8; powers of 2
//            are within 2 ulp, those below 2^-126 are 0; a quotient is the product with a reciprocal within 2 ulp. The
//            order of sums depends on the step's sizes, so a deterministic device does not use these kernels.
// WORK       *_ring_*: one CTA an SM has an equal run of the tiles of all sequences and kv heads, at least 16, with cuts
//            16 tiles from the ends of a head tile, dealt by turns to 4 warps (8 at head_dim 64), each with a ring of 2
//            that its copies fill in advance, over the ends of sequences too. One more warp adds their sums while they go
//            on with the next head tile. What CTAs share the last of them adds up.
//            *_cluster_*: few head tiles of sequences that are not long. A cluster of 8 CTAs has one, dealt by turns to
//            the warps of all, with rings of 3; CTA i adds the sums of query head i in its shared memory.
// ROOFLINE   Bytes of K and V over 4.65 TB/s.
// WARM       1 s: fast, bf16, bf16-cache, head-64; fast, bf16, bf16-cache, head-128
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_decode_cluster.h"
#include "backend/cuda/kernel/attention/attention_decode_ring.h"

namespace spate::cuda {

template <int kDim, int kNumStages = kDecodeRingStages>
struct Bf16Ring {
  static constexpr int kHeadDim = kDim, kWarps = decode_ring_warps(kDim), kStages = kNumStages;
  static constexpr int kSlices = kDim / 64, kValuesAtOnce = 1;
  static constexpr bool kHasScales = false, kHasMerger = true, kRopes = false;
  struct alignas(1024) Stage {
    char keys[kTile * kDim * 2], values[kTile * kDim * 2];  // [2][kSlices][8 keys][64] each
  };
  static constexpr uint32_t kBytes = sizeof(Stage);

  __device__ static void copy(const AttentionDecodeRingParams& params, const TilePlace& place, uint32_t at,
                              uint32_t bar) {
    const KvLayout& kv = params.attention.kv;
    const int row = place.kv_head * kv.kv_block_size + place.token_in_block;
    copy_box_5d(at, params.kv, 0, 0, 0, row / 8, place.block_id, bar);
    copy_box_5d(at + kBytes / 2, params.kv, 0, 0, 0, (row + kv.num_kv_heads * kv.kv_block_size) / 8, place.block_id,
                bar);
  }
  __device__ static int out_column(int m, int i) {
    return 16 * m + 8 * i + static_cast<int>(threadIdx.x % kWarpSize / 4);
  }
  struct Query {
    uint32_t columns[kDim / 16][2];  // 16 c + 8 i + 2 pair and the next
    float scale;

    __device__ void fetch(const AttentionPagedKernelParams& p, int token, int first_head, int num_heads) {
      const int group = threadIdx.x % kWarpSize / 4;
      const Bf16* first = static_cast<const Bf16*>(p.q) + token * p.q_token_stride +
                          static_cast<int64_t>(first_head + group) * p.q_head_stride + 2 * (threadIdx.x % 4);
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          columns[c][i] = group < num_heads ? *reinterpret_cast<const uint32_t*>(first + 16 * c + 8 * i) : 0;
        }
      }
    }
    __device__ void prepare(const AttentionPagedKernelParams& p) { scale = p.softmax_scale_log2e; }
    __device__ void scores(const Stage& stage, float (&score)[4]) const {
      const uint32_t lane = threadIdx.x % kWarpSize;
      float dots[2][4] = {};
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
        uint32_t a[4];
        load_matrices(a, at(stage.keys, static_cast<int>(lane / 8 % 2), c, static_cast<int>(lane / 16)));
        mma_m16n8k16_bf16(dots[c % 2], a, columns[c]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) score[i] = (dots[0][i] + dots[1][i]) * scale;
    }
  };
  __device__ static uint32_t pack(float a, float b) { return pack_bf16(a, b); }
  __device__ static void add_product(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16_bf16(acc, a, b);
  }
  __device__ static void values(const Stage& stage, int m, uint32_t (&a)[1][4]) {
    const uint32_t lane = threadIdx.x % kWarpSize;
    load_matrices_transposed(a[0], at(stage.values, static_cast<int>(lane / 16), m, static_cast<int>(lane / 8 % 2)));
  }
  __device__ static void clear_value(Stage& stage, int key) {
    const int slice = static_cast<int>(threadIdx.x % kWarpSize / 8), chunk = static_cast<int>(threadIdx.x % 8);
    char* atom = stage.values + (key / 8 * kSlices + slice) * 1024;
    if (slice < kSlices) *reinterpret_cast<uint4*>(atom + key % 8 * 128 + chunk * 16) = make_uint4(0, 0, 0, 0);
  }

 private:
  // Of key 8 octet + lane % 8 the columns 16 c + 8 half to + 7.
  __device__ static uint32_t at(const char* rows, int octet, int c, int half) {
    const uint32_t atoms = static_cast<uint32_t>(__cvta_generic_to_shared(rows));
    return swizzled(atoms + static_cast<uint32_t>(octet * kSlices + c / 4) * 1024, static_cast<int>(threadIdx.x % 8),
                    c % 4 * 2 + half);
  }
};

extern "C" __global__ void __launch_bounds__((decode_ring_warps(64) + 1) * kWarpSize, 1)
    attention_decode_ring_d64(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Bf16Ring<64>>(p);
}
extern "C" __global__ void __launch_bounds__((decode_ring_warps(128) + 1) * kWarpSize, 1)
    attention_decode_ring_d128(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_ring<Bf16Ring<128>>(p);
}

extern "C" __global__ void __launch_bounds__(decode_cluster_warps(64, false) * kWarpSize, 1) __cluster_dims__(kDecodeClusterCtas, 1, 1)
    attention_decode_cluster_d64(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_cluster<Bf16Ring<64, decode_cluster_stages(false)>>(p);
}
extern "C" __global__ void __launch_bounds__(decode_cluster_warps(128, false) * kWarpSize, 1) __cluster_dims__(kDecodeClusterCtas, 1, 1)
    attention_decode_cluster_d128(const __grid_constant__ AttentionDecodeRingParams p) {
  attention_decode_cluster<Bf16Ring<128, decode_cluster_stages(false)>>(p);
}

}  // namespace spate::cuda
