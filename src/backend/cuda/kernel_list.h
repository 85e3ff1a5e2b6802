// Every kernel of this back-end: its source and its name in it. A launcher names a kernel by kernel_id("rope_bf16"),
// which the compiler resolves, so a name that is not listed does not build; start-up and cuda_compile_test go through
// the whole list.
#pragma once

#include <iterator>
#include <string_view>

#include "backend/cuda/kernel/attention/attention_prefill.h"
#include "backend/cuda/kernel/attention/attention_prefill_wgmma.h"
#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/expert/expert_order.h"
#include "backend/cuda/kernel/expert/expert_wgmma.h"
#include "backend/cuda/kernel/latent/latent_wgmma.h"
#include "backend/cuda/kernel/linear/linear.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/sample/sample.h"

namespace spate::cuda {

struct KernelInfo {
  std::string_view program;  // below backend/cuda/kernel/
  const char* function;
  int shared_bytes = 0;  // of dynamic shared memory; a device that has less cannot run the kernel (CudaDevice::has)
  bool is_for_hopper = false;  // its program compiles for sm_90a only
};

inline constexpr KernelInfo kKernels[] = {
    {"attention/attention_decode.cu", "attention_decode_d64"},
    {"attention/attention_decode.cu", "attention_decode_d128"},
    {"attention/attention_decode.cu", "attention_decode_combine"},
    {"attention/attention_decode_int8.cu", "attention_decode_int8_d64"},
    {"attention/attention_decode_int8.cu", "attention_decode_int8_d128"},
    {"attention/attention_prefill.cu", "attention_prefill_d64", prefill_shared_bytes(64)},
    {"attention/attention_prefill.cu", "attention_prefill_d128", prefill_shared_bytes(128)},
    {"attention/attention_prefill_wgmma.cu", "attention_prefill_wgmma_d64", prefill_wgmma_shared_bytes(64), true},
    {"attention/attention_prefill_wgmma.cu", "attention_prefill_wgmma_d128", prefill_wgmma_shared_bytes(128), true},
    {"attention/attention_paged.cu", "attention_paged_bf16_bf16_d64"},
    {"attention/attention_paged.cu", "attention_paged_bf16_bf16_d128"},
    {"attention/attention_paged.cu", "attention_paged_bf16_bf16_d256"},
    {"attention/attention_paged.cu", "attention_paged_f32_bf16_d64"},
    {"attention/attention_paged.cu", "attention_paged_f32_bf16_d128"},
    {"attention/attention_paged.cu", "attention_paged_f32_bf16_d256"},
    {"attention/attention_paged.cu", "attention_paged_f32_f32_d64"},
    {"attention/attention_paged.cu", "attention_paged_f32_f32_d128"},
    {"attention/attention_paged.cu", "attention_paged_f32_f32_d256"},
    {"attention/attention_paged.cu", "attention_paged_bf16_int8_d64"},
    {"attention/attention_paged.cu", "attention_paged_bf16_int8_d128"},
    {"attention/attention_paged.cu", "attention_paged_bf16_int8_d256"},
    {"attention/attention_paged.cu", "attention_paged_f32_int8_d64"},
    {"attention/attention_paged.cu", "attention_paged_f32_int8_d128"},
    {"attention/attention_paged.cu", "attention_paged_f32_int8_d256"},
    {"elementwise/elementwise.cu", "add_bf16"},
    {"elementwise/elementwise.cu", "add_f32"},
    {"elementwise/elementwise.cu", "silu_and_mul_bf16"},
    {"elementwise/elementwise.cu", "silu_and_mul_f32"},
    {"embedding/embedding.cu", "embedding_bf16_bf16"},
    {"embedding/embedding.cu", "embedding_bf16_f32"},
    {"embedding/embedding.cu", "embedding_f32_bf16"},
    {"embedding/embedding.cu", "embedding_f32_f32"},
    {"embedding/embedding_integer.cu", "embedding_int8_bf16"},
    {"embedding/embedding_integer.cu", "embedding_int8_f32"},
    {"embedding/embedding_integer.cu", "embedding_int4_bf16"},
    {"embedding/embedding_integer.cu", "embedding_int4_f32"},
    {"expert/expert_combine.cu", "expert_combine_bf16"},
    {"expert/expert_combine.cu", "expert_combine_f32"},
    {"expert/expert_order.cu", "expert_order", kOrderSharedBytes},
    {"expert/expert_product.cu", "expert_product_bf16_bf16"},
    {"expert/expert_product.cu", "expert_product_bf16_f32"},
    {"expert/expert_product.cu", "expert_product_f32_bf16"},
    {"expert/expert_product.cu", "expert_product_f32_f32"},
    {"expert/expert_wgmma.cu", "expert_gate_up_n8", expert_shared_bytes(8), true},
    {"expert/expert_wgmma.cu", "expert_gate_up_n32", expert_shared_bytes(32), true},
    {"expert/expert_wgmma.cu", "expert_gate_up_n64", expert_shared_bytes(64), true},
    {"expert/expert_wgmma.cu", "expert_gate_up_n128", expert_shared_bytes(128), true},
    {"expert/expert_wgmma.cu", "expert_gate_up_dense_n128", expert_shared_bytes(128), true},
    {"expert/expert_wgmma.cu", "expert_gate_up_dense_n256", expert_shared_bytes(256), true},
    {"expert/expert_wgmma.cu", "expert_down_n8", expert_shared_bytes(8), true},
    {"expert/expert_wgmma.cu", "expert_down_n32", expert_shared_bytes(32), true},
    {"expert/expert_wgmma.cu", "expert_down_n64", expert_shared_bytes(64), true},
    {"expert/expert_wgmma.cu", "expert_down_n128", expert_shared_bytes(128), true},
    {"expert/expert_wgmma.cu", "expert_down_n256", expert_shared_bytes(256), true},
    {"expert/expert_wgmma.cu", "head_product_n8", expert_shared_bytes(8), true},
    {"expert/expert_wgmma.cu", "head_product_n16", expert_shared_bytes(16), true},
    {"expert/expert_wgmma.cu", "head_product_n32", expert_shared_bytes(32), true},
    {"expert/expert_wgmma.cu", "head_product_n64", expert_shared_bytes(64), true},
    {"expert/expert_wgmma.cu", "head_product_n128", expert_shared_bytes(128), true},
    {"expert/expert_wgmma.cu", "head_product_n256", expert_shared_bytes(256), true},
    {"expert/route_experts.cu", "route_experts"},
    {"gather_rows/gather_rows.cu", "gather_rows_1"},
    {"gather_rows/gather_rows.cu", "gather_rows_2"},
    {"gather_rows/gather_rows.cu", "gather_rows_4"},
    {"gather_rows/gather_rows.cu", "gather_rows_8"},
    {"gather_rows/gather_rows.cu", "gather_rows_16"},
    {"kv/kv.cu", "kv_write_bf16_bf16"},
    {"kv/kv.cu", "kv_write_f32_bf16"},
    {"kv/kv.cu", "kv_write_f32_f32"},
    {"kv/kv.cu", "kv_write_bf16_int8"},
    {"kv/kv.cu", "kv_write_f32_int8"},
    {"kv/kv.cu", "kv_copy_blocks"},
    {"kv/qk_norm_rope_kv_write.cu", "qk_norm_rope_kv_write_bf16_bf16"},
    {"kv/qk_norm_rope_kv_write.cu", "qk_norm_rope_kv_write_f32_bf16"},
    {"kv/qk_norm_rope_kv_write.cu", "qk_norm_rope_kv_write_f32_f32"},
    {"kv/qk_norm_rope_kv_write.cu", "qk_norm_rope_kv_write_bf16_int8"},
    {"kv/qk_norm_rope_kv_write.cu", "qk_norm_rope_kv_write_f32_int8"},
    {"latent/attention_latent.cu", "attention_latent_bf16_bf16"},
    {"latent/attention_latent.cu", "attention_latent_f32_bf16"},
    {"latent/attention_latent.cu", "attention_latent_f32_f32"},
    {"latent/latent_combine.cu", "latent_combine"},
    {"latent/latent_wgmma.cu", "attention_latent_wgmma", kLatentSharedBytes, true},
    {"latent/latent_write.cu", "latent_write_bf16_bf16"},
    {"latent/latent_write.cu", "latent_write_f32_bf16"},
    {"latent/latent_write.cu", "latent_write_f32_f32"},
    {"linear/linear.cu", "linear_mma"},
    {"linear/linear.cu", "linear_fma_bf16_f32"},
    {"linear/linear.cu", "linear_fma_f32_bf16"},
    {"linear/linear.cu", "linear_fma_f32_f32"},
    {"linear/linear_stream.cu", "linear_stream_m8"},
    {"linear/linear_stream.cu", "linear_stream_m16"},
    {"linear/linear_tile.cu", "linear_tile_large", linear_tile_shared_bytes(kLinearTileLargeM, kLinearTileLargeN)},
    {"linear/linear_tile.cu", "linear_tile_small", linear_tile_shared_bytes(kLinearTileSmallM, kLinearTileSmallN)},
    {"linear/linear_wgmma.cu", "linear_wgmma_n8", wgmma_shared_bytes(kBf16StageWeightBytes, 8), true},
    {"linear/linear_wgmma.cu", "linear_wgmma_n16", wgmma_shared_bytes(kBf16StageWeightBytes, 16), true},
    {"linear/linear_wgmma.cu", "linear_wgmma_n32", wgmma_shared_bytes(kBf16StageWeightBytes, 32), true},
    {"linear/linear_wgmma.cu", "linear_wgmma_n64", wgmma_shared_bytes(kBf16StageWeightBytes, 64), true},
    {"linear/linear_wgmma.cu", "linear_wgmma_n128", wgmma_shared_bytes(kBf16StageWeightBytes, 128), true},
    {"linear/linear_wgmma.cu", "linear_wgmma_n256", wgmma_shared_bytes(kBf16StageWeightBytes, 256), true},
    {"linear/linear_int8.cu", "linear_int8_n8", wgmma_shared_bytes(kInt8StageWeightBytes, 8), true},
    {"linear/linear_int8.cu", "linear_int8_n16", wgmma_shared_bytes(kInt8StageWeightBytes, 16), true},
    {"linear/linear_int8.cu", "linear_int8_n32", wgmma_shared_bytes(kInt8StageWeightBytes, 32), true},
    {"linear/linear_int8.cu", "linear_int8_n64", wgmma_shared_bytes(kInt8StageWeightBytes, 64), true},
    {"linear/linear_int8.cu", "linear_int8_n128", wgmma_shared_bytes(kInt8StageWeightBytes, 128), true},
    {"linear/linear_int8.cu", "linear_int8_n256", wgmma_shared_bytes(kInt8StageWeightBytes, 256), true},
    {"linear/linear_int4.cu", "linear_int4_n8", wgmma_shared_bytes(kInt4StageWeightBytes, 8), true},
    {"linear/linear_int4.cu", "linear_int4_n16", wgmma_shared_bytes(kInt4StageWeightBytes, 16), true},
    {"linear/linear_int4.cu", "linear_int4_n32", wgmma_shared_bytes(kInt4StageWeightBytes, 32), true},
    {"linear/linear_int4.cu", "linear_int4_n64", wgmma_shared_bytes(kInt4StageWeightBytes, 64), true},
    {"linear/linear_int4.cu", "linear_int4_n128", wgmma_shared_bytes(kInt4StageWeightBytes, 128), true},
    {"linear/linear_int4.cu", "linear_int4_n256", wgmma_shared_bytes(kInt4StageWeightBytes, 256), true},
    {"linear/linear_int4_g32.cu", "linear_int4_g32_n8", wgmma_shared_bytes(kInt4StageWeightBytes, 8), true},
    {"linear/linear_int4_g32.cu", "linear_int4_g32_n16", wgmma_shared_bytes(kInt4StageWeightBytes, 16), true},
    {"linear/linear_int4_g32.cu", "linear_int4_g32_n32", wgmma_shared_bytes(kInt4StageWeightBytes, 32), true},
    {"linear/linear_int4_g32.cu", "linear_int4_g32_n64", wgmma_shared_bytes(kInt4StageWeightBytes, 64), true},
    {"linear/linear_int4_g32.cu", "linear_int4_g32_n128", wgmma_shared_bytes(kInt4StageWeightBytes, 128), true},
    {"linear/linear_int4_g32.cu", "linear_int4_g32_n256", wgmma_shared_bytes(kInt4StageWeightBytes, 256), true},
    {"linear/quantize_rows.cu", "quantize_rows_bf16_1"},
    {"linear/quantize_rows.cu", "quantize_rows_bf16_2"},
    {"linear/quantize_rows.cu", "quantize_rows_bf16_wide"},
    {"linear/quantize_rows.cu", "quantize_rows_f32_1"},
    {"linear/quantize_rows.cu", "quantize_rows_f32_wide"},
    {"linear/pack_integer.cu", "pack_int8_f32"},
    {"linear/pack_integer.cu", "pack_int8_bf16"},
    {"linear/pack_integer.cu", "pack_int4_f32"},
    {"linear/pack_integer.cu", "pack_int4_bf16"},
    {"linear/pack_integer.cu", "place_int4"},
    {"rms_norm/rms_norm.cu", "rms_norm_bf16_narrow"},
    {"rms_norm/rms_norm.cu", "rms_norm_bf16_1"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_bf16_1"},
    {"rms_norm/rms_norm.cu", "rms_norm_bf16_2"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_bf16_2"},
    {"rms_norm/rms_norm.cu", "rms_norm_bf16_4"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_bf16_4"},
    {"rms_norm/rms_norm.cu", "rms_norm_bf16_wide"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_bf16_wide"},
    {"rms_norm/rms_norm.cu", "rms_norm_f32_narrow"},
    {"rms_norm/rms_norm.cu", "rms_norm_f32_1"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_f32_1"},
    {"rms_norm/rms_norm.cu", "rms_norm_f32_2"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_f32_2"},
    {"rms_norm/rms_norm.cu", "rms_norm_f32_4"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_f32_4"},
    {"rms_norm/rms_norm.cu", "rms_norm_f32_wide"},
    {"rms_norm/rms_norm.cu", "add_rms_norm_f32_wide"},
    {"rope/rope.cu", "rope_bf16"},
    {"rope/rope.cu", "rope_f32"},
    {"sample/sample.cu", "sample"},
    {"sample/sample.cu", "sample_cluster"},
    {"sample/sample.cu", "sample_cluster_small", kSampleSliceSmall},
    {"sample/sample.cu", "sample_cluster_medium", kSampleSliceMedium},
    {"sample/sample.cu", "sample_cluster_large", kSampleSliceLarge},
    {"sample/logprobs.cu", "logprobs"},
    {"sample/logprobs.cu", "logprobs_cluster"},
    {"sample/logprobs.cu", "logprobs_cluster_small", kSampleSliceSmall},
    {"sample/logprobs.cu", "logprobs_cluster_medium", kSampleSliceMedium},
    {"sample/logprobs.cu", "logprobs_cluster_large", kSampleSliceLarge},
    {"step/step.cu", "apply_updates"},
    {"step/step.cu", "begin_step"},
    {"step/step.cu", "finish_step"},
};
inline constexpr int kNumKernels = static_cast<int>(std::size(kKernels));

struct KernelId {
  int idx;  // into kKernels
};

consteval KernelId kernel_id(std::string_view function) {
  for (int i = 0; i < kNumKernels; ++i) {
    if (kKernels[i].function == function) return {i};
  }
  throw "no such kernel in kKernels";
}

}  // namespace spate::cuda
