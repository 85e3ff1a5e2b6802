#include "backend/cuda/kernel/linear/linear_integer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cuda/integer_scratch.h"
#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/linear/linear_codes.h"
#include "backend/cuda/kernel/linear/wgmma_plan.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

using KernelIds = std::array<KernelId, std::size(kWgmmaTileTokens)>;

constexpr KernelIds kInt8Ids = {kernel_id("linear_int8_n8"),   kernel_id("linear_int8_n16"),
                                kernel_id("linear_int8_n32"),  kernel_id("linear_int8_n64"),
                                kernel_id("linear_int8_n128"), kernel_id("linear_int8_n256")};
constexpr KernelIds kInt4Ids = {kernel_id("linear_int4_n8"),   kernel_id("linear_int4_n16"),
                                kernel_id("linear_int4_n32"),  kernel_id("linear_int4_n64"),
                                kernel_id("linear_int4_n128"), kernel_id("linear_int4_n256")};
constexpr KernelIds kInt4Group32Ids = {kernel_id("linear_int4_g32_n8"),   kernel_id("linear_int4_g32_n16"),
                                       kernel_id("linear_int4_g32_n32"),  kernel_id("linear_int4_g32_n64"),
                                       kernel_id("linear_int4_g32_n128"), kernel_id("linear_int4_g32_n256")};

constexpr int64_t kCodesPiece = 8;

const KernelIds& kernels_of(const IntegerLayout& layout) {
  return layout.num_multipliers == 0 ? kInt8Ids : layout.num_multipliers == 2 ? kInt4Ids : kInt4Group32Ids;
}

std::string_view name_of(const IntegerLayout& layout) {
  return layout.num_multipliers == 0 ? "linear_int8" : layout.num_multipliers == 2 ? "linear_int4" : "linear_int4_g32";
}

// --- up to kCodesTokens tokens ---------------------------------------------------------------------------------------

// Who makes the codes of x: quantize_rows, or each CTA for itself, of narrow or wide rows.
enum class OwnCodes { kNone, kNarrow, kWide };

KernelId codes_kernel_of(const IntegerLayout& layout, OwnCodes own) {
  using Ids = std::array<KernelId, 3>;
  static constexpr Ids kInt8 = {kernel_id("linear_int8_stream"), kernel_id("linear_int8_stream_own"),
                                kernel_id("linear_int8_stream")};  // never wide
  static constexpr Ids kInt4 = {kernel_id("linear_int4_stream"), kernel_id("linear_int4_stream_own"),
                                kernel_id("linear_int4_stream_own_wide")};
  static constexpr Ids kInt4Group32 = {kernel_id("linear_int4_g32_stream"), kernel_id("linear_int4_g32_stream_own"),
                                       kernel_id("linear_int4_g32_stream_own_wide")};
  const Ids& ids = layout.num_multipliers == 0 ? kInt8 : layout.num_multipliers == 2 ? kInt4 : kInt4Group32;
  return ids[static_cast<size_t>(own)];
}

// As many tokens as it was faster for than the skeleton.
bool fits_linear_codes(int64_t num_tokens, const IntegerLayout& layout) {
  const bool is_int8 = layout.num_multipliers == 0;
  return num_tokens <= (is_int8 ? kCodesTokens : kCodesTokens / 2) && layout.num_steps >= kCodesWarps;
}

// Whether the CTAs of linear_codes make the codes of x themselves, each all of them, while their first weights come:
// one launch less. Of wide rows that is faster by int4 only (14,336 elements: 0.6 % of a step, by int8 0.5 % slower).
OwnCodes own_codes_of(const Tensor& x, const IntegerLayout& layout) {
  constexpr int64_t kElemsAtOnce = kCodesPiece * 32 * kCodesWarps;  // a piece a thread
  const int64_t num_tokens = x.dim(0), pieces = ceil_div(layout.row_bytes(), kElemsAtOnce);
  if (x.dtype() != DType::kBf16 || num_tokens > kOwnCodesTokens || num_tokens * layout.row_bytes() > kOwnCodesBytes) {
    return OwnCodes::kNone;
  }
  if (pieces <= kOwnCodesPieces) return OwnCodes::kNarrow;
  return layout.num_multipliers > 0 && pieces <= kOwnCodesWidePieces ? OwnCodes::kWide : OwnCodes::kNone;
}

