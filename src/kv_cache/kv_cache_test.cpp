// Goal: a cached prefix is exactly the longest one written, eviction takes the oldest leaf, equal blocks become one, a
// block under a step or a transfer is given to nobody. Method: hand-made cases with a block of two tokens, then random
// sequences that look up, compute, register, transfer, forget and release.
#include "kv_cache/kv_cache.h"

#include <algorithm>
#include <map>

#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

using Tokens = std::vector<int32_t>;

// A sequence that computes all its tokens, as the scheduler would; returns how many of its blocks were found.
int compute(KvCache& kv_cache, SequenceBlocks& blocks, const Tokens& tokens, std::string_view scope,
            std::vector<ReplacedBlock>* replaced = nullptr) {
  const int num_found = kv_cache.take_cached_prefix(tokens, scope, (static_cast<int>(tokens.size()) - 1) / 2, blocks);
  REQUIRE(kv_cache.allocate(blocks, kv_cache.blocks_for(static_cast<int>(tokens.size())) - num_found));
  std::vector<ReplacedBlock> discarded;
  kv_cache.make_findable(blocks, tokens, static_cast<int>(tokens.size()), scope,
                         replaced != nullptr ? *replaced : discarded);
  kv_cache.check_integrity();
  return num_found;
}

TEST_CASE("a prefix is found while it lives and after it is released") {
  KvCache kv_cache(8, 2, true);
  SequenceBlocks a, b;
  CHECK(compute(kv_cache, a, {1, 2, 3, 4, 5}, "") == 0);
  CHECK(compute(kv_cache, b, {1, 2, 3, 4, 6, 7}, "") == 2);
  CHECK(a.leases[1].block_id() == b.leases[1].block_id());
  CHECK(kv_cache.pool().ref_count(a.leases[0].block_id()) == 2);
  const PrefixMatch match = kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4, 6, 7}, "", 3);
  CHECK(match.num_blocks == 3);
  CHECK(match.num_referenced == 3);
  a.clear();
  b.clear();
  CHECK(kv_cache.pool().num_referenced() == 0);
  CHECK(kv_cache.num_available() == 8);
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4, 6, 7}, "", 3).num_blocks == 3);
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4, 6, 7}, "", 3).num_referenced == 0);
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4, 6, 7}, "", 2).num_blocks == 2);  // max_blocks
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4, 6, 7}, "other", 3).num_blocks == 0);
  CHECK(kv_cache.find_cached_prefix(Tokens{2, 2, 3, 4, 6, 7}, "", 3).num_blocks == 0);
}

TEST_CASE("with the cache off nothing is found and nothing is kept") {
  KvCache kv_cache(4, 2, false);
  SequenceBlocks a;
  CHECK(compute(kv_cache, a, {1, 2, 3, 4}, "") == 0);
  a.clear();
  CHECK(kv_cache.pool().num_cached() == 0);
  CHECK(compute(kv_cache, a, {1, 2, 3, 4}, "") == 0);
}

TEST_CASE("eviction takes the least recently released leaf and never a held block") {
  KvCache kv_cache(4, 2, true);
  SequenceBlocks a, b;
  compute(kv_cache, a, {1, 2, 3, 4}, "");
  compute(kv_cache, b, {5, 6, 7, 8}, "");
  a.clear();
  b.clear();
  SequenceBlocks c;
  REQUIRE(kv_cache.allocate(c, 1));  // takes a's second block: its first is its parent
  kv_cache.check_integrity();
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4}, "", 2).num_blocks == 1);
  CHECK(kv_cache.find_cached_prefix(Tokens{5, 6, 7, 8}, "", 2).num_blocks == 2);
  SequenceBlocks d;
  CHECK(kv_cache.take_cached_prefix(Tokens{1, 2}, "", 1, d) == 1);  // held now: the next victims are b's
  REQUIRE(kv_cache.allocate(c, 2));
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2}, "", 1).num_blocks == 1);
  CHECK(kv_cache.find_cached_prefix(Tokens{5, 6}, "", 1).num_blocks == 0);
  CHECK_FALSE(kv_cache.allocate(c, 1));
  CHECK(c.size() == 3);
}

TEST_CASE("a block computed twice becomes one, and the other is handed out for later release") {
  KvCache kv_cache(8, 2, true);
  SequenceBlocks a, b;
  // Both computed their first block in the same step: neither found the other's.
  REQUIRE(kv_cache.allocate(a, 2));
  REQUIRE(kv_cache.allocate(b, 2));
  const int32_t own = b.leases[0].block_id();
  std::vector<ReplacedBlock> replaced;
  const Tokens tokens_a{1, 2, 3}, tokens_b{1, 2, 4, 5};
  kv_cache.make_findable(a, tokens_a, 3, "", replaced);
  CHECK(replaced.empty());
  kv_cache.make_findable(b, tokens_b, 3, "", replaced);
  REQUIRE(replaced.size() == 1);
  CHECK(replaced[0].block_idx == 0);
  CHECK(replaced[0].old_lease.block_id() == own);
  CHECK(b.leases[0].block_id() == a.leases[0].block_id());
  kv_cache.make_findable(b, tokens_b, 4, "", replaced);  // its second block continues the shared one
  kv_cache.check_integrity();
  a.clear();
  CHECK(kv_cache.find_cached_prefix(tokens_b, "", 2).num_blocks == 2);
  CHECK(kv_cache.num_available() == 5);  // b's two and the replaced one are held
  replaced.clear();
  CHECK(kv_cache.num_available() == 6);
}

