// ParameterFactory: where layers get their parameters: memory on the device, and a declaration at the loader of what
// fills it.
//
// Without a device it only counts: the same constructors then say what a model will take before anything is allocated.
// Lives while a model is made; used by its thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"
#include "base/status.h"
#include "quant/quantization.h"
#include "weights/weight_loader.h"

namespace spate {

// A vector of act dtype on the device: a norm's weight, a bias.
struct DeviceVector {
  Buffer storage;
  Tensor view;  // [n]; data is null when only counted
};

// What decides the format of a matrix.
struct WeightFormats {
  DType act_dtype = DType::kBf16;        // matrices that nobody quantised: f32 or bf16
  Quantization quantization;             // of those that the checkpoint has as floats
  const WeightSource* source = nullptr;  // the checkpoint; null: all are floats
  WeightSupport supports;                // what the device computes with; empty: all
};

class ParameterFactory {
 public:
  // Without a device: count only, and declare to the loader when there is one. Without a loader nothing is declared.
  ParameterFactory(Device* device, WeightLoader* loader, TensorParallel tp, const WeightFormats& formats)
      : device_(device), loader_(loader), tp_(tp), formats_(formats) {}

  // kRouter: never quantised, and f32 where the checkpoint has it so. kFloats: never quantised.
  enum class Role { kLinear, kVocabulary, kRouter, kFloats };
  // In a format that suits all of the checkpoint's tensors `names` ("....weight") that fill it. num_matrices: of this
  // shape each.
  Result<std::unique_ptr<PackedWeight>> matrix(Role role, std::span<const std::string> names, int64_t out_features,
                                               int64_t in_features, int64_t num_matrices = 1);
  Result<DeviceVector> vector(int64_t size) { return vector(size, act_dtype()); }
  Result<DeviceVector> vector(int64_t size, DType dtype);
  // Whether the checkpoint is known and has this tensor.
  bool checkpoint_has(const std::string& name) const {
    return formats_.source != nullptr && formats_.source->find(name) != nullptr;
  }
  // f32 on the device, filled from `values` ([rows, columns], not called when only counting).
  template <typename MakeValues>
  Result<DeviceVector> constants(int64_t rows, int64_t columns, MakeValues make_values) {
    if (device_ == nullptr) return count_constants(rows, columns);
    return upload_constants(rows, columns, make_values());
  }

  void declare(WeightLoader::MatrixSlice slice);
  void declare(WeightLoader::VectorSlice slice);
  void declare_zero_rows(PackedWeight* weight, Range rows);
  void ignore(std::string pattern);
  // Parameters of the whole model, counted by the layer that owns them (a replicated one counts once).
  void count_parameters(int64_t n) { num_parameters_ += n; }

  TensorParallel tp() const { return tp_; }
  DType act_dtype() const { return formats_.act_dtype; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t num_parameters() const { return num_parameters_; }

 private:
  Result<DeviceVector> count_constants(int64_t rows, int64_t columns);
  Result<DeviceVector> upload_constants(int64_t rows, int64_t columns, std::span<const float> values);

  Device* device_;
  WeightLoader* loader_;
  TensorParallel tp_;
  WeightSpec spec_for(Role role, std::span<const std::string> names) const;

  WeightFormats formats_;
  int64_t weight_bytes_ = 0;
  int64_t num_parameters_ = 0;
};

// The even share of a rank: `size` must divide by tp.size.
Range even_share(int64_t size, TensorParallel tp);
// The kv heads of a rank; with fewer heads than ranks a head is held by size / num_kv_heads of them.
Range kv_head_share(int64_t num_kv_heads, TensorParallel tp);

}  // namespace spate
