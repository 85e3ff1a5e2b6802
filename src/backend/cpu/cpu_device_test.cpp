// Goal    What the CPU device says of itself for the memory plan is what its ops take; rows lie as its caches like
// them. Method  The op with the largest appetite runs at the stated size; then the scratch that the threads hold is
// added up.
//         What ops compute is the business of spate-conformance.
#include "backend/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_context.h"
#include "backend/kv_storage.h"
#include "base/test.h"

namespace spate::cpu {
namespace {

TEST_CASE("op_workspace_bytes is the scratch of the sampling ops on all threads") {
  for (const int64_t vocab_size : {100, 50000}) {
    constexpr int64_t kNumLogits = 7, kNumTop = 5;
    const auto device = make_cpu_device({.num_threads = 3}).value();
    const auto stream = device->create_stream();
    HostTensor logits(DType::kF32, {kNumLogits, vocab_size}), targets(DType::kI32, {kNumLogits});
    HostTensor logprob(DType::kF32, {kNumLogits}), rank(DType::kI32, {kNumLogits});
    HostTensor top_ids(DType::kI32, {kNumLogits, kNumTop}), top_logprobs(DType::kF32, {kNumLogits, kNumTop});
    for (int64_t i = 0; i < kNumLogits * vocab_size; ++i) logits.span<float>()[static_cast<size_t>(i)] = float(i % 97);
    for (int32_t& id : targets.span<int32_t>()) id = 1;
    device->ops().logprobs(*stream, {.logits = logits.view(),
                                     .target_ids = targets.view(),
                                     .target_logprob = logprob.view(),
                                     .target_rank = rank.view(),
                                     .top_ids = top_ids.view(),
                                     .top_logprobs = top_logprobs.view()});
    int64_t taken = 0;
    for (const Scratch& scratch : context_of(*stream).thread_scratch) taken += scratch.bytes();
    const int64_t told = device->op_workspace_bytes({.max_num_logits = kNumLogits, .vocab_size = vocab_size});
    CHECK(taken == told);
  }
}

TEST_CASE("rows of activations are an odd number of cache lines apart, and no more than they need") {
  const auto device = make_cpu_device({.num_threads = 1}).value();
  for (const int64_t row_bytes : {2, 64, 66, 128, 640, 2048, 6144, 8192}) {
    const int64_t stride = device->activation_row_bytes(row_bytes);
    CAPTURE(row_bytes);
    CHECK(stride % 128 == 64);
    CHECK((stride >= row_bytes && stride < row_bytes + 128));
  }
}

// A model with wider ones is refused by its name; without that the first step ended the process.
TEST_CASE("caches of heads that attention can hold are supported, of wider ones not") {
  const auto device = make_cpu_device({.num_threads = 1}).value();
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kI8}) {
    CHECK(device->supports_kv({.num_kv_heads = 1, .head_dim = 256, .kv_block_size = 16, .dtype = dtype}));
    CHECK_FALSE(device->supports_kv({.num_kv_heads = 1, .head_dim = 258, .kv_block_size = 16, .dtype = dtype}));
    CHECK(device->supports_kv({.kind = KvKind::kLatent, .kv_lora_rank = 512, .qk_rope_head_dim = 64, .dtype = dtype}));
  }
}

