// Decoder: runs a pre-norm decoder, whatever its attention and feed-forward parts are. A family (model/families.h)
// makes the parts; a layer may differ from its neighbours in all of them.
//
//   residual = embed_tokens(token_ids)
//   of each layer:   residual += self_attn(input_layernorm(residual))
//                    residual += mlp(post_attention_layernorm(residual))
//   logits = lm_head(norm(residual of the rows that are sampled))
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layer/attention.h"
#include "layer/feed_forward.h"
#include "layer/linear.h"
#include "layer/rms_norm.h"
#include "layer/vocabulary.h"
#include "model/families.h"
#include "model/model.h"

namespace spate {

struct DecoderLayer {
  std::string name;  // "model.layers.3": its weights lie below
  RmsNorm input_layernorm;
  std::unique_ptr<Attention> self_attn;
  RmsNorm post_attention_layernorm;
  std::unique_ptr<FeedForward> mlp;
};

// A layer for multi-token prediction. It shares embedding and lm_head with the model.
//
//   residual = eh_proj [enorm(embed_tokens(next token)) | hnorm(norm of the source (hidden state))]
//   residual = layer(residual)
//   logits   = lm_head(norm(residual)), with the model's own norm where the layer has none
struct MtpModule {
  RmsNorm enorm, hnorm;
  Linear eh_proj;  // [hidden_size, 2 * hidden_size]
  DecoderLayer layer;
  std::optional<RmsNorm> norm;
};

struct DecoderParts {
  VocabEmbedding embed_tokens;
  std::vector<DecoderLayer> layers;
  RmsNorm norm;
  LmHead lm_head;
  std::vector<MtpModule> mtp;
};

class Decoder final : public Model {
 public:
  // Without a device it only counts and declares: of the rest only memory(), outline() and verify() may be called.
  static Result<std::unique_ptr<Decoder>> create(const ModelFamily& family, const ModelConfig& config, Device* device,
                                                 TensorParallel tp, const ModelOptions& options);

  ModelMemory memory() const;
  Status verify(const WeightSource& source) const { return loader_->verify(source); }  // before load

  Status load(const WeightSource& source, const LoadProgress& progress) override;
  Status load_dummy(uint64_t seed, const LoadProgress& progress) override;
  const std::vector<KvLayerDesc>& kv_layers() const override { return kv_layers_; }
  const std::vector<KvLayerDesc>& mtp_kv_layers() const override { return mtp_kv_layers_; }
  ModelOutline outline() const override;
  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  Tensor forward(const StepContext& ctx) override;
  Tensor hidden_states(const StepBatch& batch) const override;
  Tensor compute_normed(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) override;
  Tensor compute_logits(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) override;
  Tensor mtp_forward(const StepContext& ctx, const MtpRun& run) override;
  Tensor compute_mtp_logits(const StepContext& ctx, int64_t mtp_idx, const Tensor& hidden_states,
                            const Tensor& row_ids) override;
  void embed(const StepContext& ctx, const Tensor& out) override {
    parts_.embed_tokens.forward(ctx, ctx.batch.inputs.token_ids, out);
  }
  void set_input_follower(InputFollower follower) override { input_follower_ = std::move(follower); }
  void set_tap(Tap tap) override;

 private:
  // Of the largest step; a step uses the first rows. T = max_num_batched_tokens, L = max_num_logits.
  // Parts of layers take theirs in the same memory, one after the other.
  struct Workspace {
    Tensor residual, x;   // [T, hidden_size] act
    Tensor joined;        // [T, 2 * hidden_size] act, with layers for multi-token prediction
    Tensor sampled;       // [L, hidden_size] act
    Tensor logits_shard;  // [L, shard_width] f32
    Tensor logits;        // [L, size * shard_width] f32, on rank 0 of several
  };

  Decoder(const ModelConfig& config, Device* device, const ModelOptions& options)
      : config_(config), options_(options), device_(device) {}
  int64_t lay_out_workspace(void* base, TensorParallel tp);  // gives its bytes
  // A layer but its first norm, which gave x. Its output is residual + x.
  // With norms.next: what that gives.
  static void run_layer(const StepContext& ctx, const DecoderLayer& layer, const KvView& kv, const NormsAround& norms,
                        const Tensor& residual, const Tensor& x);
  // The same of the last layer, with what follows: leaves the sum, of ctx.batch.output_rows alone where these are
  // wanted, in the tensor that it returns, hidden_states().
  Tensor run_last_layer(const StepContext& ctx, const DecoderLayer& layer, const KvView& kv, const Tensor& residual,
                        const Tensor& x);
  // Of what a layer for multi-token prediction gives; -1: the model's.
  const RmsNorm& norm_of(int64_t mtp_idx) const {
    if (mtp_idx < 0) return parts_.norm;
    const std::optional<RmsNorm>& norm = parts_.mtp[static_cast<size_t>(mtp_idx)].norm;
    return norm ? *norm : parts_.norm;
  }
  Tensor norm_rows(const StepContext& ctx, const RmsNorm& norm, const Tensor& hidden_states, const Tensor& row_ids);
  Tensor run_head(const StepContext& ctx, const Tensor& normed);
  bool few_outputs(const StepBatch& batch) const { return batch.output_rows.defined() && !tap_; }
  void tap(const StepContext& ctx, int64_t layer_idx, const Tensor& residual, const Tensor& x);

  const ModelConfig config_;
  const ModelOptions options_;
  Device* const device_;
  std::unique_ptr<WeightLoader> loader_;  // until the weights are filled
  std::vector<KvLayerDesc> kv_layers_, mtp_kv_layers_;
  int64_t num_parameters_ = 0, weight_bytes_ = 0, workspace_bytes_ = 0;

  DecoderParts parts_;
  Buffer workspace_buffer_;
  Workspace workspace_;
  InputFollower input_follower_;
  Tap tap_;
  Buffer tap_buffer_;
};

}  // namespace spate
