// Products with packed weights: divides a GEMM into items of rows times n-blocks.
#include <algorithm>
#include <cstring>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

constexpr int64_t kInlinePackElements = 32 * 1024;  // x up to this size is packed by the calling thread
constexpr int64_t kInlineWeightBytes = 32 * 1024;   // a product this small is not worth a fork
constexpr int64_t kFewRows = 16;                    // limited by the memory that weights come from

void run_gemm(CpuContext& context, GemmParams p) {
  if (p.m == 0) return;
  const KernelTable& kernels = context.kernels;
  const GemmPlan plan = kernels.gemm_plan(p, context.pool.num_threads());
  const int64_t row_chunks = ceil_div(p.m, plan.rows_per_chunk), n_blocks = ceil_div(p.n, kNBlock);
  const int64_t groups = ceil_div(n_blocks, plan.n_blocks_per_group);
  if (plan.packed_x_bytes > 0) {
    p.packed_x = context.shared_scratch.reserve(plan.packed_x_bytes);
    const int64_t rows = p.m * p.k <= kInlinePackElements ? p.m : kernels.pack_rows;
    context.pool.parallel_for(ceil_div(p.m, rows), [&](int, int64_t item) {
      kernels.pack_x(p, item * rows, std::min(rows, p.m - item * rows));
    });
  }
  context.reserve_thread_scratch(plan.scratch_bytes);
  const auto run_item = [&](int thread_idx, int64_t item) {
    const int64_t first_row = item / groups * plan.rows_per_chunk, first_n_block = item % groups * plan.n_blocks_per_group;
    kernels.gemm(p, plan, first_row, std::min(plan.rows_per_chunk, p.m - first_row), first_n_block,
                 std::min(plan.n_blocks_per_group, n_blocks - first_n_block), context.scratch_of(thread_idx));
  };
  const int64_t num_items = row_chunks * groups;
  if (p.m * p.n * p.k * 2 <= kInlineWeightBytes) {
    for (int64_t item = 0; item < num_items; ++item) run_item(0, item);
  } else {
    context.pool.parallel_for(num_items, run_item);
  }
}

// Of linear and linear_silu_and_mul.
template <typename Params>
GemmParams gemm_params(const Params& p) {
  GemmParams gemm = gemm_of_rows(p.x, *p.weight, p.matrix_idx, p.out);
  if (p.bias.defined()) gemm.bias = p.bias.raw();
  return gemm;
}

}  // namespace

GemmParams gemm_of_rows(const Tensor& x, const PackedWeight& weight, int64_t matrix_idx, const Tensor& out) {
  const WeightSpec& spec = weight.desc().spec;
  return {.x = x.raw(),
          .x_elem = elem_of(x.dtype()),
          .x_stride = x.stride(0),
          .m = x.dim(0),
          .n = out.dim(1),
          .k = x.dim(1),
          .weight = weight.matrix(matrix_idx),
          .weight_elem = spec.has_integer_codes() ? elem_of(x.dtype()) : elem_of(spec.codes),
          .weight_ints = int_layout_of(weight.desc()),
          .quantizes_x = spec.quantizes_activations(),
          .bias = nullptr,
          .out = out.raw(),
          .out_elem = elem_of(out.dtype()),
          .out_stride = out.stride(0),
          .silu_and_mul = false,
          .up_blocks = 0,
          .packed_x = nullptr};
}

