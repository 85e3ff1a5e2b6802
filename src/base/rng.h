// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): value i of stream s is a pure function of
// (seed, s, i), so that a sampled token depends on its request's seed and position only, never on the batch.
// The same function runs in every back-end's sampler.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace spate {

constexpr std::array<uint32_t, 4> philox4x32(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c0 = n0;
    c1 = static_cast<uint32_t>(p1);
    c2 = n2;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// Uniform in (0, 1): never 0, never 1, exact in float.
constexpr float uniform_open(uint32_t bits) { return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f; }

// A sequential generator for tests, dummy weights and simulations.
__extension__ typedef unsigned __int128 Uint128;

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}
  uint32_t next_u32() {
    if (used_ == 4) {
      block_ = philox4x32(seed_, stream_, counter_++);
      used_ = 0;
    }
    return block_[used_++];
  }
  uint64_t next_u64() { return (uint64_t{next_u32()} << 32) | next_u32(); }
  // In [0, bound); bound > 0. The bias is below bound / 2^64.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Uint128>(next_u64()) * bound) >> 64);
  }
  float uniform() { return uniform_open(next_u32()); }
  // Approximately normal, mean 0, variance 1: the sum of four uniforms, scaled; bounded by 3.5.
  float gaussian() { return sum_to_gaussian(uniform() + uniform() + uniform() + uniform()); }
  // The next values of gaussian(); compilers vectorise it.
  void fill_gaussian(std::span<float> values) {
    if (used_ != 4) {  // in the middle of a block, and after each value again
      for (float& value : values) value = gaussian();
      return;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const std::array<uint32_t, 4> block = philox4x32(seed_, stream_, counter_ + i);
      values[i] = sum_to_gaussian(uniform_open(block[0]) + uniform_open(block[1]) + uniform_open(block[2]) +
                                  uniform_open(block[3]));
    }
    counter_ += values.size();
  }

 private:
  static constexpr float sum_to_gaussian(float sum) { return (sum - 2.0f) * 1.7320508f; }

  uint64_t seed_, stream_, counter_ = 0;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace spate
