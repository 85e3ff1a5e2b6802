#include "server/state_report.h"

#include <algorithm>

namespace spate {
namespace {

constexpr size_t kNumSteps = 10;  // the last ones

std::string describe_blocks(const std::vector<int32_t>& owners) {
  using Blocks = EngineInspection;
  const auto count = [&](int32_t owner) { return std::count(owners.begin(), owners.end(), owner); };
  const auto num_free = count(Blocks::kFreeBlock), num_cached = count(Blocks::kCachedBlock),
             num_shared = count(Blocks::kSharedBlock);
  const auto num_own = static_cast<std::ptrdiff_t>(owners.size()) - num_free - num_cached - num_shared;
  return fmt::format("KV cache: {} blocks: {} of one sequence, {} shared or in flight, {} cached for reuse, {} free",
                     owners.size(), num_own, num_shared, num_cached, num_free);
}

// "" of none: a server without speculation tells nothing of it.
std::string describe_drafts(int num_drafts, int num_accepted) {
  return num_drafts == 0 ? std::string() : fmt::format(", {} of {} drafts accepted", num_accepted, num_drafts);
}

}  // namespace

std::string_view phase_name(SequenceInspection::Phase phase) {
  using Phase = SequenceInspection::Phase;
  return phase == Phase::kWaiting ? "waiting" : phase == Phase::kPrefill ? "prefill" : "decode";
}

std::string describe_step(const StepRecord& step) {
  return fmt::format(
      "step {}: {} sequences, {} prefill and {} decode tokens{}, {} from the prefix cache, {} wasted, {:.3f} ms",
      step.step_id, step.num_seqs, step.num_prefill_tokens, step.num_decode_tokens,
      describe_drafts(step.num_drafts, step.num_drafts_accepted), step.num_cached_tokens, step.num_wasted_tokens,
      step.device_seconds * 1e3);
}

std::vector<std::string> describe_state(const EngineStats& stats, const EngineInspection* seen) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "{} running, {} waiting, {} steps, {} preemptions, {} prompt and {} generated tokens, KV cache {:.1f} % used",
      stats.num_running, stats.num_waiting, stats.num_steps, stats.num_preemptions, stats.prompt_tokens,
      stats.generation_tokens, stats.kv_cache_usage * 100));
  if (!seen) {
    lines.emplace_back("the engine is in a long step: no more can be told");
    return lines;
  }
  lines.push_back(describe_blocks(seen->block_owners));
  for (size_t i = seen->steps.size() - std::min(seen->steps.size(), kNumSteps); i < seen->steps.size(); ++i) {
    lines.push_back(describe_step(seen->steps[i]));
  }
  for (const SequenceInspection& seq : seen->seqs) {
    lines.push_back(fmt::format(
        "request {}.{}: {} for {:.1f} s, {} of {} prompt tokens cached, {} computed, {} generated{}, {} blocks", seq.id,
        seq.index, phase_name(seq.phase), seq.age_seconds, seq.num_cached_tokens, seq.prompt_len,
        seq.num_computed_tokens, seq.num_output_tokens, describe_drafts(seq.num_drafts, seq.num_drafts_accepted),
        seq.num_blocks));
  }
  const int num_untold = seen->num_running + seen->num_waiting - static_cast<int>(seen->seqs.size());
  if (num_untold > 0) lines.push_back(fmt::format("{} more wait", num_untold));
  return lines;
}

}  // namespace spate
