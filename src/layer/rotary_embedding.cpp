#include "layer/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace spate {
namespace {

// Rounded to float where transformers rounds: at 100,000 radians an ulp of a frequency is visible in the angle.
std::vector<float> plain_frequencies(double theta, int64_t rotary_dim) {
  std::vector<float> inv_freq(static_cast<size_t>(rotary_dim / 2));
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotary_dim);
    inv_freq[j] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return inv_freq;
}

// Low frequencies (wavelengths beyond the trained length) are divided by factor, high ones stay, between them a ramp.
void scale_llama3(const RopeConfig& rope, std::vector<float>& inv_freq) {
  const double trained = static_cast<double>(rope.original_max_position_embeddings);
  for (float& freq : inv_freq) {
    const double wavelength = 2 * std::numbers::pi / static_cast<double>(freq);
    if (wavelength < trained / rope.high_freq_factor) continue;
    if (wavelength > trained / rope.low_freq_factor) {
      freq = static_cast<float>(freq / rope.factor);
      continue;
    }
    const double smooth =
        (trained / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    freq = static_cast<float>((1 - smooth) * freq / rope.factor + smooth * freq);
  }
}

// The dimension whose frequency makes num_rotations turns over the trained length.
double yarn_correction_dim(const RopeConfig& rope, double num_rotations, double rotary_dim) {
  const double trained = static_cast<double>(rope.original_max_position_embeddings);
  return rotary_dim * std::log(trained / (num_rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

void scale_yarn(const RopeConfig& rope, int64_t rotary_dim, std::vector<float>& inv_freq) {
  const double dim = static_cast<double>(rotary_dim);
  double low = yarn_correction_dim(rope, rope.beta_fast, dim);
  double high = yarn_correction_dim(rope, rope.beta_slow, dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    const double interpolated = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    inv_freq[j] = static_cast<float>(inv_freq[j] / rope.factor * interpolated + inv_freq[j] * (1 - interpolated));
  }
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor > 0) return rope.attention_factor;
  const auto mscale = [&](double scale) { return rope.factor <= 1 ? 1.0 : 0.1 * scale * std::log(rope.factor) + 1.0; };
  if (rope.mscale > 0 && rope.mscale_all_dim > 0) return mscale(rope.mscale) / mscale(rope.mscale_all_dim);
  return mscale(1.0);
}

double dynamic_theta(const RopeConfig& rope, int64_t rotary_dim, int64_t max_position_embeddings,
                     int64_t max_model_len) {
  const double trained = static_cast<double>(max_position_embeddings);
  const double seq_len = static_cast<double>(std::max(max_model_len, max_position_embeddings));
  const double dim = static_cast<double>(rotary_dim);
  return rope.theta * std::pow(rope.factor * seq_len / trained - (rope.factor - 1), dim / (dim - 2));
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t rotary_dim, int64_t max_position_embeddings,
                                 int64_t max_model_len) {
  double theta = rope.theta;
  if (rope.type == RopeType::kDynamic) theta = dynamic_theta(rope, rotary_dim, max_position_embeddings, max_model_len);
  RopeFrequencies frequencies{.inv_freq = plain_frequencies(theta, rotary_dim)};
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear:
      for (float& freq : frequencies.inv_freq) freq /= static_cast<float>(rope.factor);
      break;
    case RopeType::kLlama3:
      scale_llama3(rope, frequencies.inv_freq);
      break;
    case RopeType::kYarn:
      scale_yarn(rope, rotary_dim, frequencies.inv_freq);
      frequencies.attention_factor = yarn_attention_factor(rope);
      break;
  }
  for (size_t j = 0; j < rope.freq_factors.size(); ++j) frequencies.inv_freq[j] /= rope.freq_factors[j];
  return frequencies;
}

std::vector<float> rope_table(const RopeFrequencies& frequencies, int64_t num_positions) {
  const size_t half = frequencies.inv_freq.size();
  std::vector<float> table(static_cast<size_t>(num_positions) * 2 * half);
  for (int64_t position = 0; position < num_positions; ++position) {
    float* row = table.data() + static_cast<size_t>(position) * 2 * half;
    for (size_t j = 0; j < half; ++j) {
      // The angle is a float product, as in transformers. The library's sinf and cosf are right to an ulp and twice as
      // fast as the double ones: 40960 positions x 64 take 0.1 s.
      const float angle = static_cast<float>(position) * frequencies.inv_freq[j];
      row[j] = static_cast<float>(std::cos(angle) * frequencies.attention_factor);
      row[half + j] = static_cast<float>(std::sin(angle) * frequencies.attention_factor);
    }
  }
  return table;
}

Result<RotaryEmbedding> RotaryEmbedding::create(ParameterFactory& factory, const ModelConfig& config,
                                                int64_t max_model_len, bool interleaved) {
  RotaryEmbedding rotary;
  rotary.interleaved_ = interleaved;
  const auto make_table = [&] {
    return rope_table(rope_frequencies(config.rope, config.rotary_dim(), config.max_position_embeddings, max_model_len),
                      max_model_len);
  };
  ASSIGN_OR_RETURN(rotary.cos_sin_, factory.constants(max_model_len, config.rotary_dim(), make_table));
  return rotary;
}

}  // namespace spate
