#include <algorithm>
#include <array>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/expert/expert_order_rows.h"
#include "backend/cuda/kernel/expert/expert_outliers.h"
#include "backend/cuda/kernel/expert/expert_product.h"
#include "backend/cuda/kernel/expert/expert_stream.h"
#include "backend/cuda/kernel/expert/expert_wgmma.h"
#include "backend/cuda/kernel/expert/weight_matrices.h"
#include "backend/cuda/kernel/linear/linear_integer.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

constexpr int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

// One after the other in the workspace. Without memory it only counts.
struct ScratchLayout {
  char* base = nullptr;
  int64_t bytes = 0;

  template <typename T>
  T* take(int64_t count) {
    T* at = base == nullptr ? nullptr : reinterpret_cast<T*>(base + bytes);
    bytes += round_up(count * static_cast<int64_t>(sizeof(T)), 256);
    return at;
  }
};

// What a call keeps in the workspace.
struct ExpertScratch {
  ExpertOrder order;
  IntegerScratch x_codes;    // [num_tokens], where gate_up is integer
  IntegerScratch act_codes;  // [pairs], where down is integer
  char* gate_up = nullptr;   // [pairs, 2 * intermediate_size] act, where silu is no part of the product
  char* x = nullptr;         // [pairs, hidden_size] act or codes, where rows are copied before the product
  char* act = nullptr;       // [pairs, act_stride] act
  QuantizedRow* x_rows = nullptr;  // [pairs] of those copies, where gate_up is integer
  int32_t* cta_counts = nullptr;   // [SMs, experts], where rows are copied
  float* y = nullptr;              // [pairs, y_stride]; bf16 takes half of it
};

bool is_integer(const PackedWeight& weight) { return weight.desc().spec.has_integer_codes(); }
int64_t act_stride(const ExpertMlpParams& p) { return round_up(p.down->desc().in_features, 16); }
int64_t y_stride(const ExpertMlpParams& p) { return round_up(p.out.dim(1), 8); }
// Of rows as a product with the weight takes them.
int64_t input_row_bytes(const PackedWeight& weight, DType act) {
  return is_integer(weight) ? integer_layout(weight.desc()).row_bytes() : weight.desc().in_features * dtype_bytes(act);
}

IntegerScratch take_codes(const PackedWeight& weight, int64_t num_rows, ScratchLayout& layout) {
  if (!is_integer(weight)) return {};
  IntegerScratch scratch;
  scratch.codes = layout.take<int8_t>(num_rows * integer_layout(weight.desc()).row_bytes());
  scratch.rows = layout.take<QuantizedRow>(num_rows);
  scratch.outliers = layout.take<Outlier>(num_rows * kMaxOutliers);
  return scratch;
}

// What a way of computing needs beside the order, codes, act and y.
enum class Extra { kNone, kX, kGateUp };

ExpertScratch lay_out(const ExpertMlpParams& p, int64_t num_pairs, int64_t tile_rows, Extra extra, int64_t num_sms,
                      ScratchLayout& layout) {
  const int64_t element = dtype_bytes(p.x.dtype());
  ExpertScratch scratch;
  scratch.order.num_tiles = layout.take<int32_t>(3);
  scratch.order.tiles =
      layout.take<ExpertTile>(max_expert_tiles(num_pairs, p.gate_up->desc().num_matrices, tile_rows));
  scratch.order.row_tokens = layout.take<int32_t>(num_pairs);
  scratch.order.pair_rows = layout.take<int32_t>(num_pairs);
  if (extra == Extra::kX) scratch.cta_counts = layout.take<int32_t>(num_sms * kOrderRowsMaxExperts);
  scratch.x_codes = take_codes(*p.gate_up, p.x.dim(0), layout);
  scratch.act_codes = take_codes(*p.down, num_pairs, layout);
  scratch.act = layout.take<char>(num_pairs * act_stride(p) * element);
  // x and gate_up are read before y is written: they share its place.
  ScratchLayout before_y = layout;
  if (extra == Extra::kX) {
    scratch.x = before_y.take<char>(num_pairs * input_row_bytes(*p.gate_up, p.x.dtype()));
    if (is_integer(*p.gate_up)) scratch.x_rows = before_y.take<QuantizedRow>(num_pairs);
  }
  if (extra == Extra::kGateUp) {
    scratch.gate_up = before_y.take<char>(num_pairs * p.gate_up->desc().out_features * element);
  }
  scratch.y = layout.take<float>(num_pairs * y_stride(p));
  layout.bytes = std::max(layout.bytes, before_y.bytes);
  return scratch;
}

