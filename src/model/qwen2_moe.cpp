// qwen2_moe.cpp: Qwen1.5-MoE, Qwen2-57B-A14B.
//
// Special: beside the experts a shared one, which a gate of its own scales for each token. The weights of a token's
// experts are their shares of the softmax over all, not divided by their sum unless norm_topk_prob says so. Layers of
// mlp_only_layers, and those that decoder_sparse_step leaves out, are dense. q, k and v have a bias.
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
// Reference: transformers, models/qwen2_moe/modeling_qwen2_moe.py. Goldens: test/goldens/model/qwen2_moe*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

Result<DecoderParts> make_qwen2_moe(const PartFactory& make) {
  const ModelConfig& config = make.config();
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const auto rotary, make.rotary_embedding());
  for (const int64_t i : make.layers()) {
    const std::string name = fmt::format("model.layers.{}", i);
    DecoderLayer& layer = model.layers.emplace_back();
    layer.name = name;
    ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(name + ".input_layernorm"));
    ASSIGN_OR_RETURN(layer.self_attn,
                     make.attention({.name = name + ".self_attn", .rotary = rotary, .qkv_bias = config.qkv_bias}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    if (!config.experts.in_layer(i)) {
      ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp"));
      continue;
    }
    ASSIGN_OR_RETURN(layer.mlp,
                     make.experts({.name = name + ".mlp", .shared_name = "shared_expert", .has_shared_gate = true}));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace spate
