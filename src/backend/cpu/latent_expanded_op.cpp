// The expanded form of latent attention: keys and values of each head are products of the latent vectors, in the layout
// of a paged cache, and paged attention reads them there.
//
// A key's bits depend on its latent vector alone, and attention sums keys by their positions. So the output of a query
// does not depend on how its prompt was cut, on other sequences or on threads.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

constexpr int kMinQueryLenOfTiles = 64, kMinQueryLenOfVectors = 80;  // measured: docs/kernels/cpu.md
constexpr int64_t kMaxHeadsBytes = 64 << 20;     // of the keys and values that are made at once, if one head fits
constexpr int64_t kExpandedBlockKeys = kKvTile;  // in a block of them
constexpr int64_t kRunsAtOnce = 64;              // of 16 keys, whose products are made at once
constexpr int64_t kRowsAtOnce = kRunsAtOnce * kNBlock;

int min_query_len(const CpuContext& context, DType act_dtype) {
  return context.isa.name == "amx" && act_dtype == DType::kBf16 ? kMinQueryLenOfTiles : kMinQueryLenOfVectors;
}

class ExpandedAttention {
 public:
  ExpandedAttention(CpuContext& context, const AttentionLatentExpandedParams& p)
      : context_(context),
        p_(p),
        desc_(p.kv.desc),
        num_heads_(p.q.dim(1)),
        nope_dim_(p.qk_nope_head_dim()),
        head_dim_(p.q.dim(2)),
        rows_of_head_(nope_dim_ + p.v_head_dim()),
        elem_bytes_(dtype_bytes(p.q.dtype())) {}

  void run() {
    list_runs();
    if (context_.latent_runs.empty()) return;
    const int64_t heads = heads_at_once();
    take_scratch(heads);
    for (int64_t first = 0; first < num_heads_; first += heads) {
      layout_ = layout_of(std::min(heads, num_heads_ - first));
      const auto num_runs = static_cast<int64_t>(context_.latent_runs.size());
      for (int64_t run = 0; run < num_runs; run += kRunsAtOnce) expand(run, std::min(kRunsAtOnce, num_runs - run), first);
      attend(first);
    }
  }

 private:
  KvLayout layout_of(int64_t num_heads) const {
    return make_kv_layout(elem_of(p_.q.dtype()), num_heads, head_dim_, p_.v_head_dim(), kExpandedBlockKeys);
  }

  // The keys of all sequences that have queries, 16 at a time; each sequence begins with a block.
  void list_runs() {
    std::vector<LatentRun>& runs = context_.latent_runs;
    runs.clear();
    const int64_t token_bytes = latent_token_bytes(elem_of(desc_.dtype), desc_.latent_width()),
                  scales_offset = kv_layout_of(desc_).k_scales_offset;
    for (int64_t s = 0; s < p_.seq_rows.dim(0); ++s) {
      const int32_t* blocks = p_.block_table.data<int32_t>() + p_.seq_rows.data<int32_t>()[s] * p_.block_table.stride(0);
      for (int64_t position = 0; position < num_keys(s); position += kNBlock) {
        const int32_t id = blocks[position / desc_.kv_block_size];
        CHECK(id >= 0 && id < p_.kv.num_blocks, "block {} of {}", id, p_.kv.num_blocks);
        const char* block = static_cast<const char*>(p_.kv.data) + id * p_.kv.block_bytes;
        const int64_t token = position % desc_.kv_block_size;
        runs.push_back({.vectors = block + token * token_bytes,
                        .scales = reinterpret_cast<const float*>(block + scales_offset) + 2 * token,
                        .num_keys = std::min(kNBlock, num_keys(s) - position),
                        .block = num_blocks_ + position / kExpandedBlockKeys,
                        .key_in_block = position % kExpandedBlockKeys});
      }
      num_blocks_ += ceil_div(num_keys(s), kExpandedBlockKeys);
    }
  }
  int64_t num_keys(int64_t s) const {
    const int32_t* cu_seqlens = p_.cu_seqlens_q.data<int32_t>();
    return cu_seqlens[s + 1] > cu_seqlens[s] ? p_.seq_lens.data<int32_t>()[s] : 0;
  }

  // All heads in equal parts, each of which begins with an n-block of the weight.
  int64_t heads_at_once() const {
    const int64_t most = std::clamp<int64_t>(kMaxHeadsBytes / (num_blocks_ * layout_of(1).head_bytes), 1, num_heads_);
    const int64_t step = kNBlock / std::gcd(kNBlock, rows_of_head_);
    return std::min(num_heads_, round_up(ceil_div(num_heads_, ceil_div(num_heads_, most)), step));
  }

