// LayerSource: one layer of a checkpoint as a checkpoint of its own, a decoder of one layer, in which tensors may be
// replaced. Its embedding table is one row of zeros: LayerRunner puts the inputs of the layer in its place.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weights/weight_source.h"

namespace spate {

class LayerSource final : public WeightSource {
 public:
  // The tensors "<prefix>.layers.<layer_idx>.*" of `base`, which must outlive this, under the names of layer 0.
  LayerSource(const WeightSource& base, const std::string& prefix, int64_t layer_idx, int64_t hidden_size);

  // Short names ("self_attn.q_proj.weight"), as in config.json's checkpoint without "<prefix>.layers.<layer_idx>.".
  // [rows, columns] or [n] f32, of the tensor's shape.
  void replace(const std::string& short_name, HostTensor values);
  bool has(const std::string& short_name) const;
  // As f32, a copy.
  Result<HostTensor> read(const std::string& short_name) const;
  const TensorEntry* base_entry(const std::string& short_name) const;  // nullptr when there is none

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  const std::string& file_name(int file_idx) const override { return base_.file_name(file_idx); }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const override;
  void release(const TensorEntry& entry, int64_t begin, int64_t end) const override;

 private:
  const WeightSource& base_;
  std::string base_prefix_, own_prefix_;  // "model.layers.5.", "model.layers.0."
  std::vector<TensorEntry> entries_;
  std::map<std::string, const TensorEntry*, std::less<>> base_entries_;  // own full name -> entry of base_
  std::map<std::string, HostTensor, std::less<>> replaced_;              // own full name -> values
};

}  // namespace spate
