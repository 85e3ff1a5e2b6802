// Experts: which ones a token goes to, and what they give.
//
// expert_mlp sorts the pairs of token and expert by expert; then the rows of an expert are two plain products, and
// those of several experts run side by side, so that few rows of each still keep all threads busy. Experts are taken in
// chunks of kMaxRows rows, which bounds the scratch; an expert is never cut, so each is read once a call.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

// With a hidden size of 4,096 and an intermediate one of 1,024 a row takes 28 KB: 28 MB, and less than a third of
// them in the caches of the products. Fewer rows leave experts of a prefill without company.
constexpr int64_t kMaxRows = 1024;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A NaN before all other numbers.
float order_key(float choice) { return std::isnan(choice) ? kInfinity : choice; }

// The k largest of values[0 .. n), by falling value, of equal ones the smaller index first. -inf counts as absent while
// there is another.
void find_largest(const float* values, int64_t n, int64_t k, int32_t* ids) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float key = order_key(values[i]);
    if (found == k && !(key > order_key(values[ids[k - 1]]))) continue;
    int64_t at = found < k ? found++ : k - 1;
    for (; at > 0 && key > order_key(values[ids[at - 1]]); --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(i);
  }
}

void make_scores(ExpertScores kind, const float* logits, int64_t n, float* scores) {
  if (kind == ExpertScores::kSigmoid) {
    for (int64_t e = 0; e < n; ++e) scores[e] = 1 / (1 + std::exp(-logits[e]));
    return;
  }
  float largest = logits[0], sum = 0;
  for (int64_t e = 1; e < n; ++e) largest = std::max(largest, logits[e]);
  for (int64_t e = 0; e < n; ++e) sum += scores[e] = std::exp(logits[e] - largest);
  for (int64_t e = 0; e < n; ++e) scores[e] /= sum;
}

// Takes the experts of all but the best groups out of the choice. group_scores, group_ids: [num_groups].
void keep_best_groups(const ExpertRouting& routing, int64_t num_experts, float* choice, float* group_scores,
                      int32_t* group_ids) {
  const int64_t size = num_experts / routing.num_groups;
  const bool sums_two = routing.group_scores == GroupScores::kTop2Sum;
  for (int64_t g = 0; g < routing.num_groups; ++g) {
    int32_t largest[2];
    const float* group = choice + g * size;
    find_largest(group, size, sums_two ? 2 : 1, largest);
    group_scores[g] = sums_two ? group[largest[0]] + group[largest[1]] : group[largest[0]];
  }
  find_largest(group_scores, routing.num_groups, routing.num_groups, group_ids);
  for (int64_t i = routing.num_chosen_groups; i < routing.num_groups; ++i) {
    std::fill_n(choice + group_ids[i] * size, size, -kInfinity);
  }
}

// Of one token. memory: 4 arrays of num_experts words.
void route_token(const RouteExpertsParams& p, int64_t token, char* memory) {
  const ExpertRouting& routing = p.routing;
  const int64_t n = p.logits.dim(1), k = p.expert_ids.dim(1);
  const float* logits = p.logits.data<float>() + token * p.logits.stride(0);
  int32_t* ids = p.expert_ids.data<int32_t>() + token * p.expert_ids.stride(0);
  float* weights = p.expert_weights.data<float>() + token * p.expert_weights.stride(0);
  auto* scores = reinterpret_cast<float*>(memory);
  float *choice = scores + n, *group_scores = choice + n;
  make_scores(routing.scores, logits, n, scores);
  for (int64_t e = 0; e < n; ++e) choice[e] = p.bias.defined() ? scores[e] + p.bias.data<float>()[e] : scores[e];
  if (routing.num_chosen_groups < routing.num_groups) {
    keep_best_groups(routing, n, choice, group_scores, reinterpret_cast<int32_t*>(group_scores + n));
  }
  find_largest(choice, n, k, ids);
  float sum = 0, factor = routing.scale;
  for (int64_t i = 0; i < k; ++i) sum += scores[ids[i]];
  if (routing.normalises) factor /= sum < routing.min_sum ? routing.min_sum : sum;
  for (int64_t i = 0; i < k; ++i) weights[i] = scores[ids[i]] * factor;
}

}  // namespace

void route_experts(Stream& stream, const RouteExpertsParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const int64_t num_tokens = p.logits.dim(0), num_experts = p.logits.dim(1);
  constexpr int64_t kTokensPerItem = 16;  // some 20 us with 128 experts
  context.reserve_thread_scratch(4 * num_experts * 4);
  context.pool.parallel_for(ceil_div(num_tokens, kTokensPerItem), [&](int thread_idx, int64_t item) {
    const int64_t end = std::min(num_tokens, (item + 1) * kTokensPerItem);
    for (int64_t t = item * kTokensPerItem; t < end; ++t) route_token(p, t, context.scratch_of(thread_idx));
  });
}

