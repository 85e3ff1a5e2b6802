#include "backend/cuda/kernel/kv/qk_norm_rope_kv_write.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

bool fits_one_launch(const QkNormRopeKvWriteParams& p) {
  const KvLayerDesc& desc = p.kv.desc;
  return desc.head_dim <= kQkvMaxHeadDim && p.cos_sin.dim(1) % kQkvRotaryUnit == 0 && are_rows_aligned({&p.cos_sin});
}

// Where attention starts early. It then reads what this kernel does not write before this one ends. More sequences: 2
// to 4 us a layer slower, on an H100.
constexpr int64_t kLateTokens = 2;

// From here on a thread has several heads: fewer CTAs than SMs would take longer.
constexpr int64_t kManyTokens = 256;

bool fits_many(const QkNormRopeKvWriteParams& p, const QkNormRopeKvWriteKernelParams& params) {
  const auto follows = [](const Tensor& heads, const Tensor& before) {
    return static_cast<const char*>(heads.raw()) ==
               static_cast<const char*>(before.raw()) + before.dim(1) * before.stride(1) * 2 &&
           heads.stride(0) == before.stride(0) && heads.stride(1) == before.stride(1);
  };
  return p.q.dim(0) >= kManyTokens && p.q.dtype() == DType::kBf16 && p.kv.desc.head_dim == kQkvManyHeadDim &&
         params.rotary_dim == kQkvManyHeadDim && !p.interleaved && params.is_aligned && follows(p.k, p.q) &&
         follows(p.v, p.k) && p.q_norm.defined() == p.k_norm.defined();
}

}  // namespace

void qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p) {
  check_params(p);
  const int64_t num_tokens = p.q.dim(0), num_heads = p.q.dim(1);
  if (num_tokens == 0) return;
  if (!fits_one_launch(p)) return decompositions().qk_norm_rope_kv_write(stream, p);
  const KvLayerDesc& desc = p.kv.desc;
  const bool has_q_norm = p.q_norm.defined(), has_k_norm = p.k_norm.defined();
  // Behind a kernel that launches late this one need not, for the next one to read early.
  const bool is_few = num_tokens <= kLateTokens, reads_early = static_cast<CudaStream&>(stream).launches_late();
  const QkNormRopeKvWriteKernelParams params{
      .q = p.q.raw(),
      .k = p.k.raw(),
      .v = p.v.raw(),
      .q_norm = has_q_norm ? p.q_norm.raw() : nullptr,
      .k_norm = has_k_norm ? p.k_norm.raw() : nullptr,
      .positions = p.positions.data<int32_t>(),
      .cos_sin = p.cos_sin.data<float>(),
      .slot_mapping = p.slot_mapping.data<int32_t>(),
      .q_token_stride = p.q.stride(0),
      .q_head_stride = p.q.stride(1),
      .k_token_stride = p.k.stride(0),
      .k_head_stride = p.k.stride(1),
      .v_token_stride = p.v.stride(0),
      .v_head_stride = p.v.stride(1),
      .cos_sin_stride = p.cos_sin.stride(0),
      .kv = kv_layout(p.kv),
      .num_heads = static_cast<int32_t>(num_heads),
      .rotary_dim = static_cast<int32_t>(p.cos_sin.dim(1)),
      .lanes_per_head = lanes_per_head(desc.head_dim),
      .eps = p.eps,
      .is_interleaved = p.interleaved,
      .is_aligned = are_rows_aligned({&p.q, &p.k, &p.v}) && (!has_q_norm || are_rows_aligned({&p.q_norm})) &&
                    (!has_k_norm || are_rows_aligned({&p.k_norm})),
      .launches_late = is_few && !reads_early,
      .reads_early = reads_early,
  };
  const bool is_bf16 = p.q.dtype() == DType::kBf16;
  const int64_t num_rows = num_heads + 2 * desc.num_kv_heads;
  if (fits_many(p, params)) {
    constexpr int64_t kHeadsOfCta = kQkvManyThreads / kQkvManyLanes * kQkvManyHeads;
    launch(stream,
           desc.dtype == DType::kI8 ? kernel_id("qk_norm_rope_kv_write_many_int8")
                                    : kernel_id("qk_norm_rope_kv_write_many_bf16"),
           {.x = num_tokens, .y = ceil_div(num_rows, kHeadsOfCta), .num_threads = kQkvManyThreads}, params,
           {{"num_tokens", num_tokens}, {"num_heads", num_heads}, {"num_kv_heads", desc.num_kv_heads}});
    return;
  }
  const KernelId kernel = desc.dtype == DType::kI8     ? (is_bf16 ? kernel_id("qk_norm_rope_kv_write_bf16_int8")
                                                                  : kernel_id("qk_norm_rope_kv_write_f32_int8"))
                          : is_bf16                    ? kernel_id("qk_norm_rope_kv_write_bf16_bf16")
                          : desc.dtype == DType::kBf16 ? kernel_id("qk_norm_rope_kv_write_f32_bf16")
                                                       : kernel_id("qk_norm_rope_kv_write_f32_f32");
  const int64_t heads_a_cta = kQkvThreads / params.lanes_per_head;
  launch(stream, kernel,
         {.x = num_tokens, .y = ceil_div(num_rows, heads_a_cta), .num_threads = kQkvThreads, .launches_late = is_few},
         params,
         {{"num_tokens", num_tokens},
          {"num_heads", num_heads},
          {"num_kv_heads", desc.num_kv_heads},
          {"head_dim", desc.head_dim},
          {"rotary_dim", params.rotary_dim}});
}

}  // namespace spate::cuda