// Kept files hold these bytes (Device::packed_layout). Numbers that change need a new number of the layout too.
TEST_CASE("the bytes of packed weights belong to layout cpu 1") {
  struct Case {
    WeightSpec spec;
    uint64_t hash;
  };
  constexpr int64_t kRows = 35, kColumns = 97;  // padding both ways
  HostTensor rows(DType::kF32, {kRows, kColumns});
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    rows.span<float>()[static_cast<size_t>(i)] = static_cast<float>((i * 7919) % 1009 - 504) / 512.0f;
  }
  for (const Case& one :
       {Case{{.codes = Codes::kF32}, 0xe581118d17ce3b80}, Case{{}, 0x6f8d6ea56f0cef03},
        Case{integer_spec(Codes::kInt8), 0xc918fbd07afdb587}, Case{integer_spec(Codes::kInt8, 32), 0x2cb179ee6e4cd98e},
        Case{integer_spec(Codes::kInt4, 32), 0x6262f9c88b0f343b},
        Case{integer_spec(Codes::kInt4, 64, false, true), 0xfbfb4cde6fbaa144}}) {
    for (const std::string_view isa : {kCpuInstructionSets[0], std::string_view()}) {
      const auto device = make_cpu_device({.num_threads = 2, .isa = std::string(isa)}).value();
      CHECK(device->packed_layout() == "cpu 1");
      PackedWeight weight =
          device->create_weight({.out_features = kRows, .in_features = kColumns, .spec = one.spec}).value();
      // In two calls that meet inside a block of 16.
      REQUIRE(device->pack_rows(weight, {.row = 21}, rows.view().rows(21, kRows)).ok());
      REQUIRE(device->pack_rows(weight, {.row = 0}, rows.view().rows(0, 21)).ok());
      uint64_t hash = 1469598103934665603ull;
      const auto* bytes = static_cast<const uint8_t*>(weight.data());
      for (size_t i = 0; i < weight.bytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
      CAPTURE(weight_spec_name(one.spec));
      CHECK(fmt::format("{:016x}", hash) == fmt::format("{:016x}", one.hash));
    }
  }
}

// An invented machine: what can be seen on any is that weights are in memory before they are packed, and that nothing
// else changes.
TEST_CASE("two nodes: large weights are touched by their owners, and products are bit-identical to one node's") {
  constexpr int64_t kRows = 4096, kColumns = 1024;  // 8 MB
  const Topology two_nodes{.threads = {{.id = 0, .core = 0, .node = 0}, {.id = 1, .core = 1, .node = 1}}};
  const HostTensor rows(DType::kBf16, {kRows, kColumns});
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    rows.view().data<Bf16>()[i] = Bf16::from_float(static_cast<float>((i * 7919) % 1009 - 504) / 4096.0f);
  }
  const auto run = [&](Device& device, bool touches, int64_t num_tokens) {
    PackedWeight weight = device.create_weight({.out_features = kRows, .in_features = kColumns}).value();
    std::vector<unsigned char> in_core(weight.bytes() / 4096);
    REQUIRE(mincore(weight.mutable_data(), weight.bytes(), in_core.data()) == 0);
    for (const unsigned char page : in_core) REQUIRE((page & 1) == (touches ? 1 : 0));
    REQUIRE(device.pack_rows(weight, {}, rows.view()).ok());
    const auto stream = device.create_stream();
    const HostTensor out(DType::kBf16, {num_tokens, kRows}), silu(DType::kBf16, {num_tokens, kRows / 2});
    const Tensor x = rows.view().rows(0, num_tokens);
    device.ops().linear(*stream, {.x = x, .weight = &weight, .bias = Tensor(), .out = out.view()});
    device.ops().linear_silu_and_mul(
        *stream, {.x = x, .weight = &weight, .bias = Tensor(), .gate_up = Tensor(), .out = silu.view()});
    std::vector<uint16_t> outputs(static_cast<size_t>(num_tokens * (kRows + kRows / 2)));
    std::memcpy(outputs.data(), out.view().raw(), static_cast<size_t>(num_tokens * kRows * 2));
    std::memcpy(outputs.data() + num_tokens * kRows, silu.view().raw(), static_cast<size_t>(num_tokens * kRows));
    return outputs;
  };
  const auto device = make_cpu_device_on(two_nodes, {.num_threads = 2}).value();
  CHECK(device->description().ends_with(", 2 threads on core 0,1, 2 nodes"));
  const auto one_node = make_cpu_device_on({.threads = {{.id = 0}, {.id = 1, .core = 1}}}, {.num_threads = 2}).value();
  CHECK(one_node->description().ends_with(", 2 threads"));
  for (const int64_t num_tokens : {1, 20}) CHECK(run(*device, true, num_tokens) == run(*one_node, false, num_tokens));
  // Other large buffers stay untouched.
  const Buffer buffer = device->allocate(size_t{8} << 20, MemoryKind::kDevice).value();
  unsigned char in_core = 1;
  REQUIRE(mincore(buffer.data(), 4096, &in_core) == 0);
  CHECK((in_core & 1) == 0);
}

