// WHAT       attention_latent_wgmma over a cache of codes.
// SHAPES     As latent_wgmma.cu; the cache int8.
// LAYOUT     latent.h.
// NUMERICS   As latent_wgmma.cu with codes as keys and values, exactly. The scales are multiplied with the scores, those of
//            the rotated elements first, and with the probabilities before these are rounded.
// WORK       As latent_wgmma.cu; four warps read codes into registers, three parts ahead, and store tiles of bf16. The
//            tiles behind are prefetched into L2.
// ROOFLINE   584 bytes a key over 4.65 TB/s, up to about 45 rows a sequence; else 2,176 FLOP a row and key.
// WARM       1 s: fast, bf16, latent-int8
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent_wgmma.h"

#include "backend/cuda/kernel/latent/latent_skeleton.h"

namespace spate::cuda {

constexpr int kPrefetchTiles = 3;
constexpr int kKeysOfThread = 2;  // of a tile: keys of 8 neighbours of a warp, and 32 behind
constexpr int kPieceCodes = 16;

// A thread's keys of a tile; of their codes 16 of each part are its.
struct TileKeys {
  const char* codes[kKeysOfThread];
  float2 scales[kKeysOfThread];  // of the compressed and of the rotated elements
};

struct CodeLoader {
  static constexpr bool kIsCodes = true, kMerges = false;
  static constexpr int kArrivals = 4, kLoadRegisters = 72, kRegisters = 216;

  // Behind the last key that one again.
  __device__ static TileKeys keys_of(const LatentLayout& kv, const int32_t* blocks, int tile, int seq_len) {
    TileKeys keys;
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i) {
      const int key = min(tile * kLatentKeys + key_in_tile(i), seq_len - 1), block_idx = key / kv.kv_block_size;
      const int in_block = key - block_idx * kv.kv_block_size;
      const char* block = static_cast<const char*>(kv.data) + blocks[block_idx] * kv.block_bytes;
      keys.codes[i] = block + in_block * kLatentWidth + static_cast<int>(threadIdx.x) % kWarpSize / 8 * kPieceCodes;
      keys.scales[i] = reinterpret_cast<const float2*>(block + kv.kv_block_size * kLatentWidth)[in_block];
    }
    return keys;
  }
  __device__ static int key_in_tile(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / kWarpSize * 8 + thread % 8 + 32 * i;
  }

  __device__ static void read(uint4 (&pieces)[kKeysOfThread], const TileKeys& keys, int part) {
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i) {
      pieces[i] = *reinterpret_cast<const uint4*>(keys.codes[i] + part * (kLatentWidth / kLatentParts));
    }
  }

  // What the consumers multiply with. Where the compressed elements are all zero their scale is; so is whatever is
  // multiplied with it.
  __device__ static void store_scales(const Shared& shared, int buffer, const TileKeys& keys) {
    if (threadIdx.x % kWarpSize >= 8) return;
#pragma unroll
    for (int i = 0; i < kKeysOfThread; ++i) {
      const float compressed = keys.scales[i].x == 0.0f ? 1.0f : keys.scales[i].x;
      const uint32_t to = shared.key_scales(buffer) + static_cast<uint32_t>(key_in_tile(i)) * 4;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(compressed) : "memory");
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + kLatentKeys * 4), "f"(keys.scales[i].y / compressed) : "memory");
    }
  }

  // A piece as 16 values of bf16 in two chunks of a row. 8 lanes of a warp have 8 rows: all banks.
  __device__ static void store(uint32_t part, const uint4& piece, int key) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] = codes_to_bf16(__byte_perm(words[2 * half + i / 2], 0, i % 2 == 0 ? 0x4140 : 0x4342));
      }
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(part + swizzled(key, lane / 8 * 2 + half)),
                   "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3])
                   : "memory");
    }
  }

  // Boxes of keys, which lie in one block each; a lane a box. With a box that is a block, its scales, too.
  __device__ static void prefetch(const LatentWgmmaKernelParams& p, const int32_t* blocks, int tile, int seq_len) {
    const LatentLayout& kv = p.attention.kv;
    const int key = tile * kLatentKeys + static_cast<int>(threadIdx.x) * p.box_keys;
    if (static_cast<int>(threadIdx.x) * p.box_keys >= kLatentKeys || key >= seq_len) return;
    const char* from = static_cast<const char*>(kv.data) + blocks[key / kv.kv_block_size] * kv.block_bytes +
                       key % kv.kv_block_size * kLatentWidth;
    const int bytes = p.box_keys == kv.kv_block_size ? static_cast<int>(kv.block_bytes) : p.box_keys * kLatentWidth;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
  }

  __device__ static void load(const LatentWgmmaKernelParams& p, const Shared& shared, SharedWords& words) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const LatentLayout& kv = p.attention.kv;
    wait_for_inputs();
    Work<false> work(p);
    Place place;
    Segment segment{};
    bool has_work = work.next(segment);
    if (warp == 0) work.publish(has_work, segment, work.reach());
    for (int n = 0;; ++n) {
      has_work = find_rows(work, segment, has_work);
      if (warp == 0) give_segment(shared, words, n, lane, segment, has_work);
      if (!has_work) return;
      if (warp == 0) {
        for (int tile = 0; tile < kPrefetchTiles; ++tile) {
          if (segment.begin_tile + tile < segment.end_tile) {
            prefetch(p, work.blocks(), segment.begin_tile + tile, segment.seq_len);
          }
        }
      }
      TileKeys keys = keys_of(kv, work.blocks(), segment.begin_tile, segment.seq_len);
      uint4 pieces[kPartsOfGroup][kKeysOfThread];
#pragma unroll
      for (int i = 0; i < kPartsOfGroup; ++i) read(pieces[i], keys, part_of<true>(i));
      for (int tile = segment.begin_tile; tile < segment.end_tile; ++tile) {
        if (warp == 0 && tile + kPrefetchTiles < segment.end_tile) {
          prefetch(p, work.blocks(), tile + kPrefetchTiles, segment.seq_len);
        }
        wait_barrier(shared.empty(place.buffer), place.parity ^ 1);
        store_scales(shared, place.buffer, keys);
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
          const bool is_last = group == kGroups - 1;
          if (is_last) keys = keys_of(kv, work.blocks(), min(tile + 1, segment.end_tile - 1), segment.seq_len);
          const int next = is_last ? 0 : (group + 1) * kPartsOfGroup;
#pragma unroll
          for (int i = 0; i < kPartsOfGroup; ++i) {
            const int part = part_of<true>(group * kPartsOfGroup + i);
#pragma unroll
            for (int k = 0; k < kKeysOfThread; ++k) {
              store(shared.tile(place.buffer) + static_cast<uint32_t>(part) * kLatentPartBytes, pieces[i][k], key_in_tile(k));
            }
            read(pieces[i], keys, part_of<true>(next + i));
          }
          fence_async_proxy();
          __syncwarp();
          if (lane == 0) arrive(shared.full(place.buffer, group));
        }
        place.advance();
      }
      has_work = work.next(segment);
    }
  }
};

extern "C" __global__ void __launch_bounds__(kLatentThreads, 1)
    attention_latent_wgmma_int8(const __grid_constant__ LatentWgmmaKernelParams p) {
  extern __shared__ char smem[];
  attention_latent_wgmma<CodeLoader>(p, smem);
}

}  // namespace spate::cuda
