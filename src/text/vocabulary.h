// Token strings to ids and back, in two flat arrays and one text arena: 150,000 tokens take about 5 MB.
// Built once by the loader, then immutable and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace spate {

constexpr int32_t kNoToken = -1;
// A bound against hostile files: the largest published vocabulary has 262,144 entries.
constexpr int32_t kMaxTokenId = (1 << 22) - 1;

uint64_t hash_bytes(std::string_view bytes);

// String to id, open addressing. The strings lie in an arena of its own.
class StringIdMap {
 public:
  void reserve(size_t num_strings);
  // The last id given for a string holds.
  void assign(std::string_view text, int32_t id);
  int32_t find(std::string_view text) const;  // kNoToken when absent
  size_t size() const { return num_strings_; }

 private:
  struct Slot {
    uint32_t offset = 0, size_bytes = 0;
    uint32_t hash = 0;
    int32_t id = kNoToken;
  };
  void grow();
  std::string arena_;
  std::vector<Slot> slots_;  // a power of two, at most 2/3 full
  size_t num_strings_ = 0;
};

class Vocabulary {
 public:
  void reserve(size_t num_tokens) { ids_.reserve(num_tokens); }
  Status add(std::string_view text, int64_t id);

  int32_t find(std::string_view text) const { return ids_.find(text); }
  bool contains(int32_t id) const { return id >= 0 && id < size() && texts_[static_cast<size_t>(id)].is_set; }
  std::string_view text(int32_t id) const;                              // empty for an id without a token
  int32_t size() const { return static_cast<int32_t>(texts_.size()); }  // largest id + 1
  size_t num_tokens() const { return ids_.size(); }

 private:
  struct Text {
    uint32_t offset = 0, size_bytes = 0;
    bool is_set = false;
  };
  StringIdMap ids_;
  std::vector<Text> texts_;  // by id
  std::string arena_;
};

// (left id, right id) to (rank, id of the merged token), open addressing: one cache line a lookup.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t merged_id;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  void reserve(size_t num_merges);
  void assign(int32_t left, int32_t right, Merge merge);  // the last one given holds
  Merge find(int32_t left, int32_t right) const {         // rank kNoRank when absent
    if (slots_.empty()) return {kNoRank, kNoToken};
    const uint64_t key = make_key(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmptyKey) return {kNoRank, kNoToken};
    }
  }

 private:
  static constexpr uint64_t kEmptyKey = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmptyKey;
    Merge merge{kNoRank, kNoToken};
  };
  static uint64_t make_key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }
  std::vector<Slot> slots_;
  int shift_ = 64;
};

}  // namespace spate
