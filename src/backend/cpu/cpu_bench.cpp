// spate-cpu-bench [--threads N] [--isa avx2|avxvnni|avx512|avx512bf16|amx] [--layers N] [--kv bf16|i8] [--filter TEXT]
//                 [--quantization int8|int4|...]
//
// The ops of a Qwen3-0.6B step on dummy weights, without engine and model code around them: decode of 1 to 64 sequences
// at 160 tokens, prefill of 512 and 2048, single products, attention; each next to the limit that it should reach.
// Parts: "steps", "profile" (each op's time and share of a step; only when named), "decode" (its first step alone),
// "prefill" and "batch" (prompts of 512 and 2,048 tokens, 16 and 32 sequences), "attention", "products"; --filter names
// one. "latent": the two forms of latent attention by turns, with heads of DeepSeek-V2-Lite. "experts": decode of one
// by the shape of bench/configs/moe-small. "table": the steps of docs/kernels/cpu.md, few samples of each, and the
// limits again after them (tools/cpu_peers). With few --layers the profile takes seconds.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/limits.h"
#include "backend/kv_storage.h"
#include "backend/ops.h"
#include "base/rng.h"
#include "quant/quantization.h"

namespace spate {
namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  int64_t hidden_size = 1024, intermediate_size = 3072, num_heads = 16, num_kv_heads = 8, head_dim = 128;
  int64_t num_layers = 28, vocab_size = 151936, kv_block_size = 32;
  int64_t num_experts = 0, num_experts_per_tok = 0;  // of intermediate_size; 0: a dense layer
  int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

// bench/configs/moe-small
constexpr Shape kExperts{.intermediate_size = 512,
                         .head_dim = 64,
                         .num_layers = 24,
                         .vocab_size = 32000,
                         .num_experts = 32,
                         .num_experts_per_tok = 4};

struct Options {
  int num_threads = 2;
  std::string isa, filter;
  DType kv_dtype = DType::kBf16;
  Quantization quantization;
  Shape shape;
};

void fill_bf16(void* data, int64_t count, float scale, uint64_t seed) {
  Rng rng(seed);
  auto* values = static_cast<Bf16*>(data);
  std::vector<Bf16> pattern(4099);
  for (Bf16& value : pattern) value = Bf16::from_float(rng.gaussian() * scale);
  for (int64_t i = 0; i < count; ++i) values[i] = pattern[static_cast<size_t>(i % 4099)];
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), shape_(options.shape), device_(make_cpu_device({.num_threads = options.num_threads, .isa = options.isa}).value()),
        stream_(device_->create_stream()), ops_(bind_ops(device_->ops()).ops) {}

  void run();

 private:
  struct Layer {
    PackedWeight qkv, o, gate_up, down, router;
    KvView kv;
  };

  Tensor tensor(DType dtype, std::initializer_list<int64_t> dims, float scale = 1.0f) {
    int64_t elements = 1;
    for (const int64_t dim : dims) elements *= dim;
    buffers_.push_back(device_->allocate(static_cast<size_t>(elements * dtype_bytes(dtype)), MemoryKind::kDevice).value());
    void* data = buffers_.back().data();
    std::memset(data, 0, static_cast<size_t>(elements * dtype_bytes(dtype)));
    if (dtype == DType::kBf16) fill_bf16(data, elements, scale, buffers_.size());
    return Tensor(data, dtype, dims);
  }
  // As the model lays its activations out.
  Tensor activations(int64_t rows, int64_t columns) {
    return tensor(DType::kBf16, {rows, device_->activation_row_bytes(columns * 2) / 2}).columns(0, columns);
  }
  PackedWeight weight(int64_t out_features, int64_t in_features, const WeightSpec& spec, int64_t num_matrices = 1) {
    const WeightDesc desc{
        .out_features = out_features, .in_features = in_features, .spec = spec, .num_matrices = num_matrices};
    PackedWeight packed = device_->create_weight(desc).value();
    const float scale = 1 / std::sqrt(static_cast<float>(in_features));
    if (!spec.has_integer_codes()) {
      fill_bf16(packed.mutable_data(), static_cast<int64_t>(packed.bytes() / 2), scale, 7);
      return packed;
    }
    const HostTensor rows(DType::kBf16, {std::min<int64_t>(out_features, 1024), in_features});
    fill_bf16(rows.view().raw(), rows.view().num_elements(), scale, 7);
    for (int64_t matrix = 0; matrix < num_matrices; ++matrix) {
      for (int64_t n = 0; n < out_features; n += rows.view().dim(0)) {
        const Tensor some = rows.view().rows(0, std::min(rows.view().dim(0), out_features - n));
        const Status status = device_->pack_rows(packed, {.row = n, .matrix_idx = matrix}, some);
        CHECK(status.ok(), "{}", status.message());
      }
    }
    return packed;
  }
  // Of a product with a weight.
  double peak_of(const WeightSpec& spec) const {
    if (spec.quantizes_activations()) return std::max(limits_.amx_int8_ops_per_s, limits_.vector_int8_ops_per_s);
    return std::max({limits_.amx_bf16_flops_per_s, limits_.vector_bf16_flops_per_s, limits_.fp32_flops_per_s});
  }
  void make_layers();
  void fill_cache(const KvView& kv);
  void step(int64_t num_seqs, int64_t query_len, int64_t seq_len);
  // Runs an op of a step; in a profile its time is noted.
  template <typename Fn>
  void timed(const char* name, const Fn& fn);
  void print_profile();
  double seconds(const std::function<void()>& fn, double min_time = 0.6);
  void print_limits();
  bool selected(const char* name) const { return std::string(name).find(options_.filter) != std::string::npos; }
  void bench_products();
  void bench_attention();
  void bench_steps();
  void bench_profile();
  void bench_rows();
  void bench_latent();
  void bench_latent_forms(int64_t num_seqs, int64_t query_len, int64_t seq_len);

