// RotaryEmbedding: the table of cosines and sines of every position, computed once on the host.
//
// Scaling as in transformers' modeling_rope_utils.py: linear, llama3, yarn. Dynamic NTK there changes the frequencies
// while a sequence grows, which contradicts keys that are already rotated in a cache; here they are fixed for
// max_model_len: plain up to max_position_embeddings, beyond it what transformers computes for a sequence of
// max_model_len.
#pragma once

#include <cstdint>
#include <vector>

#include "layer/parameter_factory.h"
#include "weights/model_config.h"

namespace spate {

struct RopeFrequencies {
  std::vector<float> inv_freq;    // [rotary_dim / 2], radians a position
  double attention_factor = 1.0;  // multiplies cos and sin
};
RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t rotary_dim, int64_t max_position_embeddings,
                                 int64_t max_model_len);
// [num_positions, rotary_dim] as RopeParams::cos_sin wants it.
std::vector<float> rope_table(const RopeFrequencies& frequencies, int64_t num_positions);

class RotaryEmbedding {
 public:
  static Result<RotaryEmbedding> create(ParameterFactory& factory, const ModelConfig& config, int64_t max_model_len,
                                        bool interleaved);

  const Tensor& cos_sin() const { return cos_sin_.view; }  // [max_model_len, rotary_dim] f32
  bool interleaved() const { return interleaved_; }

 private:
  DeviceVector cos_sin_;
  bool interleaved_ = false;
};

}  // namespace spate
