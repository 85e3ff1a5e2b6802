// Goal    gather_rows, scatter_rows, kv_copy_blocks, begin_step and finish_step do what backend/ops.h says.
// Method  The CPU takes these four from the reference, so that conformance compares the reference with itself. Here the
//         expected arrays are written down by hand, from the contract alone.
#include <cstring>
#include <numeric>

#include "backend/conformance/state_rig.h"
#include "backend/cpu/cpu_device.h"
#include "backend/reference/reference_device.h"
#include "base/test.h"

namespace spate::conformance {
namespace {

using Ints = std::vector<int32_t>;

// The first `count` values of a kI32 tensor of the device, all of them if count is -1.
Ints ints(Side& side, const Tensor& tensor, int64_t count = -1) {
  const HostTensor host = side.get(tensor);
  const std::span<int32_t> values = host.span<int32_t>();
  return {values.begin(), count < 0 ? values.end() : values.begin() + count};
}

void for_each_device(const std::function<void(Side& side)>& body) {
  SUBCASE("reference") {
    const auto device = make_reference_device({}).value();
    Side side(*device);
    body(side);
  }
  SUBCASE("cpu") {
    const auto device = make_cpu_device({.num_threads = 2}).value();
    Side side(*device);
    body(side);
  }
}

TEST_CASE("gather_rows: row i of the result is row row_ids[i] of x, zeros for -1") {
  for_each_device([](Side& side) {
    HostTensor x(DType::kI32, {4, 3}), row_ids(DType::kI32, {5});
    std::iota(x.span<int32_t>().begin(), x.span<int32_t>().end(), 0);
    const Ints ids = {3, 0, -1, 2, 3};
    std::copy(ids.begin(), ids.end(), row_ids.span<int32_t>().begin());
    const Tensor out = side.put(poisoned_tensor(DType::kI32, {5, 3}));
    side.ops().gather_rows(side.stream(), {.x = side.put(x), .row_ids = side.put(row_ids), .out = out});
    CHECK(ints(side, out) == Ints{9, 10, 11, 0, 1, 2, 0, 0, 0, 6, 7, 8, 9, 10, 11});
  });
}

TEST_CASE("scatter_rows: row row_ids[i] of the result is row i of x, the others stay, -1 is skipped") {
  for_each_device([](Side& side) {
    HostTensor x(DType::kI32, {3, 2}), row_ids(DType::kI32, {3}), before(DType::kI32, {4, 2});
    std::iota(x.span<int32_t>().begin(), x.span<int32_t>().end(), 0);
    std::iota(before.span<int32_t>().begin(), before.span<int32_t>().end(), 10);
    const Ints ids = {3, -1, 0};
    std::copy(ids.begin(), ids.end(), row_ids.span<int32_t>().begin());
    const Tensor out = side.put(before);
    side.ops().scatter_rows(side.stream(), {.x = side.put(x), .row_ids = side.put(row_ids), .out = out});
    CHECK(ints(side, out) == Ints{4, 5, 12, 13, 14, 15, 0, 1});
  });
}

// A block's bytes are opaque, but they are bytes: block b of the cache is filled with b.
TEST_CASE("kv_copy_blocks: a block's bytes become those of its source, the others stay") {
  for_each_device([](Side& side) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kI8}) {
      const KvLayerDesc desc{.num_kv_heads = 2, .head_dim = 64, .kv_block_size = 16, .dtype = dtype};
      const KvView kv = side.put_kv(desc, 6);
      REQUIRE(kv.block_bytes > 0);
      const auto block = [&](int64_t b) { return static_cast<char*>(kv.data) + b * kv.block_bytes; };
      for (int b = 0; b < 6; ++b)
        side.device().fill_bytes(side.stream(), block(b), b, static_cast<size_t>(kv.block_bytes));
      HostTensor src_dst(DType::kI32, {2, 2});
      const Ints pairs = {4, 1, 4, 0};
      std::copy(pairs.begin(), pairs.end(), src_dst.span<int32_t>().begin());
      side.ops().kv_copy_blocks(side.stream(), {.kv = kv, .src_dst = side.put(src_dst)});
      const Ints expected = {4, 4, 2, 3, 4, 5};
      std::vector<unsigned char> bytes(static_cast<size_t>(6 * kv.block_bytes));
      side.device().copy_to_host(side.stream(), bytes.data(), kv.data, bytes.size());
      side.device().synchronize(side.stream());
      int64_t num_wrong = 0;
      for (int64_t i = 0; i < static_cast<int64_t>(bytes.size()); ++i) {
        num_wrong += bytes[static_cast<size_t>(i)] != expected[static_cast<size_t>(i / kv.block_bytes)];
      }
      CHECK(num_wrong == 0);
    }
  });
}