namespace {

void sort_by_expert(const ExpertMlpParams& p, ExpertOrder& order) {
  const int64_t num_tokens = p.x.dim(0), k = p.expert_ids.dim(1), num_experts = p.gate_up->desc().num_matrices;
  const auto id_of = [&](int64_t t, int64_t i) -> int64_t {
    return p.expert_ids.data<int32_t>()[t * p.expert_ids.stride(0) + i];
  };
  const auto is_here = [&](int64_t id) { return id >= 0 && id < num_experts; };
  order.ends.assign(static_cast<size_t>(num_experts), 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t i = 0; i < k; ++i) {
      if (is_here(id_of(t, i))) ++order.ends[static_cast<size_t>(id_of(t, i))];
    }
  }
  order.experts.clear();
  int64_t num_rows = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    int64_t& next = order.ends[static_cast<size_t>(e)];  // where the next row goes; its end when all are in
    const int64_t count = next;
    next = num_rows;
    if (count > 0) order.experts.push_back({e, num_rows, num_rows + count});
    num_rows += count;
  }
  order.row_tokens.resize(static_cast<size_t>(num_rows));
  order.row_weights.resize(static_cast<size_t>(num_rows));
  order.token_rows.resize(static_cast<size_t>(num_tokens * k));
  order.token_counts.resize(static_cast<size_t>(num_tokens));
  for (int64_t t = 0; t < num_tokens; ++t) {
    int32_t* rows = order.token_rows.data() + t * k;
    int32_t count = 0;
    for (int64_t i = 0; i < k; ++i) {
      if (!is_here(id_of(t, i))) continue;
      const auto row = static_cast<size_t>(order.ends[static_cast<size_t>(id_of(t, i))]++);
      order.row_tokens[row] = static_cast<int32_t>(t);
      order.row_weights[row] = p.expert_weights.data<float>()[t * p.expert_weights.stride(0) + i];
      rows[count++] = static_cast<int32_t>(row);
    }
    std::sort(rows, rows + count);
    order.token_counts[static_cast<size_t>(t)] = count;
  }
}

// Memory of the rows of a chunk.
struct ChunkMemory {
  Tensor x;        // [rows, hidden_size] act, with several tokens: the row of x of each
  Tensor gate_up;  // [rows, 2 * intermediate_size] act, where silu is no part of the product
  Tensor act;      // [rows, intermediate_size] act
  Tensor y;        // [rows, hidden_size] f32
  float* sums;     // [num_tokens, hidden_size], with several chunks
};

// One after the other in the scratch. Without memory it only counts.
struct ScratchLayout {
  char* base = nullptr;
  int64_t bytes = 0;

  void* take(int64_t num_bytes) {
    void* at = base == nullptr ? nullptr : base + bytes;
    bytes += round_up(num_bytes, 64);
    return at;
  }
  // Rows of an odd number of lines, as Device::activation_row_bytes() has them.
  Tensor take_rows(DType dtype, int64_t rows, int64_t columns) {
    const int64_t row_bytes = (ceil_div(columns * dtype_bytes(dtype), int64_t{64}) | 1) * 64;
    return Tensor(take(rows * row_bytes), dtype, {rows, row_bytes / dtype_bytes(dtype)}).columns(0, columns);
  }
};

bool fuses_silu(const ExpertMlpParams& p) { return p.down->desc().in_features % kNBlock == 0; }
bool copies_x(const ExpertMlpParams& p) { return p.x.dim(0) > 1; }

ChunkMemory lay_out(const ExpertMlpParams& p, int64_t rows, bool has_sums, ScratchLayout& scratch) {
  const int64_t width = p.down->desc().in_features, out_width = p.out.dim(1);
  ChunkMemory memory;
  if (copies_x(p)) memory.x = scratch.take_rows(p.x.dtype(), rows, p.x.dim(1));
  if (!fuses_silu(p)) memory.gate_up = scratch.take_rows(p.x.dtype(), rows, 2 * width);
  memory.act = scratch.take_rows(p.x.dtype(), rows, width);
  memory.y = Tensor(scratch.take(rows * out_width * 4), DType::kF32, {rows, out_width});
  memory.sums = has_sums ? static_cast<float*>(scratch.take(p.x.dim(0) * out_width * 4)) : nullptr;
  return memory;
}

void copy_x(CpuContext& context, const ExpertMlpParams& p, const int32_t* row_tokens, int64_t num_rows,
            const Tensor& copies) {
  const auto bytes = static_cast<size_t>(p.x.dim(1) * dtype_bytes(p.x.dtype()));
  for_rows(context, num_rows, p.x.dim(1), [&](int64_t i) {
    std::memcpy(address(copies, i * copies.stride(0)), address(p.x, row_tokens[i] * p.x.stride(0)), bytes);
  });
}

