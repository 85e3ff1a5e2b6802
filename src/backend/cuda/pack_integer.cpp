// Integer weights to the device (kernel/linear/integer_weight.h): numbers and codes go over as they are, and kernels on
// the device quantise and place them.
#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/linear/pack_integer.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int64_t kAlignment = 16;

int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

// Rows [begin, end) one behind the other: f16 as f32, the others as they are.
void gather(const Tensor& rows, int64_t begin, int64_t end, void* to) {
  const int64_t width = rows.dim(1);
  for (int64_t i = begin; i < end; ++i) {
    if (rows.dtype() == DType::kF16) {
      row_to_float(rows, i, static_cast<float*>(to) + (i - begin) * width);
    } else {
      const int64_t bytes = width * dtype_bytes(rows.dtype());
      std::memcpy(static_cast<char*>(to) + (i - begin) * bytes,
                  static_cast<const char*>(rows.raw()) + i * rows.stride(0) * dtype_bytes(rows.dtype()),
                  static_cast<size_t>(bytes));
    }
  }
}

// Rows of codes of two-level int4, as place_int4 takes them, in parts of one buffer.
struct Int4Rows {
  Int4Rows(char* buffer, int64_t num_rows, int64_t width, int64_t num_groups)
      : codes(reinterpret_cast<int8_t*>(buffer)),
        row_scales(reinterpret_cast<float*>(buffer + aligned(num_rows * width))),
        multipliers(reinterpret_cast<uint8_t*>(row_scales + num_rows)),
        bytes(bytes_of(num_rows, width, num_groups)) {}
  static int64_t bytes_of(int64_t num_rows, int64_t width, int64_t num_groups) {
    return aligned(num_rows * width) + num_rows * (4 + num_groups);
  }
  int8_t* codes;
  float* row_scales;
  uint8_t* multipliers;
  int64_t bytes;
};

}  // namespace

bool is_integer_kernel_spec(const WeightSpec& spec) {
  if (spec.activations != Activations::kInt8PerToken || spec.tile.rows != 1) return false;
  if (spec.codes == Codes::kInt8) return !spec.has_groups() && !spec.has_offsets;
  return spec.codes == Codes::kInt4 && spec.two_level;
}

IntegerLayout integer_layout(const WeightDesc& desc) {
  return make_integer_layout(desc.out_features, desc.in_features,
                             desc.spec.codes == Codes::kInt8 ? 0 : desc.spec.tile.columns);
}

bool CudaDevice::supports_experts(const WeightSpec& spec) const {
  return !spec.has_integer_codes() || (is_integer_kernel_spec(spec) && has(kernel_id("linear_int8_n8")));
}

bool CudaDevice::supports(const WeightSpec& spec) const {
  return supports_experts(spec) || (is_int4_group_spec(spec) && has(kernel_id("linear_int4_groups_n8")));
}

Status CudaDevice::reserve_integer_scratch(const IntegerLayout& layout) {
  if (layout.width > kMaxIntegerWidth) {
    return unimplemented("a weight of {} input features as integer codes: {} runs up to {}; keep it as bf16",
                         layout.width, kind(), kMaxIntegerWidth);
  }
  const int64_t codes_bytes = kIntegerTokensAtOnce * layout.row_bytes();
  const int64_t bytes =
      codes_bytes + kHandedTokens * static_cast<int64_t>(sizeof(QuantizedRow) + kMaxOutliers * sizeof(Outlier));
  if (static_cast<int64_t>(integer_scratch_buffer_.bytes()) >= bytes) return {};
  ASSIGN_OR_RETURN(integer_scratch_buffer_, allocate(static_cast<size_t>(bytes), MemoryKind::kDevice));
  char* data = static_cast<char*>(integer_scratch_buffer_.data());
  integer_scratch_.codes = reinterpret_cast<int8_t*>(data);
  integer_scratch_.rows = reinterpret_cast<QuantizedRow*>(data + codes_bytes);
  integer_scratch_.outliers = reinterpret_cast<Outlier*>(integer_scratch_.rows + kHandedTokens);
  return reserve_outlier_scratch();
}

