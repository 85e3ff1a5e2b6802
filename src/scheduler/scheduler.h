// Scheduler: decides which tokens of which sequences run in the next step, and which blocks and rows they get.
//
// A sequence has num_computed_tokens to catch up with num_tokens; a step has max_num_batched_tokens.
//   1. Sequences that need one token (decode) come first, by key. One that lacks a block preempts the sequence with the
//      largest key: that one loses row and blocks, and computes its tokens again later (blocks that are findable by
//      prefix need not be). Drafts take what budget is left after that, and blocks that nobody waits for.
//   2. Prompts get the rest. In each priority class the oldest is sure of a share (the long-prefill threshold); then
//      come all that can finish within the threshold, by arrival; what is left goes to the oldest first. So a short
//      prompt does not wait behind a long one, a long one always moves, and equal ones run first come, first served.
//      While sequences decode, the rest is no more than keeps the step within max_prefill_stall_ms (PrefillPacer).
//   3. A waiting sequence starts when there are a row and the blocks of all its tokens: later only decode needs new
//      blocks. While the oldest waiting one cannot get its blocks, no younger one starts. One of higher priority than
//      running ones takes their place, if that gives it what it needs.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "core/engine_config.h"
#include "core/step_plan.h"
#include "kv_cache/kv_cache.h"
#include "scheduler/prefill_pacer.h"
#include "scheduler/sequence.h"

namespace spate {

struct ScheduledSeq {
  Sequence* seq = nullptr;
  int num_computed_tokens = 0;  // before the step
  int query_len = 0;
  SeqPhase phase = SeqPhase::kPrefill;
  int num_drafts = 0;
  bool sample = false;
  bool is_constrained = false;  // samples under masks
  bool prompt_logprobs = false;
  uint32_t pool_flag = 0;  // of kPoolFlags
};

// What runs in one step and what the device must be told for it. Reused; keeps its memory.
struct ScheduledStep {
  uint64_t step_id = 0;
  ReleaseTicket ticket;
  int num_tokens = 0;
  std::vector<ScheduledSeq> seqs;
  std::vector<ScheduledSeq> new_rows;  // these of seqs enter their row with this step
  std::vector<BlockUpdate> block_updates;  // blocks_begin counts in block_ids
  std::vector<int32_t> block_ids;
  std::vector<BlockCopy> block_copies;
  bool masks_are_late = false;  // of its constrained sequences one has a token in flight
  int num_mask_words = 0;       // of one mask

  bool empty() const { return seqs.empty(); }
  void clear();
};

struct SchedulerStats {
  uint64_t num_preemptions = 0;
  uint64_t prefix_cache_queries = 0;  // tokens
  uint64_t prefix_cache_hits = 0;
  uint64_t num_forks = 0;  // sequences that started from their group's shared prompt blocks
};

// One per engine, engine thread only. Groups are owned by the caller and must outlive their steps in flight.
// Blocks that a sequence gives up return to the pool when the steps that use them are collected and the transfers that
// read them are complete.
class Scheduler {
 public:
  // hash_mask: tests make the prefix index's hashes collide with it.
  explicit Scheduler(const EngineConfig& config, uint64_t hash_mask = ~uint64_t{0});
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void add(SequenceGroup& group);
  // Ends a sequence in any state; its blocks go back once its last step in flight is collected.
  void finish(Sequence& seq);

  // The next step; empty when nothing can run. Its sequences count as computed from now on.
  void schedule_step(ScheduledStep& step);
  // The step was collected (steps are collected in order) after so many seconds on the device (0: not known): its
  // blocks may be reused, also those that its rejected drafts would have needed. num_accepted: drafts of each sampled
  // sequence, or empty for a step without drafts. Before the step's append_token calls.
  void retire_step(const ScheduledStep& step, std::span<const int32_t> num_accepted = {}, double device_seconds = 0);
  // A token that a retired step sampled.
  void append_token(Sequence& seq, int32_t token_id);
  // No step in flight will be collected: the executor has failed.
  void abandon_steps();

