// The paged cache and attention over it: divides attention into items of one kv head, a run of query tokens and a range
// of key spans.
#include <algorithm>
#include <cmath>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

constexpr int64_t kInlineAttentionKeys = 64;  // a step that reads fewer keys of all heads together is not worth a fork

constexpr int64_t kItemsPerThread =
    4;  // fewer cannot be shared out evenly: items of unequal cost, threads of unequal speed
constexpr int64_t kLeastAttentionRows = 32;    // an item of fewer rows wastes half of a pair of tiles
constexpr int64_t kMaxPartialBytes = 8 << 20;  // of the sums of spans that go to different threads
constexpr int64_t kMaxTokensPerItem = 16;      // that are written to the cache together

char* kv_head(const KvView& kv, const KvLayout& layout, int64_t block_id, int64_t head) {
  CHECK(block_id >= 0 && block_id < kv.num_blocks, "block {} of {}", block_id, kv.num_blocks);
  return static_cast<char*>(kv.data) + block_id * kv.block_bytes + head * layout.head_bytes;
}

// Items of tokens whose slots follow each other are cut where groups of 16 slots are.
int64_t tokens_before_first_group(const Tensor& slot_mapping) {
  const int64_t first = slot_mapping.dim(0) > 0 ? slot_mapping.data<int32_t>()[0] : 0;
  return first > 0 ? (kNBlock - first % kNBlock) % kNBlock : 0;
}

// Calls fn(first_token, count, slot) for tokens [begin, end): as many at a time as have slots in one group of 16 and in order,
// tokens without a slot (-1) alone.
template <typename Fn>
void for_slot_runs(const Tensor& slot_mapping, int64_t begin, int64_t end, const Fn& fn) {
  const int32_t* slots = slot_mapping.data<int32_t>();
  for (int64_t token = begin; token < end;) {
    const int64_t slot = slots[token], room = slot < 0 ? 1 : std::min(end - token, kNBlock - slot % kNBlock);
    int64_t count = 1;
    while (count < room && slots[token + count] == slot + count) ++count;
    fn(token, count, slot);
    token += count;
  }
}

// k or v of a run of tokens, at its first token and head.
struct HeadRows {
  const char* data;
  int64_t token_stride, head_stride;  // elements
};
HeadRows head_rows(const Tensor& x, int64_t token) { return {address(x, token * x.stride(0)), x.stride(0), x.stride(1)}; }

// The tokens of one run, as kernels take them.
struct SlotRun {
  const KvView& kv;
  const KvLayout& layout;
  DType act;
  int64_t slot, count;

  KvWriteRun head(int64_t h, const HeadRows& k, const HeadRows& v) const {
    return {.k = k.data + h * k.head_stride * dtype_bytes(act),
            .v = v.data + h * v.head_stride * dtype_bytes(act),
            .k_token_stride = k.token_stride,
            .v_token_stride = v.token_stride,
            .act = elem_of(act),
            .layout = layout,
            .head = kv_head(kv, layout, slot / layout.kv_block_size, h),
            .token_in_block = slot % layout.kv_block_size,
            .num_tokens = count};
  }
  void write(const KernelTable& kernels, const HeadRows& k, const HeadRows& v) const {
    for (int64_t h = 0; h < layout.num_kv_heads; ++h) kernels.kv_write_head(head(h, k, v));
  }
};

// Runs fn(thread_idx, begin, end) over the tokens: where there are many, groups of slots stay together if tokens are in order.
template <typename Fn>
void for_token_items(CpuContext& context, const Tensor& slot_mapping, const Fn& fn) {
  const int64_t num_tokens = slot_mapping.dim(0);
  int64_t per_item = kMaxTokensPerItem;
  while (per_item > 1 && num_tokens < 2 * per_item * context.pool.num_threads()) per_item /= 2;
  const int64_t head =
      per_item == kMaxTokensPerItem ? std::min(num_tokens, tokens_before_first_group(slot_mapping)) : 0;
  const int64_t first_item = head > 0 ? 1 : 0;
  context.pool.parallel_for(first_item + ceil_div(num_tokens - head, per_item), [&](int thread_idx, int64_t item) {
    if (item < first_item) return fn(thread_idx, int64_t{0}, head);
    const int64_t begin = head + (item - first_item) * per_item;
    fn(thread_idx, begin, std::min(num_tokens, begin + per_item));
  });
}

