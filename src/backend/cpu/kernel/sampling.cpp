// Passes over a row of logits.
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/simd.h"

namespace spate::cpu::SPATE_ISA {
namespace {

constexpr int64_t kChunk = 1024;  // logits looked at together: 4 KB, in L1

F up_to(const float* logits, int64_t count) {
  if (count == kLanes) return load(logits);
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? logits[i] : -__builtin_inff();
  return load(lanes);
}

// NaN counts as -inf: max(a, b) gives b when a is NaN, so the running value comes second.
float max_of_logits(const float* logits, int64_t n) {
  F m0 = set1(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    m0 = max(load(logits + i), m0);
    m1 = max(load(logits + i + kLanes), m1);
    m2 = max(load(logits + i + 2 * kLanes), m2);
    m3 = max(load(logits + i + 3 * kLanes), m3);
  }
  for (; i < n; i += kLanes) m0 = max(up_to(logits + i, min_of(kLanes, n - i)), m0);
  return max_lane(max(max(m0, m1), max(m2, m3)));
}

}  // namespace

MaxAndId max_logit(const float* logits, int64_t n) {
  MaxAndId best{-__builtin_inff(), 0};
  int64_t best_chunk = 0;
  for (int64_t first = 0; first < n; first += kChunk) {
    const float value = max_of_logits(logits + first, min_of(kChunk, n - first));
    if (value > best.value) {
      best.value = value;
      best_chunk = first;
    }
  }
  for (int64_t i = best_chunk; i < min_of(n, best_chunk + kChunk); ++i) {
    if (logits[i] == best.value) {
      best.id = static_cast<int32_t>(i);
      break;
    }
  }
  return best;
}

// Sum of exp((logit - max) * inv_temperature); fp32 inside a chunk, fp64 between chunks.
double sum_exp(const float* logits, int64_t n, float max_value, float inv_temperature) {
  const F offset = set1(max_value), factor = set1(inv_temperature);
  double total = 0;
  for (int64_t first = 0; first < n; first += kChunk) {
    F s = zero();
    const float* chunk = logits + first;
    SPATE_FOR_LANES(i, count, min_of(kChunk, n - first)) { s = add(s, exp(mul(sub(up_to(chunk + i, count), offset), factor))); }
    total += sum(s);
  }
  return total;
}

bool has_nan_or_inf(const float* logits, int64_t n) {
  const F largest = set1(__FLT_MAX__);
  uint32_t good = ~uint32_t{0};
  SPATE_FOR_LANES(i, count, n) { good &= greater_equal_bits(largest, up_to(logits + i, count)); }
  const uint32_t all_lanes = static_cast<uint32_t>((uint64_t{1} << kLanes) - 1);
  return (good & all_lanes) != all_lanes;
}

int64_t count_greater(const float* logits, int64_t n, float value) {
  const F bound = set1(value);
  int64_t found = 0;
  SPATE_FOR_LANES(i, count, n) { found += __builtin_popcount(greater_bits(up_to(logits + i, count), bound)); }
  return found;
}

void chunk_maxima(const float* logits, int64_t n, int64_t chunk, float* maxima) {
  for (int64_t first = 0; first < n; first += chunk) *maxima++ = max_of_logits(logits + first, min_of(chunk, n - first));
}

int64_t collect_at_least(const float* logits, int64_t n, float value, int32_t* ids, int64_t capacity) {
  const F bound = set1(value);
  int64_t found = 0;
  SPATE_FOR_LANES(i, count, n) {
    uint32_t bits = greater_equal_bits(up_to(logits + i, count), bound);
    if (count < kLanes) bits &= (1u << count) - 1;
    for (; bits != 0; bits &= bits - 1, ++found) {
      if (found < capacity) ids[found] = static_cast<int32_t>(i + __builtin_ctz(bits));
    }
  }
  return found;
}

void divide(const float* logits, int64_t n, float divisor, float* out) {
  const F d = set1(divisor);
  SPATE_FOR_LANES(i, count, n) { store_up_to(out + i, div(load_up_to(logits + i, count), d), count); }
}

// The loops over 16 counters are vectorised by the compiler.
void philox_words(uint64_t seed, uint64_t stream, uint64_t first_counter, int64_t num_counters, uint32_t* words) {
  constexpr int64_t kBatch = 16;
  for (int64_t first = 0; first < num_counters; first += kBatch) {
    uint32_t c0[kBatch], c1[kBatch], c2[kBatch], c3[kBatch];
    for (int64_t i = 0; i < kBatch; ++i) {
      const uint64_t counter = first_counter + static_cast<uint64_t>(first + i);
      c0[i] = static_cast<uint32_t>(counter);
      c1[i] = static_cast<uint32_t>(counter >> 32);
      c2[i] = static_cast<uint32_t>(stream);
      c3[i] = static_cast<uint32_t>(stream >> 32);
    }
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int64_t i = 0; i < kBatch; ++i) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i], p1 = uint64_t{0xCD9E8D57u} * c2[i];
        const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
        const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
        c0[i] = n0;
        c1[i] = static_cast<uint32_t>(p1);
        c2[i] = n2;
        c3[i] = static_cast<uint32_t>(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int64_t i = 0; i < min_of(kBatch, num_counters - first); ++i) {
      uint32_t* out = words + (first + i) * 4;
      out[0] = c0[i];
      out[1] = c1[i];
      out[2] = c2[i];
      out[3] = c3[i];
    }
  }
}

}  // namespace spate::cpu::SPATE_ISA
