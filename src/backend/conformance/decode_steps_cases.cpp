// qk_norm_rope_attention, and attention over latent vectors, in steps as an engine runs them: plans from pinned memory,
// apply_updates, begin_step, layers, finish_step, and nothing waits between two of them. Sequences enter rows with a
// prompt or with blocks that others have written, some in the step just before, decode, and leave; their blocks go to
// others at once. Steps are padded and replayed as the device likes. The same launches with a wait behind each must
// give the same bits: what a kernel reads before the ones ahead of it have ended shows. Against the reference within
// the rounding.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>

#include "backend/conformance/state_rig.h"
#include "backend/layer_products.h"

namespace spate::conformance {
namespace {

struct DecodeStepsCase {
  DType act, kv_dtype;
  int64_t head_dim, num_kv_heads, group_size;
  int64_t num_rows;  // sequences that run at most
  int window = 0;
  int64_t kv_block_size = 16;
  int64_t latent_heads = 0;  // > 0: attention over latent vectors, of so many heads
};

constexpr int kDecodeSteps = 24, kDecodeLayers = 3;
constexpr int64_t kDecodeTokens = 320, kDecodeMaxLen = 160, kDecodeVocab = 50;

struct DecodeRow {
  std::vector<int32_t> blocks;
  int32_t num_tokens = 0, num_computed = 0;  // 0: free
};

// Plans of all steps. Blocks are given back, shared and given out as the engine does it, but earlier: the next step may
// have those that this one gave up.
class DecodePlans {
 public:
  DecodePlans(const DecodeStepsCase& c, uint64_t seed)
      : block_size_(static_cast<int32_t>(c.kv_block_size)),
        rng_(test_seed(), seed),
        rows_(static_cast<size_t>(c.num_rows)) {
    holders_.resize(static_cast<size_t>(num_blocks(c)));
    for (size_t i = holders_.size(); i-- > 0;) free_.push_back(static_cast<int32_t>(i));
  }
  static int64_t num_blocks(const DecodeStepsCase& c) { return c.num_rows * (kDecodeMaxLen / c.kv_block_size + 1); }

  PlanParts next(int step) {
    PlanParts plan;
    budget_ = static_cast<int32_t>(kDecodeTokens);
    const bool may_prefill = step % 4 == 0;  // the other steps have one token of each sequence
    for (size_t row = 0; row < rows_.size(); ++row) {
      DecodeRow& r = rows_[row];
      if (r.num_tokens > 0 && (r.num_tokens + 1 >= kDecodeMaxLen || rng_.below(12) == 0)) leave(r);
      if (r.num_tokens == 0) enter(plan, row, may_prefill);
      if (r.num_tokens > 0 && rng_.below(10) != 0) run(plan, row, may_prefill, step % 4 == 1 || step % 4 == 2);
    }
    for (const int32_t row : ran_) {
      DecodeRow& r = rows_[static_cast<size_t>(row)];
      r.num_tokens += r.num_computed == r.num_tokens;
    }
    ran_.clear();
    return plan;
  }

 private:
  int32_t below(int32_t bound) { return static_cast<int32_t>(rng_.below(static_cast<uint64_t>(bound))); }

  void leave(DecodeRow& r) {
    for (const int32_t block : r.blocks) {
      if (--holders_[static_cast<size_t>(block)] == 0) free_.push_back(block);
    }
    r = {};
  }

