#include "backend/cuda/kernel/attention/attention_paged.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numbers>

#include "backend/check_params.h"
#include "backend/cuda/kernel/attention/attention_decode.h"
#include "backend/cuda/kernel/attention/attention_decode_ring_params.h"
#include "backend/cuda/kernel/attention/attention_prefill.h"
#include "backend/cuda/kernel/attention/attention_prefill_wgmma.h"
#include "backend/cuda/kernel/attention/expand_kv.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {
namespace {

KernelId kernel_for(DType act, DType kv, int64_t head_dim) {
  static constexpr std::array kBf16Bf16 = {kernel_id("attention_paged_bf16_bf16_d64"),
                                           kernel_id("attention_paged_bf16_bf16_d128"),
                                           kernel_id("attention_paged_bf16_bf16_d256")};
  static constexpr std::array kF32Bf16 = {kernel_id("attention_paged_f32_bf16_d64"),
                                          kernel_id("attention_paged_f32_bf16_d128"),
                                          kernel_id("attention_paged_f32_bf16_d256")};
  static constexpr std::array kF32F32 = {kernel_id("attention_paged_f32_f32_d64"),
                                         kernel_id("attention_paged_f32_f32_d128"),
                                         kernel_id("attention_paged_f32_f32_d256")};
  static constexpr std::array kBf16Int8 = {kernel_id("attention_paged_bf16_int8_d64"),
                                           kernel_id("attention_paged_bf16_int8_d128"),
                                           kernel_id("attention_paged_bf16_int8_d256")};
  static constexpr std::array kF32Int8 = {kernel_id("attention_paged_f32_int8_d64"),
                                          kernel_id("attention_paged_f32_int8_d128"),
                                          kernel_id("attention_paged_f32_int8_d256")};
  const size_t width = head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : 2;
  if (kv == DType::kI8) return act == DType::kBf16 ? kBf16Int8[width] : kF32Int8[width];
  if (act == DType::kBf16) return kBf16Bf16[width];
  return kv == DType::kBf16 ? kF32Bf16[width] : kF32F32[width];
}

struct DecodeRing {
  KernelId kernel;
  int num_warps;
};

DecodeRing decode_ring_for(const KvLayerDesc& desc, int num_seqs) {
  if (desc.dtype == DType::kI8) {
    if (num_seqs > kDecodeRingFewSeqs) {
      return {desc.head_dim == 64 ? kernel_id("attention_decode_ring_int8_d64_many")
                                  : kernel_id("attention_decode_ring_int8_d128_many"),
              kDecodeRingInt8Warps + 1};
    }
    return {desc.head_dim == 64 ? kernel_id("attention_decode_ring_int8_d64")
                                : kernel_id("attention_decode_ring_int8_d128"),
            kDecodeRingInt8Warps};
  }
  return {desc.head_dim == 64 ? kernel_id("attention_decode_ring_d64") : kernel_id("attention_decode_ring_d128"),
          decode_ring_warps(static_cast<int>(desc.head_dim)) + 1};
}

KernelId decode_cluster_for(const KvLayerDesc& desc) {
  if (desc.dtype == DType::kI8) {
    return desc.head_dim == 64 ? kernel_id("attention_decode_cluster_int8_d64")
                               : kernel_id("attention_decode_cluster_int8_d128");
  }
  return desc.head_dim == 64 ? kernel_id("attention_decode_cluster_d64") : kernel_id("attention_decode_cluster_d128");
}

int64_t head_tiles_per_kv_head(const AttentionPagedParams& p) {
  return ceil_div(p.q.dim(1) / p.kv.desc.num_kv_heads, kDecodeHeadTile);
}

// Whether a step of one query a sequence takes a cluster for each head tile: attention_decode_cluster.h.
bool fits_clusters(const CudaDevice& device, const AttentionPagedParams& p) {
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t num_clusters = p.seq_rows.dim(0) * desc.num_kv_heads * head_tiles_per_kv_head(p);
  const int64_t max_keys = p.window > 0 ? std::min(p.window, p.max_seq_len) : p.max_seq_len;
  return num_clusters <= kDecodeMaxClusters && num_clusters * kDecodeClusterCtas <= device.num_sms() &&
         max_keys <= kDecodeClusterMaxKeys && device.has(decode_cluster_for(desc));
}

// The kernel that ropes too, over an INT8 cache.
DecodeRing decode_rope_for(const KvLayerDesc& desc) {
  return {desc.head_dim == 64 ? kernel_id("attention_decode_ring_rope_int8_d64")
                              : kernel_id("attention_decode_ring_rope_int8_d128"),
          kDecodeRingInt8Warps + 1};
}

// Whether the kernels on the tensor core can take it. Their order of sums differs between few and many query tokens.
bool fits_tensor_core(const CudaDevice& device, const AttentionPagedParams& p) {
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t block_size = desc.kv_block_size;
  const auto is_aligned = [](const Tensor& rows) {
    return reinterpret_cast<uintptr_t>(rows.raw()) % 16 == 0 && rows.stride(0) % 8 == 0 && rows.stride(1) % 8 == 0;
  };
  return !device.is_deterministic() && p.q.dtype() == DType::kBf16 && desc.dtype != DType::kF32 &&
         (desc.head_dim == 64 || desc.head_dim == 128) && block_size % kDecodeTileKeys == 0 &&
         (block_size & (block_size - 1)) == 0 && is_aligned(p.q) && is_aligned(p.out);
}

void attention_prefill(Stream& stream, KernelId kernel, const AttentionPagedParams& p,
                       const AttentionPagedKernelParams& params) {
  launch(stream, kernel,
         {.x = ceil_div(p.max_query_len, kPrefillQueries),
          .y = p.q.dim(1),
          .z = p.seq_rows.dim(0),
          .num_threads = 32 * kPrefillWarps},
         params, {{"num_seqs", p.seq_rows.dim(0)}, {"num_heads", p.q.dim(1)}, {"max_query_len", p.max_query_len}});
}

// `attention` may be over other blocks than p.kv: num_blocks of them.
void attention_prefill_wgmma(Stream& stream, KernelId kernel, const AttentionPagedParams& p,
                             const AttentionPagedKernelParams& attention, int64_t num_blocks) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_tokens = p.q.dim(0), num_heads = p.q.dim(1), head_dim = p.kv.desc.head_dim;
  // Few query tokens a sequence, or in some of them: the heads of a kv head fill a tile, as many as the largest power
  // of two that divides their number, and a sequence that decodes beside prompts reads its keys once. Many in all:
  // tiles of one head are 2 % faster.
  const int64_t num_seqs = attention.num_seqs;
  const bool is_short = num_tokens < kPrefillWgmmaRows * num_seqs || 2 * num_tokens < p.max_query_len * num_seqs;
  const int32_t packed_heads =
      is_short ? std::min(attention.heads_per_kv_head & -attention.heads_per_kv_head, kPrefillWgmmaRows) : 1;
  const AttentionPrefillWgmmaParams params{
      .attention = attention,
      .q = make_heads_map(device.api(), {.data = attention.q,
                                         .num_tokens = num_tokens,
                                         .num_heads = num_heads,
                                         .head_dim = head_dim,
                                         .token_stride = attention.q_token_stride,
                                         .head_stride = attention.q_head_stride,
                                         .box_tokens = kPrefillWgmmaRows / packed_heads,
                                         .box_heads = packed_heads}),
      .kv = make_kv_map(device.api(), attention.kv, num_blocks, kPrefillWgmmaBoxKeys),
      .work_counters = device.work_counters(),
      .packed_heads = packed_heads,
      .num_head_tiles = static_cast<int32_t>(num_heads / packed_heads)};
  launch(stream, kernel, {.x = device.num_sms(), .num_threads = kPrefillWgmmaThreads}, params,
         {{"num_tokens", num_tokens},
          {"num_seqs", attention.num_seqs},
          {"num_heads", num_heads},
          {"max_query_len", p.max_query_len},
          {"max_seq_len", p.max_seq_len}});
}

