// INT4 with two-level scales as AMX tiles of int8 (int4_multiply.h), some steps before their products.
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/int4_multiply.h"

namespace spate::cpu::SPATE_ISA {

// Steps [first, first + steps) of a pair of n-blocks, which all rows of x pass by.
struct PairSteps {
  const char* n_blocks[2];
  int64_t first, steps;
};

// The tiles of one PairSteps after the other, unpacked into a ring while they are used: each step is there some steps
// before its products, and those of the PairSteps to come follow, a little beside each product, so that only the first
// tiles of an item are waited for. Rows that pass but once (32 of them) leave nothing behind: then a ring that takes
// little of L1 does.
class Int4Tiles {
 public:
  static constexpr int64_t kMaxSteps = 16;  // of a PairSteps that is passed by more than once
  static constexpr int64_t kBytes = 2 * kMaxSteps * 2 * 1024;

  // to_next_pair: bytes from an n-block to that of the next pair. num_passes: of rows by each PairSteps, 32 at a time.
  Int4Tiles(const IntLayout& w, int64_t to_next_pair, int64_t num_passes, char* ring)
      : w_(w),
        to_next_pair_(to_next_pair),
        num_passes_(num_passes),
        ring_mask_(num_passes == 1 ? kFewSteps - 1 : 2 * kMaxSteps - 1),
        ring_(ring) {}

  // Makes `now` current, with what there is of it if it was to come. next: what comes then; without steps nothing.
  void begin(const PairSteps& now, const PairSteps& next) {
    const bool was_next = next_.steps > 0 && next_.n_blocks[0] == now.n_blocks[0] && next_.first == now.first;
    first_place_ += now_.steps;
    num_unpacked_ = was_next ? num_next_parts_ / kPartsPerStep : 0;
    now_ = now;
    next_ = next;
    num_next_parts_ = 0;
    max_next_parts_ = min_of(next.steps, num_passes_ == 1 ? kAhead : kMaxSteps) * kPartsPerStep;
    const int64_t num_products = now.steps * num_passes_;
    parts_at_once_ = num_passes_ == 1 ? kPartsPerStep : ceil_div(max_next_parts_, num_products);
    products_between_ = max_next_parts_ == 0 ? 1 : max_of(1, num_products / max_next_parts_);
    wait_ = products_between_;
    while (num_unpacked_ < min_of(kAhead, now_.steps)) unpack_step();
  }

  // Up to kMaxSteps steps of one n-block, tile behind tile. Whatever was to come is forgotten.
  const char* unpack_single(const char* n_block, int64_t first, int64_t steps) {
    next_.steps = 0;
    for (int64_t s = 0; s < steps; ++s) unpack_two_level_step(w_, n_block, first + s, ring_ + s * kTileBytes);
    amx_fence();
    return ring_;
  }

  const char* tile(int64_t step, int64_t j) const { return place(first_place_ + step) + j * kTileBytes; }

  // Beside the products of step `step`.
  __attribute__((always_inline)) void unpack_some(int64_t step) {
    if (num_unpacked_ < now_.steps) {
      if (num_passes_ > 1 || num_unpacked_ <= step + kAhead) unpack_step();
    } else if (num_next_parts_ < max_next_parts_ && --wait_ == 0) {
      wait_ = products_between_;
      unpack_next_parts();
    }
  }

 private:
  // Steps that are there before their products, and of the ring when rows pass once. 2 of 4 are as fast, 6 of 8 take 17
  // % longer with 32 rows, for they do not stay in L1 beside x.
  static constexpr int64_t kAhead = 3;
  static constexpr int64_t kFewSteps = 4;
  static_assert(kFewSteps > kAhead && (kFewSteps & (kFewSteps - 1)) == 0);
  static constexpr int64_t kPartsPerStep = 4;   // half a tile of each of two n-blocks, twice
  // That memory is asked for ahead in each n-block. Where rows pass more than once, to L2: a line that is asked for in L1 holds one of
  // its buffers for misses, which tile loads need.
  static constexpr int64_t kBytesAhead = 2048, kBytesAheadInL2 = 4096;

  char* place(int64_t number) const { return ring_ + (number & ring_mask_) * (2 * kTileBytes); }

  __attribute__((noinline)) void unpack_step() {
    char* to = place(first_place_ + num_unpacked_);
    const int64_t step = now_.first + num_unpacked_++;
    for (int j = 0; j < 2; ++j) {
      ask_for(now_.n_blocks[j], step, 0, 8);
      unpack_two_level_rows(w_, now_.n_blocks[j], step, 0, 8, to + j * kTileBytes);
    }
    amx_fence();
  }
  __attribute__((noinline)) void unpack_next_parts() {
    for (int64_t i = 0; i < parts_at_once_ && num_next_parts_ < max_next_parts_; ++i) {
      const int64_t s = num_next_parts_ / kPartsPerStep, j = num_next_parts_ / 2 % 2, row = num_next_parts_ % 2 * 4;
      ++num_next_parts_;
      ask_for(next_.n_blocks[j], next_.first + s, row, row + 4);
      unpack_two_level_rows(w_, next_.n_blocks[j], next_.first + s, row, row + 4,
                            place(first_place_ + now_.steps + s) + j * kTileBytes);
    }
    amx_fence();
  }
  // Lines of the codes some steps ahead, those of the next pair behind the last; and its multipliers.
  __attribute__((always_inline)) void ask_for(const char* n_block, int64_t step, int64_t begin, int64_t end) const {
    const char* next_block = n_block + to_next_pair_;
    const int64_t offset = step * 512 + (num_passes_ > 1 ? kBytesAheadInL2 : kBytesAhead);
    const char* at = offset < w_.codes_bytes ? n_block + offset : next_block + offset - w_.codes_bytes;
    if (num_passes_ > 1) {
      for (int64_t line = begin; line < end; ++line) _mm_prefetch(at + line * 64, _MM_HINT_T1);
    } else {
      for (int64_t line = begin; line < end; ++line) _mm_prefetch(at + line * 64, _MM_HINT_T0);
    }
    _mm_prefetch(next_block + w_.multipliers_offset() + w_.multiplier_of(step * kIntKStep) * kNBlock, _MM_HINT_T0);
  }

  const IntLayout w_;
  const int64_t to_next_pair_, num_passes_;
  const int64_t ring_mask_;  // steps of the ring, a power of two, less one
  char* const ring_;
  int64_t first_place_ = 0;  // of now_
  PairSteps now_{}, next_{};
  int64_t num_unpacked_ = 0;    // steps of now_
  int64_t num_next_parts_ = 0;  // of next_
  int64_t max_next_parts_ = 0;  // that are wanted
  int64_t parts_at_once_ = 0, products_between_ = 1, wait_ = 1;
};

}  // namespace spate::cpu::SPATE_ISA