  void enter(PlanParts& plan, size_t row, bool may_prefill) {
    DecodeRow& r = rows_[row];
    const DecodeRow& donor = rows_[static_cast<size_t>(below(static_cast<int32_t>(rows_.size())))];
    const bool ran_now = std::ranges::find(ran_, static_cast<int32_t>(&donor - rows_.data())) != ran_.end();
    const int32_t num_shared = ran_now ? 0 : donor.num_computed / block_size_;  // of earlier steps only
    if (num_shared > 0) {
      r.blocks.assign(donor.blocks.begin(), donor.blocks.begin() + num_shared);
      for (const int32_t block : r.blocks) ++holders_[static_cast<size_t>(block)];
      r.num_computed = num_shared * block_size_;
    }
    r.num_tokens = r.num_computed + 1 + (may_prefill ? below(40) : 0);
    if (r.num_tokens + 1 >= kDecodeMaxLen) return leave(r);
    RowUpdate update{
        .row = static_cast<int32_t>(row), .num_tokens = r.num_tokens, .num_computed_tokens = r.num_computed};
    std::vector<int32_t> token_ids(static_cast<size_t>(r.num_tokens));
    for (int32_t& id : token_ids) id = below(static_cast<int32_t>(kDecodeVocab));
    update.tokens_begin = plan.add_data(token_ids);
    plan.row_updates.push_back(update);
    if (num_shared > 0) send_blocks(plan, row, 0);
  }

  void send_blocks(PlanParts& plan, size_t row, int32_t first) {
    const std::vector<int32_t>& blocks = rows_[row].blocks;
    const std::vector<int32_t> sent(blocks.begin() + first, blocks.end());
    plan.block_updates.push_back({.row = static_cast<int32_t>(row),
                                  .first_block_idx = first,
                                  .num_blocks = static_cast<int32_t>(sent.size()),
                                  .blocks_begin = plan.add_data(sent)});
  }

  void run(PlanParts& plan, size_t row, bool may_prefill, bool waits_for_prefill) {
    DecodeRow& r = rows_[row];
    const int32_t missing = r.num_tokens - r.num_computed;
    SeqStep seq{.row = static_cast<int32_t>(row),
                .query_len = may_prefill ? std::min({missing, budget_, 1 + below(40)}) : 1,
                .phase = missing == 1 ? SeqPhase::kDecode : SeqPhase::kPrefill,
                .num_computed_tokens = r.num_computed};
    if (seq.query_len <= 0 || (waits_for_prefill && missing > 1)) return;
    if (seq.query_len == missing) seq.flags = kSample;
    budget_ -= seq.query_len;
    r.num_computed += seq.query_len;
    const auto num_sent = static_cast<int32_t>(r.blocks.size());
    while (static_cast<int32_t>(r.blocks.size()) * block_size_ < r.num_computed) {
      r.blocks.push_back(free_.back());
      ++holders_[static_cast<size_t>(free_.back())];
      free_.pop_back();
    }
    if (static_cast<int32_t>(r.blocks.size()) > num_sent) send_blocks(plan, row, num_sent);
    plan.seqs.push_back(seq);
    ran_.push_back(seq.row);
  }