// Measured in eight layers of Llama-3.1-8B and of Qwen3-30B-A3B (docs/kernels/decode_attention.md).
bool launches_ring_early(bool is_int8, int64_t num_seqs) { return num_seqs <= 2 || (is_int8 && num_seqs > 64); }

void attention_decode_ring(Stream& stream, const DecodeRing& ring, const AttentionPagedParams& p,
                           const AttentionPagedKernelParams& attention, const DecodeRopeParams& rope = {}) {
  CudaStream& cuda_stream = static_cast<CudaStream&>(stream);
  const CudaDevice& device = cuda_stream.cuda_device();
  const bool is_int8 = p.kv.desc.dtype == DType::kI8, ropes = rope.k != nullptr;
  const bool is_settled = cuda_stream.has_settled(attention.kv.data);
  const AttentionDecodeRingParams params{
      .attention = attention,
      .kv = is_int8 ? make_kv_codes_map(device.api(), attention.kv, p.kv.num_blocks, kDecodeTileKeys)
                    : make_kv_map(device.api(), attention.kv, p.kv.num_blocks, kDecodeTileKeys, L2Promotion::kNone),
      .scales =
          is_int8 ? make_kv_scales_map(device.api(), attention.kv, p.kv.num_blocks, kDecodeTileKeys) : TensorMap{},
      .partial = device.partial_sums(),
      .num_done = device.partial_flags(),
      .reads_early = ropes ? is_settled : cuda_stream.launches_late(),
      .rope = rope};
  const KvLayerDesc& desc = p.kv.desc;
  const bool is_early = ropes ? is_settled : launches_ring_early(is_int8, attention.num_seqs);
  if (!ropes && fits_clusters(device, p)) {
    const int num_warps = decode_cluster_warps(static_cast<int>(desc.head_dim), is_int8);
    launch(stream, decode_cluster_for(desc),
           {.x = kDecodeClusterCtas * head_tiles_per_kv_head(p),
            .y = desc.num_kv_heads,
            .z = attention.num_seqs,
            .num_threads = 32 * num_warps,
            .is_early = is_early},
           params, {{"num_seqs", attention.num_seqs}, {"num_heads", p.q.dim(1)}, {"max_seq_len", p.max_seq_len}});
    return;
  }
  launch(stream, ring.kernel, {.x = device.num_sms(), .num_threads = 32 * ring.num_warps, .is_early = is_early}, params,
         {{"num_seqs", attention.num_seqs}, {"num_heads", p.q.dim(1)}, {"max_seq_len", p.max_seq_len}});
  if (ropes) cuda_stream.note_kv_write(attention.kv.data);
}

