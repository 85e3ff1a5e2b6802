#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace spate {

void Scheduler::check_integrity() const {
  kv_cache_.check_integrity();
  thread_local std::vector<int> num_leases, rows_seen;
  num_leases.assign(config_.num_kv_blocks, 0);
  rows_seen.assign(config_.limits.max_num_seqs, 0);

  CHECK(std::ranges::is_sorted(running_, ByKey{}));
  for (const Sequence* seq : running_) {
    CHECK(seq->state == SequenceState::kRunning && seq->has_started && !seq->parked);
    CHECK(seq->row >= 0 && seq->row < config_.limits.max_num_seqs && ++rows_seen[seq->row] == 1,
          "row {} is taken twice", seq->row);
    CHECK(seq->num_computed_tokens <= seq->num_tokens() && seq->num_tokens() <= seq->max_len,
          "{} computed, {} tokens, at most {}", seq->num_computed_tokens, seq->num_tokens(), seq->max_len);
    CHECK(kv_cache_.blocks_for(seq->num_computed_tokens) <= seq->blocks.size() &&
              seq->blocks.size() <= kv_cache_.blocks_for(seq->max_len),
          "{} blocks for {} computed tokens of at most {}", seq->blocks.size(), seq->num_computed_tokens, seq->max_len);
    CHECK(seq->blocks.num_findable * config_.limits.kv_block_size <= seq->num_computed_tokens);
    for (const BlockLease& lease : seq->blocks.leases) ++num_leases[lease.block_id()];
  }
  for (const int row : free_rows_) CHECK(++rows_seen[row] == 1, "row {} is free and taken", row);
  CHECK(running_.size() + free_rows_.size() == static_cast<size_t>(config_.limits.max_num_seqs));

  for (const Sequence* seq : waiting_) {
    CHECK(seq->state == SequenceState::kWaiting && !seq->parked && seq->row < 0 && seq->blocks.size() == 0);
    CHECK(seq->num_computed_tokens == 0 && seq->num_tokens() <= seq->max_len);
  }

  for (const SequenceGroup* group : fork_groups_) {
    CHECK(!group->fork_blocks.empty() && group->leader == nullptr);
    for (const BlockLease& lease : group->fork_blocks) ++num_leases[lease.block_id()];
  }
  const ReleaseTickets& tickets = kv_cache_.tickets();
  CHECK(tickets.num_open(ReleaseTickets::Kind::kStep) == static_cast<int>(next_step_id_ - 1 - retired_step_id_));
  for (const ReleaseTickets::Open& open : tickets.all()) {
    for (const BlockLease& lease : open.leases) ++num_leases[lease.block_id()];
  }
  for (int32_t block_id = 0; block_id < config_.num_kv_blocks; ++block_id) {
    CHECK(num_leases[block_id] == kv_cache_.pool().ref_count(block_id), "block {} has {} leases, {} are known",
          block_id, kv_cache_.pool().ref_count(block_id), num_leases[block_id]);
  }
}

}  // namespace spate
