// MachineLimits: the speeds that this machine can reach at best, measured. Benches compare their figures with them.
#pragma once

#include <string>
#include <vector>

namespace spate {

// What products run on, as far as goals differ by it.
enum class ProductUnits { kOther, kVectors, kTiles };  // kVectors: AVX-512 with VNNI, without tiles

struct MachineLimits {
  // A figure of its own: "memory-read", 34.1e9, shown in units of 1e9: "GB/s".
  struct Rate {
    std::string name;
    double per_s = 0;
    std::string giga_unit;
  };

  ProductUnits units = ProductUnits::kOther;
  double memory_bytes_per_s = 0;  // reads; 0: nothing was measured
  double float_flops_per_s = 0;   // products of f32 or bf16, whichever is faster
  double int8_ops_per_s = 0;      // products of 8-bit codes, at least float_flops_per_s
  std::vector<Rate> rates;        // all that was measured, in a fixed order
};

// The larger of each figure. Both come from the same back-end, or one is empty.
MachineLimits larger_limits(MachineLimits a, const MachineLimits& b);

}  // namespace spate
