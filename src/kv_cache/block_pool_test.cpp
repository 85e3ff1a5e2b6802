// Goal: a block is in exactly one place (free, cached, referenced) after any order of operations, and misuse stops the
// program. Method: hand-made cases for each transition, then random operations against a model that counts references.
#include "kv_cache/block_pool.h"

#include <cstdio>
#include <deque>

#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

TEST_CASE("a block goes free -> referenced -> free") {
  BlockPool pool(2);
  {
    BlockLease a = pool.allocate_free();
    BlockLease b = pool.allocate_free();
    CHECK(a.block_id() != b.block_id());
    CHECK_FALSE(pool.allocate_free());
    CHECK(pool.num_referenced() == 2);
    BlockLease shared = a.share();
    CHECK(shared.block_id() == a.block_id());
    CHECK(pool.ref_count(a.block_id()) == 2);
    a.reset();
    CHECK(pool.num_free() == 0);  // `shared` still holds it
    pool.check_integrity();
  }
  CHECK(pool.num_free() == 2);
  pool.check_integrity();
}

TEST_CASE("moving a lease moves the reference") {
  BlockPool pool(2);
  BlockLease a = pool.allocate_free();
  const int32_t block_id = a.block_id();
  BlockLease b = std::move(a);
  CHECK_FALSE(a);  // NOLINT: moved from on purpose
  CHECK(pool.ref_count(block_id) == 1);
  BlockLease c = pool.allocate_free();
  c = std::move(b);  // gives back what c held
  CHECK(pool.num_referenced() == 1);
  CHECK(c.block_id() == block_id);
}

TEST_CASE("a findable block is cached at the end, oldest first, and can be taken again") {
  BlockPool pool(3);
  std::vector<BlockLease> leases;
  for (int i = 0; i < 3; ++i) leases.push_back(pool.allocate_free());
  const int32_t first = leases[0].block_id(), last = leases[2].block_id();
  pool.mark_findable(first);
  pool.mark_findable(last);
  release_in_reverse(leases);
  CHECK(leases.empty());
  CHECK(pool.num_free() == 1);
  CHECK(pool.num_cached() == 2);
  CHECK(pool.oldest_cached() == last);  // released first
  BlockLease again = pool.lease(last);
  CHECK(pool.oldest_cached() == first);
  CHECK(pool.num_cached() == 1);
  again.reset();
  CHECK(pool.oldest_cached() == first);  // `last` was used since
  pool.forget(first);
  CHECK(pool.num_free() == 2);
  pool.check_integrity();
}

TEST_CASE("random operations agree with counted references") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  constexpr int kNumBlocks = 7;
  BlockPool pool(kNumBlocks);
  std::vector<BlockLease> leases;
  std::vector<int> ref_counts(kNumBlocks, 0);
  std::vector<bool> findable(kNumBlocks, false);
  std::deque<int32_t> lru;
  for (int i = 0; i < 20000; ++i) {
    switch (rng.below(6)) {
      case 0:
        if (BlockLease lease = pool.allocate_free()) {
          REQUIRE((ref_counts[lease.block_id()]++ == 0 && !findable[lease.block_id()]));
          leases.push_back(std::move(lease));
        }
        break;
      case 1:
        if (!leases.empty()) {
          leases.push_back(leases[rng.below(leases.size())].share());
          ++ref_counts[leases.back().block_id()];
        }
        break;
      case 2:
        if (!leases.empty()) {
          std::swap(leases[rng.below(leases.size())], leases.back());
          const int32_t id = leases.back().block_id();
          leases.pop_back();
          if (--ref_counts[id] == 0 && findable[id]) lru.push_back(id);
        }
        break;
      case 3:
        if (!leases.empty()) {
          const int32_t id = leases[rng.below(leases.size())].block_id();
          if (!findable[id]) pool.mark_findable(id);
          findable[id] = true;
        }
        break;
      case 4:
        if (!lru.empty() && rng.below(2) == 0) {
          const int32_t id = lru[rng.below(lru.size())];
          std::erase(lru, id);
          leases.push_back(pool.lease(id));
          ++ref_counts[id];
        } else if (!lru.empty()) {
          REQUIRE(pool.oldest_cached() == lru.front());
          pool.forget(lru.front());
          findable[lru.front()] = false;
          lru.pop_front();
        }
        break;
      case 5:  // a block leaves the prefix index while it is held
        if (!leases.empty() && rng.below(4) == 0) {
          const int32_t id = leases[rng.below(leases.size())].block_id();
          if (findable[id]) pool.forget(id);
          findable[id] = false;
        }
        break;
    }
    pool.check_integrity();
    REQUIRE(pool.num_cached() == static_cast<int>(lru.size()));
    REQUIRE(pool.oldest_cached() == (lru.empty() ? -1 : lru.front()));
    for (int id = 0; id < kNumBlocks; ++id) REQUIRE(pool.ref_count(id) == ref_counts[id]);
  }
}

}  // namespace
}  // namespace spate