ExpertScratch take_scratch(CudaDevice& device, const ExpertMlpParams& p, int64_t tile_rows, Extra extra) {
  const int64_t num_pairs = p.x.dim(0) * p.expert_ids.dim(1);
  ScratchLayout counted;
  lay_out(p, num_pairs, tile_rows, extra, device.num_sms(), counted);
  ScratchLayout layout{.base = static_cast<char*>(device.workspace(static_cast<size_t>(counted.bytes)))};
  return lay_out(p, num_pairs, tile_rows, extra, device.num_sms(), layout);
}

ExpertOrderKernelParams order_params(const ExpertMlpParams& p, const ExpertOrder& order, int64_t tile_rows) {
  const int64_t num_experts = p.gate_up->desc().num_matrices;
  CHECK(num_experts <= kOrderMaxExperts, "expert_mlp: {} experts exceed {}", num_experts, kOrderMaxExperts);
  return {
      .expert_ids = p.expert_ids.data<int32_t>(),
      .ids_stride = p.expert_ids.stride(0),
      .order = order,
      .num_pairs = static_cast<int32_t>(p.x.dim(0) * p.expert_ids.dim(1)),
      .num_experts_per_tok = static_cast<int32_t>(p.expert_ids.dim(1)),
      .num_experts = static_cast<int32_t>(num_experts),
      .tile_rows = static_cast<int32_t>(tile_rows),
  };
}

void make_order(Stream& stream, const ExpertMlpParams& p, const ExpertOrder& order, int64_t tile_rows) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const ExpertOrderKernelParams params = order_params(p, order, tile_rows);
  constexpr int kCtas = 8, kPairsOfCta = 4 * 32 * kOrderWarps;  // fewer take no longer alone
  const bool is_cluster = device.launches_early() && params.num_pairs > kPairsOfCta;
  launch(stream, kernel_id("expert_order"),
         {.x = is_cluster ? kCtas : 1, .num_threads = 32 * kOrderWarps, .cluster = is_cluster ? kCtas : 1}, params,
         {{"num_pairs", params.num_pairs}, {"num_experts", params.num_experts}});
}

// Rows that a CTA keeps in registers, with the threads of add_rms_norm, whose bits this gives.
constexpr int64_t kCombineNormMaxWidth = 2 * kNormMaxThreads * 8;

void combine_and_norm(Stream& stream, const ExpertCombineKernelParams& combine, const AddRmsNormParams& norm, DType y) {
  const int64_t num_tokens = norm.x.dim(0), width = norm.x.dim(1), num_pieces = ceil_div(width, 8);
  const int64_t pieces = num_pieces <= kNormMaxThreads ? 1 : 2;
  const ExpertCombineNormKernelParams params{
      .combine = combine,
      .add = {.norm = {.weight = norm.weight.raw(),
                       .out = norm.out.raw(),
                       .out_token_stride = norm.out.stride(0),
                       .num_rows = num_tokens,
                       .num_heads = 1,
                       .width = static_cast<int32_t>(width),
                       .eps = norm.eps,
                       .is_aligned = are_rows_aligned({&norm.residual, &norm.out, &norm.weight})},
              .residual = norm.residual.raw(),
              .residual_stride = norm.residual.stride(0)}};
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (y == DType::kBf16 && device.has(kernel_id("expert_combine_norm_rows")) &&
      combine.num_experts_per_tok <= kCombineRows && width <= kCombineRowsWidth && width % 8 == 0) {
    launch(stream, kernel_id("expert_combine_norm_rows"),
           {.x = num_tokens, .num_threads = num_threads_for(num_pieces, kCombineRowsThreads)}, params,
           {{"num_tokens", num_tokens}, {"hidden_size", width}});
    return;
  }
  static_assert(kNormNarrowWidth / 8 + 32 >= kMaxExpertsPerTok);  // the first threads find the rows of a token
  constexpr std::array kKernels = {kernel_id("expert_combine_norm_1"), kernel_id("expert_combine_norm_2"),
                                   kernel_id("expert_combine_norm_y16_1"), kernel_id("expert_combine_norm_y16_2")};
  launch(stream, kKernels[static_cast<size_t>(pieces - 1) + (y == DType::kBf16 ? 2 : 0)],
         {.x = num_tokens, .num_threads = num_threads_for(ceil_div(num_pieces, pieces), kNormMaxThreads)}, params,
         {{"num_tokens", num_tokens}, {"hidden_size", width}});
}

