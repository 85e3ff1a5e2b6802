// BlockPool: who holds which KV block. It knows ids and counts only; what a block contains is the prefix index's
// business.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace spate {

class BlockPool;

// Holds one reference to a block while it lives. Move-only; share() makes a second one. Empty when default-made or
// moved from.
class BlockLease {
 public:
  BlockLease() = default;
  BlockLease(BlockLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), block_id_(std::exchange(other.block_id_, -1)) {}
  BlockLease& operator=(BlockLease&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      block_id_ = std::exchange(other.block_id_, -1);
    }
    return *this;
  }
  BlockLease(const BlockLease&) = delete;
  BlockLease& operator=(const BlockLease&) = delete;
  ~BlockLease() { reset(); }

  void reset();
  BlockLease share() const;
  int32_t block_id() const { return block_id_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class BlockPool;
  BlockLease(BlockPool* pool, int32_t block_id) : pool_(pool), block_id_(block_id) {}

  BlockPool* pool_ = nullptr;
  int32_t block_id_ = -1;
};

// Gives leases back last block first. Blocks of a sequence must be released in this order: then a block enters the LRU
// list after all blocks that continue it, and the oldest entry of the list is always a leaf of the prefix tree.
void release_in_reverse(std::vector<BlockLease>& leases);

// Hands out KV blocks and takes them back. One per engine; owned by KvCache, called by the engine thread only. Outlives
// its leases.
//
// Invariants, verified by check_integrity(), which every test calls after every operation:
//   1. num_free + num_cached + num_referenced == num_blocks.
//   2. A block with ref_count > 0 is on no list.
//   3. A block with ref_count 0 is on the LRU list when the prefix index knows it ("findable"), else on the free list.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_free() const { return static_cast<int>(free_block_ids_.size()); }
  int num_cached() const { return num_cached_; }  // findable and referenced by nobody
  int num_referenced() const { return num_blocks() - num_free() - num_cached(); }
  int ref_count(int32_t block_id) const { return blocks_[block_id].ref_count; }
  bool is_findable(int32_t block_id) const { return blocks_[block_id].findable; }

  BlockLease allocate_free();          // an empty lease when the free list is empty
  BlockLease lease(int32_t block_id);  // of a block that is referenced or cached, not of a free one

  void mark_findable(int32_t block_id);  // a referenced block entered the prefix index
  int32_t oldest_cached() const;         // least recently released; -1 when none
  void forget(int32_t block_id);         // a findable block left the prefix index: it is free when nobody holds it

  void check_integrity() const;

 private:
  friend class BlockLease;
  struct Block {
    int32_t ref_count = 0;
    int32_t lru_prev = -1, lru_next = -1;  // block ids; valid on the LRU list
    bool findable = false;
  };

  void release(int32_t block_id);
  void lru_append(int32_t block_id);
  void lru_remove(int32_t block_id);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_block_ids_;  // a stack: the block freed last is the warmest
  int32_t lru_oldest_ = -1, lru_newest_ = -1;
  int num_cached_ = 0;
};

}  // namespace spate
