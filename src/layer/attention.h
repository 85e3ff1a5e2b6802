// Attention: grouped-query attention over the paged KV cache, heads sharded over the tensor-parallel group.
#pragma once

#include <optional>
#include <string>

#include "layer/linear.h"
#include "layer/rms_norm.h"
#include "layer/rotary_embedding.h"

namespace spate {

// What is special about a model's attention, and its sizes over all ranks. Names are the checkpoint's.
struct AttentionSpec {
  std::string name;  // "model.layers.0.self_attn"; q_proj, k_proj, v_proj, o_proj, q_norm, k_norm lie below it
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;     // RMSNorm of each q and k head before RoPE
  double rms_norm_eps = 0;  // of qk_norm
  int64_t window = 0;       // tokens that a query sees, itself included; 0: all
};

class Attention {
 public:
  static Result<Attention> create(ParameterFactory& factory, const AttentionSpec& spec);

  // x [n, hidden_size] -> out [n, hidden_size], summed over the ranks. Writes k and v of the step's tokens to `kv`
  // first. Scratch: qkv [n, qkv_width()], heads [n, attn_width()].
  void forward(const StepContext& ctx, const RotaryEmbedding& rotary, const KvView& kv, const Tensor& x,
               const Tensor& qkv, const Tensor& heads, const Tensor& out) const;

  // The parts of forward(). k and v go to `kv`; what is left in qkv is q.
  void project_qkv(const StepContext& ctx, const RotaryEmbedding& rotary, const KvView& kv, const Tensor& x, const Tensor& qkv) const;
  Tensor q_of(const Tensor& qkv) const { return qkv.columns(0, attn_width()); }
  // q, out [num_queries, attn_width()]: of sequence s the rows from cu_seqlens_q[s] on, its last tokens.
  void attend(const StepContext& ctx, const KvView& kv, const Tensor& q, const Tensor& cu_seqlens_q, int max_query_len,
              const Tensor& out) const;
  void project_out(const StepContext& ctx, const Tensor& heads, const Tensor& out) const { o_proj_.forward(ctx, heads, out); }

  int64_t num_heads() const { return num_heads_; }        // of this rank
  int64_t num_kv_heads() const { return num_kv_heads_; }  // of this rank
  int64_t qkv_width() const { return (num_heads_ + 2 * num_kv_heads_) * head_dim_; }
  int64_t attn_width() const { return num_heads_ * head_dim_; }

 private:
  Attention(Linear qkv_proj, Linear o_proj) : qkv_proj_(std::move(qkv_proj)), o_proj_(std::move(o_proj)) {}

  Linear qkv_proj_, o_proj_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  int64_t num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
  int window_ = 0;
  float softmax_scale_ = 1;
};

}  // namespace spate