// norm: null, or what follows (expert_mlp_add_norm). y: what it is kept in.
void combine(Stream& stream, const ExpertMlpParams& p, const AddRmsNormParams* norm, const ExpertScratch& scratch,
             DType y = DType::kF32) {
  const Tensor& shared = p.shared;
  const bool has_gate = shared.defined() && p.shared_gate.defined();
  const ExpertCombineKernelParams params{
      .y = scratch.y,
      .pair_rows = scratch.order.pair_rows,
      .expert_weights = p.expert_weights.data<float>(),
      .shared = shared.defined() ? shared.raw() : nullptr,
      .shared_gate = has_gate ? p.shared_gate.data<float>() : nullptr,
      .out = p.out.raw(),
      .y_stride = y_stride(p),
      .weights_stride = p.expert_weights.stride(0),
      .shared_stride = shared.defined() ? shared.stride(0) : 0,
      .shared_gate_stride = has_gate ? p.shared_gate.stride(0) : 0,
      .out_stride = p.out.stride(0),
      .num_experts_per_tok = static_cast<int32_t>(p.expert_ids.dim(1)),
      .hidden_size = static_cast<int32_t>(p.out.dim(1)),
      .is_aligned = are_rows_aligned({&p.out}) && (!shared.defined() || are_rows_aligned({&shared})),
  };
  constexpr int kThreads = 128, kMlpPiece = 8;
  static_assert(kThreads >= kMaxExpertsPerTok);
  if (norm != nullptr) return combine_and_norm(stream, params, *norm, y);
  launch(stream,
         p.out.dtype() == DType::kF32 ? kernel_id("expert_combine_f32")
         : y == DType::kBf16          ? kernel_id("expert_combine_y16")
                                      : kernel_id("expert_combine_bf16"),
         {.x = p.out.dim(0), .y = ceil_div(p.out.dim(1), kThreads * kMlpPiece), .num_threads = kThreads}, params,
         {{"num_tokens", p.out.dim(0)}, {"hidden_size", p.out.dim(1)}});
}

// --- any dtype and width -------------------------------------------------------------------------------------------

void run_any(Stream& stream, const ExpertMlpParams& p, const AddRmsNormParams* norm) {
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const ExpertScratch scratch = take_scratch(device, p, kProductTileM, Extra::kGateUp);
  const WeightDesc &gate_up = p.gate_up->desc(), &down = p.down->desc();
  const int64_t num_pairs = p.x.dim(0) * p.expert_ids.dim(1);
  const int64_t max_tiles = max_expert_tiles(num_pairs, gate_up.num_matrices, kProductTileM);
  const DType act = p.x.dtype();
  make_order(stream, p, scratch.order, kProductTileM);
  const auto multiply = [&](ExpertProductKernelParams params, const PackedWeight& weight) {
    const WeightDesc& desc = weight.desc();
    params.weight = weight.data();
    params.order = scratch.order;
    params.weight_stride = weight_row_stride(desc);
    params.weight_matrix_stride = desc.out_features * params.weight_stride;
    params.out_features = static_cast<int32_t>(desc.out_features);
    params.in_features = static_cast<int32_t>(desc.in_features);
    launch(stream, product_kernel(act, desc.spec.codes),
           {.x = max_tiles, .y = ceil_div(desc.out_features, kProductTileN), .num_threads = kProductThreads}, params,
           {{"num_pairs", num_pairs}, {"out_features", desc.out_features}, {"in_features", desc.in_features}});
  };
  multiply({.x = p.x.raw(),
            .out = scratch.gate_up,
            .x_stride = p.x.stride(0),
            .out_stride = gate_up.out_features,
            .gathers = true},
           *p.gate_up);
  silu_and_mul(stream,
               {.gate_up = Tensor(scratch.gate_up, act, {num_pairs, gate_up.out_features}),
                .out = Tensor(scratch.act, act, {num_pairs, act_stride(p)}).columns(0, down.in_features)});
  multiply({.x = scratch.act, .out = scratch.y, .x_stride = act_stride(p), .out_stride = y_stride(p), .is_out_f32 = true},
           *p.down);
  combine(stream, p, norm, scratch);
}

// --- on Hopper: bf16, int8 and two-level int4 ----------------------------------------------------------------------

bool fits_wgmma(const CudaDevice& device, const ExpertMlpParams& p) {
  if (!device.has(kernel_id("expert_gate_up_n8"))) return false;
  if (is_integer(*p.gate_up) && is_integer(*p.down)) return true;
  return p.x.dtype() == DType::kBf16 && is_bf16(*p.gate_up) && is_bf16(*p.down) && are_rows_aligned({&p.x}) &&
         p.x.dim(1) % 8 == 0 && p.down->desc().in_features % 8 == 0;
}

// The kernels of a format, by the rows of their tiles.
constexpr std::array kExpertTileRows = {8, 32, 64, 128};
struct ExpertKernels {
  std::array<KernelId, 4> gate_up, down;
  KernelId gate_up_dense_n128;
};

#define SPATE_EXPERT_KERNEL_IDS(prefix)                                                                      \
  {                                                                                                          \
    .gate_up = {kernel_id(prefix "_gate_up_n8"), kernel_id(prefix "_gate_up_n32"),                           \
                kernel_id(prefix "_gate_up_n64"), kernel_id(prefix "_gate_up_n128")},                        \
    .down = {kernel_id(prefix "_down_n8"), kernel_id(prefix "_down_n32"), kernel_id(prefix "_down_n64"),     \
             kernel_id(prefix "_down_n128")},                                                                \
    .gate_up_dense_n128 = kernel_id(prefix "_gate_up_dense_n128")                                            \
  }
