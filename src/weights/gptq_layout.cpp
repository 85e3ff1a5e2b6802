// GPTQ as AutoGPTQ, GPTQModel and AutoRound write it. For a matrix [out, in] with P = 32 / bits codes in a word:
//
//   qweight  i32 [in / P, out]           code (k, n) in bits (k % P) * bits of word (k / P, n)
//   qzeros   i32 [groups, out / P]       zero point (g, n) in bits (n % P) * bits of word (g, n / P); in the first
//                                        format less one, so that the largest word means zero
//   scales   f16 [groups, out]
//   g_idx    i32 [in]                    group of column k; without it k / group_size. "desc_act" quantises columns in
//                                        the order of their activations, and numbers the groups in that order.
#include <fmt/format.h>

#include <algorithm>

#include "weights/packed_matrix.h"

namespace spate {
namespace {

class GptqMatrix final : public PackedMatrix {
 public:
  // Null where there are problems.
  static std::unique_ptr<PackedMatrix> read(const QuantizationConfig& config, Components& components) {
    const size_t num_problems = components.problems().size();
    const std::optional<QTensors> tensors = find_q_tensors(components);
    const TensorEntry* g_idx = components.optional("g_idx", {DType::kI32, DType::kI64});
    if (components.problems().size() > num_problems) return nullptr;
    const TensorEntry& qweight = *tensors->qweight;
    const QuantScheme& scheme = scheme_of(*tensors, config.schemes);
    const int64_t per_word = 32 / scheme.bits;

    std::unique_ptr<GptqMatrix> matrix(new GptqMatrix(components.prefix() + ".weight", scheme));
    matrix->zero_bias_ = config.zeros_minus_one ? 1 : 0;
    matrix->in_features_ = qweight.shape[0] * per_word;
    matrix->out_features_ = qweight.shape[1];
    const int64_t groups = matrix->num_groups(), out_features = matrix->out_features_;
    if (out_features % per_word != 0) {
      components.problem(fmt::format("{} is {}: {} rows are no multiple of {}", qweight.name, qweight.shape_string(),
                                     out_features, per_word));
    }
    components.has_shape(*tensors->scales, {groups, out_features});
    components.has_shape(*tensors->qzeros, {groups, out_features / per_word});
    matrix->take_components(components.checkpoint(), qweight, *tensors->scales, tensors->qzeros);
    if (g_idx != nullptr && components.has_shape(*g_idx, {matrix->in_features_})) {
      matrix->components_.push_back(g_idx);
      matrix->read_group_ids(components.checkpoint(), *g_idx, components.problems());
    }
    if (components.problems().size() > num_problems) return nullptr;
    return matrix;
  }

 private:
  using PackedMatrix::PackedMatrix;

  // The first scheme that the shapes are those of; where there is none the first, whose problems are told.
  static const QuantScheme& scheme_of(const QTensors& tensors, const std::vector<QuantScheme>& schemes) {
    const auto fits = [&](const QuantScheme& scheme) {
      const int64_t per_word = 32 / scheme.bits, out_features = tensors.qweight->shape[1];
      const int64_t in_features = tensors.qweight->shape[0] * per_word;
      const int64_t groups = WeightSpec{.tile = {.columns = scheme.group_size}}.num_groups(in_features);
      return tensors.scales->shape == std::vector<int64_t>{groups, out_features} &&
             tensors.qzeros->shape == std::vector<int64_t>{groups, out_features / per_word};
    };
    const auto found = std::ranges::find_if(schemes, fits);
    return found == schemes.end() ? schemes[0] : *found;
  }

  Status read_codes(int64_t begin, int64_t end, int8_t* codes) const override {
    const int64_t per_word = 32 / scheme_.bits;
    for (int64_t word_row = 0; word_row * per_word < in_features_; ++word_row) {
      for (int64_t n = begin; n < end; ++n) {
        unpack_codes(codes_.word(word_row * out_features_ + n), scheme_.bits,
                     codes + (n - begin) * in_features_ + word_row * per_word);
      }
    }
    return ok_status();
  }
  float scale(int64_t row, int64_t group) const override { return scales_.number(group * out_features_ + row); }
  int zero(int64_t row, int64_t group) const override {
    const auto bits = static_cast<int>(scheme_.bits);
    const int per_word = 32 / bits, mask = (1 << bits) - 1;
    const uint32_t word = zeros_.word(group * (out_features_ / per_word) + row / per_word);
    const int stored = static_cast<int>(word >> (row % per_word * bits)) & mask;
    return ((stored + zero_bias_) & mask) - (1 << (bits - 1));
  }

  int zero_bias_ = 0;
};

// AutoGPTQ gave every matrix a bias, also where the model has none.
bool is_zero(const Checkpoint& checkpoint, const TensorEntry& entry) {
  return checkpoint.bytes(entry).find_first_not_of('\0') == std::string_view::npos;
}

}  // namespace

void find_gptq_matrices(const Checkpoint& checkpoint, const QuantizationConfig& config, PackedMatrices& found) {
  constexpr std::string_view kSuffixes[] = {"qweight", "qzeros", "scales", "g_idx"};
  for (const std::string& prefix : prefixes_with(checkpoint, kSuffixes)) {
    Components components(checkpoint, prefix, found.problems);
    if (auto matrix = GptqMatrix::read(config, components)) found.matrices.push_back(std::move(matrix));
    const TensorEntry* bias = checkpoint.find(prefix + ".bias");
    if (bias != nullptr && is_zero(checkpoint, *bias)) found.unneeded.push_back(bias->name);
  }
}

}  // namespace spate
