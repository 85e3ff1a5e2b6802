#include "backend/cuda/kernel/kv/kv.h"

#include <algorithm>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {

void kv_write(Stream& stream, const KvWriteParams& p) {
  check_params(p);
  const int64_t num_tokens = p.slot_mapping.dim(0);
  if (num_tokens == 0) return;
  const KvWriteKernelParams params{.k = p.k.raw(),
                                   .v = p.v.raw(),
                                   .slot_mapping = p.slot_mapping.data<int32_t>(),
                                   .k_token_stride = p.k.stride(0),
                                   .k_head_stride = p.k.stride(1),
                                   .v_token_stride = p.v.stride(0),
                                   .v_head_stride = p.v.stride(1),
                                   .kv = kv_layout(p.kv),
                                   .is_aligned = are_rows_aligned({&p.k, &p.v}),
                                   .lanes_per_head = lanes_per_head(p.kv.desc.head_dim)};
  const bool is_bf16 = p.k.dtype() == DType::kBf16, of_codes = p.kv.desc.dtype == DType::kI8;
  const KernelId kernel = of_codes  ? (is_bf16 ? kernel_id("kv_write_bf16_int8") : kernel_id("kv_write_f32_int8"))
                          : is_bf16 ? kernel_id("kv_write_bf16_bf16")
                          : p.kv.desc.dtype == DType::kBf16 ? kernel_id("kv_write_f32_bf16")
                                                            : kernel_id("kv_write_f32_f32");
  constexpr int kKvThreads = 128;
  const int64_t num_pieces =
      2 * p.kv.desc.num_kv_heads * (of_codes ? params.lanes_per_head : params.kv.padded_head_dim / kHeadDimUnit);
  launch(stream, kernel, {.x = num_tokens, .y = ceil_div(num_pieces, kKvThreads), .num_threads = kKvThreads}, params,
         {{"num_tokens", num_tokens}, {"num_kv_heads", p.kv.desc.num_kv_heads}, {"head_dim", p.kv.desc.head_dim}});
}

void kv_copy_blocks(Stream& stream, const KvCopyBlocksParams& p) {
  check_params(p);
  const int64_t num_copies = p.src_dst.dim(0);
  if (num_copies == 0) return;
  const KvCopyBlocksKernelParams params{
      .src_dst = p.src_dst.data<int32_t>(), .src_dst_stride = p.src_dst.stride(0), .kv = kv_layout(p.kv)};
  CHECK(p.kv.block_bytes % 16 == 0, "kv_copy_blocks: blocks of {} bytes", p.kv.block_bytes);
  const int64_t num_units = p.kv.block_bytes / 16;
  launch(stream, kernel_id("kv_copy_blocks"),
         {.x = num_copies, .y = std::min<int64_t>(ceil_div(num_units, 256), 64), .num_threads = 256}, params,
         {{"num_copies", num_copies}, {"block_bytes", p.kv.block_bytes}});
}

}  // namespace spate::cuda
