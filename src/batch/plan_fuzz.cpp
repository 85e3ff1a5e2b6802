// Any bytes: validate_plan refuses them, or everything they point to can be read.
#include <cstdint>
#include <cstring>
#include <vector>

#include "batch/plan_validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  std::vector<uint64_t> image((size + 7) / 8);  // aligned, as a receiver's buffer is
  if (size > 0) std::memcpy(image.data(), bytes, size);
  const std::span<const std::byte> plan = std::as_bytes(std::span(image)).first(size);
  const spate::StepPlanLimits limits{.max_num_seqs = 64,
                                     .max_num_batched_tokens = 512,
                                     .max_model_len = 4096,
                                     .max_blocks_per_seq = 256,
                                     .num_kv_blocks = 1000,
                                     .vocab_size = 50000};
  if (spate::validate_plan(plan, limits).ok()) spate::format_plan(plan);
  return 0;
}