  struct OpTimes {
    const char* name;
    std::vector<double> samples;  // seconds of each call
  };

  Options options_;
  Shape shape_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  OpTable ops_;
  std::vector<Buffer> buffers_;
  KvStorage kv_;
  std::vector<Layer> layers_;
  PackedWeight lm_head_;
  Tensor cos_sin_, norm_, head_norm_, block_table_;
  CpuLimits limits_;
  bool profile_ = false;
  size_t min_samples_ = 5;
  std::vector<OpTimes> op_times_;  // in the order of a step
};

constexpr int64_t kMaxSeqLen = 8224, kMaxSeqs = 64;

template <typename Fn>
void Bench::timed(const char* name, const Fn& fn) {
  if (!profile_) return fn();
  const auto start = Clock::now();
  fn();
  const double time = std::chrono::duration<double>(Clock::now() - start).count();
  auto op = std::find_if(op_times_.begin(), op_times_.end(), [&](const OpTimes& o) { return std::strcmp(o.name, name) == 0; });
  if (op == op_times_.end()) op = op_times_.insert(op, {name, {}});
  op->samples.push_back(time);
}

void Bench::print_profile() {
  double all = 0;
  for (const OpTimes& op : op_times_) {
    for (const double time : op.samples) all += time;
  }
  for (OpTimes& op : op_times_) {
    double sum = 0;
    for (const double time : op.samples) sum += time;
    std::sort(op.samples.begin(), op.samples.end());
    std::printf("    %-22s median %9.1f us, tenth %9.1f us, least %9.1f us, %4.1f %% of the step\n", op.name,
                op.samples[op.samples.size() / 2] * 1e6, op.samples[op.samples.size() / 10] * 1e6, op.samples.front() * 1e6, 100 * sum / all);
  }
  op_times_.clear();
}

void Bench::make_layers() {
  const Shape& s = shape_;
  const KvLayerDesc desc{.num_kv_heads = s.num_kv_heads,
                         .head_dim = s.head_dim,
                         .kv_block_size = s.kv_block_size,
                         .dtype = options_.kv_dtype};
  const int64_t blocks_per_seq = kMaxSeqLen / s.kv_block_size, num_blocks = std::max(kMaxSeqs * 8, blocks_per_seq);
  for (int64_t i = 0; i < s.num_layers; ++i) {
    const WeightSpec& spec = options_.quantization.linear;
    Layer layer{weight(s.qkv_width(), s.hidden_size, spec),
                weight(s.hidden_size, s.num_heads * s.head_dim, spec),
                weight(2 * s.intermediate_size, s.hidden_size, spec, std::max<int64_t>(1, s.num_experts)),
                weight(s.hidden_size, s.intermediate_size, spec, std::max<int64_t>(1, s.num_experts)),
                s.num_experts > 0 ? weight(s.num_experts, s.hidden_size, {.codes = Codes::kBf16}) : PackedWeight(),
                {}};
    layers_.push_back(std::move(layer));
  }
  kv_ = KvStorage::create(*device_, std::vector<KvLayerDesc>(layers_.size(), desc), num_blocks).value();
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].kv = kv_.views()[i];
    fill_cache(layers_[i].kv);
  }
  lm_head_ = weight(s.vocab_size, s.hidden_size, options_.quantization.vocabulary);
  cos_sin_ = tensor(DType::kF32, {kMaxSeqLen, s.head_dim});
  for (int64_t i = 0; i < cos_sin_.num_elements(); ++i) cos_sin_.data<float>()[i] = (i / 64) % 2 ? 0.6f : 0.8f;
  norm_ = tensor(DType::kBf16, {s.hidden_size});
  head_norm_ = tensor(DType::kBf16, {s.head_dim});
  block_table_ = tensor(DType::kI32, {kMaxSeqs, blocks_per_seq});
  for (int64_t row = 0; row < kMaxSeqs; ++row) {
    for (int64_t b = 0; b < blocks_per_seq; ++b) {
      block_table_.data<int32_t>()[row * blocks_per_seq + b] = static_cast<int32_t>((row * 8 + b) % num_blocks);
    }
  }
}

