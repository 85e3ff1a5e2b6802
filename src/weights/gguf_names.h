// The names that Hugging Face gives to the tensors of a GGUF file.
//
// llama.cpp keeps matrices of one kind in stacks, tensors of three dimensions: the experts of a layer, and what latent
// attention makes of the latent vector for each head. Here each of their matrices is a tensor of its own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/gguf/gguf.h"

namespace spate {

struct GgufTensorName {
  // One; two for a stack whose matrices hold the rows of two, one below the other.
  std::vector<std::string> names;
  bool is_stack = false;     // the names hold {} where the number of a matrix goes
  bool is_row = false;       // [n] or [1, n] here, [1, n] there
  bool is_of_heads = false;  // a stack of a matrix for each head: a rank needs those of its own
};

// Of "blk.3.attn_q.weight": "model.layers.3.self_attn.q_proj.weight". `architecture`: general.architecture. A name
// that is not known stays.
GgufTensorName hugging_face_name(std::string_view name, std::string_view architecture);

// "...experts.{}.up_proj.weight", 7 -> "...experts.7.up_proj.weight"
std::string name_of_matrix(std::string_view pattern, int64_t number);

}  // namespace spate
