// KernelCase: one op of the catalogue at one size that a model's steps give it, as a call that can be timed. For
// spate bench kernel.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "quant/quantization.h"
#include "weights/model_config.h"

namespace spate {

struct KernelCase {
  std::string name;         // "linear/int8/qkv-4096x1024/m32": op, format, what, size
  double bytes = 0;         // that a call must read and write at the least; 0: the op is all latency
  double ops = 0;           // multiplications and additions that count; 0: bound by bytes
  bool is_integer = false;  // the ops are on 8-bit codes
  int64_t num_tokens = 0;   // of a product
  int64_t num_copies = 1;   // of the operands: one call after the other finds them in memory, not in a cache
  std::function<void(int64_t copy)> call;
};

struct KernelCaseOptions {
  DType act_dtype = DType::kBf16;
  DType kv_dtype = DType::kBf16;
  Quantization quantization;
  int64_t kv_block_size = 16;
  int64_t cold_bytes = int64_t{256} << 20;  // operands of a case: more than the caches of the machines we know
  bool has_large_sizes = false;             // steps of a GPU too: more tokens, more and longer sequences
  std::vector<int64_t> token_counts;        // of products; empty: some of each kind of step
  bool has_products_only = false;
  std::string filter;                       // what "<device>/<name>" must contain
};

// Calls `measure` with every case, its operands on the device; they are freed when it returns.
Status for_each_kernel_case(Device& device, Stream& stream, const ModelConfig& config, const KernelCaseOptions& options,
                            const std::function<void(const KernelCase&)>& measure);

}  // namespace spate
