// Weights to the device: row-major, rows padded to 16 elements with zeros, through a pinned buffer that also holds the
// result of the conversion to the weight's format.
#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int64_t kRowUnit = 16;               // elements; one step of the tensor core along k
constexpr int64_t kPackBufferBytes = 8 << 20;  // 0.15 ms of a 55 GB/s copy: the wait for it is no cost

int64_t element_bytes(const WeightDesc& desc) { return desc.spec.codes == Codes::kF32 ? 4 : 2; }

template <typename Src, typename Dst>
Dst convert_element(Src value) {
  if constexpr (std::is_same_v<Src, Dst>) {
    return value;
  } else if constexpr (std::is_same_v<Src, float>) {
    return Dst::from_float(value);
  } else if constexpr (std::is_same_v<Dst, float>) {
    return value.to_float();
  } else {
    return Dst::from_float(value.to_float());
  }
}

// Rows [begin, end) to `dst`, whose rows lie `dst_stride` elements apart; fills the padding.
template <typename Src, typename Dst>
void convert_rows(const Tensor& rows, int64_t begin, int64_t end, Dst* dst, int64_t dst_stride) {
  const int64_t width = rows.dim(1);
  for (int64_t i = begin; i < end; ++i, dst += dst_stride) {
    const Src* src = rows.data<Src>() + i * rows.stride(0);
    if constexpr (std::is_same_v<Src, Dst>) {
      std::memcpy(dst, src, static_cast<size_t>(width) * sizeof(Dst));
    } else {
      std::transform(src, src + width, dst, convert_element<Src, Dst>);
    }
    std::fill(dst + width, dst + dst_stride, Dst{});
  }
}

template <typename Dst>
void convert_rows_from(const Tensor& rows, int64_t begin, int64_t end, Dst* dst, int64_t dst_stride) {
  switch (rows.dtype()) {
    case DType::kF32:
      return convert_rows<float>(rows, begin, end, dst, dst_stride);
    case DType::kF16:
      return convert_rows<F16>(rows, begin, end, dst, dst_stride);
    case DType::kBf16:
      return convert_rows<Bf16>(rows, begin, end, dst, dst_stride);
    default:
      CHECK(false, "a weight is made of f32, f16 or bf16, not {}", dtype_name(rows.dtype()));
  }
}

}  // namespace

int64_t weight_row_stride(const WeightDesc& desc) { return ceil_div(desc.in_features, kRowUnit) * kRowUnit; }

Result<PackedWeight> CudaDevice::create_weight(const WeightDesc& desc) {
  int64_t matrix_bytes = desc.out_features * weight_row_stride(desc) * element_bytes(desc);
  if (is_int4_group_spec(desc.spec)) {
    matrix_bytes = int4_group_layout(desc).matrix_bytes;
  } else if (desc.spec.has_integer_codes()) {
    const IntegerLayout layout = integer_layout(desc);
    RETURN_IF_ERROR(reserve_integer_scratch(layout));
    matrix_bytes = layout.matrix_bytes;
  }
  ASSIGN_OR_RETURN(Buffer storage,
                   allocate(static_cast<size_t>(desc.num_matrices * matrix_bytes), MemoryKind::kDevice));
  return PackedWeight(desc, std::move(storage));
}

Status CudaDevice::reserve_pack_buffers(int64_t bytes) {
  if (pack_stream_ == nullptr) pack_stream_ = std::make_unique<CudaStream>(*this);
  const int64_t wanted = std::max(bytes, kPackBufferBytes);
  if (static_cast<int64_t>(pack_buffer_.bytes()) >= wanted) return {};
  ASSIGN_OR_RETURN(pack_buffer_, allocate(static_cast<size_t>(wanted), MemoryKind::kPinnedHost));
  return {};
}

Status CudaDevice::pack_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) {
  const WeightDesc& desc = weight.desc();
  check_row_place(desc, place, rows.dim(0), rows.dim(1));
  if (is_int4_group_spec(desc.spec)) return pack_int4_group_rows(weight, place, rows);
  if (desc.spec.has_integer_codes()) return pack_integer_rows(weight, place, rows);
  const int64_t row_bytes = weight_row_stride(desc) * element_bytes(desc);
  RETURN_IF_ERROR(reserve_pack_buffers(row_bytes));
  const int64_t rows_at_once = static_cast<int64_t>(pack_buffer_.bytes()) / row_bytes;
  for (int64_t begin = 0; begin < rows.dim(0); begin += rows_at_once) {
    const int64_t end = std::min(begin + rows_at_once, rows.dim(0));
    if (desc.spec.codes == Codes::kF32) {
      convert_rows_from(rows, begin, end, static_cast<float*>(pack_buffer_.data()), weight_row_stride(desc));
    } else {
      convert_rows_from(rows, begin, end, static_cast<Bf16*>(pack_buffer_.data()), weight_row_stride(desc));
    }
    copy_to_device(*pack_stream_, weight.mutable_matrix(place.matrix_idx) + (place.row + begin) * row_bytes,
                   pack_buffer_.data(), static_cast<size_t>((end - begin) * row_bytes));
    synchronize(*pack_stream_);  // the buffer is used again
  }
  return {};
}

}  // namespace spate::cuda
