// Int4 weights with scales of groups to the device (kernel/linear/int4_groups.h): numbers, or codes and scales as they
// are stored, go over as they are, and kernels on the device place them.
#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/linear/int4_groups.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int64_t kScaleAlignment = 16;

// A scale, and an offset where the layout has it, as the device keeps them.
void put_scale(char* to, int64_t scale_bytes, float scale, float offset) {
  if (scale_bytes == 8) {
    std::memcpy(to, &scale, 4);
    std::memcpy(to + 4, &offset, 4);
    return;
  }
  const F16 halves[2] = {F16::from_float(scale), F16::from_float(offset)};
  std::memcpy(to, halves, static_cast<size_t>(scale_bytes));
}

}  // namespace

bool is_int4_group_spec(const WeightSpec& spec) {
  return spec.codes == Codes::kInt4 && !spec.two_level && spec.activations == Activations::kAsIs && spec.tile.rows == 1;
}

Int4GroupLayout int4_group_layout(const WeightDesc& desc) {
  return make_int4_group_layout(desc.out_features, desc.in_features, desc.spec.tile.columns, desc.spec.has_offsets);
}

Status CudaDevice::pack_int4_group_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) {
  const WeightDesc& desc = weight.desc();
  if (desc.in_features > kMaxInt4GroupWidth) {
    return unimplemented("{} input features to quantise on {}: up to {} do", desc.in_features, kind(),
                         kMaxInt4GroupWidth);
  }
  const KernelId kernel =
      rows.dtype() == DType::kBf16 ? kernel_id("pack_int4_groups_bf16") : kernel_id("pack_int4_groups_f32");
  return stage_rows(rows, [&](int64_t begin, int64_t count) {
    const PackInt4GroupsKernelParams params{.rows = pack_staging_.data(),
                                            .scales = nullptr,
                                            .matrix = weight.mutable_matrix(place.matrix_idx),
                                            .layout = int4_group_layout(desc),
                                            .first_row = static_cast<int32_t>(place.row + begin),
                                            .num_groups = 0};
    launch(*pack_stream_, kernel, {.x = count, .num_threads = kInt4GroupThreads}, params,
           {{"num_rows", count}, {"width", desc.in_features}});
  });
}

Status CudaDevice::place_int4_group_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) {
  const WeightDesc& desc = weight.desc();
  const Int4GroupLayout layout = int4_group_layout(desc);
  const int64_t width = desc.in_features, num_groups = desc.spec.num_groups(width), scale_bytes = layout.scale_bytes;
  const int64_t bytes_of_row = width + num_groups * scale_bytes;
  RETURN_IF_ERROR(reserve_pack_staging(bytes_of_row + kScaleAlignment));
  const int64_t rows_at_once = (static_cast<int64_t>(pack_buffer_.bytes()) - kScaleAlignment) / bytes_of_row;
  for (int64_t begin = 0; begin < rows.num_rows(); begin += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, rows.num_rows() - begin);
    const int64_t scales_at = ceil_div(num_rows * width, kScaleAlignment) * kScaleAlignment;
    auto* codes = static_cast<int8_t*>(pack_buffer_.data());
    char* scales = static_cast<char*>(pack_buffer_.data()) + scales_at;
    for (int64_t i = 0; i < num_rows; ++i) {
      std::copy_n(rows.codes.data<int8_t>() + (begin + i) * rows.codes.stride(0), width, codes + i * width);
      const float* from = rows.scales.data<float>() + (begin + i) * rows.scales.stride(0);
      const float* offsets =
          rows.offsets.defined() ? rows.offsets.data<float>() + (begin + i) * rows.offsets.stride(0) : nullptr;
      for (int64_t g = 0; g < num_groups; ++g) {
        put_scale(scales + (i * num_groups + g) * scale_bytes, scale_bytes, stored_scale(desc.spec, from[g]),
                  offsets != nullptr ? stored_scale(desc.spec, offsets[g]) : 0.0f);
      }
    }
    copy_to_device(*pack_stream_, pack_staging_.data(), pack_buffer_.data(),
                   static_cast<size_t>(scales_at + num_rows * num_groups * scale_bytes));
    const PackInt4GroupsKernelParams params{.rows = pack_staging_.data(),
                                            .scales = static_cast<const char*>(pack_staging_.data()) + scales_at,
                                            .matrix = weight.mutable_matrix(place.matrix_idx),
                                            .layout = layout,
                                            .first_row = static_cast<int32_t>(place.row + begin),
                                            .num_groups = static_cast<int32_t>(num_groups)};
    launch(*pack_stream_, kernel_id("place_int4_groups"), {.x = num_rows, .num_threads = kInt4GroupThreads}, params,
           {{"num_rows", num_rows}, {"width", width}});
    synchronize(*pack_stream_);  // the buffers are used again
  }
  return {};
}

}  // namespace spate::cuda
