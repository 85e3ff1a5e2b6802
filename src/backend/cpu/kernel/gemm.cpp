// linear and linear_silu_and_mul. bf16 by bf16 goes to the AMX tiles where they are (gemm_amx.h), else to VDPBF16PS or
// BFMMLA where that is, or many rows of it to panels by FMA (gemm_dot.h); codes by codes to gemm_int.h, many rows of
// them to the tiles, to gemm_dot.h or to gemm_int_panels.h; everything else to FMA. Integer weights by x as it is
// become floats on the way (dequantize.h).
#include "backend/cpu/kernel/dequantize.h"
#include "backend/cpu/kernel/gemm_epilogue.h"
#include "backend/cpu/kernel/gemm_int.h"
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/micro_gemm.h"
#ifdef __AMX_BF16__
#include "backend/cpu/kernel/gemm_dequantizing_amx.h"
#include "backend/cpu/kernel/gemm_int_amx.h"
#elif defined(SPATE_DOTS)
#include "backend/cpu/kernel/gemm_dot.h"
#else
#include "backend/cpu/kernel/gemm_int_panels.h"
#endif

namespace spate::cpu::SPATE_ISA {
namespace {

constexpr int64_t kFmaGroup = 4;          // n-blocks of the weight worked on together
constexpr int64_t kFmaRowsPerChunk = 48;  // rows of x that stay in L2: 48 x 1024 x 4 B = 196 KB
constexpr int64_t kFmaKBlock = 512;       // 4 n-blocks x 512 x 32 B = 64 KB of weights
constexpr int64_t kMostAskingRows = 32;   // more read each weight several times, from L3
constexpr int64_t kDequantizedK = 128;    // 16 KB that codes become, in L1

bool fma_reads_x_in_place(const GemmParams& p) { return p.x_elem == Elem::kF32 && p.k % kKStep == 0; }

GemmPlan fma_plan(const GemmParams& p, int num_threads) {
  GemmPlan plan;
  plan.packed_x_bytes = fma_reads_x_in_place(p) ? 0 : p.m * round_up(p.k, kKStep) * 4;
  plan.rows_per_chunk = kFmaRowsPerChunk;
  plan.n_blocks_per_group = p.silu_and_mul ? kFmaGroup / 2 : kFmaGroup;
  const int64_t row_chunks = ceil_div(p.m, plan.rows_per_chunk), n_blocks = ceil_div(p.n, kNBlock);
  while (plan.n_blocks_per_group > 1 && row_chunks * ceil_div(n_blocks, plan.n_blocks_per_group) < 2 * num_threads) {
    plan.n_blocks_per_group /= 2;
  }
  plan.scratch_bytes = kFmaRowsPerChunk * kFmaGroup * kNBlock * 4;
  if (dequantizes(p)) plan.scratch_bytes += kFmaGroup * n_block_bytes(p.weight_elem, kDequantizedK);
  return plan;
}

template <typename T>
void widen_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  const int64_t k_padded = round_up(p.k, kKStep);
  for (int64_t r = first_row; r < first_row + num_rows; ++r) {
    const T* x = static_cast<const T*>(p.x) + r * p.x_stride;
    float* out = reinterpret_cast<float*>(p.packed_x) + r * k_padded;
    SPATE_FOR_LANES(i, count, p.k) { store_up_to(out + i, load_up_to(x + i, count), count); }
    for (int64_t i = p.k; i < k_padded; ++i) out[i] = 0;
  }
}

// Of n-blocks of codes the next num_k as floats, in `memory`; blocks: where these are.
template <typename W>
SPATE_INLINE void dequantize_blocks(const GemmParams& p, const char* const* n_blocks, int64_t num_blocks, int64_t k,
                                    int64_t num_k, char* memory, const char** blocks) {
  constexpr Elem kTo = W::kRowK == 2 ? Elem::kBf16 : Elem::kF32;
  for (int64_t j = 0; j < num_blocks; ++j) {
    char* to = memory + j * n_block_bytes(kTo, kDequantizedK);
    dequantize_n_block<kTo>(p.weight_ints, n_blocks[j], k, num_k, to);
    blocks[j] = to;
  }
}

template <typename W, bool kDequantizes>
void gemm_fma(const GemmParams& p, int64_t first_row, int64_t num_rows, int64_t first_n_block, int64_t num_n_blocks,
              float* sums) {
  const int64_t k_padded = round_up(p.k, kKStep);
  const bool in_place = fma_reads_x_in_place(p);
  const int64_t x_stride = in_place ? p.x_stride : k_padded;
  const float* x =
      (in_place ? static_cast<const float*>(p.x) : reinterpret_cast<const float*>(p.packed_x)) + first_row * x_stride;
  const int64_t block_bytes = kDequantizes ? p.weight_ints.block_bytes : k_padded / W::kRowK * W::kRowBytes;
  constexpr int64_t kKBlock = kDequantizes ? kDequantizedK : kFmaKBlock;
  [[maybe_unused]] char* dequantized = reinterpret_cast<char*>(sums + kFmaRowsPerChunk * kFmaGroup * kNBlock);
  constexpr int64_t kStride = kFmaGroup * kNBlock;
  const int64_t step = p.silu_and_mul ? kFmaGroup / 2 : kFmaGroup;
  for (int64_t group = first_n_block; group < first_n_block + num_n_blocks; group += step) {
    const int64_t count = min_of(step, first_n_block + num_n_blocks - group);
    const char* blocks[kFmaGroup];
    int64_t num_blocks = 0;
    for (int64_t j = 0; j < count; ++j) blocks[num_blocks++] = p.weight + (group + j) * block_bytes;
    for (int64_t j = 0; j < count && p.silu_and_mul; ++j) {
      blocks[num_blocks++] = p.weight + (group + j + p.up_blocks) * block_bytes;
    }
    for (int64_t i = 0; i < num_rows * kStride; ++i) sums[i] = 0;
    for (int64_t k = 0; k < k_padded; k += kKBlock) {
      const int64_t num_k = min_of(kKBlock, k_padded - k);
      if constexpr (kDequantizes) {
        const char* floats[kFmaGroup];
        dequantize_blocks<W>(p, blocks, num_blocks, k, num_k, dequantized, floats);
        micro_gemm<W>(x + k, x_stride, num_rows, floats, num_blocks, num_k, sums, kStride);
        continue;
      }
      if (p.m > kMostAskingRows) {
        micro_gemm<W>(x + k, x_stride, num_rows, blocks, num_blocks, num_k, sums, kStride);
      } else {
        const char* next[kFmaGroup];
        for (int64_t j = 0; j < num_blocks; ++j) {
          next[j] = blocks[j] + num_k / W::kRowK * W::kRowBytes;
          if (k + num_k == k_padded) next[j] += (step - 1) * block_bytes;
        }
        micro_gemm_asking<W>(x + k, x_stride, num_rows, blocks, num_blocks, num_k, sums, kStride, next);
      }
      for (int64_t j = 0; j < num_blocks; ++j) blocks[j] += num_k / W::kRowK * W::kRowBytes;
    }
    finish_n_blocks(p, first_row, first_row + num_rows, group, count, sums, sums + count * kNBlock, kStride);
  }
}

}  // namespace

