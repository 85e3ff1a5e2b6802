// DenseDecoder: runs any DecoderSpec. The only implementation of Model for dense families.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layer/attention.h"
#include "layer/mlp.h"
#include "layer/rms_norm.h"
#include "layer/rotary_embedding.h"
#include "layer/vocabulary.h"
#include "model/decoder_spec.h"
#include "model/model.h"

namespace spate {

class DenseDecoder final : public Model {
 public:
  // Without a device it only counts and declares: of the rest only memory() and verify() may be called.
  static Result<std::unique_ptr<DenseDecoder>> create(const DecoderSpec& spec, const ModelConfig& config,
                                                      Device* device, TensorParallel tp, const ModelOptions& options);

  ModelMemory memory() const;
  Status verify(const WeightSource& source) const { return loader_->verify(source); }  // before load

  Status load(const WeightSource& source, const LoadProgress& progress) override;
  Status load_dummy(uint64_t seed, const LoadProgress& progress) override;
  const std::vector<KvGroupDesc>& kv_groups() const override { return kv_groups_; }
  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  Tensor forward(const StepContext& ctx) override;
  Tensor compute_logits(const StepContext& ctx, const Tensor& row_ids) override;
  void set_tap(Tap tap) override;

 private:
  struct Layer {
    RmsNorm input_layernorm;
    Attention self_attn;
    RmsNorm post_attention_layernorm;
    Mlp mlp;
  };
  // Of the largest step; a step uses the first rows. T = max_num_batched_tokens, L = max_num_logits.
  struct Workspace {
    Tensor residual, x;   // [T, hidden_size] act
    Tensor qkv, heads;    // [T, qkv_width], [T, attn_width] act: during attention
    Tensor gate_up, act;  // [T, 2 * width], [T, width] act: during the MLP, in the same memory
    Tensor sampled;       // [L, hidden_size] act
    Tensor logits_shard;  // [L, shard_width] f32
    Tensor logits;        // [L, size * shard_width] f32, on rank 0 of several
  };

  DenseDecoder(const ModelConfig& config, Device* device, const ModelOptions& options)
      : config_(config), options_(options), device_(device) {}
  Status create_layers(const DecoderSpec& spec, ParameterFactory& factory);
  Status allocate_workspace(TensorParallel tp);
  // The last layer from its normed input in workspace_.x on, of ctx.batch.output_rows only.
  Tensor forward_output_rows(const StepContext& ctx);
  void tap(const StepContext& ctx, int64_t layer_idx, const Tensor& residual, const Tensor& x);

  const ModelConfig config_;
  const ModelOptions options_;
  Device* const device_;
  std::unique_ptr<WeightLoader> loader_;  // until the weights are filled
  std::vector<KvGroupDesc> kv_groups_;
  int64_t num_parameters_ = 0, weight_bytes_ = 0, workspace_bytes_ = 0;

  VocabEmbedding embed_tokens_;
  RotaryEmbedding rotary_emb_;
  std::vector<Layer> layers_;
  RmsNorm norm_;
  LmHead lm_head_;

  Buffer workspace_buffer_;
  Workspace workspace_;
  int64_t num_tokens_ = 0;  // of the last forward
  Tensor hidden_states_;    // what it gave
  Tap tap_;
  Buffer tap_buffer_;
};

}  // namespace spate
