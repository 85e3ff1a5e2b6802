#include "scheduler/scheduler.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace spate {
namespace {

constexpr int kMaxWaitingScan = 256;  // waiting sequences looked at in one step

std::vector<int> all_rows(int max_num_seqs) {
  std::vector<int> rows(max_num_seqs);
  for (int row = 0; row < max_num_seqs; ++row) rows[row] = max_num_seqs - 1 - row;  // row 0 is taken first
  return rows;
}

// What a step of a sequence with this pooling gives, from StepPlan's kPoolFlags.
uint32_t pool_flag_of(Pooling pooling, bool is_first, bool is_last) {
  switch (pooling) {
    case Pooling::kNone:
      return 0;
    case Pooling::kLast:
      return is_last ? uint32_t{kPoolLast} : 0u;
    case Pooling::kMean:
      return kPoolSum;
    case Pooling::kCls:
      return is_first ? uint32_t{kPoolFirst} : 0u;
  }
  return 0;
}

}  // namespace

void ScheduledStep::clear() {
  num_tokens = 0;
  seqs.clear();
  new_rows.clear();
  block_updates.clear();
  block_ids.clear();
  block_copies.clear();
  masks_are_late = false;
}

Scheduler::Scheduler(const EngineConfig& config, uint64_t hash_mask)
    : config_(config),
      threshold_(config.long_prefill_token_threshold > 0 ? config.long_prefill_token_threshold
                                                         : std::max(1, config.limits.max_num_batched_tokens / 4)),
      watermark_(1 + config.num_kv_blocks / 100),
      kv_cache_(config.num_kv_blocks, config.limits.kv_block_size, config.enable_prefix_caching, hash_mask),
      pacer_(config.max_prefill_stall_ms * 1e-3, config.limits.max_num_batched_tokens),
      free_rows_(all_rows(config.limits.max_num_seqs)) {
  running_.reserve(config.limits.max_num_seqs);
}

Scheduler::~Scheduler() {
  CHECK(idle(), "{} sequences run and {} wait at the end", num_running(), num_waiting());
  abandon_steps();
}

// --- arrivals and ends ---

void Scheduler::add(SequenceGroup& group) {
  const Sequence& first = *group.seqs[0];
  const int num_estimated_cached =
      first.needs_whole_prompt() ? 0
                                  : config_.limits.kv_block_size *
                                        kv_cache_
                                            .find_cached_prefix(first.tokens(), group.request.reuse_scope,
                                                                (first.prompt_len - 1) / config_.limits.kv_block_size)
                                            .num_blocks;
  for (const auto& seq : group.seqs) {
    seq->num_estimated_cached = num_estimated_cached;
    waiting_.insert(seq.get());
  }
  // A prompt of one token leaves nothing to share: its last token is computed by each.
  if (group.seqs.size() > 1 && first.prompt_len > 1) park_followers(group);
}

void Scheduler::finish(Sequence& seq) {
  CHECK(seq.state != SequenceState::kFinished);
  if (seq.state == SequenceState::kRunning) {
    leave_row(seq);
  } else if (seq.parked) {
    seq.parked = false;
    --num_parked_;
  } else {
    waiting_.erase(&seq);
  }
  seq.state = SequenceState::kFinished;
  SequenceGroup& group = *seq.group;
  if (group.leader == &seq) {
    for (const auto& follower : group.seqs) {
      if (follower->parked) unpark(*follower);
    }
    park_followers(group);
  }
  drop_unused_fork_blocks(group);
}

void Scheduler::leave_row(Sequence& seq) {
  running_.erase(std::ranges::lower_bound(running_, &seq, ByKey{}));
  free_rows_.push_back(std::exchange(seq.row, -1));
  kv_cache_.keep(seq.last_step, std::move(seq.blocks.leases));
  seq.blocks.clear();
  seq.replaced_block_idxs.clear();
  seq.num_computed_tokens = 0;
  seq.row_has_sampled = false;
}

void Scheduler::preempt(Sequence& seq) {
  leave_row(seq);
  seq.state = SequenceState::kWaiting;
  seq.num_estimated_cached = 0;
  waiting_.insert(&seq);
  ++seq.num_preemptions;
  ++stats_.num_preemptions;
}

