// EagleHead: an EAGLE-3 head, which drafts for a model. One layer that joins what is known at a token with the token
// after it, and guesses the one after that.
//
//   known    = fc [the inputs of three layers of the model], or the head's own output, to guess further
//   residual = known
//   x        = [input_layernorm(embed_tokens(next token)) | hidden_norm(known)]
//   residual += self_attn(x);  residual += mlp(post_attention_layernorm(residual))
//   logits   = lm_head(norm(residual)), of draft_vocab_size tokens; all others get kNotDrafted
//
// Tensor parallel as the model: q, k, v, gate, up and the vocabulary by rows of the weight; o, down by columns. fc is
// on every rank. Reference: tools/goldens/make_eagle_goldens.py. Goldens: test/goldens/eagle.
//
// Owned and called by the rank's thread. The target outlives it.
#pragma once

#include <memory>
#include <optional>

#include "model/decoder.h"
#include "weights/eagle_config.h"

namespace spate {

class EagleHead {
 public:
  // The logit of a token that the head does not have. Finite: a row with an infinite one would count as broken.
  static constexpr float kNotDrafted = -1e30f;

  // options.source: the head's checkpoint; options.limits are the target's.
  static Result<std::unique_ptr<EagleHead>> create(const EagleConfig& config, Model& target, Device& device,
                                                   TensorParallel tp, const ModelOptions& options);
  static Result<ModelMemory> memory(const EagleConfig& config, TensorParallel tp, const ModelOptions& options);

  // Exactly one of these, once.
  Status load(const WeightSource& source) { return loader_->load(source); }
  Status load_dummy(uint64_t seed) { return loader_->load_dummy(seed); }

  const EagleConfig& config() const { return config_; }
  const std::vector<KvLayerDesc>& kv_layers() const { return kv_layers_; }
  // [num_tokens, 3 * hidden_size] act of the target, or, is_own, [num_tokens, hidden_size] of an earlier forward(). As
  // with MtpRun the batch's token_ids are those of the tokens behind. Rows of batch.output_rows, or of all tokens.
  Tensor forward(const StepContext& ctx, const Tensor& known, bool is_own);
  Tensor hidden_states(const StepBatch& batch) const;  // what forward() returns
  // [n, vocab_size] f32 on rank 0, undefined on the others.
  Tensor compute_logits(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids);

 private:
  struct Workspace {
    Tensor residual, x;   // [T, hidden_size] act
    Tensor joined;        // [T, 2 * hidden_size] act
    Tensor sampled;       // [L, hidden_size] act
    Tensor logits_shard;  // [L, shard_width] f32
    Tensor gathered;      // [L, size * shard_width] f32, on rank 0 of several
    Tensor logits;        // [L, vocab_size] f32, on rank 0: columns that the head lacks are kNotDrafted from the start
  };

  EagleHead(const EagleConfig& config, Model* target, Device* device, const ModelOptions& options)
      : config_(config), options_(options), target_(target), device_(device) {}
  // Without target and device it only counts.
  static Result<std::unique_ptr<EagleHead>> make(const EagleConfig& config, Model* target, Device* device,
                                                 TensorParallel tp, const ModelOptions& options);
  int64_t lay_out_workspace(void* base, TensorParallel tp);  // gives its bytes
  Status fill_tables(TensorParallel tp);

  const EagleConfig config_;
  const ModelOptions options_;
  Model* const target_;
  Device* const device_;
  std::unique_ptr<WeightLoader> loader_;
  std::vector<KvLayerDesc> kv_layers_;
  int64_t num_parameters_ = 0, weight_bytes_ = 0, workspace_bytes_ = 0;

  std::optional<VocabEmbedding> embed_tokens_;  // a head without one shares the target's
  std::optional<Linear> fc_;
  RmsNorm hidden_norm_, input_layernorm_, post_attention_layernorm_, norm_;
  std::unique_ptr<Attention> self_attn_;
  std::unique_ptr<FeedForward> mlp_;
  LmHead lm_head_;
  Buffer workspace_buffer_, table_buffer_;
  Tensor target_ids_;  // [draft_vocab_size] i32
  Workspace workspace_;
};

}  // namespace spate