// A run of a sequence's query tokens over some spans of its keys; each kv head makes one item of it.
struct QueryRun {
  int32_t seq, first_query, num_queries;
  int32_t first_span, end_span;
  int32_t first_part;  // number of its first span among the parts of all runs
  bool is_part;        // one of several spans
};

// One attention call: what is divided, and how.
class PagedAttention {
 public:
  PagedAttention(CpuContext& context, const AttentionPagedParams& p, const PagedHeads& heads)
      : context_(context),
        kernels_(context.kernels),
        p_(p),
        layout_(heads.layout),
        first_q_head_(heads.first_q_head),
        group_size_(heads.group_size),
        num_heads_(layout_.num_kv_heads) {}

  void run() {
    divide();
    list_runs();
    context_.reserve_thread_scratch(kernels_.attention_scratch_bytes(max_rows_, layout_.head_dim));
    const int64_t num_items = num_parts() * num_heads_;
    for_items(num_items, [&](int thread_idx, int64_t item) {
      AttentionItem attention = numbered_item(item);
      if (item + 1 < num_items) announce_next(numbered_item(item + 1), attention);
      kernels_.attention(attention, context_.scratch_of(thread_idx));
    });
    if (!split_) return;
    for_items(num_runs_ * num_heads_, [&](int thread_idx, int64_t item) {
      const QueryRun& run = runs_[item % num_runs_];
      const int64_t head = item / num_runs_, num_spans = run.end_span - run.first_span;
      if (num_spans == 1) return;
      kernels_.merge_attention(item_of(run, head), partial(run.first_part, head), num_spans,
                               num_heads_ * partial_floats(), context_.scratch_of(thread_idx));
    });
  }

 private:
  int64_t num_parts() const { return split_ ? num_parts_ : num_runs_; }
  int64_t query_len(int64_t seq) const {
    return p_.cu_seqlens_q.data<int32_t>()[seq + 1] - p_.cu_seqlens_q.data<int32_t>()[seq];
  }
  int64_t partial_floats() const { return max_rows_ * attention_partial_floats(layout_.value_dim); }
  float* partial(int64_t part, int64_t head) const { return partials_ + (part * num_heads_ + head) * partial_floats(); }

  // Calls fn(run) for the runs of queries_per_run_ tokens. Of a sequence the last ones come first: they have the most
  // keys.
  template <typename Fn>
  void for_runs(const Fn& fn) const {
    for (int64_t s = 0; s < p_.seq_rows.dim(0); ++s) {
      const int64_t len = query_len(s), seq_len = p_.seq_lens.data<int32_t>()[s];
      if (seq_len == 0) continue;
      for (int64_t first = ceil_div(len, queries_per_run_) * queries_per_run_; (first -= queries_per_run_) >= 0;) {
        const int64_t count = std::min(queries_per_run_, len - first), position = seq_len - len + first;
        const int64_t first_key = p_.window > 0 ? std::max<int64_t>(0, position - p_.window + 1) : 0;
        fn(QueryRun{.seq = static_cast<int32_t>(s),
                    .first_query = static_cast<int32_t>(first),
                    .num_queries = static_cast<int32_t>(count),
                    .first_span = static_cast<int32_t>(first_key / kKvSpan),
                    .end_span = static_cast<int32_t>((position + count - 1) / kKvSpan + 1),
                    .first_part = 0,
                    .is_part = false});
      }
    }
  }

  void count_runs() {
    num_runs_ = num_parts_ = max_rows_ = 0;
    for_runs([&](const QueryRun& run) {
      ++num_runs_;
      num_parts_ += run.end_span - run.first_span;
      max_rows_ = std::max(max_rows_, run.num_queries * group_size_);
    });
  }

  void divide() {
    for (int64_t s = 0; s < p_.seq_rows.dim(0); ++s) num_keys_ += p_.seq_lens.data<int32_t>()[s];
    const int64_t wanted = kItemsPerThread * context_.pool.num_threads();
    queries_per_run_ = std::max<int64_t>(1, kernels_.max_attention_rows / group_size_);
    count_runs();
    while (num_runs_ * num_heads_ < wanted && max_rows_ > kLeastAttentionRows && queries_per_run_ > 1) {
      queries_per_run_ /= 2;
      count_runs();
    }
    const int64_t bytes = num_parts_ * num_heads_ * partial_floats() * 4;
    split_ = num_runs_ * num_heads_ < wanted && num_parts_ > num_runs_ && bytes <= kMaxPartialBytes;
  }

