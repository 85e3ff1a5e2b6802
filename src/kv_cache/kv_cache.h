// KvCache: the block pool, the prefix index and the release tickets behind one door. What a sequence holds is a
// SequenceBlocks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kv_cache/block_pool.h"
#include "kv_cache/prefix_index.h"
#include "kv_cache/release_tickets.h"

namespace spate {

// The blocks of one sequence in order of position. The first num_findable are a path from the root of the prefix index;
// the rest is the sequence's own. Whoever holds a findable block holds all blocks before it.
struct SequenceBlocks {
  std::vector<BlockLease> leases;
  int num_findable = 0;

  int size() const { return static_cast<int>(leases.size()); }
  SequenceBlocks() = default;
  SequenceBlocks(SequenceBlocks&&) = default;
  SequenceBlocks& operator=(SequenceBlocks&& other) noexcept;
  ~SequenceBlocks() { clear(); }
  void clear();  // last block first
};

// A block of a sequence that was exchanged for an equal one which was findable already.
struct ReplacedBlock {
  int block_idx = 0;
  BlockLease old_lease;  // steps in flight may still read it: the caller keeps it with their ticket
};

struct PrefixMatch {
  int num_blocks = 0;
  int num_referenced = 0;  // of these, held by a sequence now: sharing them costs no available block
};

// One per engine; engine thread only. Eviction happens inside allocate(): the least recently released cached block goes
// first, which is always one that no cached block continues (see release_in_reverse).
class KvCache {
 public:
  KvCache(int num_blocks, int kv_block_size, bool enable_prefix_caching, uint64_t hash_mask = ~uint64_t{0});

  int kv_block_size() const { return kv_block_size_; }
  int blocks_for(int num_tokens) const { return (num_tokens + kv_block_size_ - 1) / kv_block_size_; }
  int num_available() const { return pool_.num_free() + pool_.num_cached(); }
  const BlockPool& pool() const { return pool_; }

  // Appends num_new_blocks blocks of undefined contents, all or none (false).
  bool allocate(SequenceBlocks& blocks, int num_new_blocks);
  BlockLease allocate_one();  // empty when none is available

  // The longest cached path that spells the first blocks of token_ids, at most max_blocks long.
  PrefixMatch find_cached_prefix(std::span<const int32_t> token_ids, std::string_view reuse_scope,
                                 int max_blocks) const;
  // The same with leases taken; `blocks` must be empty. Returns how many blocks.
  int take_cached_prefix(std::span<const int32_t> token_ids, std::string_view reuse_scope, int max_blocks,
                         SequenceBlocks& blocks);

  // Makes the full blocks among the first num_tokens tokens findable. Their contents must be written by steps submitted
  // already, in whose wake all later reads run. Where an equal block is findable already the sequence takes that one,
  // and its own is appended to `replaced`. It keeps its own, and the rest is made findable by a later call, while a
  // transfer holds that block: who holds a block must hold its parent in the index.
  void make_findable(SequenceBlocks& blocks, std::span<const int32_t> token_ids, int num_tokens,
                     std::string_view reuse_scope, std::vector<ReplacedBlock>& replaced);
  // The contents of blocks that spell the beginning of token_ids are not to be trusted: none of them is found any more,
  // nor any block that continues them. Sequences that hold such blocks keep them.
  void forget_prefix(std::span<const int32_t> token_ids, std::string_view reuse_scope);
  int forget_all();  // the same of every block; how many could be found before

  // A step that is submitted. Blocks that it uses are kept with its ticket when a sequence gives them up.
  ReleaseTicket open_step() { return tickets_.open(ReleaseTickets::Kind::kStep); }
  // A transfer of the first num_blocks blocks of a sequence. They stay as they are until its ticket is dropped.
  ReleaseTicket open_transfer(const SequenceBlocks& blocks, int num_blocks);
  void keep(ReleaseTicket ticket, std::vector<BlockLease>&& leases) { tickets_.keep(ticket, std::move(leases)); }
  void drop(ReleaseTicket ticket) { tickets_.drop(ticket); }
  void drop_all_steps() { tickets_.drop_all(ReleaseTickets::Kind::kStep); }
  const ReleaseTickets& tickets() const { return tickets_; }
  // About how many blocks become available when all open tickets are dropped: those of steps, and those that nobody but
  // one transfer holds.
  int num_kept() const;

  void check_integrity() const;

 private:
  int32_t find_next(int32_t parent_block_id, std::span<const int32_t> token_ids, std::string_view reuse_scope,
                    int idx) const;

  const int kv_block_size_;
  const bool enable_prefix_caching_;
  PrefixIndex index_;
  BlockPool pool_;
  ReleaseTickets tickets_;  // after the pool: it holds leases
};

}  // namespace spate