// Random k and v in every slot.
void Bench::fill_cache(const KvView& kv) {
  const size_t mark = buffers_.size();
  const int64_t num_tokens = 16 * kv.desc.kv_block_size;
  const Tensor k = tensor(DType::kBf16, {num_tokens, kv.desc.num_kv_heads, kv.desc.head_dim}), slots = tensor(DType::kI32, {num_tokens});
  for (int64_t first = 0; first < kv.num_blocks * kv.desc.kv_block_size; first += num_tokens) {
    const int64_t count = std::min(num_tokens, kv.num_blocks * kv.desc.kv_block_size - first);
    for (int64_t i = 0; i < count; ++i) slots.data<int32_t>()[i] = static_cast<int32_t>(first + i);
    ops_.kv_write(*stream_, {.k = k.rows(0, count), .v = k.rows(0, count), .slot_mapping = slots.rows(0, count), .kv = kv});
  }
  buffers_.resize(mark);
}

// One forward pass of num_seqs sequences with query_len tokens each, logits of the last token of each.
void Bench::step(int64_t num_seqs, int64_t query_len, int64_t seq_len) {
  const Shape& s = shape_;
  const int64_t m = num_seqs * query_len;
  const size_t mark = buffers_.size();
  const Tensor residual = tensor(DType::kBf16, {m, s.hidden_size}), hidden = activations(m, s.hidden_size);
  const Tensor qkv = activations(m, s.qkv_width()), attention = activations(m, s.num_heads * s.head_dim);
  const Tensor mlp = activations(m, s.intermediate_size), logits = tensor(DType::kF32, {num_seqs, s.vocab_size});
  const Tensor positions = tensor(DType::kI32, {m}), slots = tensor(DType::kI32, {m}), rows = tensor(DType::kI32, {num_seqs});
  const Tensor cu_seqlens = tensor(DType::kI32, {num_seqs + 1}), lens = tensor(DType::kI32, {num_seqs}), last = tensor(DType::kI32, {num_seqs});
  const Tensor last_hidden = tensor(DType::kBf16, {num_seqs, s.hidden_size});
  const int64_t num_chosen = s.num_experts_per_tok;
  const Tensor scores = tensor(DType::kF32, {m, s.num_experts}), factors = tensor(DType::kF32, {m, num_chosen});
  const Tensor chosen = tensor(DType::kI32, {m, num_chosen});
  Rng rng(7);
  const auto choose = [&](const Tensor& ids) {  // others in each layer and step, as a model does
    for (int64_t t = 0; t < m; ++t) {
      const auto first = static_cast<int64_t>(rng.below(static_cast<uint64_t>(s.num_experts)));
      for (int64_t i = 0; i < num_chosen; ++i) {
        const int64_t spacing = s.num_experts / num_chosen;
        ids.data<int32_t>()[t * num_chosen + i] = static_cast<int32_t>((first + i * spacing) % s.num_experts);
      }
    }
  };
  for (int64_t q = 0; q < num_seqs; ++q) {
    rows.data<int32_t>()[q] = static_cast<int32_t>(q);
    lens.data<int32_t>()[q] = static_cast<int32_t>(seq_len);
    cu_seqlens.data<int32_t>()[q + 1] = static_cast<int32_t>((q + 1) * query_len);
    last.data<int32_t>()[q] = static_cast<int32_t>((q + 1) * query_len - 1);
    for (int64_t i = 0; i < query_len; ++i) {
      const int64_t p = seq_len - query_len + i;
      positions.data<int32_t>()[q * query_len + i] = static_cast<int32_t>(p);
      slots.data<int32_t>()[q * query_len + i] = static_cast<int32_t>(
          block_table_.data<int32_t>()[q * block_table_.stride(0) + p / s.kv_block_size] * s.kv_block_size + p % s.kv_block_size);
    }
  }
  const int64_t q_width = s.num_heads * s.head_dim, kv_width = s.num_kv_heads * s.head_dim;
  const Tensor q = qkv.columns(0, q_width).split_last(s.num_heads, s.head_dim);
  const Tensor k = qkv.columns(q_width, q_width + kv_width).split_last(s.num_kv_heads, s.head_dim);
  const Tensor v = qkv.columns(q_width + kv_width, q_width + 2 * kv_width).split_last(s.num_kv_heads, s.head_dim);
  const auto forward = [&] {
    Stream& stream = *stream_;
    for (Layer& layer : layers_) {
      timed("add_rms_norm", [&] { ops_.add_rms_norm(stream, {.x = hidden, .residual = residual, .weight = norm_, .eps = 1e-6f, .out = hidden}); });
      timed("qkv", [&] { ops_.linear(stream, {.x = hidden, .weight = &layer.qkv, .bias = Tensor(), .out = qkv}); });
      timed("qk_norm_rope_kv_write", [&] {
        ops_.qk_norm_rope_kv_write(stream, {.q = q, .k = k, .v = v, .q_norm = head_norm_, .k_norm = head_norm_, .eps = 1e-6f,
                                            .positions = positions, .cos_sin = cos_sin_, .slot_mapping = slots, .kv = layer.kv});
      });
      timed("attention", [&] {
        ops_.attention_paged(stream, {.q = q, .kv = layer.kv, .block_table = block_table_, .seq_rows = rows, .cu_seqlens_q = cu_seqlens,
                                      .seq_lens = lens, .max_query_len = static_cast<int>(query_len),
                                      .max_seq_len = static_cast<int>(seq_len), .softmax_scale = 0.088f,
                                      .out = attention.split_last(s.num_heads, s.head_dim)});
      });
      timed("o", [&] { ops_.linear(stream, {.x = attention, .weight = &layer.o, .bias = Tensor(), .out = hidden}); });
      timed("add_rms_norm", [&] { ops_.add_rms_norm(stream, {.x = hidden, .residual = residual, .weight = norm_, .eps = 1e-6f, .out = hidden}); });
      if (s.num_experts > 0) {
        timed("router",
              [&] { ops_.linear(stream, {.x = hidden, .weight = &layer.router, .bias = Tensor(), .out = scores}); });
        timed("choice",
              [&] { ops_.route_experts(stream, {.logits = scores, .expert_ids = chosen, .expert_weights = factors}); });
        choose(chosen);
        timed("experts", [&] {
          ops_.expert_mlp(stream, {.x = hidden,
                                   .expert_ids = chosen,
                                   .expert_weights = factors,
                                   .gate_up = &layer.gate_up,
                                   .down = &layer.down,
                                   .out = hidden});
        });
        continue;
      }
      timed("gate_up+silu", [&] {
        ops_.linear_silu_and_mul(stream, {.x = hidden, .weight = &layer.gate_up, .bias = Tensor(), .gate_up = Tensor(), .out = mlp});
      });
      timed("down", [&] { ops_.linear(stream, {.x = mlp, .weight = &layer.down, .bias = Tensor(), .out = hidden}); });
    }
    timed("gather_rows", [&] { ops_.gather_rows(stream, {.x = hidden, .row_ids = last, .out = last_hidden}); });
    timed("lm_head", [&] { ops_.linear(stream, {.x = last_hidden, .weight = &lm_head_, .bias = Tensor(), .out = logits}); });
  };
  const double time = seconds([&] { device_->run_step(*stream_, {}, forward); }, min_samples_ > 1 ? 1.5 : 0.7);

  // Of random experts this share is read.
  const double used = s.num_experts == 0
                          ? 1
                          : 1 - std::pow(1 - static_cast<double>(num_chosen) / static_cast<double>(s.num_experts),
                                         static_cast<double>(m));
  double layer_bytes = 0;
  for (const Layer& layer : layers_) {
    layer_bytes += static_cast<double>(layer.qkv.bytes() + layer.o.bytes() + layer.router.bytes()) +
                   used * static_cast<double>(layer.gate_up.bytes() + layer.down.bytes());
  }
  const double kv_bytes = static_cast<double>(num_seqs * seq_len * s.num_layers * layers_[0].kv.block_bytes / s.kv_block_size);
  if (query_len == 1) {
    const double rate = (layer_bytes + static_cast<double>(lm_head_.bytes()) + kv_bytes) / time;
    std::printf("decode %3ld seqs at %ld: %8.2f ms, %8.1f tok/s, %6.2f GB/s = %4.1f %% of bandwidth\n", num_seqs, seq_len, time * 1e3,
                static_cast<double>(num_seqs) / time, rate / 1e9, 100 * rate / limits_.memory_bytes_per_s);
  } else {
    const double layer_params = static_cast<double>(
        s.num_layers * s.hidden_size *
        (s.qkv_width() + s.num_heads * s.head_dim + 3 * s.intermediate_size * std::max<int64_t>(1, num_chosen)));
    const double flops = 2 * layer_params * static_cast<double>(m) +
                         2.0 * static_cast<double>(s.num_layers * num_seqs * s.num_heads * s.head_dim * 2) * static_cast<double>(query_len) *
                             (static_cast<double>(seq_len) - static_cast<double>(query_len) / 2);
    const double peak = peak_of(options_.quantization.linear);
    std::printf("prefill %4ld of %4ld:   %8.2f ms, %8.1f tok/s, %6.3f TFLOP/s = %4.1f %% of peak\n", query_len, seq_len, time * 1e3,
                static_cast<double>(m) / time, flops / time / 1e12, 100 * flops / time / peak);
  }
  if (profile_) print_profile();
  std::fflush(stdout);
  buffers_.resize(mark);
}