TEST_CASE("a block that waits for a step and a transfer comes back with the last of them") {
  for (const bool step_first : {false, true}) {
    KvCache kv_cache(2, 2, false);
    SequenceBlocks a;
    REQUIRE(kv_cache.allocate(a, 2));
    const ReleaseTicket step = kv_cache.open_step(), transfer = kv_cache.open_transfer(a, 1);
    kv_cache.keep(step, std::move(a.leases));
    CHECK(kv_cache.num_available() == 0);
    CHECK(kv_cache.num_kept() == 2);
    kv_cache.drop(step_first ? step : transfer);
    CHECK(kv_cache.num_available() == (step_first ? 1 : 0));
    CHECK(kv_cache.num_kept() == (step_first ? 1 : 2));
    kv_cache.drop(step_first ? transfer : step);
    CHECK(kv_cache.num_available() == 2);
    CHECK(kv_cache.num_kept() == 0);
    SequenceBlocks b;
    REQUIRE(kv_cache.allocate(b, 2));
    kv_cache.keep(step, std::move(b.leases));  // a ticket that was dropped keeps nothing
    CHECK(kv_cache.num_available() == 2);
  }
}

TEST_CASE("cached blocks under a transfer are not evicted, and leave leaf first afterwards") {
  KvCache kv_cache(4, 2, true);
  SequenceBlocks a, b;
  compute(kv_cache, a, {1, 2, 3, 4}, "");
  const ReleaseTicket transfer = kv_cache.open_transfer(a, 2);
  a.clear();
  CHECK(kv_cache.num_available() == 2);
  CHECK_FALSE(kv_cache.allocate(b, 3));
  REQUIRE(kv_cache.allocate(b, 2));
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4}, "", 2).num_blocks == 2);
  kv_cache.drop(transfer);
  kv_cache.check_integrity();
  REQUIRE(kv_cache.allocate(b, 1));
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4}, "", 2).num_blocks == 1);
}

TEST_CASE("a block under a transfer is exchanged for an equal one after the transfer") {
  KvCache kv_cache(8, 2, true);
  SequenceBlocks a, b;
  const Tokens tokens{1, 2, 3, 4};
  compute(kv_cache, a, tokens, "");
  REQUIRE(kv_cache.allocate(b, 2));  // computed the same in the same step
  const int32_t own = b.leases[0].block_id();
  const ReleaseTicket transfer = kv_cache.open_transfer(b, 2);
  std::vector<ReplacedBlock> replaced;
  kv_cache.make_findable(b, tokens, 4, "", replaced);
  CHECK(replaced.empty());
  CHECK(b.leases[0].block_id() == own);
  CHECK(b.num_findable == 0);
  kv_cache.drop(transfer);
  kv_cache.make_findable(b, tokens, 4, "", replaced);
  CHECK(replaced.size() == 2);
  CHECK(b.leases[0].block_id() == a.leases[0].block_id());
  kv_cache.check_integrity();
}

TEST_CASE("a forgotten prefix and what continues it is not found, and who holds its blocks may bring them back") {
  KvCache kv_cache(8, 2, true);
  SequenceBlocks a, b, c, other;
  compute(kv_cache, a, {1, 2, 3, 4}, "");
  compute(kv_cache, b, {1, 2, 5, 6, 7, 8}, "");
  compute(kv_cache, c, {1, 2, 9, 9}, "");
  compute(kv_cache, other, {1, 2}, "scope");
  c.clear();
  CHECK(kv_cache.pool().num_cached() == 1);
  kv_cache.forget_prefix(Tokens{1, 2, 3, 4}, "");
  kv_cache.check_integrity();
  CHECK(kv_cache.pool().num_cached() == 0);
  for (const Tokens& tokens : {Tokens{1, 2, 3, 4}, Tokens{1, 2, 5, 6, 7, 8}, Tokens{1, 2, 9, 9}}) {
    CHECK(kv_cache.find_cached_prefix(tokens, "", 3).num_blocks == 0);
  }
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2}, "scope", 1).num_blocks == 1);
  a.clear();
  std::vector<ReplacedBlock> replaced;
  kv_cache.make_findable(b, Tokens{1, 2, 5, 6, 7, 8}, 6, "", replaced);
  kv_cache.check_integrity();
  CHECK(replaced.empty());
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 5, 6, 7, 8}, "", 3).num_blocks == 3);
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4}, "", 2).num_blocks == 1);
  kv_cache.forget_prefix(Tokens{1}, "");  // shorter than a block: nothing was findable
  kv_cache.forget_prefix(Tokens{4, 4}, "");
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 5, 6, 7, 8}, "", 3).num_blocks == 3);
}