constexpr ExpertKernels kBf16Kernels = SPATE_EXPERT_KERNEL_IDS("expert");
constexpr ExpertKernels kInt8Kernels = SPATE_EXPERT_KERNEL_IDS("expert_int8");
constexpr ExpertKernels kInt4Kernels = SPATE_EXPERT_KERNEL_IDS("expert_int4");
constexpr ExpertKernels kInt4Group32Kernels = SPATE_EXPERT_KERNEL_IDS("expert_int4_g32");
#undef SPATE_EXPERT_KERNEL_IDS

const ExpertKernels& kernels_of(const PackedWeight& weight) {
  if (!is_integer(weight)) return kBf16Kernels;
  const int num_multipliers = integer_layout(weight.desc()).num_multipliers;
  return num_multipliers == 0 ? kInt8Kernels : num_multipliers == 2 ? kInt4Kernels : kInt4Group32Kernels;
}

constexpr int64_t kMaxGatheredRows = 64;  // of an expert: more are copied, their products take less time than the gather

struct TileKernels {
  KernelId gate_up, down;
  int tile_rows;
  bool copies_x;
  int team_ctas = 1;  // of a cluster, that share rows of x
};

// The rows of an expert vary around their mean: a tile holds those of most experts, as far as that costs nothing. Up to
// 64 rows the tensor core is faster than the memory, and 8 to 32 rows take as long.
TileKernels choose_tile(const ExpertMlpParams& p) {
  const ExpertKernels &gate_up = kernels_of(*p.gate_up), &down = kernels_of(*p.down);
  const int64_t rows_of_expert =
      ceil_div(p.x.dim(0) * p.expert_ids.dim(1), p.gate_up->desc().num_matrices);
  if (rows_of_expert > kMaxGatheredRows) {
    if (rows_of_expert > 160 && is_bf16(*p.gate_up)) {
      return {kernel_id("expert_gate_up_dense_n256"), kernel_id("expert_down_n256"), 256, true, kExpertTeamCtas};
    }
    return {gate_up.gate_up_dense_n128, down.down.back(), 128, true};
  }
  const int64_t wanted = std::min(p.x.dim(0), 2 * rows_of_expert);
  size_t i = 0;
  while (i + 1 < kExpertTileRows.size() && kExpertTileRows[i] < wanted) ++i;
  return {gate_up.gate_up[i], down.down[i], kExpertTileRows[i], false};
}

// [expert][8 rows][gate, up][rows / 8], as expert_wgmma.h says. The last rows of gate may have some of up behind them, and
// those of up padding.
TensorMap gate_up_map(const DriverApi& api, const PackedWeight& weight) {
  const WeightDesc& desc = weight.desc();
  const int64_t width = desc.out_features / 2, groups = ceil_div(width, 8);
  const auto matrix_bytes = static_cast<int64_t>(weight.matrix_bytes());
  if (!is_integer(weight)) {
    const int64_t row_bytes = weight_row_stride(desc) * 2;
    return make_bf16_map_5d(api, weight.data(), {desc.in_features, 8, 2, groups, desc.num_matrices},
                            {row_bytes, width * row_bytes, 8 * row_bytes, matrix_bytes}, {64, 8, 2, 8, 1});
  }
  const int64_t row_bytes = integer_layout(desc).row_bytes();
  return make_byte_map_5d(api, weight.data(), {row_bytes, 8, 2, groups, desc.num_matrices},
                          {row_bytes, width * row_bytes, 8 * row_bytes, matrix_bytes}, {128, 8, 2, 8, 1});
}

TensorMap rows_map(const DriverApi& api, const PackedWeight& weight) {
  const WeightDesc& desc = weight.desc();
  if (!is_integer(weight)) return bf16_rows_map(api, weight);
  const int64_t row_bytes = integer_layout(desc).row_bytes();
  const auto matrix_bytes = static_cast<int64_t>(weight.matrix_bytes());
  return make_byte_map_5d(api, weight.data(), {row_bytes, desc.out_features, 1, 1, desc.num_matrices},
                          {row_bytes, matrix_bytes, matrix_bytes, matrix_bytes}, {128, kWgmmaTileRows, 1, 1, 1});
}

bool has_map(const PackedWeight& weight) {
  return !is_integer(weight) || integer_layout(weight.desc()).num_multipliers == 0;
}

// Rows as a product with a weight takes them: as they are, or as codes.
struct ProductInput {
  const void* data;
  int64_t stride_bytes;
  int64_t row_bytes;
  ExpertIntegerParams integer;
};

