// mixtral.cpp: Mixtral 8x7B, 8x22B.
//
// Special: every layer is experts, of which each token uses two; their weights are the softmax over these two. Files
// name the matrices w1 (gate), w3 (up) and w2 (down). A sliding_window, when it is set, holds for every layer.
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
// Reference: transformers, models/mixtral/modeling_mixtral.py. Goldens: test/goldens/model/mixtral*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

Result<DecoderParts> make_mixtral(const PartFactory& make) {
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
                     make.attention({.name = name + ".self_attn", .rotary = rotary, .window = config.sliding_window}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    // Written by transformers 5 as it has them in memory, they lie below another name.
    const bool is_renamed = make.parameters().checkpoint_has(name + ".mlp.gate.weight");
    ASSIGN_OR_RETURN(layer.mlp, make.experts({.name = name + (is_renamed ? ".mlp" : ".block_sparse_moe"),
                                              .gate_proj = "w1",
                                              .up_proj = "w3",
                                              .down_proj = "w2"}));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace spate
