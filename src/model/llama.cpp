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
#include "model/families.h"

namespace spate {

DecoderSpec llama_spec(const ModelConfig& config) {
  return {
      .qkv_bias = config.attention_bias,
      .o_bias = config.attention_bias,
      .mlp_bias = config.mlp_bias,
  };
}

}  // namespace spate