ProductInput make_input(Stream& stream, const Tensor& x, const PackedWeight& weight, const IntegerScratch& codes) {
  if (!is_integer(weight)) {
    return {.data = x.raw(), .stride_bytes = x.stride(0) * 2, .row_bytes = x.dim(1) * 2, .integer = {}};
  }
  const IntegerLayout layout = integer_layout(weight.desc());
  quantize_rows(stream, x, layout, codes);
  return {.data = codes.codes,
          .stride_bytes = layout.row_bytes(),
          .row_bytes = layout.row_bytes(),
          .integer = {.weight = static_cast<const char*>(weight.data()),
                      .layout = layout,
                      .rows = codes.rows,
                      .ordered_rows = codes.rows,
                      .outliers = codes.outliers,
                      .gathers = false,
                      .leaves_outliers = false}};
}

TensorMap input_map(const DriverApi& api, const ProductInput& input, bool is_codes, int64_t num_rows, int tile_rows) {
  const int box_rows = expert_box_rows(tile_rows);
  return is_codes ? make_byte_map(api, input.data, num_rows, input.row_bytes, input.stride_bytes, box_rows)
                  : make_bf16_map(api, input.data, num_rows, input.row_bytes / 2, input.stride_bytes / 2, box_rows);
}

ExpertCopyRowsKernelParams copy_params(const ExpertMlpParams& p, const ProductInput& input,
                                       const ExpertScratch& scratch) {
  constexpr int64_t kUnit = 16;
  return {.x = static_cast<const char*>(input.data),
          .pair_rows = scratch.order.pair_rows,
          .out = scratch.x,
          .rows = input.integer.rows,
          .ordered_rows = scratch.x_rows,
          .x_stride_bytes = input.stride_bytes,
          .num_units = static_cast<int32_t>(input.row_bytes / kUnit),
          .num_experts_per_tok = static_cast<int32_t>(p.expert_ids.dim(1))};
}

// Whether order and copies are one launch.
bool fits_order_rows(const CudaDevice& device, const ExpertMlpParams& p, int64_t row_bytes) {
  constexpr int64_t kMaxPerToken = 32;  // a lane each
  const int64_t per_token = p.expert_ids.dim(1);
  return device.has(kernel_id("expert_order_rows")) && device.has_grid_barriers() &&
         p.gate_up->desc().num_matrices <= kOrderRowsMaxExperts && per_token <= kMaxPerToken &&
         ceil_div(p.x.dim(0), device.num_sms()) * per_token <= kOrderRowsMaxPairs && row_bytes <= kOrderRowsBytes;
}

// The same rows, and what belongs to their codes, one behind the other in the order of experts, which is made, too.
ProductInput order_rows(Stream& stream, const ExpertMlpParams& p, const ProductInput& input,
                        const ExpertScratch& scratch, int64_t tile_rows) {
  constexpr int kMaxThreads = 256;
  static_assert(kCopyRowsMaxPairs >= kMaxExpertsPerTok);
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_tokens = p.x.dim(0);
  const ExpertCopyRowsKernelParams copy = copy_params(p, input, scratch);
  if (fits_order_rows(device, p, input.row_bytes)) {
    const ExpertOrderRowsKernelParams params{
        .order = order_params(p, scratch.order, tile_rows),
        .copy = copy,
        .num_arrived = device.grid_arrivals(),
        .cta_counts = scratch.cta_counts,
        .num_tokens = static_cast<int32_t>(num_tokens),
        .num_slots = static_cast<int32_t>(std::min<int64_t>(kOrderRowsSlots, kOrderRowsBytes / input.row_bytes))};
    launch(stream, kernel_id("expert_order_rows"), {.x = device.num_sms(), .num_threads = 32 * kOrderRowsWarps}, params,
           {{"num_tokens", num_tokens}, {"num_experts", params.order.num_experts}, {"row_bytes", input.row_bytes}});
  } else {
    make_order(stream, p, scratch.order, tile_rows);
    launch(stream, kernel_id("expert_copy_rows"),
           {.x = num_tokens, .num_threads = std::max(kCopyRowsMaxPairs, num_threads_for(copy.num_units, kMaxThreads))},
           copy, {{"num_tokens", num_tokens}, {"row_bytes", input.row_bytes}});
  }
  ProductInput copied = input;
  copied.data = scratch.x;
  copied.integer.ordered_rows = scratch.x_rows;
  copied.stride_bytes = input.row_bytes;
  return copied;
}

