#include "backend/cuda/kernel/latent/latent.h"

#include <algorithm>
#include <numbers>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/expert/weight_matrices.h"
#include "backend/cuda/kernel/latent/latent_joined.h"
#include "backend/cuda/kernel/latent/latent_short.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

// Whether the kernel on wgmma can take it. How it splits keys depends on the step's lengths.
bool fits_wgmma(const CudaDevice& device, const AttentionLatentParams& p) {
  const KvLayerDesc& desc = p.kv.desc;
  const auto is_aligned = [](const Tensor& rows) {
    return reinterpret_cast<uintptr_t>(rows.raw()) % 16 == 0 && rows.stride(0) % 8 == 0 && rows.stride(1) % 8 == 0;
  };
  const bool is_codes = desc.dtype == DType::kI8;
  return device.has(kernel_id("attention_latent_wgmma")) && !device.is_deterministic() &&
         p.q_latent.dtype() == DType::kBf16 && (is_codes || desc.dtype == DType::kBf16) &&
         desc.kv_lora_rank == kLatentRank && desc.latent_width() == kLatentWidth &&
         (is_codes || p.kv.block_bytes == desc.kv_block_size * kLatentWidth * 2) && desc.kv_block_size % 16 == 0 &&
         is_aligned(p.q_latent) && is_aligned(p.q_rope) && is_aligned(p.out);
}

// Whole keys of a bf16 cache, box_keys of them at once.
TensorMap make_kv_map(const CudaDevice& device, const AttentionLatentParams& p, int64_t box_keys) {
  constexpr int64_t kEightKeys = 8, kKeyBytes = kLatentWidth * 2;
  return make_bf16_map_4d(device.api(), p.kv.data,
                          {64, kEightKeys, kLatentParts, p.kv.num_blocks * p.kv.desc.kv_block_size / kEightKeys},
                          {kKeyBytes, 128, kEightKeys * kKeyBytes},
                          {64, kEightKeys, kLatentParts, static_cast<uint32_t>(box_keys / kEightKeys)});
}

// Whether nothing that still runs writes what attention reads, but for the keys of its query tokens.
bool reads_early(Stream& stream, const AttentionLatentParams& p) {
  const CudaStream& cuda_stream = static_cast<CudaStream&>(stream);
  return cuda_stream.latents_are_settled() || cuda_stream.has_settled(p.kv.data);
}

