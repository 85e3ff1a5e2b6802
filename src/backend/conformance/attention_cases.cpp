// attention_paged, kv_write, qk_norm_rope_kv_write, qk_norm_rope_attention, kv_copy_blocks. What a cache holds shows
// only through attention.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "backend/conformance/attention_rig.h"

namespace spate::conformance {
namespace {

// f32: scores of size 5 are off by some 2^-22, and so is their exp. bf16: a back-end may round the probabilities to bf16 for the product
// with v: each is off by at most 2^-9 of itself, their weighted sum by at most 2^-9 max|v|, max|v| = 3.5; then the result is rounded.
// Codes of a kI8 cache are the same on both sides, to the bit, so they add nothing.
Tolerance attention_tolerance(DType act, DType kv_dtype) {
  const bool exact = act == DType::kF32 && kv_dtype != DType::kBf16;
  return {.rel = ulp_of(act), .abs = exact ? 1e-5 : 0x1p-9 * 3.5};
}

void check_attention(Family& family, Sides sides, const AttentionShape& shape) {
  if (!family.selected()) return;
  const AttentionData data = make_attention_data(shape, static_cast<uint64_t>(shape.num_heads() * 1000 + shape.head_dim));
  family.compare(sides.actual, sides.expected, shape.label(), [&](Side& side) -> Outputs {
    Outputs outputs;
    outputs.push_back({"out", run_attention(side, data), attention_tolerance(shape.act, shape.kv_dtype)});
    return outputs;
  });
}

// Sequences of seq_len 0 at the end, with and without a query: what the others get must not change.
void check_dummies(Family& family, Sides sides, const AttentionShape& shape) {
  if (!family.selected()) return;
  int64_t num_tokens = 0;
  for (const SeqShape& seq : shape.seqs) num_tokens += seq.query_len;
  AttentionShape with_dummies = shape;
  for (const int64_t query_len : {0, 0, 1, 1, 0}) with_dummies.seqs.push_back({0, query_len});
  const AttentionData data = make_attention_data(with_dummies, 5);
  family.compare(sides.actual, sides.expected, with_dummies.label(), [&](Side& side) -> Outputs {
    const HostTensor out = run_attention(side, data);
    const Tensor rows = out.view().rows(0, num_tokens);
    HostTensor of_tokens(rows.dtype(), rows.dims());
    std::memcpy(of_tokens.view().raw(), rows.raw(), static_cast<size_t>(rows.num_bytes()));
    Outputs outputs;
    outputs.push_back({"out", std::move(of_tokens), attention_tolerance(shape.act, shape.kv_dtype)});
    return outputs;
  });
}

void add_attention(Report& report, Sides sides, DType act, DType kv_dtype) {
  const std::string suffix = fmt::format("{} over {}", act_name(act), dtype_name(kv_dtype));
  const AttentionShape base{.act = act, .kv_dtype = kv_dtype, .seqs = {}};
  {
    Family family(report, "attention_paged heads " + suffix);
    for (const int64_t head_dim : {32, 64, 80, 96, 128, 256}) {
      for (const int64_t num_kv_heads : {1, 3, 4, 8}) {
        for (const int64_t group_size : {1, 2, 4, 7}) {
          AttentionShape shape = base;
          shape.head_dim = head_dim;
          shape.num_kv_heads = num_kv_heads;
          shape.group_size = group_size;
          shape.seqs = {{19, 3}, {33, 1}};
          check_attention(family, sides, shape);
        }
      }
    }
  }
  {
    Family family(report, "attention_paged dummies " + suffix);
    for (const int window : {0, 20}) {
      AttentionShape shape = base;
      shape.num_kv_heads = 2;
      shape.group_size = 2;
      shape.window = window;
      for (const auto& seqs : std::vector<std::vector<SeqShape>>{{}, {{33, 1}, {20, 1}}, {{600, 40}, {17, 17}, {1, 1}}}) {
        shape.seqs = seqs;
        check_dummies(family, sides, shape);
      }
    }
  }
  {
    Family family(report, "attention_paged chunks " + suffix);
    for (const int64_t kv_block_size : {16, 32, 48, 64, 128}) {
      AttentionShape shape = base;
      shape.kv_block_size = kv_block_size;
      shape.num_kv_heads = 2;
      shape.group_size = 2;
      shape.head_dim = 32;
      const std::vector<std::vector<SeqShape>> batches = {
          {{1, 1}},
          {{17, 17}, {1, 1}, {130, 1}},
          {{128, 128}, {129, 2}, {127, 127}, {31, 15}},
          {{300, 33}, {64, 64}, {65, 1}, {257, 129}, {16, 16}},
          {{40, 0}, {20, 20}},  // a sequence without a query token in this step
      };
      for (const auto& seqs : batches) {
        shape.seqs = seqs;
        check_attention(family, sides, shape);
      }
    }
    AttentionShape longer = base;  // sums over long sequences may be cut and merged
    longer.num_kv_heads = 2;
    longer.group_size = 2;
    longer.head_dim = 64;
    longer.kv_block_size = 32;
    for (const int64_t seq_len : {1023, 1024, 1025, 2049, 3100}) {
      for (const int64_t query_len : {1, 2, 40}) {
        longer.seqs = {{seq_len, query_len}};
        check_attention(family, sides, longer);
        longer.seqs = {{70, 1}, {seq_len, query_len}, {1100, 90}};
        check_attention(family, sides, longer);
      }
    }
    if (act == DType::kBf16) {  // scores so far apart that maxima move and most probabilities vanish; f32 would need a wider tolerance
      longer.q_magnitude = 24;
      longer.seqs = {{300, 300}, {2049, 40}, {1100, 1}, {70, 3}};
      check_attention(family, sides, longer);
    }
    AttentionShape wide = base;  // several tiles of queries and of keys, the heads of a kv head in one tile
    wide.num_kv_heads = 2;
    wide.group_size = 4;
    wide.head_dim = 128;
    wide.kv_block_size = 16;
    for (const int window : {0, 150}) {
      wide.window = window;
      wide.seqs = {{1, 1}, {390, 150}, {513, 9}, {129, 129}};
      check_attention(family, sides, wide);
      wide.seqs = {{300, 260}};
      check_attention(family, sides, wide);
    }
    for (const int64_t head_dim : {64, 128}) {  // prompts beside many sequences that decode, which a kernel of their own may have
      AttentionShape beside = wide;
      beside.head_dim = head_dim;
      for (const int window : {0, 150}) {
        beside.window = window;
        beside.seqs.clear();
        for (int64_t i = 0; i < 40; ++i) beside.seqs.push_back({1 + i * 7919 % 900, i % 13 == 4 ? 0 : 1});
        for (const SeqShape& prompt : {SeqShape{33, 9}, {390, 150}, {1, 1}, {700, 300}}) beside.seqs.push_back(prompt);
        check_attention(family, sides, beside);
        check_dummies(family, sides, beside);
      }
    }
    AttentionShape empty = base;
    empty.seqs = {{5, 0}};
    check_attention(family, sides, empty);
  }
  {
    Family family(report, "attention_paged decode " + suffix);
    std::vector<SeqShape> ragged;  // which a kernel that deals keys to CTAs cuts anywhere
    for (int64_t i = 0; i < 60; ++i) ragged.push_back({1 + i * 7919 % 700, i % 9 == 4 ? 0 : 1});
    for (const int64_t head_dim : {64, 128}) {
      for (const int64_t group_size : {1, 4, 7, 12}) {
        AttentionShape shape = base;
        shape.num_kv_heads = 3;
        shape.group_size = group_size;
        shape.head_dim = head_dim;
        shape.seqs = {{5, 1}, {333, 1}, {1, 1}, {2049, 1}, {64, 0}, {77, 1}};
        check_attention(family, sides, shape);
        shape.kv_block_size = 64;
        shape.window = 100;
        check_attention(family, sides, shape);
      }
      AttentionShape shape = base;
      shape.num_kv_heads = 2;
      shape.group_size = 4;
      shape.head_dim = head_dim;
      shape.seqs = ragged;
      check_attention(family, sides, shape);
      shape.seqs = {{5000, 1}};
      check_attention(family, sides, shape);
      shape.seqs = {{9001, 1}};  // cut over more CTAs than a cluster has
      check_attention(family, sides, shape);
      for (const int64_t group_size : {1, 7, 12}) {  // few enough for a cluster each
        AttentionShape few = base;
        few.num_kv_heads = 2;
        few.group_size = group_size;
        few.head_dim = head_dim;
        few.seqs = {{1, 1}, {64, 0}, {2049, 1}};
        check_attention(family, sides, few);
        few.window = 500;
        check_attention(family, sides, few);
      }
      if (act == DType::kBf16) {
        shape.q_magnitude = 24;
        shape.seqs = {{2049, 1}, {300, 1}};
        check_attention(family, sides, shape);
      }
      // Scales of values that grow: a kernel may keep its sums in a unit that grows too. Equal lengths, with two
      // dummies: of 66 sequences the heads that are left are few less than the multiprocessors of a GPU.
      shape.q_magnitude = 1;
      shape.v_octaves = 30;
      for (const size_t num_seqs : {4, 40, 66}) {
        shape.seqs.assign(num_seqs, {777, 1});
        shape.seqs[1].query_len = shape.seqs.back().query_len = 0;
        check_attention(family, sides, shape);
      }
    }
  }
  {
    Family family(report, "attention_paged window " + suffix);
    for (const int window : {1, 7, 16, 64, 100, 1000}) {
      AttentionShape shape = base;
      shape.num_kv_heads = 2;
      shape.group_size = 3;
      shape.head_dim = 64;
      shape.window = window;
      shape.seqs = {{200, 70}, {17, 17}, {300, 1}, {130, 130}};
      check_attention(family, sides, shape);
      shape.seqs = {{1060, 60}};
      check_attention(family, sides, shape);
      shape.seqs = {{2080, 1}};
      check_attention(family, sides, shape);
    }
  }
}

// A kI8 cache holds exactly what quantize_activations() gives: heads of zeros, of tiny and of huge numbers, of ties, of one large element, and NaN.
// With one key the output is that key's v, dequantised: code x scale, rounded once.
void add_kv_codes(Report& report, Sides sides) {
  Family family(report, "kv_write codes of i8");
  if (!family.selected()) return;
  const int64_t head_dim = 64;
  for (const float magnitude : {0.0f, 1e-37f, 1e-30f, 1.0f, 127.0f, 1e30f, NAN, INFINITY}) {
    AttentionShape shape{.act = DType::kF32, .kv_dtype = DType::kI8, .num_kv_heads = 1, .group_size = 1, .head_dim = head_dim,
                         .kv_block_size = 16, .seqs = {{1, 1}}};
    AttentionData data = make_attention_data(shape, 3);
    for (int64_t d = 0; d < head_dim; ++d) {
      const bool odd = !std::isfinite(magnitude) && d != 5;  // one element that is not finite spoils its head
      data.k.span<float>()[static_cast<size_t>(d)] = 0.5f;
      data.v.span<float>()[static_cast<size_t>(d)] = odd ? 1.0f : magnitude * (d == 0 ? 1.0f : (static_cast<float>(d) - 32.5f) / 127.0f);
    }
    family.compare(sides.actual, sides.expected, fmt::format("values of {}", magnitude), [&](Side& side) -> Outputs {
      Outputs outputs;
      // The probability may be rounded together with the scale (2^-9), and is 1.
      outputs.push_back({"out", run_attention(side, data), {.rel = 1e-6, .abs = 0}});
      return outputs;
    });
  }
}

struct QkvCase {
  DType act, kv_dtype;
  int64_t num_tokens, num_heads, num_kv_heads, head_dim, rotary_dim;
  bool norm, interleaved;
  int64_t num_dummies = 0;  // of the tokens, the last ones: slot -1
  int64_t left = 0;         // columns before q in a row of qkv
};

// Runs the fused op or its decomposition on qkv rows, then attention of the last token over all of them.
Outputs run_qk_norm_rope_kv_write(Side& side, const QkvCase& c, bool decomposed) {
  Rng rng(test_seed(), static_cast<uint64_t>(c.num_tokens * 131 + c.num_heads * 17 + c.head_dim));
  const int64_t q_width = c.num_heads * c.head_dim, kv_width = c.num_kv_heads * c.head_dim;
  const int64_t max_positions = c.num_tokens + 5, kv_block_size = 16;
  const int64_t num_written = c.num_tokens - c.num_dummies;
  const Tensor qkv = side.put_padded(random_tensor(rng, c.act, {c.num_tokens, q_width + 2 * kv_width}), c.left, 0).view;
  const Tensor q_norm = side.put(random_tensor(rng, c.act, {c.head_dim})), k_norm = side.put(random_tensor(rng, c.act, {c.head_dim}));
  HostTensor cos_sin = random_tensor(rng, DType::kF32, {max_positions, c.rotary_dim}, 0.4f);
  HostTensor positions(DType::kI32, {c.num_tokens}), slots(DType::kI32, {c.num_tokens});
  const int64_t num_blocks = (c.num_tokens + kv_block_size - 1) / kv_block_size + 1;
  for (int64_t i = 0; i < c.num_tokens; ++i) {
    positions.span<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i + 2);
    slots.span<int32_t>()[static_cast<size_t>(i)] = i < num_written ? static_cast<int32_t>(i) : -1;
  }
  const Tensor q = qkv.columns(0, q_width).split_last(c.num_heads, c.head_dim);
  const Tensor k = qkv.columns(q_width, q_width + kv_width).split_last(c.num_kv_heads, c.head_dim);
  const Tensor v = qkv.columns(q_width + kv_width, q_width + 2 * kv_width).split_last(c.num_kv_heads, c.head_dim);
  const KvView kv = side.put_kv(
      {.num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .kv_block_size = kv_block_size, .dtype = c.kv_dtype}, num_blocks);
  const auto fused = side.ops().qk_norm_rope_kv_write;
  const auto op = decomposed || fused == nullptr ? decompositions().qk_norm_rope_kv_write : fused;
  op(side.stream(), {.q = q,
                     .k = k,
                     .v = v,
                     .q_norm = c.norm ? q_norm : Tensor(),
                     .k_norm = c.norm ? k_norm : Tensor(),
                     .eps = 1e-6f,
                     .positions = side.put(positions),
                     .cos_sin = side.put(cos_sin),
                     .interleaved = c.interleaved,
                     .slot_mapping = side.put(slots),
                     .kv = kv});
  Outputs outputs;
  // Norm (two roundings), then a rotation whose terms may cancel: an absolute share of |x| <= 3.5 x 3.5 too.
  outputs.push_back({"qkv", side.get(qkv.columns(0, q_width)), {.rel = 4 * ulp_of(c.act), .abs = 12 * ulp_of(c.act)}});
  if (num_written == 0) return outputs;

