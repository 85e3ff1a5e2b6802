// Sequence and SequenceGroup: a request inside the engine. Plain data; the scheduler changes the scheduling part, the
// engine the tokens and the results. Engine thread only.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/request.h"
#include "kv_cache/kv_cache.h"
#include "speculative/speculator.h"

namespace spate {

struct SequenceGroup;

enum class SequenceState : uint8_t {
  kWaiting,  // has no row and no blocks: new, parked behind its group's leader, or preempted
  kRunning,  // has a row and blocks
  kFinished,
};

// Smaller runs first: priority, then arrival, then index in the request.
struct SchedulingKey {
  int priority = 0;
  uint64_t arrival = 0;
  int index = 0;
  auto operator<=>(const SchedulingKey&) const = default;
};

struct Sequence {
  SequenceGroup* group = nullptr;
  SchedulingKey key;
  uint64_t seed = 0;
  int prompt_len = 0;
  int max_len = 0;                 // prompt and output: it ends when it has so many tokens
  std::vector<int32_t> token_ids;  // prompt and output that the host knows; empty before the first start (see tokens())

  // Scheduling. num_computed_tokens counts submitted steps, collected or not. The host does not know the tokens that a
  // step in flight samples; with drafts not even how many. So max_pending_tokens counts the most that can come, and
  // num_computed_tokens and num_tokens() are upper bounds until the step is collected.
  SequenceState state = SequenceState::kWaiting;
  bool parked = false;                 // waits until the group's leader has computed the prompt
  bool has_started = false;            // has had a row before
  bool needs_prompt_logprobs = false;
  int num_computed_tokens = 0;
  int max_pending_tokens = 0;  // that steps in flight sample: 1 + num_drafts each
  int num_steps_in_flight = 0;
  ReleaseTicket last_step;  // the latest step that uses its blocks
  int row = -1;
  bool row_has_sampled = false;  // since it entered its row: the executor may have proposed drafts behind it
  std::unique_ptr<ConstraintCursor> cursor;  // of a request with a constraint; else null
  SequenceSpeculation speculation;
  std::vector<int32_t> drafts;  // DraftSource::kProposer: for the next step, as far as there is room
  std::vector<std::unique_ptr<ConstraintCursor>> draft_cursors;  // with a cursor: where it would stand behind each draft
  int num_relaxed_drafts = 0;  // that relaxed acceptance may keep: so many of the first ones
  // Relaxed acceptance: whether the next token is one of the reasoning, by the tokens before num_tokens_read.
  bool reasons = false;
  int num_tokens_read = 0;
  int num_estimated_cached = 0;  // prompt tokens found by prefix when it arrived: a guess, for the order of prefills
  SequenceBlocks blocks;

  // What the device has not been told yet.
  bool row_is_new = false;
  int num_blocks_sent = 0;
  std::vector<int> replaced_block_idxs;

  // Results.
  int num_cached_tokens = 0;                   // prompt tokens that the prefix cache had when it started
  double queue_seconds = -1;                   // arrival to first row; -1 before that
  int num_preemptions = 0;
  int num_drafts_run = 0, num_drafts_accepted = 0;
  bool has_reported = false;                   // the first Output is out
  std::vector<TokenLogprobs> prompt_logprobs;  // collected so far; of prompt tokens 1, 2 ...
  std::vector<float> hidden_sum;               // Pooling::kMean: of the prompt tokens of collected steps

  bool pools() const;  // a hidden state of the prompt is wanted, no tokens
  // Every prompt token must be computed: nothing may come from a cache.
  bool needs_whole_prompt() const;
  // The tokens that the host knows. A sequence that has not started reads its request's: n waiting ones cost one
  // prompt.
  inline std::span<const int32_t> tokens() const;
  int num_known_tokens() const { return has_started ? static_cast<int>(token_ids.size()) : prompt_len; }
  int num_tokens() const { return num_known_tokens() + max_pending_tokens; }
  int num_output_tokens() const { return num_known_tokens() - prompt_len; }
  // One token is left to compute, and then the next is sampled.
  bool decodes() const { return num_remaining() == 1 && !pools(); }
  // Tokens to compute now; 0 when steps in flight may end it.
  int num_remaining() const { return num_tokens() >= max_len ? 0 : num_tokens() - num_computed_tokens; }
};

// The n sequences of a request. One of them, the leader, computes the prompt; the others are parked until then and
// share its prompt blocks. Also the unit of ownership: it lives until all its sequences have finished and left the
// steps in flight.
struct SequenceGroup {
  Request request;
  std::vector<int32_t> stop_ids;  // eos and stop_token_ids together
  double arrival_seconds = 0;
  std::vector<std::unique_ptr<Sequence>> seqs;
  int num_unfinished = 0;
  bool has_started = false;
  bool has_been_reported = false;  // that it ended

  Sequence* leader = nullptr;  // while others are parked behind it
  std::vector<BlockLease>
      fork_blocks;            // of the prompt's first prompt_len - 1 tokens, while sequences wait to share them
  ReleaseTicket fork_step;    // the latest step that writes or copies them
};

inline bool Sequence::pools() const { return group->request.pooling != Pooling::kNone; }
inline bool Sequence::needs_whole_prompt() const {
  return needs_prompt_logprobs || (pools() && group->request.pooling != Pooling::kLast);
}
inline std::span<const int32_t> Sequence::tokens() const {
  return has_started ? std::span<const int32_t>(token_ids) : std::span<const int32_t>(group->request.prompt_token_ids);
}

}  // namespace spate
