#include "backend/check_params.h"

#include "base/shape_check.h"

namespace spate {
namespace {

DType act_dtype(const char* op, const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16, "{}: activations are f32 or bf16, not {}", op, dtype_name(dtype));
  return dtype;
}

void check_kv(const char* op, const KvView& kv, DType act) {
  CHECK(kv.desc.kind != KvKind::kLatent, "{}: a latent cache has no heads", op);
  CHECK(kv.desc.dtype == DType::kBf16 || kv.desc.dtype == DType::kF32 || kv.desc.dtype == DType::kI8,
        "{}: the cache holds bf16, f32 or i8, not {}", op, dtype_name(kv.desc.dtype));
  CHECK(kv.desc.dtype == act || kv.desc.dtype == DType::kI8 || act == DType::kF32, "{}: a cache of {} beside activations of {}", op,
        dtype_name(kv.desc.dtype), dtype_name(act));
  CHECK(kv.desc.kv_block_size > 0 && kv.desc.kv_block_size % 16 == 0, "{}: kv_block_size {} is no multiple of 16", op,
        kv.desc.kv_block_size);
  CHECK(kv.desc.num_kv_heads > 0 && kv.desc.head_dim > 0 && kv.block_bytes > 0, "{}: an empty cache", op);
}

void check_matrix(const char* op, const PackedWeight& weight, int64_t matrix_idx) {
  CHECK(matrix_idx >= 0 && matrix_idx < weight.desc().num_matrices, "{}: matrix {} of {}", op, matrix_idx,
        weight.desc().num_matrices);
}

void check_reader(const char* op, const PackedWeight* reader, const Tensor& out) {
  if (reader == nullptr) return;
  CHECK(reader->desc().in_features == out.dim(1), "{}: a reader of {} features for {}", op, reader->desc().in_features,
        out.shape_string());
}

void check_heads(ShapeCheck& check, const char* name, const Tensor& x, DType act, Dim num_tokens, Dim num_heads,
                 Dim head_dim) {
  check.tensor(name, x, act, {num_tokens, num_heads, head_dim});
}

}  // namespace

void check_params(const EmbeddingParams& p) {
  ShapeCheck check("embedding");
  const Dim num_tokens = check.dim("num_tokens");
  check.tensor("token_ids", p.token_ids, DType::kI32, {num_tokens});
  check.tensor("out", p.out, act_dtype("embedding", p.out), {num_tokens, p.table->desc().in_features});
}

void check_params(const LinearParams& p) {
  ShapeCheck check("linear");
  const DType act = act_dtype("linear", p.x);
  const Dim num_tokens = check.dim("num_tokens");
  const WeightDesc& desc = p.weight->desc();
  check_matrix("linear", *p.weight, p.matrix_idx);
  check.tensor("x", p.x, act, {num_tokens, desc.in_features});
  if (p.bias.defined()) check.tensor("bias", p.bias, act, {desc.out_features});
  CHECK(p.out.dtype() == act || p.out.dtype() == DType::kF32, "linear: out is {}, needs {} or f32",
        dtype_name(p.out.dtype()), dtype_name(act));
  check.tensor("out", p.out, p.out.dtype(), {num_tokens, desc.out_features});
  CHECK(p.out.raw() != p.x.raw() || p.x.num_elements() == 0, "linear: out is x");
}

void check_params(const RmsNormParams& p) {
  ShapeCheck check("rms_norm");
  const DType act = act_dtype("rms_norm", p.x);
  const Dim num_tokens = check.dim("num_tokens"), width = check.dim("width");
  check.tensor("weight", p.weight, act, {width});
  if (p.x.rank() == 3) {
    const Dim num_heads = check.dim("num_heads");
    check.tensor("x", p.x, act, {num_tokens, num_heads, width});
    check.tensor("out", p.out, act, {num_tokens, num_heads, width});
  } else {
    check.tensor("x", p.x, act, {num_tokens, width});
    check.tensor("out", p.out, act, {num_tokens, width});
  }
}

void check_params(const AddParams& p) {
  ShapeCheck check("add");
  const DType act = act_dtype("add", p.a);
  const Dim num_tokens = check.dim("num_tokens"), hidden_size = check.dim("hidden_size");
  check.tensor("a", p.a, act, {num_tokens, hidden_size});
  check.tensor("b", p.b, act, {num_tokens, hidden_size});
  check.tensor("out", p.out, act, {num_tokens, hidden_size});
}