// Sequences with few query tokens are split along their keys. The items of prompts are many: each stays whole. Gives
// what latent_combine takes; where keys are split, it is to be run.
LatentWgmmaKernelParams attend_parts(Stream& stream, const AttentionLatentParams& p,
                                     const AttentionLatentKernelParams& attention, bool is_joined) {
  constexpr int kMaxSplitQueryLen = 16;
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_seqs = p.seq_rows.dim(0), num_heads = p.q_latent.dim(1);
  const bool splits = p.max_query_len <= kMaxSplitQueryLen;
  const int64_t team_size = splits ? std::min(ceil_div(p.max_query_len * num_heads, kLatentRows), kLatentMaxTeam) : 1;
  const int64_t num_ctas = device.num_sms() / team_size * team_size;
  const int64_t block_size = p.kv.desc.kv_block_size;
  const bool is_codes = p.kv.desc.dtype == DType::kI8;
  const int64_t box_keys = block_size % 64 == 0 ? 64 : block_size % 32 == 0 ? 32 : 16;
  const int64_t num_rows = 2 * num_ctas * kLatentRows;
  const int64_t sums_bytes = num_rows * kLatentRank * 4, stats_bytes = num_rows * 2 * 4,
                cuts_bytes = num_ctas * static_cast<int64_t>(sizeof(LatentCut));
  char* scratch = splits ? static_cast<char*>(device.workspace(
                               static_cast<size_t>(sums_bytes + stats_bytes + cuts_bytes + (num_seqs + 2) * 4)))
                         : nullptr;
  // With two CTAs and more side by side long runs are faster with latent_combine, behind which the next call begins.
  constexpr int64_t kFewRows = 528, kFewKeys = 1024;
  const bool merges = splits && !is_codes && !is_joined && device.has_grid_barriers() &&
                      (team_size == 1 || p.q_latent.dim(0) * num_heads <= kFewRows || p.max_seq_len <= kFewKeys);
  const LatentWgmmaKernelParams params{
      .kv = is_codes ? TensorMap{} : make_kv_map(device, p, box_keys),
      .attention = attention,
      .partial_sums = reinterpret_cast<float*>(scratch),
      .partial_stats = reinterpret_cast<float*>(scratch + sums_bytes),
      .first_unit = reinterpret_cast<int32_t*>(scratch + sums_bytes + stats_bytes + cuts_bytes),
      .cuts = reinterpret_cast<LatentCut*>(scratch + sums_bytes + stats_bytes),
      .split = reinterpret_cast<int32_t*>(scratch + sums_bytes + stats_bytes + cuts_bytes) + num_seqs,
      .box_keys = static_cast<int32_t>(box_keys),
      .num_ctas = static_cast<int32_t>(num_ctas),
      .team_size = static_cast<int32_t>(team_size),
      .splits = splits,
      .reads_early = !is_codes && reads_early(stream, p),
      .arrivals = merges ? device.latent_arrivals() : nullptr,
  };
  const std::initializer_list<NamedSize> sizes = {
      {"num_tokens", p.q_latent.dim(0)}, {"num_seqs", num_seqs}, {"num_heads", num_heads}, {"max_seq_len", p.max_seq_len}};
  const KernelId kernel = is_codes ? kernel_id("attention_latent_wgmma_int8")
                          : merges ? kernel_id("attention_latent_wgmma_merge")
                                   : kernel_id("attention_latent_wgmma");
  launch(stream, kernel, {.x = num_ctas, .num_threads = kLatentThreads}, params, sizes);
  return params;
}

// The clusters of latent_short.cu for each item; 0: it cannot take the step.
int64_t num_short_parts(const CudaDevice& device, const AttentionLatentParams& p) {
  const int64_t num_items = p.seq_rows.dim(0) * ceil_div(p.q_latent.dim(1), kLatentRows);
  // As many clusters as find SMs at once: those of a GPC do not divide by 8. More parts than needed take longer.
  constexpr int64_t kFewKeys = 64;  // of a CTA
  const int64_t num_clusters = device.num_sms() / kLatentShortCtas - 1;
  const int64_t num_parts =
      std::min(num_clusters / std::max<int64_t>(num_items, 1), ceil_div(p.max_seq_len, kLatentShortCtas * kFewKeys));
  const bool fits = device.has(kernel_id("latent_short")) && p.max_query_len == 1 && p.kv.desc.dtype == DType::kBf16 &&
                    num_items > 0 && p.max_seq_len <= num_parts * kLatentShortCtas * kLatentShortKeys;
  return fits ? num_parts : 0;
}

LatentShortKernelParams attend_short(Stream& stream, const AttentionLatentParams& p,
                                     const AttentionLatentKernelParams& attention, int64_t num_parts) {
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_heads = p.q_latent.dim(1), num_items = ceil_div(num_heads, kLatentRows);
  const int64_t num_clusters = p.seq_rows.dim(0) * num_items * num_parts, num_rows = num_clusters * kLatentRows;
  auto* scratch = static_cast<float*>(device.workspace(static_cast<size_t>(num_rows) * (kLatentRank + 2) * 4));
  const LatentShortKernelParams params{.kv = make_kv_map(device, p, kLatentShortBoxKeys),
                                       .attention = attention,
                                       .partial_sums = scratch,
                                       .partial_stats = scratch + num_rows * kLatentRank,
                                       .num_items = static_cast<int32_t>(num_items),
                                       .num_parts = static_cast<int32_t>(num_parts),
                                       .reads_early = reads_early(stream, p)};
  launch(stream, kernel_id("latent_short"), {.x = num_clusters * kLatentShortCtas, .num_threads = kLatentShortThreads},
         params, {{"num_seqs", p.seq_rows.dim(0)}, {"num_heads", num_heads}, {"max_seq_len", p.max_seq_len}});
  return params;
}