// Those of activations, which `down` of many rows leaves.
void add_outliers(Stream& stream, const ExpertMlpParams& p, const ExpertScratch& scratch, int64_t tile_rows, DType y) {
  constexpr int64_t kPartsOfCta = 2;  // of 128 rows of W
  const WeightDesc& down = p.down->desc();
  const int64_t num_pairs = p.x.dim(0) * p.expert_ids.dim(1);
  const ExpertOutliersKernelParams params{.weight = static_cast<const char*>(p.down->data()),
                                          .layout = integer_layout(down),
                                          .rows = scratch.act_codes.rows,
                                          .outliers = scratch.act_codes.outliers,
                                          .order = scratch.order,
                                          .y = scratch.y,
                                          .y_stride = y_stride(p),
                                          .is_y_bf16 = y == DType::kBf16};
  launch(stream, kernel_id("expert_outliers"),
         {.x = max_expert_tiles(num_pairs, down.num_matrices, tile_rows),
          .y = ceil_div(down.out_features, kPartsOfCta * kWgmmaTileRows),
          .num_threads = 32 * kExpertOutlierWarps},
         params, {{"num_pairs", num_pairs}, {"out_features", down.out_features}});
}

void run_wgmma(Stream& stream, const ExpertMlpParams& p, const AddRmsNormParams* norm) {
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const DriverApi& api = device.api();
  const WeightDesc &gate_up = p.gate_up->desc(), &down = p.down->desc();
  const int64_t num_tokens = p.x.dim(0), num_pairs = num_tokens * p.expert_ids.dim(1);
  const TileKernels kernels = choose_tile(p);
  const ExpertScratch scratch = take_scratch(device, p, kernels.tile_rows, kernels.copies_x ? Extra::kX : Extra::kNone);
  const DType act = p.x.dtype();
  // Of many rows y is as large as all else together. Where the bits of a token may not depend on the others it is not
  // rounded, as it is not of few.
  const DType y = kernels.copies_x && act == DType::kBf16 && !device.is_deterministic() ? DType::kBf16 : DType::kF32;
  const bool has_cta_order = num_tokens <= kCtaOrderTokens && gate_up.num_matrices <= kCtaOrderExperts &&
                             num_pairs <= cta_order_pairs(kernels.tile_rows);
  if (!has_cta_order && !kernels.copies_x) make_order(stream, p, scratch.order, kernels.tile_rows);
  const auto multiply = [&](KernelId kernel, const PackedWeight& weight, const ExpertWgmmaKernelParams& of_product,
                            int64_t weight_tiles) {
    ExpertWgmmaKernelParams params = of_product;
    const WeightDesc& desc = weight.desc();
    params.order = scratch.order;
    if (has_cta_order) params.expert_ids = p.expert_ids.data<int32_t>();
    params.ids_stride = p.expert_ids.stride(0);
    params.num_matrices = static_cast<int32_t>(desc.num_matrices);
    params.num_pairs = static_cast<int32_t>(num_pairs);
    params.num_experts_per_tok = static_cast<int32_t>(p.expert_ids.dim(1));
    params.partial = device.partial_sums();
    params.arrived = device.partial_flags();
    params.num_steps = is_integer(weight) ? integer_layout(desc).num_steps
                                          : static_cast<int32_t>(ceil_div(desc.in_features, kWgmmaTileK));
    params.num_weight_tiles = static_cast<int32_t>(weight_tiles);
    params.is_act_f32 = act == DType::kF32;
    params.is_y_bf16 = y == DType::kBf16;
    params.is_whole = device.is_deterministic() && !is_integer(weight);
    params.is_many = kernels.copies_x;
    const int64_t team = kernels.team_ctas;
    const int64_t max_tiles =
        ceil_div(weight_tiles, team) * max_expert_tiles(num_pairs, desc.num_matrices, kernels.tile_rows);
    const int64_t num_teams =
        std::min<int64_t>(device.num_sms() / team, params.is_whole ? max_tiles : max_tiles * params.num_steps);
    launch(stream, kernel, {.x = team * num_teams, .num_threads = kWgmmaThreads}, params,
           {{"num_tokens", num_tokens},
            {"num_pairs", num_pairs},
            {"out_features", params.out_features},
            {"in_features", desc.in_features},
            {"num_experts", desc.num_matrices}});
  };

  const auto out_map = [&](const void* out, int64_t stride, int64_t width, bool has_silu) {
    if (!kernels.copies_x || act != DType::kBf16) return TensorMap{};
    return make_bf16_store_map(api, out, num_pairs, width, stride, kExpertStoreBoxRows,
                               has_silu ? kWgmmaRows / 2 : kWgmmaRows);
  };
  ProductInput x = make_input(stream, p.x, *p.gate_up, scratch.x_codes);
  if (kernels.copies_x) x = order_rows(stream, p, x, scratch, kernels.tile_rows);
  x.integer.gathers = true;
  multiply(
      kernels.gate_up, *p.gate_up,
      {.weight = has_map(*p.gate_up) ? gate_up_map(api, *p.gate_up) : TensorMap{},
       .x = kernels.copies_x ? input_map(api, x, is_integer(*p.gate_up), num_pairs, kernels.tile_rows) : TensorMap{},
       .out_map = out_map(scratch.act, act_stride(p), gate_up.out_features / 2, true),
       .x_rows = x.data,
       .out = scratch.act,
       .integer = x.integer,
       .x_stride_bytes = x.stride_bytes,
       .out_stride = act_stride(p),
       .x_row_bytes = static_cast<int32_t>(x.row_bytes),
       .out_features = static_cast<int32_t>(gate_up.out_features / 2)},
      ceil_div(gate_up.out_features / 2, kWgmmaTileRows / 2));

  const Tensor act_rows = Tensor(scratch.act, act, {num_pairs, act_stride(p)}).columns(0, down.in_features);
  ProductInput act_input = make_input(stream, act_rows, *p.down, scratch.act_codes);
  // In another order of sums: not where the bits of a token may not depend on the others.
  act_input.integer.leaves_outliers = kernels.copies_x && is_integer(*p.down) && act == DType::kBf16 &&
                                      down.in_features <= kExpertStreamMaxWidth && !device.is_deterministic();
  multiply(kernels.down, *p.down,
           {.weight = has_map(*p.down) ? rows_map(api, *p.down) : TensorMap{},
            .x = input_map(api, act_input, is_integer(*p.down), num_pairs, kernels.tile_rows),
            .out_map = out_map(scratch.y, y_stride(p), down.out_features, false),
            .out = scratch.y,
            .integer = act_input.integer,
            .out_stride = y_stride(p),
            .out_features = static_cast<int32_t>(down.out_features)},
           ceil_div(down.out_features, kWgmmaTileRows));
  if (act_input.integer.leaves_outliers) add_outliers(stream, p, scratch, kernels.tile_rows, y);
  combine(stream, p, norm, scratch, y);
}

