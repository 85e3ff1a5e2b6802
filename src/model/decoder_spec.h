// DecoderSpec: what is special about a family of dense decoders, as data. model/dense_decoder.cpp runs it; a family is
// a file that fills it in from config.json and a line in families.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/model_config.h"

namespace spate {

// The decoder that all of them are: pre-norm layers of grouped-query attention and a SwiGLU MLP, RoPE, RMSNorm.
struct DecoderSpec {
  // Weight names: <prefix>.embed_tokens, <prefix>.layers.N.{input_layernorm, self_attn.*, post_attention_layernorm,
  // mlp.*}, <prefix>.norm, <lm_head>. Tied embeddings have no lm_head.
  std::string prefix = "model";
  std::string lm_head = "lm_head";
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;           // RMSNorm of each q and k head before RoPE: self_attn.q_norm, self_attn.k_norm
  bool interleaved_rope = false;  // pairs (2j, 2j + 1) instead of (j, j + head_dim / 2)
  std::vector<int64_t> windows;   // [num_layers] tokens a query sees, 0: all; empty: all layers see all
};

// The window of each layer where layer_types, or else max_window_layers, says which layers slide. `window` 0: none
// does.
std::vector<int64_t> layer_windows(const ModelConfig& config, int64_t window);

}  // namespace spate
