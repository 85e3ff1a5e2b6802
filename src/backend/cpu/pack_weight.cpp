// Integer weights into n-blocks (weight_layout.h), quantised on the way where rows come as numbers.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

SourceElem source_elem_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return SourceElem::kF32;
    case DType::kF16:
      return SourceElem::kF16;
    case DType::kBf16:
      return SourceElem::kBf16;
    default:
      CHECK(false, "weight rows of {}", dtype_name(dtype));
  }
}

uint32_t four_codes(const int8_t* codes) {
  uint32_t word = 0;
  std::memcpy(&word, codes, 4);
  return word;
}

// Four codes of int4 as the low halves of four bytes.
uint32_t four_nibbles(const int8_t* codes) { return (four_codes(codes) & 0x0f0f0f0fu) ^ 0x08080808u; }

void put_codes(const IntLayout& layout, const int8_t* codes, char* n_block, int64_t column) {
  if (layout.codes == CodeType::kInt8) {
    for (int64_t k = 0; k < layout.k_padded; k += 4) std::memcpy(n_block + int8_offset(k, column), codes + k, 4);
    return;
  }
  for (int64_t k = 0; k < layout.k_padded; k += kIntKStep) {
    for (int64_t i = k; i < k + kIntHalfStep; i += 4) {
      const uint32_t word = four_nibbles(codes + i) | four_nibbles(codes + i + kIntHalfStep) << 4;
      std::memcpy(n_block + int4_offset(i, column), &word, 4);
    }
  }
}

// The scales of a row of two levels, taken apart.
void put_multiplied_scales(const IntLayout& layout, const float* scales, int64_t num_scales, uint8_t* multipliers,
                           char* n_block, int64_t column) {
  float row_scale = 0;
  std::fill_n(multipliers, layout.num_multipliers(), uint8_t{0});
  const bool split = split_scales(scales, num_scales, row_scale, multipliers);
  CHECK(split, "a row's scales are not multiples of one number");
  for (int64_t g = 0; g < layout.num_multipliers(); ++g) {
    n_block[layout.multipliers_offset() + g * kNBlock + column] = static_cast<char>(multipliers[g]);
  }
  std::memcpy(n_block + layout.scales_offset() + column * 4, &row_scale, 4);
}

void put_scales(const IntLayout& layout, const float* scales, char* out, int64_t column) {
  for (int64_t g = 0; g < layout.num_groups; ++g) {
    char* at = out + (g * kNBlock + column) * layout.scale_bytes;
    if (layout.scale_bytes == 4) {
      std::memcpy(at, scales + g, 4);
    } else {
      const F16 half = F16::from_float(scales[g]);
      std::memcpy(at, &half, 2);
    }
  }
}

// A row as kernels store it, on its way into the n-block. Memory of one thread.
struct RowBuffer {
  int8_t* codes;   // [k_padded]
  float* scales;   // [num_groups]; of two levels a product for each multiplier
  float* offsets;  // the same
  uint8_t* multipliers;  // the same

  static int64_t num_scales(const IntLayout& layout) { return std::max(layout.num_groups, layout.num_multipliers()); }
  static int64_t bytes(const IntLayout& layout) { return layout.k_padded + 9 * num_scales(layout); }
};

RowBuffer row_buffer(const IntLayout& layout, char* scratch, int64_t in_features) {
  RowBuffer row;
  row.codes = reinterpret_cast<int8_t*>(scratch);
  row.scales = reinterpret_cast<float*>(scratch + layout.k_padded);
  row.offsets = row.scales + RowBuffer::num_scales(layout);
  row.multipliers = reinterpret_cast<uint8_t*>(row.offsets + RowBuffer::num_scales(layout));
  std::memset(row.codes + in_features, 0, static_cast<size_t>(layout.k_padded - in_features));
  std::memset(row.offsets, 0, static_cast<size_t>(RowBuffer::num_scales(layout)) * 4);
  return row;
}

// Calls fill(row of the source, buffer) for each row and packs what it left there. An item is an n-block: a thread
// writes whole cache lines.
template <typename Fill>
void pack_each(CpuContext& context, PackedWeight& weight, RowPlace place, int64_t num_rows, const Fill& fill) {
  const WeightDesc& desc = weight.desc();
  const IntLayout layout = int_layout_of(desc);
  const int64_t first_row = place.row, end_row = first_row + num_rows, first_block = first_row / kNBlock;
  context.reserve_thread_scratch(RowBuffer::bytes(layout));
  context.pool.parallel_for(ceil_div(end_row, kNBlock) - first_block, [&](int thread_idx, int64_t item) {
    const RowBuffer row = row_buffer(layout, context.scratch_of(thread_idx), desc.in_features);
    const int64_t begin = std::max(first_row, (first_block + item) * kNBlock);
    const int64_t end = std::min(end_row, (first_block + item + 1) * kNBlock);
    char* n_block = weight.mutable_matrix(place.matrix_idx) + (first_block + item) * layout.block_bytes;
    for (int64_t n = begin; n < end; ++n) {
      fill(n - first_row, row);
      put_codes(layout, row.codes, n_block, n % kNBlock);
      if (layout.two_level()) {
        put_multiplied_scales(layout, row.scales, desc.spec.num_groups(desc.in_features), row.multipliers, n_block,
                              n % kNBlock);
      } else {
        put_scales(layout, row.scales, n_block + layout.scales_offset(), n % kNBlock);
      }
      if (layout.has_offsets) put_scales(layout, row.offsets, n_block + layout.offsets_offset(), n % kNBlock);
    }
  });
}

}  // namespace

IntLayout int_layout_of(const WeightDesc& desc) {
  if (!desc.spec.has_integer_codes()) return {};
  const CodeType codes = desc.spec.codes == Codes::kInt8 ? CodeType::kInt8 : CodeType::kInt4;
  return make_int_layout(codes, desc.spec.tile.columns, desc.spec.has_offsets, desc.spec.two_level, desc.in_features);
}

void pack_int_rows(CpuContext& context, PackedWeight& weight, RowPlace place, const Tensor& rows) {
  const IntLayout layout = int_layout_of(weight.desc());
  const SourceElem elem = source_elem_of(rows.dtype());
  pack_each(context, weight, place, rows.dim(0), [&](int64_t i, const RowBuffer& row) {
    context.kernels.quantize_weight_row(layout, address(rows, i * rows.stride(0)), elem, rows.dim(1), row.codes,
                                        row.scales);
  });
}

void pack_int_rows(CpuContext& context, PackedWeight& weight, RowPlace place, const QuantizedRows& rows) {
  const WeightSpec& spec = weight.desc().spec;
  const auto copy_scales = [&](const Tensor& from, int64_t i, float* to) {
    const float* source = from.data<float>() + i * from.stride(0);
    for (int64_t g = 0; g < from.dim(1); ++g) to[g] = stored_scale(spec, source[g]);
  };
  pack_each(context, weight, place, rows.num_rows(), [&](int64_t i, const RowBuffer& row) {
    std::memcpy(row.codes, rows.codes.data<int8_t>() + i * rows.codes.stride(0),
                static_cast<size_t>(rows.in_features()));
    copy_scales(rows.scales, i, row.scales);
    if (spec.has_offsets) copy_scales(rows.offsets, i, row.offsets);
  });
}

}  // namespace spate::cpu