// --- int4 experts of few rows, both products in one launch -----------------------------------------------------------

constexpr int64_t kMaxStreamedRows = 16;  // of an expert, in the mean

bool fits_stream(CudaDevice& device, const ExpertMlpParams& p) {
  if (!device.has(kernel_id("expert_stream_int4_n8")) || !device.has_grid_barriers()) return false;
  if (p.x.dtype() != DType::kBf16 || !is_integer(*p.gate_up) || !is_integer(*p.down)) return false;
  const WeightDesc &gate_up = p.gate_up->desc(), &down = p.down->desc();
  const int num_multipliers = integer_layout(gate_up).num_multipliers;
  const int64_t num_tokens = p.x.dim(0), num_pairs = num_tokens * p.expert_ids.dim(1);
  return num_multipliers > 0 && num_multipliers == integer_layout(down).num_multipliers &&
         num_tokens <= kExpertStreamTokens && num_pairs <= kExpertStreamPairs &&
         gate_up.num_matrices <= kExpertStreamExperts && num_pairs <= kMaxStreamedRows * gate_up.num_matrices &&
         gate_up.in_features <= kExpertStreamMaxWidth && gate_up.in_features % 8 == 0 &&
         down.in_features <= kExpertStreamMaxWidth && down.in_features % 16 == 0 && down.out_features % 32 == 0 &&
         are_rows_aligned({&p.x});
}

void run_stream(Stream& stream, const ExpertMlpParams& p, const AddRmsNormParams* norm) {
  constexpr std::array kKernels = {
      std::array{kernel_id("expert_stream_int4_n8"), kernel_id("expert_stream_int4_n16")},
      std::array{kernel_id("expert_stream_int4_g32_n8"), kernel_id("expert_stream_int4_g32_n16")}};
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const WeightDesc &gate_up = p.gate_up->desc(), &down = p.down->desc();
  const int64_t num_tokens = p.x.dim(0), num_pairs = num_tokens * p.expert_ids.dim(1);
  const int64_t wanted = std::min(num_tokens, 2 * ceil_div(num_pairs, gate_up.num_matrices));
  const size_t tile = wanted <= 8 ? 0 : 1;
  const ExpertScratch scratch = take_scratch(device, p, kProductTileM, Extra::kNone);
  const auto product_of = [](const PackedWeight& weight) {
    return ExpertStreamProduct{.weight = static_cast<const char*>(weight.data()),
                               .layout = integer_layout(weight.desc())};
  };
  const ExpertStreamKernelParams params{
      .gate_up = product_of(*p.gate_up),
      .down = product_of(*p.down),
      .x = p.x.raw(),
      .act = scratch.act,
      .y = scratch.y,
      .expert_ids = p.expert_ids.data<int32_t>(),
      .pair_rows = scratch.order.pair_rows,
      .arrived = device.expert_arrivals(),
      .x_stride = p.x.stride(0),
      .act_stride = act_stride(p),
      .y_stride = y_stride(p),
      .ids_stride = p.expert_ids.stride(0),
      .num_pairs = static_cast<int32_t>(num_pairs),
      .num_experts_per_tok = static_cast<int32_t>(p.expert_ids.dim(1)),
      .num_experts = static_cast<int32_t>(gate_up.num_matrices),
      .intermediate_size = static_cast<int32_t>(down.in_features),
      .hidden_size = static_cast<int32_t>(down.out_features),
  };
  launch(stream, kKernels[params.gate_up.layout.num_multipliers == 2 ? 0 : 1][tile],
         {.x = device.num_sms(), .num_threads = kExpertStreamThreads}, params,
         {{"num_tokens", num_tokens},
          {"num_pairs", num_pairs},
          {"hidden_size", params.hidden_size},
          {"intermediate_size", params.intermediate_size},
          {"num_experts", params.num_experts}});
  combine(stream, p, norm, scratch);
}