void Scheduler::retire_step(const ScheduledStep& step, std::span<const int32_t> num_accepted, double device_seconds) {
  CHECK(step.step_id == retired_step_id_ + 1, "step {} is collected after step {}", step.step_id, retired_step_id_);
  retired_step_id_ = step.step_id;
  int num_decode_tokens = 0;
  size_t num_sampled = 0;
  for (const ScheduledSeq& scheduled : step.seqs) {
    Sequence& seq = *scheduled.seq;
    --seq.num_steps_in_flight;
    if (scheduled.phase == SeqPhase::kDecode) num_decode_tokens += scheduled.query_len;
    if (!scheduled.sample) continue;
    seq.max_pending_tokens -= 1 + scheduled.num_drafts;
    const int sampled_idx = static_cast<int>(num_sampled++);
    if (scheduled.num_drafts == 0) continue;
    CHECK(sampled_idx < std::ssize(num_accepted) && num_accepted[sampled_idx] >= 0 &&
          num_accepted[sampled_idx] <= scheduled.num_drafts);
    take_back_drafts(seq, scheduled.num_drafts - num_accepted[sampled_idx]);
  }
  pacer_.record(num_decode_tokens, step.num_tokens - num_decode_tokens, device_seconds);
  kv_cache_.drop(step.ticket);
}

// The sequence's bounds were too high by so many tokens. Blocks beyond the new bound hold rejected drafts at most, and
// no step in flight touches them. A sequence that was preempted meanwhile has given up all blocks.
void Scheduler::take_back_drafts(Sequence& seq, int num_rejected) {
  if (num_rejected == 0 || seq.state != SequenceState::kRunning) return;
  seq.num_computed_tokens -= num_rejected;
  const int num_blocks = kv_cache_.blocks_for(seq.num_computed_tokens);
  while (seq.blocks.size() > num_blocks) seq.blocks.leases.pop_back();
  seq.num_blocks_sent = std::min(seq.num_blocks_sent, num_blocks);
}

void Scheduler::append_token(Sequence& seq, int32_t token_id) {
  seq.token_ids.push_back(token_id);
  if (seq.state == SequenceState::kRunning) make_findable(seq);
}

void Scheduler::abandon_steps() {
  retired_step_id_ = next_step_id_ - 1;
  kv_cache_.drop_all_steps();
}

// --- one step ---

void Scheduler::schedule_step(ScheduledStep& step) {
  step.clear();
  step.step_id = next_step_id_;
  step.ticket = kv_cache_.open_step();
  budget_ = config_.limits.max_num_batched_tokens;
  admissions_closed_ = false;
  make_room_for_priority();
  schedule_decodes(step);
  if (config_.enable_chunked_prefill) {
    const size_t num_decoding = step.seqs.size(), num_waiting = running_.size() - num_decoding + waiting_.size();
    if (num_decoding > 0) {
      const int num_decode_tokens = config_.limits.max_num_batched_tokens - budget_;
      budget_ = std::min(budget_, pacer_.max_prefill_tokens(num_decoding, num_decode_tokens, num_waiting));
    }
    schedule_prefills(step);
  } else {
    schedule_whole_prompts(step);
  }
  // The longest prefills last: devices may have another way for them (LongPrompts).
  const auto first_prefill = std::ranges::find(step.seqs, SeqPhase::kPrefill, &ScheduledSeq::phase);
  std::sort(first_prefill, step.seqs.end(), [](const ScheduledSeq& a, const ScheduledSeq& b) {
    return std::tie(a.query_len, a.seq->key) < std::tie(b.query_len, b.seq->key);
  });
  if (step.empty()) return kv_cache_.drop(step.ticket);
  commit_step(step);
}

// A waiting sequence of higher priority takes the place of the running ones with the largest keys, unless even all
// those of lower priority hold too few blocks for it.
void Scheduler::make_room_for_priority() {
  if (waiting_.empty() || running_.empty()) return;
  const Sequence& first = **waiting_.begin();
  int num_obtainable = kv_cache_.num_available() + kv_cache_.num_kept();
  for (const Sequence* seq : running_) {
    if (seq->key.priority > first.key.priority) num_obtainable += seq->blocks.size();
  }
  if (num_obtainable < num_blocks_needed(first)) return;
  while (!running_.empty() && running_.back()->key.priority > first.key.priority && !fits(first, true)) {
    preempt(*running_.back());
  }
}

