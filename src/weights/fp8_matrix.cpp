#include "weights/fp8_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "quant/fp8.h"

namespace spate {
namespace {

constexpr std::string_view kCodes = "F8_E4M3";
constexpr std::string_view kScaleSuffixes[] = {"_scale_inv", "_scale"};
// Of activations and the KV cache: both are scaled as the values come here.
constexpr std::string_view kUnusedSuffixes[] = {"input_scale", "activation_scale", "k_scale", "v_scale"};
constexpr float kMaxBf16 = 0x1.fep127f;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// [] and [1, 1] say the same as [1]; [n] the same as [n, 1].
std::vector<int64_t> without_trailing_ones(std::vector<int64_t> shape) {
  while (!shape.empty() && shape.back() == 1) shape.pop_back();
  return shape;
}

bool is_scale_dtype(const TensorEntry& entry) {
  return entry.dtype && std::find(kScaleDTypes.begin(), kScaleDTypes.end(), *entry.dtype) != kScaleDTypes.end();
}

std::vector<int64_t> scale_shape(const std::vector<int64_t>& codes, const Fp8Scheme& scheme) {
  const size_t rank = codes.size();
  std::vector<int64_t> shape = codes;
  shape[rank - 2] = scheme.block_rows == 0 ? 1 : ceil_div(codes[rank - 2], scheme.block_rows);
  shape[rank - 1] = scheme.block_columns == 0 ? 1 : ceil_div(codes[rank - 1], scheme.block_columns);
  return shape;
}

// The largest code but for its sign: 0x7f where one is NaN.
uint8_t largest_magnitude(const uint8_t* codes, int64_t count) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max<uint8_t>(largest, codes[i] & 0x7f);
  return largest;
}

// bf16(code * scale). None is NaN and none infinite, so that rounding is one addition.
void scale_codes(const uint8_t* __restrict codes, int64_t count, float scale, Bf16* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(e4m3_to_float(codes[i]) * scale);
    out[i].bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

std::string block_text(const Fp8Scheme& scheme) {
  if (scheme.block_rows == 0) return "one for the tensor";
  if (scheme.block_columns == 0) return "one for each row";
  return fmt::format("one for each block of {} x {}", scheme.block_rows, scheme.block_columns);
}

}  // namespace

bool Fp8Matrix::takes(const Fp8Scheme& scheme) {
  const bool one_for_all = scheme.block_rows == 0 && scales_.num_elements() == 1 && num_matrices() == 1;
  if (!one_for_all &&
      without_trailing_ones(scales_.shape) != without_trailing_ones(scale_shape(codes_.shape, scheme))) {
    return false;
  }
  block_rows_ = scheme.block_rows == 0 ? rows_of_matrix() : scheme.block_rows;
  block_columns_ = scheme.block_columns == 0 ? columns() : scheme.block_columns;
  return true;
}

std::unique_ptr<Fp8Matrix> Fp8Matrix::read(const Checkpoint& checkpoint, const TensorEntry& codes,
                                           const TensorEntry& scales, const std::vector<Fp8Scheme>& schemes,
                                           std::vector<std::string>& problems) {
  const bool is_matrix = (codes.shape.size() == 2 || codes.shape.size() == 3) && codes.num_elements() > 0;
  if (!is_matrix) {
    problems.push_back(fmt::format("{} is {} {}, needs 2 or 3 dimensions of at least 1", codes.name, codes.dtype_name,
                                   codes.shape_string()));
    return nullptr;
  }
  if (!is_scale_dtype(scales)) {
    problems.push_back(fmt::format("{} is {}, needs F32, BF16 or F16", scales.name, scales.dtype_name));
    return nullptr;
  }
  std::unique_ptr<Fp8Matrix> matrix(new Fp8Matrix(checkpoint, codes, scales));
  std::string needs;
  for (const Fp8Scheme& scheme : schemes) {
    if (matrix->takes(scheme)) return matrix;
    needs += fmt::format("{}[{}], {}", needs.empty() ? "" : ", or ", fmt::join(scale_shape(codes.shape, scheme), ", "),
                         block_text(scheme));
  }
  problems.push_back(fmt::format("{} is {}, needs {}; {} is {}", scales.name, scales.shape_string(), needs, codes.name,
                                 codes.shape_string()));
  return nullptr;
}

TensorEntry Fp8Matrix::entry() const {
  TensorEntry entry = codes_;
  entry.dtype = DType::kBf16;
  entry.num_bytes += scales_.num_bytes;
  return entry;
}

Status Fp8Matrix::read_row(int64_t row, Bf16* out) const {
  const auto* codes = reinterpret_cast<const uint8_t*>(checkpoint_.bytes(codes_).data()) + row * columns();
  if (is_nan_e4m3(largest_magnitude(codes, columns()))) {
    const auto* nan = std::find_if(codes, codes + columns(), is_nan_e4m3);
    return data_loss("{}[{}, {}] is the code {:#04x}, which is NaN; needs a number", name(), row, nan - codes, *nan);
  }
  const int64_t matrix = row / rows_of_matrix(), block = row % rows_of_matrix() / block_rows_;
  const int64_t blocks = ceil_div(rows_of_matrix(), block_rows_), groups = ceil_div(columns(), block_columns_);
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = scale_values_.number((matrix * blocks + block) * groups + g);
    if (!(std::fabs(scale) <= kMaxBf16 / kMaxE4m3)) {
      return data_loss("{}: the scale of row {}, columns from {} on, is {}; needs a number of at most {:.3g}",
                       scale_name(), row, g * block_columns_, scale, kMaxBf16 / kMaxE4m3);
    }
    const int64_t begin = g * block_columns_, end = std::min(begin + block_columns_, columns());
    scale_codes(codes + begin, end - begin, scale, out + begin);
  }
  return ok_status();
}

