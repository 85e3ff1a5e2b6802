// The op catalogue: what a back-end computes. Params structs state shapes, dtypes and aliasing; `act` below means the
// activation dtype, kBf16 or kF32, the same for all activation tensors of a model.
//
// Primitives must be set in a back-end's OpTable, those for experts and latent attention only where it runs models that
// have them. Fused ops may be null: bind_ops() puts the decomposition in their place and lists it, so that a fallback
// is visible. The reference back-end is the oracle of both.
//
// Numerics, the same in all back-ends: sums in fp32 (reference: fp64); each op's result is rounded once to its output
// dtype, fused ops round where their decomposition would. A row's result must not depend on the other rows of the batch
// when the device is made with deterministic = true.
//
// `reader` of an op is a promise of the caller: nothing but one linear or linear_silu_and_mul with this weight reads
// `out`, with matrix_idx 0, all its rows and before it is written again; and it is the next product or expert_mlp that
// runs. The op may then leave `out` unspecified and hand the product its x in another form, such as the 8-bit codes of
// its rows. The product's result is the same bits. Null: no such promise.
//
// Zero rows are legal everywhere and do nothing. Index tensors are kI32.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/tensor.h"
#include "core/step_plan.h"

namespace spate {

// out[i, :] = table[token_ids[i] - first_row, :], or zeros when that row is not in this shard of the table.
struct EmbeddingParams {
  Tensor token_ids;             // [num_tokens] i32
  const PackedWeight* table;    // [rows of this shard, hidden_size]
  int64_t first_row = 0;        // of the shard, in the whole vocabulary
  Tensor out;                   // [num_tokens, hidden_size] act
};

// out = x W^T + bias, accumulated in fp32. The weight's spec says what x becomes (quant/weight_format.h has the
// formulas): 8-bit codes, the same on every back-end, so that only the f32 sums over groups may differ; or it stays,
// and the product is that of a float weight.
struct LinearParams {
  Tensor x;                     // [num_tokens, in_features] act; row stride free
  const PackedWeight* weight;   // [out_features, in_features]
  Tensor bias;                  // [out_features] act, or undefined
  Tensor out;                   // [num_tokens, out_features] act or f32; row stride free; not x
  int64_t matrix_idx = 0;       // of the weight's matrices
};

// out = x * rsqrt(mean(x^2) + eps) rounded to act, times weight, rounded. As Hugging Face's LlamaRMSNorm.
struct RmsNormParams {
  Tensor x;       // [num_tokens, hidden_size] or [num_tokens, num_heads, head_dim] act; outer strides free
  Tensor weight;  // [last dim] act
  float eps;
  Tensor out;     // as x; may be x
};

// out = a + b
struct AddParams {
  Tensor a, b;  // [num_tokens, hidden_size] act
  Tensor out;   // same; may be a or b
};

// out = silu(gate) * up, where gate_up = [gate | up]; silu is computed in fp32 and rounded to act before the product.
struct SiluAndMulParams {
  Tensor gate_up;  // [num_tokens, 2 * intermediate_size] act
  Tensor out;      // [num_tokens, intermediate_size] act
  const PackedWeight* reader = nullptr;  // [.., intermediate_size]
};

// Rotates the first rotary_dim elements of every head in place.
// cos_sin[p] = [cos_0 .. cos_{r/2-1}, sin_0 .. sin_{r/2-1}] f32 for position p, r = rotary_dim.
// Pair j is (x[j], x[j + r/2]), or (x[2j], x[2j+1]) when interleaved:  (a, b) -> (a cos_j - b sin_j, b cos_j + a sin_j).
struct RopeParams {
  Tensor positions;  // [num_tokens] i32
  Tensor cos_sin;    // [max_positions, rotary_dim] f32
  Tensor x;          // [num_tokens, num_heads, head_dim] act, in-out; outer strides free
  bool interleaved = false;
};

// Puts k and v of each token at its slot (quantised where the cache holds kI8): block slot / kv_block_size, position slot % kv_block_size. A slot of -1 is skipped.
struct KvWriteParams {
  Tensor k, v;          // [num_tokens, num_kv_heads, head_dim] act; outer strides free
  Tensor slot_mapping;  // [num_tokens] i32
  KvView kv;
};

// Causal attention of every query token over its sequence in the paged cache (its own k and v are already written).
// Query i of a sequence stands at position seq_len - query_len + i and sees keys at positions
// [max(0, position - window + 1), position], all of them when window is 0.
// Query head h reads kv head h / (num_heads / num_kv_heads).
// A sequence of seq_len 0 is a dummy: its queries are skipped. Where q belongs to no sequence or a dummy, out is unspecified.
struct AttentionPagedParams {
  Tensor q;              // [num_tokens, num_heads, head_dim] act; outer strides free
  KvView kv;
  Tensor block_table;    // [max_num_seqs, max_blocks_per_seq] i32, rows of the running state
  Tensor seq_rows;       // [num_seqs] i32: the row of block_table of each sequence
  Tensor cu_seqlens_q;   // [num_seqs + 1] i32
  Tensor seq_lens;       // [num_seqs] i32, this step's tokens included
  int max_query_len = 0;  // host values, for launch shapes
  int max_seq_len = 0;
  float softmax_scale = 1;
  int window = 0;
  Tensor out;            // [num_tokens, num_heads, head_dim] act; contiguous or outer strides free
};

// out[i, :] = x[row_ids[i], :], zeros where row_ids[i] is -1
struct GatherRowsParams {
  Tensor x;        // [num_rows, width] any dtype
  Tensor row_ids;  // [n] i32
  Tensor out;      // [n, width]
};

// out[row_ids[i], :] = x[i, :]. A row id of -1 is skipped; no other occurs twice. Other rows of out stay.
struct ScatterRowsParams {
  Tensor x;        // [n, width] any dtype
  Tensor row_ids;  // [n] i32
  Tensor out;      // [num_rows, width], in-out
};

// The state of running sequences, on the device (core/step_plan.h says who writes what). All i32 unless said.
struct RowState {
  Tensor token_ids;            // [max_num_seqs, max_model_len]   prompt and output so far
  Tensor num_tokens;           // [max_num_seqs]                  how many of token_ids are known
  Tensor num_computed_tokens;  // [max_num_seqs]                  how many are in the KV cache
  Tensor block_table;          // [max_num_seqs, max_blocks_per_seq]
  Tensor sampling;             // [max_num_seqs, sizeof(RowSampling)] u8
  Tensor bias_ids;             // [max_num_seqs, kMaxLogitBias]
  Tensor bias_values;          // [max_num_seqs, kMaxLogitBias] f32
  Tensor stop_ids;             // [max_num_seqs, kMaxStopIds]     masked until min_tokens is reached
};

// The flat arrays of one step: counts are those of its StepKey.
struct StepInputs {
  Tensor token_ids;     // [num_tokens]
  Tensor positions;     // [num_tokens]
  Tensor slot_mapping;  // [num_tokens]
  Tensor seq_rows;      // [num_seqs]
  Tensor cu_seqlens_q;  // [num_seqs + 1]
  Tensor seq_lens;      // [num_seqs]
  // Of each row of logits that is sampled: 1 + num_drafts of a decode row, one of a prefill that ends.
  Tensor sample_token_idxs;  // [num_logits]  index into the step's tokens
  Tensor sample_state_rows;  // [num_logits]  row of the running state
  Tensor sample_offsets;  // [num_logits]  drafts before it in its row: 0 .. num_drafts
  Tensor sample_masks;    // [num_logits]  index of its token mask in the plan, -1 none
  Tensor sample_drafts;   // [num_logits]  the draft in its place where relaxed acceptance may keep it, else -1
};

// Applies the plan's row and block updates to the state. Runs before the step and is never replayed: its sizes vary freely.
struct ApplyUpdatesParams {
  const StepPlanHeader* plan_host;  // for launch sizes
  const void* plan;                 // the same bytes on the device
  RowState state;
};

// First op of a step: fills the inputs from the plan and the state.
// For sequence s of the plan, row r, its query tokens are token_ids[r, c .. c + query_len) with c =
// num_computed_tokens[r], their positions c, c+1, ..., their slots block_table[r, p / kv_block_size] * kv_block_size +
// p % kv_block_size. seq_lens[s] = c + query_len. Drafts of the plan are first written behind the row's known tokens:
// token_ids[r, num_tokens[r] .. + num_drafts), where those of kDraftsInRow are already. An id below 0, a missing token,
// becomes input token 0. Sampled sequences (flag kSample) are listed in plan order in sample_token_idxs,
// sample_state_rows, sample_offsets, sample_masks and sample_drafts: the last has the first num_relaxed drafts, else
// -1. cu_seqlens_q[0] = 0 is written also when no sequence runs: a step may carry nothing but updates and block copies.
//
// The plan's counts are read on the device. Inputs beyond them are dummies: tokens with id 0, position 0, slot -1,
// which belong to no sequence; sequences with row 0, seq_len 0, query_len 0; sampled ones with token 0, row -1, offset
// 0, mask -1, draft -1.
struct BeginStepParams {
  const void* plan;  // on the device
  RowState state;
  StepInputs inputs;
  int64_t kv_block_size;
};

// Chooses one token per logits row, as the token after the row's num_tokens[row] + offset first ones: with drafts,
// known tokens and `offset` drafts. Call that number n. In this order: logit_bias added; tokens that the mask does not
// allow set to -inf, and stop_ids while n < min_tokens_until; repetition penalty (tokens of prompt and output: logit >
// 0 ? logit / p : logit * p), then frequency_penalty * count and presence_penalty * (count > 0), both over output
// tokens, subtracted. temperature 0: the largest logit, the smallest id among equals. Else: logits / temperature; drop
// tokens with probability < min_p * the largest probability; keep the top_k largest (ties kept by smaller id); of
// these, renormalised, the shortest prefix in descending order whose probability sum reaches top_p (at least one
// token). The chosen token maximises logit + gumbel(id), gumbel = -log(-log(u)), u = uniform_open(philox4x32(seed, n,
// id / 4)[id % 4]). A row whose logits hold a NaN or +inf, or in which bias and masks leave no finite one, gets
// kNoToken.
//
// Relaxed acceptance: a draft d >= 0 of sample_drafts takes the place of the chosen token c where all of this holds,
// with logits as adjusted, and divided by the temperature unless that is 0:
//   c is none of the row's stop_ids and not its relaxed_end_id;
//   the logit of d is finite, and min_p, top_k and top_p keep d (temperature 0: they drop nothing);
//   fewer than relaxed_top_k tokens come before d in descending order, equal ones by id;
//   largest probability - probability of d <= relaxed_delta, of the softmax over all tokens.
struct SampleParams {
  Tensor logits;       // [num_logits, vocab_size] f32, unchanged
  Tensor sample_state_rows;  // [num_logits] i32: row of the state; -1: a dummy, its next token is 0
  Tensor sample_offsets;  // [num_logits] i32, or undefined: all 0
  Tensor sample_masks;    // [num_logits] i32: index of a mask of `plan`, -1 none; or undefined: none
  Tensor sample_drafts;   // [num_logits] i32: as in StepInputs; or undefined: none
  const void* plan = nullptr;  // on the device, with sample_masks
  RowState state;
  Tensor next_token_ids;  // [num_logits] i32 out; kNoToken where the logits are not finite
  Tensor is_relaxed;  // [num_logits] i32 out, with sample_drafts: 1 where a draft took the chosen token's place, else 0
};

// Where a row of logits stands, read on the host: for back-ends in its memory.
struct SamplePlace {
  int64_t row = -1;                // of the state; -1: a dummy
  int32_t num_tokens = 0;          // before the token that is chosen, drafts included
  const uint32_t* mask = nullptr;  // of the tokens that are allowed; nullptr: all
  int32_t draft = -1;              // that relaxed acceptance may keep; -1: none
};
SamplePlace sample_place(const SampleParams& p, int64_t logits_row);

// Log-probabilities of the raw logits: of a target token, its rank (1 = most probable), and of the most probable ones.
// A row whose target is kNoToken, or whose logits hold a NaN or +inf or none that is finite, gets rank 0, log-probabilities
// 0 and top_ids kNoToken.
struct LogprobsParams {
  Tensor logits;          // [num_logits, vocab_size] f32
  Tensor target_ids;      // [num_logits] i32
  Tensor target_logprob;  // [num_logits] f32 out
  Tensor target_rank;     // [num_logits] i32 out: 1 + number of tokens with a larger logit
  Tensor top_ids;         // [num_logits, num_top] i32 out, descending, ties by smaller id; num_top may be 0 (undefined tensor)
  Tensor top_logprobs;    // [num_logits, num_top] f32 out
};

// Last op of a step: moves the state on by what the step computed and chose. Of a sampled sequence with k drafts a are
// accepted: as many of the first as equal the next token of their place. Then num_tokens[row] += a + 1, the accepted
// drafts and the next token after them being token_ids from the old num_tokens[row] on, and num_computed_tokens[row] +=
// query_len - k + a. Without kSample only num_computed_tokens[row] += query_len. A draft below 0 is never accepted.
// A row that is full (num_tokens ==
// max_model_len) keeps its tokens and its count, the next token is dropped: the host runs a step behind, and a sequence
// that it has ended may run once more.
struct FinishStepParams {
  const void* plan;  // on the device
  RowState state;
  int64_t num_seqs;       // of the StepKey: not below what the plan has
  Tensor next_token_ids;  // [num_logits] i32, in plan order, then dummies; undefined when nothing is sampled
  Tensor num_accepted;    // [num_seqs] i32 out: a of each sequence of the plan; undefined: not wanted
};

// Copies whole blocks inside one layer's cache (a sequence that forks with a part-filled block).
struct KvCopyBlocksParams {
  KvView kv;
  Tensor src_dst;  // [num_copies, 2] i32 block ids; no id is both a source and a destination
};

// --- experts: set where a back-end runs models of experts, else null
// ---------------------------------------------------

enum class ExpertScores : uint8_t { kSoftmax, kSigmoid };
enum class GroupScores : uint8_t { kMax, kTop2Sum };

// How a token chooses its experts.
//
//   score[e]   softmax of the logits over all experts, or the sigmoid of logit e
//   choice[e]  score[e] + bias[e]
//   groups     experts lie in num_groups runs of neighbours. A group's score is its largest choice, or the sum of its
//   two
//              largest. Only experts of the num_chosen_groups best groups may be chosen.
//   chosen     the num_experts_per_tok experts of the largest choice
//   weight     score of the chosen one; with `normalises` divided by max(sum of the chosen scores, min_sum); times
//   scale
//
// All in f32. Of equal choices, and of equal groups, the smaller index comes first. Where two differ by less than the
// rounding of f32, either may. A NaN counts as the largest choice, so that it reaches the output.
struct ExpertRouting {
  ExpertScores scores = ExpertScores::kSoftmax;
  GroupScores group_scores = GroupScores::kMax;
  int64_t num_groups = 1, num_chosen_groups = 1;
  bool normalises = false;
  float min_sum = 0;
  float scale = 1;
};

constexpr int64_t kMaxExpertsPerTok = 64;

struct RouteExpertsParams {
  Tensor logits;  // [num_tokens, num_experts] f32; row stride free
  Tensor bias;    // [num_experts] f32, or undefined: zeros
  ExpertRouting routing;
  Tensor expert_ids;      // [num_tokens, num_experts_per_tok] i32 out, by falling choice
  Tensor expert_weights;  // [num_tokens, num_experts_per_tok] f32 out
};

// Of each token the weighted sum of what its experts give:
//   out = sigmoid(shared_gate) * shared + sum of expert_weights[i] * down(silu(gate(x)) * up(x)) of expert
//   expert_ids[i]
// gate, up, silu and their product are rounded to act as in linear_silu_and_mul; products with `down` stay f32. The sum
// is f32: the shared part, then experts by rising id. An id that is no matrix of the weights adds nothing; no other
// occurs twice for a token.
// Each expert that is used is read once a call, as far as the back-end's scratch allows.
struct ExpertMlpParams {
  Tensor x;                     // [num_tokens, hidden_size] act; row stride free
  Tensor expert_ids;            // [num_tokens, num_experts_per_tok] i32
  Tensor expert_weights;        // [num_tokens, num_experts_per_tok] f32
  const PackedWeight* gate_up;  // num_experts matrices [2 * intermediate_size, hidden_size]
  const PackedWeight* down;     // num_experts matrices [hidden_size, intermediate_size]
  Tensor shared;                // [num_tokens, hidden_size] act, or undefined: zeros; row stride free
  Tensor shared_gate;           // [num_tokens, 1] f32, or undefined: the factor is 1
  Tensor out;                   // [num_tokens, hidden_size] act; row stride free; may be x or shared
};

// --- latent attention: set where a back-end serves latent caches, else null -----------------------------------------------

// Puts the latent vector of each token at its slot, as KvWriteParams does.
struct LatentWriteParams {
  Tensor latent;        // [num_tokens, kv_lora_rank + qk_rope_head_dim] act; row stride free
  Tensor slot_mapping;  // [num_tokens] i32
  KvView kv;            // of KvKind::kLatent
};

// Causal attention over latent vectors (the absorbed form): all heads read the same ones. With c the first kv_lora_rank
// elements of a cached vector and r the others,
//   out[h] = sum over keys of softmax(softmax_scale * (q_latent[h] . c + q_rope[h] . r)) * c
// Sequences, positions and dummies as in AttentionPagedParams.
struct AttentionLatentParams {
  Tensor q_latent;  // [num_tokens, num_heads, kv_lora_rank] act; outer strides free
  Tensor q_rope;    // [num_tokens, num_heads, qk_rope_head_dim] act; outer strides free
  KvView kv;
  Tensor block_table;
  Tensor seq_rows;
  Tensor cu_seqlens_q;
  Tensor seq_lens;
  int max_query_len = 0;
  int max_seq_len = 0;
  float softmax_scale = 1;
  Tensor out;  // [num_tokens, num_heads, kv_lora_rank] act; outer strides free; not q_latent
};

// The same attention in the expanded form: each head has keys and values of its own, made of the latent vectors. With
// W_uk[h] and W_uv[h] the rows of head h of kv_up, and q = [q_nope, q_rope],
//   k[h] = [W_uk[h] c, r]    v[h] = W_uv[h] c
//   out[h] = sum over keys of softmax(softmax_scale * q[h] . k[h]) * v[h]
// k and v may be rounded to act. A pair of query and key costs a third of the absorbed form, but each key a product: for
// prompts. Tokens before cu_seqlens_q[0] belong to no sequence; their rows of `out` stay as they are.
// Null where Device::min_expanded_query_len() is always 0.
struct AttentionLatentExpandedParams {
  Tensor q;                   // [num_tokens, num_heads, qk_nope_head_dim + qk_rope_head_dim] act; outer strides free
  const PackedWeight* kv_up;  // [num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank] floats, as kv_b_proj
  KvView kv;
  Tensor block_table;
  Tensor seq_rows;
  Tensor cu_seqlens_q;
  Tensor seq_lens;
  int num_keys = 0;  // the sum of seq_lens
  float softmax_scale = 1;
  Tensor out;  // [num_tokens, num_heads, v_head_dim] act; outer strides free; not q