  HostTensor block_table(DType::kI32, {1, num_blocks}), seq_rows(DType::kI32, {1}), seq_lens(DType::kI32, {1}), cu(DType::kI32, {2});
  for (int64_t b = 0; b < num_blocks; ++b) block_table.span<int32_t>()[static_cast<size_t>(b)] = static_cast<int32_t>(b);
  seq_lens.span<int32_t>()[0] = static_cast<int32_t>(num_written);
  cu.span<int32_t>()[1] = 1;
  const Tensor out = side.put(poisoned_tensor(c.act, {1, c.num_heads, c.head_dim}));
  const Tensor probe = side.put(random_tensor(rng, c.act, {1, c.num_heads, c.head_dim}));  // the same query on both sides
  side.ops().attention_paged(side.stream(), {.q = probe,
                                             .kv = kv,
                                             .block_table = side.put(block_table),
                                             .seq_rows = side.put(seq_rows),
                                             .cu_seqlens_q = side.put(cu),
                                             .seq_lens = side.put(seq_lens),
                                             .max_query_len = 1,
                                             .max_seq_len = static_cast<int>(num_written),
                                             .softmax_scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                             .out = out});
  // A key that is off by a few bits moves a score by some 2^-7 x 4; the probabilities and the average of v follow. In a kI8 cache such a bit
  // may change a code, by 1/127 of the head's maximum, 3.5 x 3.5 at most.
  const bool coarse = c.act == DType::kBf16 || c.kv_dtype == DType::kI8;
  outputs.push_back({"attention", side.get(out), {.rel = 4 * ulp_of(c.act), .abs = coarse ? 0.1 : 1e-4}});
  return outputs;
}

void add_qk_norm_rope_kv_write(Report& report, Sides sides, DType act, DType kv_dtype) {
  Family family(report, fmt::format("qk_norm_rope_kv_write {}{}", act_name(act), kv_dtype == DType::kI8 ? " to i8" : ""));
  if (!family.selected()) return;
  const bool fused = sides.actual.ops().qk_norm_rope_kv_write != nullptr;
  for (const auto& [heads, kv_heads, head_dim, rotary_dim] :
       {std::tuple{1, 1, 32, 32}, std::tuple{6, 3, 64, 32}, std::tuple{4, 4, 80, 80}, std::tuple{14, 2, 128, 128},
        std::tuple{9, 3, 128, 128}, std::tuple{3, 1, 36, 32}, std::tuple{5, 5, 80, 20}, std::tuple{4, 2, 256, 64}}) {
    for (const int64_t num_tokens : {0, 1, 2, 17, 70, 300}) {
      if (num_tokens == 300 && head_dim != 128) continue;  // kernels of many tokens are for heads of 128
      for (const bool norm : {false, true}) {
        for (const bool interleaved : {false, true}) {
          QkvCase c{act, kv_dtype, num_tokens, heads, kv_heads, head_dim, rotary_dim, norm, interleaved};
          c.num_dummies = num_tokens == 17 || num_tokens == 300 ? 3 : 0;
          c.left = heads == 6 ? 5 : 0;  // no head starts where vectors may
          const std::string label = fmt::format("{} tokens, {} heads over {}, head_dim {}, rotary {}{}{}", num_tokens, heads, kv_heads,
                                                head_dim, rotary_dim, norm ? ", norm" : "", interleaved ? ", interleaved" : "");
          family.compare(sides.actual, sides.expected, label, [&](Side& side) { return run_qk_norm_rope_kv_write(side, c, false); });
          if (!fused) continue;
          family.compare(sides.actual, label + " against its decomposition",
                         [&](Side& side) { return run_qk_norm_rope_kv_write(side, c, false); },
                         [&](Side& side) { return run_qk_norm_rope_kv_write(side, c, true); });
        }
      }
    }
  }
}

// Two layers of a step of one query a sequence, over caches that have all keys but the step's: the fused op or its
// decomposition on rows of qkv. Then attention of other queries, which shows what the caches hold.
Outputs run_qk_norm_rope_attention(Side& side, const AttentionData& data, int64_t num_real, bool norm,
                                   bool decomposed) {
  constexpr int kNumLayers = 2;
  const AttentionShape& shape = data.shape;
  const int64_t num_seqs = shape.num_tokens(), head_dim = shape.head_dim, num_heads = shape.num_heads();
  const int64_t q_width = num_heads * head_dim, kv_width = shape.num_kv_heads * head_dim;
  Rng rng(test_seed(), static_cast<uint64_t>(num_seqs * 131 + num_heads * 17 + head_dim));
  HostTensor slots = copy_tensor(data.slots), positions(DType::kI32, {num_seqs}), step_slots(DType::kI32, {num_seqs});
  int64_t max_seq_len = 0, num_keys = 0;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t seq_len = shape.seqs[static_cast<size_t>(s)].seq_len;
    max_seq_len = std::max(max_seq_len, seq_len);
    num_keys += seq_len;
    positions.span<int32_t>()[static_cast<size_t>(s)] = static_cast<int32_t>(std::max<int64_t>(0, seq_len - 1));
    int32_t& slot = step_slots.span<int32_t>()[static_cast<size_t>(s)];
    slot = seq_len > 0 ? std::exchange(slots.span<int32_t>()[static_cast<size_t>(num_keys - 1)], -1) : -1;
  }
  const HostTensor cos_sin = random_tensor(rng, DType::kF32, {max_seq_len, head_dim}, 0.4f);
  const Tensor q_norm = side.put(random_tensor(rng, shape.act, {head_dim})),
               k_norm = side.put(random_tensor(rng, shape.act, {head_dim}));
  std::vector<QkNormRopeAttentionParams> layers;
  for (int layer_idx = 0; layer_idx < kNumLayers; ++layer_idx) {
    const KvView kv = side.put_kv(shape.kv_desc(), data.num_blocks);
    side.ops().kv_write(side.stream(), {.k = side.put(data.k).split_last(shape.num_kv_heads, head_dim),
                                        .v = side.put(data.v).split_last(shape.num_kv_heads, head_dim),
                                        .slot_mapping = side.put(slots),
                                        .kv = kv});
    const Tensor qkv = side.put(random_tensor(rng, shape.act, {num_seqs, q_width + 2 * kv_width}));
    QkNormRopeAttentionParams& p = layers.emplace_back();
    p.write = {.q = qkv.columns(0, q_width).split_last(num_heads, head_dim),
               .k = qkv.columns(q_width, q_width + kv_width).split_last(shape.num_kv_heads, head_dim),
               .v = qkv.columns(q_width + kv_width, q_width + 2 * kv_width).split_last(shape.num_kv_heads, head_dim),
               .q_norm = norm ? q_norm : Tensor(),
               .k_norm = norm ? k_norm : Tensor(),
               .eps = 1e-6f,
               .positions = side.put(positions),
               .cos_sin = side.put(cos_sin),
               .slot_mapping = side.put(step_slots),
               .kv = kv};
    p.attention = {.q = p.write.q,
                   .kv = kv,
                   .block_table = side.put(data.block_table),
                   .seq_rows = side.put(data.seq_rows),
                   .cu_seqlens_q = side.put(data.cu_seqlens_q),
                   .seq_lens = side.put(data.seq_lens),
                   .max_query_len = 1,
                   .max_seq_len = static_cast<int>(max_seq_len),
                   .softmax_scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                   .window = shape.window,
                   .out = side.put(poisoned_tensor(shape.act, {num_seqs, num_heads, head_dim}))};
  }
  const Tensor probe =
      side.put(random_tensor(rng, shape.act, {num_seqs, num_heads, head_dim}));  // the same queries on both sides
  const Tensor probe_out = side.put(poisoned_tensor(shape.act, {num_seqs, num_heads, head_dim}));
  const auto fused = side.ops().qk_norm_rope_attention;
  const auto op = decomposed || fused == nullptr ? decompositions().qk_norm_rope_attention : fused;
  for (const QkNormRopeAttentionParams& p : layers) op(side.stream(), p);
  // As for the cache of qk_norm_rope_kv_write, and q is off by as much.
  const bool coarse = shape.act == DType::kBf16 || shape.kv_dtype == DType::kI8;
  const Tolerance tolerance{.rel = 4 * ulp_of(shape.act), .abs = coarse ? 0.1 : 1e-4};
  Outputs outputs;
  for (QkNormRopeAttentionParams& p : layers) {
    outputs.push_back({"out", side.get(p.attention.out.rows(0, num_real)), tolerance});
    p.attention.q = probe;
    p.attention.out = probe_out;
    side.ops().attention_paged(side.stream(), p.attention);
    outputs.push_back({"attention", side.get(probe_out.rows(0, num_real)), tolerance});
  }
  return outputs;
}

