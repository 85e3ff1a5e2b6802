// Which lines of a paged cache attention will read soon: hardware prefetch ends where a block does.
#pragma once

#include "backend/cpu/kernel/attention_common.h"

namespace spate::cpu::SPATE_ISA {

// Lines of K and V that will be read soon, asked for a few with each B tile: those of the item from kKeysAhead keys on,
// then the first kKeysAhead of the next item. In bursts they would fill the 16 buffers of L1 for misses, and what
// follows would wait instead of running meanwhile.
class KvAhead {
 public:
  explicit KvAhead(const AttentionItem& item) : item_(item), value_blocks_(ceil_div(item.layout.value_dim, kNBlock)) {
    const int64_t begin = key_tiles(item, item.first_span).first * kKvTile,
                  end = min_of(last_position(item) + 1, item.end_span * kKvSpan);
    sources_[0] = {item.kv, item.block_table, begin + kKeysAhead, end};
    sources_[1] = {item.next_kv, item.next_block_table, item.next_position,
                   min_of(item.next_end, item.next_position + kKeysAhead)};
    int64_t keys = 0;
    for (const Source& source : sources_) keys += max_of(0, source.end - source.position);
    const int64_t group_lines =
        (item.layout.k_group_bytes + value_blocks_ * kNBlock * kNBlock * elem_bytes(item.layout.elem)) / 64;
    const int64_t tiles = ceil_div(end - begin, kNBlock) * ceil_div(item.layout.head_dim, kKStep) +
                          ceil_div(end - begin, kKStep) * value_blocks_;
    lines_per_tile_ = (ceil_div(keys, kNBlock) * group_lines << kFractionBits) / tiles + 1;
  }

  // Lines one behind the other.
  struct Lines {
    const char* first;
    int64_t count;
  };
  // Those that are due after num_tiles more B tiles; some may be left for the next call.
  __attribute__((always_inline)) Lines due(int64_t num_tiles) {
    credit_ += num_tiles * lines_per_tile_;
    if (num_lines_ == 0 && !next_run()) return {nullptr, 0};
    const Lines lines{line_, min_of(credit_ >> kFractionBits, num_lines_)};
    credit_ -= lines.count << kFractionBits;
    line_ += lines.count * 64;
    num_lines_ -= lines.count;
    return lines;
  }
  // All that are due, at once.
  __attribute__((always_inline)) void ask(int64_t num_tiles) {
    for (Lines lines = due(num_tiles); lines.count > 0; lines = due(0)) {
      for (int64_t i = 0; i < lines.count; ++i) _mm_prefetch(lines.first + i * 64, _MM_HINT_T1);
    }
  }

 private:
  static constexpr int64_t kKeysAhead = 2 * kKvTile;
  static constexpr int64_t kFractionBits = 16;
  struct Source {
    const char* kv;
    const int32_t* block_table;
    int64_t position, end;  // position is a multiple of 16
  };

  // The next contiguous piece: a block, or of a block with keys that are not wanted those of K, then of each n-block of
  // V, then the scales.
  __attribute__((noinline)) bool next_run() {
    const KvLayout& layout = item_.layout;
    for (; num_sources_ < 2; ++num_sources_) {
      Source& source = sources_[num_sources_];
      if (source.position >= source.end) continue;
      const int64_t first = source.position % layout.kv_block_size,
                    keys = min_of(layout.kv_block_size - first, source.end - source.position);
      const char* head = source.kv + source.block_table[source.position / layout.kv_block_size] * item_.block_bytes;
      if (keys == layout.kv_block_size) {
        line_ = head;
        num_lines_ = layout.head_bytes / 64;
        source.position += keys;
        return true;
      }
      if (run_ == 0) {
        line_ = head + first / kNBlock * layout.k_group_bytes;
        num_lines_ = ceil_div(keys, kNBlock) * layout.k_group_bytes / 64;
      } else if (run_ <= value_blocks_) {
        const int64_t key_bytes = kNBlock * elem_bytes(layout.elem);
        line_ = head + layout.v_offset + (run_ - 1) * layout.v_n_block_bytes + first * key_bytes;
        num_lines_ = round_up(keys, kNBlock) * key_bytes / 64;
      } else {
        line_ = head + layout.k_scales_offset;
        num_lines_ = (layout.head_bytes - layout.k_scales_offset) / 64;
      }
      if (++run_ > value_blocks_ + (layout.elem == Elem::kI8 ? 1 : 0)) {
        run_ = 0;
        source.position += keys;
      }
      return true;
    }
    return false;
  }

  const AttentionItem& item_;
  int64_t value_blocks_;
  Source sources_[2];
  int64_t num_sources_ = 0;  // that are done with
  int64_t run_ = 0;          // of the current block
  const char* line_ = nullptr;
  int64_t num_lines_ = 0;                    // of the current run
  int64_t lines_per_tile_ = 0, credit_ = 0;  // in units of 2^-kFractionBits
};

}  // namespace spate::cpu::SPATE_ISA
