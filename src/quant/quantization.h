// What `--quantization` asks for: how matrices that the checkpoint holds as floats are kept in memory. Matrices that it
// holds as codes keep their own format.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "quant/weight_format.h"

namespace spate {

struct Quantization {
  WeightSpec linear;  // of all products inside the layers; a float format: none
  // Of the embedding table and lm_head. 8 bits a weight also for 4-bit models: these rows decide the token directly,
  // and 4 bits there cost more accuracy than anywhere else.
  WeightSpec vocabulary;

  bool enabled() const { return linear.has_integer_codes(); }
};

// "none" (also "gptq", "awq", "compressed-tensors", "gguf": layouts that the files tell), "int8", "int8-g128", "int4" (groups of 64 with two-level
// scales), "int4-g32", "int4-g64-f16scales", "int4-g64-asym", ...; the spellings wint8 and wint4 mean the same. Errors list what is allowed.
Result<Quantization> parse_quantization(std::string_view text);

}  // namespace spate
