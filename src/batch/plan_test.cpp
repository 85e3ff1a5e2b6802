// Goal: what the builder writes, the reader finds again and the validator accepts; every wrong field is refused with
// its name; no bytes make the validator read outside the image. Method: one plan with every part; a table of single
// changes; random bytes changed in a valid plan (under ASan this is the proof).
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/test_support.h"
#include "batch/plan_builder.h"
#include "batch/plan_validate.h"
#include "batch/request_row.h"

#include "base/test.h"

namespace spate {
namespace {

constexpr StepPlanLimits kLimits{
    .step = {.max_model_len = 32, .max_num_seqs = 4, .max_num_batched_tokens = 16, .kv_block_size = 4},
    .num_kv_blocks = 20,
    .vocab_size = 100};

// A plan with every part: two sequences, one entering its row with bias and stop ids, the other decoding with two
// drafts and three masks; a copy, block table changes.
std::vector<uint64_t> full_plan(StepPlanBuilder& builder) {
  const std::vector<int32_t> token_ids{11, 12, 13, 14, 15};
  const std::vector<std::pair<int32_t, float>> logit_bias{{7, -1.5f}, {9, 2.0f}};
  const std::vector<int32_t> stop_ids{0};
  builder.begin(42);
  builder.add_row({.row = 2,
                   .num_computed_tokens = 1,
                   .num_prompt_logprobs = 3,
                   .sampling = {.seed = 77, .temperature = 0.5f, .prompt_len = 5},
                   .token_ids = token_ids,
                   .logit_bias = logit_bias,
                   .stop_ids = stop_ids});
  std::ranges::copy(std::vector<int32_t>{3, 19}, builder.add_blocks(2, 0, 2).begin());
  std::ranges::copy(std::vector<int32_t>{5}, builder.add_blocks(0, 7, 1).begin());
  builder.add_block_copy(4, 3);
  const uint32_t first_mask[] = {0xffffffff, 0, 0, 0xf};
  const uint32_t other_mask[] = {1, 0, 0, 0};
  SeqStep decode{.row = 0,
                 .query_len = 3,
                 .phase = SeqPhase::kDecode,
                 .flags = kSample,
                 .num_computed_tokens = 28,
                 .num_drafts = 2};
  decode.drafts_begin = builder.add_drafts(std::vector<int32_t>{21, 22});
  decode.first_mask = builder.add_mask(first_mask);
  builder.add_mask(other_mask);
  builder.add_mask(other_mask);
  builder.add_seq(decode);
  builder.add_seq({.row = 2, .query_len = 4, .flags = kSample | kPromptLogprobs, .num_computed_tokens = 1});
  const std::span<const std::byte> image = builder.finish();
  std::vector<uint64_t> copy(image.size() / 8);
  std::memcpy(copy.data(), image.data(), image.size());
  return copy;
}

std::span<const std::byte> bytes_of(const std::vector<uint64_t>& image) { return std::as_bytes(std::span(image)); }

TEST_CASE("a plan is read back as it was written") {
  StepPlanBuilder builder;
  full_plan(builder);  // the second one must not show traces of the first
  const std::vector<uint64_t> image = full_plan(builder);
  REQUIRE(validate_plan(bytes_of(image), kLimits).ok());
  const auto& header = *reinterpret_cast<const StepPlanHeader*>(image.data());
  CHECK(header.step_id == 42);
  CHECK(header.num_seqs == 2);
  CHECK(header.num_tokens == 7);
  CHECK(header.num_sampled == 2);
  CHECK(header.num_logits == 4);
  CHECK(header.num_masks == 3);
  CHECK(header.mask_words == mask_words_of(kLimits.vocab_size));
  CHECK(header.num_prompt_logprobs == 1);
  CHECK(header.max_query_len == 4);
  CHECK(header.max_seq_len == 31);
  const int32_t* data = plan_array<int32_t>(image.data(), header.data_offset);
  const RowUpdate& row = *plan_array<RowUpdate>(image.data(), header.row_updates_offset);
  CHECK(row.row == 2);
  CHECK(row.num_tokens == 5);
  CHECK(row.num_computed_tokens == 1);
  CHECK(row.num_prompt_logprobs == 3);
  CHECK(row.sampling.seed == 77);
  CHECK(row.sampling.num_bias == 2);
  CHECK(row.sampling.num_stop_ids == 1);
  CHECK(data[row.tokens_begin + 4] == 15);
  CHECK(data[row.bias_ids_begin + 1] == 9);
  float bias;
  std::memcpy(&bias, &data[row.bias_values_begin], sizeof(bias));
  CHECK(bias == -1.5f);
  CHECK(data[row.stop_ids_begin] == 0);
  const BlockUpdate* blocks = plan_array<BlockUpdate>(image.data(), header.block_updates_offset);
  CHECK(data[blocks[0].blocks_begin + 1] == 19);
  CHECK(blocks[1].row == 0);
  CHECK(blocks[1].first_block_idx == 7);
  CHECK(plan_array<BlockCopy>(image.data(), header.block_copies_offset)->dst_block_id == 3);
  const SeqStep* seqs = plan_array<SeqStep>(image.data(), header.seqs_offset);
  CHECK(seqs[1].query_len == 4);
  CHECK(data[seqs[0].drafts_begin + 1] == 22);
  const uint32_t* masks = plan_array<uint32_t>(image.data(), header.masks_offset);
  CHECK(mask_allows(masks, 99));
  CHECK_FALSE(mask_allows(masks, 40));
  CHECK(mask_allows(masks + 2 * header.mask_words, 0));
}

TEST_CASE("late masks have a place behind the plan, which ends there") {
  StepPlanBuilder builder;
  builder.begin(1);
  const int32_t mask_words = mask_words_of(kLimits.vocab_size);
  const int32_t drafts[] = {21, 22};
  builder.add_seq({.row = 0,
                   .query_len = 3,
                   .phase = SeqPhase::kDecode,
                   .flags = kSample,
                   .num_computed_tokens = 4,
                   .num_drafts = 2,
                   .drafts_begin = builder.add_drafts(drafts),
                   .first_mask = builder.expect_masks(3, mask_words)});
  builder.add_seq({.row = 1,
                   .query_len = 1,
                   .phase = SeqPhase::kDecode,
                   .flags = kSample,
                   .num_computed_tokens = 4,
                   .first_mask = builder.expect_masks(1, mask_words)});
  const std::span<const std::byte> plan = builder.finish();
  REQUIRE(validate_plan(plan, kLimits).ok());
  StepPlanHeader header;
  std::memcpy(&header, plan.data(), sizeof(header));
  CHECK(header.num_masks == 4);
  CHECK(header.masks_offset == plan.size());
  CHECK(late_mask_bytes(header) == 4 * static_cast<uint64_t>(mask_words) * 4);
  CHECK(plan_array<SeqStep>(plan.data(), header.seqs_offset)[1].first_mask == 3);
  CHECK(format_plan(plan).find("sample drafts [21 22] masks come later") != std::string::npos);

  std::vector<std::byte> image(plan.begin(), plan.end());
  const auto refusal = [&](auto change) {
    StepPlanHeader changed = header;
    change(changed);
    std::memcpy(image.data(), &changed, sizeof(changed));
    return validate_plan(image, kLimits).message();
  };
  CHECK(refusal([](StepPlanHeader& h) { h.masks_are_late = 2; }).find("masks_are_late") != std::string::npos);
  CHECK(refusal([](StepPlanHeader& h) { h.masks_offset -= 8; }).find("their place") != std::string::npos);
  CHECK(refusal([](StepPlanHeader& h) { h.num_masks = 5; }).find("num_masks") != std::string::npos);
  CHECK(refusal([](StepPlanHeader& h) { h.num_masks = 3; }).find("first_mask") != std::string::npos);
  CHECK(refusal([](StepPlanHeader& h) { h.masks_are_late = 0; }).find("masks") != std::string::npos);
}

TEST_CASE("a temperature so low that logits over it would be infinite is greedy") {
  const auto temperature_of = [](float asked) {
    return row_sampling({.sampling = {.temperature = asked}}, 0).temperature;
  };
  CHECK(temperature_of(1e-40f) == 0);
  CHECK(temperature_of(9e-6f) == 0);
  CHECK(temperature_of(1e-5f) == 1e-5f);
  CHECK(temperature_of(0.7f) == 0.7f);
}

// A seed of another version would teach the fuzzer nothing.
TEST_CASE("the fuzzer's seed is the full plan") {
  StepPlanBuilder builder;
  const std::vector<uint64_t> image = full_plan(builder);
  CHECK(read_file_or_die(repo_root() / "test/fuzz/plan/full") ==
        std::string_view(reinterpret_cast<const char*>(image.data()), image.size() * 8));
}

TEST_CASE("an empty plan is valid") {
  StepPlanBuilder builder;
  builder.begin(1);
  CHECK(validate_plan(builder.finish(), kLimits).ok());
}

TEST_CASE("the printed plan names rows, blocks and tokens") {
  StepPlanBuilder builder;
  const std::string text = format_plan(bytes_of(full_plan(builder)));
  CHECK(text.find("step 42: 2 sequences, 7 tokens") != std::string::npos);
  CHECK(text.find("row 2 <- 5 tokens, 1 computed") != std::string::npos);
  CHECK(text.find("[11 12 13 14 15]") != std::string::npos);
  CHECK(text.find("row 2 blocks 0.. <- [3 19]") != std::string::npos);
  CHECK(text.find("block 4 -> block 3") != std::string::npos);
  CHECK(text.find("run row 2: prefill 1 + 4 sample prompt_logprobs") != std::string::npos);
  CHECK(text.find("run row 0: decode at most 28 + 3 sample drafts [21 22] masks allow 36 1 1") != std::string::npos);
}

TEST_CASE("every wrong field is refused, and the message says which") {
  struct View {
    StepPlanHeader& header;
    RowUpdate& row;
    BlockUpdate* blocks;
    BlockCopy& copy;
    SeqStep* seqs;
    int32_t* data;
  };
  struct Case {
    const char* expected;
    void (*change)(View);
  };
  const Case cases[] = {
      {"magic", [](View v) { v.header.magic = 1; }},
      {"version", [](View v) { v.header.version = 9; }},
      {"bytes", [](View v) { v.header.total_bytes += 8; }},
      {"row_updates", [](View v) { v.header.num_row_updates = 1000; }},
      {"row_updates", [](View v) { v.header.num_row_updates = -1; }},
      {"block_updates", [](View v) { v.header.block_updates_offset = 0xfffffff8; }},
      {"block_copies", [](View v) { v.header.block_copies_offset += 4; }},
      {"seqs", [](View v) { v.header.seqs_offset = 0; }},
      {"data", [](View v) { v.header.num_data = 0xffffffff; }},
      {"updated row", [](View v) { v.row.row = 4; }},
      {"num_tokens of a row", [](View v) { v.row.num_tokens = 33; }},
      {"num_computed_tokens of a row", [](View v) { v.row.num_computed_tokens = 5; }},
      {"token ids", [](View v) { v.row.tokens_begin = 0xffffffff; }},
      {"token ids", [](View v) { v.data[v.row.tokens_begin] = 100; }},
      {"bias ids", [](View v) { v.data[v.row.bias_ids_begin] = -1; }},
      {"bias values", [](View v) { v.row.bias_values_begin = 1000000; }},
      {"num_bias", [](View v) { v.row.sampling.num_bias = kMaxLogitBias + 1; }},
      {"stop ids", [](View v) { v.data[v.row.stop_ids_begin] = 100; }},
      {"num_stop_ids", [](View v) { v.row.sampling.num_stop_ids = -1; }},
      {"num_logprobs", [](View v) { v.row.sampling.num_logprobs = kLimits.vocab_size + 1; }},
      {"num_logprobs", [](View v) { v.row.sampling.num_logprobs = -2; }},
      {"num_prompt_logprobs", [](View v) { v.row.num_prompt_logprobs = -2; }},
      {"prompt_len", [](View v) { v.row.sampling.prompt_len = 6; }},
      {"not finite", [](View v) { v.row.sampling.temperature = std::numeric_limits<float>::quiet_NaN(); }},
      {"row of a block update", [](View v) { v.blocks[0].row = -1; }},
      {"first_block_idx", [](View v) { v.blocks[1].first_block_idx = 8; }},
      {"num_blocks", [](View v) { v.blocks[1].num_blocks = 2; }},
      {"block ids", [](View v) { v.data[v.blocks[0].blocks_begin] = 20; }},
      {"source of a block copy", [](View v) { v.copy.src_block_id = 20; }},
      {"source and destination", [](View v) { v.copy.src_block_id = v.copy.dst_block_id; }},
      {"destination of a block copy", [](View v) { v.copy.dst_block_id = -1; }},
      {"comes twice", [](View v) { v.seqs[0].row = 2; }},
      {"query_len", [](View v) { v.seqs[0].query_len = 0; }},
      {"num_computed_tokens", [](View v) { v.seqs[0].num_computed_tokens = 32; }},
      {"flags", [](View v) { v.seqs[0].flags = 0; }},
      {"flags", [](View v) { v.seqs[0].flags = kSample | kPromptLogprobs; }},
      {"flags", [](View v) { v.seqs[1].flags = kDraftsInRow; }},
      {"flags", [](View v) { v.seqs[1].flags = 64; }},
      {"flags", [](View v) { v.seqs[1].flags = kPoolLast | kSample; }},
      {"flags", [](View v) { v.seqs[1].flags = kPoolLast | kPoolSum; }},
      {"flags", [](View v) { v.seqs[0].flags = kPoolLast; }},
      {"phase", [](View v) { v.seqs[1].phase = static_cast<SeqPhase>(2); }},
      {"num_drafts", [](View v) { v.seqs[1].num_drafts = 1; }},
      {"num_drafts", [](View v) { v.seqs[0].num_drafts = -1; }},
      {"num_relaxed", [](View v) { v.seqs[0].num_relaxed = 3; }},
      {"num_relaxed", [](View v) { v.seqs[1].num_relaxed = 1; }},
      {"num_relaxed", [](View v) { v.seqs[0].num_relaxed = -1; }},
      {"query_len of a decode row", [](View v) { v.seqs[0].num_drafts = 1; }},
      {"drafts", [](View v) { v.seqs[0].drafts_begin = 0xffffffff; }},
      {"drafts", [](View v) { v.data[v.seqs[0].drafts_begin] = -1; }},
      {"first_mask", [](View v) { v.seqs[0].first_mask = 1; }},
      {"first_mask", [](View v) { v.seqs[0].first_mask = -2; }},
      {"masks", [](View v) { v.header.num_masks = 1000; }},
      {"masks", [](View v) { v.header.num_masks = -1; }},
      {"masks", [](View v) { v.header.mask_words = 0x7fffffff; }},
      {"mask_words", [](View v) { v.header.mask_words = 3; }},
      {"num_sampled", [](View v) { v.header.num_sampled = 1; }},
      {"num_logits", [](View v) { v.header.num_logits = 3; }},
      {"max_seq_len", [](View v) { v.header.max_seq_len = 5; }},
      {"num_tokens", [](View v) { v.seqs[1].query_len = 16; }},
  };
  StepPlanBuilder builder;
  for (const Case& each : cases) {
    std::vector<uint64_t> image = full_plan(builder);
    auto* base = reinterpret_cast<char*>(image.data());
    auto& header = *reinterpret_cast<StepPlanHeader*>(base);
    each.change({header, *reinterpret_cast<RowUpdate*>(base + header.row_updates_offset),
                 reinterpret_cast<BlockUpdate*>(base + header.block_updates_offset),
                 *reinterpret_cast<BlockCopy*>(base + header.block_copies_offset),
                 reinterpret_cast<SeqStep*>(base + header.seqs_offset),
                 reinterpret_cast<int32_t*>(base + header.data_offset)});
    const Status status = validate_plan(bytes_of(image), kLimits);
    CAPTURE(each.expected);
    CAPTURE(status.message());
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(status.message().find(each.expected) != std::string::npos);
  }
}

TEST_CASE("truncated and damaged plans are refused or harmless") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  StepPlanBuilder builder;
  const std::vector<uint64_t> good = full_plan(builder);
  for (size_t size = 0; size < good.size(); ++size) {
    const std::vector<uint64_t> image(good.begin(), good.begin() + static_cast<ptrdiff_t>(size));
    CHECK_FALSE(validate_plan(bytes_of(image), kLimits).ok());
  }
  int num_refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint64_t> image = good;
    auto* bytes = reinterpret_cast<unsigned char*>(image.data());
    for (uint64_t k = 0; k <= rng.below(3); ++k)
      bytes[rng.below(image.size() * 8)] = static_cast<unsigned char>(rng.next_u32());
    if (validate_plan(bytes_of(image), kLimits).ok()) {
      CHECK_FALSE(format_plan(bytes_of(image)).empty());  // reads all that the plan points to
    } else {
      ++num_refused;
    }
  }
  CHECK(num_refused > 10000);
}

}  // namespace
}  // namespace spate