void Scheduler::schedule_decodes(ScheduledStep& step) {
  for (size_t i = 0; i < running_.size(); ++i) {  // preemption only removes behind i, or i itself as the last
    Sequence& seq = *running_[i];
    if (!seq.decodes() || !extend_blocks(seq)) continue;
    step.seqs.push_back({.seq = &seq, .query_len = 1, .phase = SeqPhase::kDecode});
    --budget_;
  }
  if (config_.num_drafts == 0 && config_.draft_source != DraftSource::kProposer) return;
  for (ScheduledSeq& scheduled : step.seqs) {
    Sequence& seq = *scheduled.seq;
    scheduled.num_drafts = fitting_drafts(seq, std::min(num_wanted_drafts(seq), budget_));
    scheduled.query_len += scheduled.num_drafts;
    budget_ -= scheduled.num_drafts;
    const int num_missing = kv_cache_.blocks_for(seq.num_computed_tokens + scheduled.query_len) - seq.blocks.size();
    CHECK(num_missing <= 0 || kv_cache_.allocate(seq.blocks, num_missing));
  }
}

int Scheduler::num_wanted_drafts(const Sequence& seq) const {
  if (config_.draft_source != DraftSource::kProposer) return seq.cursor != nullptr ? 0 : config_.num_drafts;
  return static_cast<int>(seq.drafts.size());
}

// Drafts of a sequence that decodes: no more than its length and the available blocks allow. While others wait for
// blocks, drafts fill those that the sequence has.
int Scheduler::fitting_drafts(const Sequence& seq, int max_drafts) const {
  if (config_.draft_source == DraftSource::kExecutor && !seq.row_has_sampled) return 0;
  const int num_slots =
      (seq.blocks.size() + (waiting_.empty() ? kv_cache_.num_available() : 0)) * config_.limits.kv_block_size;
  return std::max(
      0, std::min({max_drafts, seq.max_len - 1 - seq.num_tokens(), num_slots - (seq.num_computed_tokens + 1)}));
}

// A block for the sequence's next token. False: it must sit out this step, or has been preempted itself.
bool Scheduler::extend_blocks(Sequence& seq) {
  const int num_missing = kv_cache_.blocks_for(seq.num_computed_tokens + 1) - seq.blocks.size();
  if (num_missing <= 0) return true;
  while (!kv_cache_.allocate(seq.blocks, num_missing)) {
    if (drop_fork_blocks_of_another(nullptr)) continue;
    // They come back with a step in flight or with a transfer.
    if (kv_cache_.num_available() + kv_cache_.num_kept() >= num_missing) return false;
    Sequence& victim = *running_.back();
    preempt(victim);
    admissions_closed_ = true;
    if (&victim == &seq) return false;
  }
  return true;
}

void Scheduler::collect_prefill_candidates() {
  candidates_.clear();
  for (Sequence* seq : running_) {
    if (seq->num_remaining() > 0 && !seq->decodes())
      candidates_.push_back({.seq = seq, .num_remaining = seq->num_remaining(), .waiting = false});
  }
  if (admissions_closed_ || free_rows_.empty() || waiting_.empty()) return;
  if (!fits(**waiting_.begin(), false) && !running_.empty()) {
    // The oldest waiting sequence goes first; nobody younger may take the blocks it waits for. Prompt blocks that wait
    // to be shared are worth less than progress.
    while (drop_fork_blocks_of_another((*waiting_.begin())->group)) {
    }
    if (!fits(**waiting_.begin(), false)) return;
  }
  int num_scanned = 0;
  for (Sequence* seq : waiting_) {
    if (++num_scanned > kMaxWaitingScan) break;
    if (seq->max_pending_tokens > 0) continue;  // preempted just now: a step in flight brings its last tokens
    const int num_estimated = seq->num_known_tokens() - seq->num_estimated_cached;
    candidates_.push_back({.seq = seq, .num_remaining = can_fork(*seq) ? 1 : num_estimated, .waiting = true});
  }
  std::ranges::sort(candidates_, {}, [](const PrefillCandidate& candidate) { return candidate.seq->key; });
}

