// ernie4_5_moe.cpp: ERNIE 4.5 with experts (21B-A3B, 300B-A47B).
//
// Special: ERNIE 4.5's attention (RoPE of neighbouring elements). The first layers are dense. A bias that training
// balanced decides which experts are chosen, not how much they weigh. Shared experts, if there are any, are one MLP of
// their widths together. The router stays f32. The layer for multi-token prediction is not used yet.
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
// Reference: transformers, models/ernie4_5_moe/modeling_ernie4_5_moe.py. Goldens: test/goldens/model/ernie4_5_moe*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

Result<DecoderParts> make_ernie4_5_moe(const PartFactory& make) {
  const ModelConfig& config = make.config();
  DecoderParts model;
  make.parameters().ignore("model.mtp_*");
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const auto rotary, make.rotary_embedding(/*interleaved=*/true));
  for (const int64_t i : make.layers()) {
    const std::string name = fmt::format("model.layers.{}", i);
    DecoderLayer& layer = model.layers.emplace_back();
    layer.name = name;
    ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(name + ".input_layernorm"));
    ASSIGN_OR_RETURN(layer.self_attn, make.attention({.name = name + ".self_attn", .rotary = rotary}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    if (!config.experts.in_layer(i)) {
      ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp"));
      continue;
    }
    ASSIGN_OR_RETURN(layer.mlp, make.experts({.name = name + ".mlp",
                                              .correction_bias = name + ".mlp.moe_statics.e_score_correction_bias",
                                              .correction_bias_is_row = true,
                                              .shared_name = "shared_experts"}));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace spate
