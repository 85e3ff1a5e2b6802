#include "layer/parameter_factory.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace spate {

WeightSpec ParameterFactory::spec_for(Role role, std::span<const std::string> names) const {
  const WeightSpec plain{.codes = formats_.act_dtype == DType::kF32 ? Codes::kF32 : Codes::kBf16};
  const Quantization& wanted = formats_.quantization;
  const WeightSpec of_floats =
      !wanted.enabled() ? plain : role == Role::kLinear ? wanted.linear : wanted.vocabulary;
  if (role == Role::kRouter) {
    const auto is_f32 = [&](const std::string& name) {
      const TensorEntry* entry = formats_.source == nullptr ? nullptr : formats_.source->find(name);
      return entry != nullptr && entry->dtype == DType::kF32;
    };
    return std::all_of(names.begin(), names.end(), is_f32) ? WeightSpec{.codes = Codes::kF32} : plain;
  }
  if (role == Role::kFloats) return plain;
  if (formats_.source == nullptr) return of_floats;
  std::optional<WeightSpec> spec;
  for (const std::string& name : names) {
    const TensorEntry* entry = formats_.source->find(name);
    const bool has_codes = entry != nullptr && entry->quantized;
    const WeightSpec own = has_codes ? wanted.with_activations(*entry->quantized) : of_floats;
    spec = spec ? common_spec(*spec, own) : own;
  }
  CHECK(spec, "a matrix of no tensors");
  // Parts that are joined need not begin where a block does.
  if (names.size() > 1) spec->tile.rows = 1;
  return runnable_spec(*spec, plain, formats_.supports);
}

Result<std::unique_ptr<PackedWeight>> ParameterFactory::matrix(Role role, std::span<const std::string> names,
                                                               int64_t out_features, int64_t in_features,
                                                               int64_t num_matrices) {
  const WeightDesc desc{.out_features = out_features,
                        .in_features = in_features,
                        .spec = spec_for(role, names),
                        .num_matrices = num_matrices};
  if (device_ == nullptr) {
    weight_bytes_ += num_matrices * spate::weight_bytes(desc.spec, out_features, in_features);
    return std::make_unique<PackedWeight>(desc, Buffer());
  }
  ASSIGN_OR_RETURN(PackedWeight weight, device_->create_weight(desc));
  weight_bytes_ += static_cast<int64_t>(weight.bytes());
  return std::make_unique<PackedWeight>(std::move(weight));
}

Result<DeviceVector> ParameterFactory::vector(int64_t size, DType dtype) {
  DeviceVector vector;
  const int64_t bytes = size * dtype_bytes(dtype);
  weight_bytes_ += bytes;
  if (device_ != nullptr) {
    ASSIGN_OR_RETURN(vector.storage, device_->allocate(static_cast<size_t>(bytes), MemoryKind::kDevice));
  }
  vector.view = Tensor(vector.storage.data(), dtype, {size});
  return vector;
}

Result<DeviceVector> ParameterFactory::count_constants(int64_t rows, int64_t columns) {
  weight_bytes_ += rows * columns * 4;
  return DeviceVector{.storage = {}, .view = Tensor(nullptr, DType::kF32, {rows, columns})};
}

Result<DeviceVector> ParameterFactory::upload_constants(int64_t rows, int64_t columns, std::span<const float> values) {
  const auto bytes = static_cast<size_t>(rows * columns * 4);
  CHECK(values.size() * 4 == bytes, "{} values for [{}, {}]", values.size(), rows, columns);
  DeviceVector vector;
  ASSIGN_OR_RETURN(vector.storage, device_->allocate(bytes, MemoryKind::kDevice));
  vector.view = Tensor(vector.storage.data(), DType::kF32, {rows, columns});
  weight_bytes_ += static_cast<int64_t>(bytes);
  const auto stream = device_->create_stream();
  device_->copy_to_device(*stream, vector.storage.data(), values.data(), bytes);
  device_->synchronize(*stream);
  return vector;
}

void ParameterFactory::declare(WeightLoader::MatrixSlice slice) {
  if (loader_ != nullptr) loader_->add(std::move(slice));
}

void ParameterFactory::declare(WeightLoader::VectorSlice slice) {
  if (loader_ != nullptr) loader_->add(std::move(slice));
}

void ParameterFactory::declare_zero_rows(PackedWeight* weight, Range rows) {
  if (loader_ != nullptr) loader_->add_zero_rows(weight, rows);
}

void ParameterFactory::ignore(std::string pattern) {
  if (loader_ != nullptr) loader_->ignore(std::move(pattern));
}

Range even_share(int64_t size, TensorParallel tp) {
  CHECK(size % tp.size == 0, "{} does not divide by {} ranks", size, tp.size);
  return {size / tp.size * tp.rank, size / tp.size};
}

Range kv_head_share(int64_t num_kv_heads, TensorParallel tp) {
  if (num_kv_heads >= tp.size) return even_share(num_kv_heads, tp);
  CHECK(tp.size % num_kv_heads == 0, "{} kv heads over {} ranks", num_kv_heads, tp.size);
  return {tp.rank * num_kv_heads / tp.size, 1};
}

}  // namespace spate