  void take_scratch(int64_t heads) {
    const auto row_bytes = [&](int64_t width) { return (ceil_div(width * elem_bytes_, int64_t{64}) | 1) * 64; };
    const int64_t latent_bytes = row_bytes(desc_.latent_width()), product_bytes = row_bytes(heads * rows_of_head_);
    const int64_t kv_bytes = num_blocks_ * kv_block_stride(layout_of(heads)), num_seqs = p_.seq_rows.dim(0);
    char* scratch = context_.expanded_scratch.reserve(kv_bytes + kRowsAtOnce * (latent_bytes + product_bytes) +
                                                      (num_blocks_ + num_seqs) * 4);
    kv_ = scratch;
    const auto rows_at = [&](char* data, int64_t bytes, int64_t width) {
      return Tensor(data, p_.q.dtype(), {kRowsAtOnce, bytes / elem_bytes_}).columns(0, width);
    };
    latents_ = rows_at(kv_ + kv_bytes, latent_bytes, desc_.latent_width());
    products_ = rows_at(kv_ + kv_bytes + kRowsAtOnce * latent_bytes, product_bytes, heads * rows_of_head_);
    int32_t* ids = reinterpret_cast<int32_t*>(kv_ + kv_bytes + kRowsAtOnce * (latent_bytes + product_bytes));
    std::iota(ids, ids + num_blocks_, 0);
    block_ids_ = Tensor(ids, DType::kI32, {num_blocks_, 1});
    first_blocks_ = Tensor(ids + num_blocks_, DType::kI32, {num_seqs});
    int64_t block = 0;
    for (int64_t s = 0; s < num_seqs; block += ceil_div(num_keys(s++), kExpandedBlockKeys)) {
      first_blocks_.data<int32_t>()[s] = static_cast<int32_t>(block);
    }
  }

  // The keys of some runs, for heads from first_head on.
  void expand(int64_t first_run, int64_t num_runs, int64_t first_head) {
    const std::span<const LatentRun> runs(context_.latent_runs.data() + first_run, static_cast<size_t>(num_runs));
    const int64_t num_heads = layout_.num_kv_heads, rank = desc_.kv_lora_rank;
    context_.pool.parallel_for(num_runs, [&](int, int64_t i) { read_vectors(runs[static_cast<size_t>(i)], i * kNBlock); });
    const Tensor products = products_.rows(0, num_runs * kNBlock).columns(0, num_heads * rows_of_head_);
    GemmParams gemm = gemm_of_rows(latents_.rows(0, num_runs * kNBlock).columns(0, rank), *p_.kv_up, 0, products);
    gemm.weight += first_head * rows_of_head_ / kNBlock * n_block_bytes(gemm.weight_elem, round_up(rank, kKStep));
    run_gemms(context_, {&gemm, 1});
    context_.reserve_thread_scratch(kNBlock * head_dim_ * elem_bytes_);
    context_.pool.parallel_for(num_runs * num_heads, [&](int thread_idx, int64_t i) {
      const int64_t run = i / num_heads;
      write_head(runs[static_cast<size_t>(run)], run * kNBlock, i % num_heads, context_.scratch_of(thread_idx));
    });
  }

  // To rows of latents_ from `row` on; zeros behind the last key.
  void read_vectors(const LatentRun& run, int64_t row) const {
    const int64_t token_bytes = latent_token_bytes(elem_of(desc_.dtype), desc_.latent_width());
    for (int64_t key = 0; key < kNBlock; ++key) {
      char* out = address(latents_, (row + key) * latents_.stride(0));
      if (key >= run.num_keys) {
        std::memset(out, 0, static_cast<size_t>(desc_.latent_width() * elem_bytes_));
        continue;
      }
      context_.kernels.latent_vector({.vector = run.vectors + key * token_bytes,
                                      .scales = run.scales + 2 * key,
                                      .elem = elem_of(desc_.dtype),
                                      .out = out,
                                      .act = elem_of(p_.q.dtype()),
                                      .rank = desc_.kv_lora_rank,
                                      .rope_dim = desc_.qk_rope_head_dim});
    }
  }

