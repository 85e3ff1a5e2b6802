#include "kv_cache/kv_cache.h"

#include "base/check.h"

namespace spate {

SequenceBlocks& SequenceBlocks::operator=(SequenceBlocks&& other) noexcept {
  if (this != &other) {
    clear();
    leases = std::move(other.leases);
    num_findable = std::exchange(other.num_findable, 0);
  }
  return *this;
}

void SequenceBlocks::clear() {
  release_in_reverse(leases);
  num_findable = 0;
}

KvCache::KvCache(int num_blocks, int kv_block_size, bool enable_prefix_caching, uint64_t hash_mask)
    : kv_block_size_(kv_block_size),
      enable_prefix_caching_(enable_prefix_caching),
      index_(num_blocks, kv_block_size, hash_mask),
      pool_(num_blocks) {}

BlockLease KvCache::allocate_one() {
  if (pool_.num_free() == 0) {
    const int32_t block_id = pool_.oldest_cached();
    if (block_id == kNoBlock) return {};
    index_.erase(block_id);
    pool_.forget(block_id);
  }
  return pool_.allocate_free();
}

bool KvCache::allocate(SequenceBlocks& blocks, int num_new_blocks) {
  if (num_new_blocks > num_available()) return false;
  for (int i = 0; i < num_new_blocks; ++i) blocks.leases.push_back(allocate_one());
  return true;
}

int32_t KvCache::find_next(int32_t parent_block_id, std::span<const int32_t> token_ids, std::string_view reuse_scope,
                           int idx) const {
  return index_.find(parent_block_id, token_ids.subspan(static_cast<size_t>(idx) * kv_block_size_, kv_block_size_),
                     reuse_scope);
}

PrefixMatch KvCache::find_cached_prefix(std::span<const int32_t> token_ids, std::string_view reuse_scope,
                                        int max_blocks) const {
  PrefixMatch match;
  if (!enable_prefix_caching_) return match;
  int32_t parent = kNoBlock;
  while (match.num_blocks < max_blocks) {
    parent = find_next(parent, token_ids, reuse_scope, match.num_blocks);
    if (parent == kNoBlock) break;
    ++match.num_blocks;
    match.num_referenced += pool_.ref_count(parent) > 0;
  }
  return match;
}

int KvCache::take_cached_prefix(std::span<const int32_t> token_ids, std::string_view reuse_scope, int max_blocks,
                                SequenceBlocks& blocks) {
  CHECK(blocks.leases.empty());
  if (!enable_prefix_caching_) return 0;
  int32_t parent = kNoBlock;
  while (blocks.size() < max_blocks) {
    parent = find_next(parent, token_ids, reuse_scope, blocks.size());
    if (parent == kNoBlock) break;
    blocks.leases.push_back(pool_.lease(parent));
  }
  blocks.num_findable = blocks.size();
  return blocks.size();
}

void KvCache::make_findable(SequenceBlocks& blocks, std::span<const int32_t> token_ids, int num_tokens,
                            std::string_view reuse_scope, std::vector<ReplacedBlock>& replaced) {
  if (!enable_prefix_caching_) return;
  while (blocks.num_findable > 0 && !index_.contains(blocks.leases[blocks.num_findable - 1].block_id())) {
    --blocks.num_findable;  // forgotten since
  }
  const int num_full_blocks = num_tokens / kv_block_size_;
  CHECK(num_full_blocks <= blocks.size(), "{} full blocks, the sequence holds {}", num_full_blocks, blocks.size());
  while (blocks.num_findable < num_full_blocks) {
    const int idx = blocks.num_findable;
    const int32_t parent = idx == 0 ? kNoBlock : blocks.leases[idx - 1].block_id();
    BlockLease& own = blocks.leases[idx];
    const int32_t equal = find_next(parent, token_ids, reuse_scope, idx);
    if (equal == kNoBlock) {
      index_.insert(own.block_id(), parent,
                    token_ids.subspan(static_cast<size_t>(idx) * kv_block_size_, kv_block_size_), reuse_scope);
      pool_.mark_findable(own.block_id());
    } else if (equal != own.block_id()) {
      if (pool_.ref_count(own.block_id()) > 1) return;
      replaced.push_back({idx, std::exchange(own, pool_.lease(equal))});
    }
    ++blocks.num_findable;
  }
}

void KvCache::forget_prefix(std::span<const int32_t> token_ids, std::string_view reuse_scope) {
  if (!enable_prefix_caching_ || static_cast<int>(token_ids.size()) < kv_block_size_) return;
  const int32_t first = find_next(kNoBlock, token_ids, reuse_scope, 0);
  if (first == kNoBlock) return;
  for (const int32_t block_id : index_.subtree(first)) {
    index_.erase(block_id);
    pool_.forget(block_id);
  }
}

int KvCache::forget_all() {
  const int num_findable = index_.size();
  for (int32_t first = 0; first < pool_.num_blocks(); ++first) {
    if (!index_.contains(first) || index_.parent(first) != kNoBlock) continue;
    for (const int32_t block_id : index_.subtree(first)) {
      index_.erase(block_id);
      pool_.forget(block_id);
    }
  }
  return num_findable;
}

ReleaseTicket KvCache::open_transfer(const SequenceBlocks& blocks, int num_blocks) {
  CHECK(num_blocks <= blocks.size(), "a transfer of {} blocks, the sequence holds {}", num_blocks, blocks.size());
  std::vector<BlockLease> leases;
  for (int i = 0; i < num_blocks; ++i) leases.push_back(blocks.leases[static_cast<size_t>(i)].share());
  const ReleaseTicket ticket = tickets_.open(ReleaseTickets::Kind::kTransfer);
  tickets_.keep(ticket, std::move(leases));
  return ticket;
}

int KvCache::num_kept() const {
  int num_blocks = 0;
  for (const ReleaseTickets::Open& open : tickets_.all()) {
    if (open.kind == ReleaseTickets::Kind::kStep) {
      num_blocks += static_cast<int>(open.leases.size());
    } else {
      for (const BlockLease& lease : open.leases) num_blocks += pool_.ref_count(lease.block_id()) == 1;
    }
  }
  return num_blocks;
}

void KvCache::check_integrity() const {
  pool_.check_integrity();
  index_.check_integrity();
  for (int32_t block_id = 0; block_id < pool_.num_blocks(); ++block_id) {
    CHECK(pool_.is_findable(block_id) == index_.contains(block_id), "block {}: pool and prefix index disagree",
          block_id);
    const int32_t parent = index_.contains(block_id) ? index_.parent(block_id) : kNoBlock;
    CHECK(parent == kNoBlock || pool_.ref_count(parent) >= pool_.ref_count(block_id),
          "block {} is held by more than its parent {}", block_id, parent);
  }
}

}  // namespace spate