TEST_CASE("all is forgotten: nothing is found in any scope, what is held stays and may come back") {
  KvCache kv_cache(8, 2, true);
  SequenceBlocks a, b, other;
  compute(kv_cache, a, {1, 2, 3, 4}, "");
  compute(kv_cache, b, {1, 2, 5, 6}, "");
  compute(kv_cache, other, {1, 2}, "scope");
  b.clear();
  other.clear();
  CHECK(kv_cache.forget_all() == 4);
  kv_cache.check_integrity();
  CHECK(kv_cache.pool().num_cached() == 0);
  CHECK(kv_cache.pool().num_referenced() == 2);
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4}, "", 2).num_blocks == 0);
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2}, "scope", 1).num_blocks == 0);
  CHECK(kv_cache.forget_all() == 0);
  std::vector<ReplacedBlock> replaced;
  kv_cache.make_findable(a, Tokens{1, 2, 3, 4}, 4, "", replaced);
  kv_cache.check_integrity();
  CHECK(kv_cache.find_cached_prefix(Tokens{1, 2, 3, 4}, "", 2).num_blocks == 2);
}

TEST_CASE("random sequences: what is found was written, and everything comes back") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  for (const uint64_t hash_mask : {~uint64_t{0}, uint64_t{0}}) {
    Rng rng(seed, hash_mask);
    constexpr int kNumBlocks = 16;
    KvCache kv_cache(kNumBlocks, 2, true, hash_mask);
    std::map<int32_t, std::pair<std::string, Tokens>> contents;  // block -> scope and all tokens up to its end
    std::vector<SequenceBlocks> held;
    struct Transfer {
      ReleaseTicket ticket;
      std::vector<int32_t> block_ids;
    };
    std::vector<Transfer> transfers;
    const auto is_under_transfer = [&](int32_t block_id) {
      return std::ranges::any_of(transfers, [&](const Transfer& transfer) {
        return std::ranges::find(transfer.block_ids, block_id) != transfer.block_ids.end();
      });
    };
    int num_hits = 0;
    for (int i = 0; i < 10000; ++i) {
      if (!transfers.empty() && rng.below(4) == 0) {
        std::swap(transfers[rng.below(transfers.size())], transfers.back());
        kv_cache.drop(transfers.back().ticket);
        transfers.pop_back();
      }
      if (held.size() >= 3 || (!held.empty() && rng.below(3) == 0)) {
        std::swap(held[rng.below(held.size())], held.back());
        held.pop_back();
      }
      Tokens tokens(1 + rng.below(9));
      for (int32_t& token : tokens) token = static_cast<int32_t>(rng.below(2));
      const std::string scope = rng.below(3) == 0 ? "s" : "";
      SequenceBlocks blocks;
      const int max_blocks = (static_cast<int>(tokens.size()) - 1) / 2;
      const int num_found = kv_cache.take_cached_prefix(tokens, scope, max_blocks, blocks);
      for (int k = 0; k < num_found; ++k) {
        const Tokens prefix(tokens.begin(), tokens.begin() + 2 * (k + 1));
        REQUIRE(contents.at(blocks.leases[k].block_id()) == std::pair(scope, prefix));
      }
      num_hits += num_found > 0;
      if (rng.below(20) == 0) {
        kv_cache.forget_prefix(tokens, scope);
        REQUIRE(kv_cache.find_cached_prefix(tokens, scope, max_blocks).num_blocks == 0);
      }
      if (!kv_cache.allocate(blocks, kv_cache.blocks_for(static_cast<int>(tokens.size())) - num_found)) continue;
      for (int k = num_found; k < blocks.size(); ++k) REQUIRE_FALSE(is_under_transfer(blocks.leases[k].block_id()));
      if (rng.below(4) == 0) {
        const int num_blocks = static_cast<int>(rng.below(blocks.leases.size() + 1));
        transfers.push_back({kv_cache.open_transfer(blocks, num_blocks), {}});
        for (int k = 0; k < num_blocks; ++k) transfers.back().block_ids.push_back(blocks.leases[k].block_id());
      }
      for (int k = num_found; 2 * (k + 1) <= static_cast<int>(tokens.size()); ++k) {
        contents[blocks.leases[k].block_id()] = {scope, Tokens(tokens.begin(), tokens.begin() + 2 * (k + 1))};
      }
      std::vector<ReplacedBlock> replaced;
      kv_cache.make_findable(blocks, tokens, static_cast<int>(tokens.size()), scope, replaced);
      held.push_back(std::move(blocks));
      replaced.clear();
      kv_cache.check_integrity();
    }
    CHECK(num_hits > 500);
    held.clear();
    kv_cache.check_integrity();
    for (const Transfer& transfer : transfers) kv_cache.drop(transfer.ticket);
    kv_cache.check_integrity();
    CHECK(kv_cache.num_available() == kNumBlocks);
  }
}

}  // namespace
}  // namespace spate
