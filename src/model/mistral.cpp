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
#include "model/families.h"

namespace spate {

DecoderSpec mistral_spec(const ModelConfig& config) {
  return {
      .windows = layer_windows(config, config.sliding_window),
  };
}

}  // namespace spate