void add_qk_norm_rope_attention(Report& report, Sides sides, DType act, DType kv_dtype) {
  Family family(report, fmt::format("qk_norm_rope_attention {} over {}", act_name(act), dtype_name(kv_dtype)));
  if (!family.selected()) return;
  struct Case {
    int64_t head_dim, num_kv_heads, group_size, num_seqs, longest;
    int window;
    bool norm;
    int64_t num_dummies;
  };
  for (const Case& c : {Case{128, 2, 4, 3, 200, 0, true, 0}, Case{128, 4, 8, 20, 700, 0, true, 3},
                        Case{128, 3, 2, 40, 300, 150, false, 0}, Case{128, 1, 10, 24, 900, 0, true, 0},
                        Case{64, 2, 7, 33, 500, 0, true, 2}, Case{64, 3, 1, 70, 60, 40, false, 0},
                        Case{128, 8, 1, 64, -256, 0, true, 0}, Case{96, 2, 2, 20, 100, 0, true, 0},
                        Case{128, 8, 4, 2, 2100, 0, false, 0}, Case{128, 4, 8, 4, 1500, 0, true, 0},
                        Case{128, 8, 4, 5, 3000, 0, true, 3}, Case{64, 4, 9, 7, 700, 300, true, 1},
                        Case{128, 4, 8, 16, -640, 0, true, 0}, Case{128, 1, 8, 15, 400, 0, true, 1}}) {
    AttentionShape shape{.act = act,
                         .kv_dtype = kv_dtype,
                         .num_kv_heads = c.num_kv_heads,
                         .group_size = c.group_size,
                         .head_dim = c.head_dim,
                         .window = c.window,
                         .seqs = {}};
    for (int64_t i = 0; i < c.num_seqs; ++i) {  // -n: all have n keys
      shape.seqs.push_back({c.longest < 0 ? -c.longest : 1 + i * 7919 % c.longest, 1});
    }
    for (int64_t i = 0; i < c.num_dummies; ++i) shape.seqs.push_back({0, 1});
    const AttentionData data = make_attention_data(shape, 5);
    const std::string label = shape.label() + (c.norm ? ", norm" : "");
    const auto run = [&](Side& side, bool decomposed) {
      return run_qk_norm_rope_attention(side, data, c.num_seqs, c.norm, decomposed);
    };
    family.compare(sides.actual, sides.expected, label, [&](Side& side) { return run(side, false); });
    if (sides.actual.ops().qk_norm_rope_attention == nullptr) continue;
    family.compare(
        sides.actual, label + " against its decomposition", [&](Side& side) { return run(side, false); },
        [&](Side& side) { return run(side, true); });
  }
}