  // The first num_blocks blocks of a running sequence stay as they are until the ticket is dropped.
  ReleaseTicket open_transfer(const Sequence& seq, int num_blocks) {
    return kv_cache_.open_transfer(seq.blocks, num_blocks);
  }
  void complete_transfer(ReleaseTicket ticket) { kv_cache_.drop(ticket); }
  // What the sequence has computed is not to be trusted: nobody finds its blocks by prefix any more.
  void forget_prefix(const Sequence& seq) { kv_cache_.forget_prefix(seq.tokens(), seq.group->request.reuse_scope); }
  int forget_all_prefixes() { return kv_cache_.forget_all(); }  // how many blocks could be found before

  std::span<Sequence* const> running() const { return running_; }  // by key
  int num_running() const { return static_cast<int>(running_.size()); }
  int num_waiting() const { return static_cast<int>(waiting_.size()) + num_parked_; }
  bool idle() const { return running_.empty() && waiting_.empty() && num_parked_ == 0; }
  const KvCache& kv_cache() const { return kv_cache_; }
  const SchedulerStats& stats() const { return stats_; }

  // Stops the program when anything is inconsistent, down to the reference count of each block.
  void check_integrity() const;

 private:
  struct ByKey {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->key < b->key; }
  };
  struct PrefillCandidate {
    Sequence* seq;
    int num_remaining;  // waiting sequences: an estimate
    int query_len = 0;
    bool waiting;
  };

  // The passes of a step.
  void make_room_for_priority();
  void schedule_decodes(ScheduledStep& step);
  void schedule_prefills(ScheduledStep& step);
  void schedule_whole_prompts(ScheduledStep& step);
  void collect_prefill_candidates();
  void share_budget(size_t begin, size_t end, ScheduledStep& step);
  void give_tokens(PrefillCandidate& candidate, int max_query_len, ScheduledStep& step);
  void commit_step(ScheduledStep& step);
  void add_block_updates(Sequence& seq, ScheduledStep& step);

  // Memory.
  int num_wanted_drafts(const Sequence& seq) const;
  int fitting_drafts(const Sequence& seq, int max_drafts) const;
  void take_back_drafts(Sequence& seq, int num_rejected);
  bool extend_blocks(Sequence& seq);
  int num_blocks_needed(const Sequence& seq) const;
  bool fits(const Sequence& seq, bool count_kept) const;
  bool admit(Sequence& seq, int max_query_len, ScheduledStep& step);
  bool try_admit(Sequence& seq, int max_query_len, ScheduledStep& step);
  void preempt(Sequence& seq);
  void leave_row(Sequence& seq);
  void make_findable(Sequence& seq);

  // Groups of n > 1.
  void park_followers(SequenceGroup& group);
  void unpark(Sequence& seq);
  void share_prompt(SequenceGroup& group);
  bool can_fork(const Sequence& seq) const;
  void drop_unused_fork_blocks(SequenceGroup& group);
  bool drop_fork_blocks_of_another(const SequenceGroup* group);
  void drop_fork_blocks(SequenceGroup& group);

  const EngineConfig config_;
  const int threshold_;  // of a long prefill
  const int watermark_;  // blocks that starting sequences leave to running ones
  KvCache kv_cache_;
  PrefillPacer pacer_;
  std::set<Sequence*, ByKey> waiting_;
  std::vector<Sequence*> running_;  // by key
  int num_parked_ = 0;
  std::vector<int> free_rows_;
  std::vector<SequenceGroup*> fork_groups_;  // that have fork_blocks

  uint64_t next_step_id_ = 1;
  uint64_t retired_step_id_ = 0;

  // Of the step being scheduled.
  int budget_ = 0;
  bool admissions_closed_ = false;
  std::vector<PrefillCandidate> candidates_;
  std::vector<ReplacedBlock> replaced_;

  SchedulerStats stats_;
};

}  // namespace spate
