// libFuzzer target: any bytes: validate_plan refuses them, or everything they point to can be read.
// Seed: test/fuzz/plan, the plan of plan_test.cpp.  fuzz/plan_fuzz -max_len=4096 <corpus> test/fuzz/plan
#include <cstdint>
#include <cstring>
#include <memory>

#include "batch/plan_validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  // Aligned as a receiver's buffer is, and not a byte longer, so that ASan sees a read behind the end.
  const std::unique_ptr<std::byte[]> image(new std::byte[size]);
  std::memcpy(image.get(), bytes, size);
  // Most inputs get a right magic, version and length: the rest of the plan is what is worth searching.
  if (size >= sizeof(spate::StepPlanHeader) && bytes[size - 1] != 0xff) {
    spate::StepPlanHeader header;
    std::memcpy(&header, image.get(), sizeof header);
    header.magic = spate::kStepPlanMagic;
    header.version = spate::kStepPlanVersion;
    header.total_bytes = static_cast<uint32_t>(size);
    std::memcpy(image.get(), &header, sizeof header);
  }
  const std::span<const std::byte> plan(image.get(), size);
  const spate::StepPlanLimits limits{.step = {.max_model_len = 4096, .max_num_seqs = 64, .max_num_batched_tokens = 512},
                                     .num_kv_blocks = 1000,
                                     .vocab_size = 100};
  if (spate::validate_plan(plan, limits).ok()) spate::format_plan(plan);
  return 0;
}
