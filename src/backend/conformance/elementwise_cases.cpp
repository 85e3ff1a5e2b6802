// rms_norm, add_rms_norm, add, silu_and_mul, rope.
#include <cmath>
#include <limits>

#include "backend/conformance/rig.h"

namespace spate::conformance {
namespace {

constexpr int64_t kRowCounts[] = {0, 1, 2, 3, 15, 16, 17, 33, 129};
constexpr int64_t kWidths[] = {1, 5, 8, 16, 31, 64, 100, 1024};
// Rows that take several threads several vectors each, tails of a vector among them, and one that is longer than any model's.
constexpr int64_t kWideWidths[] = {257, 264, 1500, 4096, 4104, 8197, 16384, 16392, 33000};

Outputs one(const char* name, HostTensor value, Tolerance tolerance) {
  Outputs outputs;
  outputs.push_back({name, std::move(value), tolerance});
  return outputs;
}

// bf16: the normed value may round to its neighbour, and so may the product.
Tolerance norm_tolerance(DType act) { return {.rel = act == DType::kBf16 ? 2 * kBf16Ulp : 1e-5, .abs = 1e-7}; }

void add_rms_norms(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("rms_norm {}", act_name(act)));
  if (!family.selected()) return;
  for (const int64_t m : kRowCounts) {
    for (const int64_t width : kWidths) {
      Rng rng(test_seed(), static_cast<uint64_t>(m * 4099 + width));
      const HostTensor x = random_tensor(rng, act, {m, width}, 3.0f), weight = random_tensor(rng, act, {width});
      for (const bool in_place : {false, true}) {
        family.compare(sides.actual, sides.expected, fmt::format("[{}, {}]{}", m, width, in_place ? " in place" : " strided"),
                       [&](Side& side) {
                         const auto x_padded = side.put_padded(x, 8, 8);
                         const auto out = in_place ? x_padded : side.put_padded(poisoned_tensor(act, {m, width}), 0, 8);
                         side.ops().rms_norm(side.stream(),
                                             {.x = x_padded.view, .weight = side.put(weight), .eps = 1e-6f, .out = out.view});
                         return one("out", side.get(out.whole), norm_tolerance(act));
                       });
      }
    }
  }
  for (const int64_t width : kWideWidths) {
    for (const int64_t left : {8, 3}) {  // 3: no row starts where vectors may
      Rng rng(test_seed(), static_cast<uint64_t>(left * 4099 + width));
      const HostTensor x = random_tensor(rng, act, {3, width}, 3.0f), weight = random_tensor(rng, act, {width});
      for (const bool in_place : {false, true}) {
        family.compare(sides.actual, sides.expected, fmt::format("[3, {}] from column {}{}", width, left, in_place ? " in place" : ""),
                       [&](Side& side) {
                         const auto x_padded = side.put_padded(x, left, 16 - left);
                         const auto out = in_place ? x_padded : side.put_padded(poisoned_tensor(act, {3, width}), left, 16 - left);
                         side.ops().rms_norm(side.stream(),
                                             {.x = x_padded.view, .weight = side.put(weight), .eps = 1e-6f, .out = out.view});
                         return one("out", side.get(out.whole), norm_tolerance(act));
                       });
      }
    }
  }
  // The heads of a qkv row.
  for (const auto& [heads, head_dim] : {std::pair{1, 32}, std::pair{3, 80}, std::pair{8, 128}}) {
    for (const int64_t m : {1, 5, 40}) {
      Rng rng(test_seed(), static_cast<uint64_t>(m + heads * 13 + head_dim));
      const HostTensor x = random_tensor(rng, act, {m, heads * head_dim}), weight = random_tensor(rng, act, {head_dim});
      family.compare(sides.actual, sides.expected, fmt::format("[{}, {}, {}] in place", m, heads, head_dim), [&](Side& side) {
        const auto x_padded = side.put_padded(x, head_dim, head_dim);
        const Tensor view = x_padded.view.split_last(heads, head_dim);
        side.ops().rms_norm(side.stream(), {.x = view, .weight = side.put(weight), .eps = 1e-5f, .out = view});
        return one("out", side.get(x_padded.whole), norm_tolerance(act));
      });
    }
  }
}

void add_add_rms_norm(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("add_rms_norm {}", act_name(act)));
  if (!family.selected()) return;
  for (const bool decomposed : {false, true}) {
    if (!decomposed && sides.actual.ops().add_rms_norm == nullptr) continue;
    for (const int64_t m : kRowCounts) {
      for (const int64_t width : kWidths) {
        Rng rng(test_seed(), static_cast<uint64_t>(m * 4099 + width));
        const HostTensor x = random_tensor(rng, act, {m, width}), residual = random_tensor(rng, act, {m, width});
        const HostTensor weight = random_tensor(rng, act, {width});
        for (const bool in_place : {false, true}) {
          family.compare(sides.actual, sides.expected,
                         fmt::format("[{}, {}]{}{}", m, width, in_place ? " in place" : "", decomposed ? " decomposed" : ""),
                         [&](Side& side) {
                           const Tensor x_device = side.put_activations(x), residual_device = side.put(residual);
                           const Tensor out = in_place ? x_device : side.put_activations(poisoned_tensor(act, {m, width}));
                           const auto op = decomposed ? decompositions().add_rms_norm : side.ops().add_rms_norm;
                           op(side.stream(), {.x = x_device,
                                              .residual = residual_device,
                                              .weight = side.put(weight),
                                              .eps = 1e-6f,
                                              .out = out});
                           Outputs outputs = one("out", side.get(out), norm_tolerance(act));
                           outputs.push_back({"residual", side.get(residual_device), {}});
                           return outputs;
                         });
        }
      }
    }
  }
}

