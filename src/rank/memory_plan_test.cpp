// Goal    The plan never exceeds what is free, and a refusal names a value that works: planning again with that value
// succeeds.
#include "rank/memory_plan.h"

#include <cstdlib>
#include <limits>

#include "base/test.h"

namespace spate {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

MemoryPlanInput small_model() {
  return {.ranks = {{.free_bytes = 1000 * kMiB,
                     .weight_bytes = 300 * kMiB,
                     .workspace_bytes = 50 * kMiB,
                     .kv_block_bytes = 16 * 64 * 1024}},
          .limits = {.max_num_seqs = 4},
          .model_max_len = 1000};
}

// The number behind a flag that the message must name.
int64_t number_behind(const std::string& text, const std::string& word) {
  const size_t at = text.find(word);
  INFO(text);
  REQUIRE(at != std::string::npos);
  const int64_t number = std::atoll(text.c_str() + at + word.size());
  REQUIRE(number > 0);
  return number;
}

}  // namespace

TEST_CASE("memory plan: no more KV than every sequence at full length can use") {
  const auto plan = plan_memory(small_model());
  REQUIRE(plan.ok());
  CHECK(plan->max_model_len == 1000);
  CHECK(plan->num_kv_blocks == 4 * 63);
  CHECK(plan->kv_cache_bytes == 4 * 63 * 16 * 64 * 1024);
}

TEST_CASE("memory plan: a KV cache that holds nothing is not told to hold a shorter sequence") {
  MemoryPlanInput input = small_model();
  input.kv_cache_bytes = 1;
  const std::string message = plan_memory(input).status().message();
  CHECK(message.find("--max-model-len") == std::string::npos);
  input.kv_cache_bytes = number_behind(message, "--kv-cache-memory ");
  CHECK(plan_memory(input).ok());
}

TEST_CASE("memory plan: the share of the device that is left bounds the KV cache") {
  MemoryPlanInput input = small_model();
  input.model_max_len = 100000;
  const auto plan = plan_memory(input);
  REQUIRE(plan.ok());
  CHECK(plan->kv_cache_bytes <= 550 * kMiB);  // 0.9 * 1000 - 350
  CHECK(plan->kv_cache_bytes > 548 * kMiB);
  CHECK(plan->max_model_len_reduced);
  CHECK(plan->max_model_len == plan->num_kv_blocks * 16);
}

TEST_CASE("memory plan: a KV cache that nobody asked for stays within its limit; one that was asked for need not") {
  MemoryPlanInput input = small_model();
  input.max_kv_cache_bytes = 100 * kMiB;
  CHECK(plan_memory(input)->kv_cache_bytes == 100 * kMiB);
  CHECK(plan_memory(input)->max_model_len == 1000);
  input.kv_cache_bytes = 200 * kMiB;
  CHECK(plan_memory(input)->kv_cache_bytes == 200 * kMiB);
}

TEST_CASE("memory plan: a length that was asked for is not reduced; both remedies of the refusal work") {
  MemoryPlanInput input = small_model();
  input.limits.max_model_len = 1000;
  input.kv_cache_bytes = 10 * kMiB;
  const auto refused = plan_memory(input);
  REQUIRE_FALSE(refused.ok());
  const std::string message = refused.status().message();

  MemoryPlanInput shorter = input;
  shorter.limits.max_model_len = number_behind(message, "--max-model-len ");
  CHECK(plan_memory(shorter).ok());
  MemoryPlanInput larger = input;
  larger.kv_cache_bytes = number_behind(message, "--kv-cache-memory ");
  CHECK(plan_memory(larger).ok());
}

TEST_CASE("memory plan: weights or a KV cache beyond what is free are refused") {
  MemoryPlanInput input = small_model();
  input.ranks[0].weight_bytes = 960 * kMiB;
  CHECK(plan_memory(input).status().message().find("weights take 960.0 MiB") != std::string::npos);
  input = small_model();
  input.kv_cache_bytes = 700 * kMiB;
  CHECK(plan_memory(input).status().message().find("the most that fits is 650.0 MiB") != std::string::npos);
  input.kv_cache_bytes = std::numeric_limits<int64_t>::max();
  CHECK(plan_memory(input).status().message().find("the most that fits is 650.0 MiB") != std::string::npos);
}

