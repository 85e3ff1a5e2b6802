// compressed-tensors (llm-compressor), integer weights (8-bit floats: fp8_matrix.h). For a matrix [out, in] with P = 32
// / bits codes in a word:
//
//   pack-quantized   weight_packed      i32 [out, ceil(in / P)]   code (n, k) + 2^(bits - 1) in bits (k % P) * bits
//                    weight_scale       [out, groups] or [1]
//                    weight_zero_point  i32 [ceil(out / P), groups], packed along the rows in the same way,
//                                       or i8 [out, groups]; only of asymmetric weights
//                    weight_shape       [2]: out, in
//                    weight_g_idx       i32 [in], with activation ordering in groups
//   int-quantized    weight i8 [out, in], weight_scale, weight_zero_point i8 [out, groups]
//
// Which of config_groups a matrix belongs to is told by its shapes, so that no target patterns need to be matched.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "weights/packed_matrix.h"

namespace spate {
namespace {

constexpr std::string_view kSuffixes[] = {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape",
                                          "weight_g_idx"};
// Of activations and the KV cache: both are scaled as the values come here.
constexpr std::string_view kUnusedSuffixes[] = {"input_scale",       "input_zero_point",   "output_scale",
                                                "output_zero_point", "input_global_scale", "k_scale",
                                                "v_scale",           "k_zero_point",       "v_zero_point"};

struct Tensors {
  const TensorEntry* codes = nullptr;
  const TensorEntry* scale = nullptr;
  const TensorEntry* zero_point = nullptr;
  const TensorEntry* g_idx = nullptr;
  bool is_packed = false;
  int64_t out_features = 0, in_features = 0;
};

int64_t words_for(int64_t count, int64_t bits) { return (count * bits + 31) / 32; }

class CompressedMatrix final : public PackedMatrix {
 public:
  CompressedMatrix(const std::string& name, const QuantScheme& scheme, const Tensors& tensors, Components& components)
      : PackedMatrix(name, scheme), is_packed_(tensors.is_packed) {
    out_features_ = tensors.out_features;
    in_features_ = tensors.in_features;
    take_components(components.checkpoint(), *tensors.codes, *tensors.scale, tensors.zero_point);
    one_scale_ = tensors.scale->num_elements() == 1;
    zeros_packed_ = tensors.zero_point != nullptr && *tensors.zero_point->dtype == DType::kI32;
    if (tensors.g_idx != nullptr) {
      components_.push_back(tensors.g_idx);
      // -1 where it was made and not used.
      const TensorBytes ids(*checkpoint_, *tensors.g_idx);
      bool is_used = true;
      for (int64_t k = 0; k < in_features_; ++k) is_used = is_used && ids.integer(k) != -1;
      if (is_used) read_group_ids(*checkpoint_, *tensors.g_idx, components.problems());
    }
  }

  void release(int64_t begin, int64_t end) const override { checkpoint_->release(*components_[0], begin, end); }

 private:
  Status read_codes(int64_t begin, int64_t end, int8_t* codes) const override {
    for (int64_t n = begin; n < end; ++n) {
      int8_t* row = codes + (n - begin) * in_features_;
      if (is_packed_)
        read_packed_row(n, row);
      else
        RETURN_IF_ERROR(read_byte_row(n, row));
    }
    return ok_status();
  }
  void read_packed_row(int64_t n, int8_t* row) const {
    const int64_t per_word = 32 / scheme_.bits, words = words_for(in_features_, scheme_.bits);
    for (int64_t i = 0; i < in_features_ / per_word; ++i) {
      unpack_codes(codes_.word(n * words + i), scheme_.bits, row + i * per_word);
    }
    if (in_features_ % per_word == 0) return;
    int8_t last[8];
    unpack_codes(codes_.word(n * words + words - 1), scheme_.bits, last);
    std::copy_n(last, in_features_ % per_word, row + in_features_ / per_word * per_word);
  }
  Status read_byte_row(int64_t n, int8_t* row) const {
    const int middle = 1 << (scheme_.bits - 1);
    for (int64_t k = 0; k < in_features_; ++k) {
      row[k] = codes_.byte(n * in_features_ + k);
      if (row[k] < -middle || row[k] >= middle) {
        return data_loss("{}[{}, {}] is {}, no code of {} bits", components_[0]->name, n, k, row[k], scheme_.bits);
      }
    }
    return ok_status();
  }
  float scale(int64_t row, int64_t group) const override {
    return scales_.number(one_scale_ ? 0 : row / scheme_.block_rows * num_groups() + group);
  }
  int zero(int64_t row, int64_t group) const override {
    if (!zeros_.defined()) return 0;
    if (!zeros_packed_) return zeros_.byte(row * num_groups() + group);
    const auto bits = static_cast<int>(scheme_.bits);
    const int per_word = 32 / bits, mask = (1 << bits) - 1;
    const uint32_t word = zeros_.word(row / per_word * num_groups() + group);
    return (static_cast<int>(word >> (row % per_word * bits)) & mask) - (1 << (bits - 1));
  }