  // Keys and values of one head of a run. A key's rotated part is that of its latent vector.
  void write_head(const LatentRun& run, int64_t row, int64_t head, char* keys) const {
    const int64_t key_bytes = head_dim_ * elem_bytes_, nope_bytes = nope_dim_ * elem_bytes_;
    const auto product = [&](int64_t key) {
      return address(products_, (row + key) * products_.stride(0) + head * rows_of_head_);
    };
    for (int64_t key = 0; key < run.num_keys; ++key) {
      const char* rope = address(latents_, (row + key) * latents_.stride(0) + desc_.kv_lora_rank);
      std::memcpy(keys + key * key_bytes, product(key), static_cast<size_t>(nope_bytes));
      std::memcpy(keys + key * key_bytes + nope_bytes, rope, static_cast<size_t>(key_bytes - nope_bytes));
    }
    context_.kernels.kv_write_head({.k = keys,
                                    .v = product(0) + nope_bytes,
                                    .k_token_stride = head_dim_,
                                    .v_token_stride = products_.stride(0),
                                    .act = elem_of(p_.q.dtype()),
                                    .layout = layout_,
                                    .head = kv_ + run.block * kv_block_stride(layout_) + head * layout_.head_bytes,
                                    .token_in_block = run.key_in_block,
                                    .num_tokens = run.num_keys});
  }

  void attend(int64_t first_head) const {
    const KvView kv{.desc = {}, .data = kv_, .block_bytes = kv_block_stride(layout_), .num_blocks = num_blocks_};
    attend_paged(context_,
                 {.q = p_.q,
                  .kv = kv,
                  .block_table = block_ids_,
                  .seq_rows = first_blocks_,  // a row of block_ids_ is one block: a sequence's begins at its first
                  .cu_seqlens_q = p_.cu_seqlens_q,
                  .seq_lens = p_.seq_lens,
                  .softmax_scale = p_.softmax_scale,
                  .out = p_.out},
                 {.layout = layout_, .first_q_head = first_head});
  }

  CpuContext& context_;
  const AttentionLatentExpandedParams& p_;
  const KvLayerDesc& desc_;
  const int64_t num_heads_, nope_dim_, head_dim_, rows_of_head_, elem_bytes_;
  int64_t num_blocks_ = 0;  // of expanded keys
  KvLayout layout_;         // of the heads that are made at once
  char* kv_ = nullptr;      // [num_blocks_] blocks of layout_
  Tensor latents_;          // [kRunsAtOnce * 16, latent_width]
  Tensor products_;         // [kRunsAtOnce * 16, heads * rows_of_head_]
  Tensor block_ids_;        // [num_blocks_, 1]: 0, 1, 2, ...
  Tensor first_blocks_;     // [num_seqs]
};

}  // namespace

void attention_latent_expanded(Stream& stream, const AttentionLatentExpandedParams& p) {
  check_params(p);
  const LatentShape shape{.kv_lora_rank = p.kv.desc.kv_lora_rank,
                          .qk_nope_head_dim = p.qk_nope_head_dim(),
                          .qk_rope_head_dim = p.kv.desc.qk_rope_head_dim,
                          .v_head_dim = p.v_head_dim(),
                          .act_dtype = p.q.dtype()};
  CHECK(min_expanded_query_len(context_of(stream), shape) > 0, "attention_latent_expanded: heads of {} + {} and {}",
        shape.qk_nope_head_dim, shape.qk_rope_head_dim, shape.v_head_dim);
  CHECK(p.softmax_scale > 0, "attention_latent_expanded: softmax_scale {}", p.softmax_scale);
  ExpandedAttention(context_of(stream), p).run();
}

int min_expanded_query_len(const CpuContext& context, const LatentShape& shape) {
  const int64_t head_dim = shape.qk_nope_head_dim + shape.qk_rope_head_dim;
  const bool fits = head_dim <= kAttentionMaxHeadDim && shape.v_head_dim <= head_dim;
  return fits ? min_query_len(context, shape.act_dtype) : 0;
}

int64_t expanded_scratch_bytes(const CpuContext& context, const OpLimits& limits) {
  const LatentShape& shape = limits.latent;
  const int64_t bytes = dtype_bytes(shape.act_dtype), value_dim = shape.v_head_dim;
  const KvLayout head = make_kv_layout(elem_of(shape.act_dtype), 1, shape.qk_nope_head_dim + shape.qk_rope_head_dim,
                                       value_dim, kExpandedBlockKeys);
  // Sequences of the fewest keys fill a part of a block each.
  const int64_t head_bytes = ceil_div(limits.max_long_keys, min_query_len(context, shape.act_dtype)) * head.head_bytes;
  const int64_t row_elements = shape.kv_lora_rank + shape.qk_rope_head_dim +
                               limits.num_latent_heads * (shape.qk_nope_head_dim + value_dim) + 2 * 64;
  return std::min(limits.num_latent_heads * head_bytes, std::max(kMaxHeadsBytes, head_bytes)) +
         kRowsAtOnce * row_elements * bytes;
}

}  // namespace spate::cpu
