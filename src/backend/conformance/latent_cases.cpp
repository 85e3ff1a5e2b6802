// The latent cache, attention over it and products with a matrix for each head.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "backend/conformance/rig.h"
#include "backend/layer_products.h"

namespace spate::conformance {
namespace {

struct LatentBatch {
  DType act, kv_dtype;
  int64_t num_heads, kv_lora_rank, qk_rope_head_dim, kv_block_size;
  std::vector<std::pair<int64_t, int64_t>> seqs;  // seq_len, query_len; seq_len 0: a dummy
  float q_magnitude = 1;

  int64_t width() const { return kv_lora_rank + qk_rope_head_dim; }
  int64_t num_queries() const {
    int64_t n = 0;
    for (const auto& [seq_len, query_len] : seqs) n += query_len;
    return n;
  }
};

Tensor put_ints(Side& side, const std::vector<int32_t>& values) {
  HostTensor host(DType::kI32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), host.span<int32_t>().begin());
  return side.put(host);
}

struct LatentCache {
  KvView kv;
  Tensor block_table;  // of sequence i row num_seqs - 1 - i
};

// The latent vectors of all sequences, written one sequence a call. Blocks lie in falling order, the rows of the table
// too.
LatentCache put_cache(Side& side, const LatentBatch& s, Rng& rng) {
  const auto num_seqs = static_cast<int64_t>(s.seqs.size());
  int64_t max_blocks = 1, num_blocks = 1;
  for (const auto& [seq_len, query_len] : s.seqs) {
    const int64_t blocks = (seq_len + s.kv_block_size - 1) / s.kv_block_size;
    max_blocks = std::max(max_blocks, blocks);
    num_blocks += blocks;
  }
  const KvView kv = side.put_kv({.kind = KvKind::kLatent,
                                 .kv_lora_rank = s.kv_lora_rank,
                                 .qk_rope_head_dim = s.qk_rope_head_dim,
                                 .kv_block_size = s.kv_block_size,
                                 .dtype = s.kv_dtype},
                                num_blocks);
  HostTensor table(DType::kI32, {num_seqs, max_blocks});
  int32_t next_block = static_cast<int32_t>(num_blocks) - 1;
  for (int64_t i = 0; i < num_seqs; ++i) {
    const int64_t seq_len = s.seqs[static_cast<size_t>(i)].first;
    int32_t* blocks = table.span<int32_t>().data() + (num_seqs - 1 - i) * max_blocks;
    std::vector<int32_t> slots;
    for (int64_t t = 0; t < seq_len; ++t) {
      if (t % s.kv_block_size == 0) blocks[t / s.kv_block_size] = next_block--;
      slots.push_back(static_cast<int32_t>(blocks[t / s.kv_block_size] * s.kv_block_size + t % s.kv_block_size));
    }
    const HostTensor latent = random_tensor(rng, s.act, {seq_len + 1, s.width()});
    slots.push_back(-1);
    side.ops().latent_write(
        side.stream(), {.latent = side.put_padded(latent, 8, 0).view, .slot_mapping = put_ints(side, slots), .kv = kv});
  }
  return {kv, side.put(table)};
}

constexpr int64_t kTogether = 0;

// The last query_len tokens of each sequence attend, in steps of at most `chunk`, or those of all sequences in one call
// (kTogether). `num_repeats`: calls behind each other with the same arguments, as those of a model's layers have; the
// last one's result counts.
HostTensor attend(Side& side, const LatentBatch& s, int64_t chunk, int num_repeats = 0) {
  const auto num_seqs = static_cast<int64_t>(s.seqs.size());
  Rng rng(test_seed(), static_cast<uint64_t>(s.num_heads * 100 + s.kv_lora_rank));
  const auto [kv, block_table] = put_cache(side, s, rng);
  const int64_t n = s.num_queries();
  const float size = s.q_magnitude / std::sqrt(static_cast<float>(s.width()));
  const HostTensor q = random_tensor(rng, s.act, {n, s.num_heads * s.width()}, size);
  const HostTensor poison = poisoned_tensor(s.act, {n, s.num_heads * s.kv_lora_rank});
  const Tensor all_q = side.put(q), out = side.put(poison), earlier = side.put(poison);
  const auto run = [&](int64_t begin, const std::vector<int32_t>& rows, const std::vector<int32_t>& cu_seqlens_q,
                       const std::vector<int32_t>& seq_lens) {
    const Tensor queries = all_q.rows(begin, begin + cu_seqlens_q.back()).split_last(s.num_heads, s.width());
    int32_t max_query_len = 0;
    for (size_t i = 0; i < rows.size(); ++i)
      max_query_len = std::max(max_query_len, cu_seqlens_q[i + 1] - cu_seqlens_q[i]);
    AttentionLatentParams params{
        .q_latent = queries.columns(0, s.kv_lora_rank),
        .q_rope = queries.columns(s.kv_lora_rank, s.width()),
        .kv = kv,
        .block_table = block_table,
        .seq_rows = put_ints(side, rows),
        .cu_seqlens_q = put_ints(side, cu_seqlens_q),
        .seq_lens = put_ints(side, seq_lens),
        .max_query_len = max_query_len,
        .max_seq_len = *std::max_element(seq_lens.begin(), seq_lens.end()),
        .softmax_scale = 1.0f,
        .out = earlier.rows(begin, begin + cu_seqlens_q.back()).split_last(s.num_heads, s.kv_lora_rank)};
    for (int i = 0; i < num_repeats; ++i) side.ops().attention_latent(side.stream(), params);
    params.out = out.rows(begin, begin + cu_seqlens_q.back()).split_last(s.num_heads, s.kv_lora_rank);
    side.ops().attention_latent(side.stream(), params);
  };
  int64_t first = 0;
  std::vector<int32_t> all_rows, all_cu_seqlens_q = {0}, all_seq_lens;
  for (int64_t i = 0; i < num_seqs; ++i) {
    const auto [seq_len, query_len] = s.seqs[static_cast<size_t>(i)];
    const auto row = static_cast<int32_t>(num_seqs - 1 - i);
    for (int64_t done = 0; chunk != kTogether && done < query_len; done += chunk) {
      const int64_t count = std::min(chunk, query_len - done);
      const auto end = static_cast<int32_t>(seq_len == 0 ? 0 : seq_len - query_len + done + count);
      run(first + done, {row}, {0, static_cast<int32_t>(count)}, {end});
    }
    first += query_len;
    all_rows.push_back(row);
    all_cu_seqlens_q.push_back(static_cast<int32_t>(first));
    all_seq_lens.push_back(static_cast<int32_t>(seq_len));
  }
  if (chunk == kTogether) run(0, all_rows, all_cu_seqlens_q, all_seq_lens);
  HostTensor result = side.get(out);
  // Queries of dummies are unspecified.
  int64_t row = 0;
  for (const auto& [seq_len, query_len] : s.seqs) {
    const Tensor rows = result.view().rows(row, row + query_len);
    if (seq_len == 0) std::memset(rows.raw(), 0, static_cast<size_t>(rows.num_bytes()));
    row += query_len;
  }
  return result;
}

void add_latent_attention(Report& report, Sides sides, DType act, DType kv_dtype) {
  Family family(report, fmt::format("attention_latent {} over {}", act_name(act), dtype_name(kv_dtype)));
  if (!family.selected()) return;
  std::vector<std::pair<int64_t, int64_t>> short_seqs = {{190, 1}};
  for (int64_t i = 0; i < 100; ++i) short_seqs.emplace_back(i == 40 ? 0 : 65 + i % 64, 1);
  std::vector<std::pair<int64_t, int64_t>> cut_seqs;  // each CTA has parts of two
  for (int64_t i = 0; i < 20; ++i) cut_seqs.emplace_back(i == 7 ? 0 : 310 + i, 1);
  const LatentBatch shapes[] = {
      {act, kv_dtype, 1, 16, 2, 16, {{1, 1}}},
      {act, kv_dtype, 5, 20, 8, 16, {{17, 17}, {0, 3}, {40, 1}, {33, 5}}},
      {act, kv_dtype, 16, 64, 16, 32, {{65, 3}, {15, 15}}, 24},
      {act, kv_dtype, 9, 512, 64, 16, {{50, 2}}},
      // Several tiles of keys and of rows, in kernels that share them out.
      {act, kv_dtype, 16, 512, 64, 32, {{300, 1}, {0, 1}, {1, 1}, {64, 1}, {129, 1}}, 8},
      {act, kv_dtype, 40, 512, 64, 64, {{130, 4}, {70, 2}}},
      {act, kv_dtype, 20, 512, 64, 16, {{90, 30}, {33, 33}, {0, 2}}},
      // A sequence in many parts; many rows in parts; sequences that stay whole.
      {act, kv_dtype, 3, 512, 64, 64, {{5000, 1}}, 16},
      {act, kv_dtype, 3, 512, 64, 64, {{5000, 2}}, 16},
      {act, kv_dtype, 72, 512, 64, 16, {{600, 1}, {37, 1}}, 16},
      {act, kv_dtype, 14, 512, 64, 32, {{200, 16}, {193, 16}, {400, 16}, {256, 16}}},
      {act, kv_dtype, 4, 512, 64, 64, short_seqs},
      {act, kv_dtype, 66, 512, 64, 16, cut_seqs, 8},
  };
  for (const LatentBatch& shape : shapes) {
    const std::string label = fmt::format("{} heads of {} + {}, {} sequences", shape.num_heads, shape.kv_lora_rank,
                                          shape.qk_rope_head_dim, shape.seqs.size());
    family.compare(sides.actual, sides.expected, label, [&](Side& side) -> Outputs {
      Outputs outputs;
      // Sums of products of values of size 1, whose weights add up to 1; scores are off by some roundings of f32.
      // bf16: a back-end may round the weights to bf16 for the product with the vectors; over codes times a scale, so
      // that the largest is not exact either.
      const Tolerance tolerance{.rel = ulp_of(act),
                                .abs = act != DType::kBf16      ? 0x1p-14
                                       : kv_dtype == DType::kI8 ? 0x1p-9 * 5
                                                                : 0x1p-9 * 3.5};
      outputs.push_back({"out", attend(side, shape, kTogether, 1), tolerance});
      return outputs;
    });
    for (Side* side : sides.deterministic.all()) {
      const HostTensor whole = attend(*side, shape, 1000);
      side->clear();
      for (const int64_t chunk : {1, 2, 7}) {
        family.check(side->name_case(fmt::format("{}, chunks of {}", label, chunk)),
                     equal_bits("out", attend(*side, shape, chunk), whole));
        side->clear();
      }
    }
  }
}

Codes codes_of(DType act) { return act == DType::kF32 ? Codes::kF32 : Codes::kBf16; }

// --- the expanded form ---

// Heads over a LatentBatch of tokens in one call. The first sequences of the step are not the op's.
struct ExpandedBatch {
  LatentBatch latent;
  int64_t qk_nope_head_dim, v_head_dim;
  int32_t num_tokens_before = 0;

