// Of a deterministic device: a row has the same bits alone and in any batch; a prompt the same whole and in chunks.
#include <cmath>
#include <cstring>

#include "backend/conformance/attention_rig.h"
#include "backend/conformance/linear_rig.h"

namespace spate::conformance {
namespace {

void add_linear_invariance(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("batch invariance of linear {}", act_name(act)));
  if (!family.selected()) return;
  const Codes codes = act == DType::kF32 ? Codes::kF32 : Codes::kBf16;
  for (const auto& [n, k] : {std::pair{33, 70}, std::pair{64, 1056}, std::pair{20, 2080}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(n + k));
    const HostTensor x = random_tensor(rng, act, {300, k}), w = random_tensor(rng, act, {n, k}, 0.05f);
    const HostTensor gate_up = random_tensor(rng, act, {96, k}, 0.05f);
    check_linear_invariance(family, sides.deterministic, x, n, false,
                            [&](Side& side) -> const PackedWeight& { return side.put_weight(w, codes); });
    check_linear_invariance(family, sides.deterministic, x, 48, true,
                            [&](Side& side) -> const PackedWeight& { return side.put_weight(gate_up, codes); });
  }
}

// A product so wide and long that a back-end may cut its K, write its output past the caches and divide it into items
// of an odd number of column blocks, on up to three threads. AMX does: 416 rows of 2,048 inputs do not stay in its L2,
// and a third of the output is over 1 MB.
void add_wide_linear_invariance(Report& report, Sides sides) {
  Family family(report, "batch invariance of wide linear_silu_and_mul bf16");
  if (!family.selected()) return;
  constexpr int64_t kRows = 416, kOut = 3808, kIn = 2048;
  Rng rng(test_seed(), 416);
  const HostTensor x = random_tensor(rng, DType::kBf16, {kRows, kIn}), gate_up(DType::kBf16, {2 * kOut, kIn});
  // Rows of few values repeat after 101 of them, a prime: equal rows lie in unequal places of a block.
  const HostTensor few = random_tensor(rng, DType::kBf16, {101, kIn}, 0.05f);
  for (int64_t n = 0; n < 2 * kOut; ++n) {
    std::memcpy(gate_up.view().rows(n, n + 1).raw(), few.view().rows(n % 101, n % 101 + 1).raw(), kIn * sizeof(Bf16));
  }
  constexpr int64_t kSizes[] = {1, 17, 64};
  check_linear_invariance(
      family, sides.deterministic, x, kOut, true,
      [&](Side& side) -> const PackedWeight& { return side.put_weight(gate_up, Codes::kBf16); }, kSizes);
}

void add_norm_invariance(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("batch invariance of rms_norm {}", act_name(act)));
  if (!family.selected()) return;
  for (const int64_t width : {100, 1024, 5120}) {
    Rng rng(test_seed(), static_cast<uint64_t>(width));
    const HostTensor x = random_tensor(rng, act, {200, width}), weight = random_tensor(rng, act, {width});
    const auto rows = [&](Side& side, int64_t begin, int64_t end) {
      const Tensor out = side.put(poisoned_tensor(act, {end - begin, width}));
      side.ops().rms_norm(
          side.stream(),
          {.x = side.put(x.view().rows(begin, end)), .weight = side.put(weight), .eps = 1e-6f, .out = out});
      HostTensor result = side.get(out);
      side.clear();
      return result;
    };
    for (Side* side : sides.deterministic.all()) {
      const HostTensor whole = rows(*side, 0, 200);
      for (const int64_t i : {0, 1, 63, 199}) {
        family.check(side->name_case(fmt::format("row {} of width {}", i, width)),
                     equal_bits("out", rows(*side, i, i + 1), whole.view().rows(i, i + 1)));
      }
    }
  }
}

void check_chunks(Family& family, Side& sides, const AttentionData& data, std::initializer_list<int64_t> chunks,
                  const std::string& label) {
  for (Side* side : sides.all()) {
    const HostTensor whole = run_attention(*side, data);
    side->clear();
    for (const int64_t chunk : chunks) {
      family.check(side->name_case(fmt::format("chunks of {}, {}", chunk, label)),
                   equal_bits("out", run_attention(*side, data, chunk), whole));
      side->clear();
    }
  }
}

void add_attention_invariance(Report& report, Sides sides, DType act, DType kv_dtype) {
  Family family(report,
                fmt::format("batch invariance of attention_paged {} over {}", act_name(act), dtype_name(kv_dtype)));
  if (!family.selected()) return;
  struct Case {
    int window;
    int64_t kv_block_size;
    float q_magnitude, k_magnitude = 1, v_magnitude = 1;
  };
  // Maxima that hardly move, and that do; probabilities that are denormal; then products of an int8 cache that are,
  // whose factors kernels scale in different ways: of scores, and of values.
  for (const auto& [window, kv_block_size, q_magnitude, k_magnitude, v_magnitude] : {Case{0, 16, 1},
                                                                                     {50, 16, 1},
                                                                                     {0, 32, 24},
                                                                                     {50, 32, 24},
                                                                                     {0, 32, 400},
                                                                                     {0, 16, 1e-7f, 1e7f},
                                                                                     {0, 32, 24, 1, 1e-33f}}) {
    AttentionShape shape{.act = act,
                         .kv_dtype = kv_dtype,
                         .num_kv_heads = 2,
                         .group_size = 3,
                         .head_dim = 64,
                         .kv_block_size = kv_block_size,
                         .window = window,
                         .seqs = {{300, 300}, {141, 70}, {131, 3}},
                         .q_magnitude = q_magnitude,
                         .k_magnitude = k_magnitude,
                         .v_magnitude = v_magnitude};
    const std::string label = fmt::format("window {}, blocks of {}, q, k, v times {}, {}, {}", window, kv_block_size,
                                          q_magnitude, k_magnitude, v_magnitude);
    check_chunks(family, sides.deterministic, make_attention_data(shape, 11), {1, 5, 16, 100, 128}, label);
    // Long sequences, whose sums may be cut among threads when there is little else to do.
    shape.seqs = {{2100, 45}, {1030, 20}};
    check_chunks(family, sides.deterministic, make_attention_data(shape, 12), {1, 4, 17}, "long sequences, " + label);
  }
}

}  // namespace

void add_invariance_cases(Report& report, Sides sides) {
  for (const DType act : kActs) {
    add_linear_invariance(report, sides, act);
    if (act == DType::kBf16) add_wide_linear_invariance(report, sides);
    add_norm_invariance(report, sides, act);
    add_attention_invariance(report, sides, act, act);
    if (sides.deterministic.device().supports_kv({.dtype = DType::kI8}))
      add_attention_invariance(report, sides, act, DType::kI8);
  }
}

}  // namespace spate::conformance