TEST_CASE("memory plan: the value named as the most that fits does fit where its text is rounded up") {
  MemoryPlanInput input = small_model();
  input.ranks[0].free_bytes = 1940 * kMiB;
  input.ranks[0].weight_bytes = 100 * kMiB;
  input.ranks[0].workspace_bytes = 0;
  input.kv_cache_bytes = int64_t{1} << 40;
  const std::string message = plan_memory(input).status().message();
  CHECK(message.find("the most that fits is 1.80 GiB") != std::string::npos);  // 1840 MiB
  input.kv_cache_bytes = number_behind(message, "1.80 GiB: --kv-cache-memory ");
  REQUIRE(input.kv_cache_bytes > 0);
  CHECK(plan_memory(input).ok());
  input.kv_cache_bytes += 2 * kMiB;
  CHECK_FALSE(plan_memory(input).ok());
}

TEST_CASE("memory plan: the rank with the least room rules, each rank with its own shard") {
  MemoryPlanInput input = small_model();
  input.model_max_len = 100000;
  const int64_t blocks_alone = plan_memory(input)->num_kv_blocks;
  // Not rank 0 but another one has the larger shard, the larger blocks, or the fuller device.
  for (RankMemory other :
       {RankMemory{1000 * kMiB, 500 * kMiB, 50 * kMiB, kMiB}, RankMemory{1000 * kMiB, 300 * kMiB, 250 * kMiB, kMiB},
        RankMemory{1000 * kMiB, 300 * kMiB, 50 * kMiB, 2 * kMiB},
        RankMemory{600 * kMiB, 300 * kMiB, 50 * kMiB, kMiB}}) {
    MemoryPlanInput alone = input, both = input;
    alone.ranks = {other};
    both.ranks.push_back(other);
    const auto plan = plan_memory(both);
    REQUIRE(plan.ok());
    CHECK(plan->num_kv_blocks == plan_memory(alone)->num_kv_blocks);
    CHECK(plan->num_kv_blocks < blocks_alone);
    CHECK(plan->kv_cache_bytes == plan->num_kv_blocks * (kMiB + other.kv_block_bytes));
  }
  MemoryPlanInput full = input;
  full.ranks.push_back(
      {.free_bytes = 1000 * kMiB, .weight_bytes = 990 * kMiB, .workspace_bytes = 50 * kMiB, .kv_block_bytes = kMiB});
  CHECK(plan_memory(full).status().message().find("memory of rank 1: the weights take 990.0 MiB") != std::string::npos);
}

TEST_CASE("memory plan: ranks that share a memory fit into it together") {
  MemoryPlanInput input = small_model();
  input.model_max_len = 100000;
  input.shares_memory = true;
  input.ranks.push_back({.free_bytes = 1000 * kMiB,
                         .weight_bytes = 100 * kMiB,
                         .workspace_bytes = 10 * kMiB,
                         .kv_block_bytes = 3 * kMiB});
  const auto plan = plan_memory(input);
  REQUIRE(plan.ok());
  CHECK(plan->num_kv_blocks == (900 - 350 - 110) / 4);
  CHECK(plan->kv_cache_bytes == plan->num_kv_blocks * 4 * kMiB);
  input.ranks.back().weight_bytes = 700 * kMiB;
  CHECK(plan_memory(input).status().message().find("the weights take 1000.0 MiB") != std::string::npos);
}

TEST_CASE("memory plan: --kv-cache-memory is of all ranks, and what is named as the most fits") {
  for (const bool shares_memory : {false, true}) {
    MemoryPlanInput input = small_model();
    input.shares_memory = shares_memory;
    input.ranks[0].free_bytes = 600 * kMiB;
    input.ranks[0].weight_bytes = 100 * kMiB;
    input.ranks.push_back(input.ranks[0]);
    input.kv_cache_bytes = 100 * kMiB;
    CHECK(plan_memory(input)->num_kv_blocks == 50);
    CHECK(plan_memory(input)->kv_cache_bytes == 100 * kMiB);
    input.kv_cache_bytes = 4000 * kMiB;
    const std::string message = plan_memory(input).status().message();
    const int64_t most = number_behind(message, "the most that fits is ") * kMiB;
    REQUIRE(most > 0);
    input.kv_cache_bytes = most;
    CHECK(plan_memory(input).ok());
    input.kv_cache_bytes = most + 2 * kMiB;
    CHECK_FALSE(plan_memory(input).ok());
  }
}

}  // namespace spate
