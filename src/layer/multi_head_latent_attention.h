// MultiHeadLatentAttention (MLA): keys and values of all heads are products of one short vector a token, and the cache
// holds that vector alone. Heads are sharded over the tensor-parallel group; the vector is on every rank.
//
//   x -> q_a_proj -> norm -> q_b_proj (or q_proj) -> q: nope part | rope part, of each head
//   x -> kv_a_proj_with_mqa -> latent (normed) | rope part -> cache
// The two products that read x are one, but where only the second has a bias.
//
// The absorbed form: with k = W_uk c and v = W_uv c, q . k = (W_uk^T q) . c, and the sum of v is W_uv (sum of c). So
// each head's query goes through W_uk, attention reads the latent vectors, and the result goes through W_uv. Both are
// parts of kv_b_proj, kept as floats: a quantised W_uk would show in scores.
//
// The expanded form computes k and v of every known token of a sequence first. Then a pair of query and key costs a
// third, so long prompts run so where the device can (StepBatch::long_prompts), and the other sequences of the step
// absorbed. Both read the same cache; they differ by roundings.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "layer/attention.h"
#include "layer/linear.h"
#include "layer/rms_norm.h"
#include "layer/rotary_embedding.h"

namespace spate {

// Sizes are over all ranks. Names are the checkpoint's.
struct MultiHeadLatentAttentionSpec {
  std::string name;  // "model.layers.0.self_attn"
  std::shared_ptr<const RotaryEmbedding> rotary;
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t q_lora_rank = 0;  // 0: q_proj instead of q_a_proj and q_b_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  float softmax_scale = 1;
  bool has_bias = false;  // of q_a_proj, kv_a_proj_with_mqa and o_proj
  bool expands = false;   // the device runs the expanded form: kv_b_proj is kept as it is too

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t latent_width() const { return kv_lora_rank + qk_rope_head_dim; }
};

class MultiHeadLatentAttention final : public Attention {
 public:
  static Result<std::unique_ptr<Attention>> create(ParameterFactory& factory, const MultiHeadLatentAttentionSpec& spec);

  const MultiHeadLatentAttentionSpec& spec() const { return spec_; }
  KvLayerDesc kv_layer() const override;
  void take_workspace(Arena& arena) override;
  // None yet: `spate quantize` does not take models with latent attention.
  void list_products(const std::string& norm, std::vector<Product>& products) const override;
  void forward(const StepContext& ctx, const KvView& kv, const Tensor& x, const Tensor& out) const override;
  void forward_output_rows(const StepContext& ctx, const KvView& kv, const Tensor& x, const Tensor& out) const override;

  void project(const StepContext& ctx, const Tensor& x) const override;
  void attend(const StepContext& ctx, const KvView& kv) const override;
  bool is_whole() const override { return num_heads_ == spec_.num_heads && !kv_a_proj_; }
  LinearParams first_product(int64_t num_tokens) const override {
    return {.weight = &x_proj_.weight(), .bias = x_proj_.bias(), .out = x_out_.rows(0, num_tokens)};
  }
  LinearParams last_product(int64_t num_tokens) const override {
    return {.x = heads_.rows(0, num_tokens), .weight = &o_proj_.weight(), .bias = o_proj_.bias()};
  }

 private:
  MultiHeadLatentAttention(const MultiHeadLatentAttentionSpec& spec, Linear x_proj, RmsNorm kv_a_norm, Linear o_proj)
      : spec_(spec), x_proj_(std::move(x_proj)), kv_a_norm_(std::move(kv_a_norm)), o_proj_(std::move(o_proj)) {}
  Status make_kv_b(ParameterFactory& factory, Range heads);

  int64_t x_width() const { return q_b_proj_ ? spec_.q_lora_rank : num_heads_ * spec_.qk_head_dim(); }
  Tensor queries(const StepContext& ctx) const;  // of x_out_: [num_tokens, num_heads * qk_head_dim]
  LatentNormRopeWriteParams write_params(const StepContext& ctx, const KvView& kv, const Tensor& q) const;
  // What the cache stores of x_out_ goes there; gives the queries, rotated.
  Tensor write_kv(const StepContext& ctx, const KvView& kv) const;
  // The first sequences of the step; of sequence s the rows of q from cu_seqlens_q[s] on.
  struct Queries {
    Tensor q;             // [num_queries, ...] as project() gives it
    Tensor cu_seqlens_q;  // [num_seqs + 1]
    int max_query_len = 0;

    int64_t num_seqs() const { return cu_seqlens_q.dim(0) - 1; }
  };
  // All of the step, each in the form that suits it. These give [num_queries, num_heads * v_head_dim].
  Tensor attend(const StepContext& ctx, const KvView& kv, const Tensor& q) const;
  AttentionLatentParams attention_params(const StepContext& ctx, const KvView& kv, const Queries& queries) const;
  Tensor attend_absorbed(const StepContext& ctx, const KvView& kv, const Queries& queries) const;
  void attend_long_prompts(const StepContext& ctx, const KvView& kv, const Tensor& q) const;

  const MultiHeadLatentAttentionSpec spec_;
  Linear x_proj_;                    // q_a_proj or q_proj, then kv_a_proj_with_mqa
  std::optional<Linear> kv_a_proj_;  // where it is not in x_proj_
  std::optional<RmsNorm> q_a_norm_;
  std::optional<Linear> q_b_proj_;
  RmsNorm kv_a_norm_;
  Linear o_proj_;
  std::unique_ptr<PackedWeight> k_up_;  // W_uk^T, a matrix [kv_lora_rank, qk_nope_head_dim] for each head of this rank
  std::unique_ptr<PackedWeight> v_up_;  // W_uv, [v_head_dim, kv_lora_rank]
  std::unique_ptr<PackedWeight> kv_up_;  // W_uk and W_uv of each head, one below the other; null: never expanded
  int64_t num_heads_ = 0;               // of this rank
  // Scratch of [max_num_tokens, ...] act.
  Tensor x_out_;       // [.., x_width + latent_width]
  Tensor q_;           // [.., num_heads * qk_head_dim], of q_b_proj
  Tensor rows_;        // output rows of q or heads_
  Tensor q_latent_;    // [.., num_heads * kv_lora_rank]
  Tensor out_latent_;  // [.., num_heads * kv_lora_rank]
  Tensor heads_;       // [.., num_heads * v_head_dim]
};

}  // namespace spate
