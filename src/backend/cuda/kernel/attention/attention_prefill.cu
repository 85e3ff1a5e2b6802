// WHAT       Attention of many query tokens over their sequences' paged cache, as attention_paged.cu, causal, with an
// optional window. SHAPES     q, out [num_tokens, num_heads, head_dim] bf16, outer strides free; cache bf16, head_dim
// 64 or 128, kv_block_size a power
//            of two and a multiple of 16.
// LAYOUT     Tiles of 64 keys in shared memory; chunk c of 16 bytes of row r stands at c ^ (r % 8).
// NUMERICS   Dots and sums in fp32 on the tensor core; probabilities are rounded to bf16, their sum is of the rounded
// ones. Online
//            softmax over tiles of 64 keys that start at multiples of 64.
// WORK       grid.x tiles of 64 query tokens of the longest sequence (the last ones first: they have the most keys),
// grid.y heads,
//            grid.z sequences. A warp owns 16 queries. The next tile of keys is on its way while one is multiplied.
// ROOFLINE   4 * head_dim operations a query and key over 750 TFLOP/s; mma.sync reaches about two thirds of wgmma.
// WARM       0.7 s: fast, older, bf16, bf16-cache, head-64; fast, older, bf16, bf16-cache, head-128
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_prefill.h"

#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

template <int kHeadDim>
__device__ inline void attention_prefill(const AttentionPagedKernelParams& p) {
  constexpr int kChunks = kHeadDim / 8, kSteps = kHeadDim / 16, kRowBytes = kHeadDim * 2;
  constexpr int kThreads = kPrefillWarps * kWarpSize, kRowsALoad = kThreads / kChunks;
  constexpr uint32_t kTileBytes = kPrefillKeys * kRowBytes;
  extern __shared__ __align__(128) char smem[];
  const uint32_t tiles = shared_address(smem);  // stage: K, V
  let_dependents_launch();
  wait_for_inputs();
  const int seq = blockIdx.z, head = blockIdx.y, kv_head = head / p.heads_per_kv_head;
  const int first_token = p.cu_seqlens_q[seq], query_len = p.cu_seqlens_q[seq + 1] - first_token;
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kPrefillQueries;
  if (first_query >= query_len) return;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, group = lane / 4, pair = lane % 4;
  const int first_position = p.seq_lens[seq] - query_len + first_query;
  const int end_key = first_position + min(kPrefillQueries, query_len - first_query);  // half-open
  const int begin_key = p.window > 0 ? max(0, first_position - p.window + 1) : 0;
  const int32_t* blocks = p.block_table + p.seq_rows[seq] * p.block_table_stride;

  // q of rows `group` and `group` + 8 of the warp's 16, as operand A.
  uint32_t q[kSteps][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + 16 * warp + group + 8 * half;
    const bool exists = query < query_len;
    const Bf16* row = static_cast<const Bf16*>(p.q) + (exists ? (first_token + query) * p.q_token_stride : 0) +
                      head * p.q_head_stride;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        q[k][half + 2 * part] = exists ? *reinterpret_cast<const uint32_t*>(row + 16 * k + 8 * part + 2 * pair) : 0;
      }
    }
  }

  const int block_shift = 31 - __clz(p.kv.kv_block_size);
  const int64_t part_bytes = static_cast<int64_t>(p.kv.num_kv_heads) * p.kv.kv_block_size * kRowBytes;  // from k to v
  const char* cache =
      static_cast<const char*>(p.kv.data) + static_cast<int64_t>(kv_head) * p.kv.kv_block_size * kRowBytes;
  const auto load_tile = [&](int stage, int tile) {
    const uint32_t k_tile = tiles + static_cast<uint32_t>(stage) * 2 * kTileBytes;
    const int chunk = threadIdx.x % kChunks;
#pragma unroll
    for (int i = 0; i < kPrefillKeys / kRowsALoad; ++i) {
      const int row = i * kRowsALoad + threadIdx.x / kChunks, key = tile * kPrefillKeys + row;
      const bool exists = key >= begin_key && key < end_key;
      const char* source = cache;
      if (exists) {
        source +=
            blocks[key >> block_shift] * p.kv.block_bytes + (key & (p.kv.kv_block_size - 1)) * kRowBytes + chunk * 16;
      }
      const uint32_t target = k_tile + static_cast<uint32_t>(row * kRowBytes + (chunk ^ (row % 8)) * 16);
      copy_async_16(target, source, exists);
      copy_async_16(target + kTileBytes, exists ? source + part_bytes : source, exists);
    }
  };

  float acc[kHeadDim / 8][4] = {}, max_score[2] = {-kInfinity, -kInfinity}, sum[2] = {0.0f, 0.0f};
  const int first_tile = begin_key / kPrefillKeys, end_tile = (end_key + kPrefillKeys - 1) / kPrefillKeys;
  load_tile(0, first_tile);
  commit_copies();
  for (int tile = first_tile; tile < end_tile; ++tile) {
    const int stage = (tile - first_tile) % 2;
    if (tile + 1 < end_tile) load_tile(1 - stage, tile + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    const uint32_t k_tile = tiles + static_cast<uint32_t>(stage) * 2 * kTileBytes, v_tile = k_tile + kTileBytes;

    float score[kPrefillKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int n = 0; n < kPrefillKeys / 16; ++n) {
        uint32_t b[4];
        const int row = 16 * n + lane % 8 + lane / 16 * 8, chunk = 2 * k + lane / 8 % 2;
        load_matrices(b, k_tile + static_cast<uint32_t>(row * kRowBytes + (chunk ^ (row % 8)) * 16));
        const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        mma_m16n8k16_bf16(score[2 * n], q[k], low);
        mma_m16n8k16_bf16(score[2 * n + 1], q[k], high);
      }
    }

    const int first_key = tile * kPrefillKeys, own_position = first_position + 16 * warp + group;
    const bool is_masked =
        first_key + kPrefillKeys > first_position + 16 * warp + 1 || (p.window > 0 && first_key < end_key - p.window);
    float new_max[2] = {max_score[0], max_score[1]};
#pragma unroll
    for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value = score[n][i] * p.softmax_scale_log2e;
        if (is_masked) {
          const int key = first_key + 8 * n + 2 * pair + i % 2, position = own_position + i / 2 * 8;
          if (key > position || (p.window > 0 && key <= position - p.window)) value = -kInfinity;
        }
        score[n][i] = value;
        new_max[i / 2] = fmaxf(new_max[i / 2], value);
      }
    }
    float shrink[2], base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      new_max[half] = fmaxf(new_max[half], shuffle_xor(new_max[half], 1));
      new_max[half] = fmaxf(new_max[half], shuffle_xor(new_max[half], 2));
      base[half] = new_max[half] == -kInfinity ? 0.0f : new_max[half];  // a row that has seen no key yet
      shrink[half] = exp2f(max_score[half] - base[half]);
      max_score[half] = new_max[half];
      sum[half] *= shrink[half];
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= shrink[i / 2];
    }
