#include "backend/kv_storage.h"

namespace spate {

int64_t kv_block_bytes(const Device& device, std::span<const KvLayerDesc> layers) {
  int64_t bytes = 0;
  for (const KvLayerDesc& desc : layers) bytes += device.kv_block_bytes(desc);
  return bytes;
}

Result<KvStorage> KvStorage::create(Device& device, std::span<const KvLayerDesc> layers, int64_t num_blocks) {
  KvStorage storage;
  const int64_t bytes = num_blocks * kv_block_bytes(device, layers);
  ASSIGN_OR_RETURN(storage.buffer_, device.allocate(static_cast<size_t>(bytes), MemoryKind::kDevice));
  char* data = static_cast<char*>(storage.buffer_.data());
  for (const KvLayerDesc& desc : layers) {
    const int64_t block_bytes = device.kv_block_bytes(desc);
    storage.views_.push_back({.desc = desc, .data = data, .block_bytes = block_bytes, .num_blocks = num_blocks});
    data += num_blocks * block_bytes;
  }
  return storage;
}

}  // namespace spate
