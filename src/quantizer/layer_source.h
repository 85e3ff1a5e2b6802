// LayerSource: one layer of a checkpoint as a checkpoint of its own, in which tensors may be replaced. Names are those
// of the whole checkpoint. Its embedding table is one row of zeros: LayerRunner puts the inputs of the layer in its
// place.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "weights/weight_source.h"

namespace spate {

class LayerSource final : public WeightSource {
 public:
  // The tensors of `base` below outline.layers[layer_idx]. `base` must outlive this.
  LayerSource(const WeightSource& base, const ModelOutline& outline, int64_t layer_idx, int64_t hidden_size);

  int64_t layer_idx() const { return layer_idx_; }
  // [rows, columns] or [n] f32, of the tensor's shape.
  void replace(const std::string& name, HostTensor values);
  // As f32, a copy.
  Result<HostTensor> read(const std::string& name) const;

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  const std::string& file_name(int file_idx) const override { return base_.file_name(file_idx); }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const override;
  void release(const TensorEntry& entry, int64_t begin, int64_t end) const override;

 private:
  const WeightSource& base_;
  const int64_t layer_idx_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, HostTensor, std::less<>> replaced_;  // name -> values
};

}  // namespace spate