// What the op before has written for this product.
std::optional<HandedCodes> take_codes(Stream& stream, const LinearParams& p) {
  HandedCodes& pending = static_cast<CudaStream&>(stream).cuda_device().handed_codes();
  if (pending.reader == nullptr) return std::nullopt;
  CHECK(pending.reader == p.weight && pending.x == p.x.raw() && pending.num_tokens == p.x.dim(0) && p.matrix_idx == 0,
        "codes of {} rows were written for another product than this of {} rows", pending.num_tokens, p.x.dim(0));
  return std::exchange(pending, {});
}

// has_silu: out is silu(gate) * up, the rows of the weight are gates, then ups.
void linear_codes(Stream& stream, const LinearParams& p, const IntegerLayout& layout, bool has_silu) {
  constexpr int kCtasPerSm = 2;
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const IntegerScratch& scratch = device.integer_scratch();
  const int64_t num_tokens = p.x.dim(0), num_groups = ceil_div(layout.num_rows, kCodesRows);
  const std::optional<HandedCodes> handed = take_codes(stream, p);
  const OwnCodes own = handed ? OwnCodes::kNone : own_codes_of(p.x, layout);
  if (!handed && own == OwnCodes::kNone) quantize_rows(stream, p.x, layout, scratch);
  const LinearCodesKernelParams params{.codes = scratch.codes,
                                       .x = p.x.raw(),
                                       .x_stride = p.x.stride(0),
                                       .weight = p.weight->matrix(p.matrix_idx),
                                       .layout = layout,
                                       .rows = scratch.rows,
                                       .outliers = scratch.outliers,
                                       .bias = p.bias.defined() ? p.bias.raw() : nullptr,
                                       .out = p.out.raw(),
                                       .out_stride = p.out.stride(0),
                                       .num_tokens = static_cast<int32_t>(num_tokens),
                                       .num_groups = static_cast<int32_t>(num_groups),
                                       .group_step = has_silu ? kCodesRows / 2 : kCodesRows,
                                       .pair_step = has_silu ? layout.num_rows / 2 : kCodesRows / 2,
                                       .has_silu = has_silu,
                                       .is_x_aligned = are_rows_aligned({&p.x}),
                                       .is_bias_f32 = p.bias.defined() && p.bias.dtype() == DType::kF32,
                                       .is_out_f32 = p.out.dtype() == DType::kF32};
  const int64_t num_ctas = std::min<int64_t>(num_groups, kCtasPerSm * device.num_sms());
  launch(stream, codes_kernel_of(layout, own), {.x = num_ctas, .num_threads = 32 * kCodesWarps}, params,
         {{"num_tokens", num_tokens}, {"out_features", layout.num_rows}, {"in_features", layout.width}});
}

// --- more tokens -----------------------------------------------------------------------------------------------------

// The outliers of so few tokens are added one by one.
constexpr int64_t kMinColumnTokens = 16;

bool gathers_outliers(const CudaDevice& device, const Tensor& x, const IntegerLayout& layout) {
  return !device.is_deterministic() && x.dtype() == DType::kBf16 && x.dim(0) >= kMinColumnTokens &&
         outlier_capacity(layout.num_rows) > 0;
}

}  // namespace

RowShape row_shape(int num_sms, int64_t num_tokens, int64_t row_bytes) {
  // Below so many pieces a CTA a cluster's barriers cost what it saves.
  constexpr int64_t kMinPieces = 320, kCtasPerSm = 4;
  constexpr int kMaxIdx = 2;
  static_assert(kQuantizeMaxPieces == 1 << kMaxIdx);
  const int64_t num_pieces = row_bytes / kCodesPiece;
  int num_ctas = 1;
  const auto pieces_of_cta = [&] { return ceil_div(num_pieces, num_ctas); };
  while (pieces_of_cta() > kQuantizeMaxPieces * kQuantizeMaxThreads) num_ctas *= 2;
  while (2 * num_ctas <= kQuantizeMaxCtas && 2 * num_ctas * num_tokens <= kCtasPerSm * num_sms &&
         pieces_of_cta() >= 2 * kMinPieces) {
    num_ctas *= 2;
  }
  // Many tokens fill the SMs with several rows each: few threads a row, which join faster.
  int idx = num_tokens * num_ctas > kCtasPerSm * num_sms ? kMaxIdx : 0;
  while (idx < kMaxIdx && pieces_of_cta() > int64_t{kQuantizeMaxThreads} << idx) ++idx;
  return {num_ctas, idx, num_threads_for(ceil_div(pieces_of_cta(), int64_t{1} << idx), kQuantizeMaxThreads)};
}

