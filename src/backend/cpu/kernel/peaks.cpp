// Loops that do nothing but one kind of work, for limits.cpp.
#include "backend/cpu/kernel/dot_tile.h"
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/simd.h"
#ifdef __AMX_BF16__
#include "backend/cpu/kernel/amx.h"
#elif defined(__aarch64__)
#include "backend/cpu/kernel/neon/peaks.h"
#endif

namespace spate::cpu::SPATE_ISA {

#ifdef __x86_64__
// Which way is the fastest differs between machines, and on one between minutes: four streams side by side, each 1 KB ahead of what is
// read, where prefetch by hardware follows one stream too slowly; one plain stream where it follows it well.
template <int64_t kStreams, int64_t kAhead>
static uint64_t read_streams(const char* data, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const int64_t part = bytes / kStreams / kLine * kLine;
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int64_t s = 0; s < kStreams; ++s) {
      const char* p = data + s * part + i;
      if constexpr (kAhead > 0) _mm_prefetch(p + kAhead, _MM_HINT_T0);
      const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
      const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32));
      sums[s] = _mm256_xor_si256(sums[s], _mm256_xor_si256(low, high));
    }
  }
  const __m256i total = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(total, 0) ^ _mm256_extract_epi64(total, 1));
}
uint64_t read_memory(const char* data, int64_t bytes) { return read_streams<4, 1024>(data, bytes); }
uint64_t read_memory_plain(const char* data, int64_t bytes) { return read_streams<1, 0>(data, bytes); }

// Past the caches: written the usual way, lines would be read first.
void write_memory(char* data, int64_t bytes) {
  const __m256i zeros = _mm256_setzero_si256();
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(data + i), zeros);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(data + i + 32), zeros);
  }
  _mm_sfence();
}
#endif

// Ten chains: more than latency times ports.
double fma_flops(int64_t iterations) {
  F sums[10];
  for (int i = 0; i < 10; ++i) sums[i] = set1(static_cast<float>(i));
  const F a = set1(1.0001f), b = set1(-0.0001f);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < 10; ++i) {
      sums[i] = fma(sums[i], a, b);
      forget(sums[i]);
    }
  }
  return static_cast<double>(iterations) * 10 * kLanes * 2;
}

#ifdef __AVX512BF16__
double vector_bf16_flops(int64_t iterations) {
  I sums[10], a = int_set1(0x3f803f80), b = int_set1(0x3c003c00);  // pairs of 1 and of 2^-7
  for (I& sum : sums) sum = int_zero();
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 10
    for (I& sum : sums) {
      asm volatile("" : "+v"(a), "+v"(b));
      add_products<Words::kBf16>(sum, a, b);
      asm volatile("" : "+v"(sum));
    }
  }
  return static_cast<double>(iterations) * 10 * 2 * kLanes * 2;
}
#endif

#ifdef __x86_64__
// Products of 8-bit codes summed in 32 bits: one instruction with VNNI, else two for each half of the codes as 16 bits.
double vector_int8_ops(int64_t iterations) {
#ifdef __AVX512VNNI__
  using Ints = __m512i;
  Ints a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5), sums[10] = {};
#else
  using Ints = __m256i;
  Ints a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5), sums[10] = {};
#endif
  for (int64_t n = 0; n < iterations; ++n) {
    for (Ints& sum : sums) {
      asm volatile("" : "+v"(a), "+v"(b));  // else one product serves all chains
#ifdef __AVX512VNNI__
      sum = _mm512_dpbusd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
      add_unsigned_by_signed(sum, a, b);
#else
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
      asm volatile("" : "+v"(sum));
    }
  }
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  constexpr int64_t kProducts = sizeof(Ints);
#else
  constexpr int64_t kProducts = sizeof(Ints) / 2;
#endif
  return static_cast<double>(iterations * 10 * kProducts * 2);
}
#endif

#ifdef __AMX_BF16__
// Tiles of numbers, not of zeros: those let the clock rise. As bf16 their magnitude is 1 to 2.
constexpr int64_t kPeakSteps = 4;
struct PeakTiles {
  alignas(64) uint16_t words[2 * kPeakSteps][2 * kTileBytes / 2] = {};  // of A, then of B, two tiles a step: 16 KB
};
static constexpr PeakTiles make_peak_tiles() {
  PeakTiles tiles{};
  uint32_t random = 1;
  for (auto& step : tiles.words) {
    for (uint16_t& word : step) {
      random = random * 1664525 + 1013904223;
      word = static_cast<uint16_t>((random >> 16 & 0x807f) | 0x3f80);
    }
  }
  return tiles;
}
static constexpr PeakTiles kPeakTiles = make_peak_tiles();

// kLoads: each step loads its 2 x 2 operands from L1; else they stay in registers. Returns the number of products.
template <bool kInts, bool kLoads>
static int64_t tile_products(int64_t iterations) {
  amx_begin(16);
  load_2x2(nullptr, 0, false);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int64_t s = 0; s < kPeakSteps; ++s) {
      const uint16_t *a = kPeakTiles.words[s], *b = kPeakTiles.words[kPeakSteps + s];
      if (kLoads || (n == 0 && s == 0)) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_loadd(7, b + kTileBytes / 2, 64);
        _tile_loadd(5, a + kTileBytes / 2, 64);
      }
      SPATE_TILE_PRODUCT(0, 4, 6)
      SPATE_TILE_PRODUCT(1, 4, 7)
      SPATE_TILE_PRODUCT(2, 5, 6)
      SPATE_TILE_PRODUCT(3, 5, 7)
    }
  }
  amx_end();
  return iterations * kPeakSteps * 4;
}

double amx_bf16_flops(int64_t iterations) {
  return static_cast<double>(tile_products<false, true>(iterations)) * 16 * 16 * 32 * 2;
}
double amx_int8_ops(int64_t iterations) {
  return static_cast<double>(tile_products<true, true>(iterations)) * 16 * 16 * 64 * 2;
}
double amx_bf16_register_flops(int64_t iterations) {
  return static_cast<double>(tile_products<false, false>(iterations)) * 16 * 16 * 32 * 2;
}
double amx_int8_register_ops(int64_t iterations) {
  return static_cast<double>(tile_products<true, false>(iterations)) * 16 * 16 * 64 * 2;
}
#endif

}  // namespace spate::cpu::SPATE_ISA