  void list_runs() {
    const int64_t run_bytes = round_up((num_runs_ + num_parts_) * static_cast<int64_t>(sizeof(QueryRun)), 64);
    const int64_t partial_bytes = split_ ? num_parts_ * num_heads_ * partial_floats() * 4 : 0;
    char* scratch = context_.shared_scratch.reserve(std::max<int64_t>(64, run_bytes + partial_bytes));
    runs_ = reinterpret_cast<QueryRun*>(scratch);
    parts_ = runs_ + num_runs_;
    partials_ = reinterpret_cast<float*>(scratch + run_bytes);
    int32_t num_runs = 0, num_parts = 0;
    for_runs([&](QueryRun run) {
      run.first_part = num_parts;
      runs_[num_runs++] = run;
      for (int32_t span = run.first_span; span < run.end_span; ++span) {
        parts_[num_parts] = run;
        parts_[num_parts].is_part = run.end_span - run.first_span > 1;
        parts_[num_parts].first_span = span;
        parts_[num_parts++].end_span = span + 1;
      }
    });
    if (!split_) parts_ = runs_;
  }

  AttentionItem item_of(const QueryRun& run, int64_t head) const {
    const int64_t token = p_.cu_seqlens_q.data<int32_t>()[run.seq] + run.first_query,
                  seq_len = p_.seq_lens.data<int32_t>()[run.seq], q_head = first_q_head_ + head * group_size_;
    return {
        .q = address(p_.q, token * p_.q.stride(0) + q_head * p_.q.stride(1)),
        .q_token_stride = p_.q.stride(0),
        .q_head_stride = p_.q.stride(1),
        .out = address(p_.out, token * p_.out.stride(0) + q_head * p_.out.stride(1)),
        .out_token_stride = p_.out.stride(0),
        .out_head_stride = p_.out.stride(1),
        .act = elem_of(p_.q.dtype()),
        .num_queries = run.num_queries,
        .group_size = group_size_,
        .first_position = seq_len - query_len(run.seq) + run.first_query,
        .seq_len = seq_len,
        .window = p_.window,
        .scale_log2e = p_.softmax_scale * static_cast<float>(M_LOG2E),
        .block_table = p_.block_table.data<int32_t>() + p_.seq_rows.data<int32_t>()[run.seq] * p_.block_table.stride(0),
        .kv = static_cast<const char*>(p_.kv.data) + head * layout_.head_bytes,
        .block_bytes = p_.kv.block_bytes,
        .layout = layout_,
        .first_span = run.first_span,
        .end_span = run.end_span,
        .partial = nullptr,
        .next_q = nullptr,
        .next_queries = 0,
        .next_kv = nullptr,
        .next_block_table = nullptr,
        .next_position = 0,
        .next_end = 0};
  }
  // Runs of one sequence go head by head, so that a thread's runs find the head's keys in its cache. Where each sequence
  // is one run, nothing is shared: its heads follow each other, as they do in a block, which memory likes better (5 %).
  AttentionItem numbered_item(int64_t item) const {
    if (num_runs_ > p_.seq_rows.dim(0)) return part_item(item % num_parts(), item / num_parts());
    return part_item(item / num_heads_, item % num_heads_);
  }
  AttentionItem part_item(int64_t part, int64_t head) const {
    AttentionItem item = item_of(parts_[part], head);
    if (parts_[part].is_part) item.partial = partial(part, head);
    return item;
  }

  static void announce_next(const AttentionItem& next, AttentionItem& item) {
    const int64_t first_key = next.window > 0 ? std::max<int64_t>(0, next.first_position - next.window + 1) : 0;
    item.next_q = next.q;
    item.next_queries = next.num_queries;
    item.next_kv = next.kv;
    item.next_block_table = next.block_table;
    item.next_position = std::max(first_key / kKvTile * kKvTile, next.first_span * kKvSpan);
    item.next_end = next.first_position + next.num_queries;
  }

  template <typename Fn>
  void for_items(int64_t num_items, const Fn& fn) {
    if (num_keys_ * num_heads_ <= kInlineAttentionKeys) {
      for (int64_t item = 0; item < num_items; ++item) fn(0, item);
    } else {
      context_.pool.parallel_for(num_items, fn);
    }
  }