// Any thread may run any expert, so a weight of several matrices has no owners: it lies on all nodes in turn.
TEST_CASE("two nodes: weights of experts stay untouched, and expert_mlp is bit-identical to one node's") {
  constexpr int64_t kExperts = 4, kHidden = 512, kIntermediate = 1024, kUsed = 2;  // gate and up: 8 MB, down: 4 MB
  const Topology two_nodes{.threads = {{.id = 0, .core = 0, .node = 0}, {.id = 1, .core = 1, .node = 1}}};
  const HostTensor rows(DType::kBf16, {2 * kIntermediate, kIntermediate});
  for (int64_t i = 0; i < 2 * kIntermediate * kIntermediate; ++i) {
    rows.view().data<Bf16>()[i] = Bf16::from_float(static_cast<float>((i * 7919) % 1009 - 504) / 4096.0f);
  }
  const auto create = [&](Device& device, int64_t num_rows, int64_t num_columns, Codes codes) {
    const WeightSpec spec = codes == Codes::kBf16 ? WeightSpec{} : integer_spec(codes);
    PackedWeight weight =
        device
            .create_weight(
                {.out_features = num_rows, .in_features = num_columns, .spec = spec, .num_matrices = kExperts})
            .value();
    if (codes == Codes::kBf16) {  // large enough to have pages of its own
      std::vector<unsigned char> in_core(weight.bytes() / 4096);
      REQUIRE(mincore(weight.mutable_data(), weight.bytes(), in_core.data()) == 0);
      for (const unsigned char page : in_core) REQUIRE((page & 1) == 0);
    }
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      HostTensor part(DType::kBf16, {num_rows, num_columns});
      for (int64_t i = 0; i < num_rows * num_columns; ++i) {
        part.view().data<Bf16>()[i] =
            rows.view().data<Bf16>()[(i + expert * 331) % (2 * kIntermediate * kIntermediate)];
      }
      REQUIRE(device.pack_rows(weight, {.matrix_idx = expert}, part.view()).ok());
    }
    return weight;
  };
  const auto run = [&](Device& device, int64_t num_tokens, Codes codes) {
    const PackedWeight gate_up = create(device, 2 * kIntermediate, kHidden, codes),
                       down = create(device, kHidden, kIntermediate, codes);
    HostTensor ids(DType::kI32, {num_tokens, kUsed}), weights(DType::kF32, {num_tokens, kUsed});
    for (int64_t i = 0; i < num_tokens * kUsed; ++i) {
      // Expert 3 is used by one token in five.
      ids.span<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i % kUsed == 0 ? i / kUsed % 2
                                                                         : i % 5 == 0   ? 3
                                                                                        : 2);
      weights.span<float>()[static_cast<size_t>(i)] = 0.25f + 0.125f * static_cast<float>(i % 5);
    }
    const HostTensor x(DType::kBf16, {num_tokens, kHidden}), out(DType::kBf16, {num_tokens, kHidden});
    std::memcpy(x.view().raw(), rows.view().raw(), static_cast<size_t>(num_tokens * kHidden * 2));
    const auto stream = device.create_stream();
    device.ops().expert_mlp(*stream, {.x = x.view(),
                                      .expert_ids = ids.view(),
                                      .expert_weights = weights.view(),
                                      .gate_up = &gate_up,
                                      .down = &down,
                                      .shared = Tensor(),
                                      .shared_gate = Tensor(),
                                      .out = out.view()});
    std::vector<uint16_t> outputs(static_cast<size_t>(num_tokens * kHidden));
    std::memcpy(outputs.data(), out.view().raw(), outputs.size() * 2);
    return outputs;
  };
  const auto device = make_cpu_device_on(two_nodes, {.num_threads = 2}).value();
  const auto one_node = make_cpu_device_on({.threads = {{.id = 0}, {.id = 1, .core = 1}}}, {.num_threads = 2}).value();
  for (const Codes codes : {Codes::kBf16, Codes::kInt8}) {
    for (const int64_t num_tokens : {1, 20, 300}) {
      const std::vector<uint16_t> here = run(*device, num_tokens, codes), there = run(*one_node, num_tokens, codes);
      CHECK(here == there);
      CHECK(std::any_of(here.begin(), here.end(), [](uint16_t bits) { return bits % 0x8000 != 0; }));
    }
  }
}

