// layer_test.cpp
//
// Goal     Shares of heads over ranks; RoPE frequencies of served models, which the tiny golden models do not reach.
// Method   Constants printed by transformers 5.23 (ROPE_INIT_FUNCTIONS) for the configs of Llama-3.1-8B and of
//          Qwen2.5 with YaRN; what the layers compute is tested by the golden tests of model/.
#include <cmath>

#include "base/test_support.h"
#include "layer/parameter_factory.h"
#include "layer/rotary_embedding.h"

#include "base/test.h"

namespace spate {
namespace {

TEST_CASE("kv heads are shared out, or shared by ranks") {
  CHECK(kv_head_share(8, {.rank = 3, .size = 4}).begin == 6);
  CHECK(kv_head_share(8, {.rank = 3, .size = 4}).count == 2);
  const int64_t head_of_rank[] = {0, 0, 0, 0, 1, 1, 1, 1};
  for (int rank = 0; rank < 8; ++rank) {
    CHECK(kv_head_share(2, {.rank = rank, .size = 8}).begin == head_of_rank[rank]);
    CHECK(kv_head_share(2, {.rank = rank, .size = 8}).count == 1);
  }
}

void check_frequencies(const RopeFrequencies& frequencies, std::initializer_list<std::pair<size_t, double>> expected) {
  for (const auto& [j, value] : expected) {
    CAPTURE(j);
    CHECK(std::abs(frequencies.inv_freq[j] - value) <= 1e-6 * value);
  }
}

TEST_CASE("Llama-3.1-8B: frequencies kept, blended and divided") {
  const RopeConfig rope{.type = RopeType::kLlama3,
                        .theta = 500000,
                        .factor = 8,
                        .original_max_position_embeddings = 8192,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4};
  check_frequencies(rope_frequencies(rope, 128, 131072, 131072), {{0, 1.0},
                                                                  {1, 8.146172166e-01},
                                                                  {20, 1.656044088e-02},
                                                                  {30, 1.371893683e-03},
                                                                  {33, 3.126936499e-04},
                                                                  {36, 7.784655463e-05},
                                                                  {40, 3.428102355e-05},
                                                                  {63, 3.068925878e-07}});
}

TEST_CASE("Qwen2.5 with YaRN to 131072: the ramp and the attention factor") {
  const RopeConfig rope{.type = RopeType::kYarn, .theta = 1e6, .factor = 4, .original_max_position_embeddings = 32768};
  const RopeFrequencies frequencies = rope_frequencies(rope, 128, 32768, 131072);
  check_frequencies(frequencies, {{0, 1.0},
                                  {1, 8.058422208e-01},
                                  {20, 1.333521493e-02},
                                  {26, 3.168422729e-03},
                                  {30, 1.064360957e-03},
                                  {38, 9.262301319e-05},
                                  {40, 4.445698505e-05},
                                  {63, 3.102344408e-07}});
  CHECK(frequencies.attention_factor == doctest::Approx(1.138629436).epsilon(1e-9));
  const auto table = rope_table(frequencies, 2);
  CHECK(table[0] == doctest::Approx(1.138629436).epsilon(1e-6));  // cos of position 0
  CHECK(table[64] == 0.0f);                                       // sin of position 0
  CHECK(table[128] == doctest::Approx(1.138629436 * std::cos(1.0)).epsilon(1e-6));
  CHECK(table[128 + 64] == doctest::Approx(1.138629436 * std::sin(1.0)).epsilon(1e-6));
}

TEST_CASE("dynamic NTK is plain up to the trained length") {
  RopeConfig rope{.type = RopeType::kDynamic, .theta = 10000, .factor = 2};
  const auto plain = rope_frequencies({.theta = 10000}, 64, 2048, 2048).inv_freq;
  CHECK(rope_frequencies(rope, 64, 2048, 2048).inv_freq == plain);
  CHECK(rope_frequencies(rope, 64, 2048, 1000).inv_freq == plain);
  CHECK(rope_frequencies(rope, 64, 2048, 4096).inv_freq[31] < plain[31] / 2);
}

}  // namespace
}  // namespace spate
