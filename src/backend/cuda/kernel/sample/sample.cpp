#include "backend/cuda/kernel/sample/sample.h"

#include <algorithm>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

// Rows a launch takes where their values need scratch: bounds it, 78 MB for a vocabulary of 152,064.
constexpr int64_t kMaxRowsAtOnce = 128;

// Kernels of an op, by where a row's values lie.
struct RowKernels {
  KernelId one_cta, cluster, small, medium, large;
};
constexpr RowKernels kSample{.one_cta = kernel_id("sample"),
                             .cluster = kernel_id("sample_cluster"),
                             .small = kernel_id("sample_cluster_small"),
                             .medium = kernel_id("sample_cluster_medium"),
                             .large = kernel_id("sample_cluster_large")};
constexpr RowKernels kLogprobs{.one_cta = kernel_id("logprobs"),
                               .cluster = kernel_id("logprobs_cluster"),
                               .small = kernel_id("logprobs_cluster_small"),
                               .medium = kernel_id("logprobs_cluster_medium"),
                               .large = kernel_id("logprobs_cluster_large")};

struct RowChoice {
  KernelId kernel;
  int num_ctas;  // a row
  bool needs_workspace;
};

// By the vocabulary alone. The largest slice fits only on devices that have clusters.
RowChoice choose_kernel(const CudaDevice& device, const RowKernels& kernels, int64_t vocab_size) {
  if (!device.has(kernels.large)) return {kernels.one_cta, 1, true};
  const int64_t bytes = int64_t{slice_length(static_cast<int>(vocab_size), kSampleClusterCtas)} * 4;
  if (bytes <= kSampleSliceSmall) return {kernels.small, kSampleClusterCtas, false};
  if (bytes <= kSampleSliceMedium) return {kernels.medium, kSampleClusterCtas, false};
  if (bytes <= kSampleSliceLarge) return {kernels.large, kSampleClusterCtas, false};
  return {kernels.cluster, kSampleClusterCtas, true};
}

// Rows of scratch start at multiples of 16 bytes.
int64_t values_stride(int64_t vocab_size) { return ceil_div(vocab_size, 4) * 4; }

float* values_for(Stream& stream, const RowChoice& choice, int64_t num_rows, int64_t vocab_size) {
  if (!choice.needs_workspace) return nullptr;
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  return static_cast<float*>(device.workspace(static_cast<size_t>(sample_workspace_bytes(num_rows, vocab_size))));
}

void check_vocab_size(const char* op, int64_t vocab_size) {
  CHECK(vocab_size > 0 && vocab_size < kSampleMaxVocab, "{}: a vocabulary of {} tokens, at most {} are supported", op,
        vocab_size, kSampleMaxVocab - 1);
}

}  // namespace

int64_t sample_workspace_bytes(int64_t num_logits, int64_t vocab_size) {
  return std::min(num_logits, kMaxRowsAtOnce) * values_stride(vocab_size) * static_cast<int64_t>(sizeof(float));
}

