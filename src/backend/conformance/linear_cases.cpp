// linear, linear_silu_and_mul, embedding, gather_rows.
#include <cmath>

#include "backend/conformance/linear_rig.h"

namespace spate::conformance {
namespace {

// Weights of variance 1/k make sums of size 1; an fp32 sum of k such terms in any order is off by some sqrt(k) roundings of 2^-24,
// allowed 16 times that. A bf16 result is then rounded.
Tolerance linear_tolerance(DType out, int64_t k) {
  return {.rel = ulp_of(out), .abs = 0x1p-20 * std::sqrt(static_cast<double>(k))};
}

DType weight_dtype(Codes codes) { return codes == Codes::kF32 ? DType::kF32 : DType::kBf16; }

// The weight [n, k] of a case: random numbers of variance 1/k.
HostTensor random_weight(DType dtype, int64_t n, int64_t k) {
  Rng rng(test_seed(), static_cast<uint64_t>(n * 1009 + k));
  return random_tensor(rng, dtype, {n, k}, 1 / std::sqrt(static_cast<float>(k)));
}

void check_linear(Family& family, Sides sides, Codes codes, const LinearCase& c) {
  if (!family.selected()) return;
  const HostTensor w = random_weight(weight_dtype(codes), c.n, c.k);
  compare_linear(
      family, sides, c, "", [&](Side& side) -> const PackedWeight& { return side.put_weight(w, codes); },
      linear_tolerance(c.out, c.k));
}

void add_linear(Report& report, Sides sides, const char* name, DType act, Codes codes) {
  Family family(report, fmt::format("linear {}", name));
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {16, 32}, {17, 33}, {40, 70}, {100, 96}, {64, 1056}, {130, 520}};
  int i = 0;
  for (const int64_t m : {0, 1, 2, 3, 5, 15, 16, 17, 33, 129}) {
    for (const auto& [n, k] : sizes) {
      for (const bool strided : {false, true}) {
        const DType out = i++ % 3 == 0 ? DType::kF32 : act;
        check_linear(family, sides, codes, {m, n, k, act, out, i % 2 == 0, strided});
      }
    }
  }
  // More rows and k than one level of blocking holds.
  check_linear(family, sides, codes, {300, 48, 2080, act, act, true, false});
  check_linear(family, sides, codes, {70, 33, 4128, act, DType::kF32, false, true});
  check_linear(family, sides, codes, {1, 530, 3072, act, act, true, false});
  // k shared out over several workers, whose last has fewer; and many whole tiles with a small rest.
  check_linear(family, sides, codes, {40, 1000, 1056, act, act, true, false});
  check_linear(family, sides, codes, {257, 17024, 64, act, act, false, false});
  // Many tokens, a rest of them and of rows.
  check_linear(family, sides, codes, {520, 336, 1088, act, act, true, false});
  check_linear(family, sides, codes, {290, 328, 1096, act, DType::kF32, false, false});
  // Few rows: several tiles of tokens, where the k of each is shared out, and with more tokens is not.
  check_linear(family, sides, codes, {60, 300, 1056, act, act, true, false});
  check_linear(family, sides, codes, {2500, 100, 1056, act, DType::kF32, false, false});
  // Few tokens by rows enough for every CTA of a GPU: groups of 16 and of 8 rows, a rest of rows, k that warps share
  // unequally.
  for (const int64_t m : {1, 2}) {
    check_linear(family, sides, codes, {m, 2117, 1088, act, act, m % 2 != 0, false});
    check_linear(family, sides, codes, {m, 4219, 512, act, m == 2 ? DType::kF32 : act, m == 2, false});
  }
  for (const int64_t m : {5, 8}) check_linear(family, sides, codes, {m, 2117, 4160, act, act, m == 5, false});
  check_linear(family, sides, codes, {3, 6144, 4096, act, act, false, false});
  // Logits of several rows: no cache would keep them.
  for (const int64_t m : {16, 18}) check_linear(family, sides, codes, {m, 70000, 4, act, DType::kF32, false, false});
}

void add_linear_silu_and_mul(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("linear_silu_and_mul {}", act_name(act)));
  if (!family.selected()) return;
  const Codes codes = act == DType::kF32 ? Codes::kF32 : Codes::kBf16;
  for (const int64_t m : {0, 1, 3, 16, 17, 33, 129, 300}) {
    for (const auto& [n, k] :
         {std::pair{16, 32}, std::pair{13, 40}, std::pair{48, 100}, std::pair{80, 576}, std::pair{1064, 1088}}) {
      const HostTensor w = random_weight(act, 2 * n, k);
      // The gate may be off by its last bit, which moves silu by up to 1 + |gate| of them (|gate| <= 5 here with the bias); then two
      // more roundings. Where the gate is near zero its fp32 sum error counts.
      const Tolerance tolerance{.rel = 8 * ulp_of(act), .abs = 0x1p-18 * std::sqrt(static_cast<double>(k))};
      compare_linear_silu_and_mul(
          family, sides, {.m = m, .n = n, .k = k, .act = act, .out = act, .bias = m % 2 != 0, .strided = false},
          [&](Side& side) -> const PackedWeight& { return side.put_weight(w, codes); }, tolerance);
    }
  }
}