// Sequences over a latent cache, the last query_len tokens of each of which attend in the expanded form.
struct LatentSeq {
  int64_t seq_len, query_len;
};
struct LatentRig {
  static constexpr int64_t kHeads = 3, kRank = 40, kRope = 16, kNope = 32, kValue = 24, kBlock = 16, kQ = kNope + kRope;

  LatentRig(Device& on, DType kv_dtype, std::vector<LatentSeq> sequences)
      : device(on),
        stream(on.create_stream()),
        seqs(std::move(sequences)),
        kv_up(on.create_weight({.out_features = kHeads * (kNope + kValue), .in_features = kRank}).value()) {
    const HostTensor rows = values({kHeads * (kNope + kValue), kRank}, 3);
    REQUIRE(on.pack_rows(kv_up, {}, rows).ok());
    const KvLayerDesc desc{.kind = KvKind::kLatent,
                           .kv_lora_rank = kRank,
                           .qk_rope_head_dim = kRope,
                           .kv_block_size = kBlock,
                           .dtype = kv_dtype};
    storage = KvStorage::create(on, std::span(&desc, 1), kNumBlocks).value();
    table = HostTensor(DType::kI32, {static_cast<int64_t>(seqs.size()), kMaxBlocks});
    int32_t block = kNumBlocks;
    for (size_t s = 0; s < seqs.size(); ++s) {
      HostTensor slots(DType::kI32, {seqs[s].seq_len});
      for (int64_t i = 0; i < seqs[s].seq_len; ++i) {
        int32_t& id = table.span<int32_t>()[s * kMaxBlocks + static_cast<size_t>(i / kBlock)];
        if (i % kBlock == 0) id = --block;
        slots.span<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(id * kBlock + i % kBlock);
      }
      const HostTensor latent = values({seqs[s].seq_len, kRank + kRope}, 100 + s);
      on.ops().latent_write(*stream, {.latent = latent, .slot_mapping = slots, .kv = storage.views()[0]});
      q.push_back(values({seqs[s].query_len, kHeads * kQ}, 200 + s));
      out.emplace_back(DType::kBf16, std::initializer_list<int64_t>{seqs[s].query_len, kHeads * kValue});
    }
  }

  static HostTensor values(std::initializer_list<int64_t> dims, uint64_t seed) {
    HostTensor all(DType::kBf16, dims);
    for (int64_t i = 0; i < all.view().num_elements(); ++i) {
      const auto number = static_cast<int64_t>((static_cast<uint64_t>(i) * 7919 + seed * 104729) % 1009) - 504;
      all.view().data<Bf16>()[i] = Bf16::from_float(static_cast<float>(number) / 300.0f);
    }
    return all;
  }