void add_wide_add_rms_norm(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("add_rms_norm wide {}", act_name(act)));
  if (!family.selected() || sides.actual.ops().add_rms_norm == nullptr) return;
  for (const int64_t width : kWideWidths) {
    for (const int64_t left : {8, 3}) {
      Rng rng(test_seed(), static_cast<uint64_t>(left * 4099 + width));
      const HostTensor x = random_tensor(rng, act, {3, width}), residual = random_tensor(rng, act, {3, width});
      const HostTensor weight = random_tensor(rng, act, {width});
      for (const bool in_place : {false, true}) {
        family.compare(sides.actual, sides.expected, fmt::format("[3, {}] from column {}{}", width, left, in_place ? " in place" : ""),
                       [&](Side& side) {
                         const auto x_padded = side.put_padded(x, left, 16 - left);
                         const auto residual_padded = side.put_padded(residual, 16 - left, left);
                         const auto out = in_place ? x_padded : side.put_padded(poisoned_tensor(act, {3, width}), left, 16 - left);
                         side.ops().add_rms_norm(side.stream(), {.x = x_padded.view,
                                                                 .residual = residual_padded.view,
                                                                 .weight = side.put(weight),
                                                                 .eps = 1e-6f,
                                                                 .out = out.view});
                         Outputs outputs = one("out", side.get(out.whole), norm_tolerance(act));
                         outputs.push_back({"residual", side.get(residual_padded.whole), {}});
                         return outputs;
                       });
      }
    }
  }
}

void add_adds(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("add {}", act_name(act)));
  if (!family.selected()) return;
  for (const int64_t m : kRowCounts) {
    for (const int64_t width : kWidths) {
      Rng rng(test_seed(), static_cast<uint64_t>(m * 4099 + width));
      const HostTensor a = random_tensor(rng, act, {m, width}), b = random_tensor(rng, act, {m, width});
      for (const bool in_place : {false, true}) {
        family.compare(sides.actual, sides.expected, fmt::format("[{}, {}]{}", m, width, in_place ? " in place" : ""),
                       [&](Side& side) {
                         const Tensor a_device = side.put(a), b_device = side.put_activations(b);
                         const Tensor out = in_place ? a_device : side.put(poisoned_tensor(act, {m, width}));
                         side.ops().add(side.stream(), {.a = a_device, .b = b_device, .out = out});
                         return one("out", side.get(out), {});  // one rounding of an exact sum
                       });
      }
    }
  }
  for (const int64_t width : kWideWidths) {
    Rng rng(test_seed(), static_cast<uint64_t>(width));
    const HostTensor a = random_tensor(rng, act, {2, width}), b = random_tensor(rng, act, {2, width});
    for (const int64_t left : {8, 3}) {
      family.compare(sides.actual, sides.expected, fmt::format("[2, {}] from column {}", width, left), [&](Side& side) {
        const auto out = side.put_padded(poisoned_tensor(act, {2, width}), left, 16 - left);
        side.ops().add(side.stream(), {.a = side.put_padded(a, left, 16 - left).view, .b = side.put(b), .out = out.view});
        return one("out", side.get(out.whole), {});
      });
    }
  }
}