// Of prompts and the sequences that decode beside them: decode attention of the latter, whose keys bring no more than 8 rows
// to a tile of 128. How many there are only the device knows, so steps with few long prompts among many sequences have it.
// Whether it was launched: sequences of one query token are done.
bool attend_decodes_beside(Stream& stream, const AttentionPagedParams& p, const AttentionPagedKernelParams& attention) {
  constexpr int kMinSeqs = 8;
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const DecodeRing ring = decode_ring_for(p.kv.desc, attention.num_seqs);
  const bool has_few_prompts = 2 * p.q.dim(0) < int64_t{p.max_query_len} * attention.num_seqs;
  if (attention.num_seqs < kMinSeqs || !has_few_prompts || !device.has(ring.kernel)) return false;
  attention_decode_ring(stream, ring, p, attention);
  return true;
}

// The blocks that expand_kv.cu makes of a step's INT8 cache blocks. They never take more memory than this: a step whose
// sequences do not fit is attended to in passes.
constexpr int64_t kMaxExpandedBytes = int64_t{512} << 20;

KvLayout expanded_layout(const KvLayerDesc& desc) {
  KvLayout kv{.num_kv_heads = static_cast<int32_t>(desc.num_kv_heads),
              .kv_block_size = static_cast<int32_t>(desc.kv_block_size),
              .head_dim = static_cast<int32_t>(desc.head_dim),
              .padded_head_dim = static_cast<int32_t>(desc.head_dim)};
  kv.block_bytes = expanded_block_bytes(kv);
  return kv;
}

int64_t max_expanded_blocks(const KvLayout& kv) { return kMaxExpandedBytes / kv.block_bytes; }

// For `wanted` blocks. Powers of two, so that the workspace grows seldom while a prompt does.
int64_t num_expanded_blocks(const KvLayout& kv, int64_t wanted) {
  return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(wanted))), max_expanded_blocks(kv));
}