  // Queries [first, first + count) of sequence s.
  struct Part {
    size_t s;
    int64_t first, count;
  };
  void attend(const std::vector<Part>& parts) {
    const auto num_parts = static_cast<int64_t>(parts.size());
    HostTensor seq_rows(DType::kI32, {num_parts}), seq_lens(DType::kI32, {num_parts}), cu(DType::kI32, {num_parts + 1});
    int64_t num_tokens = 0, num_keys = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const LatentSeq& seq = seqs[parts[i].s];
      seq_rows.span<int32_t>()[i] = static_cast<int32_t>(parts[i].s);
      seq_lens.span<int32_t>()[i] = static_cast<int32_t>(seq.seq_len - seq.query_len + parts[i].first + parts[i].count);
      num_keys += seq_lens.span<int32_t>()[i];
      cu.span<int32_t>()[i + 1] = static_cast<int32_t>(num_tokens += parts[i].count);
    }
    const HostTensor queries(DType::kBf16, {num_tokens, kHeads * kQ}), results(DType::kBf16, {num_tokens, kHeads * kValue});
    const auto copy = [](const Tensor& from, const Tensor& to) {
      std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.num_bytes()));
    };
    const auto for_parts = [&](const auto& fn) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const int32_t* ends = cu.span<int32_t>().data() + i;
        fn(parts[i].s, parts[i].first, parts[i].first + parts[i].count, ends[0], ends[1]);
      }
    };
    for_parts([&](size_t s, int64_t first, int64_t end, int64_t begin_row, int64_t end_row) {
      copy(q[s].view().rows(first, end), queries.view().rows(begin_row, end_row));
    });
    device.ops().attention_latent_expanded(*stream, {.q = queries.view().split_last(kHeads, kQ),
                                                     .kv_up = &kv_up,
                                                     .kv = storage.views()[0],
                                                     .block_table = table,
                                                     .seq_rows = seq_rows,
                                                     .cu_seqlens_q = cu,
                                                     .seq_lens = seq_lens,
                                                     .num_keys = static_cast<int>(num_keys),
                                                     .softmax_scale = 0.15f,
                                                     .out = results.view().split_last(kHeads, kValue)});
    for_parts([&](size_t s, int64_t first, int64_t end, int64_t begin_row, int64_t end_row) {
      copy(results.view().rows(begin_row, end_row), out[s].view().rows(first, end));
    });
  }
  std::vector<uint16_t> bits() const {
    std::vector<uint16_t> all;
    for (const HostTensor& one : out) {
      const auto* rows = static_cast<const uint16_t*>(one.view().raw());
      all.insert(all.end(), rows, rows + one.view().num_elements());
    }
    return all;
  }

  static constexpr int32_t kNumBlocks = 200;
  static constexpr int64_t kMaxBlocks = 80;
  Device& device;
  std::unique_ptr<Stream> stream;
  std::vector<LatentSeq> seqs;
  PackedWeight kv_up;
  KvStorage storage;
  HostTensor table;
  std::vector<HostTensor> q, out;  // of each sequence
};

