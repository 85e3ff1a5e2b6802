// KvStorage: the KV cache of all layers of a model in one buffer: the one place that makes KvViews.
//
// Belongs to its device's thread; the device outlives it.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"

namespace spate {

// Of one block of every layer.
int64_t kv_block_bytes(const Device& device, std::span<const KvLayerDesc> layers);

class KvStorage {
 public:
  KvStorage() = default;
  // The bytes are as the device gives them; no op reads a slot that was not written.
  static Result<KvStorage> create(Device& device, std::span<const KvLayerDesc> layers, int64_t num_blocks);

  const std::vector<KvView>& views() const { return views_; }  // of each layer, in their order
  const Buffer& buffer() const { return buffer_; }             // of all

 private:
  Buffer buffer_;
  std::vector<KvView> views_;
};

}  // namespace spate