// A sequence whose blocks were copied elsewhere reads the same.
void add_kv_copy_blocks(Report& report, Sides sides) {
  Family family(report, "kv_copy_blocks");
  if (!family.selected()) return;
  for (const auto& [act, kv_dtype] : {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBf16, DType::kBf16}, std::pair{DType::kBf16, DType::kI8}}) {
    if (!sides.actual.device().supports_kv({.dtype = kv_dtype})) continue;
    AttentionShape shape{.act = act, .kv_dtype = kv_dtype, .num_kv_heads = 2, .group_size = 2, .head_dim = 64, .kv_block_size = 16, .seqs = {{37, 3}}};
    const AttentionData data = make_attention_data(shape, 5);
    const int64_t blocks = data.block_table.view().dim(1), row = data.seq_rows.view().data<int32_t>()[0];
    const auto run = [&, dtype = act](Side& side, bool copied) -> Outputs {
      const KvView kv = side.put_kv(shape.kv_desc(), data.num_blocks + blocks);
      const Tensor slots = side.put(data.slots);
      side.ops().kv_write(side.stream(), {.k = side.put(data.k).split_last(shape.num_kv_heads, shape.head_dim),
                                          .v = side.put(data.v).split_last(shape.num_kv_heads, shape.head_dim),
                                          .slot_mapping = slots,
                                          .kv = kv});
      HostTensor table = copy_tensor(data.block_table), src_dst(DType::kI32, {blocks, 2});
      for (int64_t b = 0; b < blocks; ++b) {
        int32_t& entry = table.span<int32_t>()[static_cast<size_t>(row * blocks + b)];
        const auto target = static_cast<int32_t>(data.num_blocks + blocks - 1 - b);
        src_dst.span<int32_t>()[static_cast<size_t>(2 * b)] = entry;
        src_dst.span<int32_t>()[static_cast<size_t>(2 * b + 1)] = target;
        if (copied) entry = target;
      }
      if (copied) {
        side.ops().kv_copy_blocks(side.stream(), {.kv = kv, .src_dst = side.put(HostTensor(DType::kI32, {0, 2}))});
        side.ops().kv_copy_blocks(side.stream(), {.kv = kv, .src_dst = side.put(src_dst)});
      }
      const Tensor out = side.put(poisoned_tensor(dtype, {3, shape.num_heads(), shape.head_dim}));
      side.ops().attention_paged(side.stream(), {.q = side.put(data.q).split_last(shape.num_heads(), shape.head_dim),
                                                 .kv = kv,
                                                 .block_table = side.put(table),
                                                 .seq_rows = side.put(data.seq_rows),
                                                 .cu_seqlens_q = side.put(data.cu_seqlens_q),
                                                 .seq_lens = side.put(data.seq_lens),
                                                 .max_query_len = 3,
                                                 .max_seq_len = 37,
                                                 .softmax_scale = 0.125f,
                                                 .out = out});
      Outputs outputs;
      outputs.push_back({"out", side.get(out), {}});
      return outputs;
    };
    const std::string label = fmt::format("{} over {}", act_name(act), dtype_name(kv_dtype));
    family.compare(sides.actual, label, [&](Side& side) { return run(side, true); },
                   [&](Side& side) { return run(side, false); });
  }
}

