// qwen2.cpp: Qwen2 and Qwen2.5 dense models.
//
// Special: q, k and v have a bias, o has none. With use_sliding_window the layers from max_window_layers on (or those
// that layer_types names) see only the last sliding_window tokens; the published models have it off. Long contexts use
// YaRN.
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
// Reference: transformers, models/qwen2/modeling_qwen2.py. Goldens: test/goldens/model/qwen2*.
#include "model/families.h"

namespace spate {

DecoderSpec qwen2_spec(const ModelConfig& config) {
  return {
      .qkv_bias = true,
      .windows = layer_windows(config, config.use_sliding_window ? config.sliding_window : 0),
  };
}

}  // namespace spate