void check_params(const SiluAndMulParams& p) {
  ShapeCheck check("silu_and_mul");
  const DType act = act_dtype("silu_and_mul", p.gate_up);
  const Dim num_tokens = check.dim("num_tokens");
  check.tensor("out", p.out, act, {num_tokens, check.dim("intermediate_size")});
  check.tensor("gate_up", p.gate_up, act, {num_tokens, 2 * p.out.dim(1)});
  check_reader("silu_and_mul", p.reader, p.out);
}

void check_params(const RopeParams& p) {
  ShapeCheck check("rope");
  const DType act = act_dtype("rope", p.x);
  const Dim num_tokens = check.dim("num_tokens");
  check.tensor("positions", p.positions, DType::kI32, {num_tokens});
  check.tensor("cos_sin", p.cos_sin, DType::kF32, {check.dim("max_positions"), check.dim("rotary_dim")});
  check_heads(check, "x", p.x, act, num_tokens, check.dim("num_heads"), check.dim("head_dim"));
  CHECK(p.cos_sin.dim(1) % 2 == 0 && p.cos_sin.dim(1) <= p.x.dim(2), "rope: rotary_dim {} of head_dim {}",
        p.cos_sin.dim(1), p.x.dim(2));
}

void check_params(const KvWriteParams& p) {
  ShapeCheck check("kv_write");
  const DType act = act_dtype("kv_write", p.k);
  const Dim num_tokens = check.dim("num_tokens");
  check_kv("kv_write", p.kv, act);
  check_heads(check, "k", p.k, act, num_tokens, p.kv.desc.num_kv_heads, p.kv.desc.head_dim);
  check_heads(check, "v", p.v, act, num_tokens, p.kv.desc.num_kv_heads, p.kv.desc.head_dim);
  check.tensor("slot_mapping", p.slot_mapping, DType::kI32, {num_tokens});
}

void check_params(const AttentionPagedParams& p) {
  ShapeCheck check("attention_paged");
  const DType act = act_dtype("attention_paged", p.q);
  const Dim num_tokens = check.dim("num_tokens"), num_heads = check.dim("num_heads"), num_seqs = check.dim("num_seqs");
  check_kv("attention_paged", p.kv, act);
  check_heads(check, "q", p.q, act, num_tokens, num_heads, p.kv.desc.head_dim);
  check_heads(check, "out", p.out, act, num_tokens, num_heads, p.kv.desc.head_dim);
  check.tensor("block_table", p.block_table, DType::kI32, {check.dim("max_num_seqs"), check.dim("max_blocks_per_seq")});
  check.tensor("seq_rows", p.seq_rows, DType::kI32, {num_seqs});
  check.tensor("seq_lens", p.seq_lens, DType::kI32, {num_seqs});
  check.tensor("cu_seqlens_q", p.cu_seqlens_q, DType::kI32, {p.seq_rows.dim(0) + 1});
  CHECK(p.q.dim(1) % p.kv.desc.num_kv_heads == 0, "attention_paged: {} heads over {} kv heads", p.q.dim(1),
        p.kv.desc.num_kv_heads);
  CHECK(p.window >= 0, "attention_paged: window {}", p.window);
}

void check_params(const GatherRowsParams& p) {
  ShapeCheck check("gather_rows");
  const Dim n = check.dim("n"), width = check.dim("width");
  check.tensor("x", p.x, p.x.dtype(), {check.dim("num_rows"), width});
  check.tensor("row_ids", p.row_ids, DType::kI32, {n});
  check.tensor("out", p.out, p.x.dtype(), {n, width});
}

void check_params(const ScatterRowsParams& p) {
  ShapeCheck check("scatter_rows");
  const Dim n = check.dim("n"), width = check.dim("width");
  check.tensor("x", p.x, p.x.dtype(), {n, width});
  check.tensor("row_ids", p.row_ids, DType::kI32, {n});
  check.tensor("out", p.out, p.x.dtype(), {check.dim("num_rows"), width});
}

