#include "backend/cuda/kernel/embedding/embedding.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int kEmbeddingThreads = 128, kEmbeddingPiece = 8;

LaunchGrid grid_of(const EmbeddingParams& p) {
  return {.x = p.out.dim(0),
          .y = ceil_div(p.out.dim(1), kEmbeddingThreads * kEmbeddingPiece),
          .num_threads = kEmbeddingThreads};
}

void embedding_integer(Stream& stream, const EmbeddingParams& p) {
  const EmbeddingIntegerKernelParams params{.token_ids = p.token_ids.data<int32_t>(),
                                            .table = p.table->matrix(0),
                                            .layout = integer_layout(p.table->desc()),
                                            .out = p.out.raw(),
                                            .out_stride = p.out.stride(0),
                                            .first_row = static_cast<int32_t>(p.first_row),
                                            .is_out_aligned = are_rows_aligned({&p.out})};
  const bool is_out_f32 = p.out.dtype() == DType::kF32, is_int4 = p.table->desc().spec.codes == Codes::kInt4;
  const KernelId kernel = is_out_f32 ? (is_int4 ? kernel_id("embedding_int4_f32") : kernel_id("embedding_int8_f32"))
                                     : (is_int4 ? kernel_id("embedding_int4_bf16") : kernel_id("embedding_int8_bf16"));
  launch(stream, kernel, grid_of(p), params, {{"num_tokens", p.out.dim(0)}, {"hidden_size", params.layout.width}});
}

void embedding_int4_groups(Stream& stream, const EmbeddingParams& p) {
  const EmbeddingInt4GroupsKernelParams params{.token_ids = p.token_ids.data<int32_t>(),
                                               .table = p.table->matrix(0),
                                               .layout = int4_group_layout(p.table->desc()),
                                               .out = p.out.raw(),
                                               .out_stride = p.out.stride(0),
                                               .first_row = static_cast<int32_t>(p.first_row)};
  launch(
      stream,
      p.out.dtype() == DType::kF32 ? kernel_id("embedding_int4_groups_f32") : kernel_id("embedding_int4_groups_bf16"),
      {.x = p.out.dim(0), .num_threads = kInt4GroupThreads}, params,
      {{"num_tokens", p.out.dim(0)}, {"hidden_size", params.layout.width}});
}

}  // namespace

void embedding(Stream& stream, const EmbeddingParams& p) {
  check_params(p);
  const WeightDesc& desc = p.table->desc();
  const int64_t num_tokens = p.out.dim(0);
  if (num_tokens == 0) return;
  if (is_int4_group_spec(desc.spec)) return embedding_int4_groups(stream, p);
  if (desc.spec.has_integer_codes()) return embedding_integer(stream, p);
  const EmbeddingKernelParams params{.token_ids = p.token_ids.data<int32_t>(),
                                     .table = p.table->data(),
                                     .out = p.out.raw(),
                                     .table_stride = weight_row_stride(desc),
                                     .out_stride = p.out.stride(0),
                                     .num_rows = static_cast<int32_t>(desc.out_features),
                                     .first_row = static_cast<int32_t>(p.first_row),
                                     .hidden_size = static_cast<int32_t>(desc.in_features),
                                     .is_out_aligned = are_rows_aligned({&p.out})};
  const bool is_out_f32 = p.out.dtype() == DType::kF32, is_table_f32 = desc.spec.codes == Codes::kF32;
  const KernelId kernel = is_out_f32
                              ? (is_table_f32 ? kernel_id("embedding_f32_f32") : kernel_id("embedding_f32_bf16"))
                              : (is_table_f32 ? kernel_id("embedding_bf16_f32") : kernel_id("embedding_bf16_bf16"));
  launch(stream, kernel, grid_of(p), params,
         {{"num_tokens", num_tokens}, {"hidden_size", desc.in_features}, {"vocab_size", desc.out_features}});
}

}  // namespace spate::cuda