// Behind attend_parts(). The more rows there are, the fewer of them are cut.
void combine_parts(Stream& stream, const AttentionLatentParams& p, const LatentWgmmaKernelParams& params) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_tokens = p.q_latent.dim(0), num_heads = p.q_latent.dim(1), num_rows = num_tokens * num_heads;
  const int64_t max_warps = int64_t{device.num_sms()} * kLatentCombineCtas * kLatentCombineWarps;  // at once
  KernelId kernel = kernel_id("latent_combine");
  int64_t x = params.num_ctas, y = std::min<int64_t>(p.max_query_len * num_heads, kLatentRows);
  const auto take_rows = [&](KernelId id, int64_t row_warps) {
    kernel = id;
    x = num_tokens;
    y = num_heads * row_warps;
  };
  if (num_rows * 16 <= max_warps) {
    take_rows(kernel_id("latent_combine_16"), 16);
  } else if (num_rows * 4 <= max_warps) {
    take_rows(kernel_id("latent_combine_4"), 4);
  } else if (num_rows <= params.num_ctas * kLatentRows) {
    take_rows(kernel_id("latent_combine_1"), 1);
  }
  launch(stream, kernel, {.x = x, .y = ceil_div(y, kLatentCombineWarps), .num_threads = 32 * kLatentCombineWarps},
         params,
         {{"num_tokens", num_tokens},
          {"num_seqs", p.seq_rows.dim(0)},
          {"num_heads", num_heads},
          {"max_seq_len", p.max_seq_len}});
}

void attend_wgmma(Stream& stream, const AttentionLatentParams& p, const AttentionLatentKernelParams& attention) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (const int64_t num_parts = num_short_parts(device, p); num_parts > 0) {
    const LatentShortKernelParams params = attend_short(stream, p, attention, num_parts);
    launch(stream, kernel_id("latent_short_combine"),
           {.x = attention.num_seqs * int64_t{params.num_items} * kLatentShortCtas * 32 / kLatentShortCombineWarps,
            .num_threads = 32 * kLatentShortCombineWarps},
           params, {{"num_seqs", attention.num_seqs}, {"num_heads", attention.num_heads}});
    return;
  }
  const LatentWgmmaKernelParams params = attend_parts(stream, p, attention, false);
  if (!params.splits || params.arrivals != nullptr) return;
  combine_parts(stream, p, params);
}

// The fused kernels' part of AttentionLatentParams.
AttentionLatentKernelParams kernel_params(const AttentionLatentParams& p) {
  return {
      .q_latent = p.q_latent.raw(),
      .q_rope = p.q_rope.raw(),
      .out = p.out.raw(),
      .block_table = p.block_table.data<int32_t>(),
      .seq_rows = p.seq_rows.data<int32_t>(),
      .cu_seqlens_q = p.cu_seqlens_q.data<int32_t>(),
      .seq_lens = p.seq_lens.data<int32_t>(),
      .q_latent_strides = {p.q_latent.stride(0), p.q_latent.stride(1)},
      .q_rope_strides = {p.q_rope.stride(0), p.q_rope.stride(1)},
      .out_strides = {p.out.stride(0), p.out.stride(1)},
      .block_table_stride = p.block_table.stride(0),
      .kv = latent_layout(p.kv),
      .num_seqs = static_cast<int32_t>(p.seq_rows.dim(0)),
      .num_heads = static_cast<int32_t>(p.q_latent.dim(1)),
      .softmax_scale_log2e = p.softmax_scale * std::numbers::log2e_v<float>,
  };
}

