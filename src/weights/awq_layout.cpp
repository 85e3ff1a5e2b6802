// AWQ as AutoAWQ's GEMM version writes it. For a matrix [out, in]:
//
//   qweight  i32 [in, out / 8]       code (k, n) in nibble kNibbleOf[n % 8] of word (k, n / 8)
//   qzeros   i32 [groups, out / 8]   zero point (g, n), the same
//   scales   f16 [groups, out]
#include <algorithm>

#include "weights/packed_matrix.h"

namespace spate {
namespace {

constexpr int kPerWord = 8;
constexpr int kMiddle = 8;
// Even outputs lie in the lower half of a word, odd ones in the upper.
constexpr int kNibbleOf[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};

int signed_nibble(uint32_t word, int64_t n) {
  return static_cast<int>((word >> (4 * kNibbleOf[n % kPerWord])) & 15) - kMiddle;
}

class AwqMatrix final : public PackedMatrix {
 public:
  // Null where there are problems.
  static std::unique_ptr<PackedMatrix> read(const QuantizationConfig& config, Components& components) {
    const size_t num_problems = components.problems().size();
    const std::optional<QTensors> tensors = find_q_tensors(components);
    if (!tensors) return nullptr;

    std::unique_ptr<AwqMatrix> matrix(new AwqMatrix(components.prefix() + ".weight", config.schemes[0]));
    matrix->in_features_ = tensors->qweight->shape[0];
    matrix->out_features_ = tensors->qweight->shape[1] * kPerWord;
    const int64_t groups = matrix->num_groups();
    components.has_shape(*tensors->scales, {groups, matrix->out_features_});
    components.has_shape(*tensors->qzeros, {groups, tensors->qweight->shape[1]});
    if (components.problems().size() > num_problems) return nullptr;
    matrix->take_components(components.checkpoint(), *tensors->qweight, *tensors->scales, tensors->qzeros);
    return matrix;
  }

 private:
  using PackedMatrix::PackedMatrix;
  int64_t words_per_row() const { return out_features_ / kPerWord; }

  Status read_codes(int64_t begin, int64_t end, int8_t* codes) const override {
    // 64 columns of eight rows at a time: a cache line of each row of the result.
    constexpr int64_t kBlock = 64;
    int8_t block[kBlock * kPerWord];
    for (int64_t first = 0; first < in_features_; first += kBlock) {
      const int64_t columns = std::min(kBlock, in_features_ - first);
      for (int64_t word = begin / kPerWord; word * kPerWord < end; ++word) {
        for (int64_t k = 0; k < columns; ++k) {
          unpack_codes(codes_.word((first + k) * words_per_row() + word), 4, block + k * kPerWord);
        }
        for (int64_t n = std::max(begin, word * kPerWord); n < std::min(end, (word + 1) * kPerWord); ++n) {
          const int8_t* column = block + kNibbleOf[n % kPerWord];
          int8_t* row = codes + (n - begin) * in_features_ + first;
          for (int64_t k = 0; k < columns; ++k) row[k] = column[k * kPerWord];
        }
      }
    }
    return ok_status();
  }
  float scale(int64_t row, int64_t group) const override { return scales_.number(group * out_features_ + row); }
  int zero(int64_t row, int64_t group) const override {
    return signed_nibble(zeros_.word(group * words_per_row() + row / kPerWord), row);
  }
};

}  // namespace

void find_awq_matrices(const Checkpoint& checkpoint, const QuantizationConfig& config, PackedMatrices& found) {
  constexpr std::string_view kSuffixes[] = {"qweight", "qzeros", "scales"};
  for (const std::string& prefix : prefixes_with(checkpoint, kSuffixes)) {
    Components components(checkpoint, prefix, found.problems);
    if (auto matrix = AwqMatrix::read(config, components)) found.matrices.push_back(std::move(matrix));
  }
}

}  // namespace spate