Result<Tensor> Fp8Matrix::rows(int64_t begin, int64_t end, HostTensor& scratch) const {
  CHECK(0 <= begin && begin <= end && end <= codes_.num_rows(), "rows [{}, {}) of {} {}", begin, end, name(),
        codes_.shape_string());
  scratch = HostTensor(DType::kBf16, {end - begin, columns()});
  for (int64_t row = begin; row < end; ++row) {
    RETURN_IF_ERROR(read_row(row, scratch.view().data<Bf16>() + (row - begin) * columns()));
  }
  return scratch.view();
}

std::vector<std::unique_ptr<Fp8Matrix>> find_fp8_matrices(const Checkpoint& checkpoint,
                                                          const QuantizationConfig& config, PackedMatrices& found) {
  std::vector<std::unique_ptr<Fp8Matrix>> matrices;
  if (config.fp8_schemes.empty()) return matrices;
  // With integers in other matrices of the checkpoint, a scale alone does not say of what it is.
  const bool all_are_fp8 = config.schemes.empty();
  for (const TensorEntry& entry : checkpoint.entries()) {
    if (entry.dtype_name == kCodes) {
      const TensorEntry* scales = nullptr;
      for (const std::string_view suffix : kScaleSuffixes) {
        if (scales == nullptr) scales = checkpoint.find(fmt::format("{}{}", entry.name, suffix));
      }
      if (scales == nullptr) {
        const bool is_inv = config.method == QuantMethod::kFp8 && config.fp8_schemes[0].block_rows > 1;
        found.problems.push_back(fmt::format("{}{} is missing; {} is {} {}", entry.name, kScaleSuffixes[is_inv ? 0 : 1],
                                             entry.name, entry.dtype_name, entry.shape_string()));
      } else if (auto matrix = Fp8Matrix::read(checkpoint, entry, *scales, config.fp8_schemes, found.problems)) {
        matrices.push_back(std::move(matrix));
      }
      continue;
    }
    for (const std::string_view suffix : kScaleSuffixes) {
      if (!all_are_fp8 || !entry.name.ends_with(fmt::format("weight{}", suffix))) continue;
      const std::string name = entry.name.substr(0, entry.name.size() - suffix.size());
      const TensorEntry* codes = checkpoint.find(name);
      if (codes == nullptr) {
        found.problems.push_back(fmt::format("{} is missing; {} is there", name, entry.name));
      } else if (codes->dtype_name != kCodes) {
        found.problems.push_back(
            fmt::format("{} is {}, needs {}: {} is there", name, codes->dtype_name, kCodes, entry.name));
      }
    }
    for (const std::string_view suffix : kUnusedSuffixes) {
      if (!prefix_of(entry.name, suffix).empty()) found.hidden.push_back(entry.name);
    }
  }
  return matrices;
}

}  // namespace spate