// Three rows of state, blocks of 4 tokens. Step 1: a sequence of 6 tokens enters row 2 with 4 of them computed (a
// prefix hit) and is finished; one of 5 tokens enters row 0 and computes its first 3. Step 2: row 2 decodes, row 0
// computes the rest.
TEST_CASE("begin_step and finish_step: two sequences over two steps") {
  for_each_device([](Side& side) {
    const StateSizes sizes{.max_num_seqs = 3, .max_model_len = 8, .max_blocks_per_seq = 2};
    const DeviceState device_state = put_state(side, sizes);
    const RowState& state = device_state.state;
    const auto input = [&](int64_t n) { return side.put(poisoned_tensor(DType::kI32, {n})); };
    const StepInputs in{.token_ids = input(16),
                        .positions = input(16),
                        .slot_mapping = input(16),
                        .seq_rows = input(3),
                        .cu_seqlens_q = input(4),
                        .seq_lens = input(3),
                        .sample_token_idxs = input(3),
                        .sample_state_rows = input(3),
                        .sample_offsets = input(3),
                        .sample_masks = input(3),
                        .sample_drafts = input(3)};
    const auto run = [&](const PlanParts& parts, const Ints& next_token_ids) {
      const std::vector<uint64_t> image = parts.image();
      const auto& header = *reinterpret_cast<const StepPlanHeader*>(image.data());
      HostTensor bytes(DType::kI64, {static_cast<int64_t>(image.size())}),
          next(DType::kI32, {static_cast<int64_t>(next_token_ids.size())});
      std::memcpy(bytes.view().raw(), image.data(), image.size() * 8);
      std::copy(next_token_ids.begin(), next_token_ids.end(), next.span<int32_t>().begin());
      const void* plan = side.put(bytes).raw();
      side.ops().apply_updates(side.stream(), {.plan_host = &header, .plan = plan, .state = state});
      side.ops().begin_step(side.stream(), {.plan = plan, .state = state, .inputs = in, .kv_block_size = 4});
      side.ops().finish_step(side.stream(),
                             {.plan = plan, .state = state, .num_seqs = 3, .next_token_ids = side.put(next)});
    };
    const auto row_ints = [&](const Tensor& matrix, int64_t row, int64_t count) {
      return ints(side, matrix.rows(row, row + 1).columns(0, count));
    };

    PlanParts first;
    const auto enter = [&first](int32_t row, int32_t num_computed_tokens, const Ints& tokens, const Ints& stop_ids) {
      RowUpdate update;
      update.row = row;
      update.num_tokens = static_cast<int32_t>(tokens.size());
      update.num_computed_tokens = num_computed_tokens;
      update.sampling.temperature = 0.5f;
      update.sampling.prompt_len = update.num_tokens;
      update.sampling.num_stop_ids = static_cast<int32_t>(stop_ids.size());
      update.tokens_begin = first.add_data(tokens);
      update.stop_ids_begin = first.add_data(stop_ids);
      first.row_updates.push_back(update);
    };
    enter(2, 4, {20, 21, 22, 23, 24, 25}, {7, 8});
    enter(0, 0, {30, 31, 32, 33, 34}, {});
    first.block_updates.push_back(
        {.row = 2, .first_block_idx = 0, .num_blocks = 2, .blocks_begin = first.add_data({9, 3})});
    first.block_updates.push_back(
        {.row = 0, .first_block_idx = 0, .num_blocks = 1, .blocks_begin = first.add_data({5})});
    first.seqs.push_back({.row = 2, .query_len = 2, .flags = kSample, .num_computed_tokens = 4});
    first.seqs.push_back({.row = 0, .query_len = 3, .flags = 0, .num_computed_tokens = 0});
    run(first, {77});

    CHECK(ints(side, in.token_ids, 5) == Ints{24, 25, 30, 31, 32});
    CHECK(ints(side, in.positions, 5) == Ints{4, 5, 0, 1, 2});
    CHECK(ints(side, in.slot_mapping, 5) == Ints{12, 13, 20, 21, 22});  // block 3 begins at slot 12, block 5 at 20
    CHECK(ints(side, in.seq_rows, 2) == Ints{2, 0});
    CHECK(ints(side, in.cu_seqlens_q, 3) == Ints{0, 2, 5});
    CHECK(ints(side, in.seq_lens, 2) == Ints{6, 3});
    CHECK(ints(side, in.sample_token_idxs, 1) == Ints{1});
    CHECK(ints(side, in.sample_state_rows, 1) == Ints{2});
    CHECK(row_ints(state.token_ids, 2, 7) == Ints{20, 21, 22, 23, 24, 25, 77});
    CHECK(row_ints(state.stop_ids, 2, 2) == Ints{7, 8});
    CHECK(row_ints(state.block_table, 2, 2) == Ints{9, 3});
    const Ints num_tokens = ints(side, state.num_tokens), num_computed = ints(side, state.num_computed_tokens);
    CHECK(num_tokens[2] == 7);
    CHECK(num_tokens[0] == 5);
    CHECK(num_computed[2] == 6);
    CHECK(num_computed[0] == 3);
    const HostTensor sampling_bytes = side.get(state.sampling.rows(2, 3));
    RowSampling sampling;
    std::memcpy(&sampling, sampling_bytes.view().raw(), sizeof sampling);
    CHECK(sampling.temperature == 0.5f);
    CHECK(sampling.prompt_len == 6);

    PlanParts second;
    second.block_updates.push_back(
        {.row = 0, .first_block_idx = 1, .num_blocks = 1, .blocks_begin = second.add_data({1})});
    second.seqs.push_back({.row = 2, .query_len = 1, .flags = kSample, .num_computed_tokens = 6});
    second.seqs.push_back({.row = 0, .query_len = 2, .flags = kSample, .num_computed_tokens = 3});
    run(second, {78, 79});
    CHECK(ints(side, in.token_ids, 3) == Ints{77, 33, 34});  // the sampled token comes from the device's own state
    CHECK(ints(side, in.positions, 3) == Ints{6, 3, 4});
    CHECK(ints(side, in.slot_mapping, 3) == Ints{14, 23, 4});
    CHECK(ints(side, in.cu_seqlens_q, 3) == Ints{0, 1, 3});
    CHECK(ints(side, in.seq_lens, 2) == Ints{7, 5});
    CHECK(ints(side, in.sample_token_idxs, 2) == Ints{0, 2});
    CHECK(ints(side, in.sample_state_rows, 2) == Ints{2, 0});
    CHECK(row_ints(state.token_ids, 2, 8) == Ints{20, 21, 22, 23, 24, 25, 77, 78});
    CHECK(row_ints(state.token_ids, 0, 6) == Ints{30, 31, 32, 33, 34, 79});

    // Row 2 is full: the token that it samples is dropped. Nothing else moves.
    PlanParts third;
    third.seqs.push_back({.row = 2, .query_len = 1, .flags = kSample, .num_computed_tokens = 7});
    run(third, {99});
    CHECK(row_ints(state.token_ids, 2, 8) == Ints{20, 21, 22, 23, 24, 25, 77, 78});
    CHECK(ints(side, state.num_tokens)[2] == 8);
    CHECK(ints(side, state.num_computed_tokens)[2] == 8);
    CHECK(ints(side, state.num_tokens)[0] == 6);
    CHECK(ints(side, state.num_computed_tokens)[0] == 5);
  });
}

}  // namespace
}  // namespace spate::conformance