void add_embedding(Report& report, Sides sides, DType act, Codes codes) {
  Family family(report, fmt::format("embedding {} from {}", act_name(act), weight_spec_name({.codes = codes})));
  if (!family.selected()) return;
  for (const auto& [rows, width] : {std::pair{1, 1}, std::pair{50, 33}, std::pair{129, 96}, std::pair{33, 1024}}) {
    for (const int64_t num_tokens : {0, 1, 7, 130}) {
      Rng rng(test_seed(), static_cast<uint64_t>(rows * 131 + width));
      const HostTensor table = random_tensor(rng, weight_dtype(codes), {rows, width});
      compare_embedding(family, sides, fmt::format("{} tokens of [{}, {}]", num_tokens, rows, width), act, rows, width,
                        num_tokens, [&](Side& side) -> const PackedWeight& { return side.put_weight(table, codes); });
    }
  }
}

void add_gather_rows(Report& report, Sides sides) {
  Family family(report, "gather_rows");
  if (!family.selected()) return;
  for (const DType dtype : {DType::kBf16, DType::kF32, DType::kI32}) {
    for (const auto& [rows, width, n] : {std::tuple{1, 1, 1}, std::tuple{17, 33, 40}, std::tuple{5, 1030, 3}, std::tuple{4, 8, 0}}) {
      Rng rng(test_seed(), static_cast<uint64_t>(rows * 17 + width));
      HostTensor x = dtype == DType::kI32 ? HostTensor(DType::kI32, {rows, width}) : random_tensor(rng, dtype, {rows, width});
      if (dtype == DType::kI32) {
        for (int32_t& value : x.span<int32_t>()) value = static_cast<int32_t>(rng.next_u32());
      }
      HostTensor ids(DType::kI32, {n});
      for (int32_t& id : ids.span<int32_t>()) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(rows + 1))) - 1;
      family.compare(sides.actual, sides.expected, fmt::format("{} of {} [{}, {}]", n, dtype_name(dtype), rows, width),
                     [&](Side& side) -> Outputs {
                       const Tensor out = side.put(poisoned_tensor(dtype, {n, width}));
                       side.ops().gather_rows(side.stream(), {.x = side.put_padded(x, 8, 0).view, .row_ids = side.put(ids), .out = out});
                       Outputs outputs;
                       outputs.push_back({"out", side.get(out), {}});
                       return outputs;
                     });
    }
  }
}

void add_scatter_rows(Report& report, Sides sides) {
  Family family(report, "scatter_rows");
  if (!family.selected()) return;
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    for (const auto& [n, width, rows] : {std::tuple{1, 1, 1}, std::tuple{17, 33, 40}, std::tuple{3, 1030, 5}, std::tuple{9, 48, 9}, std::tuple{0, 8, 4}}) {
      Rng rng(test_seed(), static_cast<uint64_t>(rows * 19 + width));
      const HostTensor x = random_tensor(rng, dtype, {n, width}), before = random_tensor(rng, dtype, {rows, width});
      HostTensor ids(DType::kI32, {n});
      for (int i = 0; i < n; ++i) ids.span<int32_t>()[static_cast<size_t>(i)] = i % 4 == 2 ? -1 : rows - 1 - i;
      family.compare(sides.actual, sides.expected, fmt::format("{} of {} [{}, {}]", n, dtype_name(dtype), rows, width),
                     [&](Side& side) -> Outputs {
                       const Tensor out = side.put(before);
                       side.ops().scatter_rows(side.stream(), {.x = side.put_padded(x, 8, 0).view, .row_ids = side.put(ids), .out = out});
                       Outputs outputs;
                       outputs.push_back({"out", side.get(out), {}});
                       return outputs;
                     });
    }
  }
}

}  // namespace

void add_linear_cases(Report& report, Sides sides) {
  add_linear(report, sides, "bf16", DType::kBf16, Codes::kBf16);
  add_linear(report, sides, "f32", DType::kF32, Codes::kF32);
  add_linear(report, sides, "f32 by bf16 weights", DType::kF32, Codes::kBf16);
  add_linear(report, sides, "bf16 by f32 weights", DType::kBf16, Codes::kF32);
  for (const DType act : kActs) add_linear_silu_and_mul(report, sides, act);
  add_embedding(report, sides, DType::kBf16, Codes::kBf16);
  add_embedding(report, sides, DType::kF32, Codes::kF32);
  add_embedding(report, sides, DType::kF32, Codes::kBf16);
  add_gather_rows(report, sides);
  add_scatter_rows(report, sides);
}

}  // namespace spate::conformance
