// CheckpointSummary: the tensors of a checkpoint in a few lines, for `spate inspect`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weights/weight_source.h"

namespace spate {

// Tensors that differ in a layer number only.
struct TensorGroup {
  std::string name;        // "model.layers.{0..27}.mlp.up_proj.weight"
  std::string dtype_name;  // "BF16"
  std::vector<int64_t> shape;
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
};

struct CheckpointSummary {
  std::vector<TensorGroup> groups;             // in the order of their first tensor in the files
  std::map<std::string, int64_t> dtype_bytes;  // "BF16" -> bytes
  int64_t num_tensors = 0;
  int64_t num_elements = 0;
  int64_t num_bytes = 0;
};
CheckpointSummary summarize_checkpoint(const WeightSource& source);

// A line a group: "  BF16  28 x [3072, 1024]  model.layers.{0..27}.mlp.up_proj.weight", then the totals.
std::string format_checkpoint_summary(const CheckpointSummary& summary);

}  // namespace spate
