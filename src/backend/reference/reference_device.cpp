#include "backend/reference/reference_device.h"

#include <cstdlib>
#include <cstring>

#include "backend/reference/element.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/reference_weight.h"
#include "base/system_memory.h"

namespace spate {
namespace {

OpTable reference_ops() {
  OpTable ops;
  ops.embedding = reference::embedding;
  ops.linear = reference::linear;
  ops.rms_norm = reference::rms_norm;
  ops.add = reference::add;
  ops.silu_and_mul = reference::silu_and_mul;
  ops.rope = reference::rope;
  ops.kv_write = reference::kv_write;
  ops.attention_paged = reference::attention_paged;
  ops.gather_rows = reference::gather_rows;
  ops.scatter_rows = reference::scatter_rows;
  ops.apply_updates = reference::apply_updates;
  ops.begin_step = reference::begin_step;
  ops.sample = reference::sample;
  ops.logprobs = reference::logprobs;
  ops.finish_step = reference::finish_step;
  ops.kv_copy_blocks = reference::kv_copy_blocks;
  ops.route_experts = reference::route_experts;
  ops.expert_mlp = reference::expert_mlp;
  ops.latent_write = reference::latent_write;
  ops.attention_latent = reference::attention_latent;
  ops.linear_heads = reference::linear_heads;
  ops.attention_latent_expanded = reference::attention_latent_expanded;
  ops.add_rms_norm = reference::add_rms_norm;
  ops.qk_norm_rope_kv_write = reference::qk_norm_rope_kv_write;
  ops.linear_silu_and_mul = reference::linear_silu_and_mul;
  return ops;
}

class ReferenceDevice final : public Device {
 public:
  explicit ReferenceDevice(bool is_deterministic) : is_deterministic_(is_deterministic) {}

  std::string_view kind() const override { return "reference"; }
  std::string description() const override { return "reference, scalar, fp64 sums, 1 thread"; }

  Result<MemoryInfo> memory_info() override {
    const SystemMemory memory = system_memory();
    return MemoryInfo{.total_bytes = memory.total_bytes, .free_bytes = memory.available_bytes};
  }
  Result<Buffer> allocate(size_t bytes, MemoryKind kind) override {
    void* data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (data == nullptr && bytes > 0) return resource_exhausted("reference device: cannot allocate {} bytes", bytes);
    return Buffer(data, bytes, kind, this);
  }
  void deallocate(void* data, size_t, MemoryKind) noexcept override { std::free(data); }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<Stream>(*this); }
  void copy_to_device(Stream&, void* dst, const void* src_host, size_t bytes) override {
    if (bytes > 0) std::memcpy(dst, src_host, bytes);
  }
  void copy_to_host(Stream&, void* dst_host, const void* src, size_t bytes) override {
    if (bytes > 0) std::memcpy(dst_host, src, bytes);
  }
  void fill_bytes(Stream&, void* dst, int byte, size_t bytes) override {
    if (bytes > 0) std::memset(dst, byte, bytes);
  }
  void synchronize(Stream&) override {}
  // Small, so that tests with short prompts reach both forms.
  int min_expanded_query_len(const LatentShape&) const override { return is_deterministic_ ? 0 : 4; }

  const OpTable& ops() const override { return ops_; }

  bool supports(const WeightSpec&) const override { return true; }
  bool supports_kv(const KvLayerDesc&) const override { return true; }
  Result<PackedWeight> create_weight(const WeightDesc& desc) override {
    ASSIGN_OR_RETURN(Buffer storage, allocate(static_cast<size_t>(desc.num_matrices * reference::storage_bytes(desc)),
                                              MemoryKind::kDevice));
    return PackedWeight(desc, std::move(storage));
  }
  Status pack_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) override {
    const WeightDesc& desc = weight.desc();
    if (desc.spec.has_integer_codes()) {
      WeightSpec symmetric = desc.spec;
      symmetric.has_offsets = false;
      return pack_quantized_rows(weight, place, convert_rows(quantize_rows(symmetric, rows), desc.spec));
    }
    check_row_place(desc, place, rows.dim(0), rows.dim(1));
    const DType dtype = reference::value_dtype(desc.spec);
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      for (int64_t k = 0; k < desc.in_features; ++k) {
        reference::store(weight.mutable_matrix(place.matrix_idx), dtype, (place.row + i) * desc.in_features + k,
                         reference::load(rows, i, k));
      }
    }
    return {};
  }
  Status pack_quantized_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) override {
    const WeightDesc& desc = weight.desc();
    CHECK(rows.spec.stores_as(desc.spec), "rows of {} for a weight of {}", weight_spec_name(rows.spec),
          weight_spec_name(desc.spec));
    check_row_place(desc, place, rows.num_rows(), rows.in_features());
    const QuantizedRows all = reference::quantized_view(weight, place.matrix_idx);
    const auto copy_scales = [&](const Tensor& from, const Tensor& to, int64_t i) {
      for (int64_t g = 0; g < to.dim(1); ++g) {
        to.data<float>()[(place.row + i) * to.stride(0) + g] =
            stored_scale(desc.spec, from.data<float>()[i * from.stride(0) + g]);
      }
    };
    for (int64_t i = 0; i < rows.num_rows(); ++i) {
      const int8_t* codes = rows.codes.data<int8_t>() + i * rows.codes.stride(0);
      std::memcpy(all.codes.data<int8_t>() + (place.row + i) * desc.in_features, codes,
                  static_cast<size_t>(desc.in_features));
      copy_scales(rows.scales, all.scales, i);
      if (desc.spec.has_offsets) copy_scales(rows.offsets, all.offsets, i);
    }
    return {};
  }
  int64_t kv_block_bytes(const KvLayerDesc& desc) const override {
    const int64_t scale_bytes = desc.dtype == DType::kI8 ? 4 : 0;
    if (desc.kind == KvKind::kLatent) {
      return desc.kv_block_size * (desc.latent_width() * dtype_bytes(desc.dtype) + 2 * scale_bytes);
    }
    return 2 * desc.kv_block_size * desc.num_kv_heads * (desc.head_dim * dtype_bytes(desc.dtype) + scale_bytes);
  }

 private:
  const bool is_deterministic_;
  OpTable ops_ = reference_ops();
};

}  // namespace

Result<std::unique_ptr<Device>> make_reference_device(const DeviceOptions& options) {
  return std::unique_ptr<Device>(std::make_unique<ReferenceDevice>(options.deterministic));
}

}  // namespace spate
