// route_experts, expert_mlp and the norms that they are fused with: every kind of routing, ties and NaN among the
// choices; experts that many, one or no tokens chose, ids of other ranks, widths that no block divides.
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/conformance/linear_rig.h"
#include "backend/layer_products.h"

namespace spate::conformance {
namespace {

struct RoutingShape {
  int64_t num_tokens, num_experts, num_experts_per_tok;
  bool has_bias;
  ExpertRouting routing;
};

// Logits in steps of 1/2 where they shall tie: equal ones give equal scores on every back-end.
HostTensor make_logits(Rng& rng, const RoutingShape& shape, bool ties) {
  HostTensor logits = random_tensor(rng, DType::kF32, {shape.num_tokens, shape.num_experts}, 2);
  for (float& logit : logits.span<float>()) logit = ties ? std::round(logit * 2) / 2 : logit;
  return logits;
}

Outputs route(Side& side, const RoutingShape& shape, const Tensor& logits, const Tensor& bias) {
  const auto ids = side.put_padded(poisoned_tensor(DType::kI32, {shape.num_tokens, shape.num_experts_per_tok}), 0, 3);
  const auto weights =
      side.put_padded(poisoned_tensor(DType::kF32, {shape.num_tokens, shape.num_experts_per_tok}), 2, 1);
  side.ops().route_experts(side.stream(), {.logits = side.put_padded(logits, 1, 0).view,
                                           .bias = shape.has_bias ? side.put(bias) : Tensor(),
                                           .routing = shape.routing,
                                           .expert_ids = ids.view,
                                           .expert_weights = weights.view});
  Outputs outputs;
  outputs.push_back({"expert_ids", side.get(ids.whole), {}});
  outputs.push_back({"expert_weights", side.get(weights.whole), {.rel = 0x1p-18, .abs = 0}});
  return outputs;
}

void add_routing(Report& report, Sides sides, ExpertScores scores) {
  Family family(report, fmt::format("route_experts {}", scores == ExpertScores::kSoftmax ? "softmax" : "sigmoid"));
  if (!family.selected()) return;
  const auto routing = [&](GroupScores group_scores, int64_t num_groups, int64_t num_chosen_groups, bool normalises,
                           float scale) {
    return ExpertRouting{.scores = scores,
                         .group_scores = group_scores,
                         .num_groups = num_groups,
                         .num_chosen_groups = num_chosen_groups,
                         .normalises = normalises,
                         .min_sum = normalises && num_groups == 1 ? 0.4f : 1e-20f,
                         .scale = scale};
  };
  const RoutingShape shapes[] = {
      {3, 1, 1, false, routing(GroupScores::kMax, 1, 1, false, 1)},
      {0, 8, 2, false, routing(GroupScores::kMax, 1, 1, true, 1)},
      {37, 8, 2, false, routing(GroupScores::kMax, 1, 1, true, 1)},
      {20, 60, 4, false, routing(GroupScores::kMax, 1, 1, false, 1)},
      {33, 64, 6, true, routing(GroupScores::kMax, 1, 1, true, 1)},
      {5, 7, 7, true, routing(GroupScores::kMax, 1, 1, false, 0.5f)},
      {17, 128, 8, false, routing(GroupScores::kMax, 1, 1, true, 1)},
      {19, 160, 6, false, routing(GroupScores::kMax, 8, 3, false, 16)},
      {25, 256, 8, true, routing(GroupScores::kTop2Sum, 8, 4, true, 2.5f)},
      {9, 12, 5, true, routing(GroupScores::kTop2Sum, 4, 2, true, 2.5f)},
      {9, 12, 2, false, routing(GroupScores::kMax, 12, 2, false, 1)},
  };
  for (const RoutingShape& shape : shapes) {
    for (const bool ties : {false, true}) {
      Rng rng(test_seed(), static_cast<uint64_t>(shape.num_experts * 100 + shape.num_tokens));
      const HostTensor logits = make_logits(rng, shape, ties);
      // A tie of choices must be one of scores and biases.
      const HostTensor bias = ties ? HostTensor(DType::kF32, {shape.num_experts})
                                   : random_tensor(rng, DType::kF32, {shape.num_experts}, 0.3f);
      family.compare(sides.actual, sides.expected,
                     fmt::format("{} tokens, {} of {} experts, {} of {} groups{}", shape.num_tokens,
                                 shape.num_experts_per_tok, shape.num_experts, shape.routing.num_chosen_groups,
                                 shape.routing.num_groups, ties ? ", ties" : ""),
                     [&](Side& side) { return route(side, shape, logits, bias); });
    }
  }
  const RoutingShape& shape = shapes[8];
  Rng rng(test_seed(), 5);
  HostTensor logits = make_logits(rng, shape, false);
  logits.span<float>()[300] = std::numeric_limits<float>::quiet_NaN();
  const HostTensor bias = random_tensor(rng, DType::kF32, {shape.num_experts}, 0.3f);
  family.compare(sides.actual, sides.expected, "a NaN", [&](Side& side) { return route(side, shape, logits, bias); });
}

struct ExpertShape {
  int64_t num_tokens, hidden_size, intermediate_size, num_experts, num_experts_per_tok;
  bool has_shared, has_shared_gate;
  bool has_outliers = false;  // in x, and in activations
};

// The tensors of a case, on the host.
struct ExpertData {
  HostTensor x, shared, shared_gate, ids, weights, gate_up, down;
};

ExpertData make_expert_data(DType act, const ExpertShape& s, bool other_ranks) {
  Rng rng(test_seed(), static_cast<uint64_t>(s.num_tokens * 977 + s.hidden_size * 31 + s.intermediate_size));
  ExpertData data;
  data.x = random_tensor(rng, act, {s.num_tokens, s.hidden_size});
  data.shared = random_tensor(rng, act, {s.num_tokens, s.hidden_size});
  data.shared_gate = random_tensor(rng, DType::kF32, {s.num_tokens, 1});
  data.gate_up = random_tensor(rng, act, {s.num_experts * 2 * s.intermediate_size, s.hidden_size},
                               1 / std::sqrt(static_cast<float>(s.hidden_size)));
  data.down = random_tensor(rng, act, {s.num_experts * s.hidden_size, s.intermediate_size},
                            1 / std::sqrt(static_cast<float>(s.intermediate_size)));
  if (s.has_outliers) {
    const auto scale = [&](HostTensor& tensor, int64_t index, float factor) {
      if (act == DType::kBf16) {
        Bf16& value = tensor.span<Bf16>()[static_cast<size_t>(index)];
        value = Bf16::from_float(value.to_float() * factor);
      } else {
        tensor.span<float>()[static_cast<size_t>(index)] *= factor;
      }
    };
    for (int64_t t = 0; t < s.num_tokens; t += 2) {
      for (const int64_t k : {int64_t{3}, int64_t{130}, s.hidden_size - 1}) scale(data.x, t * s.hidden_size + k, 40);
    }
    for (int64_t expert = 0; expert < s.num_experts; ++expert) {
      for (const int64_t feature : {int64_t{1}, s.intermediate_size / 2, s.intermediate_size - 2}) {
        for (const int64_t row : {feature, s.intermediate_size + feature}) {
          for (int64_t k = 0; k < s.hidden_size; ++k) {
            scale(data.gate_up, (expert * 2 * s.intermediate_size + row) * s.hidden_size + k, 8);
          }
        }
      }
    }
  }
  data.ids = HostTensor(DType::kI32, {s.num_tokens, s.num_experts_per_tok});
  data.weights = HostTensor(DType::kF32, {s.num_tokens, s.num_experts_per_tok});
  std::vector<int32_t> all(static_cast<size_t>(s.num_experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    for (int64_t i = 0; i < s.num_experts_per_tok; ++i) {
      const auto at = static_cast<size_t>(i), other = at + rng.below(all.size() - at);
      std::swap(all[at], all[other]);
      const bool is_other = other_ranks && rng.below(4) == 0;
      const auto at_flat = static_cast<size_t>(t * s.num_experts_per_tok + i);
      data.ids.span<int32_t>()[at_flat] = is_other ? (t % 2 == 0 ? -1 : static_cast<int32_t>(s.num_experts)) : all[at];
      data.weights.span<float>()[at_flat] = (0.2f + rng.uniform()) / static_cast<float>(s.num_experts_per_tok);
    }
  }
  return data;
}

// Of the tokens [begin, end).
HostTensor run_experts(Side& side, const ExpertShape& s, const ExpertData& data, const WeightSpec& spec, int64_t begin,
                       int64_t end) {
  const auto rows = [&](const HostTensor& tensor) { return tensor.view().rows(begin, end); };
  const Tensor out = side.put_activations(poisoned_tensor(data.x.view().dtype(), {end - begin, s.hidden_size}));
  side.ops().expert_mlp(side.stream(), {.x = side.put_activations(rows(data.x)),
                                        .expert_ids = side.put(rows(data.ids)),
                                        .expert_weights = side.put(rows(data.weights)),
                                        .gate_up = &side.put_matrices(data.gate_up, spec, s.num_experts),
                                        .down = &side.put_matrices(data.down, spec, s.num_experts),
                                        .shared = s.has_shared ? side.put_activations(rows(data.shared)) : Tensor(),
                                        .shared_gate = s.has_shared_gate ? side.put(rows(data.shared_gate)) : Tensor(),
                                        .out = out});
  return side.get(out);
}

// expert_mlp_add_norm: what add_rms_norm gives of the result of expert_mlp on the same side, in one op or in two.
void check_experts_and_norm(Family& family, Side& side, const ExpertShape& s, const ExpertData& data,
                            const WeightSpec& spec) {
  const auto fused = side.ops().expert_mlp_add_norm;
  if (fused == nullptr) return;
  const DType act = data.x.view().dtype();
  Rng rng(test_seed(), static_cast<uint64_t>(s.num_tokens * 31 + s.hidden_size));
  const HostTensor residual = random_tensor(rng, act, {s.num_tokens, s.hidden_size});
  const HostTensor weight = random_tensor(rng, act, {s.hidden_size});
  const auto run = [&](Op<ExpertMlpAddNormParams> op) {
    const Tensor x = side.put_activations(data.x), sum = side.put(residual);
    op(side.stream(), {.experts = {.x = x,
                                   .expert_ids = side.put(data.ids),
                                   .expert_weights = side.put(data.weights),
                                   .gate_up = &side.put_matrices(data.gate_up, spec, s.num_experts),
                                   .down = &side.put_matrices(data.down, spec, s.num_experts),
                                   .shared = s.has_shared ? side.put_activations(data.shared) : Tensor(),
                                   .shared_gate = s.has_shared_gate ? side.put(data.shared_gate) : Tensor(),
                                   .out = x},
                       .norm = {.x = x, .residual = sum, .weight = side.put(weight), .eps = 1e-6f, .out = x}});
    return std::pair(side.get(x), side.get(sum));
  };
  const auto [out, sum] = run(fused);
  const auto [expected_out, expected_sum] = run(decompositions().expert_mlp_add_norm);
  const std::string label = fmt::format("{} tokens, {} wide, with the next norm", s.num_tokens, s.hidden_size);
  family.check(side.name_case(label + ": out"), equal_bits("out", out, expected_out));
  family.check(side.name_case(label + ": residual"), equal_bits("residual", sum, expected_sum));
  side.clear();
}

void add_expert_mlp(Report& report, Sides sides, DType act, const WeightSpec& spec) {
  Family family(report, fmt::format("expert_mlp {} by {}", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  const ExpertShape shapes[] = {
      {1, 32, 16, 4, 2, false, false},
      {0, 32, 16, 4, 2, false, false},
      {2, 33, 13, 3, 3, true, false},
      {9, 64, 48, 8, 2, true, true},
      {40, 70, 24, 2, 1, false, false},
      {70, 96, 32, 3, 2, true, true},
      {20, 520, 264, 6, 3, true, false},
      {130, 264, 136, 4, 2, false, false},
      {280, 264, 136, 2, 1, false, false},
      {60, 272, 16, 200, 8, false, false},
      {256, 64, 16, 130, 8, true, false},
      {120, 256, 32, 124, 8, false, false},  // about as many tiles as SMs, of 1 to 16 rows
      {9, 4104, 16, 4, 2, false, false},
      {24, 640, 256, 16, 1, false, false},
      {24, 640, 256, 16, 4, true, false},
      {60, 640, 256, 16, 4, false, false},
      {24, 640, 256, 16, 1, false, false, true},
      {24, 640, 256, 16, 4, true, false, true},
      {60, 640, 256, 16, 4, false, false, true},
      {280, 264, 136, 2, 1, false, false, true},
      {700, 264, 136, 2, 1, false, false},
      {1300, 520, 192, 4, 2, true, true},
      {1100, 72, 40, 3, 2, false, false},
      {700, 264, 136, 2, 1, false, false, true},
      {5400, 64, 16, 200, 8, false, false},
      {2500, 4104, 16, 8, 1, false, false},
      {4300, 2568, 16, 20, 1, false, false},
  };
  for (const ExpertShape& s : shapes) {
    if (s.has_outliers && !spec.quantizes_activations()) continue;
    constexpr int64_t kMostElements = 4000000;  // of x, where products are slow
    if (layer_products_device(sides.actual.device()) == nullptr && s.num_tokens * s.hidden_size > kMostElements)
      continue;
    for (const bool other_ranks : {false, true}) {
      const ExpertData data = make_expert_data(act, s, other_ranks);
      // An activation that lies between two values of bf16 may be rounded either way: one of them moves a sum of
      // weights of variance 1 / intermediate_size by up to 2^-8 of some of these, an 8-bit code that is one off by
      // 2^-6. Where there are many, several are, and large ones among them.
      const int64_t num_activations = s.num_tokens * s.intermediate_size;
      const double many = num_activations > 64000 ? 8 : num_activations > 4000 ? 4 : 1;
      const double step = spec.quantizes_activations() ? 0x1p-4 : act == DType::kBf16 ? 0x1p-6 : 0;
      const double size = s.has_outliers ? 64 : 1;  // of activations
      const double flip = size * many * step / std::sqrt(static_cast<double>(s.intermediate_size));
      // Rounding errors of a sum grow with the root of its length.
      const double of_sums = 0x1p-16 * std::sqrt(std::max(1.0, static_cast<double>(s.hidden_size) / 1024));
      const Tolerance tolerance{.rel = 2 * ulp_of(act), .abs = of_sums + flip};
      const auto run = [&](Side& side, const ExpertData& with, const WeightSpec& weights) {
        Outputs outputs;
        outputs.push_back({"out", run_experts(side, s, with, weights, 0, s.num_tokens), tolerance});
        return outputs;
      };
      const std::string label = fmt::format("{} tokens, {} of {} experts of {} x {}{}{}", s.num_tokens,
                                            s.num_experts_per_tok, s.num_experts, s.intermediate_size, s.hidden_size,
                                            s.has_outliers ? ", outliers" : "", other_ranks ? ", other ranks" : "");
      const CaseBody by_codes = [&](Side& side) { return run(side, data, spec); };
      if (spec.codes == Codes::kInt4 && spec.quantizes_activations()) {
        // Some kernels keep x more exactly than 8-bit codes do. Not against int4 with activations as they are: its
        // numbers are rounded to bf16, which is enough to move some gates by a bf16.
        family.compare_either(sides.actual, sides.expected, label, by_codes, [&](Side& side) {
          ExpertData numbers = make_expert_data(act, s, other_ranks);
          numbers.gate_up = dequantize_rows(quantize_rows(spec, data.gate_up));
          numbers.down = dequantize_rows(quantize_rows(spec, data.down));
          return run(side, numbers, {.codes = Codes::kF32});
        });
      } else {
        family.compare(sides.actual, sides.expected, label, by_codes);
      }
      check_experts_and_norm(family, sides.actual, s, data, spec);
    }
  }
}

// Tokens whose experts are as uneven as they can be, in sizes at the bounds of kernels, two of them with a NaN and an
// infinity: these are not finite, and each of the others has what it has alone.
enum class Crowd { kSameExperts, kLastExperts, kEverySecondExpert, kRising };

void add_expert_crowds(Report& report, Sides sides, const WeightSpec& spec) {
  constexpr DType kAct = DType::kBf16;
  Family family(report, fmt::format("expert_mlp of crowds {} by {}", act_name(kAct), weight_spec_name(spec)));
  if (!family.selected()) return;
  struct Case {
    ExpertShape shape;
    Crowd crowd;
  };
  for (const auto& [s, crowd] : {Case{{256, 256, 64, 128, 8, true, false}, Crowd::kSameExperts},
                                 Case{{256, 264, 72, 250, 8, false, false}, Crowd::kLastExperts},
                                 Case{{128, 2560, 72, 16, 2, false, false}, Crowd::kSameExperts},
                                 Case{{129, 2560, 136, 16, 2, true, false}, Crowd::kRising},
                                 Case{{19, 264, 2560, 4, 3, false, false}, Crowd::kLastExperts},
                                 Case{{40, 2568, 136, 8, 2, false, false}, Crowd::kEverySecondExpert},
                                 Case{{900, 520, 200, 3, 2, true, false}, Crowd::kSameExperts},
                                 Case{{1700, 520, 136, 8, 1, false, false}, Crowd::kEverySecondExpert},
                                 Case{{1030, 1032, 200, 16, 4, false, false}, Crowd::kRising}}) {
    constexpr int64_t kMostWork = 100000000;  // where products are slow
    if (layer_products_device(sides.actual.device()) == nullptr &&
        s.num_tokens * s.num_experts_per_tok * s.hidden_size * s.intermediate_size > kMostWork) {
      continue;
    }
    ExpertData data = make_expert_data(kAct, s, false);
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      for (int64_t i = 0; i < s.num_experts_per_tok; ++i) {
        const int64_t id = crowd == Crowd::kSameExperts         ? i
                           : crowd == Crowd::kLastExperts       ? s.num_experts - 1 - i
                           : crowd == Crowd::kEverySecondExpert ? (t % 5 + i) * 2 % s.num_experts
                                                                : (t * t / s.num_tokens + i) % s.num_experts;
        data.ids.span<int32_t>()[static_cast<size_t>(t * s.num_experts_per_tok + i)] = static_cast<int32_t>(id);
      }
    }
    const int64_t nan_token = s.num_tokens / 3, infinite_token = s.num_tokens - 2;
    const auto element = [&](int64_t t, int64_t k) -> Bf16& {
      return data.x.span<Bf16>()[static_cast<size_t>(t * s.hidden_size + k)];
    };
    element(nan_token, s.hidden_size - 1) = Bf16::from_float(NAN);
    element(infinite_token, 0) = Bf16::from_float(INFINITY);
    // As add_expert_mlp(). One call may have 8-bit codes of x where another one keeps x more exactly: a fortieth of
    // what is of the results' size, in which a step of k that is missing is a fifth.
    const double many = 64 * s.intermediate_size > 4000 ? 4 : 1;
    const double flip = many * 0x1p-6 / std::sqrt(static_cast<double>(s.intermediate_size));
    const auto tolerance_of = [&](const HostTensor& row) {
      double squares = 0;
      for (int64_t i = 0; i < s.hidden_size; ++i) squares += std::pow(element_at(row.view(), i), 2);
      const double of_codes = 0.15 * std::sqrt(squares / static_cast<double>(s.hidden_size));
      return Tolerance{.rel = 2 * ulp_of(kAct), .abs = 0x1p-16 + (spec.quantizes_activations() ? of_codes : flip)};
    };
    Side& side = sides.actual;
    const HostTensor all = run_experts(side, s, data, spec, 0, s.num_tokens);
    side.clear();
    const std::string label =
        fmt::format("{} tokens, {} of {} experts of {} x {}, crowd {}", s.num_tokens, s.num_experts_per_tok,
                    s.num_experts, s.intermediate_size, s.hidden_size, static_cast<int>(crowd));
    for (const int64_t t : {nan_token, infinite_token}) {
      int64_t num_finite = 0;
      for (int64_t i = 0; i < s.hidden_size; ++i)
        num_finite += std::isfinite(element_at(all.view(), t * s.hidden_size + i));
      family.check(side.name_case(fmt::format("{}: token {}", label, t)),
                   num_finite == 0 ? "" : fmt::format("{} of {} elements are finite", num_finite, s.hidden_size));
    }
    for (const int64_t t :
         {int64_t{0}, nan_token - 1, nan_token + 1, s.num_tokens / 2, s.num_tokens - 3, s.num_tokens - 1}) {
      const HostTensor alone = run_experts(side, s, data, spec, t, t + 1);
      family.check(side.name_case(fmt::format("{}: token {} alone", label, t)),
                   close_to("out", all.view().rows(t, t + 1), alone, tolerance_of(alone)));
      side.clear();
    }
  }
}

// A token has the same bits alone, beside others, and where a back-end must take its experts in several parts.
void add_expert_invariance(Report& report, Sides sides, DType act, const WeightSpec& spec) {
  Family family(report, fmt::format("batch invariance of expert_mlp {} by {}", act_name(act), weight_spec_name(spec)));
  if (!family.selected()) return;
  const ExpertShape s{700, 64, 48, 6, 3, true, true};
  const ExpertData data = make_expert_data(act, s, false);
  for (Side* side : sides.deterministic.all()) {
    const HostTensor whole = run_experts(*side, s, data, spec, 0, s.num_tokens);
    side->clear();
    for (const auto& [begin, end] : {std::pair{0, 1}, {7, 8}, {7, 9}, {0, 33}, {100, 229}, {699, 700}}) {
      family.check(side->name_case(fmt::format("tokens {} to {}", begin, end)),
                   equal_bits("out", run_experts(*side, s, data, spec, begin, end), whole.view().rows(begin, end)));
      side->clear();
    }
  }
}

// All products between two attentions of layers of experts as one op: against the same ops one after the other, on the
// reference and on the device. A product that misses a step of k is off by a tenth and more.
void add_expert_layer_products(Report& report, Sides sides, const WeightSpec& spec) {
  if (layer_products_device(sides.actual.device()) == nullptr) return;
  Family family(report, fmt::format("layer_products of experts by {}", weight_spec_name(spec)));
  if (!family.selected()) return;
  constexpr DType kAct = DType::kBf16;
  constexpr WeightSpec kRouterSpec{.codes = Codes::kBf16};
  struct Case {
    int64_t m, heads, hidden, intermediate, num_experts, num_chosen, qkv;
    bool has_bias, is_sigmoid;
    int64_t shared = 0;  // width of the shared expert
    bool has_nan = false;
  };
  constexpr int64_t kNoQkv = 0;
  for (const auto& c :
       {Case{1, 4096, 2048, 256, 32, 8, 5120, false, false}, Case{1, 2048, 2048, 768, 16, 8, 2320, true, true},
        Case{1, 2176, 2560, 320, 56, 4, kNoQkv, true, true}, Case{1, 1024, 4096, 512, 8, 2, 1040, false, true},
        Case{2, 256, 128, 64, 8, 2, 192, true, false}, Case{1, 200, 136, 48, 6, 3, 48, false, true},
        Case{1, 2048, 2048, 1408, 8, 6, 3648, false, false, 2816},
        Case{1, 2560, 2560, 256, 16, 3, 3584, true, false, 512},
        Case{1, 2176, 2560, 320, 56, 4, kNoQkv, true, true, 192}, Case{2, 256, 128, 64, 8, 2, 192, true, false, 96},
        Case{1, 4096, 2048, 256, 32, 8, 5120, false, false, 0, true},
        Case{1, 2560, 2560, 256, 16, 3, 3584, true, false, 512, true}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(c.hidden * 31 + c.intermediate));
    const auto matrix = [&](int64_t rows, int64_t columns) {
      return random_tensor(rng, kAct, {rows, columns}, 1 / std::sqrt(static_cast<float>(columns)));
    };
    const HostTensor o = matrix(c.hidden, c.heads), router = matrix(c.num_experts, c.hidden),
                     gate_up = matrix(c.num_experts * 2 * c.intermediate, c.hidden),
                     down = matrix(c.num_experts * c.hidden, c.intermediate), qkv = matrix(c.qkv, c.hidden);
    const HostTensor o_bias = random_tensor(rng, kAct, {c.hidden}), qkv_bias = random_tensor(rng, kAct, {c.qkv}),
                     choice_bias = random_tensor(rng, DType::kF32, {c.num_experts}, 0.3f);
    HostTensor heads = random_tensor(rng, kAct, {c.m, c.heads});
    const HostTensor residual = random_tensor(rng, kAct, {c.m, c.hidden}), post = random_tensor(rng, kAct, {c.hidden}),
                     next = random_tensor(rng, kAct, {c.hidden});
    if (c.has_nan) heads.span<Bf16>()[static_cast<size_t>(c.heads) / 3] = Bf16::from_float(NAN);
    const HostTensor shared_gate_up = matrix(2 * c.shared, c.hidden), shared_down = matrix(c.hidden, c.shared);
    const auto run = [&](Side& side, bool decomposed) -> Outputs {
      LayerProductsDevice* joining = decomposed ? nullptr : layer_products_device(side.device());
      const auto room = [&](DType dtype, int64_t width) { return side.put(poisoned_tensor(dtype, {c.m, width})); };
      const auto act_room = [&](int64_t width) { return side.put_activations(poisoned_tensor(kAct, {c.m, width})); };
      const bool has_qkv = c.qkv != kNoQkv;
      SharedExpertParams shared;
      if (c.shared > 0) {
        shared = {.gate_up = &side.put_weight(shared_gate_up, spec),
                  .gate_up_bias = Tensor(),
                  .down = &side.put_weight(shared_down, spec),
                  .down_bias = Tensor(),
                  .scratch = room(kAct, 2 * c.shared),
                  .act = act_room(c.shared),
                  .out = act_room(c.hidden)};
      }
      const ExpertLayerProductsParams params{
          .heads = side.put_activations(heads),
          .o = &side.put_weight(o, spec),
          .o_bias = c.has_bias ? side.put(o_bias) : Tensor(),
          .residual = side.put(residual),
          .post_norm = side.put(post),
          .post_eps = 1e-6f,
          .router = &side.put_weight(router, kRouterSpec),
          .route = {.logits = room(DType::kF32, c.num_experts),
                    .bias = c.has_bias ? side.put(choice_bias) : Tensor(),
                    .routing = {.scores = c.is_sigmoid ? ExpertScores::kSigmoid : ExpertScores::kSoftmax,
                                .normalises = true,
                                .min_sum = 1e-20f},
                    .expert_ids = room(DType::kI32, c.num_chosen),
                    .expert_weights = room(DType::kF32, c.num_chosen)},
          .gate_up = &side.put_matrices(gate_up, spec, c.num_experts),
          .down = &side.put_matrices(down, spec, c.num_experts),
          .shared = shared,
          .x = act_room(c.hidden),
          .next_norm = has_qkv ? side.put(next) : Tensor(),
          .next_eps = 1e-5f,
          .qkv = has_qkv ? &side.put_weight(qkv, spec) : nullptr,
          .qkv_bias = has_qkv && c.has_bias ? side.put(qkv_bias) : Tensor(),
          .qkv_out = has_qkv ? act_room(c.qkv) : Tensor()};
      if (joining != nullptr) {
        joining->layer_products(side.stream(), params);
      } else {
        decomposed_layer_products(side.stream(), params);
      }
      const Tolerance tolerance{.rel = 4 * kBf16Ulp, .abs = spec.has_integer_codes() ? 0.1 : 0.04};
      Outputs outputs;
      outputs.push_back({"residual", side.get(params.residual), tolerance});
      outputs.push_back({"out", side.get(has_qkv ? params.qkv_out : params.x), tolerance});
      return outputs;
    };
    const CaseBody as_it_is = [&](Side& side) { return run(side, false); };
    const std::string label = fmt::format(
        "m {}, {} to {}, {} of {} experts of {}{}, to {}{}", c.m, c.heads, c.hidden, c.num_chosen, c.num_experts,
        c.intermediate, c.shared > 0 ? fmt::format(" and {}", c.shared) : "", c.qkv, c.has_nan ? ", a NaN" : "");
    family.compare(sides.actual, sides.expected, label, as_it_is);
    family.compare(sides.actual, label + " against its decomposition", as_it_is,
                   [&](Side& side) { return run(side, true); });
  }
}

}  // namespace

void add_expert_cases(Report& report, Sides sides) {
  if (sides.actual.ops().expert_mlp == nullptr) return;
  add_routing(report, sides, ExpertScores::kSoftmax);
  add_routing(report, sides, ExpertScores::kSigmoid);
  const WeightSpec int4 = integer_spec(Codes::kInt4, 64, false, true);
  const WeightSpec specs[] = {{.codes = Codes::kBf16},
                              integer_spec(Codes::kInt8),
                              integer_spec(Codes::kInt8, 32, true),
                              int4,
                              integer_spec(Codes::kInt4, 32, false, true),
                              integer_spec(Codes::kInt4, 32),
                              int4.with_activations(Activations::kAsIs)};
  add_expert_mlp(report, sides, DType::kF32, {.codes = Codes::kF32});
  for (const WeightSpec& spec : specs) {
    if (!sides.actual.device().supports_experts(spec)) continue;
    add_expert_mlp(report, sides, DType::kBf16, spec);
  }
  for (const WeightSpec& spec : {specs[0], specs[1], int4, specs[4]}) {
    if (sides.actual.device().supports_experts(spec)) add_expert_crowds(report, sides, spec);
  }
  for (const WeightSpec& spec : {specs[0], specs[1], int4}) {
    if (sides.actual.device().supports_experts(spec)) add_expert_layer_products(report, sides, spec);
  }
  add_expert_invariance(report, sides, DType::kF32, {.codes = Codes::kF32});
  for (const WeightSpec& spec : {specs[0], specs[1], int4}) {
    if (sides.actual.device().supports_experts(spec)) add_expert_invariance(report, sides, DType::kBf16, spec);
  }
}

}  // namespace spate::conformance
