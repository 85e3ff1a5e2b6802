// InterceptingDevice: a device whose launches pass through one function, for tests. It gives everything else to the
// device that it wraps. Subclasses see each launch as text and as something to run.
//
// Threads: as Device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/ops.h"

namespace spate {

// An op, copy or fill that was given to a stream.
struct Launch {
  std::string text;  // the op's name and all its parameters: pointers, dims, strides, scalars
  std::function<void()> run;
};

class InterceptingDevice : public Device {
 public:
  explicit InterceptingDevice(std::unique_ptr<Device> inner);

  // Called for each launch, in order. Runs it, or keeps it to run it later.
  virtual void on_launch(Launch launch) = 0;

  Device& inner() const { return *inner_; }
  std::string_view kind() const override { return inner_->kind(); }
  std::string description() const override { return inner_->description(); }
  Result<MemoryInfo> memory_info() override { return inner_->memory_info(); }
  Result<Buffer> allocate(size_t bytes, MemoryKind kind) override { return inner_->allocate(bytes, kind); }
  void deallocate(void* data, size_t bytes, MemoryKind kind) noexcept override {
    inner_->deallocate(data, bytes, kind);
  }
  std::unique_ptr<Stream> create_stream() override;
  void copy_to_device(Stream& stream, void* dst, const void* src_host, size_t bytes) override;
  void copy_to_host(Stream& stream, void* dst_host, const void* src, size_t bytes) override;
  void fill_bytes(Stream& stream, void* dst, int byte, size_t bytes) override;
  void synchronize(Stream& stream) override;

  Status prepare(const DeviceUse& use) override { return inner_->prepare(use); }

  const OpTable& ops() const override { return ops_; }
  int64_t op_workspace_bytes(const OpLimits& limits) const override { return inner_->op_workspace_bytes(limits); }
  int64_t activation_row_bytes(int64_t row_bytes) const override { return inner_->activation_row_bytes(row_bytes); }
  bool supports(const WeightSpec& spec) const override { return inner_->supports(spec); }
  bool supports_experts(const WeightSpec& spec) const override { return inner_->supports_experts(spec); }
  int64_t max_experts() const override { return inner_->max_experts(); }
  bool supports_kv(const KvLayerDesc& desc) const override { return inner_->supports_kv(desc); }
  int min_expanded_query_len(const LatentShape& shape) const override { return inner_->min_expanded_query_len(shape); }
  Result<PackedWeight> create_weight(const WeightDesc& desc) override { return inner_->create_weight(desc); }
  Status pack_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) override {
    return inner_->pack_rows(weight, place, rows);
  }
  Status pack_quantized_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) override {
    return inner_->pack_quantized_rows(weight, place, rows);
  }
  int64_t kv_block_bytes(const KvLayerDesc& desc) const override { return inner_->kv_block_bytes(desc); }

 private:
  std::unique_ptr<Device> inner_;
  OpTable ops_;
};

}  // namespace spate
