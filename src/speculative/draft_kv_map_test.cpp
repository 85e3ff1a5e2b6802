// Goal    The map says exactly which leading tokens of a sequence lie in its blocks, whatever was written there since.
// Method  Cases by hand; random sequences that share, lose and exchange blocks against a cache that stores whole
// prefixes.
#include "speculative/draft_kv_map.h"

#include <algorithm>

#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"

namespace spate {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int kBlock = 4;

TokenChain chain_of(const Tokens& tokens) {
  TokenChain chain(kBlock);
  chain.set_known(tokens);
  return chain;
}

TEST_CASE("accepted drafts stay, rejected ones are not held") {
  DraftKvMap map(8, kBlock);
  const Tokens block_ids = {5, 2};
  TokenChain chain = chain_of({1, 2, 3});
  CHECK(map.num_held(chain, block_ids) == 0);
  map.write(chain, block_ids, 0, 3);
  for (const int32_t draft : {7, 8, 9}) {
    chain.append_draft(draft);
    map.write(chain, block_ids, chain.size() - 1, chain.size());
  }
  CHECK(map.num_held(chain, block_ids) == 6);
  chain.set_known(Tokens{1, 2, 3, 7, 8, 6});  // two of three were right
  CHECK(map.num_held(chain, block_ids) == 5);
  chain = chain_of({1, 2, 3, 6, 8, 9});  // none: the second block continues another text
  CHECK(map.num_held(chain, block_ids) == 3);
  map.write(chain, block_ids, 3, 6);
  CHECK(map.num_held(chain, block_ids) == 6);
}

TEST_CASE("a prefix is held for every sequence that has its blocks, and for no other text") {
  DraftKvMap map(8, kBlock);
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  map.write(chain_of(prompt), Tokens{0, 1, 2}, 0, 9);
  CHECK(map.num_held(chain_of({1, 2, 3, 4, 5, 6, 7, 8, 1}), Tokens{0, 1, 3}) == 8);
  CHECK(map.num_held(chain_of(prompt), Tokens{0, 1, 2}) == 9);
  CHECK(map.num_held(chain_of(prompt), Tokens{0, 4, 2}) == 4);
  CHECK(map.num_held(chain_of(prompt), Tokens{0, 1}) == 8);     // the last token has no block
  CHECK(map.num_held(chain_of({5, 6, 7, 8}), Tokens{1}) == 0);  // its tokens, behind others
  CHECK(map.num_held(chain_of({2, 2, 3, 4, 5, 6, 7, 8}), Tokens{0, 1}) == 0);
  map.write(chain_of({6, 6}), Tokens{1}, 0, 2);  // the block has a new owner
  CHECK(map.num_held(chain_of(prompt), Tokens{0, 1, 2}) == 4);
}

TEST_CASE("what is written and not to be held ends what is held") {
  DraftKvMap map(8, kBlock);
  const Tokens tokens = {1, 2, 3, 4, 5, 6}, block_ids = {3, 4};
  map.write(chain_of(tokens), block_ids, 0, 6);
  map.forget(block_ids, 5);
  CHECK(map.num_held(chain_of(tokens), block_ids) == 5);
  map.forget(block_ids, 2);
  CHECK(map.num_held(chain_of(tokens), block_ids) == 2);
  map.forget(block_ids, 8);  // has no block
  CHECK(map.num_held(chain_of(tokens), block_ids) == 2);
}

TEST_CASE("places that need the next token: sequences may part behind a block that they share") {
  const Tokens one = {1, 2, 3, 4, 5, 6}, other = {1, 2, 3, 9, 8, 7};  // behind places 0 to 5
  for (const bool reads_next_tokens : {false, true}) {
    DraftKvMap map(8, kBlock, reads_next_tokens);
    map.write(chain_of(one), Tokens{0, 1}, 0, 6);
    CHECK(map.num_held(chain_of(other), Tokens{0, 2}) == (reads_next_tokens ? 4 : 3));
    map.write(chain_of(other), Tokens{0, 2}, reads_next_tokens ? 4 : 3, 6);
    CHECK(map.num_held(chain_of(one), Tokens{0, 1}) == (reads_next_tokens ? 6 : 3));
    CHECK(map.num_held(chain_of(other), Tokens{0, 2}) == 6);
    CHECK(map.num_held(chain_of({1, 2, 9, 4, 5, 6}), Tokens{0, 1}) == 2);
  }
}

TEST_CASE("places of two layers: a token further on counts too") {
  DraftKvMap map(8, kBlock, true, 2);
  map.write(chain_of({1, 2, 3, 4, 5, 6}), Tokens{0, 1}, 0, 5);
  CHECK(map.num_held(chain_of({1, 2, 3, 4, 5, 6}), Tokens{0, 1}) == 5);
  CHECK(map.num_held(chain_of({1, 2, 9, 4, 5, 6}), Tokens{0, 1}) == 1);
  CHECK(map.num_held(chain_of({1, 2, 3, 4, 5, 9}), Tokens{0, 1}) == 4);  // behind the last place that was written
  CHECK(map.num_held(chain_of({1, 2, 3, 9, 8, 7}), Tokens{0, 2}) == 4);  // sequences may part behind the block
}

TEST_CASE("random owners of random blocks") {
  Rng rng(test_seed());
  constexpr int kNumBlocks = 12;
  DraftKvMap map(kNumBlocks, kBlock);
  std::vector<Tokens> held(kNumBlocks * kBlock);  // by slot: the whole text up to the token there
  int num_reused = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    Tokens tokens(1 + rng.below(14));
    for (int32_t& id : tokens) id = static_cast<int32_t>(rng.below(2));
    Tokens block_ids;
    for (size_t i = 0; i < 1 + tokens.size() / kBlock; ++i) {  // no block twice
      int32_t id = 0;
      do id = static_cast<int32_t>(rng.below(kNumBlocks));
      while (std::ranges::find(block_ids, id) != block_ids.end());
      if (turn % 3 == 0) id = static_cast<int32_t>(i);  // often the same ones
      if (std::ranges::find(block_ids, id) != block_ids.end()) break;
      block_ids.push_back(id);
    }
    const TokenChain chain = chain_of(tokens);
    const auto slot = [&](int position) -> Tokens& {
      return held[static_cast<size_t>(block_ids[static_cast<size_t>(position / kBlock)] * kBlock + position % kBlock)];
    };
    const int end = std::min(chain.size(), static_cast<int>(block_ids.size()) * kBlock);
    const int num_held = map.num_held(chain, block_ids);
    REQUIRE(num_held <= end);
    for (int i = 0; i < num_held; ++i) REQUIRE(slot(i) == Tokens(tokens.begin(), tokens.begin() + i + 1));
    num_reused += num_held;
    if (num_held == chain.size()) continue;
    map.write(chain, block_ids, num_held, chain.size());
    for (int i = num_held; i < end; ++i) slot(i) = Tokens(tokens.begin(), tokens.begin() + i + 1);
    REQUIRE(map.num_held(chain, block_ids) == end);
  }
  CHECK(num_reused > 1000);
}

}  // namespace
}  // namespace spate