constexpr int64_t kMaxWorkspaceBytes = int64_t{768} << 20;  // more tokens are taken in chunks

// Of the workspace: act, codes, and in one place y, x or gate_up. Rows are padded by up to 8, 16 and 128 elements.
int64_t bytes_of_token(int64_t num_experts_per_tok, int64_t hidden_size, int64_t intermediate_size, int64_t element) {
  const int64_t of_codes = 128 + sizeof(QuantizedRow) + kMaxOutliers * sizeof(Outlier);
  const int64_t of_y = std::max((hidden_size + 8) * 4, std::max(2 * intermediate_size, hidden_size + 128) * element);
  return num_experts_per_tok * (of_y + (intermediate_size + 16) * element + intermediate_size + of_codes + 16) +
         hidden_size + of_codes;
}

}  // namespace

int64_t expert_workspace_bytes(const OpLimits& limits) {
  constexpr int64_t kOrderBytes = 1 << 20;
  if (limits.max_num_tokens == 0) return 0;
  const int64_t of_token =
      bytes_of_token(limits.num_experts_per_tok, limits.hidden_size, limits.expert_intermediate_size, 4);
  return std::min(kMaxWorkspaceBytes, limits.max_num_tokens * of_token) + kOrderBytes;
}

namespace {

// Tokens are taken in chunks that bound the workspace: each reads its experts anew, which costs little where a chunk
// gives each expert many rows.
void run_in_chunks(Stream& stream, const ExpertMlpParams& p, const AddRmsNormParams* norm) {
  const int64_t num_tokens = p.x.dim(0);
  const int64_t of_token =
      bytes_of_token(p.expert_ids.dim(1), p.out.dim(1), p.down->desc().in_features, dtype_bytes(p.x.dtype()));
  const int64_t chunk = std::max<int64_t>(1, kMaxWorkspaceBytes / of_token);
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const auto rows = [&](const Tensor& tensor) {
      return tensor.defined() ? tensor.rows(begin, std::min(begin + chunk, num_tokens)) : Tensor();
    };
    const ExpertMlpParams part{.x = rows(p.x),
                               .expert_ids = rows(p.expert_ids),
                               .expert_weights = rows(p.expert_weights),
                               .gate_up = p.gate_up,
                               .down = p.down,
                               .shared = rows(p.shared),
                               .shared_gate = rows(p.shared_gate),
                               .out = rows(p.out)};
    AddRmsNormParams norm_part;
    if (norm != nullptr) {
      norm_part = {.x = rows(norm->x),
                   .residual = rows(norm->residual),
                   .weight = norm->weight,
                   .eps = norm->eps,
                   .out = rows(norm->out)};
    }
    const AddRmsNormParams* norm_of_part = norm == nullptr ? nullptr : &norm_part;
    if (fits_stream(device, part)) {
      run_stream(stream, part, norm_of_part);
    } else if (fits_wgmma(device, p)) {
      run_wgmma(stream, part, norm_of_part);
    } else {
      run_any(stream, part, norm_of_part);
    }
  }
}

}  // namespace

void expert_mlp(Stream& stream, const ExpertMlpParams& p) {
  check_params(p);
  run_in_chunks(stream, p, nullptr);
}

// A reader that wants codes gets them from add_rms_norm, narrow rows have another order of sums there.
void expert_mlp_add_norm(Stream& stream, const ExpertMlpAddNormParams& p) {
  check_params(p);
  const bool wants_codes = p.norm.reader != nullptr && p.norm.reader->desc().spec.has_integer_codes();
  const int64_t width = p.norm.x.dim(1);
  if (wants_codes || p.norm.x.dtype() != DType::kBf16 || width <= kNormNarrowWidth || width > kCombineNormMaxWidth) {
    return decompositions().expert_mlp_add_norm(stream, p);
  }
  run_in_chunks(stream, p.experts, &p.norm);
}

}  // namespace spate::cuda
