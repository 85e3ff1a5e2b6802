// Goal: a cached prefix is exactly the longest one written, eviction takes the oldest leaf, equal blocks become one.
// Method: hand-made cases with a block of two tokens, then random sequences that look up, compute, register and
// release.
#include "kv_cache/kv_cache.h"

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

TEST_CASE("random sequences: what is found was written, and everything comes back") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  for (const uint64_t hash_mask : {~uint64_t{0}, uint64_t{0}}) {
    Rng rng(seed, hash_mask);
    constexpr int kNumBlocks = 16;
    KvCache kv_cache(kNumBlocks, 2, true, hash_mask);
    std::map<int32_t, std::pair<std::string, Tokens>> contents;  // block -> scope and all tokens up to its end
    std::vector<SequenceBlocks> held;
    int num_hits = 0;
    for (int i = 0; i < 5000; ++i) {
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
      if (!kv_cache.allocate(blocks, kv_cache.blocks_for(static_cast<int>(tokens.size())) - num_found)) continue;
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
    CHECK(kv_cache.num_available() == kNumBlocks);
  }
}

}  // namespace
}  // namespace spate
