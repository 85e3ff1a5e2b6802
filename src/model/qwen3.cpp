// qwen3.cpp: Qwen3 dense models (0.6B to 32B).
//
// Special: RMSNorm on each q and k head before RoPE; head_dim is its own key, not hidden_size / num_heads (0.6B: 1024 /
// 16 = 64, but head_dim is 128). The small ones tie their embeddings.
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
// Reference: transformers, models/qwen3/modeling_qwen3.py. Goldens: test/goldens/model/qwen3*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

Result<DecoderParts> make_qwen3(const PartFactory& make) {
  const ModelConfig& config = make.config();
  const std::vector<int64_t> windows = layer_windows(config, config.use_sliding_window ? config.sliding_window : 0);
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
                                                      .o_bias = config.attention_bias,
                                                      .qk_norm = true,
                                                      .window = windows[static_cast<size_t>(i)]}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp"));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace spate
