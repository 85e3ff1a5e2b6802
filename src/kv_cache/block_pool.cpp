#include "kv_cache/block_pool.h"

#include "base/check.h"

namespace spate {

void BlockLease::reset() {
  if (pool_ == nullptr) return;
  std::exchange(pool_, nullptr)->release(std::exchange(block_id_, -1));
}

BlockLease BlockLease::share() const {
  CHECK(pool_ != nullptr, "an empty lease cannot be shared");
  return pool_->lease(block_id_);
}

void release_in_reverse(std::vector<BlockLease>& leases) {
  while (!leases.empty()) leases.pop_back();
}

BlockPool::BlockPool(int num_blocks) : blocks_(num_blocks) {
  CHECK(num_blocks > 0);
  free_block_ids_.reserve(num_blocks);
  for (int32_t block_id = num_blocks - 1; block_id >= 0; --block_id) free_block_ids_.push_back(block_id);
}

BlockPool::~BlockPool() { CHECK(num_referenced() == 0, "{} KV blocks are still leased at the end", num_referenced()); }

BlockLease BlockPool::allocate_free() {
  if (free_block_ids_.empty()) return {};
  const int32_t block_id = free_block_ids_.back();
  free_block_ids_.pop_back();
  blocks_[block_id].ref_count = 1;
  return BlockLease(this, block_id);
}

BlockLease BlockPool::lease(int32_t block_id) {
  Block& block = blocks_[block_id];
  CHECK(block.ref_count > 0 || block.findable, "block {} is free", block_id);
  if (block.ref_count == 0) lru_remove(block_id);
  ++block.ref_count;
  return BlockLease(this, block_id);
}

void BlockPool::release(int32_t block_id) {
  Block& block = blocks_[block_id];
  CHECK(block.ref_count > 0, "block {} was released twice", block_id);
  if (--block.ref_count > 0) return;
  if (block.findable) {
    lru_append(block_id);
  } else {
    free_block_ids_.push_back(block_id);
  }
}

void BlockPool::mark_findable(int32_t block_id) {
  Block& block = blocks_[block_id];
  CHECK(block.ref_count > 0 && !block.findable, "block {} has {} references", block_id, block.ref_count);
  block.findable = true;
}

int32_t BlockPool::oldest_cached() const { return lru_oldest_; }

void BlockPool::forget(int32_t block_id) {
  Block& block = blocks_[block_id];
  CHECK(block.findable, "block {} is not findable", block_id);
  block.findable = false;
  if (block.ref_count > 0) return;
  lru_remove(block_id);
  free_block_ids_.push_back(block_id);
}

void BlockPool::lru_append(int32_t block_id) {
  blocks_[block_id].lru_prev = lru_newest_;
  blocks_[block_id].lru_next = -1;
  (lru_newest_ >= 0 ? blocks_[lru_newest_].lru_next : lru_oldest_) = block_id;
  lru_newest_ = block_id;
  ++num_cached_;
}

void BlockPool::lru_remove(int32_t block_id) {
  const Block& block = blocks_[block_id];
  (block.lru_prev >= 0 ? blocks_[block.lru_prev].lru_next : lru_oldest_) = block.lru_next;
  (block.lru_next >= 0 ? blocks_[block.lru_next].lru_prev : lru_newest_) = block.lru_prev;
  --num_cached_;
}

void BlockPool::check_integrity() const {
  // Each block is in exactly one of three places; walking both lists and counting the referenced ones must give them
  // all.
  thread_local std::vector<char> seen;
  seen.assign(blocks_.size(), 0);
  for (const int32_t block_id : free_block_ids_) {
    const Block& block = blocks_[block_id];
    CHECK(!seen[block_id] && block.ref_count == 0 && !block.findable, "free block {}: ref_count {}, findable {}",
          block_id, block.ref_count, block.findable);
    seen[block_id] = 1;
  }
  int num_listed = 0;
  int32_t previous = -1;
  for (int32_t block_id = lru_oldest_; block_id >= 0; block_id = blocks_[block_id].lru_next) {
    const Block& block = blocks_[block_id];
    CHECK(!seen[block_id] && block.ref_count == 0 && block.findable && block.lru_prev == previous,
          "cached block {}: ref_count {}, findable {}", block_id, block.ref_count, block.findable);
    seen[block_id] = 1;
    previous = block_id;
    ++num_listed;
  }
  CHECK(previous == lru_newest_ && num_listed == num_cached_, "{} cached blocks are listed, {} counted", num_listed,
        num_cached_);
  int num_held = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    CHECK(seen[i] || blocks_[i].ref_count > 0, "block {} is lost", i);
    num_held += !seen[i];
  }
  CHECK(num_held == num_referenced());
}

}  // namespace spate