// Whether latent_norm_rope_write.cu runs it.
bool fits_norm_rope_write(const LatentNormRopeWriteParams& p) {
  const KvLayerDesc& desc = p.kv.desc;
  constexpr int64_t kLatentPiece = 8;
  return p.latent.dtype() == DType::kBf16 && desc.dtype == DType::kBf16 && desc.kv_lora_rank % kLatentPiece == 0 &&
         desc.kv_lora_rank <= kLatentWriteThreads * kLatentPiece && desc.qk_rope_head_dim % 2 == 0 &&
         are_rows_aligned({&p.latent, &p.norm});
}

LatentNormRopeWriteKernelParams kernel_params(const LatentNormRopeWriteParams& p) {
  return {
      .write = {.latent = p.latent.raw(),
                .slot_mapping = p.slot_mapping.data<int32_t>(),
                .latent_stride = p.latent.stride(0),
                .kv = latent_layout(p.kv),
                .is_aligned = true},
      .q_rope = p.q_rope.raw(),
      .norm = p.norm.raw(),
      .positions = p.positions.data<int32_t>(),
      .cos_sin = p.cos_sin.data<float>(),
      .q_token_stride = p.q_rope.stride(0),
      .q_head_stride = p.q_rope.stride(1),
      .cos_sin_stride = p.cos_sin.stride(0),
      .num_heads = static_cast<int32_t>(p.q_rope.dim(1)),
      .eps = p.eps,
      .is_interleaved = p.interleaved,
  };
}

// One token, in bf16, in the shapes of latent_query.cu and latent_values.cu.
bool can_join(const CudaDevice& device, const LatentAttentionParams& p) {
  const auto is_aligned = [](const Tensor& rows, int64_t unit) {
    return reinterpret_cast<uintptr_t>(rows.raw()) % (2 * static_cast<uintptr_t>(unit)) == 0 &&
           rows.stride(1) % unit == 0;
  };
  const auto is_bf16 = [](const PackedWeight& weight) { return weight.desc().spec.codes == Codes::kBf16; };
  return device.joins_layer_products(p.heads.dim(0)) && p.attention.seq_rows.dim(0) == 1 &&
         p.attention.max_query_len == 1 && fits_norm_rope_write(p.write) && fits_wgmma(device, p.attention) &&
         p.q_nope.dtype() == DType::kBf16 && is_bf16(*p.k_up) && is_bf16(*p.v_up) && p.q_nope.dim(2) % 8 == 0 &&
         p.q_nope.dim(2) <= kHeadRowsShortWidth && is_aligned(p.q_nope, 8) && device.has(kernel_id("latent_query")) &&
         device.has(kernel_id("latent_values"));
}

