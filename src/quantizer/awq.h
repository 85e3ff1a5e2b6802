// AWQ: inputs that are large on average are made smaller and their columns of the weight larger by the same factor, so
// that these columns lose less when they are rounded (Lin et al., 2023). The factor goes into whatever produces the
// input:
//
//   input_layernorm           -> q_proj, k_proj, v_proj
//   rows of v_proj            -> o_proj      (query heads that share a kv head share their factors)
//   post_attention_layernorm  -> gate_proj, up_proj
//   rows of up_proj           -> down_proj
//
// Product::source says so for each product of a layer; where it is empty, as with experts, the columns stay. The same
// holds of an expert by itself: rows of its up_proj -> its down_proj.
//
// A norm's weight is stored in 16 bits: the factor of the columns is what its rounded weight really became smaller by,
// so that the folded layer computes the same. Biases of v_proj and up_proj are divided and rounded.
//
// Threads: as the DeviceMath.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "layer/product.h"
#include "quantizer/coded_matrix.h"
#include "quantizer/input_statistics.h"

namespace spate {

// The float tensors of a layer by their names in the checkpoint, f32.
using LayerTensors = std::map<std::string, HostTensor, std::less<>>;

// Finds the factors of the inputs of a layer's products (statistics[i] of products[i]) and folds them into `layer` and
// the statistics. The factors are mean|x|^alpha with the alpha of 0, 0.05, ... 0.95 that loses least on the samples
// when the matrices are rounded to `format`. norm_dtype: of the norms and biases in the file. Error: memory.
Status fold_awq_scales(const CodeFormat& format, const std::vector<Product>& products, DType norm_dtype,
                       LayerTensors& layer, std::vector<InputStatistics>& statistics, DeviceMath& math);

// Round to nearest with the range of each group clipped to the share that loses least on the samples. Groups wider than
// 512 keep their whole range.
CodedMatrix round_clipped(const CodeFormat& format, const Tensor& w, const Tensor& samples, int num_threads);

}  // namespace spate