void Scheduler::schedule_prefills(ScheduledStep& step) {
  if (budget_ == 0) return;
  collect_prefill_candidates();
  for (size_t begin = 0; begin < candidates_.size() && budget_ > 0;) {
    size_t end = begin + 1;
    while (end < candidates_.size() && candidates_[end].seq->key.priority == candidates_[begin].seq->key.priority)
      ++end;
    share_budget(begin, end, step);
    begin = end;
  }
  for (const PrefillCandidate& candidate : candidates_) {
    if (candidate.query_len > 0) step.seqs.push_back({.seq = candidate.seq, .query_len = candidate.query_len});
  }
}

// The candidates [begin, end) of one priority class, by arrival.
void Scheduler::share_budget(size_t begin, size_t end, ScheduledStep& step) {
  give_tokens(candidates_[begin], threshold_, step);
  for (size_t i = begin + 1; i < end && budget_ > 0; ++i) {
    if (candidates_[i].num_remaining <= threshold_) give_tokens(candidates_[i], threshold_, step);
  }
  // An explicit threshold also caps a prompt that could have more, while others run.
  const bool alone = running_.size() + waiting_.size() <= 1;
  const int max_query_len =
      config_.long_prefill_token_threshold > 0 && !alone ? threshold_ : config_.limits.max_num_batched_tokens;
  for (size_t i = begin; i < end && budget_ > 0; ++i) give_tokens(candidates_[i], max_query_len, step);
}

// More tokens for a candidate, up to max_query_len in this step; a waiting one starts, if it can.
void Scheduler::give_tokens(PrefillCandidate& candidate, int max_query_len, ScheduledStep& step) {
  if (candidate.waiting) {
    if (admissions_closed_ || !admit(*candidate.seq, budget_, step)) return;
    candidate.waiting = false;
    candidate.num_remaining = candidate.seq->num_remaining();
  }
  const int query_len = std::min({candidate.num_remaining, max_query_len, candidate.query_len + budget_});
  if (query_len <= candidate.query_len) return;
  budget_ -= query_len - candidate.query_len;
  candidate.query_len = query_len;
}

// Without chunks: prompts start by key, each when it fits into the step whole.
void Scheduler::schedule_whole_prompts(ScheduledStep& step) {
  while (!admissions_closed_ && budget_ > 0 && !waiting_.empty()) {
    Sequence& seq = **waiting_.begin();
    if (seq.max_pending_tokens > 0 || !admit(seq, budget_, step)) return;
    step.seqs.push_back({.seq = &seq, .query_len = seq.num_remaining()});
    budget_ -= seq.num_remaining();
  }
}

void Scheduler::commit_step(ScheduledStep& step) {
  ++next_step_id_;
  for (ScheduledSeq& scheduled : step.seqs) {
    Sequence& seq = *scheduled.seq;
    scheduled.num_computed_tokens = seq.num_computed_tokens;
    scheduled.prompt_logprobs = seq.needs_prompt_logprobs && seq.num_computed_tokens < seq.prompt_len - 1;
    seq.num_computed_tokens += scheduled.query_len;
    CHECK(seq.num_computed_tokens <= seq.num_tokens() + scheduled.num_drafts);
    const bool catches_up = seq.num_computed_tokens == seq.num_tokens() + scheduled.num_drafts;
    scheduled.sample = catches_up && !seq.pools();
    scheduled.pool_flag = pool_flag_of(seq.group->request.pooling, scheduled.num_computed_tokens == 0, catches_up);
    scheduled.is_constrained = scheduled.sample && seq.cursor != nullptr;
    if (scheduled.is_constrained) {
      step.masks_are_late |= seq.max_pending_tokens > 0;
      step.num_mask_words = static_cast<int>(seq.cursor->mask().size());
    }
    if (scheduled.sample) seq.max_pending_tokens += 1 + scheduled.num_drafts;
    seq.row_has_sampled |= scheduled.sample;
    ++seq.num_steps_in_flight;
    seq.last_step = step.ticket;
    step.num_tokens += scheduled.query_len;
    if (seq.row_is_new) step.new_rows.push_back(scheduled);
    add_block_updates(seq, step);
  }
  // After the block updates: a block that is exchanged for an equal one is still written by this step.
  for (const ScheduledSeq& scheduled : step.seqs) {
    Sequence& seq = *scheduled.seq;
    make_findable(seq);
    if (seq.group->leader == &seq && seq.num_computed_tokens >= seq.prompt_len) share_prompt(*seq.group);
  }
}

