// linear, linear_silu_and_mul and embedding with integer weights: every format that a device supports, over odd shapes,
// with codes of the whole range. With 8-bit activations the inner sums are exact on every back-end, so that only f32
// sums over groups differ; with activations as they are a product is that of the same values as a float weight, to the
// bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "backend/conformance/linear_rig.h"
#include "backend/layer_products.h"
#include "quant/outlier_rule.h"

namespace spate::conformance {
namespace {

constexpr Codes kInt8 = Codes::kInt8, kInt4 = Codes::kInt4;
constexpr WeightSpec kSpecs[] = {
    integer_spec(kInt8, 0, false),        integer_spec(kInt8, 0, true),          integer_spec(kInt8, 32, false),
    integer_spec(kInt8, 64, false),       integer_spec(kInt8, 128, true),        integer_spec(kInt4, 0, false),
    integer_spec(kInt4, 0, true),         integer_spec(kInt4, 32, false),        integer_spec(kInt4, 32, true),
    integer_spec(kInt4, 64, false),       integer_spec(kInt4, 64, true),         integer_spec(kInt4, 128, false),
    integer_spec(kInt4, 192, true),       integer_spec(kInt4, 256, false),       integer_spec(kInt4, 32, false, true),
    integer_spec(kInt4, 64, false, true), integer_spec(kInt4, 128, false, true), integer_spec(kInt4, 256, false, true),
};

// Scales of rows that are 0 .. 16 times one number of about this size, which need not be short.
void put_random_multiples(Rng& rng, float size, const Tensor& scales) {
  for (int64_t i = 0; i < scales.dim(0); ++i) {
    // 19 bits: a product with a multiplier is exact in f32, as scales of files are.
    const float row_scale = std::ldexp(std::floor(size * (0.5f + rng.uniform()) * 0x1p24f), -24);
    for (int64_t g = 0; g < scales.dim(1); ++g) {
      scales.data<float>()[i * scales.dim(1) + g] = row_scale * static_cast<float>(rng.below(17));
    }
  }
}

// Random codes of the whole range; scales and offsets such that a product with x of variance 1 has a variance near 1.
QuantizedHostRows random_rows(Rng& rng, const WeightSpec& spec, int64_t n, int64_t k) {
  QuantizedHostRows rows(spec, n, k);
  const QuantizedRows& view = rows.view();
  const int range = spec.codes == kInt8 ? 256 : 16;
  for (int64_t i = 0; i < n * k; ++i) {
    view.codes.data<int8_t>()[i] =
        static_cast<int8_t>(static_cast<int>(rng.below(static_cast<uint64_t>(range))) - range / 2);
  }
  const float scale = 3.5f / (static_cast<float>(range) * std::sqrt(static_cast<float>(k)));
  if (spec.two_level) {
    put_random_multiples(rng, scale / 8, view.scales);
    return rows;
  }
  for (int64_t i = 0; i < n * spec.num_groups(k); ++i) {
    view.scales.data<float>()[i] = scale * (0.5f + rng.uniform());
    if (spec.has_offsets) view.offsets.data<float>()[i] = scale * static_cast<float>(range / 4) * rng.gaussian();
  }
  return rows;
}

// Formats whose products are tested with activations as they are, too.
constexpr WeightSpec kAsIsSpecs[] = {
    integer_spec(kInt8, 0, true),         integer_spec(kInt8, 32, false),        integer_spec(kInt8, 128, true),
    integer_spec(kInt4, 0, false),        integer_spec(kInt4, 0, true),          integer_spec(kInt4, 32, false),
    integer_spec(kInt4, 32, true),        integer_spec(kInt4, 64, false),        integer_spec(kInt4, 64, true),
    integer_spec(kInt4, 128, false),      integer_spec(kInt4, 128, true),        integer_spec(kInt4, 192, true),
    integer_spec(kInt4, 32, false, true), integer_spec(kInt4, 128, false, true),
};

// Sums of size 1 over some groups, each term rounded twice: 16 roundings of 2^-24 a group's share allowed; as many for
// each element where x stays as it is.
Tolerance quantized_tolerance(DType out, const WeightSpec& spec, int64_t k) {
  if (!spec.quantizes_activations()) return {.rel = ulp_of(out), .abs = 0x1p-19 * std::sqrt(static_cast<double>(k))};
  const int64_t num_terms = spec.two_level ? 1 : spec.num_groups(k);
  return {.rel = ulp_of(out), .abs = 0x1p-20 * std::sqrt(static_cast<double>(num_terms))};
}

// from_numbers: the device quantises the weight itself.
void check_linear(Family& family, Sides sides, const WeightSpec& spec, bool from_numbers, const LinearCase& c) {
  Rng rng(test_seed(), static_cast<uint64_t>(c.n * 1009 + c.k));
  std::optional<QuantizedHostRows> rows;
  HostTensor numbers;
  if (from_numbers) {
    numbers = random_tensor(rng, c.act, {c.n, c.k}, 1 / std::sqrt(static_cast<float>(c.k)));
  } else {
    rows.emplace(random_rows(rng, spec, c.n, c.k));
  }
  const auto weight = [&](Side& side) -> const PackedWeight& {
    return rows ? side.put_quantized(*rows) : side.put_weight(numbers, spec);
  };
  compare_linear(family, sides, c, from_numbers ? " from numbers" : "", weight, quantized_tolerance(c.out, spec, c.k));
}

void add_linear(Report& report, Sides sides, const WeightSpec& spec, DType act) {
  Family family(report, fmt::format("linear {} by {}", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {17, 33}, {40, 70}, {100, 96}, {64, 1056}, {130, 520}};
  int i = 0;
  for (const int64_t m : {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 129}) {
    for (const auto& [n, k] : sizes) {
      const DType out = i++ % 3 == 0 ? DType::kF32 : act;
      check_linear(family, sides, spec, i % 5 >= 3, {m, n, k, act, out, i % 2 == 0, i % 4 >= 2});
    }
  }
  if (act == DType::kF32) return;  // packed like bf16; the shapes above suffice
  // More rows and k than one level of blocking holds.
  check_linear(family, sides, spec, false, {300, 48, 2080, act, act, true, false});
  check_linear(family, sides, spec, false, {70, 33, 4128, act, DType::kF32, false, true});
  check_linear(family, sides, spec, false, {310, 80, 4128, act, act, false, false});
  check_linear(family, sides, spec, false, {290, 336, 1088, act, act, true, false});
  check_linear(family, sides, spec, true, {1, 530, 3072, act, act, true, false});
  // A row of x that takes a CTA many registers.
  check_linear(family, sides, spec, false, {1, 40, 8232, act, act, true, false});
  check_linear(family, sides, spec, false, {2, 40, 4128, act, act, true, false});
  // Whole steps of k: the kernels for few tokens.
  for (const int64_t m : {1, 2, 5, 8, 9})
    check_linear(family, sides, spec, false, {m, 130, 1152, act, act, m != 2, m == 5});
  check_linear(family, sides, spec, true, {3, 48, 2048, act, DType::kF32, false, false});
  check_linear(family, sides, spec, false, {8, 4256, 4096, act, act, false, false});
  // Logits of several rows: no cache would keep them.
  check_linear(family, sides, spec, false, {18, 70000, 4, act, DType::kF32, false, false});
}

// All products have the same sign and the largest size that codes can have: no sum may saturate or wrap. With two-level
// scales the multipliers are the largest too, but for the last group, which keeps them from being divided by 16.
void add_extremes(Report& report, Sides sides, const WeightSpec& spec) {
  Family family(report, fmt::format("linear by {}, extreme codes and x", weight_spec_name(spec)));
  if (!family.selected()) return;
  const int64_t n = 48, k = 2048;
  const std::pair<int, int> codes[] = {{-128, -8}, {127, 7}};
  for (const auto& [int8_code, int4_code] : codes) {
    QuantizedHostRows rows(spec, n, k);
    const auto code = static_cast<int8_t>(spec.codes == kInt8 ? int8_code : int4_code);
    std::fill_n(rows.view().codes.data<int8_t>(), n * k, code);
    for (int64_t i = 0; i < n * spec.num_groups(k); ++i) {
      const bool is_last = (i + 1) % spec.num_groups(k) == 0;
      rows.view().scales.data<float>()[i] = spec.two_level && !is_last ? 16 * 0x1p-6f : 0x1p-6f;
      if (spec.has_offsets) rows.view().offsets.data<float>()[i] = static_cast<float>(code) * 0x1p-6f;
    }
    for (const int64_t m : {1, 3, 16, 70}) {
      HostTensor x(DType::kF32, {m, k});
      for (int64_t i = 0; i < m * k; ++i) x.view().data<float>()[i] = i / k % 2 ? -3.0f : 3.0f;
      family.compare(sides.actual, sides.expected, fmt::format("m {}, codes {}", m, code), [&](Side& side) -> Outputs {
        const Tensor out = side.put(poisoned_tensor(DType::kF32, {m, n}));
        side.ops().linear(side.stream(),
                          {.x = side.put(x), .weight = &side.put_quantized(rows), .bias = Tensor(), .out = out});
        Outputs outputs;
        outputs.push_back(
            {"out", side.get(out), {.rel = 0x1p-23 * static_cast<double>(4 + spec.num_groups(k)), .abs = 0}});
        return outputs;
      });
    }
  }
}

// Rows of zeros, of values too small to scale, and with NaN and infinity in one group: what quantize_activations()
// says.
void add_special_rows(Report& report, Sides sides, const WeightSpec& spec, DType act) {
  Family family(report, fmt::format("linear {} by {}, special values", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  const int64_t m = 40, n = 33, k = 200;
  Rng rng(test_seed(), 5);
  const HostTensor x = random_tensor(rng, DType::kF32, {m, k});
  const auto fill = [&](int64_t row, float value) { std::fill_n(x.view().data<float>() + row * k, k, value); };
  fill(0, 0.0f);
  fill(3, -0.0f);
  fill(5, 1e-38f);
  fill(6, 1e-4f);
  x.view().data<float>()[7 * k + 3] = NAN;
  x.view().data<float>()[18 * k + k - 1] = INFINITY;
  x.view().data<float>()[39 * k + 70] = -INFINITY;
  HostTensor x_act(act, {m, k});
  for (int64_t i = 0; i < m * k; ++i) {
    const float value = x.view().data<float>()[i];
    if (act == DType::kF32) {
      x_act.view().data<float>()[i] = value;
    } else {
      x_act.view().data<Bf16>()[i] = Bf16::from_float(value);
    }
  }
  const QuantizedHostRows rows = random_rows(rng, spec, n, k);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, m}, {0, 4}, {5, 8}, {7, 8}, {18, 30}}) {
    family.compare(sides.actual, sides.expected, fmt::format("rows {} to {}", begin, end), [&](Side& side) -> Outputs {
      const Tensor out = side.put(poisoned_tensor(act, {end - begin, n}));
      side.ops().linear(side.stream(), {.x = side.put(x_act.view().rows(begin, end)),
                                        .weight = &side.put_quantized(rows),
                                        .bias = Tensor(),
                                        .out = out});
      Outputs outputs;
      outputs.push_back({"out", side.get(out), quantized_tolerance(act, spec, k)});
      return outputs;
    });
  }
}

void multiply_at(const Tensor& x, int64_t idx, float factor) {
  if (x.dtype() == DType::kF32) {
    x.data<float>()[idx] *= factor;
  } else {
    Bf16& value = x.data<Bf16>()[idx];
    value = Bf16::from_float(value.to_float() * factor);
  }
}

// Rows by turns with no large value; one to all that may be set aside, of different sizes; one more than that; and
// nothing but a few large ones.
HostTensor rows_with_outliers(Rng& rng, DType act, int64_t m, int64_t k) {
  HostTensor x = random_tensor(rng, act, {m, k});
  for (int64_t i = 0; i < m; ++i) {
    const int64_t kind = i % 8, most = max_outliers(k);
    if (kind == 0) continue;
    if (kind == 7) {
      for (int64_t j = 0; j < k; ++j) multiply_at(x, i * k + j, j % 61 == 7 ? 100.0f : 0.0f);
      continue;
    }
    const int64_t count = kind == 6 ? most + 1 : std::max<int64_t>(1, most * kind / 5);
    std::vector<int64_t> columns{k - 1};
    while (std::ssize(columns) < std::min(count, k)) {
      const auto one = static_cast<int64_t>(rng.below(static_cast<uint64_t>(k)));
      if (std::find(columns.begin(), columns.end(), one) == columns.end()) columns.push_back(one);
    }
    for (size_t j = 0; j < columns.size(); ++j) {
      multiply_at(x, i * k + columns[j], kind == 6 ? 100.0f : static_cast<float>(int64_t{16} << (j % 5)));
    }
  }
  return x;
}

// What is set aside is no rounding of ours: a product that quantised it, or left it out, is off by far more than this.
void add_outliers(Report& report, Sides sides, const WeightSpec& spec, DType act) {
  Family family(report, fmt::format("linear {} by {}, outliers", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  for (const auto& [n, k] :
       {std::pair{33, 200}, std::pair{64, 1056}, std::pair{48, 64}, std::pair{17, 33}, std::pair{336, 256}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(n + k));
    const HostTensor x = rows_with_outliers(rng, act, 290, k);
    const QuantizedHostRows rows = random_rows(rng, spec, n, k);
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, 130}, {0, 290}, {1, 2}, {6, 7}, {7, 8}, {0, 3}, {1, 9}, {2, 18}}) {
      family.compare(sides.actual, sides.expected, fmt::format("[{}, {}] rows {} to {}", n, k, begin, end),
                     [&](Side& side) -> Outputs {
                       const Tensor out = side.put(poisoned_tensor(act, {end - begin, n}));
                       side.ops().linear(side.stream(), {.x = side.put(x.view().rows(begin, end)),
                                                         .weight = &side.put_quantized(rows),
                                                         .bias = Tensor(),
                                                         .out = out});
                       Outputs outputs;
                       outputs.push_back({"out", side.get(out), {.rel = ulp_of(act), .abs = 0x1p-14}});
                       return outputs;
                     });
    }
  }
}

void add_linear_silu_and_mul(Report& report, Sides sides, const WeightSpec& spec, DType act) {
  Family family(report, fmt::format("linear_silu_and_mul {} by {}", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  for (const int64_t m : {1, 3, 8, 16, 17, 30, 33, 70, 129, 200}) {
    for (const auto& [n, k] : {std::pair{16, 32}, std::pair{13, 40}, std::pair{80, 576}, std::pair{192, 320},
                               std::pair{136, 1056}, std::pair{72, 1152}}) {
      Rng rng(test_seed(), static_cast<uint64_t>(n * 31 + k));
      const QuantizedHostRows rows = random_rows(rng, spec, 2 * n, k);
      // As for float weights (linear_cases.cpp): the last bit of the gate, then two more roundings.
      const Tolerance tolerance{.rel = 8 * ulp_of(act), .abs = 4 * quantized_tolerance(act, spec, k).abs};
      compare_linear_silu_and_mul(
          family, sides, {.m = m, .n = n, .k = k, .act = act, .out = act, .bias = m % 2 != 0, .strided = false},
          [&](Side& side) -> const PackedWeight& { return side.put_quantized(rows); }, tolerance);
    }
  }
}

// An op that is told which product reads its result (backend/ops.h, `reader`), and that product: the bits of the two
// without the promise.
void add_handed(Report& report, Sides sides, const WeightSpec& spec, DType act) {
  Family family(report, fmt::format("{} handed to linear by {}", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  struct Case {
    int64_t m, n, k;  // of the product
  };
  std::vector<Case> cases;
  for (const int64_t m : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 70, 129}) {
    for (const auto& [n, k] : {std::pair{48, 70}, std::pair{33, 300}, std::pair{64, 1056}}) cases.push_back({m, n, k});
  }
  // Rows that one CTA or several hold, with few and many pieces a thread.
  for (const int64_t m : {1, 3, 40}) {
    for (const int64_t k : {4128, 5003, 14336}) cases.push_back({m, 32, k});
  }
  cases.push_back({300, 32, 4096});
  cases.push_back({128, 32, 14336});
  cases.push_back({140, 32, 16392});
  cases.push_back({2100, 40, 520});  // more than become codes at once
  cases.push_back({2100, 40, 301});  // the same, of rows at odd places
  for (const auto& [m, n, k] : cases) {
    Rng rng(test_seed(), static_cast<uint64_t>(m * 1000003 + n * 1009 + k));
    const QuantizedHostRows rows = random_rows(rng, spec, n, k);
    const HostTensor x = rows_with_outliers(rng, act, m, k), norm = random_tensor(rng, act, {k});
    const HostTensor residual = random_tensor(rng, act, {m, k}), gates = random_tensor(rng, act, {m, k});
    HostTensor gate_up(act, {m, 2 * k});
    const auto bytes = static_cast<size_t>(k * dtype_bytes(act));
    for (int64_t i = 0; i < m; ++i) {
      const Tensor row = gate_up.view().rows(i, i + 1);
      std::memcpy(row.raw(), gates.view().rows(i, i + 1).raw(), bytes);
      std::memcpy(row.columns(k, 2 * k).raw(), x.view().rows(i, i + 1).raw(), bytes);
    }
    if (m > 8) multiply_at(x.view(), 7 * k + k / 2, INFINITY);
    const auto run_norm = [&](Side& side, bool is_promised, bool has_silu) -> Outputs {
      const OpTable ops = bind_ops(side.ops()).ops;
      const PackedWeight& weight = side.put_quantized(rows);
      const Tensor normed = side.put_activations(x), sum = side.put(residual);
      const Tensor gates_and_ups = side.put(poisoned_tensor(act, {m, n}));
      const Tensor out = side.put(poisoned_tensor(act, {m, has_silu ? n / 2 : n}));
      ops.add_rms_norm(side.stream(), {.x = normed,
                                       .residual = sum,
                                       .weight = side.put(norm),
                                       .eps = 1e-6f,
                                       .out = normed,
                                       .reader = is_promised ? &weight : nullptr});
      if (has_silu) {
        ops.linear_silu_and_mul(
            side.stream(), {.x = normed, .weight = &weight, .bias = Tensor(), .gate_up = gates_and_ups, .out = out});
      } else {
        ops.linear(side.stream(), {.x = normed, .weight = &weight, .bias = Tensor(), .out = out});
      }
      Outputs outputs;
      outputs.push_back({"out", side.get(out), {}});
      outputs.push_back({"residual", side.get(sum), {}});
      return outputs;
    };
    const auto run_silu = [&](Side& side, bool is_promised) -> Outputs {
      const OpTable ops = bind_ops(side.ops()).ops;
      const PackedWeight& weight = side.put_quantized(rows);
      const Tensor act_rows = side.put_activations(poisoned_tensor(act, {m, k}));
      const Tensor out = side.put(poisoned_tensor(act, {m, n}));
      ops.silu_and_mul(side.stream(),
                       {.gate_up = side.put(gate_up), .out = act_rows, .reader = is_promised ? &weight : nullptr});
      ops.linear(side.stream(), {.x = act_rows, .weight = &weight, .bias = Tensor(), .out = out});
      Outputs outputs;
      outputs.push_back({"out", side.get(out), {}});
      return outputs;
    };
    const std::string label = fmt::format("m {} n {} k {}", m, n, k);
    for (const bool has_silu : {false, true}) {
      if (has_silu && n % 2 != 0) continue;
      family.compare(
          sides.actual, label + (has_silu ? " norm, with silu" : " norm"),
          [&](Side& side) { return run_norm(side, true, has_silu); },
          [&](Side& side) { return run_norm(side, false, has_silu); });
    }
    family.compare(
        sides.actual, label + " silu_and_mul", [&](Side& side) { return run_silu(side, true); },
        [&](Side& side) { return run_silu(side, false); });
  }
}

// Exact: so it also proves that pack_rows gives the codes and scales of quantize_row().
void add_embedding(Report& report, Sides sides, const WeightSpec& spec) {
  Family family(report, fmt::format("embedding from {}", weight_spec_name(spec)));
  if (!family.selected()) return;
  for (const auto& [rows, width] : {std::pair{1, 1}, std::pair{50, 33}, std::pair{129, 96}, std::pair{33, 1024}}) {
    for (const DType source : {DType::kF32, DType::kF16, DType::kBf16, DType::kI8}) {
      for (const DType act : kActs) {
        Rng rng(test_seed(), static_cast<uint64_t>(rows * 131 + width));
        std::optional<QuantizedHostRows> codes;
        HostTensor numbers;
        if (source == DType::kI8) {
          codes.emplace(random_rows(rng, spec, rows, width));
        } else {
          numbers = random_tensor(rng, source, {rows, width}, 0.03f);
        }
        const auto table = [&](Side& side) -> const PackedWeight& {
          return codes ? side.put_quantized(*codes) : side.put_weight(numbers, spec);
        };
        compare_embedding(family, sides,
                          fmt::format("{} to {} [{}, {}]", dtype_name(source), act_name(act), rows, width), act, rows,
                          width, rows + 7, table);
      }
    }
  }
}

void add_invariance(Report& report, Sides sides, const WeightSpec& spec, DType act) {
  Family family(report, fmt::format("batch invariance of linear {} by {}", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  for (const auto& [n, k] : {std::pair{33, 70}, std::pair{64, 1056}, std::pair{32, 2080}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(n + k));
    const HostTensor x = rows_with_outliers(rng, act, 300, k);
    const QuantizedHostRows rows = random_rows(rng, spec, n, k);
    const auto weight = [&](Side& side) -> const PackedWeight& { return side.put_quantized(rows); };
    check_linear_invariance(family, sides.deterministic, x, n, false, weight);
    if (n % 2 == 0) check_linear_invariance(family, sides.deterministic, x, n / 2, true, weight);
  }
}

// The values as a float weight of act dtype give the same bits, whatever the number of rows.
void add_as_floats(Report& report, Sides sides, const WeightSpec& spec, DType act) {
  Family family(report, fmt::format("linear {} by {} as by floats", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  for (const auto& [n, k] : {std::pair{33, 70}, std::pair{64, 1056}, std::pair{32, 2080}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(n + k));
    const QuantizedHostRows rows = random_rows(rng, spec, n, k);
    for (const Tensor& scales : {rows.view().scales, rows.view().offsets}) {
      for (int64_t i = 0; scales.defined() && i < scales.num_elements(); ++i) {
        float& value = scales.data<float>()[i];
        value = stored_scale(spec, value);
      }
    }
    const HostTensor floats = dequantize_rows(rows);
    for (const int64_t m : {1, 4, 16, 17, 70}) {
      const HostTensor x = random_tensor(rng, act, {m, k});
      const auto product = [&](Side& side, const PackedWeight& weight) {
        const Tensor out = side.put(poisoned_tensor(act, {m, n}));
        side.ops().linear(side.stream(), {.x = side.put(x), .weight = &weight, .bias = Tensor(), .out = out});
        HostTensor result = side.get(out);
        side.clear();
        return result;
      };
      for (Side* side : sides.actual.all()) {
        const HostTensor of_codes = product(*side, side->put_quantized(rows));
        const HostTensor of_floats =
            product(*side, side->put_weight(floats, act == DType::kF32 ? Codes::kF32 : Codes::kBf16));
        family.check(side->name_case(fmt::format("m {} n {} k {}", m, n, k)), equal_bits("out", of_codes, of_floats));
      }
    }
  }
}

// Several matrices in a weight: each product reads its own.
void add_matrices(Report& report, Sides sides, const WeightSpec& spec) {
  Family family(report, fmt::format("linear by one of several matrices of {}", weight_spec_name(spec)));
  if (!family.selected()) return;
  constexpr int64_t kNumMatrices = 3;
  for (const auto& [n, k] : {std::pair{34, 70}, std::pair{96, 320}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(n + k));
    const HostTensor w = random_tensor(rng, DType::kF32, {kNumMatrices * n, k}, 1 / std::sqrt(static_cast<float>(k)));
    for (const int64_t m : {1, 17}) {
      const HostTensor x = random_tensor(rng, DType::kBf16, {m, k});
      for (int64_t i = 0; i < kNumMatrices; ++i) {
        family.compare(
            sides.actual, sides.expected, fmt::format("matrix {}, m {} n {} k {}", i, m, n, k),
            [&](Side& side) -> Outputs {
              const PackedWeight& weight = side.put_matrices(w, spec, kNumMatrices);
              const Tensor out = side.put(poisoned_tensor(DType::kBf16, {m, n}));
              side.ops().linear(side.stream(),
                                {.x = side.put(x), .weight = &weight, .bias = Tensor(), .out = out, .matrix_idx = i});
              const Tensor half = side.put_activations(poisoned_tensor(DType::kBf16, {m, n / 2}));
              bind_ops(side.ops())
                  .ops.linear_silu_and_mul(side.stream(), {.x = side.put_activations(x),
                                                           .weight = &weight,
                                                           .bias = Tensor(),
                                                           .gate_up = side.put(poisoned_tensor(DType::kBf16, {m, n})),
                                                           .out = half,
                                                           .matrix_idx = i});
              const Tolerance tolerance{.rel = 8 * ulp_of(DType::kBf16), .abs = 0x1p-16};
              Outputs outputs;
              outputs.push_back({"out", side.get(out), tolerance});
              outputs.push_back({"silu", side.get(half), tolerance});
              return outputs;
            });
      }
    }
  }
}

// All products between two attentions as one op: against the same ops one after the other, on the reference and on the
// device. Where a sum in bf16 rounds to the other neighbour a code of the next product moves by one, and the product by
// a hundredth; a product that misses a group of elements is off by a tenth and more.
void add_layer_products(Report& report, Sides sides, const WeightSpec& spec) {
  if (layer_products_device(sides.actual.device()) == nullptr) return;
  Family family(report, fmt::format("layer_products by {}", weight_spec_name(spec)));
  if (!family.selected()) return;
  constexpr DType kAct = DType::kBf16;
  struct Case {
    int64_t m, heads, hidden, intermediate, qkv;
    bool has_bias, has_outliers;
  };
  constexpr int64_t kNoQkv = 0;
  for (const auto& c : {Case{1, 2048, 2048, 2176, 2320, false, false}, Case{1, 2176, 2048, 4224, kNoQkv, true, true},
                        Case{1, 2048, 4096, 2304, 1040, true, true}, Case{2, 256, 128, 384, 192, true, false},
                        Case{1, 200, 136, 144, 48, false, true}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(c.hidden * 31 + c.intermediate));
    struct Matrix {
      int64_t n, k;
      std::optional<QuantizedHostRows> codes;
      HostTensor rows, bias;
    };
    std::vector<Matrix> matrices;
    for (const auto& [n, k] : {std::pair{c.hidden, c.heads}, std::pair{2 * c.intermediate, c.hidden},
                               std::pair{c.hidden, c.intermediate}, std::pair{c.qkv, c.hidden}}) {
      Matrix matrix{.n = n, .k = k, .codes = std::nullopt, .rows = {}, .bias = random_tensor(rng, kAct, {n})};
      if (spec.has_integer_codes()) {
        matrix.codes = random_rows(rng, spec, n, k);
      } else {
        matrix.rows = random_tensor(rng, kAct, {n, k}, 1 / std::sqrt(static_cast<float>(k)));
      }
      matrices.push_back(std::move(matrix));
    }
    const HostTensor all_heads = rows_with_outliers(rng, kAct, 3, c.heads);
    const Tensor heads = all_heads.view().rows(c.has_outliers ? 1 : 0, (c.has_outliers ? 1 : 0) + c.m);
    const HostTensor residual = random_tensor(rng, kAct, {c.m, c.hidden}), post = random_tensor(rng, kAct, {c.hidden}),
                     next = random_tensor(rng, kAct, {c.hidden});
    const auto run = [&](Side& side, bool decomposed) -> Outputs {
      LayerProductsDevice* joining = decomposed ? nullptr : layer_products_device(side.device());
      const auto weight = [&](const Matrix& matrix) {
        return matrix.codes ? &side.put_quantized(*matrix.codes) : &side.put_weight(matrix.rows, spec);
      };
      const auto bias = [&](const Matrix& matrix) { return c.has_bias ? side.put(matrix.bias) : Tensor(); };
      const auto room = [&](int64_t width) { return side.put_activations(poisoned_tensor(kAct, {c.m, width})); };
      const bool has_qkv = c.qkv != kNoQkv;
      const LayerProductsParams params{.heads = side.put_activations(heads),
                                       .o = weight(matrices[0]),
                                       .o_bias = bias(matrices[0]),
                                       .residual = side.put(residual),
                                       .post_norm = side.put(post),
                                       .post_eps = 1e-6f,
                                       .gate_up = weight(matrices[1]),
                                       .gate_up_bias = bias(matrices[1]),
                                       .scratch = side.put(poisoned_tensor(kAct, {c.m, 2 * c.intermediate})),
                                       .act = room(c.intermediate),
                                       .down = weight(matrices[2]),
                                       .down_bias = bias(matrices[2]),
                                       .x = room(c.hidden),
                                       .next_norm = has_qkv ? side.put(next) : Tensor(),
                                       .next_eps = 1e-5f,
                                       .qkv = has_qkv ? weight(matrices[3]) : nullptr,
                                       .qkv_bias = has_qkv ? bias(matrices[3]) : Tensor(),
                                       .qkv_out = has_qkv ? room(c.qkv) : Tensor()};
      if (joining != nullptr) {
        joining->layer_products(side.stream(), params);
      } else {
        decomposed_layer_products(side.stream(), params);
      }
      const Tolerance tolerance{.rel = 4 * kBf16Ulp, .abs = 0.08};
      Outputs outputs;
      outputs.push_back({"residual", side.get(params.residual), tolerance});
      outputs.push_back({"out", side.get(has_qkv ? params.qkv_out : params.x), tolerance});
      return outputs;
    };
    const CaseBody as_it_is = [&](Side& side) { return run(side, false); };
    const std::string label = fmt::format("m {}, {} to {} to {} to {}", c.m, c.heads, c.hidden, c.intermediate, c.qkv);
    family.compare(sides.actual, sides.expected, label, as_it_is);
    family.compare(sides.actual, label + " against its decomposition", as_it_is,
                   [&](Side& side) { return run(side, true); });
  }
}

}  // namespace

void add_quantized_linear_cases(Report& report, Sides sides) {
  for (const WeightSpec& spec : kSpecs) {
    if (!sides.actual.device().supports(spec)) continue;
    for (const DType act : kActs) {
      // f32 differs only in how x is read: some formats suffice.
      if (act == DType::kF32 && spec.tile.columns != 0 && spec.tile.columns != 64) continue;
      add_linear(report, sides, spec, act);
      add_linear_silu_and_mul(report, sides, spec, act);
      add_special_rows(report, sides, spec, act);
      add_outliers(report, sides, spec, act);
      add_invariance(report, sides, spec, act);
    }
    add_extremes(report, sides, spec);
    add_embedding(report, sides, spec);
  }
  for (const WeightSpec& stored : kAsIsSpecs) {
    const WeightSpec spec = stored.with_activations(Activations::kAsIs);
    if (!sides.actual.device().supports(spec)) continue;
    for (const DType act : kActs) {
      if (act == DType::kF32 && spec.has_groups() && spec.tile.columns != 64) continue;
      add_linear(report, sides, spec, act);
      add_linear_silu_and_mul(report, sides, spec, act);
      add_special_rows(report, sides, spec, act);
      add_invariance(report, sides, spec, act);
      add_as_floats(report, sides, spec, act);
    }
    add_extremes(report, sides, spec);
    add_embedding(report, sides, spec);
  }
  for (const WeightSpec& spec :
       {integer_spec(kInt8, 0), integer_spec(kInt4, 32, false, true), integer_spec(kInt4, 64, false, true)}) {
    for (const DType act : kActs) {
      if (sides.actual.device().supports(spec)) add_handed(report, sides, spec, act);
    }
  }
  for (const WeightSpec& spec : {WeightSpec{}, integer_spec(kInt8, 32), integer_spec(kInt4, 64, false, true),
                                 integer_spec(kInt4, 64, true).with_activations(Activations::kAsIs)}) {
    if (sides.actual.device().supports(spec)) add_matrices(report, sides, spec);
  }
  for (const WeightSpec& spec : {WeightSpec{}, integer_spec(kInt8, 0), integer_spec(kInt4, 32, false, true),
                                 integer_spec(kInt4, 64, false, true)}) {
    if (sides.actual.device().supports(spec)) add_layer_products(report, sides, spec);
  }
}

}  // namespace spate::conformance