// y of the rows of some experts.
void multiply_chunk(CpuContext& context, const ExpertMlpParams& p, const ExpertOrder& order,
                    std::span<const ExpertRows> experts, const ChunkMemory& memory) {
  std::vector<GemmParams>& gemms = context.expert_gemms;
  const int64_t first = experts.front().begin, num_rows = experts.back().end - first;
  const int64_t width = p.down->desc().in_features;
  const bool fuses = fuses_silu(p);
  if (copies_x(p)) copy_x(context, p, order.row_tokens.data() + first, num_rows, memory.x);
  gemms.clear();
  for (const ExpertRows& rows : experts) {
    const int64_t begin = rows.begin - first, end = rows.end - first;
    const Tensor x = copies_x(p) ? memory.x.rows(begin, end) : p.x;
    gemms.push_back(gemm_of_rows(x, *p.gate_up, rows.expert, (fuses ? memory.act : memory.gate_up).rows(begin, end)));
    if (!fuses) continue;
    gemms.back().silu_and_mul = true;
    gemms.back().up_blocks = width / kNBlock;
  }
  run_gemms(context, gemms);
  if (!fuses) {
    const Tensor &gate_up = memory.gate_up, &act = memory.act;
    for_rows(context, num_rows, 2 * width, [&](int64_t i) {
      const int64_t gate = i * gate_up.stride(0);
      context.kernels.silu_and_mul_row(address(gate_up, gate), address(gate_up, gate + width),
                                       address(act, i * act.stride(0)), width, elem_of(act.dtype()));
    });
  }
  gemms.clear();
  for (const ExpertRows& rows : experts) {
    const int64_t begin = rows.begin - first, end = rows.end - first;
    gemms.push_back(gemm_of_rows(memory.act.rows(begin, end), *p.down, rows.expert, memory.y.rows(begin, end)));
  }
  run_gemms(context, gemms);
}

// Adds the rows [begin, end), whose products are y, to the sums of their tokens, or finishes these.
void combine_chunk(CpuContext& context, const ExpertMlpParams& p, const ExpertOrder& order, int64_t begin, int64_t end,
                   bool is_first, bool is_last, const ChunkMemory& memory) {
  const int64_t width = p.out.dim(1), k = p.expert_ids.dim(1);
  for_rows(context, p.x.dim(0), width * 2, [&](int64_t t) {
    const int32_t* rows = order.token_rows.data() + t * k;
    const int32_t* rows_end = rows + order.token_counts[static_cast<size_t>(t)];
    const int32_t* from = std::lower_bound(rows, rows_end, static_cast<int32_t>(begin));
    const int32_t* to = std::lower_bound(from, rows_end, static_cast<int32_t>(end));
    float* sums = memory.sums == nullptr ? nullptr : memory.sums + t * width;
    const bool has_shared = is_first && p.shared.defined();
    const float gate =
        has_shared && p.shared_gate.defined() ? p.shared_gate.data<float>()[t * p.shared_gate.stride(0)] : kInfinity;
    context.kernels.add_weighted_rows({.rows = memory.y.data<float>(),
                                       .first_row = begin,
                                       .weights = order.row_weights.data(),
                                       .row_ids = from,
                                       .num_rows = to - from,
                                       .sums = is_first ? nullptr : sums,
                                       .shared = has_shared ? address(p.shared, t * p.shared.stride(0)) : nullptr,
                                       .shared_factor = 1 / (1 + std::exp(-gate)),
                                       .out = is_last ? static_cast<void*>(address(p.out, t * p.out.stride(0))) : sums,
                                       .out_elem = is_last ? elem_of(p.out.dtype()) : Elem::kF32,
                                       .width = width},
                                      elem_of(p.x.dtype()));
  });
}

}  // namespace

void expert_mlp(Stream& stream, const ExpertMlpParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  if (p.x.dim(0) == 0) return;
  ExpertOrder& order = context.expert_order;
  sort_by_expert(p, order);
  const std::span<const ExpertRows> experts = order.experts;
  // The chunks end where another expert would go beyond kMaxRows.
  const auto chunk_end = [&](size_t i) {
    size_t end = i + 1;
    while (end < experts.size() && experts[end].end - experts[i].begin <= kMaxRows) ++end;
    return end;
  };
  int64_t most_rows = 0;
  size_t num_chunks = 0;
  for (size_t i = 0; i < experts.size(); i = chunk_end(i), ++num_chunks) {
    most_rows = std::max(most_rows, experts[chunk_end(i) - 1].end - experts[i].begin);
  }
  ScratchLayout counted;
  lay_out(p, most_rows, num_chunks > 1, counted);
  ScratchLayout scratch{.base = context.expert_scratch.reserve(counted.bytes)};
  const ChunkMemory memory = lay_out(p, most_rows, num_chunks > 1, scratch);
  if (experts.empty()) combine_chunk(context, p, order, 0, 0, true, true, memory);
  for (size_t i = 0; i < experts.size();) {
    const size_t end = chunk_end(i);
    multiply_chunk(context, p, order, experts.subspan(i, end - i), memory);
    combine_chunk(context, p, order, experts[i].begin, experts[end - 1].end, i == 0, end == experts.size(), memory);
    i = end;
  }
}

}  // namespace spate::cpu
