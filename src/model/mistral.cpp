// mistral.cpp: Mistral 7B, Nemo, Small.
//
// Special: sliding_window, when it is set (7B v0.1: 4096), holds for every layer, or for those that layer_types names.
// Nemo's and Small's head_dim is its own key.
//
//   input_ids                     [num_tokens]
//   embed_tokens               -> [num_tokens, hidden_size]
//   num_layers x layer         -> [num_tokens, hidden_size], residual beside it
//   norm, rows to be sampled   -> [num_logits, hidden_size]
//   lm_head                    -> [num_logits, vocab_size]
//
// Tensor parallel: q, k, v, gate, up and the vocabulary by rows of the weight; o, down by columns: two all-reduces
// a layer.
//
// Reference: transformers, models/mistral/modeling_mistral.py. Goldens: test/goldens/model/mistral*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

Result<DecoderParts> make_mistral(const PartFactory& make) {
  const ModelConfig& config = make.config();
  const std::vector<int64_t> windows = layer_windows(config, config.sliding_window);
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const auto rotary, make.rotary_embedding());
  for (const int64_t i : make.layers()) {
    const std::string name = fmt::format("model.layers.{}", i);
    DecoderLayer& layer = model.layers.emplace_back();
    layer.name = name;
    ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(name + ".input_layernorm"));
    ASSIGN_OR_RETURN(layer.self_attn, make.attention({.name = name + ".self_attn",
                                                      .rotary = rotary,
                                                      .window = windows[static_cast<size_t>(i)]}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp"));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace spate