Status CudaDevice::reserve_outlier_scratch() {
  if (outlier_scratch_buffer_.bytes() > 0) return {};
  constexpr int64_t kColumnsBytes = (kHandedTokens / kIntegerTokensAtOnce * sizeof(OutlierColumns) + 255) / 256 * 256;
  constexpr int64_t kValueBytes = kIntegerTokensAtOnce * kMaxOutlierColumns * 2;
  constexpr auto kBytes = static_cast<size_t>(kColumnsBytes + kValueBytes + kOutlierWeightBytes);
  ASSIGN_OR_RETURN(outlier_scratch_buffer_, allocate(kBytes, MemoryKind::kDevice));
  char* data = static_cast<char*>(outlier_scratch_buffer_.data());
  integer_scratch_.outlier_columns = reinterpret_cast<OutlierColumns*>(data);
  integer_scratch_.outlier_values = reinterpret_cast<uint16_t*>(data + kColumnsBytes);
  integer_scratch_.outlier_weights = reinterpret_cast<uint16_t*>(data + kColumnsBytes + kValueBytes);
  const std::unique_ptr<Stream> stream = create_stream();
  fill_bytes(*stream, data, 0, kColumnsBytes);
  synchronize(*stream);
  return {};
}

Status CudaDevice::reserve_pack_staging(int64_t bytes) {
  RETURN_IF_ERROR(reserve_pack_buffers(bytes));
  if (pack_staging_.bytes() >= pack_buffer_.bytes()) return {};
  ASSIGN_OR_RETURN(pack_staging_, allocate(pack_buffer_.bytes(), MemoryKind::kDevice));
  return {};
}

Status CudaDevice::pack_integer_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) {
  const WeightDesc& desc = weight.desc();
  const bool is_bf16 = rows.dtype() == DType::kBf16, is_int8 = desc.spec.codes == Codes::kInt8;
  const KernelId kernel = is_int8 ? (is_bf16 ? kernel_id("pack_int8_bf16") : kernel_id("pack_int8_f32"))
                                  : (is_bf16 ? kernel_id("pack_int4_bf16") : kernel_id("pack_int4_f32"));
  return stage_rows(rows, [&](int64_t begin, int64_t count) {
    const PackIntegerKernelParams params{.rows = pack_staging_.data(),
                                         .row_scales = nullptr,
                                         .multipliers = nullptr,
                                         .matrix = weight.mutable_matrix(place.matrix_idx),
                                         .layout = integer_layout(desc),
                                         .first_row = static_cast<int32_t>(place.row + begin),
                                         .group_width = static_cast<int32_t>(desc.spec.tile.columns)};
    launch(*pack_stream_, kernel, {.x = count, .num_threads = kPackThreads}, params,
           {{"num_rows", count}, {"width", desc.in_features}});
  });
}

Status CudaDevice::stage_rows(const Tensor& rows, const std::function<void(int64_t begin, int64_t count)>& pack) {
  const int64_t row_bytes = rows.dim(1) * (rows.dtype() == DType::kBf16 ? 2 : 4);
  RETURN_IF_ERROR(reserve_pack_staging(row_bytes));
  const int64_t rows_at_once = static_cast<int64_t>(pack_buffer_.bytes()) / row_bytes;
  for (int64_t begin = 0; begin < rows.dim(0); begin += rows_at_once) {
    const int64_t end = std::min(begin + rows_at_once, rows.dim(0));
    gather(rows, begin, end, pack_buffer_.data());
    copy_to_device(*pack_stream_, pack_staging_.data(), pack_buffer_.data(),
                   static_cast<size_t>((end - begin) * row_bytes));
    pack(begin, end - begin);
    synchronize(*pack_stream_);  // the buffers are used again
  }
  return {};
}

Status CudaDevice::pack_quantized_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) {
  const WeightDesc& desc = weight.desc();
  CHECK(desc.spec.stores_as(rows.spec), "rows of {} for a weight of {}", weight_spec_name(rows.spec),
        weight_spec_name(desc.spec));
  check_row_place(desc, place, rows.num_rows(), rows.in_features());
  if (is_int4_group_spec(desc.spec)) return place_int4_group_rows(weight, place, rows);
  return desc.spec.codes == Codes::kInt8 ? place_int8_rows(weight, place, rows) : place_int4_rows(weight, place, rows);
}