// Of one sequence, at most.
int64_t seen_blocks(const AttentionPagedParams& p) {
  const int64_t all = ceil_div(p.max_seq_len, p.kv.desc.kv_block_size);
  if (p.window == 0) return all;
  return std::min(all, ceil_div(int64_t{p.window} + p.max_query_len, p.kv.desc.kv_block_size) + 1);
}

bool fits_expanded(const AttentionPagedParams& p) {
  return seen_blocks(p) <= max_expanded_blocks(expanded_layout(p.kv.desc));
}

void attention_prefill_int8(Stream& stream, KernelId wgmma, const AttentionPagedParams& p,
                            const AttentionPagedKernelParams& attention) {
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_seqs = attention.num_seqs, table_width = ceil_div(p.max_seq_len, p.kv.desc.kv_block_size);
  const int64_t blocks_of_seq = seen_blocks(p), wanted_blocks = num_seqs * blocks_of_seq;
  KvLayout expanded = expanded_layout(p.kv.desc);
  const int64_t num_blocks = num_expanded_blocks(expanded, wanted_blocks);
  // A pass ends where the next sequence does not fit: but for the last, each fills all blocks but blocks_of_seq - 1.
  const int64_t num_passes =
      wanted_blocks <= num_blocks ? 1 : std::min(num_seqs, ceil_div(wanted_blocks, num_blocks - blocks_of_seq + 1));

  const int64_t block_bytes = num_blocks * expanded.block_bytes;
  char* scratch = static_cast<char*>(
      device.workspace(static_cast<size_t>(block_bytes + num_seqs * (table_width + 2) * int64_t{sizeof(int32_t)})));
  expanded.data = scratch;
  int32_t* seq_rows = reinterpret_cast<int32_t*>(scratch + block_bytes);
  ExpandKvParams expand{.attention = attention,
                        .expanded = expanded,
                        .block_table = seq_rows + 2 * num_seqs,
                        .seq_rows = seq_rows,
                        .seq_lens = seq_rows + num_seqs,
                        .block_table_stride = static_cast<int32_t>(table_width),
                        .num_blocks = static_cast<int32_t>(num_blocks)};
  AttentionPagedKernelParams over_expanded = attention;
  over_expanded.kv = expanded;
  over_expanded.block_table = expand.block_table;
  over_expanded.seq_rows = expand.seq_rows;
  over_expanded.seq_lens = expand.seq_lens;
  over_expanded.block_table_stride = table_width;
  const KernelId expand_kernel = p.kv.desc.head_dim == 64 ? kernel_id("expand_kv_d64") : kernel_id("expand_kv_d128");
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    expand.pass_idx = static_cast<int32_t>(pass);
    launch(stream, expand_kernel, {.x = int64_t{2} * device.num_sms(), .num_threads = 32 * kExpandWarps}, expand,
           {{"num_seqs", num_seqs}, {"max_seq_len", p.max_seq_len}, {"pass", pass}});
    attention_prefill_wgmma(stream, wgmma, p, over_expanded, num_blocks);
  }
}