int spread_bytes(int64_t num_ctas) {
  constexpr int64_t kMostSpread = 64;
  return num_ctas <= kMostSpread ? kSpreadSharedBytes : 0;
}

void quantize_rows(Stream& stream, const Tensor& x, const IntegerLayout& layout, const IntegerScratch& scratch,
                   OutlierColumns* columns) {
  using Ids = std::array<KernelId, 3>;
  static constexpr Ids kBf16 = {kernel_id("quantize_rows_bf16_1"), kernel_id("quantize_rows_bf16_2"),
                                kernel_id("quantize_rows_bf16_4")};
  static constexpr Ids kF32 = {kernel_id("quantize_rows_f32_1"), kernel_id("quantize_rows_f32_2"),
                               kernel_id("quantize_rows_f32_4")};
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const RowShape shape = row_shape(device.num_sms(), x.dim(0), layout.row_bytes());
  const QuantizeRowsKernelParams params{.x = x.raw(),
                                        .x_stride = x.stride(0),
                                        .out = {.codes = scratch.codes,
                                                .codes_bytes = layout.row_bytes(),
                                                .rows = scratch.rows,
                                                .outliers = scratch.outliers,
                                                .outlier_columns = columns,
                                                .row_bytes = static_cast<int32_t>(layout.row_bytes()),
                                                .width = layout.width,
                                                .num_ctas = shape.num_ctas},
                                        .is_x_aligned = are_rows_aligned({&x}),
                                        .num_tokens = static_cast<int32_t>(x.dim(0))};
  constexpr int64_t kManyRows = 2048;
  if (x.dtype() == DType::kBf16 && x.dim(0) > kManyRows && layout.row_bytes() <= kQuantizeNarrowWidth) {
    const bool is_half = layout.row_bytes() <= kQuantizeNarrowWidth / 2;
    launch(stream, is_half ? kernel_id("quantize_narrow_rows_4") : kernel_id("quantize_narrow_rows_8"),
           {.x = ceil_div(x.dim(0), kQuantizeNarrowWarps), .num_threads = 32 * kQuantizeNarrowWarps}, params,
           {{"num_tokens", x.dim(0)}, {"width", layout.width}});
    return;
  }
  launch(stream, (x.dtype() == DType::kF32 ? kF32 : kBf16)[static_cast<size_t>(shape.kernel_idx)],
         {.x = x.dim(0) * shape.num_ctas,
          .num_threads = shape.num_threads,
          .cluster = shape.num_ctas,
          .shared_bytes = x.dtype() == DType::kBf16 && shape.num_ctas == 1 ? spread_bytes(x.dim(0)) : 0},
         params, {{"num_tokens", x.dim(0)}, {"width", layout.width}});
}

std::optional<RowCodes> hand_codes(Stream& stream, const PackedWeight* reader, const Tensor& out) {
  if (reader == nullptr || !is_integer_kernel_spec(reader->desc().spec) || out.dtype() != DType::kBf16) {
    return std::nullopt;
  }
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const IntegerScratch& scratch = device.integer_scratch();
  const IntegerLayout layout = integer_layout(reader->desc());
  const int64_t num_tokens = out.dim(0), row_bytes = layout.row_bytes(), out_bytes = out.stride(0) * 2;
  if (num_tokens == 0 || layout.num_rows == 0 || num_tokens > kHandedTokens) return std::nullopt;
  if (fits_linear_codes(num_tokens, layout) && own_codes_of(out, layout) != OwnCodes::kNone) return std::nullopt;
  const bool is_in_place = num_tokens > kIntegerTokensAtOnce;
  if (is_in_place && (row_bytes > out_bytes || !are_rows_aligned({&out}))) return std::nullopt;
  HandedCodes& pending = device.handed_codes();
  CHECK(pending.reader == nullptr, "codes of {} rows were written that no product has read", pending.num_tokens);
  int8_t* codes = is_in_place ? static_cast<int8_t*>(out.raw()) : scratch.codes;
  pending = {.reader = reader,
             .x = out.raw(),
             .num_tokens = num_tokens,
             .codes = codes,
             .codes_bytes = is_in_place ? out_bytes : row_bytes};
  return RowCodes{.codes = codes,
                  .codes_bytes = pending.codes_bytes,
                  .rows = scratch.rows,
                  .outliers = scratch.outliers,
                  .outlier_columns = gathers_outliers(device, out, layout) ? scratch.outlier_columns : nullptr,
                  .row_bytes = static_cast<int32_t>(row_bytes),
                  .width = layout.width,
                  .num_ctas = 1};
}