void sample(Stream& stream, const SampleParams& p) {
  check_params(p);
  const int64_t num_logits = p.logits.dim(0), vocab_size = p.logits.dim(1);
  if (num_logits == 0) return;
  check_vocab_size("sample", vocab_size);
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const RowChoice choice = choose_kernel(device, kSample, vocab_size);
  const int64_t rows_at_once = choice.needs_workspace ? std::min(num_logits, kMaxRowsAtOnce) : num_logits;
  const RowState& state = p.state;
  SampleKernelParams params{
      .logits = p.logits.data<float>(),
      .sample_state_rows = p.sample_state_rows.data<int32_t>(),
      .sample_offsets = p.sample_offsets.defined() ? p.sample_offsets.data<int32_t>() : nullptr,
      .sample_masks = p.sample_masks.defined() ? p.sample_masks.data<int32_t>() : nullptr,
      .sample_drafts = p.sample_drafts.defined() ? p.sample_drafts.data<int32_t>() : nullptr,
      .plan = static_cast<const char*>(p.plan),
      .values = values_for(stream, choice, rows_at_once, vocab_size),
      .next_token_ids = p.next_token_ids.data<int32_t>(),
      .is_relaxed = p.is_relaxed.defined() ? p.is_relaxed.data<int32_t>() : nullptr,
      .token_ids = state.token_ids.data<int32_t>(),
      .num_tokens = state.num_tokens.data<int32_t>(),
      .sampling = static_cast<const char*>(state.sampling.raw()),
      .bias_ids = state.bias_ids.data<int32_t>(),
      .bias_values = state.bias_values.data<float>(),
      .stop_ids = state.stop_ids.data<int32_t>(),
      .logits_stride = p.logits.stride(0),
      .values_stride = values_stride(vocab_size),
      .token_ids_stride = state.token_ids.stride(0),
      .sampling_stride = state.sampling.stride(0),
      .bias_ids_stride = state.bias_ids.stride(0),
      .bias_values_stride = state.bias_values.stride(0),
      .stop_ids_stride = state.stop_ids.stride(0),
      .vocab_size = static_cast<int32_t>(vocab_size),
  };
  for (int64_t row = 0; row < num_logits; row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, num_logits - row);
    launch(stream, choice.kernel, {.x = num_rows * choice.num_ctas, .num_threads = kSampleThreads}, params,
           {{"num_logits", num_rows}, {"vocab_size", vocab_size}});
    params.logits += num_rows * params.logits_stride;
    params.sample_state_rows += num_rows;
    if (params.sample_offsets != nullptr) params.sample_offsets += num_rows;
    if (params.sample_masks != nullptr) params.sample_masks += num_rows;
    if (params.sample_drafts != nullptr) params.sample_drafts += num_rows;
    if (params.is_relaxed != nullptr) params.is_relaxed += num_rows;
    params.next_token_ids += num_rows;
  }
}

void logprobs(Stream& stream, const LogprobsParams& p) {
  check_params(p);
  const int64_t num_logits = p.logits.dim(0), vocab_size = p.logits.dim(1);
  if (num_logits == 0) return;
  check_vocab_size("logprobs", vocab_size);
  const bool has_top = p.top_ids.defined();
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const RowChoice choice = choose_kernel(device, kLogprobs, vocab_size);
  const int64_t rows_at_once = choice.needs_workspace ? std::min(num_logits, kMaxRowsAtOnce) : num_logits;
  LogprobsKernelParams params{.logits = p.logits.data<float>(),
                              .target_ids = p.target_ids.data<int32_t>(),
                              .target_logprob = p.target_logprob.data<float>(),
                              .target_rank = p.target_rank.data<int32_t>(),
                              .top_ids = has_top ? p.top_ids.data<int32_t>() : nullptr,
                              .top_logprobs = has_top ? p.top_logprobs.data<float>() : nullptr,
                              .values = values_for(stream, choice, rows_at_once, vocab_size),
                              .logits_stride = p.logits.stride(0),
                              .values_stride = values_stride(vocab_size),
                              .top_ids_stride = has_top ? p.top_ids.stride(0) : 0,
                              .top_logprobs_stride = has_top ? p.top_logprobs.stride(0) : 0,
                              .vocab_size = static_cast<int32_t>(vocab_size),
                              .num_top = has_top ? static_cast<int32_t>(p.top_ids.dim(1)) : 0};
  CHECK(params.num_top <= kMaxTopOfCta, "logprobs: {} top tokens, at most {} are supported", params.num_top,
        kMaxTopOfCta);
  for (int64_t row = 0; row < num_logits; row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, num_logits - row);
    launch(stream, choice.kernel, {.x = num_rows * choice.num_ctas, .num_threads = kSampleThreads}, params,
           {{"num_logits", num_rows}, {"vocab_size", vocab_size}, {"num_top", params.num_top}});
    params.logits += num_rows * params.logits_stride;
    params.target_ids += num_rows;
    params.target_logprob += num_rows;
    params.target_rank += num_rows;
    if (has_top) {
      params.top_ids += num_rows * params.top_ids_stride;
      params.top_logprobs += num_rows * params.top_logprobs_stride;
    }
  }
}

}  // namespace spate::cuda
