// What `--quantization` asks for: how matrices that the checkpoint holds as floats are kept in memory. Matrices that it
// holds as codes keep their own format.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "quant/weight_format.h"

namespace spate {

// --activation-dtype: what activations become in products with integer weights, those of a checkpoint included.
enum class ActivationDType : uint8_t {
  kAuto,   // what is the default of each format (quant/weight_format.h)
  kModel,  // as they are
  kInt8,
};
Result<ActivationDType> parse_activation_dtype(std::string_view text);

struct Quantization {
  WeightSpec linear;  // of all products inside the layers; a float format: none
  // Of the embedding table and lm_head. 8 bits a weight also for 4-bit models: these rows decide the token directly,
  // and 4 bits there cost more accuracy than anywhere else.
  WeightSpec vocabulary;

  ActivationDType activations = ActivationDType::kAuto;
  std::string layout;  // the checkpoint's own, where it is named ("gptq"): check_layout()
  // Dummy weights in the format that the config describes: runnable_spec() applies, as to a checkpoint.
  bool imitates_checkpoint = false;

  bool enabled() const { return linear.has_integer_codes(); }
  // A format of the checkpoint or of this, with the activations that are wanted.
  WeightSpec with_activations(const WeightSpec& spec) const;
};

// Which formats a device computes with; empty: all.
using WeightSupport = std::function<bool(const WeightSpec& spec)>;

// `wanted`; or where a device does not compute with it what has the same values there: blocks become groups of their
// rows, activations stay as they are, and codes become `plain`, a float format, by whose product that of kAsIs is
// defined.
WeightSpec runnable_spec(const WeightSpec& wanted, const WeightSpec& plain, const WeightSupport& supports);

// Error: --quantization names a layout that the checkpoint, which is in `found` (empty: floats), does not have.
Status check_layout(const Quantization& quantization, std::string_view found);

// "none" (also "gptq", "awq", "auto-round", "compressed-tensors", "fp8", "gguf": layouts that the files tell; "_marlin"
// behind one, vLLM's name of kernels for it, says no more), "int8", "int8-g128",
// "int4" (groups of 64 with two-level scales), "int4-g32", "int4-g64-f16scales", "int4-g64-asym", ...; the spellings
// wint8 and wint4 mean the same. "-a16" at the end keeps activations, as ActivationDType::kModel does. Errors list what
// is allowed.
Result<Quantization> parse_quantization(std::string_view text, ActivationDType activations = ActivationDType::kAuto);

}  // namespace spate