namespace {

void check_state(ShapeCheck& check, const RowState& s) {
  const Dim rows = check.dim("max_num_seqs");
  check.tensor("token_ids", s.token_ids, DType::kI32, {rows, check.dim("max_model_len")});
  check.tensor("num_tokens", s.num_tokens, DType::kI32, {rows});
  check.tensor("num_computed_tokens", s.num_computed_tokens, DType::kI32, {rows});
  check.tensor("block_table", s.block_table, DType::kI32, {rows, check.dim("max_blocks_per_seq")});
  check.tensor("sampling", s.sampling, DType::kU8, {rows, static_cast<int64_t>(sizeof(RowSampling))});
  check.tensor("bias_ids", s.bias_ids, DType::kI32, {rows, kMaxLogitBias});
  check.tensor("bias_values", s.bias_values, DType::kF32, {rows, kMaxLogitBias});
  check.tensor("stop_ids", s.stop_ids, DType::kI32, {rows, kMaxStopIds});
}

}  // namespace

void check_params(const ApplyUpdatesParams& p) {
  CHECK(p.plan_host != nullptr && p.plan != nullptr, "apply_updates: no plan");
  CHECK(p.plan_host->magic == kStepPlanMagic && p.plan_host->version == kStepPlanVersion,
        "apply_updates: magic {:#x}, version {}", p.plan_host->magic, p.plan_host->version);
  ShapeCheck check("apply_updates");
  check_state(check, p.state);
}

void check_params(const BeginStepParams& p) {
  CHECK(p.plan != nullptr, "begin_step: no plan");
  ShapeCheck check("begin_step");
  check_state(check, p.state);
  const StepInputs& in = p.inputs;
  const Dim num_tokens = check.dim("num_tokens"), num_seqs = check.dim("num_seqs"), num_logits = check.dim("num_logits");
  check.tensor("inputs.token_ids", in.token_ids, DType::kI32, {num_tokens});
  check.tensor("inputs.positions", in.positions, DType::kI32, {num_tokens});
  check.tensor("inputs.slot_mapping", in.slot_mapping, DType::kI32, {num_tokens});
  check.tensor("inputs.seq_rows", in.seq_rows, DType::kI32, {num_seqs});
  check.tensor("inputs.seq_lens", in.seq_lens, DType::kI32, {num_seqs});
  check.tensor("inputs.cu_seqlens_q", in.cu_seqlens_q, DType::kI32, {in.seq_rows.dim(0) + 1});
  check.tensor("inputs.sample_token_idxs", in.sample_token_idxs, DType::kI32, {num_logits});
  check.tensor("inputs.sample_state_rows", in.sample_state_rows, DType::kI32, {num_logits});
  check.tensor("inputs.sample_offsets", in.sample_offsets, DType::kI32, {num_logits});
  check.tensor("inputs.sample_masks", in.sample_masks, DType::kI32, {num_logits});
  check.tensor("inputs.sample_drafts", in.sample_drafts, DType::kI32, {num_logits});
  CHECK(p.kv_block_size > 0, "begin_step: kv_block_size {}", p.kv_block_size);
}

void check_params(const SampleParams& p) {
  ShapeCheck check("sample");
  check_state(check, p.state);
  const Dim num_logits = check.dim("num_logits");
  check.tensor("logits", p.logits, DType::kF32, {num_logits, check.dim("vocab_size")});
  check.tensor("sample_state_rows", p.sample_state_rows, DType::kI32, {num_logits});
  if (p.sample_offsets.defined()) check.tensor("sample_offsets", p.sample_offsets, DType::kI32, {num_logits});
  if (p.sample_masks.defined()) {
    check.tensor("sample_masks", p.sample_masks, DType::kI32, {num_logits});
    CHECK(p.plan != nullptr, "sample: masks without a plan");
  }
  check.tensor("next_token_ids", p.next_token_ids, DType::kI32, {num_logits});
  if (!p.sample_drafts.defined()) return;
  check.tensor("sample_drafts", p.sample_drafts, DType::kI32, {num_logits});
  check.tensor("is_relaxed", p.is_relaxed, DType::kI32, {num_logits});
}

void check_params(const LogprobsParams& p) {
  ShapeCheck check("logprobs");
  const Dim num_logits = check.dim("num_logits");
  check.tensor("logits", p.logits, DType::kF32, {num_logits, check.dim("vocab_size")});
  check.tensor("target_ids", p.target_ids, DType::kI32, {num_logits});
  check.tensor("target_logprob", p.target_logprob, DType::kF32, {num_logits});
  check.tensor("target_rank", p.target_rank, DType::kI32, {num_logits});
  if (!p.top_ids.defined()) return;
  const Dim num_top = check.dim("num_top");
  check.tensor("top_ids", p.top_ids, DType::kI32, {num_logits, num_top});
  check.tensor("top_logprobs", p.top_logprobs, DType::kF32, {num_logits, num_top});
  CHECK(p.top_ids.dim(1) <= p.logits.dim(1), "logprobs: {} of {} tokens", p.top_ids.dim(1), p.logits.dim(1));
}

