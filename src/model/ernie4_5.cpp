// ernie4_5.cpp: ERNIE 4.5 dense (0.3B).
//
// Special: RoPE turns neighbouring elements (2j, 2j + 1), not halves; use_bias gives every projection a bias; head_dim
// 128 beside hidden_size 1024 with 16 heads; embeddings are tied unless config.json says otherwise.
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
// Reference: transformers, models/ernie4_5/modeling_ernie4_5.py. Goldens: test/goldens/model/ernie4_5*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

Result<DecoderParts> make_ernie4_5(const PartFactory& make) {
  const ModelConfig& config = make.config();
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const auto rotary, make.rotary_embedding(/*interleaved=*/true));
  for (const int64_t i : make.layers()) {
    const std::string name = fmt::format("model.layers.{}", i);
    DecoderLayer& layer = model.layers.emplace_back();
    layer.name = name;
    ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(name + ".input_layernorm"));
    ASSIGN_OR_RETURN(
        layer.self_attn,
        make.attention(
            {.name = name + ".self_attn", .rotary = rotary, .qkv_bias = config.use_bias, .o_bias = config.use_bias}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp", config.use_bias));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace spate
