#include "backend/cuda/kernel/gather_rows/gather_rows.h"

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int kNumThreads = 128;

// The largest power of two up to 16 that divides all of the bytes.
int64_t common_unit(std::initializer_list<int64_t> bytes) {
  int64_t unit = 16;
  for (const int64_t value : bytes) {
    while (value % unit != 0) unit /= 2;
  }
  return unit;
}

KernelId kernel_for(int64_t unit) {
  switch (unit) {
    case 16:
      return kernel_id("gather_rows_16");
    case 8:
      return kernel_id("gather_rows_8");
    case 4:
      return kernel_id("gather_rows_4");
    case 2:
      return kernel_id("gather_rows_2");
    default:
      return kernel_id("gather_rows_1");
  }
}

}  // namespace

void gather_rows(Stream& stream, const GatherRowsParams& p) {
  check_params(p);
  const int64_t n = p.out.dim(0), bytes = dtype_bytes(p.x.dtype());
  const int64_t x_stride_bytes = p.x.stride(0) * bytes, out_stride_bytes = p.out.stride(0) * bytes;
  const int64_t row_bytes = p.x.dim(1) * bytes;
  if (n == 0 || row_bytes == 0) return;
  const int64_t unit = common_unit({x_stride_bytes, out_stride_bytes, row_bytes, reinterpret_cast<int64_t>(p.x.raw()),
                                    reinterpret_cast<int64_t>(p.out.raw())});
  const GatherRowsKernelParams params{.x = p.x.raw(),
                                      .row_ids = p.row_ids.data<int32_t>(),
                                      .out = p.out.raw(),
                                      .x_stride = x_stride_bytes / unit,
                                      .out_stride = out_stride_bytes / unit,
                                      .width = static_cast<int32_t>(row_bytes / unit)};
  launch(stream, kernel_for(unit), {.x = n, .y = ceil_div(row_bytes / unit, kNumThreads), .num_threads = kNumThreads},
         params, {{"num_rows", n}, {"width", p.x.dim(1)}});
}

}  // namespace spate::cuda