  const int32_t block_size_;
  Rng rng_;
  std::vector<DecodeRow> rows_;
  std::vector<int32_t> holders_, free_, ran_;
  int32_t budget_ = 0;
};

StepInputs decode_inputs(const StepInputs& all, const StepKey& key) {
  return {.token_ids = all.token_ids.rows(0, key.num_tokens),
          .positions = all.positions.rows(0, key.num_tokens),
          .slot_mapping = all.slot_mapping.rows(0, key.num_tokens),
          .seq_rows = all.seq_rows.rows(0, key.num_seqs),
          .cu_seqlens_q = all.cu_seqlens_q.rows(0, key.num_seqs + 1),
          .seq_lens = all.seq_lens.rows(0, key.num_seqs),
          .sample_token_idxs = all.sample_token_idxs.rows(0, key.num_logits),
          .sample_state_rows = all.sample_state_rows.rows(0, key.num_logits),
          .sample_offsets = all.sample_offsets.rows(0, key.num_logits),
          .sample_masks = all.sample_masks.rows(0, key.num_logits),
          .sample_drafts = all.sample_drafts.rows(0, key.num_logits)};
}

// A layer of the steps: its cache, [kDecodeVocab, width] what each token id gives, that of the step's tokens, what
// attention gives of them, and of all steps.
struct DecodeLayer {
  KvView kv;
  Tensor table, rows, out, record;
};

// The attention of a case.
struct DecodeAttention {
  KvLayerDesc kv;
  int64_t width = 0, out_width = 0;  // of a token
  std::function<void(const DecodeLayer&, const StepInputs&, const StepKey&)> run;
  std::function<void()> delay = [] {};  // of the device: launches behind it stand and wait
};

DecodeAttention roped_attention(Side& side, const DecodeStepsCase& c, Rng& rng, const Tensor& block_table) {
  const int64_t num_heads = c.num_kv_heads * c.group_size, q_width = num_heads * c.head_dim,
                kv_width = c.num_kv_heads * c.head_dim, width = q_width + 2 * kv_width;
  const HostTensor cos_sin = random_tensor(rng, DType::kF32, {kDecodeMaxLen, c.head_dim}, 0.4f);
  const Tensor angles = side.put(cos_sin), norm = side.put(random_tensor(rng, c.act, {c.head_dim}));
  const auto run = [=, &side](const DecodeLayer& layer, const StepInputs& in, const StepKey& key) {
    const Tensor qkv = layer.rows.rows(0, key.num_tokens);
    const Tensor q = qkv.columns(0, q_width).split_last(num_heads, c.head_dim);
    const QkNormRopeAttentionParams params{
        .write = {.q = q,
                  .k = qkv.columns(q_width, q_width + kv_width).split_last(c.num_kv_heads, c.head_dim),
                  .v = qkv.columns(q_width + kv_width, width).split_last(c.num_kv_heads, c.head_dim),
                  .q_norm = norm,
                  .k_norm = norm,
                  .eps = 1e-6f,
                  .positions = in.positions,
                  .cos_sin = angles,
                  .slot_mapping = in.slot_mapping,
                  .kv = layer.kv},
        .attention = {.q = q,
                      .kv = layer.kv,
                      .block_table = block_table,
                      .seq_rows = in.seq_rows,
                      .cu_seqlens_q = in.cu_seqlens_q,
                      .seq_lens = in.seq_lens,
                      .max_query_len = key.max_query_len,
                      .max_seq_len = key.max_seq_len,
                      .softmax_scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                      .window = c.window,
                      .out = layer.out.rows(0, key.num_tokens).split_last(num_heads, c.head_dim)}};
    const auto fused = side.ops().qk_norm_rope_attention;
    (fused != nullptr ? fused : decompositions().qk_norm_rope_attention)(side.stream(), params);
  };
  const KvLayerDesc kv{
      .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .kv_block_size = c.kv_block_size, .dtype = c.kv_dtype};
  return {kv, width, q_width, run};
}

// Behind a choice of experts for so many tokens that it does not start early, in three layers of five.
DecodeAttention latent_attention(Side& side, const DecodeStepsCase& c, Rng& rng, const Tensor& block_table) {
  constexpr int64_t kRank = 512, kRope = 64, kNope = 128, kValues = 128, kRouted = 80, kExperts = 8;
  const int64_t num_heads = c.latent_heads, q_width = num_heads * (kNope + kRope), width = q_width + kRank + kRope;
  const WeightSpec spec{.codes = Codes::kBf16};
  const Tensor angles = side.put(random_tensor(rng, DType::kF32, {kDecodeMaxLen, kRope}, 0.4f)),
               norm = side.put(random_tensor(rng, c.act, {kRank}));
  const auto matrices = [&](int64_t rows, int64_t columns) {
    const float size = 1 / std::sqrt(static_cast<float>(kRank));
    return &side.put_matrices(random_tensor(rng, c.act, {num_heads * rows, columns}, size), spec, num_heads);
  };
  const PackedWeight *k_up = matrices(kRank, kNope), *v_up = matrices(kValues, kRank);
  const Tensor q_latent = side.put(poisoned_tensor(c.act, {kDecodeTokens, num_heads * kRank})),
               out_latent = side.put(poisoned_tensor(c.act, {kDecodeTokens, num_heads * kRank}));
  const RouteExpertsParams route{.logits = side.put(random_tensor(rng, DType::kF32, {kRouted, kExperts})),
                                 .bias = Tensor(),
                                 .routing = {},
                                 .expert_ids = side.put(poisoned_tensor(DType::kI32, {kRouted, 2})),
                                 .expert_weights = side.put(poisoned_tensor(DType::kF32, {kRouted, 2}))};
  const auto run = [=, &side, num_layers = 0](const DecodeLayer& layer, const StepInputs& in,
                                              const StepKey& key) mutable {
    const auto of_step = [&](const Tensor& tensor) { return tensor.rows(0, key.num_tokens); };
    const Tensor x = of_step(layer.rows), q = x.columns(0, q_width).split_last(num_heads, kNope + kRope),
                 q_rope = q.columns(kNope, kNope + kRope);
    if (num_layers++ % 5 >= 2) side.ops().route_experts(side.stream(), route);
    const LatentAttentionParams params{.write = {.q_rope = q_rope,
                                                 .latent = x.columns(q_width, width),
                                                 .norm = norm,
                                                 .eps = 1e-6f,
                                                 .positions = in.positions,
                                                 .cos_sin = angles,
                                                 .slot_mapping = in.slot_mapping,
                                                 .kv = layer.kv},
                                       .q_nope = q.columns(0, kNope),
                                       .k_up = k_up,
                                       .attention = {.q_latent = of_step(q_latent).split_last(num_heads, kRank),
                                                     .q_rope = q_rope,
                                                     .kv = layer.kv,
                                                     .block_table = block_table,
                                                     .seq_rows = in.seq_rows,
                                                     .cu_seqlens_q = in.cu_seqlens_q,
                                                     .seq_lens = in.seq_lens,
                                                     .max_query_len = key.max_query_len,
                                                     .max_seq_len = key.max_seq_len,
                                                     .softmax_scale = 0.1f,
                                                     .out = of_step(out_latent).split_last(num_heads, kRank)},
                                       .v_up = v_up,
                                       .heads = of_step(layer.out).split_last(num_heads, kValues)};
    LayerProductsDevice* joining = layer_products_device(side.device());
    if (joining != nullptr) {
      joining->latent_attention(side.stream(), params);
    } else {
      decomposed_latent_attention(side.stream(), params);
    }
  };
  const KvLayerDesc kv{.kind = KvKind::kLatent,
                       .kv_lora_rank = kRank,
                       .qk_rope_head_dim = kRope,
                       .kv_block_size = c.kv_block_size,
                       .dtype = c.kv_dtype};
  const Tensor x = side.put(poisoned_tensor(c.act, {kDecodeTokens, num_heads * kNope}));
  const auto delay = [=, &side] {
    if (layer_products_device(side.device()) == nullptr) return;
    for (int i = 0; i < 20; ++i) {
      side.ops().linear_heads(
          side.stream(),
          {.x = x.split_last(num_heads, kNope), .weight = k_up, .out = q_latent.split_last(num_heads, kRank)});
    }
  };
  return {kv, width, num_heads * kValues, run, delay};
}

Outputs run_decode_steps(Side& side, const DecodeStepsCase& c, bool waits, Tolerance tolerance) {
  Device& device = side.device();
  Stream& stream = side.stream();
  const OpTable& ops = side.ops();
  Rng rng(test_seed(), static_cast<uint64_t>(c.head_dim * 131 + c.num_kv_heads * c.group_size));
  const StepInputs all =
      put_inputs(side, {.num_tokens = kDecodeTokens, .num_seqs = c.num_rows, .num_logits = c.num_rows});
  const DeviceState state = put_state(side, {.max_num_seqs = c.num_rows,
                                             .max_model_len = kDecodeMaxLen,
                                             .max_blocks_per_seq = kDecodeMaxLen / c.kv_block_size + 1});
  const DecodeAttention attention = c.latent_heads > 0 ? latent_attention(side, c, rng, state.state.block_table)
                                                       : roped_attention(side, c, rng, state.state.block_table);
  const Tensor next = side.put(poisoned_tensor(DType::kI32, {c.num_rows}));
  HostTensor rising(DType::kI32, {kDecodeTokens});
  for (int32_t i = 0; i < kDecodeTokens; ++i) rising.span<int32_t>()[static_cast<size_t>(i)] = i;
  const Tensor arange = side.put(rising);
  DecodePlans plans(c, static_cast<uint64_t>(c.head_dim + c.num_rows));
  std::vector<std::vector<uint64_t>> images;
  int64_t num_tokens_in_all = 0;
  for (int step = 0; step < kDecodeSteps; ++step) {
    images.push_back(plans.next(step).image());
    num_tokens_in_all += reinterpret_cast<const StepPlanHeader*>(images.back().data())->num_tokens;
  }
  std::vector<DecodeLayer> layers;
  for (int i = 0; i < kDecodeLayers; ++i) {
    layers.push_back({.kv = side.put_kv(attention.kv, DecodePlans::num_blocks(c)),
                      .table = side.put(random_tensor(rng, c.act, {kDecodeVocab, attention.width})),
                      .rows = side.put(poisoned_tensor(c.act, {kDecodeTokens, attention.width})),
                      .out = side.put(poisoned_tensor(c.act, {kDecodeTokens, attention.out_width})),
                      .record = side.put(poisoned_tensor(c.act, {num_tokens_in_all, attention.out_width}))});
  }
  constexpr size_t kPlanBytes = 1 << 16;
  Buffer plan_device = device.allocate(kPlanBytes, MemoryKind::kDevice).value();
  std::vector<Buffer> pinned;  // of the copies in flight
  const auto upload = [&](void* dst, const void* src, size_t bytes) {
    pinned.push_back(device.allocate(bytes, MemoryKind::kPinnedHost).value());
    std::memcpy(pinned.back().data(), src, bytes);
    device.copy_to_device(stream, dst, pinned.back().data(), bytes);
  };
  const auto wait = [&] {
    if (waits) device.synchronize(stream);
  };

  static std::atomic<int> num_runs = 0;
  const int run_idx = ++num_runs;  // steps that a device keeps are of one run
  int64_t num_recorded = 0;
  for (const std::vector<uint64_t>& image : images) {
    const auto& header = *reinterpret_cast<const StepPlanHeader*>(image.data());
    CHECK(header.total_bytes <= kPlanBytes && header.num_tokens <= kDecodeTokens, "a plan of {} bytes",
          header.total_bytes);
    HostTensor chosen(DType::kI32, {c.num_rows});
    for (int32_t& id : chosen.span<int32_t>()) id = static_cast<int32_t>(rng.below(kDecodeVocab));
    upload(plan_device.data(), image.data(), header.total_bytes);
    upload(next.raw(), chosen.view().raw(), static_cast<size_t>(c.num_rows) * sizeof(int32_t));
    ops.apply_updates(stream, {.plan_host = &header, .plan = plan_device.data(), .state = state.state});
    wait();
    if (header.num_seqs == 0) continue;
    const StepKey largest{.num_seqs = static_cast<int>(c.num_rows),
                          .num_tokens = static_cast<int>(kDecodeTokens),
                          .num_logits = static_cast<int>(c.num_rows),
                          .max_query_len = static_cast<int>(kDecodeTokens),
                          .max_seq_len = static_cast<int>(kDecodeMaxLen)};
    const StepKey key = device.padded_step({.num_seqs = header.num_seqs,
                                            .num_tokens = header.num_tokens,
                                            .num_logits = header.num_logits,
                                            .max_query_len = header.max_query_len,
                                            .max_seq_len = header.max_seq_len,
                                            .plan_generation = run_idx},
                                           largest);
    const auto run = [&] {
      const StepInputs in = decode_inputs(all, key);
      ops.begin_step(
          stream, {.plan = plan_device.data(), .state = state.state, .inputs = in, .kv_block_size = c.kv_block_size});
      wait();
      for (const DecodeLayer& layer : layers) {
        ops.gather_rows(stream, {.x = layer.table, .row_ids = in.token_ids, .out = layer.rows.rows(0, key.num_tokens)});
        wait();
        attention.run(layer, in, key);
        wait();
      }
      ops.finish_step(stream, {.plan = plan_device.data(),
                               .state = state.state,
                               .num_seqs = key.num_seqs,
                               .next_token_ids = next.rows(0, key.num_logits)});
      wait();
    };
    if (waits) {
      run();
    } else {
      attention.delay();
      device.run_step(stream, key, run);
    }
    const int64_t num_tokens = header.num_tokens;
    for (const DecodeLayer& layer : layers) {
      ops.gather_rows(stream, {.x = layer.out,
                               .row_ids = arange.rows(0, num_tokens),
                               .out = layer.record.rows(num_recorded, num_recorded + num_tokens)});
    }
    num_recorded += num_tokens;
    wait();
  }
  device.synchronize(stream);
  Outputs outputs;
  for (const DecodeLayer& layer : layers)
    outputs.push_back({"out", side.get(layer.record.rows(0, num_recorded)), tolerance});
  CHECK(num_recorded == num_tokens_in_all, "{} tokens of {}", num_recorded, num_tokens_in_all);
  outputs.push_back({"num_computed_tokens", side.get(state.state.num_computed_tokens), {}});
  return outputs;
}

}  // namespace

void add_decode_steps_cases(Report& report, Sides sides) {
  constexpr DType act = DType::kBf16;
  for (const DType kv_dtype : {DType::kI8, DType::kBf16}) {
    Family family(report, fmt::format("decode steps {} over {}", act_name(act), dtype_name(kv_dtype)));
    if (!family.selected()) continue;
    for (const DecodeStepsCase& c :
         {DecodeStepsCase{act, kv_dtype, 64, 2, 4, 30}, DecodeStepsCase{act, kv_dtype, 128, 1, 10, 50},
          DecodeStepsCase{act, kv_dtype, 128, 8, 1, 24, 40}, DecodeStepsCase{act, kv_dtype, 64, 3, 2, 120, 0, 32},
          DecodeStepsCase{act, kv_dtype, 128, 2, 2, 2}}) {
      const std::string label = fmt::format("head_dim {}, {} x {} heads, {} rows, window {}", c.head_dim,
                                            c.num_kv_heads, c.group_size, c.num_rows, c.window);
      family.compare(
          sides.actual, label + ", against waiting", [&](Side& side) { return run_decode_steps(side, c, false, {}); },
          [&](Side& side) { return run_decode_steps(side, c, true, {}); });
      if (c.num_rows > 60) continue;
      family.compare(sides.actual, sides.expected, label, [&](Side& side) {
        return run_decode_steps(side, c, false, {.rel = 4 * ulp_of(act), .abs = 0.1});
      });
    }
  }
  if (sides.actual.ops().attention_latent == nullptr) return;
  for (const DType kv_dtype : {DType::kBf16, DType::kI8}) {
    Family family(report,
                  fmt::format("decode steps of latent vectors {} over {}", act_name(act), dtype_name(kv_dtype)));
    if (!family.selected()) continue;
    const auto latent_case = [&](int64_t num_heads, int64_t num_rows, int64_t kv_block_size) {
      return DecodeStepsCase{act, kv_dtype, 64, 1, 1, num_rows, 0, kv_block_size, num_heads};
    };
    for (const DecodeStepsCase& c : {latent_case(16, 1, 16), latent_case(24, 2, 16), latent_case(16, 30, 16),
                                     latent_case(128, 12, 32), latent_case(20, 120, 16)}) {
      // Other devices read nothing early.
      if (c.num_rows > 2 && layer_products_device(sides.actual.device()) == nullptr) continue;
      family.compare(
          sides.actual,
          fmt::format("{} heads, {} rows, blocks of {}, against waiting", c.latent_heads, c.num_rows, c.kv_block_size),
          [&](Side& side) { return run_decode_steps(side, c, false, {}); },
          [&](Side& side) { return run_decode_steps(side, c, true, {}); });
    }
  }
}

}  // namespace spate::conformance