#pragma unroll
    for (int k = 0; k < kPrefillKeys / 16; ++k) {
      uint32_t prob[4];  // operand A: keys 16 k ..
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* s = &score[2 * k + i / 2][i % 2 * 2];
        prob[i] = pack_bf16(exp2f(s[0] - base[i % 2]), exp2f(s[1] - base[i % 2]));
        sum[i % 2] += low_float(prob[i]) + high_float(prob[i]);
      }
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        uint32_t b[4];
        const int row = 16 * k + lane % 16, chunk = 2 * n + lane / 16;
        load_matrices_transposed(b, v_tile + static_cast<uint32_t>(row * kRowBytes + (chunk ^ (row % 8)) * 16));
        const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        mma_m16n8k16_bf16(acc[2 * n], prob, low);
        mma_m16n8k16_bf16(acc[2 * n + 1], prob, high);
      }
    }
    __syncthreads();  // the stage is free for the tile after the next
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += shuffle_xor(sum[half], 1);
    sum[half] += shuffle_xor(sum[half], 2);
    const int query = first_query + 16 * warp + group + 8 * half;
    if (query >= query_len) continue;
    Bf16* out = static_cast<Bf16*>(p.out) + (first_token + query) * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<uint32_t*>(out + 8 * n + 2 * pair) =
          pack_bf16(acc[n][2 * half] / sum[half], acc[n][2 * half + 1] / sum[half]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kPrefillWarps* kWarpSize, 3)
    attention_prefill_d64(const __grid_constant__ AttentionPagedKernelParams p) {
  attention_prefill<64>(p);
}
extern "C" __global__ void __launch_bounds__(kPrefillWarps* kWarpSize, 2)
    attention_prefill_d128(const __grid_constant__ AttentionPagedKernelParams p) {
  attention_prefill<128>(p);
}

}  // namespace spate::cuda
