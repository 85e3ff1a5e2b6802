// PartFactory: makes the parts of a model with the sizes of its config.json, so that a family's file says only how they
// are wired and what is special. Parts of other kinds are made from parameters().
//
// Lives while a model is made; used by its thread only.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "layer/grouped_query_attention.h"
#include "layer/mixture_of_experts.h"
#include "layer/mlp.h"
#include "layer/multi_head_latent_attention.h"
#include "layer/rms_norm.h"
#include "layer/rotary_embedding.h"
#include "layer/vocabulary.h"
#include "model/model.h"

namespace spate {

class PartFactory {
 public:
  PartFactory(const ModelConfig& config, ParameterFactory& parameters, const ModelOptions& options)
      : config_(config), parameters_(parameters), options_(options) {}

  const ModelConfig& config() const { return config_; }
  ParameterFactory& parameters() const { return parameters_; }

  // Numbers of the layers to make: all, or those of ModelOptions::layers.
  std::vector<int64_t> layers() const;

  // How many layers for multi-token prediction to make: ModelOptions::num_mtp_layers, but no more than there are.
  int64_t num_mtp_layers() const { return std::min(options_.num_mtp_layers, config_.num_mtp_layers); }

  Result<VocabEmbedding> embedding(const std::string& name) const {
    return VocabEmbedding::create(parameters_, name, config_.vocab_size, config_.hidden_size);
  }
  // Pairs (j, j + rotary_dim / 2), or (2j, 2j + 1) when interleaved. Shared by the layers.
  Result<std::shared_ptr<const RotaryEmbedding>> rotary_embedding(bool interleaved = false) const;
  Result<RmsNorm> rms_norm(const std::string& name) const {
    return RmsNorm::create(parameters_, name, config_.hidden_size, config_.rms_norm_eps);
  }
  // Fills in hidden_size, head counts, head_dim and rms_norm_eps.
  Result<std::unique_ptr<Attention>> attention(GroupedQueryAttentionSpec spec) const;
  // Latent attention with the sizes of ModelConfig::latent; YaRN's mscale counts in its softmax_scale.
  Result<std::unique_ptr<Attention>> latent_attention(MultiHeadLatentAttentionSpec spec) const;
  Result<std::unique_ptr<FeedForward>> mlp(const std::string& name, bool has_bias = false) const {
    return Mlp::create(parameters_, name, config_.hidden_size, config_.intermediate_size, has_bias);
  }
  // Fills in the sizes of ModelConfig::experts, and how many of them a token uses with which weights.
  Result<std::unique_ptr<FeedForward>> experts(MixtureOfExpertsSpec spec) const;
  // The embedding's table where tie_word_embeddings says so.
  Result<LmHead> lm_head(const std::string& name, const VocabEmbedding& embedding) const;

 private:
  const ModelConfig& config_;
  ParameterFactory& parameters_;
  const ModelOptions& options_;
};

}  // namespace spate