// latent_attention() in three launches.
void attend_joined(Stream& stream, const LatentAttentionParams& p, bool is_settled) {
  CudaStream& cuda_stream = static_cast<CudaStream&>(stream);
  check_params(p.write);
  check_params(p.attention);
  check_params(LinearHeadsParams{.x = p.q_nope, .weight = p.k_up, .out = p.attention.q_latent});
  check_params(LinearHeadsParams{.x = p.attention.out, .weight = p.v_up, .out = p.heads});
  const int64_t num_heads = p.heads.dim(1);
  const WeightDesc& k_up = p.k_up->desc();
  const WeightDesc& v_up = p.v_up->desc();
  const LatentQueryKernelParams query{.write = kernel_params(p.write),
                                      .up = {.x = p.q_nope.raw(),
                                             .weight = p.k_up->matrix(0),
                                             .out = p.attention.q_latent.raw(),
                                             .x_stride = p.q_nope.stride(1),
                                             .out_stride = p.attention.q_latent.stride(1),
                                             .weight_row_bytes = weight_row_stride(k_up) * 2,
                                             .num_rows = static_cast<int32_t>(num_heads * k_up.out_features),
                                             .out_features = static_cast<int32_t>(k_up.out_features),
                                             .in_features = static_cast<int32_t>(k_up.in_features)},
                                      .num_pair_ctas = static_cast<int32_t>(ceil_div(
                                          num_heads * p.write.kv.desc.qk_rope_head_dim / 2, kLatentQueryThreads)),
                                      .reads_early = is_settled};
  launch(stream, kernel_id("latent_query"),
         {.x = 1 + query.num_pair_ctas + ceil_div(query.up.num_rows, kHeadRowsWarps * kHeadRowsShort),
          .num_threads = kLatentQueryThreads},
         query, {{"num_heads", num_heads}, {"qk_nope_head_dim", k_up.in_features}});
  cuda_stream.note_kv_write(p.write.kv.data);
  const AttentionLatentKernelParams attention = kernel_params(p.attention);
  const int64_t num_parts = num_short_parts(cuda_stream.cuda_device(), p.attention);
  const LatentValuesKernelParams values{
      .attention = num_parts > 0 ? LatentWgmmaKernelParams{} : attend_parts(stream, p.attention, attention, true),
      .shorter = num_parts > 0 ? attend_short(stream, p.attention, attention, num_parts) : LatentShortKernelParams{},
      .weight = p.v_up->matrix(0),
      .out = p.heads.raw(),
      .weight_row_bytes = weight_row_stride(v_up) * 2,
      .out_stride = p.heads.stride(1),
      .out_features = static_cast<int32_t>(v_up.out_features)};
  launch(stream, kernel_id("latent_values"),
         {.x = ceil_div(v_up.out_features, kLatentValuesWarps * kLatentValuesRows),
          .y = num_heads,
          .num_threads = 32 * kLatentValuesWarps},
         values, {{"num_heads", num_heads}, {"v_head_dim", v_up.out_features}});
}

}  // namespace

LatentLayout latent_layout(const KvView& kv) {
  return {.data = kv.data,
          .block_bytes = kv.block_bytes,
          .kv_block_size = static_cast<int32_t>(kv.desc.kv_block_size),
          .kv_lora_rank = static_cast<int32_t>(kv.desc.kv_lora_rank),
          .width = static_cast<int32_t>(kv.desc.latent_width()),
          .padded_width = padded_head_dim(kv.desc.latent_width(), kv.desc.dtype == DType::kI8)};
}

int64_t latent_workspace_bytes(int num_sms) {
  return num_sms * (2 * int64_t{kLatentRows} * (kLatentRank + 2) * 4 + static_cast<int64_t>(sizeof(LatentCut)));
}

void latent_write(Stream& stream, const LatentWriteParams& p) {
  check_params(p);
  const int64_t num_tokens = p.slot_mapping.dim(0);
  if (num_tokens == 0) return;
  const LatentWriteKernelParams params{.latent = p.latent.raw(),
                                       .slot_mapping = p.slot_mapping.data<int32_t>(),
                                       .latent_stride = p.latent.stride(0),
                                       .kv = latent_layout(p.kv),
                                       .is_aligned = are_rows_aligned({&p.latent})};
  CHECK(p.kv.desc.dtype != DType::kI8 || p.kv.desc.latent_width() <= kLatentMaxWidth,
        "latent_write: codes of vectors of {} exceed {}", p.kv.desc.latent_width(), kLatentMaxWidth);
  const bool is_bf16 = p.latent.dtype() == DType::kBf16;
  const KernelId kernel = p.kv.desc.dtype == DType::kI8
                              ? is_bf16 ? kernel_id("latent_write_bf16_int8") : kernel_id("latent_write_f32_int8")
                          : is_bf16                         ? kernel_id("latent_write_bf16_bf16")
                          : p.kv.desc.dtype == DType::kBf16 ? kernel_id("latent_write_f32_bf16")
                                                            : kernel_id("latent_write_f32_f32");
  launch(stream, kernel, {.x = num_tokens, .num_threads = num_threads_for(params.kv.padded_width / kHeadDimUnit, 128)},
         params, {{"num_tokens", num_tokens}, {"width", params.kv.width}});
  static_cast<CudaStream&>(stream).note_kv_write(p.kv.data);
}

