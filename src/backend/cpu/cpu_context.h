// What the ops of a CPU device share: kernels, threads and scratch memory. Private to backend/cpu.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"
#include "backend/ops.h"

namespace spate::cpu {

constexpr int64_t kAttentionMaxHeadDim = 256;  // kMaxValueBlocks of kernel/attention_fma.h

// Memory that grows to the largest need and is then reused by every step; contents do not survive a reserve(). Large
// ones lie in 2 MB pages: x of a product of 512 rows spans hundreds of small ones (3 to 5 % of the product).
class Scratch {
 public:
  char* reserve(int64_t bytes) {
    if (bytes > bytes_) {
      bytes_ = taken_for(bytes);
      data_.reset(static_cast<char*>(std::aligned_alloc(static_cast<size_t>(page_of(bytes)), static_cast<size_t>(bytes_))));
      SPATE_CHECK(data_ != nullptr, "data_ != nullptr", "out of host memory: {} bytes of scratch", bytes);
      if (page_of(bytes) == kHugeBytes) madvise(data_.get(), static_cast<size_t>(bytes_), MADV_HUGEPAGE);
    }
    return data_.get();
  }
  char* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }
  static int64_t taken_for(int64_t bytes) { return round_up(bytes, page_of(bytes)); }  // by a first reserve(bytes)

 private:
  static constexpr int64_t kHugeBytes = int64_t{2} << 20;
  static int64_t page_of(int64_t bytes) { return bytes < kHugeBytes / 4 ? 4096 : kHugeBytes; }
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t bytes_ = 0;
};

// Of run_gemms: where the items of a product begin among those of all.
struct PlannedGemm {
  GemmPlan plan;
  int64_t groups = 0;  // items of a row chunk
  int64_t first_item = 0, first_pack_item = 0;
  int64_t rows_per_pack = 0;
};

// Rows of x that one expert multiplies: one for each token that chose it.
struct ExpertRows {
  int64_t expert = 0;
  int64_t begin = 0, end = 0;
};

// The rows of an expert_mlp call, sorted by expert. Kept, so that a step allocates nothing.
struct ExpertOrder {
  std::vector<ExpertRows> experts;    // those that have rows, rising
  std::vector<int64_t> ends;          // [num_experts] of rows of all experts up to this one
  std::vector<int32_t> row_tokens;    // [num_rows]
  std::vector<float> row_weights;     // [num_rows]
  std::vector<int32_t> token_rows;    // [num_tokens, num_experts_per_tok] its rows, rising
  std::vector<int32_t> token_counts;  // [num_tokens] how many of them there are
};

// Up to 16 keys of attention_latent_expanded that lie in one block of the latent cache.
struct LatentRun {
  const char* vectors;  // of the first key
  const float* scales;  // of kI8
  int64_t num_keys = 0;
  int64_t block = 0, key_in_block = 0;  // where the expanded keys and values lie
};

struct CpuContext {
  CpuContext(const Isa& chosen_isa, int num_threads, std::vector<ThreadHome> homes)
      : isa(chosen_isa),
        kernels(chosen_isa.kernels()),
        pool(num_threads, std::move(homes)),
        thread_scratch(static_cast<size_t>(num_threads)) {}

  char* scratch_of(int thread_idx) const { return thread_scratch[static_cast<size_t>(thread_idx)].data(); }
  void reserve_thread_scratch(int64_t bytes) {
    for (Scratch& scratch : thread_scratch) scratch.reserve(bytes);
  }

  const Isa& isa;
  const KernelTable& kernels;
  ThreadPool pool;
  std::vector<Scratch> thread_scratch;  // one a thread
  Scratch shared_scratch;               // of the op that runs
  Scratch gate_up_scratch;              // of linear_silu_and_mul when it cannot fuse
  Scratch expert_scratch;               // rows of experts
  ExpertOrder expert_order;
  std::vector<GemmParams> expert_gemms;
  std::vector<PlannedGemm> planned_gemms;  // of run_gemms
  Scratch expanded_scratch;                // of attention_latent_expanded
  std::vector<LatentRun> latent_runs;      // of attention_latent_expanded
};

CpuContext& context_of(Stream& stream);

inline Elem elem_of(DType dtype) { return dtype == DType::kF32 ? Elem::kF32 : dtype == DType::kI8 ? Elem::kI8 : Elem::kBf16; }
inline Elem elem_of(Codes codes) { return codes == Codes::kF32 ? Elem::kF32 : Elem::kBf16; }