  CpuContext& context_;
  const KernelTable& kernels_;
  const AttentionPagedParams& p_;
  KvLayout layout_;
  int64_t first_q_head_, group_size_, num_heads_;  // kv heads
  int64_t queries_per_run_ = 1, num_keys_ = 0;
  int64_t num_runs_ = 0, num_parts_ = 0, max_rows_ = 0;
  bool split_ = false;         // the spans of a run are items of their own, because runs are too few for the threads
  QueryRun* runs_ = nullptr;   // [num_runs_]
  QueryRun* parts_ = nullptr;  // [num_parts()]: runs_, or each of their spans
  float* partials_ = nullptr;
};

}  // namespace

void kv_write(Stream& stream, const KvWriteParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KvLayout layout = kv_layout_of(p.kv.desc);
  for_token_items(context, p.slot_mapping, [&](int, int64_t begin, int64_t end) {
    for_slot_runs(p.slot_mapping, begin, end, [&](int64_t token, int64_t count, int64_t slot) {
      if (slot < 0) return;
      SlotRun{p.kv, layout, p.k.dtype(), slot, count}.write(context.kernels, head_rows(p.k, token), head_rows(p.v, token));
    });
  });
}

// A run's keys are turned into scratch memory that stays in L1, [kv head][token][head_dim], and go to the cache from there. The cache's lines
// are asked for meanwhile, some before each token.
void qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KernelTable& kernels = context.kernels;
  const KvLayout layout = kv_layout_of(p.kv.desc);
  const DType act = p.q.dtype();
  const int64_t head_dim = layout.head_dim, num_kv_heads = layout.num_kv_heads;
  context.reserve_thread_scratch(num_kv_heads * kNBlock * head_dim * dtype_bytes(act));
  const auto norm_and_rope = [&](const Tensor& x, const Tensor& weight, int64_t token, char* out, int64_t out_head_stride) {
    const int64_t position = p.positions.data<int32_t>()[token];
    CHECK(position >= 0 && position < p.cos_sin.dim(0), "rope: position {} of {}", position, p.cos_sin.dim(0));
    kernels.norm_rope_heads({.x = address(x, token * x.stride(0)),
                             .out = out,
                             .head_stride = x.stride(1),
                             .out_head_stride = out_head_stride,
                             .num_heads = x.dim(1),
                             .head_dim = x.dim(2),
                             .weight = weight.defined() ? weight.raw() : nullptr,
                             .eps = p.eps,
                             .cos_sin = p.cos_sin.data<float>() + position * p.cos_sin.stride(0),
                             .rotary_dim = p.cos_sin.dim(1),
                             .interleaved = p.interleaved},
                            elem_of(act));
  };
  for_token_items(context, p.slot_mapping, [&](int thread_idx, int64_t begin, int64_t end) {
    char* keys = context.scratch_of(thread_idx);
    const HeadRows k{keys, head_dim, kNBlock * head_dim};
    for_slot_runs(p.slot_mapping, begin, end, [&](int64_t first_token, int64_t count, int64_t slot) {
      const SlotRun run{p.kv, layout, act, slot, count};
      const HeadRows v = head_rows(p.v, first_token);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t token = first_token + i;
        for (int64_t h = num_kv_heads * i / count; slot >= 0 && h < num_kv_heads * (i + 1) / count; ++h) {
          kernels.kv_prefetch_head(run.head(h, k, v));
        }
        norm_and_rope(p.q, p.q_norm, token, address(p.q, token * p.q.stride(0)), p.q.stride(1));
        norm_and_rope(p.k, p.k_norm, token, keys + i * head_dim * dtype_bytes(act), k.head_stride);
      }
      if (slot >= 0) run.write(kernels, k, v);
    });
  });
}

void attention_paged(Stream& stream, const AttentionPagedParams& p) {
  check_params(p);
  CHECK(p.kv.desc.head_dim <= kAttentionMaxHeadDim, "attention_paged: head_dim {} is above {}", p.kv.desc.head_dim,
        kAttentionMaxHeadDim);
  CHECK(p.softmax_scale > 0, "attention_paged: softmax_scale {}", p.softmax_scale);
  const KvLayout layout = kv_layout_of(p.kv.desc);
  attend_paged(context_of(stream), p, {.layout = layout, .group_size = p.q.dim(1) / layout.num_kv_heads});
}

void attend_paged(CpuContext& context, const AttentionPagedParams& p, const PagedHeads& heads) {
  PagedAttention(context, p, heads).run();
}

}  // namespace spate::cpu
