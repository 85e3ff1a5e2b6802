// glm4_moe.cpp: GLM-4.5, GLM-4.5-Air, GLM-4.6.
//
// Special: RoPE on the first half of each head; a bias of q, k and v alone; RMSNorm on each q and k head where
// use_qk_norm says so. The first layers are dense, the others have DeepSeek-V3's experts: sigmoid scores, a bias for
// the choice, one shared expert. Behind the last layer lies one for multi-token prediction.
//
//   input_ids                     [num_tokens]
//   embed_tokens               -> [num_tokens, hidden_size]
//   num_layers x layer         -> [num_tokens, hidden_size], residual beside it
//   norm, rows to be sampled   -> [num_logits, hidden_size]
//   lm_head                    -> [num_logits, vocab_size]
//
// Tensor parallel: q, k, v, gate, up (of each expert) and the vocabulary by rows of the weight; o, down by columns: two
// all-reduces a layer. The router is on every rank.
//
// Reference: transformers, models/glm4_moe/modeling_glm4_moe.py. Goldens: test/goldens/model/glm4_moe*.
#include <algorithm>

#include "model/mtp_modules.h"

namespace spate {

Result<DecoderParts> make_glm4_moe(const PartFactory& make) {
  const ModelConfig& config = make.config();
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const auto rotary, make.rotary_embedding());
  const auto make_layer = [&](int64_t i) -> Result<DecoderLayer> {
    DecoderLayer layer;
    layer.name = fmt::format("model.layers.{}", i);
    ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(layer.name + ".input_layernorm"));
    ASSIGN_OR_RETURN(layer.self_attn, make.attention({.name = layer.name + ".self_attn",
                                                      .rotary = rotary,
                                                      .qkv_bias = config.attention_bias,
                                                      .qk_norm = config.use_qk_norm}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(layer.name + ".post_attention_layernorm"));
    if (config.experts.in_layer(std::min(i, config.num_layers - 1))) {
      ASSIGN_OR_RETURN(layer.mlp,
                       make.experts({.name = layer.name + ".mlp",
                                     .routing = {.scores = ExpertScores::kSigmoid, .group_scores = GroupScores::kTop2Sum},
                                     .correction_bias = layer.name + ".mlp.gate.e_score_correction_bias",
                                     .shared_name = "shared_experts"}));
    } else {
      ASSIGN_OR_RETURN(layer.mlp, make.mlp(layer.name + ".mlp"));
    }
    return layer;
  };
  for (const int64_t i : make.layers()) {
    ASSIGN_OR_RETURN(DecoderLayer layer, make_layer(i));
    model.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  ASSIGN_OR_RETURN(model.mtp, make_mtp_modules(make, make_layer));
  return model;
}

}  // namespace spate
