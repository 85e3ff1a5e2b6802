// Goal: on a GPU, the bits of a row do not depend on what runs beside it: linear over the batch sizes that choose
// different tiles, attention over whole prompts, chunks and single tokens, sampling alone and in company.
// Method: one large call against many small ones, bit for bit; and both against the scalar reference, within the
// rounding of the output. Widths are odd on purpose: the tails of tiles, unaligned rows and padded heads all occur.
// That every op computes what it should over all shapes is the business of spate-conformance.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "backend/cuda/cuda_device.h"
#include "backend/kv_storage.h"
#include "backend/ops.h"
#include "backend/product_tuning.h"
#include "backend/reference/reference_device.h"
#include "base/tensor_compare.h"
#include "base/test.h"
#include "base/test_support.h"
#include "quant/quantization.h"

namespace spate {
namespace {

// A device with a stream, and tensors copied to and from it.
class Bench {
 public:
  explicit Bench(std::unique_ptr<Device> device) : device_(std::move(device)), stream_(device_->create_stream()) {}
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  const OpTable& ops() { return device_->ops(); }

  Tensor upload(const HostTensor& host) {
    buffers_.push_back(device_->allocate(static_cast<size_t>(host.view().num_bytes()), MemoryKind::kDevice).value());
    device_->copy_to_device(*stream_, buffers_.back().data(), host.view().raw(), buffers_.back().bytes());
    return Tensor(buffers_.back().data(), host.view().dtype(), host.view().dims());
  }
  HostTensor download(const Tensor& tensor) {
    HostTensor host(tensor.dtype(), tensor.dims());
    device_->copy_to_host(*stream_, host.view().raw(), tensor.raw(), static_cast<size_t>(tensor.num_bytes()));
    device_->synchronize(*stream_);
    return host;
  }
  Tensor ints(const std::vector<int32_t>& values) {
    HostTensor host(DType::kI32, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), host.span<int32_t>().begin());
    return upload(host);
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;  // freed before the device
};

// The GPU, or null after saying that the test is skipped.
std::unique_ptr<Bench> gpu_or_skip(const DeviceOptions& options = {}) {
  Result<std::unique_ptr<Device>> device = make_cuda_device(options);
  if (device.ok()) {
    REQUIRE((*device)->prepare({.is_everything = true}).ok());
    return std::make_unique<Bench>(*std::move(device));
  }
  skip_test(device.status().message());
  return nullptr;
}

std::unique_ptr<Bench> reference() { return std::make_unique<Bench>(make_reference_device({}).value()); }

Tolerance tolerance_of(DType dtype) {
  return dtype == DType::kBf16 ? Tolerance{.rel = 0.01, .abs = 0.01} : Tolerance{.rel = 1e-4, .abs = 1e-4};
}

struct LinearCase {
  DType act;
  Codes codes;
  DType out;
};

// Rows [begin, end) of x through the weight.
HostTensor run_linear(Bench& bench, const LinearCase& c, const HostTensor& x, const HostTensor& w,
                      const HostTensor& bias, int64_t begin, int64_t end) {
  const int64_t out_features = w.view().dim(0);
  PackedWeight weight =
      bench.device()
          .create_weight({.out_features = out_features, .in_features = w.view().dim(1), .spec = {.codes = c.codes}})
          .value();
  REQUIRE(bench.device().pack_rows(weight, {}, w).ok());
  const Tensor out = bench.upload(poisoned_tensor(c.out, {end - begin, out_features}));
  bench.ops().linear(
      bench.stream(),
      {.x = bench.upload(x).rows(begin, end), .weight = &weight, .bias = bench.upload(bias), .out = out});
  return bench.download(out);
}

// Both sums of a norm must add in the same order, and each op round where its part of the fused op does.
TEST_CASE("fused ops give the bits of their decompositions") {
  const std::unique_ptr<Bench> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  for (const DType act : {DType::kBf16, DType::kF32}) {
    for (const int64_t width : {100, 264, 1024, 4096, 5003, 8192, 16384, 20000}) {
      const HostTensor x = random_tensor(rng, act, {7, width}), residual = random_tensor(rng, act, {7, width});
      const HostTensor weight = random_tensor(rng, act, {width});
      const auto run = [&](Op<AddRmsNormParams> op) {
        const Tensor residual_device = gpu->upload(residual), out = gpu->upload(poisoned_tensor(act, {7, width}));
        op(gpu->stream(),
           {.x = gpu->upload(x), .residual = residual_device, .weight = gpu->upload(weight), .eps = 1e-6f, .out = out});
        return std::pair{gpu->download(residual_device), gpu->download(out)};
      };
      const auto fused = run(gpu->ops().add_rms_norm), decomposed = run(decompositions().add_rms_norm);
      INFO("width ", width);
      CHECK_TENSOR(equal_bits("residual", fused.first, decomposed.first));
      CHECK_TENSOR(equal_bits("out", fused.second, decomposed.second));
    }
    for (const auto& [head_dim, rotary_dim] : {std::pair{64, 64}, {80, 80}, {128, 128}, {128, 64}, {256, 64}}) {
      for (const bool interleaved : {false, true}) {
        const int64_t num_tokens = head_dim == 128 && rotary_dim == 128 ? 300 : 37, heads = 6, kv_heads = 2,
                      width = (heads + 2 * kv_heads) * head_dim;
        const HostTensor qkv = random_tensor(rng, act, {num_tokens, width});
        const HostTensor norm = random_tensor(rng, act, {head_dim});
        const HostTensor cos_sin = random_tensor(rng, DType::kF32, {num_tokens, rotary_dim});
        std::vector<int32_t> positions(num_tokens), slots(num_tokens);
        std::iota(positions.begin(), positions.end(), 0);
        std::iota(slots.begin(), slots.end(), 5);
        slots[3] = -1;
        const auto run = [&](Op<QkNormRopeKvWriteParams> op) {
          const KvLayerDesc desc{.num_kv_heads = kv_heads, .head_dim = head_dim, .kv_block_size = 16, .dtype = act};
          const int64_t num_blocks = (num_tokens + 5) / 16 + 1;
          const KvStorage storage = KvStorage::create(gpu->device(), {&desc, 1}, num_blocks).value();
          const KvView& kv = storage.views()[0];
          gpu->device().fill_bytes(gpu->stream(), kv.data, 0x77, static_cast<size_t>(num_blocks * kv.block_bytes));
          const Tensor rows = gpu->upload(qkv), weight = gpu->upload(norm);
          const auto heads_at = [&](int64_t first, int64_t count) {
            return rows.columns(first * head_dim, (first + count) * head_dim).split_last(count, head_dim);
          };
          op(gpu->stream(), {.q = heads_at(0, heads),
                             .k = heads_at(heads, kv_heads),
                             .v = heads_at(heads + kv_heads, kv_heads),
                             .q_norm = weight,
                             .k_norm = weight,
                             .eps = 1e-6f,
                             .positions = gpu->ints(positions),
                             .cos_sin = gpu->upload(cos_sin),
                             .interleaved = interleaved,
                             .slot_mapping = gpu->ints(slots),
                             .kv = kv});
          const Tensor cache(kv.data, act, {num_blocks, kv.block_bytes / dtype_bytes(act)});
          return std::pair{gpu->download(rows), gpu->download(cache)};
        };
        const auto fused = run(gpu->ops().qk_norm_rope_kv_write),
                   decomposed = run(decompositions().qk_norm_rope_kv_write);
        INFO("head_dim ", head_dim, ", rotary_dim ", rotary_dim);
        for (int64_t i = 0; i < num_tokens; ++i) {  // what is left in k is unspecified
          const Tensor row = fused.first.view().rows(i, i + 1), expected = decomposed.first.view().rows(i, i + 1);
          CHECK_TENSOR(equal_bits("q", row.columns(0, heads * head_dim), expected.columns(0, heads * head_dim)));
        }
        CHECK_TENSOR(equal_bits("cache", fused.second, decomposed.second));
      }
    }
  }
}

TEST_CASE("linear: of a deterministic device a row has the same bits in every batch") {
  const std::unique_ptr<Bench> gpu = gpu_or_skip({.deterministic = true}), oracle = reference();
  if (gpu == nullptr) return;
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  for (const LinearCase c :
       {LinearCase{DType::kBf16, Codes::kBf16, DType::kBf16}, LinearCase{DType::kBf16, Codes::kBf16, DType::kF32},
        LinearCase{DType::kF32, Codes::kBf16, DType::kF32}, LinearCase{DType::kF32, Codes::kF32, DType::kF32}}) {
    for (const int64_t in_features : {int64_t{203}, int64_t{256}}) {
      const int64_t num_tokens = 130, out_features = 77;
      const HostTensor x = random_tensor(rng, c.act, {num_tokens, in_features});
      const HostTensor w = random_tensor(rng, DType::kBf16, {out_features, in_features}, 0.1f);
      const HostTensor bias = random_tensor(rng, c.act, {out_features});
      const HostTensor whole = run_linear(*gpu, c, x, w, bias, 0, num_tokens);
      CHECK_TENSOR(close_to("out", whole, run_linear(*oracle, c, x, w, bias, 0, num_tokens), tolerance_of(c.out)));
      for (const auto& [begin, end] : {std::pair{0, 1}, {5, 21}, {64, 97}, {33, 65}, {129, 130}}) {
        const HostTensor part = run_linear(*gpu, c, x, w, bias, begin, end);
        CHECK_TENSOR(equal_bits("out", part, whole.view().rows(begin, end)));
      }
    }
  }
}

// A sequence in a paged cache, and attention over any part of it.
struct AttentionCase {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  DType act;
  DType kv;
  int window;
};

class PagedSequence {
 public:
  PagedSequence(Bench& bench, const AttentionCase& c, const HostTensor& q, const HostTensor& k, const HostTensor& v)
      : bench_(bench), case_(c), q_(bench.upload(q)), seq_len_(q.view().dim(0)) {
    const int64_t kv_block_size = 16, num_blocks = seq_len_ / kv_block_size + 3;
    const KvLayerDesc desc{
        .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .kv_block_size = kv_block_size, .dtype = c.kv};
    storage_ = KvStorage::create(bench.device(), {&desc, 1}, num_blocks).value();
    const Buffer& buffer = storage_.buffer();
    bench.device().fill_bytes(bench.stream(), buffer.data(), 0xff, buffer.bytes());  // NaN where nobody writes
    kv_ = storage_.views().front();
    std::vector<int32_t> blocks(static_cast<size_t>(num_blocks)), slots;
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(blocks.size() - 1 - i);
    for (int32_t i = 0; i < seq_len_; ++i) slots.push_back(blocks[static_cast<size_t>(i / 16)] * 16 + i % 16);
    block_table_ = bench.ints(blocks).reshaped({1, num_blocks});
    bench.ops().kv_write(bench.stream(),
                         {.k = bench.upload(k), .v = bench.upload(v), .slot_mapping = bench.ints(slots), .kv = kv_});
  }