void check_params(const FinishStepParams& p) {
  CHECK(p.plan != nullptr, "finish_step: no plan");
  ShapeCheck check("finish_step");
  check_state(check, p.state);
  if (p.num_accepted.defined()) {
    check.tensor("num_accepted", p.num_accepted, DType::kI32, {check.dim("num_seqs")});
    CHECK(p.num_accepted.dim(0) >= p.num_seqs, "finish_step: num_accepted {} for {} sequences",
          p.num_accepted.shape_string(), p.num_seqs);
  }
  if (!p.next_token_ids.defined()) return;
  check.tensor("next_token_ids", p.next_token_ids, DType::kI32, {check.dim("num_logits")});
}

void check_params(const KvCopyBlocksParams& p) {
  ShapeCheck check("kv_copy_blocks");
  check.tensor("src_dst", p.src_dst, DType::kI32, {check.dim("num_copies"), 2});
}

void check_params(const RouteExpertsParams& p) {
  const char* op = "route_experts";
  ShapeCheck check(op);
  const Dim num_tokens = check.dim("num_tokens"), num_experts = check.dim("num_experts");
  const Dim num_experts_per_tok = check.dim("num_experts_per_tok");
  check.tensor("logits", p.logits, DType::kF32, {num_tokens, num_experts});
  if (p.bias.defined()) check.tensor("bias", p.bias, DType::kF32, {num_experts});
  check.tensor("expert_ids", p.expert_ids, DType::kI32, {num_tokens, num_experts_per_tok});
  check.tensor("expert_weights", p.expert_weights, DType::kF32, {num_tokens, num_experts_per_tok});
  const int64_t n = p.logits.dim(1), k = p.expert_ids.dim(1), groups = p.routing.num_groups;
  const int64_t chosen_groups = p.routing.num_chosen_groups;
  CHECK(groups >= 1 && n % groups == 0, "{}: {} experts in {} groups", op, n, groups);
  CHECK(chosen_groups >= 1 && chosen_groups <= groups, "{}: {} of {} groups", op, chosen_groups, groups);
  CHECK(p.routing.group_scores == GroupScores::kMax || n / groups >= 2, "{}: groups of one expert have no two largest",
        op);
  CHECK(k >= 1 && k <= kMaxExpertsPerTok && k <= n / groups * chosen_groups, "{}: {} of {} experts, {} of {} groups",
        op, k, n, chosen_groups, groups);
}

void check_params(const ExpertMlpParams& p) {
  const char* op = "expert_mlp";
  ShapeCheck check(op);
  const DType act = act_dtype(op, p.x);
  const Dim num_tokens = check.dim("num_tokens"), num_experts_per_tok = check.dim("num_experts_per_tok");
  const WeightDesc &gate_up = p.gate_up->desc(), &down = p.down->desc();
  check.tensor("x", p.x, act, {num_tokens, gate_up.in_features});
  check.tensor("expert_ids", p.expert_ids, DType::kI32, {num_tokens, num_experts_per_tok});
  check.tensor("expert_weights", p.expert_weights, DType::kF32, {num_tokens, num_experts_per_tok});
  if (p.shared.defined()) check.tensor("shared", p.shared, act, {num_tokens, down.out_features});
  if (p.shared_gate.defined()) check.tensor("shared_gate", p.shared_gate, DType::kF32, {num_tokens, 1});
  check.tensor("out", p.out, act, {num_tokens, down.out_features});
  CHECK(gate_up.num_matrices == down.num_matrices, "{}: {} experts have a gate, {} a down projection", op,
        gate_up.num_matrices, down.num_matrices);
  CHECK(gate_up.out_features == 2 * down.in_features, "{}: {} gate and up rows, {} columns of down", op,
        gate_up.out_features, down.in_features);
  CHECK(p.expert_ids.dim(1) <= kMaxExpertsPerTok, "{}: {} experts a token", op, p.expert_ids.dim(1));
}