// Keys are cut so that the CTAs fill the device about twice; more, shorter splits cost more to merge than they balance.
void attention_decode(Stream& stream, const AttentionPagedParams& p, const AttentionPagedKernelParams& attention) {
  const KvLayerDesc& desc = p.kv.desc;
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t num_seqs = p.seq_rows.dim(0), num_heads = p.q.dim(1);
  const int64_t num_head_tiles = desc.num_kv_heads * ceil_div(attention.heads_per_kv_head, kDecodeHeadTile);
  const int64_t longest_splits = ceil_div(std::max(1, p.max_seq_len), kDecodeSplitUnit);
  const int64_t max_splits = std::clamp<int64_t>(2 * device.num_sms() / num_head_tiles, 1, num_seqs * longest_splits);
  const bool may_split = longest_splits > 1 && max_splits > 1;
  const int64_t num_items = may_split ? num_seqs + max_splits : num_seqs;
  const int64_t partial_bytes = may_split ? num_items * num_heads * (desc.head_dim + 2) * int64_t{sizeof(float)} : 0;
  char* scratch = static_cast<char*>(device.workspace(static_cast<size_t>(partial_bytes + 2 * num_seqs * 4)));
  const AttentionDecodeKernelParams params{.attention = attention,
                                           .partial = reinterpret_cast<float*>(scratch),
                                           .first_item = reinterpret_cast<int32_t*>(scratch + partial_bytes),
                                           .num_heads = static_cast<int32_t>(num_heads),
                                           .max_splits = static_cast<int32_t>(may_split ? max_splits : 1)};
  const std::initializer_list<NamedSize> sizes = {
      {"num_seqs", num_seqs}, {"num_heads", num_heads}, {"max_seq_len", p.max_seq_len}, {"num_items", num_items}};
  const bool is_narrow = desc.head_dim == 64;
  const KernelId kernel =
      desc.dtype == DType::kI8
          ? (is_narrow ? kernel_id("attention_decode_int8_d64") : kernel_id("attention_decode_int8_d128"))
          : (is_narrow ? kernel_id("attention_decode_d64") : kernel_id("attention_decode_d128"));
  launch(stream, kernel, {.x = num_items, .y = num_head_tiles, .num_threads = 32 * kDecodeWarps}, params, sizes);
  if (!may_split) return;
  launch(stream, kernel_id("attention_decode_combine"),
         {.x = num_seqs, .y = ceil_div(num_heads, kCombineWarps), .num_threads = 32 * kCombineWarps}, params, sizes);
}

AttentionPagedKernelParams kernel_params_of(const AttentionPagedParams& p) {
  return {
      .q = p.q.raw(),
      .out = p.out.raw(),
      .block_table = p.block_table.data<int32_t>(),
      .seq_rows = p.seq_rows.data<int32_t>(),
      .cu_seqlens_q = p.cu_seqlens_q.data<int32_t>(),
      .seq_lens = p.seq_lens.data<int32_t>(),
      .q_token_stride = p.q.stride(0),
      .q_head_stride = p.q.stride(1),
      .out_token_stride = p.out.stride(0),
      .out_head_stride = p.out.stride(1),
      .block_table_stride = p.block_table.stride(0),
      .kv = kv_layout(p.kv),
      .num_seqs = static_cast<int32_t>(p.seq_rows.dim(0)),
      .heads_per_kv_head = static_cast<int32_t>(p.q.dim(1) / p.kv.desc.num_kv_heads),
      .window = p.window,
      .softmax_scale_log2e = p.softmax_scale * std::numbers::log2e_v<float>,
  };
}

// More sequences are not measured. With few kv heads 5 to 16 lose (Qwen3-30B-A3B: 8 by 3 %), with 8 all from 2 on gain.
bool is_roped_by_attention(int64_t num_seqs, int64_t num_kv_heads) {
  constexpr int64_t kFewSeqs = 4, kManyHeads = 8;
  if (num_kv_heads < kManyHeads && num_seqs > kFewSeqs && num_seqs <= kDecodeRingFewSeqs) return false;
  return num_seqs >= kDecodeRopeMinSeqs && num_seqs <= kDecodeRopeMaxSeqs;
}

// Whether attention can rope q and k and write the step's keys: see attention_decode_rope.h.
bool fits_decode_rope(const CudaDevice& device, const QkNormRopeAttentionParams& p) {
  const KvLayerDesc& desc = p.write.kv.desc;
  const int64_t num_tokens = p.write.q.dim(0);
  const bool has_q_norm = p.write.q_norm.defined(), has_k_norm = p.write.k_norm.defined();
  return p.attention.max_query_len == 1 && num_tokens == p.attention.seq_rows.dim(0) &&
         is_roped_by_attention(num_tokens, desc.num_kv_heads) && desc.dtype == DType::kI8 &&
         fits_tensor_core(device, p.attention) && p.write.cos_sin.dim(1) == desc.head_dim && !p.write.interleaved &&
         are_rows_aligned({&p.write.k, &p.write.v, &p.write.cos_sin}) &&
         (!has_q_norm || are_rows_aligned({&p.write.q_norm})) && (!has_k_norm || are_rows_aligned({&p.write.k_norm})) &&
         !fits_clusters(device, p.attention) && device.has(decode_rope_for(desc).kernel);
}

}  // namespace