  int64_t qk_head_dim() const { return qk_nope_head_dim + latent.qk_rope_head_dim; }
  int64_t rows_of_head() const { return qk_nope_head_dim + v_head_dim; }
  std::string label() const {
    return fmt::format("{} heads of {} + {} and {}, {} sequences, the first of {} with {} new", latent.num_heads,
                       qk_nope_head_dim, latent.qk_rope_head_dim, v_head_dim, latent.seqs.size(), latent.seqs[0].first,
                       latent.seqs[0].second);
  }
  // Scores move by the rounding of k, a probability by as much of itself; v and the probabilities are rounded too.
  Tolerance tolerance() const {
    if (latent.act == DType::kF32) return {.rel = ulp_of(latent.act), .abs = 0x1p-14};
    return {.rel = ulp_of(latent.act), .abs = (1 + latent.q_magnitude) * 0x1p-8 * 3.5};
  }
};

// W_uk and W_uv of all heads, [num_heads * rows_of_head, kv_lora_rank].
HostTensor up_projection(const ExpandedBatch& s) {
  Rng rng(test_seed(), static_cast<uint64_t>(s.latent.num_heads * 10 + s.v_head_dim));
  return random_tensor(rng, s.latent.act, {s.latent.num_heads * s.rows_of_head(), s.latent.kv_lora_rank},
                       1 / std::sqrt(static_cast<float>(s.latent.kv_lora_rank)));
}

HostTensor random_queries(const ExpandedBatch& s) {
  Rng rng(test_seed(), static_cast<uint64_t>(s.latent.num_heads * 100 + s.v_head_dim));
  return random_tensor(rng, s.latent.act, {s.latent.num_queries(), s.latent.num_heads * s.qk_head_dim()},
                       s.latent.q_magnitude / std::sqrt(static_cast<float>(s.qk_head_dim())));
}

// Tokens of no sequence stand before the others; their rows of the output must keep what they hold.
HostTensor attend_expanded(Side& side, const ExpandedBatch& s) {
  const LatentBatch& latent = s.latent;
  Rng rng(test_seed(), 7);
  const auto [kv, block_table] = put_cache(side, latent, rng);
  const HostTensor q = random_queries(s);
  const int64_t n = latent.num_queries(), before = s.num_tokens_before, width = q.view().dim(1);
  HostTensor padded_q(latent.act, {before + n, width});
  std::memset(padded_q.view().raw(), 0, static_cast<size_t>(padded_q.view().num_bytes()));
  std::memcpy(padded_q.view().rows(before, before + n).raw(), q.view().raw(),
              static_cast<size_t>(q.view().num_bytes()));
  HostTensor out(latent.act, {before + n, latent.num_heads * s.v_head_dim});
  std::memset(out.view().raw(), 0, static_cast<size_t>(out.view().num_bytes()));
  const Tensor out_device = side.put(out);
  std::vector<int32_t> rows, cu_seqlens_q = {s.num_tokens_before}, seq_lens;
  int32_t num_keys = 0;
  for (const auto& [seq_len, query_len] : latent.seqs) {
    rows.push_back(static_cast<int32_t>(latent.seqs.size() - 1 - rows.size()));
    cu_seqlens_q.push_back(cu_seqlens_q.back() + static_cast<int32_t>(query_len));
    seq_lens.push_back(static_cast<int32_t>(seq_len));
    num_keys += static_cast<int32_t>(seq_len);
  }
  side.ops().attention_latent_expanded(side.stream(),
                                       {.q = side.put(padded_q).split_last(latent.num_heads, s.qk_head_dim()),
                                        .kv_up = &side.put_weight(up_projection(s), codes_of(latent.act)),
                                        .kv = kv,
                                        .block_table = block_table,
                                        .seq_rows = put_ints(side, rows),
                                        .cu_seqlens_q = put_ints(side, cu_seqlens_q),
                                        .seq_lens = put_ints(side, seq_lens),
                                        .num_keys = num_keys,
                                        .softmax_scale = 1.0f,
                                        .out = out_device.split_last(latent.num_heads, s.v_head_dim)});
  return side.get(out_device);
}

// The same by linear_heads and attention_latent.
HostTensor attend_absorbed(Side& side, const ExpandedBatch& s) {
  const LatentBatch& latent = s.latent;
  const int64_t n = latent.num_queries(), num_heads = latent.num_heads, rank = latent.kv_lora_rank;
  Rng rng(test_seed(), 7);
  const auto [kv, block_table] = put_cache(side, latent, rng);
  const HostTensor up = up_projection(s);
  HostTensor k_up(latent.act, {num_heads * rank, s.qk_nope_head_dim}),
      v_up(latent.act, {num_heads * s.v_head_dim, rank});
  const int64_t bytes = dtype_bytes(latent.act);
  const auto copy = [bytes](const HostTensor& to, int64_t i, const HostTensor& from, int64_t j, int64_t count) {
    std::memcpy(static_cast<char*>(to.view().raw()) + i * bytes,
                static_cast<const char*>(from.view().raw()) + j * bytes, static_cast<size_t>(count * bytes));
  };
  for (int64_t h = 0; h < num_heads; ++h) {
    const int64_t first = h * s.rows_of_head();
    for (int64_t r = 0; r < s.qk_nope_head_dim; ++r) {
      for (int64_t d = 0; d < rank; ++d)
        copy(k_up, (h * rank + d) * s.qk_nope_head_dim + r, up, (first + r) * rank + d, 1);
    }
    copy(v_up, h * s.v_head_dim * rank, up, (first + s.qk_nope_head_dim) * rank, s.v_head_dim * rank);
  }
  const Tensor q = side.put(random_queries(s)).split_last(num_heads, s.qk_head_dim());
  const Tensor q_latent = side.put(HostTensor(latent.act, {n, num_heads * rank})).split_last(num_heads, rank);
  const Tensor out_latent = side.put(HostTensor(latent.act, {n, num_heads * rank})).split_last(num_heads, rank);
  const Tensor out = side.put(HostTensor(latent.act, {n, num_heads * s.v_head_dim}));
  const WeightSpec spec{.codes = codes_of(latent.act)};
  std::vector<int32_t> rows, cu_seqlens_q = {0}, seq_lens;
  for (const auto& [seq_len, query_len] : latent.seqs) {
    rows.push_back(static_cast<int32_t>(latent.seqs.size() - 1 - rows.size()));
    cu_seqlens_q.push_back(cu_seqlens_q.back() + static_cast<int32_t>(query_len));
    seq_lens.push_back(static_cast<int32_t>(seq_len));
  }
  side.ops().linear_heads(
      side.stream(),
      {.x = q.columns(0, s.qk_nope_head_dim), .weight = &side.put_matrices(k_up, spec, num_heads), .out = q_latent});
  side.ops().attention_latent(side.stream(), {.q_latent = q_latent,
                                              .q_rope = q.columns(s.qk_nope_head_dim, s.qk_head_dim()),
                                              .kv = kv,
                                              .block_table = block_table,
                                              .seq_rows = put_ints(side, rows),
                                              .cu_seqlens_q = put_ints(side, cu_seqlens_q),
                                              .seq_lens = put_ints(side, seq_lens),
                                              .max_query_len = static_cast<int>(n),
                                              .max_seq_len = *std::max_element(seq_lens.begin(), seq_lens.end()),
                                              .softmax_scale = 1.0f,
                                              .out = out_latent});
  side.ops().linear_heads(side.stream(), {.x = out_latent,
                                          .weight = &side.put_matrices(v_up, spec, num_heads),
                                          .out = out.split_last(num_heads, s.v_head_dim)});
  return side.get(out);
}

void add_expanded(Report& report, Sides sides, DType act) {
  const bool is_scalar = sides.actual.device().kind() == sides.expected.device().kind();
  const auto outputs = [](HostTensor out, const ExpandedBatch& batch) {
    Outputs all;
    all.push_back({"out", std::move(out), batch.tolerance()});
    return all;
  };
  const ExpandedBatch small[] = {
      {{act, act, 3, 20, 4, 16, {{1, 1}, {17, 17}, {0, 0}, {40, 9}, {0, 2}}}, 12, 10, 5},
      {{act, act, 2, 512, 64, 16, {{150, 140}}}, 128, 128},
      {{act, act, 2, 512, 64, 64, {{131, 131}, {70, 20}, {0, 0}, {270, 3}}, 4}, 128, 128, 70},
  };
  // What is compared with the other form alone: heads in parts, whose keys and values are made one part after the
  // other; heads in sections.
  const ExpandedBatch large[] = {
      {{act, act, 9, 512, 64, 64, {{66000, 300}}}, 128, 128},
      {{act, act, 16, 512, 64, 32, {{17011, 17000}}, 4}, 128, 128, 3},
      {{act, act, 16, 512, 64, 64, {{3000, 3000}, {1290, 640}, {257, 257}}, 4}, 128, 128, 40},
  };
  // The same with less work, for back-ends that expand few tokens already: their absorbed form is slow, and their parts
  // are small.
  const ExpandedBatch fewer_tokens[] = {
      {{act, act, 9, 512, 64, 64, {{13000, 70}}}, 128, 128},
      {{act, act, 16, 512, 64, 32, {{1290, 200}, {257, 257}}, 4}, 128, 128, 40},
  };
  const auto min_query_len = [&](const ExpandedBatch& batch) {
    return sides.actual.device().min_expanded_query_len({.kv_lora_rank = batch.latent.kv_lora_rank,
                                                         .qk_nope_head_dim = batch.qk_nope_head_dim,
                                                         .qk_rope_head_dim = batch.latent.qk_rope_head_dim,
                                                         .v_head_dim = batch.v_head_dim,
                                                         .act_dtype = act});
  };
  const auto fits = [&](const ExpandedBatch& batch) { return min_query_len(batch) > 0; };
  if (!fits(small[1])) return;
  Family family(report, fmt::format("attention_latent_expanded {}", act_name(act)));
  if (!family.selected()) return;
  for (const ExpandedBatch& batch : small) {
    if (!fits(batch) || (is_scalar && batch.latent.kv_lora_rank > 100)) continue;
    family.compare(sides.actual, sides.expected, batch.label(),
                   [&](Side& side) { return outputs(attend_expanded(side, batch), batch); });
  }
  ExpandedBatch over_codes = small[2];
  over_codes.latent.kv_dtype = DType::kI8;
  const KvLayerDesc codes{.kind = KvKind::kLatent,
                          .kv_lora_rank = over_codes.latent.kv_lora_rank,
                          .qk_rope_head_dim = over_codes.latent.qk_rope_head_dim,
                          .kv_block_size = over_codes.latent.kv_block_size,
                          .dtype = DType::kI8};
  if (!is_scalar && fits(over_codes) && sides.actual.device().supports_kv(codes)) {
    family.compare(sides.actual, sides.expected, over_codes.label() + ", over codes",
                   [&](Side& side) { return outputs(attend_expanded(side, over_codes), over_codes); });
  }
  const auto compare_forms = [&](const ExpandedBatch& batch) {
    const auto expanded = [&](Side& side) {
      const HostTensor all = attend_expanded(side, batch);
      const Tensor rows = all.view().rows(batch.num_tokens_before, all.view().dim(0));
      HostTensor out(act, {rows.dim(0), rows.dim(1)});
      std::memcpy(out.view().raw(), rows.raw(), static_cast<size_t>(rows.num_bytes()));
      return outputs(std::move(out), batch);
    };
    family.compare(sides.actual, batch.label() + ", absorbed", expanded,
                   [&](Side& side) { return outputs(attend_absorbed(side, batch), batch); });
  };
  compare_forms(is_scalar ? ExpandedBatch{{act, act, 2, 16, 4, 16, {{30, 30}, {19, 7}}}, 8, 6, 3} : small[1]);
  if (is_scalar) return;
  const bool expands_early = min_query_len(fewer_tokens[0]) <= 128;
  const std::span<const ExpandedBatch> batches =
      expands_early ? std::span<const ExpandedBatch>(fewer_tokens) : std::span<const ExpandedBatch>(large);
  for (const ExpandedBatch& batch : batches) compare_forms(batch);
}

void add_linear_heads(Report& report, Sides sides, DType act) {
  Family family(report, fmt::format("linear_heads {}", act_name(act)));
  if (!family.selected()) return;
  const WeightSpec spec{.codes = codes_of(act)};
  for (const auto& [num_tokens, num_heads, n, k] : {std::tuple{0, 2, 16, 32},
                                                    {1, 1, 7, 5},
                                                    {3, 5, 20, 12},
                                                    {17, 4, 128, 64},
                                                    {40, 3, 33, 70},
                                                    {70, 3, 136, 128},
                                                    {1, 16, 512, 128},
                                                    {1, 16, 128, 512},
                                                    {1, 3, 38, 192},
                                                    {2, 3, 512, 128}}) {
    Rng rng(test_seed(), static_cast<uint64_t>(num_heads * 1000 + n));
    const HostTensor x = random_tensor(rng, act, {num_tokens, num_heads * (k + 8)});
    const HostTensor w = random_tensor(rng, act, {num_heads * n, k}, 1 / std::sqrt(static_cast<float>(k)));
    const int64_t heads = num_heads, in = k, out_features = n, rows = num_tokens;
    const int64_t first = num_tokens > 2 ? 4 : 0;  // columns before x: tiles take rows at multiples of 16 bytes
    family.compare(sides.actual, sides.expected, fmt::format("{} tokens, {} heads of {} x {}", rows, heads, n, k),
                   [&](Side& side) -> Outputs {
                     const Tensor out = side.put(poisoned_tensor(act, {rows, heads * (out_features + 4)}));
                     side.ops().linear_heads(side.stream(),
                                             {.x = side.put(x).split_last(heads, in + 8).columns(first, first + in),
                                              .weight = &side.put_matrices(w, spec, heads),
                                              .out = out.split_last(heads, out_features + 4).columns(0, out_features)});
                     Outputs outputs;
                     outputs.push_back({"out", side.get(out), {.rel = ulp_of(act), .abs = 0x1p-18}});
                     return outputs;
                   });
  }
}

// The fused op has the bits of its parts.
void add_norm_rope_write(Report& report, Sides sides) {
  Family family(report, "latent_norm_rope_write bf16");
  if (!family.selected() || sides.actual.ops().latent_norm_rope_write == nullptr) return;
  constexpr DType kAct = DType::kBf16;
  struct Shape {
    int64_t num_tokens, num_heads, rank, rope;
  };
  for (const auto& [n, num_heads, rank, rope] : {Shape{0, 2, 512, 64},
                                                 {1, 16, 512, 64},
                                                 {37, 16, 512, 64},
                                                 {5, 3, 40, 16},
                                                 {9, 128, 256, 32},
                                                 {700, 4, 1000, 64}}) {
    for (const bool interleaved : {false, true}) {
      Rng rng(test_seed(), static_cast<uint64_t>(n * 1009 + rank));
      const HostTensor q = random_tensor(rng, kAct, {n, num_heads * (rope + 8)}),
                       latent = random_tensor(rng, kAct, {n, rank + rope});
      const HostTensor norm = random_tensor(rng, kAct, {rank}),
                       cos_sin = random_tensor(rng, DType::kF32, {n + 3, rope});
      std::vector<int32_t> positions, slots;
      for (int64_t i = 0; i < n; ++i) {
        positions.push_back(static_cast<int32_t>(n - i));
        slots.push_back(i % 5 == 3 ? -1 : static_cast<int32_t>(n - 1 - i));
      }
      Side& side = sides.actual;
      const auto run = [&, n = n, num_heads = num_heads, rank = rank, rope = rope](Op<LatentNormRopeWriteParams> op) {
        const KvView kv = side.put_kv({.kind = KvKind::kLatent,
                                       .kv_lora_rank = rank,
                                       .qk_rope_head_dim = rope,
                                       .kv_block_size = 16,
                                       .dtype = kAct},
                                      (n + 15) / 16 + 1);
        const Tensor q_device = side.put(q);
        op(side.stream(), {.q_rope = q_device.split_last(num_heads, rope + 8).columns(8, 8 + rope),
                           .latent = side.put_activations(latent),
                           .norm = side.put(norm),
                           .eps = 1e-6f,
                           .positions = put_ints(side, positions),
                           .cos_sin = side.put(cos_sin),
                           .interleaved = interleaved,
                           .slot_mapping = put_ints(side, slots),
                           .kv = kv});
        return std::pair(side.get(q_device), side.get(Tensor(kv.data, kAct, {kv.num_blocks, kv.block_bytes / 2})));
      };
      const auto [fused_q, fused_cache] = run(side.ops().latent_norm_rope_write);
      const auto [q_parts, cache_parts] = run(decompositions().latent_norm_rope_write);
      const std::string label =
          fmt::format("{} tokens, {} heads, {} + {}{}", n, num_heads, rank, rope, interleaved ? ", interleaved" : "");
      family.check(side.name_case(label + ": q"), equal_bits("q", fused_q, q_parts));
      family.check(side.name_case(label + ": cache"), equal_bits("cache", fused_cache, cache_parts));
      side.clear();
    }
  }
}

struct TokenCase {
  int64_t num_heads, seq_len, qk_nope_head_dim, v_head_dim;
};

// Attention of the last token of a sequence with the products around it.
HostTensor attend_joined(Side& side, const TokenCase& c, bool decomposed) {
  constexpr DType kAct = DType::kBf16;
  constexpr int64_t kRank = 512, kRope = 64, kBlockSize = 16;
  Rng rng(test_seed(), static_cast<uint64_t>(c.num_heads * 1000 + c.seq_len));
  const LatentBatch batch{kAct, kAct, c.num_heads, kRank, kRope, kBlockSize, {{c.seq_len, 1}}};
  const auto [kv, block_table] = put_cache(side, batch, rng);
  const int64_t q_width = c.num_heads * (c.qk_nope_head_dim + kRope), last = c.seq_len - 1;
  const int64_t last_block = (c.seq_len + kBlockSize - 1) / kBlockSize - last / kBlockSize;
  const HostTensor x = random_tensor(rng, kAct, {1, q_width + kRank + kRope}), norm = random_tensor(rng, kAct, {kRank}),
                   cos_sin = random_tensor(rng, DType::kF32, {c.seq_len, kRope});
  const HostTensor k_up =
      random_tensor(rng, kAct, {c.num_heads * kRank, c.qk_nope_head_dim}, 1 / std::sqrt(static_cast<float>(kRank)));
  const HostTensor v_up =
      random_tensor(rng, kAct, {c.num_heads * c.v_head_dim, kRank}, 1 / std::sqrt(static_cast<float>(kRank)));
  const Tensor x_device = side.put_activations(x);
  const Tensor q = x_device.columns(0, q_width).split_last(c.num_heads, c.qk_nope_head_dim + kRope);
  const auto room = [&](int64_t width) {
    return side.put_activations(poisoned_tensor(kAct, {1, c.num_heads * width})).split_last(c.num_heads, width);
  };
  const Tensor q_rope = q.columns(c.qk_nope_head_dim, c.qk_nope_head_dim + kRope);
  const Tensor heads = side.put_activations(poisoned_tensor(kAct, {1, c.num_heads * c.v_head_dim}));
  const WeightSpec spec{.codes = codes_of(kAct)};
  const LatentAttentionParams params{
      .write = {.q_rope = q_rope,
                .latent = x_device.columns(q_width, q_width + kRank + kRope),
                .norm = side.put(norm),
                .eps = 1e-6f,
                .positions = put_ints(side, {static_cast<int32_t>(last)}),
                .cos_sin = side.put(cos_sin),
                .interleaved = true,
                .slot_mapping = put_ints(side, {static_cast<int32_t>(last_block * kBlockSize + last % kBlockSize)}),
                .kv = kv},
      .q_nope = q.columns(0, c.qk_nope_head_dim),
      .k_up = &side.put_matrices(k_up, spec, c.num_heads),
      .attention = {.q_latent = room(kRank),
                    .q_rope = q_rope,
                    .kv = kv,
                    .block_table = block_table,
                    .seq_rows = put_ints(side, {0}),
                    .cu_seqlens_q = put_ints(side, {0, 1}),
                    .seq_lens = put_ints(side, {static_cast<int32_t>(c.seq_len)}),
                    .max_query_len = 1,
                    .max_seq_len = static_cast<int>(c.seq_len),
                    .softmax_scale = 0.2f,
                    .out = room(kRank)},
      .v_up = &side.put_matrices(v_up, spec, c.num_heads),
      .heads = heads.split_last(c.num_heads, c.v_head_dim)};
  LayerProductsDevice* joining = decomposed ? nullptr : layer_products_device(side.device());
  if (joining != nullptr) {
    joining->latent_attention(side.stream(), params);
  } else {
    decomposed_latent_attention(side.stream(), params);
  }
  return side.get(heads);
}

void add_joined_attention(Report& report, Sides sides) {
  if (layer_products_device(sides.actual.device()) == nullptr) return;
  Family family(report, "latent_attention of one token");
  if (!family.selected()) return;
  for (const TokenCase& c : {TokenCase{16, 1, 128, 128},
                             {16, 70, 128, 128},
                             {16, 2100, 128, 128},
                             {24, 400, 128, 128},
                             {128, 700, 128, 128},
                             {3, 129, 64, 40},
                             {4, 300, 192, 128}}) {
    const auto run = [&](Side& side, bool decomposed) -> Outputs {
      Outputs outputs;
      outputs.push_back({"heads", attend_joined(side, c, decomposed), {.rel = 4 * kBf16Ulp, .abs = 0.02}});
      return outputs;
    };
    const CaseBody as_it_is = [&](Side& side) { return run(side, false); };
    const std::string label =
        fmt::format("{} heads, {} keys, {} and {}", c.num_heads, c.seq_len, c.qk_nope_head_dim, c.v_head_dim);
    family.compare(sides.actual, sides.expected, label, as_it_is);
    family.compare(sides.actual, label + " against its decomposition", as_it_is,
                   [&](Side& side) { return run(side, true); });
  }
}

}  // namespace

void add_latent_cases(Report& report, Sides sides) {
  if (sides.actual.ops().attention_latent == nullptr) return;
  add_latent_attention(report, sides, DType::kF32, DType::kF32);
  add_latent_attention(report, sides, DType::kF32, DType::kBf16);
  add_latent_attention(report, sides, DType::kBf16, DType::kBf16);
  const KvLayerDesc codes{
      .kind = KvKind::kLatent, .kv_lora_rank = 512, .qk_rope_head_dim = 64, .kv_block_size = 16, .dtype = DType::kI8};
  for (const DType act : kActs) {
    if (sides.actual.device().supports_kv(codes)) add_latent_attention(report, sides, act, DType::kI8);
  }
  for (const DType act : kActs) add_linear_heads(report, sides, act);
  add_norm_rope_write(report, sides);
  add_joined_attention(report, sides);
  if (sides.actual.ops().attention_latent_expanded == nullptr) return;
  for (const DType act : kActs) add_expanded(report, sides, act);
}

}  // namespace spate::conformance