// Median of repeated calls. The first warms up, unless one sample is enough and it took so long that this hardly matters.
double Bench::seconds(const std::function<void()>& fn, double min_time) {
  constexpr double kLongSeconds = 3;
  const auto first = Clock::now();
  fn();
  const double first_seconds = std::chrono::duration<double>(Clock::now() - first).count();
  if (min_samples_ == 1 && first_seconds > kLongSeconds) return first_seconds;
  std::vector<double> samples;
  const auto begin = Clock::now();
  while (samples.size() < min_samples_ || std::chrono::duration<double>(Clock::now() - begin).count() < min_time) {
    const auto start = Clock::now();
    fn();
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (samples.size() > 2000) break;
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<int64_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

void Bench::bench_products() {
  const Shape& s = shape_;
  struct Product {
    const char* name;
    PackedWeight Layer::* weight;
    bool silu;
  };
  for (const Product& product : {Product{"qkv", &Layer::qkv, false}, Product{"o", &Layer::o, false},
                                 Product{"gate_up+silu", &Layer::gate_up, true}, Product{"down", &Layer::down, false}}) {
    for (const int64_t m : {1, 4, 8, 16, 32, 64, 128, 512, 2048}) {
      const size_t mark = buffers_.size();
      const WeightDesc desc = (layers_[0].*product.weight).desc();
      const Tensor x = activations(m, desc.in_features);
      const Tensor out = activations(m, product.silu ? desc.out_features / 2 : desc.out_features);
      const auto all_layers = [&] {  // layer after layer, so that no weight comes from a cache
        for (Layer& layer : layers_) {
          const PackedWeight& w = layer.*product.weight;
          if (product.silu) {
            ops_.linear_silu_and_mul(*stream_, {.x = x, .weight = &w, .bias = Tensor(), .gate_up = Tensor(), .out = out});
          } else {
            ops_.linear(*stream_, {.x = x, .weight = &w, .bias = Tensor(), .out = out});
          }
        }
      };
      const double time = seconds([&] { device_->run_step(*stream_, {}, all_layers); }, 0.2) / static_cast<double>(s.num_layers);
      const double bytes = static_cast<double>(weight_bytes(desc.spec, desc.out_features, desc.in_features));
      const double flops = 2.0 * static_cast<double>(desc.out_features * desc.in_features * m), peak = peak_of(desc.spec);
      std::printf("%-12s m %4ld: %9.1f us, weights at %6.2f GB/s = %5.1f %%, %7.3f TFLOP/s = %4.1f %%\n", product.name, m, time * 1e6,
                  bytes / time / 1e9, 100 * bytes / time / limits_.memory_bytes_per_s, flops / time / 1e12, 100 * flops / time / peak);
      std::fflush(stdout);
      buffers_.resize(mark);
    }
  }
}

void Bench::bench_attention() {
  const Shape& s = shape_;
  for (const auto& [num_seqs, query_len, seq_len] : {std::tuple{1, 512, 512}, std::tuple{1, 2048, 2048}, std::tuple{1, 512, 2048}, std::tuple{1, 8192, 8192}, std::tuple{1, 1, 8192},
                                                    std::tuple{1, 1, 2048}, std::tuple{32, 1, 160}}) {
    const size_t mark = buffers_.size();
    const int64_t m = int64_t{num_seqs} * query_len;
    const Tensor q = tensor(DType::kBf16, {m, s.num_heads, s.head_dim}), out = tensor(DType::kBf16, {m, s.num_heads, s.head_dim});
    const Tensor rows = tensor(DType::kI32, {num_seqs}), cu = tensor(DType::kI32, {num_seqs + 1}), lens = tensor(DType::kI32, {num_seqs});
    for (int i = 0; i < num_seqs; ++i) {
      rows.data<int32_t>()[i] = i;
      lens.data<int32_t>()[i] = seq_len;
      cu.data<int32_t>()[i + 1] = (i + 1) * query_len;
    }
    const auto all_layers = [&] {
      for (Layer& layer : layers_) {
        ops_.attention_paged(*stream_, {.q = q, .kv = layer.kv, .block_table = block_table_, .seq_rows = rows, .cu_seqlens_q = cu,
                                        .seq_lens = lens, .max_query_len = query_len, .max_seq_len = seq_len, .softmax_scale = 0.088f, .out = out});
      }
    };
    const double time = seconds([&] { device_->run_step(*stream_, {}, all_layers); }, 0.3) / static_cast<double>(s.num_layers);
    const double pairs = static_cast<double>(num_seqs) * query_len * (seq_len - query_len / 2.0);
    const double flops = pairs * static_cast<double>(4 * s.num_heads * s.head_dim);
    const double bytes = static_cast<double>(num_seqs) * seq_len * static_cast<double>(layers_[0].kv.block_bytes / s.kv_block_size);
    std::printf("attention %2d x %4d of %4d: %9.1f us, %7.3f TFLOP/s, KV at %6.2f GB/s\n", num_seqs, query_len, seq_len, time * 1e6,
                flops / time / 1e12, bytes / time / 1e9);
    std::fflush(stdout);
    buffers_.resize(mark);
  }
}

void Bench::bench_steps() {
  for (const int64_t num_seqs : {1, 4, 16, 32, 64}) step(num_seqs, 1, 160);
  step(1, 1, 2048);
  step(1, 512, 512);
  step(1, 2048, 2048);
}

void Bench::bench_profile() {
  profile_ = true;
  step(1, 1, 160);
  step(1, 1, 8192);
  step(32, 1, 160);
  step(1, 512, 512);
  step(1, 2048, 2048);
  step(1, 512, 8192);
  step(1, 8192, 8192);
  profile_ = false;
}

// Of many rows alone, in half a minute.
void Bench::bench_rows() {
  profile_ = true;
  if (options_.filter == "batch") {
    for (const int64_t num_seqs : {16, 32}) step(num_seqs, 1, 160);
  } else {
    for (const int64_t tokens : {512, 2048}) step(1, tokens, tokens);
  }
  profile_ = false;
}

// Attention of a layer of DeepSeek-V2-Lite with the products around it: num_seqs sequences of seq_len tokens, the last
// query_len of which attend. Up-projections count to the absorbed form. The forms run by turns.
void Bench::bench_latent_forms(int64_t num_seqs, int64_t query_len, int64_t seq_len) {
  constexpr int64_t kHeads = 16, kRank = 512, kRope = 64, kNope = 128, kValue = 128, kBlock = 32, kQ = kNope + kRope;
  const size_t mark = buffers_.size();
  const int64_t m = num_seqs * query_len, blocks_of_seq = (seq_len + kBlock - 1) / kBlock;
  const WeightSpec spec{.codes = Codes::kBf16};
  const auto matrices = [&](int64_t rows, int64_t columns, int64_t count) {
    PackedWeight made =
        device_->create_weight({.out_features = rows, .in_features = columns, .spec = spec, .num_matrices = count}).value();
    fill_bf16(made.mutable_data(), static_cast<int64_t>(made.bytes() / 2), 1 / std::sqrt(static_cast<float>(columns)), 7);
    return made;
  };
  const PackedWeight k_up = matrices(kRank, kNope, kHeads), v_up = matrices(kValue, kRank, kHeads),
                     kv_up = matrices(kHeads * (kNope + kValue), kRank, 1);
  const KvLayerDesc desc{.kind = KvKind::kLatent,
                         .kv_lora_rank = kRank,
                         .qk_rope_head_dim = kRope,
                         .kv_block_size = kBlock,
                         .dtype = options_.kv_dtype};
  KvStorage storage = KvStorage::create(*device_, std::span(&desc, 1), num_seqs * blocks_of_seq).value();
  const KvView kv = storage.views()[0];
  const Tensor table = tensor(DType::kI32, {num_seqs, blocks_of_seq}), slots = tensor(DType::kI32, {seq_len});
  const Tensor rows = tensor(DType::kI32, {num_seqs}), lens = tensor(DType::kI32, {num_seqs}),
               cu = tensor(DType::kI32, {num_seqs + 1});
  const Tensor latent = tensor(DType::kBf16, {seq_len, kRank + kRope});
  for (int64_t s = 0; s < num_seqs; ++s) {
    rows.data<int32_t>()[s] = static_cast<int32_t>(s);
    lens.data<int32_t>()[s] = static_cast<int32_t>(seq_len);
    cu.data<int32_t>()[s + 1] = static_cast<int32_t>((s + 1) * query_len);
    for (int64_t b = 0; b < blocks_of_seq; ++b)
      table.data<int32_t>()[s * blocks_of_seq + b] = static_cast<int32_t>(s * blocks_of_seq + b);
    for (int64_t i = 0; i < seq_len; ++i)
      slots.data<int32_t>()[i] = static_cast<int32_t>(s * blocks_of_seq * kBlock + i);
    ops_.latent_write(*stream_, {.latent = latent, .slot_mapping = slots, .kv = kv});
  }
  const Tensor q = activations(m, kHeads * kQ).split_last(kHeads, kQ);
  const auto heads = [&](int64_t width) { return activations(m, kHeads * width).split_last(kHeads, width); };
  const Tensor q_latent = heads(kRank), out_latent = heads(kRank), out = heads(kValue);
  const float scale = 1 / std::sqrt(static_cast<float>(kQ));
  const auto absorbed = [&] {
    ops_.linear_heads(*stream_, {.x = q.columns(0, kNope), .weight = &k_up, .out = q_latent});
    ops_.attention_latent(*stream_, {.q_latent = q_latent,
                                     .q_rope = q.columns(kNope, kQ),
                                     .kv = kv,
                                     .block_table = table,
                                     .seq_rows = rows,
                                     .cu_seqlens_q = cu,
                                     .seq_lens = lens,
                                     .max_query_len = static_cast<int>(query_len),
                                     .max_seq_len = static_cast<int>(seq_len),
                                     .softmax_scale = scale,
                                     .out = out_latent});
    ops_.linear_heads(*stream_, {.x = out_latent, .weight = &v_up, .out = out});
  };
  const auto expanded = [&] {
    ops_.attention_latent_expanded(*stream_, {.q = q,
                                              .kv_up = &kv_up,
                                              .kv = kv,
                                              .block_table = table,
                                              .seq_rows = rows,
                                              .cu_seqlens_q = cu,
                                              .seq_lens = lens,
                                              .num_keys = static_cast<int>(num_seqs * seq_len),
                                              .softmax_scale = scale,
                                              .out = out});
  };
  const auto time_of = [&](const std::function<void()>& fn) {
    const auto start = Clock::now();
    device_->run_step(*stream_, {}, fn);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  constexpr size_t kMinPairs = 5;
  constexpr double kSeconds = 3;
  std::vector<double> absorbed_times, expanded_times, ratios;
  static_cast<void>(time_of(expanded));
  const auto begin = Clock::now();
  while (ratios.size() < kMinPairs || (ratios.size() < 500 && std::chrono::duration<double>(Clock::now() - begin).count() < kSeconds)) {
    absorbed_times.push_back(time_of(absorbed));
    expanded_times.push_back(time_of(expanded));
    ratios.push_back(absorbed_times.back() / expanded_times.back());
  }
  for (std::vector<double>* times : {&absorbed_times, &expanded_times, &ratios}) std::sort(times->begin(), times->end());
  const auto at = [](const std::vector<double>& sorted, size_t quarter) { return sorted[(sorted.size() - 1) * quarter / 4]; };
  const double pairs = static_cast<double>(kHeads * num_seqs) * static_cast<double>(query_len) *
                       (static_cast<double>(seq_len) - static_cast<double>(query_len - 1) / 2);
  const double up = 2.0 * static_cast<double>(kHeads * kRank * (kNope + kValue));
  const double absorbed_flops = pairs * 2 * (2 * kRank + kRope) + up * static_cast<double>(m);
  const double expanded_flops = pairs * 2 * (kQ + kValue) + up * static_cast<double>(num_seqs * seq_len);
  const double absorbed_time = at(absorbed_times, 2), expanded_time = at(expanded_times, 2);
  const double peak = peak_of(spec);
  std::printf("latent %2ld x %4ld of %5ld: absorbed %9.2f ms = %4.1f %% of peak, expanded %9.2f ms = %4.1f %%; absorbed / expanded %5.2f (%.2f to %.2f, %zu pairs)\n",
              num_seqs, query_len, seq_len, absorbed_time * 1e3, 100 * absorbed_flops / absorbed_time / peak, expanded_time * 1e3,
              100 * expanded_flops / expanded_time / peak, at(ratios, 2), at(ratios, 1), at(ratios, 3), ratios.size());
  std::fflush(stdout);
  buffers_.resize(mark);
}

void Bench::bench_latent() {
  for (const auto& [num_seqs, seq_len] : {std::pair{1, 160}, std::pair{16, 160}, std::pair{1, 2048}, std::pair{16, 2048}})
    bench_latent_forms(num_seqs, 1, seq_len);
  for (const int64_t tokens : {64, 128, 512, 2048}) bench_latent_forms(1, tokens, tokens);
  for (const int64_t seq_len : {512, 2048, 8192}) {
    for (const int64_t query_len : {16, 32, 64, 128, 256}) bench_latent_forms(1, query_len, seq_len);
  }
}

void Bench::print_limits() {
  limits_ = measure_cpu_limits(options_.num_threads, options_.isa);
  std::printf("%s; limits: memory %.2f GB/s, fp32 %.3f TFLOP/s, bf16 %.3f, int8 %.3f TOP/s, AMX bf16 %.2f TFLOP/s, int8 %.2f TOP/s\n", device_->description().c_str(),
              limits_.memory_bytes_per_s / 1e9, limits_.fp32_flops_per_s / 1e12, limits_.vector_bf16_flops_per_s / 1e12,
              limits_.vector_int8_ops_per_s / 1e12, limits_.amx_bf16_flops_per_s / 1e12,
              limits_.amx_int8_ops_per_s / 1e12);
}

void Bench::run() {
  print_limits();
  if (options_.filter == "latent") return bench_latent();
  if (options_.filter == "experts") {
    const int64_t num_layers = shape_.num_layers;
    shape_ = kExperts;
    shape_.num_layers = std::min(num_layers, shape_.num_layers);
  }
  const auto start = Clock::now();
  make_layers();
  std::printf("weights of %s: made in %.2f s\n", weight_spec_name(options_.quantization.linear).c_str(),
              std::chrono::duration<double>(Clock::now() - start).count());
  if (selected("steps")) bench_steps();
  if (!options_.filter.empty() && selected("profile")) bench_profile();
  if (options_.filter == "decode") {
    step(1, 1, 160);
    profile_ = true;
    step(1, 1, 160);
  }
  if (options_.filter == "experts") {
    step(1, 1, 160);
    profile_ = true;
    step(1, 1, 160);
    profile_ = false;
    print_limits();
  }
  if (options_.filter == "prefill" || options_.filter == "batch") bench_rows();
  if (options_.filter == "table") {
    min_samples_ = 1;
    for (const int64_t num_seqs : {1, 4, 16, 32}) step(num_seqs, 1, 160);
    step(1, 512, 512);
    step(1, 2048, 2048);
    print_limits();
  }
  if (selected("attention")) bench_attention();
  if (selected("products")) bench_products();
}

constexpr const char* kUsage =
    "usage: [--threads N] [--isa NAME] [--layers N] [--kv bf16|i8] [--quantization NAME] "
    "[--filter steps|profile|decode|prefill|batch|attention|products|latent|experts|table]";

int refuse(const std::string& why) {
  std::fprintf(stderr, "spate-cpu-bench: %s\n", why.c_str());
  return 2;
}

}  // namespace
}  // namespace spate

int main(int argc, char** argv) {
  spate::Options options;
  bool understood = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--threads") {
      options.num_threads = std::atoi(value.c_str());
      understood &= options.num_threads > 0;
    } else if (flag == "--isa") {
      options.isa = value;
    } else if (flag == "--kv") {
      options.kv_dtype = value == "i8" ? spate::DType::kI8 : spate::DType::kBf16;
      understood &= value == "i8" || value == "bf16";
    } else if (flag == "--filter") {
      options.filter = value;
    } else if (flag == "--quantization") {
      const auto quantization = spate::parse_quantization(value);
      if (!quantization.ok()) return spate::refuse(quantization.status().message());
      options.quantization = *quantization;
    } else if (flag == "--layers") {
      options.shape.num_layers = std::atoi(value.c_str());
      understood &= options.shape.num_layers > 0;
    } else {
      understood = false;  // a figure under settings that nobody asked for is worse than none
    }
  }
  if (!understood) return spate::refuse(spate::kUsage);
  if (const auto isa = spate::cpu::choose_isa(options.isa); !isa.ok()) return spate::refuse(isa.status().message());
  spate::Bench(options).run();
  return 0;
}