void latent_norm_rope_write(Stream& stream, const LatentNormRopeWriteParams& p) {
  check_params(p);
  const int64_t num_tokens = p.slot_mapping.dim(0), num_heads = p.q_rope.dim(1);
  if (num_tokens == 0) return;
  if (!fits_norm_rope_write(p)) return decompositions().latent_norm_rope_write(stream, p);
  const KvLayerDesc& desc = p.kv.desc;
  const LatentNormRopeWriteKernelParams params = kernel_params(p);
  // A pair a thread where tokens are few.
  constexpr int64_t kManyCtas = 1024;
  const int64_t pair_ctas = std::clamp<int64_t>(kManyCtas / num_tokens, 1,
                                                ceil_div(num_heads * desc.qk_rope_head_dim / 2, kLatentWriteThreads));
  launch(stream, kernel_id("latent_norm_rope_write"),
         {.x = num_tokens, .y = 1 + pair_ctas, .num_threads = kLatentWriteThreads}, params,
         {{"num_tokens", num_tokens}, {"num_heads", num_heads}, {"kv_lora_rank", desc.kv_lora_rank}});
  static_cast<CudaStream&>(stream).note_kv_write(p.kv.data);
}

void attention_latent(Stream& stream, const AttentionLatentParams& p) {
  check_params(p);
  const int64_t num_tokens = p.q_latent.dim(0), num_heads = p.q_latent.dim(1);
  if (num_tokens == 0 || num_heads == 0) return;
  const KvLayerDesc& desc = p.kv.desc;
  CHECK(desc.kv_lora_rank <= kLatentMaxRank && desc.latent_width() <= kLatentMaxWidth,
        "attention_latent: latent vectors of {} + {} exceed {} and {} together", desc.kv_lora_rank,
        desc.qk_rope_head_dim, kLatentMaxRank, kLatentMaxWidth);
  const AttentionLatentKernelParams params = kernel_params(p);
  if (fits_wgmma(static_cast<CudaStream&>(stream).cuda_device(), p)) return attend_wgmma(stream, p, params);
  const bool is_bf16 = p.q_latent.dtype() == DType::kBf16;
  const KernelId kernel = desc.dtype == DType::kI8     ? is_bf16 ? kernel_id("attention_latent_bf16_int8")
                                                                 : kernel_id("attention_latent_f32_int8")
                              : is_bf16 ? kernel_id("attention_latent_bf16_bf16")
                          : desc.dtype == DType::kBf16 ? kernel_id("attention_latent_f32_bf16")
                                                       : kernel_id("attention_latent_f32_f32");
  launch(stream, kernel,
         {.x = num_tokens, .y = ceil_div(num_heads, kLatentHeadTile), .num_threads = 32 * kLatentWarps}, params,
         {{"num_tokens", num_tokens},
          {"num_seqs", p.seq_rows.dim(0)},
          {"num_heads", num_heads},
          {"kv_lora_rank", desc.kv_lora_rank},
          {"max_seq_len", p.max_seq_len}});
}

void CudaDevice::latent_attention(Stream& stream, const LatentAttentionParams& p) {
  CudaStream& cuda_stream = static_cast<CudaStream&>(stream);
  const bool is_settled = cuda_stream.has_settled(p.write.kv.data) && p.write.slot_mapping.dim(0) == p.heads.dim(0);
  cuda_stream.set_latents_are_settled(is_settled);
  if (can_join(*this, p)) {
    attend_joined(stream, p, is_settled);
  } else {
    decomposed_latent_attention(stream, p);
  }
  cuda_stream.set_latents_are_settled(false);
}

}  // namespace spate::cuda
