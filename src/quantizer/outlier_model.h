// write_outlier_model: a checkpoint that computes the same function as another, bit for bit in floats, with a few large
// channels in everything that its products read. Large language models have such channels; small ones do not.
//
// Channels are multiplied by a power of two where they are made, and what reads them is divided by it:
//
//   the weight of a layer's norms          the columns of q, k, v; of gate, up
//   a row of v_proj                        the columns of o_proj that see this channel (query heads that share a kv
//   head) a row of up_proj                       a column of down_proj the weight of k_norm at a RoPE pair    the
//   weight of q_norm at the same pair; only models that have both the weight of the last norm            the columns of
//   lm_head, which is written apart when it was the embedding table
//
// Multiplying by a power of two commutes with every rounding, so that all sums keep their bits.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"

namespace spate {

struct OutlierOptions {
  int strength = 256;  // a power of two, 1 to 4096
  int channels = 3;    // of each of these tensors, 1 to 64
  uint64_t seed = 1;   // chooses them
};

// out: a directory that does not exist yet, with all that `model_dir` has beside it. Errors: a model that is not of
// bf16 safetensors, or a tensor that is not there.
Status write_outlier_model(const std::filesystem::path& model_dir, const OutlierOptions& options,
                           const std::filesystem::path& out);

}  // namespace spate