Status CudaDevice::place_int8_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) {
  const IntegerLayout layout = integer_layout(weight.desc());
  const int64_t bytes_of_row = layout.row_bytes() + 4;
  RETURN_IF_ERROR(reserve_pack_buffers(bytes_of_row));
  char* matrix = weight.mutable_matrix(place.matrix_idx);
  const int64_t rows_at_once = static_cast<int64_t>(pack_buffer_.bytes()) / bytes_of_row;
  for (int64_t begin = 0; begin < rows.num_rows(); begin += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, rows.num_rows() - begin);
    auto* codes = static_cast<int8_t*>(pack_buffer_.data());
    auto* scales = reinterpret_cast<float*>(codes + num_rows * layout.row_bytes());
    for (int64_t i = 0; i < num_rows; ++i) {
      int8_t* row = codes + i * layout.row_bytes();
      const int8_t* source = rows.codes.data<int8_t>() + (begin + i) * rows.codes.stride(0);
      std::fill(std::copy_n(source, layout.width, row), row + layout.row_bytes(), int8_t{0});
      scales[i] = rows.scales.data<float>()[(begin + i) * rows.scales.stride(0)];
    }
    const int64_t first = place.row + begin;
    copy_to_device(*pack_stream_, matrix + first * layout.row_bytes(), codes,
                   static_cast<size_t>(num_rows * layout.row_bytes()));
    copy_to_device(*pack_stream_, matrix + layout.scales_offset + first * 4, scales, static_cast<size_t>(num_rows) * 4);
    synchronize(*pack_stream_);
  }
  return {};
}

Status CudaDevice::place_int4_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) {
  const WeightDesc& desc = weight.desc();
  const int64_t width = desc.in_features, num_groups = desc.spec.num_groups(width);
  RETURN_IF_ERROR(reserve_pack_staging(Int4Rows::bytes_of(1, width, num_groups)));
  const int64_t rows_at_once =
      (static_cast<int64_t>(pack_buffer_.bytes()) - kAlignment) / Int4Rows::bytes_of(1, width, num_groups);
  for (int64_t begin = 0; begin < rows.num_rows(); begin += std::max<int64_t>(rows_at_once, 1)) {
    const int64_t num_rows = std::min(std::max<int64_t>(rows_at_once, 1), rows.num_rows() - begin);
    const Int4Rows host(static_cast<char*>(pack_buffer_.data()), num_rows, width, num_groups);
    for (int64_t i = 0; i < num_rows; ++i) {
      std::copy_n(rows.codes.data<int8_t>() + (begin + i) * rows.codes.stride(0), width, host.codes + i * width);
      const bool split = split_scales(rows.scales.data<float>() + (begin + i) * rows.scales.stride(0), num_groups,
                                      host.row_scales[i], host.multipliers + i * num_groups);
      CHECK(split, "row {} of {} has scales of other kinds", begin + i, weight_spec_name(desc.spec));
    }
    copy_to_device(*pack_stream_, pack_staging_.data(), pack_buffer_.data(), static_cast<size_t>(host.bytes));
    const Int4Rows staged(static_cast<char*>(pack_staging_.data()), num_rows, width, num_groups);
    const PackIntegerKernelParams params{.rows = staged.codes,
                                         .row_scales = staged.row_scales,
                                         .multipliers = staged.multipliers,
                                         .matrix = weight.mutable_matrix(place.matrix_idx),
                                         .layout = integer_layout(desc),
                                         .first_row = static_cast<int32_t>(place.row + begin),
                                         .group_width = static_cast<int32_t>(desc.spec.tile.columns)};
    launch(*pack_stream_, kernel_id("place_int4"), {.x = num_rows, .num_threads = kPackThreads}, params,
           {{"num_rows", num_rows}, {"width", width}});
    synchronize(*pack_stream_);
  }
  return {};
}

}  // namespace spate::cuda