void Scheduler::add_block_updates(Sequence& seq, ScheduledStep& step) {
  const auto add = [&](int first_block_idx, int num_blocks) {
    step.block_updates.push_back({.row = seq.row,
                                  .first_block_idx = first_block_idx,
                                  .num_blocks = num_blocks,
                                  .blocks_begin = static_cast<uint32_t>(step.block_ids.size())});
    for (int i = 0; i < num_blocks; ++i) step.block_ids.push_back(seq.blocks.leases[first_block_idx + i].block_id());
  };
  for (const int block_idx : seq.replaced_block_idxs) {
    if (block_idx < seq.num_blocks_sent) add(block_idx, 1);
  }
  seq.replaced_block_idxs.clear();
  if (seq.blocks.size() > seq.num_blocks_sent) add(seq.num_blocks_sent, seq.blocks.size() - seq.num_blocks_sent);
  seq.num_blocks_sent = seq.blocks.size();
  seq.row_is_new = false;
}

void Scheduler::make_findable(Sequence& seq) {
  const int num_tokens = std::min(seq.num_computed_tokens, seq.num_known_tokens());
  replaced_.clear();
  kv_cache_.make_findable(seq.blocks, seq.tokens(), num_tokens, seq.group->request.reuse_scope, replaced_);
  if (replaced_.empty()) return;
  std::vector<BlockLease> old_leases;
  for (ReplacedBlock& replaced : replaced_) {
    seq.replaced_block_idxs.push_back(replaced.block_idx);
    old_leases.push_back(std::move(replaced.old_lease));
  }
  kv_cache_.keep(seq.last_step, std::move(old_leases));
}

// --- starting a sequence ---

// Available blocks that a waiting sequence takes to start, those included that it must leave to running ones.
int Scheduler::num_blocks_needed(const Sequence& seq) const {
  const int num_tokens = seq.num_known_tokens();
  int num_shared = 0;
  if (can_fork(seq)) {
    num_shared = (seq.prompt_len - 1) / config_.limits.kv_block_size;
  } else if (!seq.needs_whole_prompt()) {
    const PrefixMatch match = kv_cache_.find_cached_prefix(seq.tokens(), seq.group->request.reuse_scope,
                                                           (num_tokens - 1) / config_.limits.kv_block_size);
    num_shared = match.num_referenced;
  }
  return kv_cache_.blocks_for(num_tokens) - num_shared + (running_.empty() ? 0 : watermark_);
}

// Whether a row and enough blocks are there for a waiting sequence; with count_kept also those that come back with the
// steps in flight and the transfers.
bool Scheduler::fits(const Sequence& seq, bool count_kept) const {
  const int num_available = kv_cache_.num_available() + (count_kept ? kv_cache_.num_kept() : 0);
  return !free_rows_.empty() && num_available >= num_blocks_needed(seq);
}

// Gives a waiting sequence a row and blocks for all its tokens. False closes admissions for this step.
bool Scheduler::admit(Sequence& seq, int max_query_len, ScheduledStep& step) {
  bool admitted = try_admit(seq, max_query_len, step);
  // With nothing running, blocks kept for sharing and transfers are all that can be in the way.
  while (!admitted && running_.empty() && drop_fork_blocks_of_another(nullptr))
    admitted = try_admit(seq, max_query_len, step);
  if (!admitted) admissions_closed_ = true;
  return admitted;
}