int64_t prefill_workspace_bytes(const OpLimits& limits) {
  const KvLayerDesc& desc = limits.int8_kv;
  if (desc.head_dim != 64 && desc.head_dim != 128) return 0;
  const KvLayout kv = expanded_layout(desc);
  const int64_t table_width = ceil_div(limits.max_seq_len, desc.kv_block_size);
  return num_expanded_blocks(kv, limits.max_num_seqs * table_width) * kv.block_bytes +
         limits.max_num_seqs * (table_width + 2) * int64_t{sizeof(int32_t)};
}

void attention_paged(Stream& stream, const AttentionPagedParams& p) {
  check_params(p);
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t num_tokens = p.q.dim(0), num_heads = p.q.dim(1);
  if (num_tokens == 0 || num_heads == 0) return;
  CHECK(desc.head_dim <= kAttentionMaxHeadDim, "attention_paged: head_dim {} exceeds {}", desc.head_dim,
        kAttentionMaxHeadDim);
  AttentionPagedKernelParams params = kernel_params_of(p);
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (fits_tensor_core(device, p)) {
    if (p.max_query_len == 1) {
      const DecodeRing ring = decode_ring_for(desc, params.num_seqs);
      if (device.has(ring.kernel)) return attention_decode_ring(stream, ring, p, params);
      return attention_decode(stream, p, params);
    }
    const KernelId wgmma =
        desc.head_dim == 64 ? kernel_id("attention_prefill_wgmma_d64") : kernel_id("attention_prefill_wgmma_d128");
    if (desc.dtype == DType::kBf16 && device.has(wgmma)) {
      params.skips_decodes = attend_decodes_beside(stream, p, params);
      return attention_prefill_wgmma(stream, wgmma, p, params, p.kv.num_blocks);
    }
    const KernelId wgmma_int8 = desc.head_dim == 64 ? kernel_id("attention_prefill_wgmma_int8_d64")
                                                    : kernel_id("attention_prefill_wgmma_int8_d128");
    if (desc.dtype == DType::kI8 && device.has(wgmma_int8) && fits_expanded(p)) {
      params.skips_decodes = attend_decodes_beside(stream, p, params);
      return attention_prefill_int8(stream, wgmma_int8, p, params);
    }
    const KernelId prefill =
        desc.head_dim == 64 ? kernel_id("attention_prefill_d64") : kernel_id("attention_prefill_d128");
    if (desc.dtype == DType::kBf16 && device.has(prefill)) return attention_prefill(stream, prefill, p, params);
  }
  launch(stream, kernel_for(p.q.dtype(), desc.dtype, desc.head_dim),
         {.x = num_tokens,
          .y = desc.num_kv_heads * ceil_div(params.heads_per_kv_head, kAttentionHeadTile),
          .num_threads = kAttentionNumWarps * 32},
         params,
         {{"num_tokens", num_tokens},
          {"num_seqs", p.seq_rows.dim(0)},
          {"num_heads", num_heads},
          {"num_kv_heads", desc.num_kv_heads},
          {"head_dim", desc.head_dim},
          {"max_seq_len", p.max_seq_len}});
}

void qk_norm_rope_attention(Stream& stream, const QkNormRopeAttentionParams& p) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  if (!fits_decode_rope(device, p)) {
    qk_norm_rope_kv_write(stream, p.write);
    return attention_paged(stream, p.attention);
  }
  check_params(p);
  const QkNormRopeKvWriteParams& w = p.write;
  const DecodeRopeParams rope{
      .k = w.k.raw(),
      .v = w.v.raw(),
      .q_norm = w.q_norm.defined() ? w.q_norm.raw() : nullptr,
      .k_norm = w.k_norm.defined() ? w.k_norm.raw() : nullptr,
      .positions = w.positions.data<int32_t>(),
      .cos_sin = w.cos_sin.data<float>(),
      .slot_mapping = w.slot_mapping.data<int32_t>(),
      .k_token_stride = w.k.stride(0),
      .k_head_stride = w.k.stride(1),
      .v_token_stride = w.v.stride(0),
      .v_head_stride = w.v.stride(1),
      .cos_sin_stride = w.cos_sin.stride(0),
      .eps = w.eps,
  };
  attention_decode_ring(stream, decode_rope_for(w.kv.desc), p.attention, kernel_params_of(p.attention), rope);
}

}  // namespace spate::cuda
