// deepseek.cpp: DeepSeek-V2, V2-Lite, V3, R1.
//
// Special: latent attention, whose cache holds one short vector a token; RoPE of neighbouring elements, on a part of
// each head; YaRN with mscale. The first layers are dense, the others have experts beside shared ones. V2: softmax, in
// some models from the best groups alone. V3 and R1: sigmoid scores, a bias for the choice, groups by their two best
// experts. Behind the last layer lie those for multi-token prediction, made where they are wanted; their copies of the
// embedding and of lm_head are the model's own.
//
//   input_ids                     [num_tokens]
//   embed_tokens               -> [num_tokens, hidden_size]
//   num_layers x layer         -> [num_tokens, hidden_size], residual beside it
//   norm, rows to be sampled   -> [num_logits, hidden_size]
//   lm_head                    -> [num_logits, vocab_size]
//
// Tensor parallel: q (or q_b), kv_b, gate, up (of each expert) and the vocabulary by rows of the weight; o, down by
// columns: two all-reduces a layer. q_a, kv_a, the latent cache and the router are on every rank.
//
// Reference: transformers, models/deepseek_v2 and models/deepseek_v3. Goldens: test/goldens/model/deepseek*.
#include <algorithm>

#include "model/mtp_modules.h"

namespace spate {
namespace {

using Rotary = std::shared_ptr<const RotaryEmbedding>;
using MakeExperts = MixtureOfExpertsSpec (*)(const std::string& name);  // of the layer's name

Result<DecoderLayer> make_layer(const PartFactory& make, int64_t i, const Rotary& rotary, MakeExperts experts) {
  const ModelConfig& config = make.config();
  const std::string name = fmt::format("model.layers.{}", i);
  DecoderLayer layer;
  layer.name = name;
  ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(name + ".input_layernorm"));
  ASSIGN_OR_RETURN(
      layer.self_attn,
      make.latent_attention({.name = name + ".self_attn", .rotary = rotary, .has_bias = config.attention_bias}));
  ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
  // Layers for multi-token prediction are like the last one.
  if (config.experts.in_layer(std::min(i, config.num_layers - 1))) {
    ASSIGN_OR_RETURN(layer.mlp, make.experts(experts(name + ".mlp")));
  } else {
    ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp"));
  }
  return layer;
}

Result<DecoderParts> make_deepseek(const PartFactory& make, bool interleaved, MakeExperts experts) {
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const Rotary rotary, make.rotary_embedding(interleaved));
  for (const int64_t i : make.layers()) {
    ASSIGN_OR_RETURN(DecoderLayer layer, make_layer(make, i, rotary, experts));
    model.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  ASSIGN_OR_RETURN(model.mtp,
                   make_mtp_modules(make, [&](int64_t i) { return make_layer(make, i, rotary, experts); }));
  return model;
}

}  // namespace

Result<DecoderParts> make_deepseek_v2(const PartFactory& make) {
  return make_deepseek(make, /*interleaved=*/true, [](const std::string& name) {
    return MixtureOfExpertsSpec{.name = name, .shared_name = "shared_experts"};
  });
}

Result<DecoderParts> make_deepseek_v3(const PartFactory& make) {
  return make_deepseek(make, make.config().rope_interleave, [](const std::string& name) {
    return MixtureOfExpertsSpec{.name = name,
                                .routing = {.scores = ExpertScores::kSigmoid, .group_scores = GroupScores::kTop2Sum},
                                .correction_bias = name + ".gate.e_score_correction_bias",
                                .shared_name = "shared_experts"};
  });
}

}  // namespace spate
