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
#include "model/families.h"

namespace spate {

DecoderSpec qwen3_spec(const ModelConfig& config) {
  return {
      .qkv_bias = config.attention_bias,
      .o_bias = config.attention_bias,
      .qk_norm = true,
      .windows = layer_windows(config, config.use_sliding_window ? config.sliding_window : 0),
  };
}

}  // namespace spate
