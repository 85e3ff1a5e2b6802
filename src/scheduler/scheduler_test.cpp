// Goal: the policy as scheduler.h states it: who runs, with how many tokens, who is preempted, who waits. Method:
// hand-made groups stepped by hand; each test checks the plan of each step and the invariants. Correctness under random
// load is the simulation's business (engine/simulation_test.cpp).
#include "scheduler/scheduler.h"

#include <map>
#include <memory>

#include "base/test.h"

namespace spate {
namespace {

EngineConfig config_of(int max_num_seqs, int max_num_batched_tokens, int num_kv_blocks) {
  return {.limits = {.max_model_len = 4096,
                     .max_num_seqs = max_num_seqs,
                     .max_num_batched_tokens = max_num_batched_tokens,
                     .kv_block_size = 4},
          .num_kv_blocks = num_kv_blocks};
}

// The engine's part: makes groups, steps, appends a token 7 for each sample, ends sequences at their length.
class Harness {
 public:
  explicit Harness(const EngineConfig& config) : config_(config), scheduler(config) {}
  ~Harness() {
    for (const auto& group : groups_) {
      for (const auto& seq : group->seqs) {
        if (seq->state != SequenceState::kFinished) scheduler.finish(*seq);
      }
    }
    scheduler.abandon_steps();
    scheduler.check_integrity();
    CHECK(scheduler.kv_cache().pool().num_referenced() == 0);
  }

  // Prompts differ in their first token (no shared prefix) unless first_token says otherwise.
  SequenceGroup& add(int prompt_len, int max_tokens, int priority = 0, int n = 1, int first_token = -1) {
    auto group = std::make_unique<SequenceGroup>();
    group->request.id = groups_.size();
    group->request.prompt_token_ids.assign(prompt_len, 5);
    group->request.prompt_token_ids[0] = first_token >= 0 ? first_token : 1000 + static_cast<int>(groups_.size());
    for (int index = 0; index < n; ++index) {
      auto seq = std::make_unique<Sequence>();
      seq->group = group.get();
      seq->key = {.priority = priority, .arrival = groups_.size(), .index = index};
      seq->prompt_len = prompt_len;
      seq->max_len = prompt_len + max_tokens;
      group->seqs.push_back(std::move(seq));
    }
    groups_.push_back(std::move(group));
    scheduler.add(*groups_.back());
    return *groups_.back();
  }

  // Schedules a step and tells who got how many tokens: {group: tokens}, of sequence 0 unless n > 1 (then group * 100 +
  // index).
  std::map<int, int> schedule() {
    scheduler.schedule_step(step);
    scheduler.check_integrity();
    std::map<int, int> tokens;
    for (const ScheduledSeq& scheduled : step.seqs) {
      const SequenceGroup& group = *scheduled.seq->group;
      const auto id = static_cast<int>(group.request.id);
      tokens[group.seqs.size() > 1 ? id * 100 + scheduled.seq->key.index : id] = scheduled.query_len;
    }
    return tokens;
  }

  void collect(double device_seconds = 0) {
    if (step.empty()) return;
    scheduler.retire_step(step, {}, device_seconds);
    for (const ScheduledSeq& scheduled : step.seqs) {
      Sequence& seq = *scheduled.seq;
      if (!scheduled.sample || seq.state == SequenceState::kFinished) continue;
      scheduler.append_token(seq, 7);
      if (static_cast<int>(seq.token_ids.size()) >= seq.max_len) scheduler.finish(seq);
    }
    scheduler.check_integrity();
  }

  std::map<int, int> run() {
    std::map<int, int> tokens = schedule();
    collect();
    return tokens;
  }

  const EngineConfig config_;
  Scheduler scheduler;
  ScheduledStep step;