// One query of each sequence in the absorbed form, over a cache whose free bytes are no numbers.
std::vector<uint16_t> attend_absorbed(const Isa& isa, int num_threads, DType kv_dtype, int64_t rank,
                                      const std::vector<int32_t>& seq_lens, int32_t nan_position = -1) {
  constexpr int64_t kHeads = 16, kRope = 32, kBlock = 16, kBlocks = 70;
  const auto device = make_cpu_device({.num_threads = num_threads, .isa = std::string(isa.name)}).value();
  const auto stream = device->create_stream();
  const auto num_seqs = static_cast<int64_t>(seq_lens.size());
  const KvLayerDesc desc{.kind = KvKind::kLatent,
                         .kv_lora_rank = rank,
                         .qk_rope_head_dim = kRope,
                         .kv_block_size = kBlock,
                         .dtype = kv_dtype};
  const KvStorage storage = KvStorage::create(*device, std::span(&desc, 1), num_seqs * kBlocks).value();
  const KvView kv = storage.views()[0];
  std::memset(kv.data, 0xff, static_cast<size_t>(kv.num_blocks * kv.block_bytes));
  const HostTensor table(DType::kI32, {num_seqs, kBlocks}), rows(DType::kI32, {num_seqs}),
      lens(DType::kI32, {num_seqs}), cu(DType::kI32, {num_seqs + 1}), out(DType::kBf16, {num_seqs, kHeads * rank});
  const HostTensor q = LatentRig::values({num_seqs, kHeads * (rank + kRope)}, static_cast<uint64_t>(seq_lens[0]));
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int32_t len = seq_lens[static_cast<size_t>(s)];
    for (int32_t b = 0; b < kBlocks; ++b) {
      table.view().data<int32_t>()[s * kBlocks + b] = static_cast<int32_t>((s + 1) * kBlocks - 1) - b;
    }
    const HostTensor latent = LatentRig::values({len, rank + kRope}, static_cast<uint64_t>(len)),
                     slots(DType::kI32, {len});
    for (int32_t i = 0; i < len; ++i) {
      slots.view().data<int32_t>()[i] =
          table.view().data<int32_t>()[s * kBlocks + i / kBlock] * static_cast<int32_t>(kBlock) +
          i % static_cast<int32_t>(kBlock);
    }
    if (nan_position >= 0) latent.view().data<Bf16>()[nan_position * (rank + kRope)] = Bf16::from_float(NAN);
    device->ops().latent_write(*stream, {.latent = latent, .slot_mapping = slots, .kv = kv});
    rows.view().data<int32_t>()[s] = static_cast<int32_t>(s);
    lens.view().data<int32_t>()[s] = len;
    cu.view().data<int32_t>()[s + 1] = static_cast<int32_t>(s + 1);
  }
  device->ops().attention_latent(
      *stream, {.q_latent = q.view().columns(0, kHeads * rank).split_last(kHeads, rank),
                .q_rope = q.view().columns(kHeads * rank, kHeads * (rank + kRope)).split_last(kHeads, kRope),
                .kv = kv,
                .block_table = table,
                .seq_rows = rows,
                .cu_seqlens_q = cu,
                .seq_lens = lens,
                .max_query_len = 1,
                .max_seq_len = *std::max_element(seq_lens.begin(), seq_lens.end()),
                .softmax_scale = 0.05f,
                .out = out.view().split_last(kHeads, rank)});
  const auto* bits = static_cast<const uint16_t*>(out.view().raw());
  return {bits, bits + out.view().num_elements()};
}

bool is_number(uint16_t bf16) { return (bf16 & 0x7f80) != 0x7f80; }

TEST_CASE("absorbed latent attention: bits do not depend on threads; what lies behind the keys does not count") {
  for (const Isa& isa : all_isas()) {
    if (!isa.is_present()) continue;
    for (const auto& [kv_dtype, rank] :
         {std::pair{DType::kBf16, 64}, {DType::kBf16, 40}, {DType::kI8, 64}, {DType::kI8, 40}}) {
      for (const int32_t len : {1, 16, 31, 32, 33, 128, 300, 512, 513, 1100}) {
        CAPTURE(isa.name);
        CAPTURE(dtype_name(kv_dtype));
        CAPTURE(rank);
        CAPTURE(len);
        const std::vector<uint16_t> alone = attend_absorbed(isa, 1, kv_dtype, rank, {len});
        CHECK(std::all_of(alone.begin(), alone.end(), is_number));
        CHECK(std::any_of(alone.begin(), alone.end(), [](uint16_t bits) { return bits % 0x8000 != 0; }));
        for (const int threads : {2, 5}) CHECK(attend_absorbed(isa, threads, kv_dtype, rank, {len}) == alone);
        std::vector<uint16_t> first = attend_absorbed(isa, 2, kv_dtype, rank, {len, 77, 5});
        first.resize(alone.size());
        CHECK(first == alone);
      }
    }
  }
}