  // Queries [begin, end), cut into steps' sequences at `cuts`: each a sequence of its own that ends there.
  HostTensor attend(int64_t begin, std::vector<int32_t> cuts) {
    std::vector<int32_t> cu_seqlens_q = {0}, seq_lens, seq_rows;
    for (const int32_t cut : cuts) {
      cu_seqlens_q.push_back(cut - static_cast<int32_t>(begin));
      seq_lens.push_back(cut);
      seq_rows.push_back(0);
    }
    const int64_t end = cuts.back();
    const Tensor out = bench_.upload(poisoned_tensor(case_.act, {end - begin, case_.num_heads, case_.head_dim}));
    bench_.ops().attention_paged(bench_.stream(),
                                 {.q = q_.rows(begin, end),
                                  .kv = kv_,
                                  .block_table = block_table_,
                                  .seq_rows = bench_.ints(seq_rows),
                                  .cu_seqlens_q = bench_.ints(cu_seqlens_q),
                                  .seq_lens = bench_.ints(seq_lens),
                                  .max_query_len = static_cast<int>(end - begin),
                                  .max_seq_len = static_cast<int>(end),
                                  .softmax_scale = 1.0f / std::sqrt(static_cast<float>(case_.head_dim)),
                                  .window = case_.window,
                                  .out = out});
    return bench_.download(out);
  }