 private:
  std::vector<std::unique_ptr<SequenceGroup>> groups_;
};

using Tokens = std::map<int, int>;

// Blocks hold 4 tokens. 8 prompt tokens, then 1 + 4 tokens a step at positions that the host knows as upper bounds.
TEST_CASE("drafts reserve blocks for the longest case and give the unused ones back") {
  EngineConfig config = config_of(2, 64, 16);
  config.num_drafts = 4;
  Harness h(config);
  SequenceGroup& group = h.add(8, 40);
  Sequence& seq = *group.seqs[0];
  CHECK(h.run() == Tokens{{0, 8}});
  const auto collect = [&](ScheduledStep& step, int num_accepted) {
    h.scheduler.retire_step(step, std::vector<int32_t>{num_accepted});
    for (int i = 0; i <= num_accepted; ++i) h.scheduler.append_token(seq, 7);
    h.scheduler.check_integrity();
  };
  ScheduledStep first, second;
  h.scheduler.schedule_step(first);  // positions 8 .. 12
  REQUIRE(first.seqs.size() == 1);
  CHECK(first.seqs[0].phase == SeqPhase::kDecode);
  CHECK(first.seqs[0].num_drafts == 4);
  CHECK(seq.num_computed_tokens == 13);
  CHECK(seq.blocks.size() == 4);
  h.scheduler.schedule_step(second);  // at most 13 .. 17
  CHECK(second.seqs[0].num_computed_tokens == 13);
  CHECK(seq.num_computed_tokens == 18);
  CHECK(seq.blocks.size() == 5);
  collect(first, 0);  // 9 computed, so that the second step ran 9 .. 13
  CHECK(seq.num_computed_tokens == 14);
  CHECK(seq.blocks.size() == 4);
  collect(second, 4);
  CHECK(seq.num_computed_tokens == 14);
  CHECK(seq.num_known_tokens() == 15);
  // Near its end a row has fewer drafts, and none when a step in flight may end it: 33 of 48 tokens at most are left.
  while (seq.num_tokens() < 48) {
    h.scheduler.schedule_step(first);
    REQUIRE(first.seqs.size() == 1);
    if (seq.num_tokens() < 48) collect(first, first.seqs[0].num_drafts);
  }
  h.scheduler.schedule_step(second);
  CHECK(second.empty());
  collect(first, 0);
  h.scheduler.schedule_step(second);
  CHECK(second.seqs.size() == 1);
}

TEST_CASE("drafts take blocks from nobody, and a preempted sequence waits for its tokens in flight") {
  EngineConfig config = config_of(2, 64, 6);
  config.num_drafts = 11;
  Harness h(config);
  SequenceGroup& older = h.add(8, 16);
  SequenceGroup& younger = h.add(3, 16);
  CHECK(h.run() == Tokens{{0, 8}, {1, 3}});  // 2 blocks and 1
  ScheduledStep first, second;
  h.scheduler.schedule_step(first);
  REQUIRE(first.seqs.size() == 2);
  CHECK(first.seqs[0].num_drafts == 11);  // the two blocks that are left
  CHECK(first.seqs[1].num_drafts == 0);
  CHECK(h.scheduler.stats().num_preemptions == 0);
  // The older may need a sixth block for its next token: the younger loses its row while its step is in flight.
  h.scheduler.schedule_step(second);
  CHECK(h.scheduler.stats().num_preemptions == 1);
  CHECK(younger.seqs[0]->state == SequenceState::kWaiting);
  CHECK(younger.seqs[0]->max_pending_tokens == 1);
  CHECK(second.empty());  // the younger's blocks are in use until the first step is collected
  h.scheduler.retire_step(first, std::vector<int32_t>{0, 0});
  h.scheduler.append_token(*older.seqs[0], 7);
  h.scheduler.append_token(*younger.seqs[0], 7);
  h.scheduler.check_integrity();
  CHECK(older.seqs[0]->num_known_tokens() == 10);
  CHECK(younger.seqs[0]->num_known_tokens() == 5);
  h.scheduler.schedule_step(first);
  REQUIRE(first.seqs.size() ==
          2);  // the younger comes back with all its tokens; the older's drafts leave it the blocks
  CHECK(first.seqs[0].num_drafts == 2);
}

// A prompt token costs 1 ms, a decode step 20 ms; 60 ms leave 40 tokens beside a running stream.
TEST_CASE("prompts beside a running stream take what the stall leaves") {
  EngineConfig config = config_of(4, 256, 400);
  config.max_prefill_stall_ms = 60;
  Harness h(config);
  h.add(200, 50);
  CHECK(h.schedule() == Tokens{{0, 200}});  // alone: the whole budget
  h.collect(0.200);
  CHECK(h.schedule() == Tokens{{0, 1}});
  h.collect(0.020);
  h.add(100, 10);
  CHECK(h.schedule() == Tokens{{0, 1}, {1, 40}});
  h.collect(0.060);
  CHECK(h.schedule() == Tokens{{0, 1}, {1, 40}});
  h.collect(0.060);
  CHECK(h.schedule() == Tokens{{0, 1}, {1, 20}});
}

TEST_CASE("prompts that fit run whole and together, then decode") {
  Harness h(config_of(4, 32, 64));
  h.add(5, 3);
  h.add(7, 2);
  CHECK(h.run() == Tokens{{0, 5}, {1, 7}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 1}});
  CHECK(h.run() == Tokens{{0, 1}});
  CHECK(h.run() == Tokens{});
  CHECK(h.scheduler.idle());
}

TEST_CASE("a long prompt is cut to the budget, decodes keep running beside it") {
  Harness h(config_of(4, 16, 64));
  h.add(3, 10);
  CHECK(h.run() == Tokens{{0, 3}});
  h.add(40, 2);
  CHECK(h.run() == Tokens{{0, 1}, {1, 15}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 15}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 10}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 1}});
}