// Each product is planned for its share of the threads: with many products side by side none need be cut small.
void run_gemms(CpuContext& context, std::span<GemmParams> gemms) {
  const KernelTable& kernels = context.kernels;
  std::vector<PlannedGemm>& planned = context.planned_gemms;
  planned.clear();
  const auto count = static_cast<int64_t>(gemms.size());
  const int threads = static_cast<int>(ceil_div(context.pool.num_threads(), std::max<int64_t>(1, count)));
  int64_t packed_bytes = 0, scratch_bytes = 0, num_items = 0, num_pack_items = 0;
  for (const GemmParams& p : gemms) {
    PlannedGemm one{.plan = kernels.gemm_plan(p, threads), .first_item = num_items, .first_pack_item = num_pack_items};
    one.groups = ceil_div(ceil_div(p.n, kNBlock), one.plan.n_blocks_per_group);
    num_items += ceil_div(p.m, one.plan.rows_per_chunk) * one.groups;
    if (one.plan.packed_x_bytes > 0) {
      one.rows_per_pack = p.m * p.k <= kInlinePackElements ? p.m : kernels.pack_rows;
      num_pack_items += ceil_div(p.m, one.rows_per_pack);
      packed_bytes += round_up(one.plan.packed_x_bytes, 64);
    }
    scratch_bytes = std::max(scratch_bytes, one.plan.scratch_bytes);
    planned.push_back(one);
  }
  char* packed = context.shared_scratch.reserve(packed_bytes);
  for (size_t i = 0; i < gemms.size(); ++i) {
    if (planned[i].plan.packed_x_bytes == 0) continue;
    gemms[i].packed_x = packed;
    packed += round_up(planned[i].plan.packed_x_bytes, 64);
  }
  context.reserve_thread_scratch(scratch_bytes);
  // The product that an item belongs to: the last one that begins at or before it. Those without items of the kind are
  // passed over, since the next begins at the same item.
  const auto find = [&](int64_t item, int64_t PlannedGemm::*first) {
    const auto after = std::upper_bound(planned.begin(), planned.end(), item,
                                        [&](int64_t i, const PlannedGemm& one) { return i < one.*first; });
    return static_cast<size_t>(after - planned.begin() - 1);
  };
  context.pool.parallel_for(num_pack_items, [&](int, int64_t item) {
    const size_t i = find(item, &PlannedGemm::first_pack_item);
    const int64_t row = (item - planned[i].first_pack_item) * planned[i].rows_per_pack;
    kernels.pack_x(gemms[i], row, std::min(planned[i].rows_per_pack, gemms[i].m - row));
  });
  context.pool.parallel_for(num_items, [&](int thread_idx, int64_t item) {
    const size_t i = find(item, &PlannedGemm::first_item);
    const GemmParams& p = gemms[i];
    const GemmPlan& plan = planned[i].plan;
    const int64_t own = item - planned[i].first_item;
    const int64_t row = own / planned[i].groups * plan.rows_per_chunk;
    const int64_t n_block = own % planned[i].groups * plan.n_blocks_per_group;
    kernels.gemm(p, plan, row, std::min(plan.rows_per_chunk, p.m - row), n_block,
                 std::min(plan.n_blocks_per_group, ceil_div(p.n, kNBlock) - n_block), context.scratch_of(thread_idx));
  });
}

void embedding(Stream& stream, const EmbeddingParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const WeightDesc& desc = p.table->desc();
  const IntLayout ints = int_layout_of(desc);
  for_rows(context, p.token_ids.dim(0), desc.in_features * 8, [&](int64_t i) {
    const int64_t row = p.token_ids.data<int32_t>()[i] - p.first_row;
    char* out = address(p.out, i * p.out.stride(0));
    if (row < 0 || row >= desc.out_features) {
      std::memset(out, 0, static_cast<size_t>(desc.in_features * dtype_bytes(p.out.dtype())));
      return;
    }
    const char* table = static_cast<const char*>(p.table->data());
    const Elem act = elem_of(p.out.dtype());
    if (ints.codes != CodeType::kNone) {
      context.kernels.int_embedding_row(table, ints, row, desc.in_features, out, act);
    } else {
      context.kernels.embedding_row(table, elem_of(desc.spec.codes), row, desc.in_features, out, act);
    }
  });
}

void linear(Stream& stream, const LinearParams& p) {
  check_params(p);
  run_gemm(context_of(stream), gemm_params(p));
}

void linear_silu_and_mul(Stream& stream, const LinearSiluAndMulParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const int64_t num_tokens = p.x.dim(0), intermediate_size = p.out.dim(1);
  // On several nodes few rows must be read where they lie: a fused product would take gate rows from one node and up rows
  // from another.
  const bool reads_by_owner = context.pool.num_nodes() > 1 && num_tokens <= kFewRows;
  if (intermediate_size % kNBlock == 0 && !reads_by_owner) {
    GemmParams gemm = gemm_params(p);
    gemm.silu_and_mul = true;
    gemm.up_blocks = intermediate_size / kNBlock;
    run_gemm(context, gemm);
    return;
  }
  // Two ops, the same bits: also where the up rows begin inside an n-block.
  const Tensor gate_up(
      context.gate_up_scratch.reserve(std::max<int64_t>(1, num_tokens * 2 * intermediate_size * dtype_bytes(p.x.dtype()))),
      p.x.dtype(), {num_tokens, 2 * intermediate_size});
  linear(stream, {.x = p.x, .weight = p.weight, .bias = p.bias, .out = gate_up, .matrix_idx = p.matrix_idx});
  silu_and_mul(stream, {.gate_up = gate_up, .out = p.out});
}

}  // namespace spate::cpu