void linear_integer(Stream& stream, const LinearParams& p) {
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const IntegerLayout layout = integer_layout(p.weight->desc());
  const IntegerScratch scratch = device.integer_scratch();
  const char* matrix = p.weight->matrix(p.matrix_idx);
  if (layout.num_rows == 0) return;
  if (fits_linear_codes(p.x.dim(0), layout)) return linear_codes(stream, p, layout, false);
  const std::optional<HandedCodes> handed = take_codes(stream, p);
  const bool gathers = gathers_outliers(device, p.x, layout);
  for (int64_t begin = 0; begin < p.x.dim(0); begin += kIntegerTokensAtOnce) {
    const int64_t num_tokens = std::min(kIntegerTokensAtOnce, p.x.dim(0) - begin);
    const int64_t first = handed ? begin : 0;  // in the scratch
    const int8_t* codes = handed ? handed->codes + begin * handed->codes_bytes : scratch.codes;
    const int64_t codes_bytes = handed ? handed->codes_bytes : layout.row_bytes();
    OutlierColumns* columns = gathers ? scratch.outlier_columns + first / kIntegerTokensAtOnce : nullptr;
    if (!handed) quantize_rows(stream, p.x.rows(begin, begin + num_tokens), layout, scratch, columns);
    const Tensor out = p.out.rows(begin, begin + num_tokens);
    const WgmmaPlan plan = plan_wgmma(device, num_tokens, layout.num_rows, layout.num_steps,
                                      {.are_sums_exact = true,
                                       .has_teams = true,
                                       .prefers_small_tiles = layout.num_multipliers > 0,
                                       .kernel = name_of(layout)});
    LinearIntegerKernelParams params{.tiles = plan.params,
                                     .weight = matrix,
                                     .layout = layout,
                                     .rows = scratch.rows + first,
                                     .outliers = scratch.outliers + first * kMaxOutliers,
                                     .outlier_values_map = {},
                                     .outlier_weights_map = {},
                                     .outlier_columns = columns,
                                     .outlier_values = scratch.outlier_values,
                                     .outlier_weights = scratch.outlier_weights,
                                     .outlier_capacity = outlier_capacity(layout.num_rows)};
    if (gathers) {
      const int64_t capacity = params.outlier_capacity;
      params.outlier_values_map =
          make_bf16_map(device.api(), scratch.outlier_values, num_tokens, capacity, capacity, plan.tile_tokens);
      params.outlier_weights_map =
          make_bf16_map(device.api(), scratch.outlier_weights, layout.num_rows, capacity, capacity, kWgmmaRows);
    }
    params.tiles.x = make_byte_map(device.api(), codes, num_tokens, layout.row_bytes(), codes_bytes, plan.box_tokens);
    if (layout.num_multipliers == 0) {
      params.tiles.weight =
          make_byte_map(device.api(), matrix, layout.num_rows, layout.row_bytes(), layout.row_bytes(), kWgmmaRows);
    } else {
      params.tiles.weight = params.tiles.x;  // prefetched as it is; W comes without a map
    }
    params.tiles.bias = p.bias.defined() ? p.bias.raw() : nullptr;
    params.tiles.is_bias_f32 = p.bias.defined() && p.bias.dtype() == DType::kF32;
    params.tiles.out = out.raw();
    params.tiles.out_stride = out.stride(0);
    params.tiles.is_out_f32 = out.dtype() == DType::kF32;
    params.tiles.is_out_paired = reinterpret_cast<uintptr_t>(out.raw()) % 4 == 0 && out.stride(0) % 2 == 0;
    launch(stream, kernels_of(layout)[plan.kernel_idx], {.x = plan.num_ctas, .num_threads = kWgmmaThreads}, params,
           {{"num_tokens", num_tokens}, {"out_features", layout.num_rows}, {"in_features", layout.width}});
  }
}

bool linear_silu_and_mul_integer(Stream& stream, const LinearSiluAndMulParams& p) {
  const IntegerLayout layout = integer_layout(p.weight->desc());
  if (p.x.dtype() != DType::kBf16 || p.x.dim(0) == 0 || layout.num_rows == 0 || layout.num_rows % kCodesRows != 0 ||
      !fits_linear_codes(p.x.dim(0), layout)) {
    return false;
  }
  linear_codes(stream, {.x = p.x, .weight = p.weight, .bias = p.bias, .out = p.out, .matrix_idx = p.matrix_idx}, layout,
               true);
  return true;
}

}  // namespace spate::cuda