TEST_CASE("a short prompt does not wait behind a long one, and the long one keeps moving") {
  Harness h(config_of(8, 16, 128));  // threshold: 4
  h.add(100, 1);
  CHECK(h.run() == Tokens{{0, 16}});
  h.add(4, 5);
  h.add(50, 1);
  h.add(3, 5);
  CHECK(h.run() == Tokens{{0, 9}, {1, 4}, {3, 3}});  // the oldest: its share and what is left
  CHECK(h.run() == Tokens{{0, 14}, {1, 1}, {3, 1}});
}

TEST_CASE("equal long prompts run first come, first served, not all at once") {
  Harness h(config_of(8, 16, 128));
  for (int i = 0; i < 3; ++i) h.add(32, 1);
  CHECK(h.run() == Tokens{{0, 16}});
  CHECK(h.run() == Tokens{{0, 16}});
  CHECK(h.run() == Tokens{{1, 16}});
}

TEST_CASE("an explicit threshold caps every prompt while others run, not a lone one") {
  EngineConfig config = config_of(8, 16, 128);
  config.long_prefill_token_threshold = 6;
  Harness h(config);
  h.add(30, 1);
  CHECK(h.run() == Tokens{{0, 16}});
  h.add(30, 1);
  CHECK(h.run() == Tokens{{0, 6}, {1, 6}});
}

TEST_CASE("a smaller priority goes first, and takes the place of a larger one when rows are full") {
  Harness h(config_of(2, 16, 64));
  h.add(8, 50, 1);
  h.add(8, 50, 2);
  CHECK(h.run() == Tokens{{0, 8}, {1, 8}});
  h.add(8, 2, 0);
  CHECK(h.run() == Tokens{{0, 1}, {2, 8}});  // the one of priority 2 lost its row
  CHECK(h.scheduler.stats().num_preemptions == 1);
  CHECK(h.run() == Tokens{{0, 1}, {2, 1}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 1}});  // back: 9 tokens, of which two full blocks were findable
}

TEST_CASE("nobody is preempted for a higher priority that would still not fit") {
  Harness h(config_of(4, 64, 12));
  h.add(20, 9, 0);
  h.add(8, 9, 1);
  CHECK(h.run() == Tokens{{0, 20}, {1, 8}});
  h.add(36, 4, 0);  // 9 blocks and one in reserve; 4 are free, the one of priority 1 holds 3
  CHECK(h.run() == Tokens{{0, 1}, {1, 1}});
  CHECK(h.scheduler.stats().num_preemptions == 0);
}