namespace {

void check_latent(const char* op, const KvView& kv, DType act) {
  const DType dtype = kv.desc.dtype;
  CHECK(kv.desc.kind == KvKind::kLatent, "{}: the cache is not latent", op);
  CHECK(dtype == act || dtype == DType::kI8 || (dtype == DType::kBf16 && act == DType::kF32),
        "{}: a cache of {} beside activations of {}", op, dtype_name(dtype), dtype_name(act));
  CHECK(kv.desc.kv_block_size > 0 && kv.desc.kv_block_size % 16 == 0, "{}: kv_block_size {} is no multiple of 16", op,
        kv.desc.kv_block_size);
  CHECK(kv.desc.kv_lora_rank > 0 && kv.desc.qk_rope_head_dim > 0 && kv.block_bytes > 0, "{}: an empty cache", op);
}

}  // namespace

void check_params(const LatentWriteParams& p) {
  ShapeCheck check("latent_write");
  const DType act = act_dtype("latent_write", p.latent);
  const Dim num_tokens = check.dim("num_tokens");
  check_latent("latent_write", p.kv, act);
  check.tensor("latent", p.latent, act, {num_tokens, p.kv.desc.latent_width()});
  check.tensor("slot_mapping", p.slot_mapping, DType::kI32, {num_tokens});
}

void check_params(const AttentionLatentParams& p) {
  const char* op = "attention_latent";
  ShapeCheck check(op);
  const DType act = act_dtype(op, p.q_latent);
  const Dim num_tokens = check.dim("num_tokens"), num_heads = check.dim("num_heads"), num_seqs = check.dim("num_seqs");
  check_latent(op, p.kv, act);
  check_heads(check, "q_latent", p.q_latent, act, num_tokens, num_heads, p.kv.desc.kv_lora_rank);
  check_heads(check, "q_rope", p.q_rope, act, num_tokens, num_heads, p.kv.desc.qk_rope_head_dim);
  check_heads(check, "out", p.out, act, num_tokens, num_heads, p.kv.desc.kv_lora_rank);
  check.tensor("block_table", p.block_table, DType::kI32, {check.dim("max_num_seqs"), check.dim("max_blocks_per_seq")});
  check.tensor("seq_rows", p.seq_rows, DType::kI32, {num_seqs});
  check.tensor("seq_lens", p.seq_lens, DType::kI32, {num_seqs});
  check.tensor("cu_seqlens_q", p.cu_seqlens_q, DType::kI32, {p.seq_rows.dim(0) + 1});
}

void check_params(const AttentionLatentExpandedParams& p) {
  const char* op = "attention_latent_expanded";
  ShapeCheck check(op);
  const DType act = act_dtype(op, p.q);
  const Dim num_tokens = check.dim("num_tokens"), num_heads = check.dim("num_heads"), num_seqs = check.dim("num_seqs");
  check_latent(op, p.kv, act);
  CHECK(p.q.rank() == 3 && p.out.rank() == 3 && p.qk_nope_head_dim() > 0, "{}: heads of {} and {}", op,
        p.q.shape_string(), p.out.shape_string());
  check_heads(check, "q", p.q, act, num_tokens, num_heads, p.q.dim(2));
  check_heads(check, "out", p.out, act, num_tokens, num_heads, p.v_head_dim());
  const WeightDesc& up = p.kv_up->desc();
  const int64_t rows = p.q.dim(1) * (p.qk_nope_head_dim() + p.v_head_dim());
  CHECK(up.out_features == rows && up.in_features == p.kv.desc.kv_lora_rank && !up.spec.has_integer_codes(),
        "{}: kv_up [{}, {}] of {}, not floats [{}, {}]", op, up.out_features, up.in_features, weight_spec_name(up.spec),
        rows, p.kv.desc.kv_lora_rank);
  check.tensor("block_table", p.block_table, DType::kI32, {check.dim("max_num_seqs"), check.dim("max_blocks_per_seq")});
  check.tensor("seq_rows", p.seq_rows, DType::kI32, {num_seqs});
  check.tensor("seq_lens", p.seq_lens, DType::kI32, {num_seqs});
  check.tensor("cu_seqlens_q", p.cu_seqlens_q, DType::kI32, {p.seq_rows.dim(0) + 1});
}

void check_params(const LinearHeadsParams& p) {
  ShapeCheck check("linear_heads");
  const DType act = act_dtype("linear_heads", p.x);
  const WeightDesc& desc = p.weight->desc();
  const Dim num_tokens = check.dim("num_tokens");
  check_heads(check, "x", p.x, act, num_tokens, desc.num_matrices, desc.in_features);
  check_heads(check, "out", p.out, act, num_tokens, desc.num_matrices, desc.out_features);
}