TEST_CASE("absorbed latent attention: a key that is no number is seen in the output") {
  for (const Isa& isa : all_isas()) {
    if (!isa.is_present()) continue;
    for (const int32_t position : {0, 40, 630}) {
      CAPTURE(isa.name);
      CAPTURE(position);
      const std::vector<uint16_t> bits = attend_absorbed(isa, 2, DType::kBf16, 64, {700}, position);
      CHECK(!std::all_of(bits.begin(), bits.end(), is_number));
    }
  }
}

TEST_CASE("expanded latent attention: bits do not depend on chunks, other sequences or threads") {
  const std::vector<LatentSeq> seqs{{1203, 500}, {70, 70}, {129, 1}};
  for (const DType kv_dtype : {DType::kBf16, DType::kI8}) {
    const auto device = make_cpu_device({.num_threads = 2}).value(), one = make_cpu_device({.num_threads = 1}).value();
    LatentRig together(*device, kv_dtype, seqs);
    together.attend({{0, 0, 500}, {1, 0, 70}, {2, 0, 1}});
    const std::vector<uint16_t> expected = together.bits();
    REQUIRE(std::any_of(expected.begin(), expected.end(), [](uint16_t b) { return b % 0x8000 != 0; }));
    for (const int64_t chunk : {500, 170, 33}) {
      CAPTURE(chunk);
      LatentRig alone(*one, kv_dtype, seqs);
      for (size_t s = 0; s < seqs.size(); ++s) {
        for (int64_t first = 0; first < seqs[s].query_len; first += chunk) {
          alone.attend({{s, first, std::min(chunk, seqs[s].query_len - first)}});
        }
      }
      CHECK(alone.bits() == expected);
    }
  }
}

TEST_CASE("expanded latent attention takes no more scratch than op_workspace_bytes says") {
  const auto device = make_cpu_device({.num_threads = 2}).value();
  const LatentShape shape{LatentRig::kRank, LatentRig::kNope, LatentRig::kRope, LatentRig::kValue, DType::kBf16};
  const int64_t others = device->op_workspace_bytes({.vocab_size = 1000});
  for (const int64_t seq_len : {64, 1203}) {
    LatentRig rig(*device, DType::kBf16, {{seq_len, 64}});
    rig.attend({{0, 0, 64}});
    const int64_t told = device->op_workspace_bytes({.vocab_size = 1000,
                                                     .max_long_keys = seq_len,
                                                     .num_latent_heads = LatentRig::kHeads,
                                                     .latent = shape});
    CHECK(context_of(*rig.stream).expanded_scratch.bytes() <= told - others);
  }
}

TEST_CASE("a deterministic device keeps latent attention in one form; the other takes heads that attention can hold") {
  const LatentShape v2_lite{.kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128};
  const auto min_len = [](bool deterministic, const LatentShape& shape) {
    return make_cpu_device({.num_threads = 1, .deterministic = deterministic}).value()->min_expanded_query_len(shape);
  };
  CHECK(min_len(false, v2_lite) > 1);
  CHECK(min_len(true, v2_lite) == 0);
  LatentShape wide = v2_lite;
  wide.qk_nope_head_dim = 200;
  CHECK(min_len(false, wide) == 0);
  wide = v2_lite;
  wide.v_head_dim = 208;
  CHECK(min_len(false, wide) == 0);
}

TEST_CASE("latent attention expands from fewer tokens on where tiles multiply bf16") {
  LatentShape shape{.kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128};
  for (const Isa& isa : all_isas()) {
    if (!isa.is_present()) continue;
    CAPTURE(isa.name);
    const auto device = make_cpu_device({.num_threads = 1, .isa = std::string(isa.name)}).value();
    shape.act_dtype = DType::kF32;
    const int of_floats = device->min_expanded_query_len(shape);
    shape.act_dtype = DType::kBf16;
    if (isa.name == "amx") {
      CHECK(device->min_expanded_query_len(shape) < of_floats);
    } else {
      CHECK(device->min_expanded_query_len(shape) == of_floats);
    }
  }
}

}  // namespace
}  // namespace spate::cpu