TEST_CASE("equal priority never preempts for a row") {
  Harness h(config_of(1, 16, 64));
  h.add(8, 3);
  CHECK(h.run() == Tokens{{0, 8}});
  h.add(8, 3);
  CHECK(h.run() == Tokens{{0, 1}});
  CHECK(h.run() == Tokens{{0, 1}});
  CHECK(h.run() == Tokens{{1, 8}});
}

TEST_CASE("out of blocks, the latest arrival is preempted and computes its tokens again") {
  EngineConfig config = config_of(4, 32, 7);  // 28 tokens
  config.enable_prefix_caching = false;
  Harness h(config);
  h.add(8, 12);
  h.add(8, 12);
  CHECK(h.run() == Tokens{{0, 8}, {1, 8}});
  for (int i = 0; i < 4; ++i) CHECK(h.run() == Tokens{{0, 1}, {1, 1}});
  // Both need a fourth block for token 13, one is left.
  CHECK(h.run() == Tokens{{0, 1}});
  CHECK(h.scheduler.stats().num_preemptions == 1);
  for (int i = 0; i < 6; ++i) CHECK(h.run() == Tokens{{0, 1}});
  CHECK(h.run() == Tokens{{1, 13}});
  CHECK(h.run() == Tokens{{1, 1}});
}

TEST_CASE("while the oldest waiting one lacks blocks, no younger one starts") {
  Harness h(config_of(4, 64, 12));
  h.add(20, 9);
  h.run();
  h.add(36, 4);  // needs 9 of the 7 left
  h.add(4, 4);   // would fit
  CHECK(h.run() == Tokens{{0, 1}});
  CHECK(h.scheduler.num_waiting() == 2);
}

TEST_CASE("without chunks a prompt waits until it fits whole, in order") {
  EngineConfig config = config_of(4, 16, 64);
  config.enable_chunked_prefill = false;
  Harness h(config);
  h.add(10, 3);
  h.add(14, 3);
  h.add(2, 3);
  CHECK(h.run() == Tokens{{0, 10}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 14}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 1}, {2, 2}});
}

TEST_CASE("a prefix that was computed is not computed again") {
  Harness h(config_of(4, 32, 64));
  h.add(12, 1, 0, 1, 1);
  CHECK(h.run() == Tokens{{0, 12}});
  h.add(12, 1, 0, 1, 1);
  CHECK(h.run() == Tokens{{1, 4}});  // the last block holds the last token, whose logits are wanted
  CHECK(h.scheduler.stats().prefix_cache_hits == 8);
  CHECK(h.scheduler.stats().prefix_cache_queries == 24);
  SequenceGroup& group = h.add(12, 1, 0, 1, 1);
  group.seqs[0]->needs_prompt_logprobs = true;
  CHECK(h.run() == Tokens{{2, 12}});
}

TEST_CASE("the sequences of n share the prompt's blocks and copy the part-filled one") {
  EngineConfig config = config_of(4, 32, 64);
  config.enable_prefix_caching = false;
  Harness h(config);
  SequenceGroup& group = h.add(11, 3, 0, 3);
  CHECK(h.run() == Tokens{{0, 11}});
  CHECK(h.run() == Tokens{{0, 1}, {1, 1}, {2, 1}});
  CHECK(h.step.block_copies.size() == 2);
  CHECK(group.seqs[2]->blocks.leases[1].block_id() == group.seqs[0]->blocks.leases[1].block_id());
  CHECK(group.seqs[2]->blocks.leases[2].block_id() != group.seqs[0]->blocks.leases[2].block_id());
  CHECK(h.scheduler.stats().num_forks == 2);
  CHECK(group.fork_blocks.empty());
}

