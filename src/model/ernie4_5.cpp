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
#include "model/families.h"

namespace spate {

DecoderSpec ernie4_5_spec(const ModelConfig& config) {
  return {
      .qkv_bias = config.use_bias,
      .o_bias = config.use_bias,
      .mlp_bias = config.use_bias,
      .interleaved_rope = true,
  };
}

}  // namespace spate
