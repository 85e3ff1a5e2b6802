// GroupedQueryAttention: query heads in groups that share a kv head, sharded over the tensor-parallel group.
//
//   x -> q_proj, k_proj, v_proj, fused -> norm of q and k heads (some models) -> RoPE -> cache -> attention -> o_proj
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "layer/attention.h"
#include "layer/linear.h"
#include "layer/rms_norm.h"
#include "layer/rotary_embedding.h"

namespace spate {

// What is special about a model's attention, and its sizes over all ranks. Names are the checkpoint's.
struct GroupedQueryAttentionSpec {
  std::string name;  // "model.layers.0.self_attn"; q_proj, k_proj, v_proj, o_proj, q_norm, k_norm lie below it
  std::shared_ptr<const RotaryEmbedding> rotary;
  int64_t hidden_size = 0;
  int64_t input_size = 0;  // columns of x; 0: hidden_size
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 0;  // of qk_norm
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;  // RMSNorm of each q and k head before RoPE
  int64_t window = 0;    // tokens that a query sees, itself included; 0: all
};

class GroupedQueryAttention final : public Attention {
 public:
  static Result<std::unique_ptr<Attention>> create(ParameterFactory& factory, const GroupedQueryAttentionSpec& spec);

  const GroupedQueryAttentionSpec& spec() const { return spec_; }
  KvLayerDesc kv_layer() const override;
  void take_workspace(Arena& arena) override;
  void list_products(const std::string& norm, std::vector<Product>& products) const override;
  const PackedWeight* x_reader() const override { return &qkv_proj_.weight(); }
  void forward(const StepContext& ctx, const KvView& kv, const Tensor& x, const Tensor& out) const override;
  void forward_output_rows(const StepContext& ctx, const KvView& kv, const Tensor& x, const Tensor& out) const override;

  void project(const StepContext& ctx, const Tensor& x) const override;
  void attend(const StepContext& ctx, const KvView& kv) const override;
  bool is_whole() const override { return num_heads_ == spec_.num_heads; }
  LinearParams first_product(int64_t num_tokens) const override {
    return {.weight = &qkv_proj_.weight(), .bias = qkv_proj_.bias(), .out = qkv_.rows(0, num_tokens)};
  }
  LinearParams last_product(int64_t num_tokens) const override {
    return {.x = heads_.rows(0, num_tokens), .weight = &o_proj_.weight(), .bias = o_proj_.bias()};
  }

 private:
  GroupedQueryAttention(const GroupedQueryAttentionSpec& spec, Linear qkv_proj, Linear o_proj)
      : spec_(spec), qkv_proj_(std::move(qkv_proj)), o_proj_(std::move(o_proj)) {}

  int64_t q_width() const { return num_heads_ * spec_.head_dim; }
  int64_t kv_width() const { return num_kv_heads_ * spec_.head_dim; }
  Tensor q_of(const Tensor& qkv) const { return qkv.columns(0, q_width()); }
  // Rope of q and k in place; k and v of qkv go to `kv`.
  QkNormRopeKvWriteParams write_params(const StepContext& ctx, const KvView& kv, const Tensor& qkv) const;
  // q, out [num_queries, q_width()]: of sequence s the rows from cu_seqlens_q[s] on, its last tokens.
  AttentionPagedParams attention_params(const StepContext& ctx, const KvView& kv, const Tensor& q,
                                        const Tensor& cu_seqlens_q, int max_query_len, const Tensor& out) const;

  const GroupedQueryAttentionSpec spec_;
  Linear qkv_proj_, o_proj_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  int64_t num_heads_ = 0, num_kv_heads_ = 0;  // of this rank
  Tensor qkv_;                                // [max_num_tokens, q_width + 2 * kv_width] scratch
  Tensor heads_;                              // [max_num_tokens, q_width] scratch
};

}  // namespace spate