TEST_CASE("when the leader is cancelled before the prompt is done, the next one leads") {
  Harness h(config_of(4, 8, 64));
  SequenceGroup& group = h.add(20, 3, 0, 3);
  CHECK(h.run() == Tokens{{0, 8}});
  h.scheduler.finish(*group.seqs[0]);
  h.scheduler.check_integrity();
  CHECK(h.run() == Tokens{{1, 8}});  // two blocks of the first are findable, 12 tokens are left
  CHECK(h.run() == Tokens{{1, 4}});
  CHECK(h.run() == Tokens{{1, 1}, {2, 1}});
}

TEST_CASE("under memory pressure shared prompt blocks go before a running sequence does") {
  EngineConfig config = config_of(2, 32, 6);
  config.enable_prefix_caching = false;
  Harness h(config);
  h.add(4, 12);
  h.add(9, 4, 0, 3);
  CHECK(h.run() == Tokens{{0, 4}, {100, 9}});  // the forks find no row
  CHECK(h.run() == Tokens{{0, 1}, {100, 1}});
  for (int i = 0; i < 3; ++i) h.run();  // sequence 100 ends, its fork takes the row: 2 shared blocks and a copy
  CHECK(h.scheduler.stats().num_forks >= 1);
  for (int i = 0; i < 40 && !h.scheduler.idle(); ++i) h.run();
  CHECK(h.scheduler.idle());
}

TEST_CASE("blocks given up wait for the step that uses them") {
  EngineConfig config = config_of(4, 32, 64);
  config.enable_prefix_caching = false;
  Harness h(config);
  SequenceGroup& group = h.add(8, 20);
  h.schedule();  // in flight
  h.scheduler.finish(*group.seqs[0]);
  CHECK(h.scheduler.kv_cache().pool().num_referenced() == 2);
  h.collect();
  CHECK(h.scheduler.kv_cache().pool().num_referenced() == 0);
}

TEST_CASE("a prompt waits for the blocks that a transfer reads") {
  EngineConfig config = config_of(2, 32, 4);
  config.enable_prefix_caching = false;
  Harness h(config);
  SequenceGroup& group = h.add(12, 4);
  CHECK(h.run() == Tokens{{0, 12}});
  const ReleaseTicket transfer = h.scheduler.open_transfer(*group.seqs[0], 3);
  h.scheduler.finish(*group.seqs[0]);
  h.add(8, 2);
  CHECK(h.run() == Tokens{});
  CHECK(h.scheduler.kv_cache().num_available() == 1);
  h.scheduler.complete_transfer(transfer);
  CHECK(h.run() == Tokens{{1, 8}});
}

TEST_CASE("a running sequence sits out for blocks that a transfer brings back, and nobody is preempted") {
  EngineConfig config = config_of(2, 32, 5);
  config.enable_prefix_caching = false;
  Harness h(config);
  h.add(8, 8);
  SequenceGroup& ended = h.add(8, 8);
  CHECK(h.run() == Tokens{{0, 8}, {1, 8}});
  const ReleaseTicket transfer = h.scheduler.open_transfer(*ended.seqs[0], 2);
  h.scheduler.finish(*ended.seqs[0]);
  for (int i = 0; i < 4; ++i) CHECK(h.run() == Tokens{{0, 1}});
  for (int i = 0; i < 3; ++i) CHECK(h.run() == Tokens{});  // token 13 needs a fourth block
  CHECK(h.scheduler.num_running() == 1);
  CHECK(h.scheduler.stats().num_preemptions == 0);
  h.scheduler.complete_transfer(transfer);
  CHECK(h.run() == Tokens{{0, 1}});
}

TEST_CASE("a prefix that was forgotten is computed again") {
  Harness h(config_of(4, 32, 64));
  SequenceGroup& group = h.add(12, 4, 0, 1, 1);
  CHECK(h.run() == Tokens{{0, 12}});
  h.scheduler.forget_prefix(*group.seqs[0]);
  h.scheduler.finish(*group.seqs[0]);
  h.add(12, 4, 0, 1, 1);
  CHECK(h.run() == Tokens{{1, 12}});
  h.add(12, 4, 0, 1, 1);
  CHECK(h.run() == Tokens{{1, 1}, {2, 4}});
}

}  // namespace
}  // namespace spate
