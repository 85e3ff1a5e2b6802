#include <algorithm>

#include "engine/request_life.h"

namespace spate {
namespace {

SequenceInspection inspect_sequence(const Sequence& seq, double now) {
  using Phase = SequenceInspection::Phase;
  const bool is_running = seq.state == SequenceState::kRunning;
  return {.id = seq.group->request.id,
          .index = seq.key.index,
          .phase = !is_running                                ? Phase::kWaiting
                   : seq.num_computed_tokens < seq.prompt_len ? Phase::kPrefill
                                                              : Phase::kDecode,
          .age_seconds = now - seq.group->arrival_seconds,
          .prompt_len = seq.prompt_len,
          .num_cached_tokens = seq.num_cached_tokens,
          .num_computed_tokens = seq.num_computed_tokens,
          .num_output_tokens = seq.num_output_tokens(),
          .num_blocks = seq.blocks.size(),
          .num_drafts = seq.num_drafts_run,
          .num_drafts_accepted = seq.num_drafts_accepted};
}

}  // namespace

void inspect_sequences(std::vector<const Sequence*> seqs, const BlockPool& pool, double now, EngineInspection& out) {
  const auto is_waiting = [](const Sequence* seq) { return seq->state != SequenceState::kRunning; };
  std::ranges::sort(seqs, [&](const Sequence* a, const Sequence* b) {
    return is_waiting(a) != is_waiting(b) ? is_waiting(b) : a->key < b->key;
  });
  out.num_waiting = static_cast<int>(std::ranges::count_if(seqs, is_waiting));
  out.num_running = static_cast<int>(seqs.size()) - out.num_waiting;
  seqs.resize(static_cast<size_t>(out.num_running + std::min(out.num_waiting, kMaxInspectedWaiting)));

  out.block_owners.assign(static_cast<size_t>(pool.num_blocks()), EngineInspection::kFreeBlock);
  for (const Sequence* seq : seqs) {
    for (const BlockLease& lease : seq->blocks.leases) {
      int32_t& owner = out.block_owners[static_cast<size_t>(lease.block_id())];
      owner = owner == EngineInspection::kFreeBlock ? static_cast<int32_t>(out.seqs.size())
                                                    : EngineInspection::kSharedBlock;
    }
    out.seqs.push_back(inspect_sequence(*seq, now));
  }
  for (int32_t block_id = 0; block_id < pool.num_blocks(); ++block_id) {
    int32_t& owner = out.block_owners[static_cast<size_t>(block_id)];
    if (owner != EngineInspection::kFreeBlock) continue;
    if (pool.ref_count(block_id) > 0) {
      owner = EngineInspection::kSharedBlock;
    } else if (pool.is_findable(block_id)) {
      owner = EngineInspection::kCachedBlock;
    }
  }
}

StepRecord record_step(const ScheduledStep& step, const StepResult& result) {
  StepRecord record{
      .step_id = step.step_id, .num_seqs = static_cast<int>(step.seqs.size()), .device_seconds = result.device_seconds};
  for (const ScheduledSeq& scheduled : step.seqs) {
    int& count = scheduled.seq->state == SequenceState::kFinished ? record.num_wasted_tokens
                 : scheduled.phase == SeqPhase::kPrefill          ? record.num_prefill_tokens
                                                                  : record.num_decode_tokens;
    count += scheduled.query_len;
    record.num_drafts += scheduled.num_drafts;
  }
  for (const int32_t num_accepted : result.num_accepted) record.num_drafts_accepted += num_accepted;
  for (const ScheduledSeq& entered : step.new_rows) record.num_cached_tokens += entered.num_computed_tokens;
  return record;
}

}  // namespace spate
