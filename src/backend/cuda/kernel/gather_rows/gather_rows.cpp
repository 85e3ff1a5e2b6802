#include "backend/cuda/kernel/gather_rows/gather_rows.h"

#include <array>
#include <bit>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int kGatherThreads = 128;

// The largest power of two up to 16 that divides all of the bytes.
int64_t common_unit(std::initializer_list<int64_t> bytes) {
  int64_t unit = 16;
  for (const int64_t value : bytes) {
    while (value % unit != 0) unit /= 2;
  }
  return unit;
}

// Of one operation, for units of 1, 2, 4, 8 and 16 bytes.
using KernelsByUnit = std::array<KernelId, 5>;

void move_rows(Stream& stream, const KernelsByUnit& kernels, const Tensor& x, const Tensor& row_ids, const Tensor& out) {
  const int64_t n = row_ids.dim(0), bytes = dtype_bytes(x.dtype());
  const int64_t x_stride_bytes = x.stride(0) * bytes, out_stride_bytes = out.stride(0) * bytes;
  const int64_t row_bytes = x.dim(1) * bytes;
  if (n == 0 || row_bytes == 0) return;
  const int64_t unit = common_unit({x_stride_bytes, out_stride_bytes, row_bytes, reinterpret_cast<int64_t>(x.raw()),
                                    reinterpret_cast<int64_t>(out.raw())});
  const GatherRowsKernelParams params{.x = x.raw(),
                                      .row_ids = row_ids.data<int32_t>(),
                                      .out = out.raw(),
                                      .x_stride = x_stride_bytes / unit,
                                      .out_stride = out_stride_bytes / unit,
                                      .width = static_cast<int32_t>(row_bytes / unit)};
  const auto kernel = static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(unit)));
  launch(stream, kernels[kernel],
         {.x = n, .y = ceil_div(row_bytes / unit, kGatherThreads), .num_threads = kGatherThreads}, params,
         {{"num_rows", n}, {"width", x.dim(1)}});
}

}  // namespace

void gather_rows(Stream& stream, const GatherRowsParams& p) {
  check_params(p);
  constexpr KernelsByUnit kGather = {kernel_id("gather_rows_1"), kernel_id("gather_rows_2"), kernel_id("gather_rows_4"),
                                      kernel_id("gather_rows_8"), kernel_id("gather_rows_16")};
  move_rows(stream, kGather, p.x, p.row_ids, p.out);
}

void scatter_rows(Stream& stream, const ScatterRowsParams& p) {
  check_params(p);
  constexpr KernelsByUnit kScatter = {kernel_id("scatter_rows_1"), kernel_id("scatter_rows_2"), kernel_id("scatter_rows_4"),
                                      kernel_id("scatter_rows_8"), kernel_id("scatter_rows_16")};
  move_rows(stream, kScatter, p.x, p.row_ids, p.out);
}

}  // namespace spate::cuda
