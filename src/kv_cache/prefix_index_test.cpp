// Goal: a block is found under exactly its own key: tokens, parent and scope compared, never the hash alone. Method:
// the same cases with good hashes and with all hashes equal (mask 0); then random keys against std::map.
#include "kv_cache/prefix_index.h"

#include <map>
#include <tuple>

#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

using Tokens = std::vector<int32_t>;

TEST_CASE("keys differ by tokens, by parent and by scope, also when every hash collides") {
  for (const uint64_t hash_mask : {~uint64_t{0}, uint64_t{0}}) {
    PrefixIndex index(8, 2, hash_mask);
    const Tokens ab{1, 2}, cd{3, 4};
    index.insert(0, kNoBlock, ab, "");
    index.insert(1, kNoBlock, ab, "tenant");
    index.insert(2, 0, cd, "");
    index.insert(3, 1, cd, "tenant");
    index.insert(4, kNoBlock, cd, "");
    index.check_integrity();
    CHECK(index.find(kNoBlock, ab, "") == 0);
    CHECK(index.find(kNoBlock, ab, "tenant") == 1);
    CHECK(index.find(kNoBlock, ab, "tenan") == kNoBlock);
    CHECK(index.find(0, cd, "") == 2);
    CHECK(index.find(1, cd, "tenant") == 3);
    CHECK(index.find(kNoBlock, cd, "") == 4);
    CHECK(index.find(4, cd, "") == kNoBlock);
    CHECK(index.find(kNoBlock, Tokens{2, 1}, "") == kNoBlock);
    CHECK(index.num_children(0) == 1);
    index.erase(2);
    CHECK(index.find(0, cd, "") == kNoBlock);
    CHECK(index.find(1, cd, "tenant") == 3);
    index.erase(0);
    CHECK(index.find(kNoBlock, ab, "") == kNoBlock);
    CHECK(index.size() == 3);
    index.check_integrity();
  }
}

TEST_CASE("random inserts, erases and lookups agree with a map") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  for (const uint64_t hash_mask : {~uint64_t{0}, uint64_t{1}, uint64_t{0}}) {
    Rng rng(seed, hash_mask);
    constexpr int kNumBlocks = 12;
    PrefixIndex index(kNumBlocks, 2, hash_mask);
    using Key = std::tuple<int32_t, Tokens, std::string>;
    std::map<Key, int32_t> map;
    std::vector<Key> keys(kNumBlocks);
    for (int i = 0; i < 20000; ++i) {
      const auto block_id = static_cast<int32_t>(rng.below(kNumBlocks));
      const auto parent = static_cast<int32_t>(rng.below(kNumBlocks + 1)) - 1;
      const Tokens tokens{static_cast<int32_t>(rng.below(2)), static_cast<int32_t>(rng.below(2))};
      const std::string scope = parent == kNoBlock && rng.below(2) == 0 ? "s" : "";
      const Key key{parent, tokens, scope};
      const auto it = map.find(key);
      REQUIRE(index.find(parent, tokens, scope) == (it == map.end() ? kNoBlock : it->second));
      if (index.contains(block_id)) {
        if (index.num_children(block_id) > 0) continue;
        index.erase(block_id);
        map.erase(keys[block_id]);
      } else if (it == map.end() && parent != block_id && (parent == kNoBlock || index.contains(parent))) {
        index.insert(block_id, parent, tokens, scope);
        map[key] = block_id;
        keys[block_id] = key;
      }
      REQUIRE(index.size() == static_cast<int>(map.size()));
      index.check_integrity();
    }
  }
}

}  // namespace
}  // namespace spate