// Blocks are bytes to the copy: those of a latent cache, which no op reads yet, hold what they must and move whole.
void add_latent_blocks(Report& report, Sides sides) {
  Family family(report, "kv_copy_blocks latent");
  if (!family.selected()) return;
  constexpr int64_t kNumBlocks = 5;
  const std::vector<int32_t> copies = {4, 0, 1, 3};
  for (const auto& [kv_lora_rank, qk_rope_head_dim] : {std::pair{512, 64}, std::pair{48, 16}}) {
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      const KvLayerDesc desc{.kind = KvKind::kLatent,
                             .kv_lora_rank = kv_lora_rank,
                             .qk_rope_head_dim = qk_rope_head_dim,
                             .kv_block_size = 16,
                             .dtype = dtype};
      const std::string label = fmt::format("{} + {} of {}", kv_lora_rank, qk_rope_head_dim, dtype_name(dtype));
      Side& side = sides.actual;
      const KvView kv = side.put_kv(desc, kNumBlocks);
      const int64_t least = desc.kv_block_size * desc.latent_width() * dtype_bytes(dtype);
      family.check(label, kv.block_bytes >= least ? "" : fmt::format("{} bytes, needs {}", kv.block_bytes, least));
      HostTensor expected(DType::kU8, {kNumBlocks, kv.block_bytes}), actual(DType::kU8, {kNumBlocks, kv.block_bytes});
      Rng rng(test_seed());
      for (uint8_t& byte : expected.span<uint8_t>()) byte = static_cast<uint8_t>(rng.below(256));
      const auto bytes = static_cast<size_t>(kNumBlocks * kv.block_bytes);
      side.device().copy_to_device(side.stream(), kv.data, expected.view().raw(), bytes);
      HostTensor src_dst(DType::kI32, {2, 2});
      std::copy(copies.begin(), copies.end(), src_dst.span<int32_t>().begin());
      side.ops().kv_copy_blocks(side.stream(), {.kv = kv, .src_dst = side.put(src_dst)});
      side.device().copy_to_host(side.stream(), actual.view().raw(), kv.data, bytes);
      side.device().synchronize(side.stream());
      for (size_t i = 0; i < copies.size(); i += 2) {
        std::copy_n(expected.span<uint8_t>().data() + copies[i] * kv.block_bytes, kv.block_bytes,
                    expected.span<uint8_t>().data() + copies[i + 1] * kv.block_bytes);
      }
      family.check(label, equal_bits("blocks", actual, expected));
      side.clear();
    }
  }
}

}  // namespace

void add_attention_cases(Report& report, Sides sides) {
  const bool codes = sides.actual.device().supports_kv({.dtype = DType::kI8});
  add_attention(report, sides, DType::kBf16, DType::kBf16);
  add_attention(report, sides, DType::kF32, DType::kF32);
  if (codes) {
    for (const DType act : kActs) add_attention(report, sides, act, DType::kI8);
    add_kv_codes(report, sides);
  }
  for (const DType act : kActs) {
    add_qk_norm_rope_kv_write(report, sides, act, act);
    if (codes) add_qk_norm_rope_kv_write(report, sides, act, DType::kI8);
    add_qk_norm_rope_attention(report, sides, act, act);
    if (codes) add_qk_norm_rope_attention(report, sides, act, DType::kI8);
  }
  add_kv_copy_blocks(report, sides);
  add_latent_blocks(report, sides);
}

}  // namespace spate::conformance
