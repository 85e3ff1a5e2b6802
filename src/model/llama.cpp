// llama.cpp: Llama 2 and 3.x, and the many models that use its code (Yi, SmolLM, DeepSeek-LLM, ...).
//
// Special: nothing, it is the plain decoder; 3.1 and later scale RoPE by wavelength ("llama3"). attention_bias and
// mlp_bias are off in Meta's models and on in some relatives.
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
// Reference: transformers, models/llama/modeling_llama.py. Goldens: test/goldens/model/llama*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

Result<DecoderParts> make_llama(const PartFactory& make) {
  const ModelConfig& config = make.config();
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
                                                      .qkv_bias = config.attention_bias,
                                                      .o_bias = config.attention_bias}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp", config.mlp_bias));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace spate