// Byte address of an element offset.
inline char* address(const Tensor& tensor, int64_t element_offset) {
  return static_cast<char*>(tensor.raw()) + element_offset * dtype_bytes(tensor.dtype());
}

// Runs fn(begin, end) over rows [0, num_rows): on the caller's thread when all rows together are less than about 5 us of work, else in
// chunks of that size.
template <typename Fn>
void for_row_ranges(CpuContext& context, int64_t num_rows, int64_t elements_per_row, const Fn& fn) {
  constexpr int64_t kElementsPerItem = 8192;
  const int64_t chunk = std::max<int64_t>(1, kElementsPerItem / std::max<int64_t>(1, elements_per_row));
  context.pool.parallel_for(ceil_div(num_rows, chunk),
                            [&](int, int64_t item) { fn(item * chunk, std::min(num_rows, (item + 1) * chunk)); });
}

// The same for fn(row).
template <typename Fn>
void for_rows(CpuContext& context, int64_t num_rows, int64_t elements_per_row, const Fn& fn) {
  for_row_ranges(context, num_rows, elements_per_row, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) fn(row);
  });
}

KvLayout kv_layout_of(const KvLayerDesc& desc);
OpTable cpu_ops();

// pack_weight.cpp: rows of numbers, which are quantised, or of codes into an integer weight.
IntLayout int_layout_of(const WeightDesc& desc);  // of a float weight: CodeType::kNone
void pack_int_rows(CpuContext& context, PackedWeight& weight, RowPlace place, const Tensor& rows);
void pack_int_rows(CpuContext& context, PackedWeight& weight, RowPlace place, const QuantizedRows& rows);

// linear_op.cpp
void embedding(Stream& stream, const EmbeddingParams& p);
void linear(Stream& stream, const LinearParams& p);
void linear_silu_and_mul(Stream& stream, const LinearSiluAndMulParams& p);
// Several products side by side, divided among all threads together. A product is over before the call returns.
void run_gemms(CpuContext& context, std::span<GemmParams> gemms);
// x [num_tokens, in_features] by matrix matrix_idx, without a bias.
GemmParams gemm_of_rows(const Tensor& x, const PackedWeight& weight, int64_t matrix_idx, const Tensor& out);
// expert_op.cpp
void route_experts(Stream& stream, const RouteExpertsParams& p);
void expert_mlp(Stream& stream, const ExpertMlpParams& p);
// latent_op.cpp
void latent_write(Stream& stream, const LatentWriteParams& p);
void attention_latent(Stream& stream, const AttentionLatentParams& p);
void linear_heads(Stream& stream, const LinearHeadsParams& p);
// latent_expanded_op.cpp
void attention_latent_expanded(Stream& stream, const AttentionLatentExpandedParams& p);
// Of attention_latent_expanded; 0: it does not take this shape.
int min_expanded_query_len(const CpuContext& context, const LatentShape& shape);
int64_t expanded_scratch_bytes(const CpuContext& context, const OpLimits& limits);  // what attention_latent_expanded takes
// elementwise_op.cpp
void rms_norm(Stream& stream, const RmsNormParams& p);
void add(Stream& stream, const AddParams& p);
void silu_and_mul(Stream& stream, const SiluAndMulParams& p);
void rope(Stream& stream, const RopeParams& p);
void add_rms_norm(Stream& stream, const AddRmsNormParams& p);
// attention_op.cpp
void kv_write(Stream& stream, const KvWriteParams& p);
void attention_paged(Stream& stream, const AttentionPagedParams& p);
void qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p);
// attention_paged over keys and values that lie as `layout` says, whatever kv.desc is. Only group_size * num_kv_heads
// heads of q attend, from first_q_head on.
struct PagedHeads {
  KvLayout layout;
  int64_t first_q_head = 0, group_size = 1;
};
void attend_paged(CpuContext& context, const AttentionPagedParams& p, const PagedHeads& heads);
// sample_op.cpp
void sample(Stream& stream, const SampleParams& p);
void logprobs(Stream& stream, const LogprobsParams& p);
int64_t row_scratch_bytes(int64_t vocab_size);  // that sample and logprobs take of each thread's scratch

}  // namespace spate::cpu