void check_params(const AddRmsNormParams& p) {
  ShapeCheck check("add_rms_norm");
  const DType act = act_dtype("add_rms_norm", p.x);
  const Dim num_tokens = check.dim("num_tokens"), hidden_size = check.dim("hidden_size");
  check.tensor("x", p.x, act, {num_tokens, hidden_size});
  check.tensor("residual", p.residual, act, {num_tokens, hidden_size});
  check.tensor("out", p.out, act, {num_tokens, hidden_size});
  check.tensor("weight", p.weight, act, {hidden_size});
  check_reader("add_rms_norm", p.reader, p.out);
}

void check_params(const ExpertMlpAddNormParams& p) {
  check_params(p.experts);
  check_params(p.norm);
  CHECK(p.norm.x.raw() == p.experts.out.raw() && p.norm.x.shape_string() == p.experts.out.shape_string(),
        "expert_mlp_add_norm: the norm reads {}, the experts write {}", p.norm.x.shape_string(),
        p.experts.out.shape_string());
}

void check_params(const LatentNormRopeWriteParams& p) {
  const char* op = "latent_norm_rope_write";
  check_params(LatentWriteParams{.latent = p.latent, .slot_mapping = p.slot_mapping, .kv = p.kv});
  ShapeCheck check(op);
  const DType act = act_dtype(op, p.latent);
  const Dim num_tokens = check.dim("num_tokens");
  check_heads(check, "q_rope", p.q_rope, act, num_tokens, check.dim("num_heads"), p.kv.desc.qk_rope_head_dim);
  check.tensor("norm", p.norm, act, {p.kv.desc.kv_lora_rank});
  check.tensor("positions", p.positions, DType::kI32, {num_tokens});
  check.tensor("slot_mapping", p.slot_mapping, DType::kI32, {num_tokens});
  check.tensor("cos_sin", p.cos_sin, DType::kF32, {check.dim("max_positions"), p.kv.desc.qk_rope_head_dim});
}

void check_params(const QkNormRopeKvWriteParams& p) {
  const char* op = "qk_norm_rope_kv_write";
  ShapeCheck check(op);
  const DType act = act_dtype(op, p.q);
  const Dim num_tokens = check.dim("num_tokens");
  const int64_t head_dim = p.kv.desc.head_dim;
  check_kv(op, p.kv, act);
  check_heads(check, "q", p.q, act, num_tokens, check.dim("num_heads"), head_dim);
  check_heads(check, "k", p.k, act, num_tokens, p.kv.desc.num_kv_heads, head_dim);
  check_heads(check, "v", p.v, act, num_tokens, p.kv.desc.num_kv_heads, head_dim);
  if (p.q_norm.defined()) check.tensor("q_norm", p.q_norm, act, {head_dim});
  if (p.k_norm.defined()) check.tensor("k_norm", p.k_norm, act, {head_dim});
  check.tensor("positions", p.positions, DType::kI32, {num_tokens});
  check.tensor("slot_mapping", p.slot_mapping, DType::kI32, {num_tokens});
  check.tensor("cos_sin", p.cos_sin, DType::kF32, {check.dim("max_positions"), check.dim("rotary_dim")});
  CHECK(p.cos_sin.dim(1) % 2 == 0 && p.cos_sin.dim(1) <= head_dim, "{}: rotary_dim {} of head_dim {}", op,
        p.cos_sin.dim(1), head_dim);
}

void check_params(const QkNormRopeAttentionParams& p) {
  check_params(p.write);
  check_params(p.attention);
  CHECK(p.write.q.raw() == p.attention.q.raw() && p.write.kv.data == p.attention.kv.data,
        "qk_norm_rope_attention: attention of another q or cache");
}

void check_params(const LinearSiluAndMulParams& p) {
  ShapeCheck check("linear_silu_and_mul");
  const DType act = act_dtype("linear_silu_and_mul", p.x);
  const Dim num_tokens = check.dim("num_tokens");
  const WeightDesc& desc = p.weight->desc();
  check_matrix("linear_silu_and_mul", *p.weight, p.matrix_idx);
  CHECK(desc.out_features % 2 == 0, "linear_silu_and_mul: {} output features", desc.out_features);
  check.tensor("x", p.x, act, {num_tokens, desc.in_features});
  if (p.bias.defined()) check.tensor("bias", p.bias, act, {desc.out_features});
  check.tensor("out", p.out, act, {num_tokens, desc.out_features / 2});
  check_reader("linear_silu_and_mul", p.reader, p.out);
}

}  // namespace spate