  bool is_packed_, one_scale_ = false, zeros_packed_ = false;
};

// Fills the tensors and sizes; false, and a problem, where they are not all there.
bool read_tensors(Components& components, Tensors& tensors) {
  const size_t num_problems = components.problems().size();
  const std::string weight_name = components.prefix() + ".weight";
  tensors.is_packed = components.checkpoint().find(weight_name) == nullptr;
  tensors.codes = tensors.is_packed ? components.required("weight_packed", {DType::kI32})
                                    : components.required("weight", {DType::kI8});
  tensors.scale = components.required("weight_scale", kScaleDTypes);
  tensors.zero_point = components.optional("weight_zero_point", {DType::kI8, DType::kI32});
  tensors.g_idx = components.optional("weight_g_idx", {DType::kI32, DType::kI64});
  const TensorEntry* shape = components.optional("weight_shape", {DType::kI32, DType::kI64});
  if (tensors.is_packed && shape == nullptr) shape = components.required("weight_shape", {DType::kI32, DType::kI64});
  if (components.problems().size() > num_problems || !components.has_rank(*tensors.codes, 2)) return false;
  tensors.out_features = tensors.codes->shape[0];
  tensors.in_features = tensors.codes->shape[1];
  if (!tensors.is_packed) return true;
  if (!components.has_shape(*shape, {2})) return false;
  const TensorBytes sizes(components.checkpoint(), *shape);
  tensors.in_features = sizes.integer(1);
  if (sizes.integer(0) == tensors.out_features && tensors.in_features >= 1 && tensors.in_features <= INT32_MAX) {
    return true;
  }
  components.problem(fmt::format("{} says [{}, {}]; {} is {}", shape->name, sizes.integer(0), sizes.integer(1),
                                 tensors.codes->name, tensors.codes->shape_string()));
  return false;
}

// What the tensors must look like under a scheme; empty: they do.
std::string mismatch(const Tensors& t, const QuantScheme& scheme) {
  const int64_t groups = WeightSpec{.tile = {.columns = scheme.group_size}}.num_groups(t.in_features);
  const int64_t words = words_for(t.in_features, scheme.bits);
  if (t.is_packed && t.codes->shape[1] != words) {
    return fmt::format("{} is {}, needs [{}, {}] for {} columns of {} bits", t.codes->name, t.codes->shape_string(),
                       t.out_features, words, t.in_features, scheme.bits);
  }
  const int64_t scale_rows = (t.out_features + scheme.block_rows - 1) / scheme.block_rows;
  const std::vector<int64_t> by_group = {scale_rows, groups};
  const bool one_scale = t.scale->num_elements() == 1 && scheme.group_size == 0;
  if (t.scale->shape != by_group && !one_scale) {
    return fmt::format("{} is {}, needs [{}, {}]", t.scale->name, t.scale->shape_string(), scale_rows, groups);
  }
  if (t.g_idx != nullptr && t.g_idx->shape != std::vector<int64_t>{t.in_features}) {
    return fmt::format("{} is {}, needs [{}]", t.g_idx->name, t.g_idx->shape_string(), t.in_features);
  }
  if (t.zero_point == nullptr) {
    return scheme.symmetric
               ? ""
               : fmt::format("{}_zero_point is missing", t.scale->name.substr(0, t.scale->name.size() - 6));
  }
  const bool zeros_packed = *t.zero_point->dtype == DType::kI32;
  const int64_t zero_rows = zeros_packed ? words_for(t.out_features, scheme.bits) : t.out_features;
  if (t.zero_point->shape != std::vector<int64_t>{zero_rows, groups}) {
    return fmt::format("{} is {}, needs [{}, {}]", t.zero_point->name, t.zero_point->shape_string(), zero_rows, groups);
  }
  return "";
}

std::unique_ptr<PackedMatrix> read_matrix(const QuantizationConfig& config, Components& components) {
  Tensors tensors;
  if (!read_tensors(components, tensors)) return nullptr;
  std::string why;
  for (const QuantScheme& scheme : config.schemes) {
    std::string problem = mismatch(tensors, scheme);
    if (problem.empty()) {
      return std::make_unique<CompressedMatrix>(components.prefix() + ".weight", scheme, tensors, components);
    }
    if (why.empty()) why = std::move(problem);
  }
  components.problem(std::move(why));
  return nullptr;
}

}  // namespace

void find_compressed_tensors_matrices(const Checkpoint& checkpoint, const QuantizationConfig& config,
                                      PackedMatrices& found) {
  std::set<std::string> prefixes;
  for (std::string& prefix : prefixes_with(checkpoint, kSuffixes)) {
    const TensorEntry* weight = checkpoint.find(prefix + ".weight");
    const bool is_fp8 = weight != nullptr && weight->dtype_name == "F8_E4M3";
    if (!is_fp8 && !config.schemes.empty()) prefixes.insert(std::move(prefix));
  }
  for (const TensorEntry& entry : checkpoint.entries()) {
    const std::string_view module = prefix_of(entry.name, "weight");
    if (!module.empty() && entry.dtype == DType::kI8 && !config.schemes.empty()) prefixes.emplace(module);
    for (const std::string_view suffix : kUnusedSuffixes) {
      if (!prefix_of(entry.name, suffix).empty()) found.hidden.push_back(entry.name);
    }
  }
  for (const std::string& prefix : prefixes) {
    Components components(checkpoint, prefix, found.problems);
    if (auto matrix = read_matrix(config, components)) found.matrices.push_back(std::move(matrix));
    if (const TensorEntry* shape = checkpoint.find(prefix + ".weight_shape")) found.hidden.push_back(shape->name);
  }
}

}  // namespace spate
