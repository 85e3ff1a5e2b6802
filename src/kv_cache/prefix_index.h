// PrefixIndex: finds the KV block that already holds given tokens after a given prefix.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spate {

constexpr int32_t kNoBlock = -1;

// A tree of full blocks. The key of a block is (its parent block, its kv_block_size token ids), of a first block (reuse
// scope, token ids). Keys are found by hash and then compared token by token, and a parent cannot leave before its
// children: equal keys mean equal token ids from position 0 on, in the same scope. A hash alone would let a constructed
// collision read another tenant's cache. Memory is fixed: 4 bytes a token and about 60 a block.
//
// Owned by KvCache; engine thread only. Invariants (check_integrity): every entry is found under its own key;
// num_children agrees with the entries' parents.
class PrefixIndex {
 public:
  // hash_mask: tests make hashes collide with it.
  PrefixIndex(int num_blocks, int kv_block_size, uint64_t hash_mask = ~uint64_t{0});

  // The block under this key or kNoBlock. token_ids has kv_block_size entries; reuse_scope counts for first blocks
  // only.
  int32_t find(int32_t parent_block_id, std::span<const int32_t> token_ids, std::string_view reuse_scope) const;
  // The key must not be in the index, nor the block. The parent must be.
  void insert(int32_t block_id, int32_t parent_block_id, std::span<const int32_t> token_ids,
              std::string_view reuse_scope);
  void erase(int32_t block_id);  // must have no children
  // The block and all that continue it, each behind those that continue it. Looks at every block.
  std::vector<int32_t> subtree(int32_t block_id) const;

  int size() const { return size_; }
  bool contains(int32_t block_id) const { return entries_[block_id].present; }
  int num_children(int32_t block_id) const { return entries_[block_id].num_children; }
  int32_t parent(int32_t block_id) const { return entries_[block_id].parent_block_id; }

  void check_integrity() const;

 private:
  struct Entry {
    uint64_t hash = 0;
    int32_t parent_block_id = kNoBlock;
    int32_t next_in_bucket = kNoBlock;
    int32_t num_children = 0;
    bool present = false;
    std::string reuse_scope;  // of first blocks
  };

  uint64_t hash_key(int32_t parent_block_id, std::span<const int32_t> token_ids, std::string_view reuse_scope) const;
  std::span<const int32_t> block_tokens(int32_t block_id) const;
  size_t bucket_of(uint64_t hash) const { return hash & (buckets_.size() - 1); }

  const int kv_block_size_;
  const uint64_t hash_mask_;
  int size_ = 0;
  std::vector<Entry> entries_;      // by block id
  std::vector<int32_t> token_ids_;  // [num_blocks, kv_block_size]
  std::vector<int32_t> buckets_;    // first block of each chain; a power of two of them, at least num_blocks
};

}  // namespace spate
