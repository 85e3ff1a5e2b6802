#include "server/prepare_pools.h"

#include <malloc.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace spate {
namespace {

// Parsing and tokenising take up to 150 ms per MB: a small request holds up the next one for at most 10 ms. The middle
// class has long prompts (1M tokens are 4 MB of text); what is larger gives way to everything else.
constexpr size_t kSmallBytes = 64 << 10;
constexpr size_t kMediumBytes = 4 << 20;
constexpr int kLargestNice = 10;
constexpr size_t kTrimBytes = 16 << 20;

}  // namespace

PreparePools::PreparePools(int num_small_threads) {
  size_classes_.push_back({kSmallBytes, std::make_unique<WorkPool>(num_small_threads)});
  size_classes_.push_back({kMediumBytes, std::make_unique<WorkPool>(1)});
  size_classes_.push_back({std::numeric_limits<size_t>::max(), std::make_unique<WorkPool>(1, kLargestNice)});
}

PreparePools::~PreparePools() = default;

void PreparePools::post(size_t num_body_bytes, std::function<void()> task) {
  if (num_body_bytes <= kSmallBytes) return size_classes_.front().pool->post(std::move(task));
  ++num_large_;
  const auto size_class = std::find_if(size_classes_.begin(), size_classes_.end(), [num_body_bytes](const auto& each) {
    return num_body_bytes <= each.max_body_bytes;
  });
  size_class->pool->post([this, num_body_bytes, task = std::move(task)]() mutable {
    task();
    task = nullptr;
    note_end_of_large(num_body_bytes);
  });
}

// The values parsed from a body are millions of small pieces, which malloc keeps when they are freed. After the last
// large request they go back to the system.
void PreparePools::note_end_of_large(size_t num_body_bytes) {
  untrimmed_bytes_ += num_body_bytes;
  if (--num_large_ > 0 || untrimmed_bytes_ < kTrimBytes) return;
  untrimmed_bytes_ = 0;
  ::malloc_trim(0);
}

}  // namespace spate
