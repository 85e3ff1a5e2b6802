#include "backend/ops.h"

namespace spate {
namespace {

const OpTable& ops_of(Stream& stream) { return stream.device().ops(); }

void decomposed_add_rms_norm(Stream& stream, const AddRmsNormParams& p) {
  ops_of(stream).add(stream, {.a = p.residual, .b = p.x, .out = p.residual});
  ops_of(stream).rms_norm(stream, {.x = p.residual, .weight = p.weight, .eps = p.eps, .out = p.out});
}

void decomposed_qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p) {
  const OpTable& ops = ops_of(stream);
  if (p.q_norm.defined()) ops.rms_norm(stream, {.x = p.q, .weight = p.q_norm, .eps = p.eps, .out = p.q});
  if (p.k_norm.defined()) ops.rms_norm(stream, {.x = p.k, .weight = p.k_norm, .eps = p.eps, .out = p.k});
  for (const Tensor& x : {p.q, p.k}) {
    ops.rope(stream, {.positions = p.positions, .cos_sin = p.cos_sin, .x = x, .interleaved = p.interleaved});
  }
  ops.kv_write(stream, {.k = p.k, .v = p.v, .slot_mapping = p.slot_mapping, .kv = p.kv});
}

void decomposed_qk_norm_rope_attention(Stream& stream, const QkNormRopeAttentionParams& p) {
  const OpTable& ops = ops_of(stream);
  const auto write =
      ops.qk_norm_rope_kv_write != nullptr ? ops.qk_norm_rope_kv_write : decomposed_qk_norm_rope_kv_write;
  write(stream, p.write);
  ops.attention_paged(stream, p.attention);
}

void decomposed_linear_silu_and_mul(Stream& stream, const LinearSiluAndMulParams& p) {
  ops_of(stream).linear(stream,
                        {.x = p.x, .weight = p.weight, .bias = p.bias, .out = p.gate_up, .matrix_idx = p.matrix_idx});
  ops_of(stream).silu_and_mul(stream, {.gate_up = p.gate_up, .out = p.out, .reader = p.reader});
}

void decomposed_expert_mlp_add_norm(Stream& stream, const ExpertMlpAddNormParams& p) {
  const OpTable& ops = ops_of(stream);
  const auto add_rms_norm = ops.add_rms_norm != nullptr ? ops.add_rms_norm : decomposed_add_rms_norm;
  ops.expert_mlp(stream, p.experts);
  add_rms_norm(stream, p.norm);
}

void decomposed_latent_norm_rope_write(Stream& stream, const LatentNormRopeWriteParams& p) {
  const OpTable& ops = ops_of(stream);
  const int64_t rank = p.norm.dim(0), width = p.latent.dim(1);
  const Tensor normed = p.latent.columns(0, rank), k_rope = p.latent.columns(rank, width).split_last(1, width - rank);
  ops.rms_norm(stream, {.x = normed, .weight = p.norm, .eps = p.eps, .out = normed});
  for (const Tensor& x : {p.q_rope, k_rope}) {
    ops.rope(stream, {.positions = p.positions, .cos_sin = p.cos_sin, .x = x, .interleaved = p.interleaved});
  }
  ops.latent_write(stream, {.latent = p.latent, .slot_mapping = p.slot_mapping, .kv = p.kv});
}

}  // namespace

OpTable decompositions() {
  OpTable table;
  table.add_rms_norm = decomposed_add_rms_norm;
  table.qk_norm_rope_kv_write = decomposed_qk_norm_rope_kv_write;
  table.qk_norm_rope_attention = decomposed_qk_norm_rope_attention;
  table.linear_silu_and_mul = decomposed_linear_silu_and_mul;
  table.expert_mlp_add_norm = decomposed_expert_mlp_add_norm;
  table.latent_norm_rope_write = decomposed_latent_norm_rope_write;
  return table;
}

SamplePlace sample_place(const SampleParams& p, int64_t logits_row) {
  SamplePlace place{.row = p.sample_state_rows.data<int32_t>()[logits_row]};
  if (place.row < 0) return place;
  place.num_tokens = p.state.num_tokens.data<int32_t>()[place.row];
  if (p.sample_offsets.defined()) place.num_tokens += p.sample_offsets.data<int32_t>()[logits_row];
  if (p.sample_drafts.defined()) place.draft = p.sample_drafts.data<int32_t>()[logits_row];
  const int32_t mask_idx = p.sample_masks.defined() ? p.sample_masks.data<int32_t>()[logits_row] : -1;
  if (mask_idx < 0) return place;
  const auto& plan = *static_cast<const StepPlanHeader*>(p.plan);
  CHECK(plan.mask_words == mask_words_of(p.logits.dim(1)), "sample: masks of {} words for {} tokens", plan.mask_words,
        p.logits.dim(1));
  place.mask = plan_array<uint32_t>(p.plan, plan.masks_offset) + int64_t{mask_idx} * plan.mask_words;
  return place;
}

BoundOps bind_ops(const OpTable& table) {
  BoundOps bound{.ops = table, .decomposed = {}};
  const OpTable fallback = decompositions();
  const auto bind = [&](const char* name, auto OpTable::* op) {
    if (bound.ops.*op != nullptr) return;
    bound.ops.*op = fallback.*op;
    bound.decomposed.emplace_back(name);
  };
  bind("add_rms_norm", &OpTable::add_rms_norm);
  bind("qk_norm_rope_kv_write", &OpTable::qk_norm_rope_kv_write);
  bind("qk_norm_rope_attention", &OpTable::qk_norm_rope_attention);
  bind("linear_silu_and_mul", &OpTable::linear_silu_and_mul);
  if (table.expert_mlp != nullptr) bind("expert_mlp_add_norm", &OpTable::expert_mlp_add_norm);
  if (table.latent_write != nullptr) bind("latent_norm_rope_write", &OpTable::latent_norm_rope_write);
  return bound;
}

}  // namespace spate