 private:
  Bench& bench_;
  AttentionCase case_;
  Tensor q_, block_table_;
  int64_t seq_len_;
  KvStorage storage_;
  KvView kv_;
};

TEST_CASE("attention: a whole prompt, chunks and single queries agree; on a deterministic device to the bit") {
  const std::unique_ptr<Bench> gpu = gpu_or_skip({.deterministic = true}), fast = gpu_or_skip(), oracle = reference();
  if (gpu == nullptr || fast == nullptr) return;
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  for (const AttentionCase& c :
       {AttentionCase{4, 2, 64, DType::kBf16, DType::kBf16, 0},
        AttentionCase{7, 1, 128, DType::kBf16, DType::kBf16, 40}, AttentionCase{2, 2, 20, DType::kF32, DType::kF32, 0},
        AttentionCase{6, 2, 256, DType::kF32, DType::kBf16, 1}}) {
    const int64_t seq_len = 203;
    const HostTensor q = random_tensor(rng, c.act, {seq_len, c.num_heads, c.head_dim});
    const HostTensor k = random_tensor(rng, c.act, {seq_len, c.num_kv_heads, c.head_dim});
    const HostTensor v = random_tensor(rng, c.act, {seq_len, c.num_kv_heads, c.head_dim});
    PagedSequence on_gpu(*gpu, c, q, k, v), on_fast(*fast, c, q, k, v), on_oracle(*oracle, c, q, k, v);
    const HostTensor whole = on_gpu.attend(0, {203}), expected = on_oracle.attend(0, {203});
    CHECK_TENSOR(close_to("out", whole, expected, tolerance_of(c.act)));
    for (const std::vector<int32_t>& cuts : {std::vector<int32_t>{203}, {1, 37, 38, 128, 203}}) {
      CHECK_TENSOR(close_to("out", on_fast.attend(0, cuts), expected, tolerance_of(c.act)));
    }
    CHECK_TENSOR(equal_bits("out", on_gpu.attend(0, {1, 37, 38, 128, 203}), whole));
    CHECK_TENSOR(equal_bits("out", on_gpu.attend(202, {203}), whole.view().rows(202, 203)));
    CHECK_TENSOR(equal_bits("out", on_gpu.attend(30, {32, 33, 64}), whole.view().rows(30, 64)));
  }
}

// A running state of a few rows with every kind of sampling, and logits for it.
struct SampleCase {
  HostTensor logits, token_ids, num_tokens, sampling, bias_ids, bias_values, stop_ids;
};

constexpr int64_t kNumRows = 12, kVocabSize = 5003, kMaxModelLen = 64;

SampleCase make_sample_case(Rng& rng) {
  SampleCase c{.logits = random_tensor(rng, DType::kF32, {kNumRows, kVocabSize}, 3.0f),
               .token_ids = HostTensor(DType::kI32, {kNumRows, kMaxModelLen}),
               .num_tokens = HostTensor(DType::kI32, {kNumRows}),
               .sampling = HostTensor(DType::kU8, {kNumRows, static_cast<int64_t>(sizeof(RowSampling))}),
               .bias_ids = HostTensor(DType::kI32, {kNumRows, kMaxLogitBias}),
               .bias_values = HostTensor(DType::kF32, {kNumRows, kMaxLogitBias}),
               .stop_ids = HostTensor(DType::kI32, {kNumRows, kMaxStopIds})};
  for (int32_t& id : c.token_ids.span<int32_t>()) id = static_cast<int32_t>(rng.below(kVocabSize));
  for (int32_t& id : c.bias_ids.span<int32_t>()) id = static_cast<int32_t>(rng.below(kVocabSize));
  for (int32_t& id : c.stop_ids.span<int32_t>()) id = static_cast<int32_t>(rng.below(kVocabSize));
  for (float& bias : c.bias_values.span<float>()) bias = rng.gaussian() * 5;
  for (int64_t row = 0; row < kNumRows; ++row) {
    c.num_tokens.span<int32_t>()[static_cast<size_t>(row)] = static_cast<int32_t>(20 + row);
    RowSampling s{.seed = rng.next_u64(), .temperature = row % 4 == 0 ? 0.0f : 0.7f, .prompt_len = 10};
    if (row % 3 == 1) s.top_p = 0.8f;
    if (row % 4 == 2) s.min_p = 0.05f;
    if (row % 2 == 1) s.sampling_top_k = 40;
    if (row >= 4) s.repetition_penalty = 1.3f;
    if (row >= 5) s.presence_penalty = 0.5f;
    if (row >= 6) s.frequency_penalty = 0.3f;
    if (row >= 7) s.num_bias = 300;
    if (row >= 8) s.num_stop_ids = kMaxStopIds, s.min_tokens_until = 29;
    std::memcpy(c.sampling.span<uint8_t>().data() + row * static_cast<int64_t>(sizeof s), &s, sizeof s);
  }
  return c;
}

std::vector<int32_t> run_sample(Bench& bench, const SampleCase& c, const std::vector<int32_t>& rows) {
  const RowState state{.token_ids = bench.upload(c.token_ids),
                       .num_tokens = bench.upload(c.num_tokens),
                       .num_computed_tokens = bench.upload(c.num_tokens),
                       .block_table = bench.upload(HostTensor(DType::kI32, {kNumRows, 1})),
                       .sampling = bench.upload(c.sampling),
                       .bias_ids = bench.upload(c.bias_ids),
                       .bias_values = bench.upload(c.bias_values),
                       .stop_ids = bench.upload(c.stop_ids)};
  const auto num_logits = static_cast<int64_t>(rows.size());
  const Tensor next_token_ids = bench.ints(std::vector<int32_t>(rows.size(), -1));
  const Tensor logits = bench.upload(c.logits);
  bench.ops().sample(bench.stream(),
                     {.logits = rows.size() == kNumRows ? logits : logits.rows(rows[0], rows[0] + num_logits),
                      .sample_state_rows = bench.ints(rows),
                      .state = state,
                      .next_token_ids = next_token_ids});
  const HostTensor result = bench.download(next_token_ids);
  CHECK_TENSOR(equal_bits("logits", bench.download(logits), c.logits));  // they stay as they were
  return {result.span<int32_t>().begin(), result.span<int32_t>().end()};
}

TEST_CASE("sample: the reference's tokens, alone and in company") {
  const std::unique_ptr<Bench> gpu = gpu_or_skip(), oracle = reference();
  if (gpu == nullptr) return;
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  const SampleCase c = make_sample_case(rng);
  std::vector<int32_t> rows(kNumRows);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<int32_t> together = run_sample(*gpu, c, rows);
  CHECK(together == run_sample(*oracle, c, rows));
  for (const int32_t row : rows) CHECK(run_sample(*gpu, c, {row}).front() == together[static_cast<size_t>(row)]);
}

TEST_CASE("a kernel that nobody prepared is loaded when it is launched") {
  Result<std::unique_ptr<Device>> device = make_cuda_device({});
  if (!device.ok()) return skip_test(device.status().message());
  Bench gpu(*std::move(device));
  Rng rng(1);
  const HostTensor a = random_tensor(rng, DType::kF32, {3, 8}), b = random_tensor(rng, DType::kF32, {3, 8});
  const Tensor out = gpu.upload(poisoned_tensor(DType::kF32, {3, 8}));
  gpu.ops().add(gpu.stream(), {.a = gpu.upload(a), .b = gpu.upload(b), .out = out});
  const std::unique_ptr<Bench> oracle = reference();
  const Tensor expected = oracle->upload(poisoned_tensor(DType::kF32, {3, 8}));
  oracle->ops().add(oracle->stream(), {.a = oracle->upload(a), .b = oracle->upload(b), .out = expected});
  CHECK_TENSOR(equal_bits("add", gpu.download(out), oracle->download(expected)));
}

// A step of one key launches other kernels the second time, which no rank does.
TEST_CASE("a capture that meets a kernel that is not loaded is given up, and the step runs") {
  Result<std::unique_ptr<Device>> device = make_cuda_device({});
  if (!device.ok()) return skip_test(device.status().message());
  Bench gpu(*std::move(device));
  const StepKey key{.num_seqs = 1, .num_tokens = 1, .num_logits = 1, .max_query_len = 1, .max_seq_len = 256};
  Rng rng(1);
  const HostTensor x = random_tensor(rng, DType::kF32, {3, 8});
  const Tensor in = gpu.upload(x), out = gpu.upload(poisoned_tensor(DType::kF32, {3, 8}));
  const Tensor ids = gpu.ints({2, 1, 0});
  int num_calls = 0;
  const auto add = [&] { gpu.ops().add(gpu.stream(), {.a = in, .b = in, .out = out}); };
  const auto gather = [&] {
    ++num_calls;
    gpu.ops().gather_rows(gpu.stream(), {.x = in, .row_ids = ids, .out = out});
  };
  HostTensor reversed(DType::kF32, {3, 8});
  for (int i = 0; i < 24; ++i) {
    reversed.span<float>()[static_cast<size_t>(i)] = x.span<float>()[static_cast<size_t>((2 - i / 8) * 8 + i % 8)];
  }
  gpu.device().run_step(gpu.stream(), key, add);
  // Given up and run; captured; replayed.
  for (const int calls : {2, 3, 3}) {
    gpu.device().fill_bytes(gpu.stream(), out.raw(), 0xff, static_cast<size_t>(out.num_bytes()));
    gpu.device().run_step(gpu.stream(), key, gather);
    CHECK_TENSOR(equal_bits("rows", gpu.download(out), reversed));
    CHECK(num_calls == calls);
  }
}

TEST_CASE("products run right by every choice of tiles, and by the rule alone on a deterministic device") {
  const std::unique_ptr<Bench> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  ProductTuningDevice* tuning = product_tuning_device(gpu->device());
  REQUIRE(tuning != nullptr);
  Rng rng(1);
  const int64_t out_features = 1280, in_features = 2048;
  const HostTensor w = random_tensor(rng, DType::kBf16, {out_features, in_features}, 0.02f);
  int num_tried = 0;
  for (const char* format : {"", "int8", "int4"}) {
    const WeightSpec spec =
        *format == 0 ? WeightSpec{.codes = Codes::kBf16} : parse_quantization(format).value().linear;
    if (!gpu->device().supports(spec)) continue;
    PackedWeight weight =
        gpu->device().create_weight({.out_features = out_features, .in_features = in_features, .spec = spec}).value();
    REQUIRE(gpu->device().pack_rows(weight, {}, w).ok());
    for (const int64_t num_tokens : {40, 300}) {
      const Tensor x = gpu->upload(random_tensor(rng, DType::kBf16, {num_tokens, in_features}));
      const auto run = [&] {
        const Tensor out = gpu->upload(poisoned_tensor(DType::kF32, {num_tokens, out_features}));
        gpu->ops().linear(gpu->stream(), {.x = x, .weight = &weight, .bias = {}, .out = out});
        return gpu->download(out);
      };
      tuning->take_last_product();
      const HostTensor by_rule = run();
      const std::optional<ProductShape> shape = tuning->take_last_product();
      if (!shape) continue;  // not a Hopper
      CHECK(shape->num_tokens == num_tokens);
      const std::vector<std::string> choices = tuning->choices(*shape);
      for (int i = 0; i < static_cast<int>(choices.size()); ++i) {
        INFO(std::string(format), " ", num_tokens, " tokens: ", choices[static_cast<size_t>(i)]);
        tuning->try_choice(*shape, i);
        // Sums of integers are exact; their outliers are added in an order of their own.
        CHECK_TENSOR(close_to("product", run(), by_rule, Tolerance{.rel = 1e-4, .abs = 1e-3}));
        ++num_tried;
      }
      tuning->end_trials();
    }
  }
  if (num_tried == 0) return skip_test("this GPU has no choices of tiles");
  const std::unique_ptr<Bench> deterministic = gpu_or_skip({.deterministic = true});
  ProductTuningDevice* none = product_tuning_device(deterministic->device());
  none->take_last_product();
  run_linear(*deterministic, {DType::kBf16, Codes::kBf16, DType::kF32},
             random_tensor(rng, DType::kBf16, {40, in_features}), w, random_tensor(rng, DType::kBf16, {out_features}),
             0, 40);
  CHECK(!none->take_last_product().has_value());
}

TEST_CASE("kernels read from a folder instead of the binary") {
  const std::filesystem::path folder = repo_root() / "src" / "backend" / "cuda" / "kernel";
  const Result<std::unique_ptr<Device>> device = make_cuda_device({.kernel_dir = folder.string()});
  if (!device.ok()) return skip_test(device.status().message());
  CHECK((*device)->prepare({.is_everything = true}).ok());
  const Result<std::unique_ptr<Device>> none = make_cuda_device({.kernel_dir = (folder / "absent").string()});
  REQUIRE(!none.ok());
  CHECK(none.status().message().find("absent") != std::string::npos);
}

// Run by the test after it, in a process of its own: the context does not survive.
TEST_CASE("child: a kernel that reads from nowhere" * doctest::skip()) {
  const std::unique_ptr<Bench> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const Tensor out = gpu->upload(HostTensor(DType::kF32, {3, 8}));
  const Tensor nowhere(reinterpret_cast<void*>(uintptr_t{4096}), DType::kF32, {5, 8});
  gpu->ops().add(gpu->stream(), {.a = out, .b = out, .out = out});
  gpu->ops().gather_rows(gpu->stream(), {.x = nowhere, .row_ids = gpu->ints({0, 1, 2}), .out = out});
  gpu->device().synchronize(gpu->stream());
  std::printf("not reached\n");
}

TEST_CASE("a kernel that fails stops the process and is named, with its grid and sizes") {
  if (gpu_or_skip() == nullptr) return;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  FILE* pipe = popen(("'" + self + "' --no-skip --test-case='child: *' 2>&1").c_str(), "r");
  std::string output;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output.push_back(static_cast<char>(c));
  CHECK(pclose(pipe) != 0);
  INFO(output);
  CHECK(output.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
  CHECK(output.find("gather_rows_16 grid 3 x 1 x 1, 128 threads: num_rows 3, width 8\n  add_f32 grid 3 x 1 x 1") !=
        std::string::npos);
  CHECK(output.find("not reached") == std::string::npos);
}

}  // namespace
}  // namespace spate
