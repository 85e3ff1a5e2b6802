#pragma once

#include "backend/cuda/kernel/attention/attention_paged.h"

namespace spate::cuda {

constexpr int kPrefillWarps = 4;
constexpr int kPrefillQueries = 16 * kPrefillWarps;  // of one head, a CTA
constexpr int kPrefillKeys = 64;                     // of a tile
constexpr int prefill_shared_bytes(int head_dim) {
  return 2 * 2 * kPrefillKeys * head_dim * 2;
}  // two stages of K and V

}  // namespace spate::cuda
