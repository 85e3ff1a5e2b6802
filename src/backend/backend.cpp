#include "backend/backend.h"

namespace spate {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    kind_ = other.kind_;
    device_ = std::exchange(other.device_, nullptr);
  }
  return *this;
}

void Buffer::reset() {
  if (data_ != nullptr) device_->deallocate(data_, bytes_, kind_);
  data_ = nullptr;
  bytes_ = 0;
}

Tensor Buffer::tensor(DType dtype, std::initializer_list<int64_t> dims, size_t offset_bytes) const {
  const Tensor view(static_cast<char*>(data_) + offset_bytes, dtype, dims);
  CHECK(offset_bytes + static_cast<size_t>(view.num_bytes()) <= bytes_, "{} at byte {} does not fit in {} bytes",
        view.shape_string(), offset_bytes, bytes_);
  return view;
}

void Device::run_step(Stream&, const StepKey&, const std::function<void()>& step) { step(); }

bool Device::supports(const WeightSpec& spec) const { return !spec.has_integer_codes(); }

bool Device::supports_kv(const KvLayerDesc& desc) const {
  return desc.kind != KvKind::kLatent && (desc.dtype == DType::kF32 || desc.dtype == DType::kBf16);
}

void check_row_place(const WeightDesc& desc, RowPlace place, int64_t num_rows, int64_t width) {
  CHECK(width == desc.in_features && place.row >= 0 && place.row + num_rows <= desc.out_features &&
            place.matrix_idx >= 0 && place.matrix_idx < desc.num_matrices,
        "rows [{}, {}] at row {} of matrix {} of a weight [{}, {}, {}]", num_rows, width, place.row, place.matrix_idx,
        desc.num_matrices, desc.out_features, desc.in_features);
}

Status Device::pack_quantized_rows(PackedWeight& weight, RowPlace, const QuantizedRows&) {
  CHECK(false, "{}: rows of codes for a weight of {}", kind(), weight_spec_name(weight.desc().spec));
}

}  // namespace spate
