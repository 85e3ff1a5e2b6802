#include "backend/conformance/linear_rig.h"

namespace spate::conformance {

void compare_linear(Family& family, Sides sides, const LinearCase& c, const std::string& note, const PutWeight& weight,
                    const Tolerance& tolerance) {
  Rng rng(test_seed(), static_cast<uint64_t>(c.m * 1000003 + c.n * 1009 + c.k));
  const HostTensor x = random_tensor(rng, c.act, {c.m, c.k}), bias = random_tensor(rng, c.act, {c.n});
  const std::string label = fmt::format("m {} n {} k {}{}{}{} out {}", c.m, c.n, c.k, c.bias ? " bias" : "",
                                        c.strided ? " strided" : "", note, dtype_name(c.out));
  family.compare(sides.actual, sides.expected, label, [&](Side& side) -> Outputs {
    const int64_t pad = c.strided ? 8 : 0;
    const auto x_padded = side.put_padded(x, pad, pad);
    const auto out = side.put_padded(poisoned_tensor(c.out, {c.m, c.n}), pad, pad);
    side.ops().linear(
        side.stream(),
        {.x = x_padded.view, .weight = &weight(side), .bias = c.bias ? side.put(bias) : Tensor(), .out = out.view});
    Outputs outputs;
    outputs.push_back({"out", side.get(out.whole), tolerance});
    return outputs;
  });
}

void compare_linear_silu_and_mul(Family& family, Sides sides, const LinearCase& c, const PutWeight& weight,
                                 const Tolerance& tolerance) {
  Rng rng(test_seed(), static_cast<uint64_t>(c.m * 7919 + c.n * 31 + c.k));
  const HostTensor x = random_tensor(rng, c.act, {c.m, c.k}), bias = random_tensor(rng, c.act, {2 * c.n});
  const auto run = [&](Side& side, bool decomposed) -> Outputs {
    const auto fused = side.ops().linear_silu_and_mul;
    const auto op = decomposed || fused == nullptr ? decompositions().linear_silu_and_mul : fused;
    const Tensor out = side.put_activations(poisoned_tensor(c.act, {c.m, c.n}));
    op(side.stream(), {.x = side.put_activations(x),
                       .weight = &weight(side),
                       .bias = c.bias ? side.put(bias) : Tensor(),
                       .gate_up = side.put(poisoned_tensor(c.act, {c.m, 2 * c.n})),
                       .out = out});
    Outputs outputs;
    outputs.push_back({"out", side.get(out), tolerance});
    return outputs;
  };
  const CaseBody as_it_is = [&](Side& side) { return run(side, false); };
  const std::string label = fmt::format("m {} n {} k {}", c.m, c.n, c.k);
  family.compare(sides.actual, sides.expected, label, as_it_is);
  if (sides.actual.ops().linear_silu_and_mul == nullptr) return;
  family.compare(sides.actual, label + " against its decomposition", as_it_is,
                 [&](Side& side) { return run(side, true); });
}

void compare_embedding(Family& family, Sides sides, const std::string& label, DType act, int64_t rows, int64_t width,
                       int64_t num_tokens, const PutWeight& table) {
  Rng rng(test_seed(), static_cast<uint64_t>(rows * 131 + width + num_tokens));
  HostTensor ids(DType::kI32, {num_tokens});
  for (int32_t& id : ids.span<int32_t>()) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(rows * 2)));
  family.compare(sides.actual, sides.expected, label, [&](Side& side) -> Outputs {
    const Tensor out = side.put(poisoned_tensor(act, {num_tokens, width}));
    side.ops().embedding(
        side.stream(),
        {.token_ids = side.put(ids), .table = &table(side), .first_row = static_cast<int32_t>(rows / 2), .out = out});
    Outputs outputs;
    outputs.push_back({"out", side.get(out), {}});
    return outputs;
  });
}

namespace {

void check_invariance_on(Family& family, Side& side, const Tensor& x, int64_t n, bool silu, const PutWeight& weight,
                         std::span<const int64_t> sizes) {
  const OpTable ops = bind_ops(side.ops()).ops;
  const int64_t max_m = x.dim(0), k = x.dim(1);
  const auto rows = [&](int64_t begin, int64_t end) {
    const Tensor out = side.put(poisoned_tensor(x.dtype(), {end - begin, n})), x_rows = side.put(x.rows(begin, end));
    if (silu) {
      ops.linear_silu_and_mul(side.stream(), {.x = x_rows,
                                              .weight = &weight(side),
                                              .bias = Tensor(),
                                              .gate_up = side.put(poisoned_tensor(x.dtype(), {end - begin, 2 * n})),
                                              .out = out});
    } else {
      ops.linear(side.stream(), {.x = x_rows, .weight = &weight(side), .bias = Tensor(), .out = out});
    }
    HostTensor result = side.get(out);
    side.clear();
    return result;
  };
  const HostTensor whole = rows(0, max_m);
  for (const int64_t m : sizes) {
    for (const int64_t begin : {int64_t{0}, int64_t{7}, max_m - m}) {
      const std::string label =
          fmt::format("rows {} to {} of {}, n {} k {}{}", begin, begin + m, max_m, n, k, silu ? " silu" : "");
      family.check(side.name_case(label),
                   equal_bits("out", rows(begin, begin + m), whole.view().rows(begin, begin + m)));
    }
  }
}

}  // namespace

void check_linear_invariance(Family& family, Side& sides, const Tensor& x, int64_t n, bool silu,
                             const PutWeight& weight, std::span<const int64_t> sizes) {
  for (Side* side : sides.all()) check_invariance_on(family, *side, x, n, silu, weight, sizes);
}

}  // namespace spate::conformance