void add_silu_and_muls(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("silu_and_mul {}", act_name(act)));
  if (!family.selected()) return;
  const auto compare = [&](const std::string& label, const HostTensor& gate_up) {
    const int64_t m = gate_up.view().dim(0), width = gate_up.view().dim(1) / 2;
    family.compare(sides.actual, sides.expected, label, [&](Side& side) {
      const Tensor out = side.put_activations(poisoned_tensor(act, {m, width}));
      side.ops().silu_and_mul(side.stream(), {.gate_up = side.put(gate_up), .out = out});
      // silu and the product may each round to a neighbour; exp(x) in fp32 is off by |x| 2^-24 of itself, |x| < 140.
      return one("out", side.get(out), {.rel = act == DType::kBf16 ? 2 * kBf16Ulp : 3e-5, .abs = 1e-30});
    });
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float gates[] = {0.0f, -0.0f, 88.0f, 89.0f, 1e38f, kInfinity, -88.0f, -89.0f, -104.0f, -1e4f, std::nanf("")};
  constexpr int64_t kGates = std::size(gates);
  const HostTensor edges(act, {1, 2 * kGates});
  for (int64_t i = 0; i < 2 * kGates; ++i) {
    const float value = i < kGates ? gates[i] : 1.0f;
    const auto at = static_cast<size_t>(i);
    act == DType::kBf16 ? void(edges.span<Bf16>()[at] = Bf16::from_float(value)) : void(edges.span<float>()[at] = value);
  }
  compare("where exp over- and underflows", edges);
  for (const int64_t width : kWideWidths) {
    Rng rng(test_seed(), static_cast<uint64_t>(width));
    compare(fmt::format("[2, {}]", width), random_tensor(rng, act, {2, 2 * width}));
  }
  for (const int64_t m : kRowCounts) {
    for (const int64_t width : kWidths) {
      Rng rng(test_seed(), static_cast<uint64_t>(m * 4099 + width));
      // Values to +-70 and beyond: exp over- and underflows.
      const HostTensor gate_up = random_tensor(rng, act, {m, 2 * width}, width % 2 ? 1.0f : 40.0f);
      compare(fmt::format("[{}, {}]", m, width), gate_up);
    }
  }
}

void add_ropes(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("rope {}", act_name(act)));
  if (!family.selected()) return;
  for (const auto& [head_dim, rotary_dim] : {std::pair{2, 2}, std::pair{32, 32}, std::pair{64, 32}, std::pair{80, 20},
                                             std::pair{96, 96}, std::pair{128, 128}, std::pair{256, 64}}) {
    for (const int64_t heads : {1, 3, 8}) {
      for (const int64_t m : {0, 1, 17, 33}) {
        for (const bool interleaved : {false, true}) {
          Rng rng(test_seed(), static_cast<uint64_t>(m * 4099 + head_dim * 7 + rotary_dim + heads));
          const int64_t max_positions = 50;
          HostTensor cos_sin(DType::kF32, {max_positions, rotary_dim}), positions(DType::kI32, {m});
          for (int64_t p = 0; p < max_positions; ++p) {
            for (int64_t j = 0; j < rotary_dim / 2; ++j) {
              const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(j) / rotary_dim);
              cos_sin.span<float>()[static_cast<size_t>(p * rotary_dim + j)] = static_cast<float>(std::cos(angle));
              cos_sin.span<float>()[static_cast<size_t>(p * rotary_dim + rotary_dim / 2 + j)] = static_cast<float>(std::sin(angle));
            }
          }
          for (int32_t& position : positions.span<int32_t>()) position = static_cast<int32_t>(rng.below(max_positions));
          const HostTensor x = random_tensor(rng, act, {m, heads * head_dim});
          family.compare(sides.actual, sides.expected,
                         fmt::format("[{}, {}, {}] rotary {}{}", m, heads, head_dim, rotary_dim, interleaved ? " interleaved" : ""),
                         [&](Side& side) {
                           const auto padded = side.put_padded(x, head_dim, 2 * head_dim);
                           side.ops().rope(side.stream(), {.positions = side.put(positions),
                                                           .cos_sin = side.put(cos_sin),
                                                           .x = padded.view.split_last(heads, head_dim),
                                                           .interleaved = interleaved});
                           // |a cos| + |b sin| <= 5: two fp32 products and a sum may cancel.
                           return one("x", side.get(padded.whole), {.rel = ulp_of(act), .abs = 1e-6});
                         });
        }
      }
    }
  }
}

}  // namespace

void add_elementwise_cases(Report& report, Sides sides) {
  for (const DType act : kActs) {
    add_rms_norms(report, sides, act);
    add_add_rms_norm(report, sides, act);
    add_wide_add_rms_norm(report, sides, act);
    add_adds(report, sides, act);
    add_silu_and_muls(report, sides, act);
    add_ropes(report, sides, act);
  }
}

}  // namespace spate::conformance