GemmPlan gemm_plan(const GemmParams& p, int num_threads) {
#ifdef __AMX_BF16__
  if (is_int(p)) return int_amx_plan(p, num_threads);
  if (amx_takes(p)) return dequantizes(p) ? dequantizing_amx_plan(p, num_threads) : amx_plan(p, num_threads);
#elif defined(SPATE_DOTS)
  if (dots_take(p)) return dot_plan(p, num_threads);
#endif
#ifdef SPATE_INT_PANELS
  if (panels_take(p)) return panel_plan(p, num_threads);
#endif
  return is_int(p) ? int_plan(p, num_threads) : fma_plan(p, num_threads);
}

void pack_x(const GemmParams& p, int64_t first_row, int64_t num_rows) {
#ifdef __AMX_BF16__
  if (is_int(p)) return int_amx_pack(p, first_row, num_rows);
  if (amx_takes(p)) return amx_pack_rows(p, first_row, num_rows);
#elif defined(SPATE_DOTS)
  if (dots_take(p)) return dot_pack_rows(p, first_row, num_rows);
#endif
#ifdef SPATE_INT_PANELS
  if (panels_take(p)) return panel_pack_rows(p, first_row, num_rows);
#endif
  if (is_int(p)) return int_pack_rows(p, first_row, num_rows);
  p.x_elem == Elem::kF32 ? widen_rows<float>(p, first_row, num_rows) : widen_rows<bf16_t>(p, first_row, num_rows);
}

static void gemm_item(const GemmParams& p, [[maybe_unused]] const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                      int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
#ifdef __AMX_BF16__
  if (is_int(p)) return gemm_int_amx(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  if (amx_takes(p)) {
    const auto run = dequantizes(p) ? dequantizing_gemm_amx : gemm_amx;
    return run(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  }
#elif defined(SPATE_DOTS)
  if (dots_take_codes(p)) return gemm_dot<Words::kCodes>(p, first_row, num_rows, first_n_block, num_n_blocks, scratch);
#if defined(SPATE_BF16_DOTS) || defined(SPATE_FLOAT_WORDS)
  if (dots_take_bf16(p)) return gemm_dot<kBf16Words>(p, first_row, num_rows, first_n_block, num_n_blocks, scratch);
#endif
#endif
#ifdef SPATE_INT_PANELS
  if (panels_take(p)) return gemm_panels(p, first_row, num_rows, first_n_block, num_n_blocks, scratch);
#endif
  float* sums = reinterpret_cast<float*>(scratch);
  if (is_int(p)) return gemm_int(p, first_row, num_rows, first_n_block, num_n_blocks, sums);
  const bool is_f32 = p.weight_elem == Elem::kF32;
  const auto run = dequantizes(p) ? (is_f32 ? gemm_fma<F32Weight, true> : gemm_fma<Bf16Weight, true>)
                                  : (is_f32 ? gemm_fma<F32Weight, false> : gemm_fma<Bf16Weight, false>);
  run(p, first_row, num_rows, first_n_block, num_n_blocks, sums);
}

void gemm(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows, int64_t first_n_block,
          int64_t num_n_blocks, char* scratch) {
  gemm_item(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  if (plan.stream_out || streams_floats(p)) stream_fence();
}

}  // namespace spate::cpu::SPATE_ISA