  int64_t v_head_dim() const { return out.dim(2); }
  int64_t qk_nope_head_dim() const { return q.dim(2) - kv.desc.qk_rope_head_dim; }
};

// out[t, h] = x[t, h] W_h^T: linear, with a matrix for each head.
struct LinearHeadsParams {
  Tensor x;                    // [num_tokens, num_heads, in_features] act; outer strides free
  const PackedWeight* weight;  // num_heads matrices [out_features, in_features]
  Tensor out;                  // [num_tokens, num_heads, out_features] act; outer strides free; not x
};

// --- fused ops --------------------------------------------------------------------------------------------------------

// residual = residual + x; out = rms_norm(residual)
struct AddRmsNormParams {
  Tensor x;         // [num_tokens, hidden_size] act
  Tensor residual;  // same, in-out
  Tensor weight;    // [hidden_size] act
  float eps;
  Tensor out;       // same; may be x
  const PackedWeight* reader = nullptr;  // [.., hidden_size]
};

// expert_mlp, then add_rms_norm of its result.
struct ExpertMlpAddNormParams {
  ExpertMlpParams experts;  // what is left in `out` is not said
  AddRmsNormParams norm;    // x is experts.out
};

// On the columns of one qkv row: rms_norm of each q head and k head (when the weights are defined), rope of both, then k and v
// to the cache. q stays in place; what is left in k is not said.
struct QkNormRopeKvWriteParams {
  Tensor q, k, v;            // [num_tokens, heads, head_dim] act, views of qkv, in-out
  Tensor q_norm, k_norm;     // [head_dim] act, or undefined
  float eps = 0;
  Tensor positions, cos_sin;
  bool interleaved = false;
  Tensor slot_mapping;
  KvView kv;
};

// qk_norm_rope_kv_write, then attention_paged over the same cache: attention.q is write.q. The tokens of a sequence are
// its last ones: position and slot of the last are those of key seq_len - 1. On return q, k and v are unspecified.
struct QkNormRopeAttentionParams {
  QkNormRopeKvWriteParams write;
  AttentionPagedParams attention;
};

// out = silu(x Wg^T) * (x Wu^T) with weight = [Wg; Wu].
struct LinearSiluAndMulParams {
  Tensor x;                    // [num_tokens, in_features] act
  const PackedWeight* weight;  // [2 * intermediate_size, in_features]
  Tensor bias;                 // [2 * intermediate_size] act, or undefined
  Tensor gate_up;              // [num_tokens, 2 * intermediate_size] act, scratch for the decomposition
  Tensor out;                  // [num_tokens, intermediate_size] act
  int64_t matrix_idx = 0;      // of the weight's matrices
  const PackedWeight* reader = nullptr;  // [.., intermediate_size]
};

// rms_norm of the first kv_lora_rank elements of each latent vector, rope of the others and of the queries' part, then
// latent_write.
struct LatentNormRopeWriteParams {
  Tensor q_rope;  // [num_tokens, num_heads, qk_rope_head_dim] act, in-out; outer strides free
  Tensor latent;  // [num_tokens, kv_lora_rank + qk_rope_head_dim] act, row stride free; what is left there is not said
  Tensor norm;    // [kv_lora_rank] act
  float eps = 0;
  Tensor positions, cos_sin;
  bool interleaved = false;
  Tensor slot_mapping;
  KvView kv;
};

template <typename Params>
using Op = void (*)(Stream& stream, const Params& params);

struct OpTable {
  // Primitives.
  Op<EmbeddingParams> embedding = nullptr;
  Op<LinearParams> linear = nullptr;
  Op<RmsNormParams> rms_norm = nullptr;
  Op<AddParams> add = nullptr;
  Op<SiluAndMulParams> silu_and_mul = nullptr;
  Op<RopeParams> rope = nullptr;
  Op<KvWriteParams> kv_write = nullptr;
  Op<AttentionPagedParams> attention_paged = nullptr;
  Op<GatherRowsParams> gather_rows = nullptr;
  Op<ScatterRowsParams> scatter_rows = nullptr;
  Op<ApplyUpdatesParams> apply_updates = nullptr;
  Op<BeginStepParams> begin_step = nullptr;
  Op<SampleParams> sample = nullptr;
  Op<LogprobsParams> logprobs = nullptr;
  Op<FinishStepParams> finish_step = nullptr;
  Op<KvCopyBlocksParams> kv_copy_blocks = nullptr;
  // Experts.
  Op<RouteExpertsParams> route_experts = nullptr;
  Op<ExpertMlpParams> expert_mlp = nullptr;
  // Latent attention.
  Op<LatentWriteParams> latent_write = nullptr;
  Op<AttentionLatentParams> attention_latent = nullptr;
  Op<LinearHeadsParams> linear_heads = nullptr;
  Op<AttentionLatentExpandedParams> attention_latent_expanded = nullptr;
  // Fused.
  Op<AddRmsNormParams> add_rms_norm = nullptr;
  Op<QkNormRopeKvWriteParams> qk_norm_rope_kv_write = nullptr;
  Op<QkNormRopeAttentionParams> qk_norm_rope_attention = nullptr;
  Op<LinearSiluAndMulParams> linear_silu_and_mul = nullptr;
  // Fused, of experts.
  Op<ExpertMlpAddNormParams> expert_mlp_add_norm = nullptr;
  // Fused, of latent attention.
  Op<LatentNormRopeWriteParams> latent_norm_rope_write = nullptr;
};

// The table with every fused op set, and the names of those that run as decompositions.
struct BoundOps {
  OpTable ops;
  std::vector<std::string> decomposed;
};
BoundOps bind_ops(const OpTable& table);

// The decompositions themselves, over stream.device().ops(): what bind_ops falls back to, and what conformance tests.
OpTable decompositions();

}  // namespace spate
