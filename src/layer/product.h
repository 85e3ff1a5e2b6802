// Product: what a tool that rewrites weights (quantizer/) must know of a product y = x W^T inside a layer. Each part of
// a layer lists its own.
//
// Names are the checkpoint's, without ".weight" and ".bias".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace spate {

struct Product {
  // Matrices that are multiplied with the same x, one below the other in `weight`.
  struct Matrix {
    std::string name;           // "model.layers.3.self_attn.q_proj"
    bool feeds_scores = false;  // what rounding does to it shows in products of queries and keys, not in y alone
  };
  std::vector<Matrix> matrices;
  const PackedWeight* weight = nullptr;  // what ops are given; null where no model of the listed layers is alive
  int64_t expert = -1;  // of an expert with this number, which sees those tokens alone that are sent to it

  // Where x comes from. Dividing a channel of the source (an element of a norm's weight, or a row of a matrix and its
  // bias) by s divides by s each x[j] that the channel feeds, and changes nothing else.
  // Empty: what x comes from feeds other products too, a router or experts.
  std::string source;  // "model.layers.3.input_layernorm" or "model.layers.3.self_attn.v_proj"
  bool source_is_norm = false;
  std::vector<int64_t> source_channels;  // [in_features] the channel that feeds x[j]; empty: channel j
};

}  // namespace spate