bool Scheduler::try_admit(Sequence& seq, int max_query_len, ScheduledStep& step) {
  if (free_rows_.empty() || seq.parked) return false;
  SequenceGroup& group = *seq.group;
  const int num_tokens = seq.num_known_tokens();
  const bool fork = can_fork(seq);
  SequenceBlocks blocks;
  int num_cached_tokens = 0;
  if (fork) {
    num_cached_tokens = seq.prompt_len - 1;
    for (int i = 0; i < num_cached_tokens / config_.limits.kv_block_size; ++i)
      blocks.leases.push_back(group.fork_blocks[i].share());
  } else if (!seq.needs_whole_prompt()) {
    // At least one token is computed: its logits are wanted.
    num_cached_tokens = config_.limits.kv_block_size *
                        kv_cache_.take_cached_prefix(seq.tokens(), group.request.reuse_scope,
                                                     (num_tokens - 1) / config_.limits.kv_block_size, blocks);
  }
  if (!config_.enable_chunked_prefill && num_tokens - num_cached_tokens > max_query_len) return false;
  const int num_shared = blocks.size();
  const int num_new = kv_cache_.blocks_for(num_tokens) - num_shared;
  if (kv_cache_.num_available() < num_new + (running_.empty() ? 0 : watermark_)) return false;
  CHECK(kv_cache_.allocate(blocks, num_new));

  waiting_.erase(&seq);
  running_.insert(std::ranges::lower_bound(running_, &seq, ByKey{}), &seq);
  seq.state = SequenceState::kRunning;
  seq.row = free_rows_.back();
  free_rows_.pop_back();
  seq.blocks = std::move(blocks);
  seq.num_computed_tokens = num_cached_tokens;
  seq.row_is_new = true;
  seq.num_blocks_sent = 0;
  if (fork && num_cached_tokens % config_.limits.kv_block_size != 0) {
    step.block_copies.push_back({group.fork_blocks[num_shared].block_id(), seq.blocks.leases[num_shared].block_id()});
  }
  if (!seq.has_started) {
    seq.token_ids.assign(seq.tokens().begin(), seq.tokens().end());
    seq.has_started = true;
    seq.num_cached_tokens = fork ? 0 : num_cached_tokens;
    if (config_.enable_prefix_caching && !fork && !seq.needs_whole_prompt()) {
      stats_.prefix_cache_queries += seq.prompt_len;
      stats_.prefix_cache_hits += num_cached_tokens;
    }
  }
  if (fork) {
    ++stats_.num_forks;
    group.fork_step = step.ticket;
    drop_unused_fork_blocks(group);
  }
  return true;
}

// --- groups of n > 1 ---

// Of the sequences that have not started, the first leads and the others wait for its prompt.
void Scheduler::park_followers(SequenceGroup& group) {
  group.leader = nullptr;
  for (const auto& seq : group.seqs) {
    if (seq->state != SequenceState::kWaiting || seq->has_started) continue;
    if (group.leader == nullptr) {
      group.leader = seq.get();
      continue;
    }
    waiting_.erase(seq.get());
    seq->parked = true;
    ++num_parked_;
  }
}

void Scheduler::unpark(Sequence& seq) {
  seq.parked = false;
  --num_parked_;
  waiting_.insert(&seq);
}

// The leader's prompt will be computed by the step being scheduled: from the next one on the others share its blocks.
void Scheduler::share_prompt(SequenceGroup& group) {
  const Sequence& leader = *std::exchange(group.leader, nullptr);
  bool any = false;
  for (const auto& seq : group.seqs) {
    if (!seq->parked) continue;
    unpark(*seq);
    any = true;
  }
  if (!any) return;
  const int num_blocks = kv_cache_.blocks_for(leader.prompt_len - 1);
  for (int i = 0; i < num_blocks; ++i) group.fork_blocks.push_back(leader.blocks.leases[i].share());
  group.fork_step = leader.last_step;
  fork_groups_.push_back(&group);
}

bool Scheduler::can_fork(const Sequence& seq) const {
  return !seq.group->fork_blocks.empty() && !seq.has_started && !seq.needs_whole_prompt();
}

void Scheduler::drop_unused_fork_blocks(SequenceGroup& group) {
  if (group.fork_blocks.empty()) return;
  for (const auto& seq : group.seqs) {
    if (seq->state == SequenceState::kWaiting && can_fork(*seq)) return;
  }
  drop_fork_blocks(group);
}

// Under memory pressure: some group's shared prompt blocks, but not this group's. False when there are none.
bool Scheduler::drop_fork_blocks_of_another(const SequenceGroup* group) {
  for (auto it = fork_groups_.rbegin(); it != fork_groups_.rend(); ++it) {
    if (*it == group) continue;
    SequenceGroup& other = **it;
    drop_fork_blocks(other);
    park_followers(other);  // one of them computes the prompt again
    return true;
  }
  return false;
}

void Scheduler::drop_fork_blocks(SequenceGroup& group) {
  kv_cache_.keep(group.fork_step, std::move(group.fork_blocks));
  group.fork_blocks.clear();
  std::erase(fork_groups_, &group);
}

}  // namespace spate
