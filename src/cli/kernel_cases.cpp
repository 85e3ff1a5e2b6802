#include "cli/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "backend/kv_storage.h"
#include "backend/ops.h"
#include "base/rng.h"
#include "batch/plan_builder.h"

namespace spate {
namespace {

constexpr int64_t kNumTokens = 512;  // of the ops on rows of activations
constexpr int64_t kMaxLogitRows = 256;
constexpr int64_t kNumSeqs = 32;     // of the ops on rows of logits and on the running state

// Makes some values of each row of x outliers (quant/outlier_rule.h), as large models have them: channels that all rows
// share, and places of the row's own.
void add_outliers(Tensor x) {
  constexpr int64_t kShared = 8, kOwn = 4;
  constexpr float kSize = 100;
  const int64_t width = x.dim(1);
  Rng rng(11);
  const auto enlarge = [&](int64_t row, int64_t column) {
    x.data<Bf16>()[row * width + column] = Bf16::from_float(kSize * (1 + static_cast<float>(column % 3)));
  };
  for (int64_t row = 0; row < x.dim(0); ++row) {
    for (int64_t i = 0; i < kShared; ++i) enlarge(row, (i + 1) * 977 % width);
    for (int64_t i = 0; i < kOwn; ++i) enlarge(row, static_cast<int64_t>(rng.below(static_cast<uint64_t>(width))));
  }
}

class Cases {
 public:
  Cases(Device& device, Stream& stream, const ModelConfig& config, const KernelCaseOptions& options,
        const std::function<void(const KernelCase&)>& measure)
      : device_(device),
        stream_(stream),
        ops_(bind_ops(device.ops()).ops),
        config_(config),
        options_(options),
        measure_(measure),
        act_(options.act_dtype) {}

  Status run() {
    RETURN_IF_ERROR(run_linear());
    if (options_.has_products_only) return ok_status();
    RETURN_IF_ERROR(config_.latent.kv_lora_rank > 0 ? run_latent() : run_attention());
    RETURN_IF_ERROR(run_rows());
    RETURN_IF_ERROR(run_kv());
    RETURN_IF_ERROR(run_logits());
    return run_state();
  }

 private:
  bool wants(const std::string& name) const {
    return fmt::format("{}/{}", device_.kind(), name).find(options_.filter) != std::string::npos;
  }
  double act_bytes(int64_t elements) const { return static_cast<double>(elements * dtype_bytes(act_)); }
  int64_t num_copies_of(int64_t bytes) const {
    return std::clamp<int64_t>(options_.cold_bytes / std::max<int64_t>(bytes, 1), 1, 256);
  }
  std::string act_name() const { return act_ == DType::kF32 ? "f32" : "bf16"; }

  // The weights of a case may serve the next one.
  void give(const KernelCase& one, bool keeps_weights = false) {
    device_.synchronize(stream_);
    measure_(one);
    device_.synchronize(stream_);
    buffers_.clear();
    if (!keeps_weights) weights_.clear();
  }

  Result<Tensor> empty(DType dtype, std::vector<int64_t> dims) {
    int64_t elements = 1;
    for (const int64_t dim : dims) elements *= dim;
    ASSIGN_OR_RETURN(Buffer buffer,
                     device_.allocate(static_cast<size_t>(elements * dtype_bytes(dtype)), MemoryKind::kDevice));
    buffers_.push_back(std::move(buffer));
    return Tensor(buffers_.back().data(), dtype, std::span<const int64_t>(dims));
  }
  Result<Tensor> upload(const HostTensor& host) {
    ASSIGN_OR_RETURN(const Tensor tensor,
                     empty(host.view().dtype(), {host.view().dims().begin(), host.view().dims().end()}));
    device_.copy_to_device(stream_, tensor.raw(), host.view().raw(), static_cast<size_t>(tensor.num_bytes()));
    device_.synchronize(stream_);
    return tensor;
  }
  Result<Tensor> ints(int64_t count, const std::function<int64_t(int64_t)>& value) {
    HostTensor host(DType::kI32, {count});
    for (int64_t i = 0; i < count; ++i) host.span<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(value(i));
    return upload(host);
  }
  // Gaussian numbers times `scale`, a pattern of 4,099 repeated.
  HostTensor random_host(DType dtype, std::initializer_list<int64_t> dims, float scale = 1) {
    HostTensor host(dtype, dims);
    Rng rng(7);
    std::vector<float> pattern(4099);
    for (float& value : pattern) value = rng.gaussian() * scale;
    const int64_t count = host.view().num_elements();
    for (int64_t i = 0; i < count; ++i) {
      const float value = pattern[static_cast<size_t>(i % 4099)];
      if (dtype == DType::kF32) {
        host.span<float>()[static_cast<size_t>(i)] = value;
      } else {
        host.span<Bf16>()[static_cast<size_t>(i)] = Bf16::from_float(value);
      }
    }
    return host;
  }
  Result<Tensor> random(DType dtype, std::initializer_list<int64_t> dims, float scale = 1) {
    return upload(random_host(dtype, dims, scale));
  }
  Result<std::vector<Tensor>> copies(int64_t count, DType dtype, std::initializer_list<int64_t> dims) {
    const HostTensor host = random_host(dtype, dims);
    std::vector<Tensor> tensors;
    for (int64_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(tensors.emplace_back(), upload(host));
    }
    return tensors;
  }

  // The same weight `count` times: packed once, its bytes copied.
  Status add_weights(int64_t count, const WeightDesc& desc) {
    ASSIGN_OR_RETURN(PackedWeight first, device_.create_weight(desc));
    const int64_t chunk = std::min<int64_t>(desc.out_features, 1024);
    const HostTensor rows =
        random_host(DType::kBf16, {chunk, desc.in_features}, 1 / std::sqrt(static_cast<float>(desc.in_features)));
    for (int64_t row = 0; row < desc.out_features; row += chunk) {
      const int64_t count_of_rows = std::min(chunk, desc.out_features - row);
      RETURN_IF_ERROR(device_.pack_rows(first, {.row = row}, rows.view().rows(0, count_of_rows)));
    }
    std::vector<char> bytes(first.bytes());
    if (count > 1) device_.copy_to_host(stream_, bytes.data(), first.data(), bytes.size());
    device_.synchronize(stream_);
    weights_.push_back(std::move(first));
    for (int64_t i = 1; i < count; ++i) {
      ASSIGN_OR_RETURN(PackedWeight copy, device_.create_weight(desc));
      device_.copy_to_device(stream_, copy.mutable_data(), bytes.data(), bytes.size());
      weights_.push_back(std::move(copy));
    }
    device_.synchronize(stream_);
    return ok_status();
  }

  WeightSpec plain_spec() const { return {.codes = act_ == DType::kF32 ? Codes::kF32 : Codes::kBf16}; }
  WeightSpec linear_spec() const {
    return options_.quantization.enabled() ? options_.quantization.linear : plain_spec();
  }
  WeightSpec vocabulary_spec() const {
    return options_.quantization.enabled() ? options_.quantization.vocabulary : plain_spec();
  }

  Status run_linear();
  Status run_attention();
  Status run_latent();
  Status run_rows();
  Status run_kv();
  Status run_logits();
  Status run_state();
  struct KvCopies {
    KvStorage storage;
    double bytes_per_token = 0;  // of one layer, k and v
  };
  Result<KvCopies> make_kv(int64_t count, int64_t num_tokens);
  double kv_token_bytes() const;

  Device& device_;
  Stream& stream_;
  const OpTable ops_;
  const ModelConfig& config_;
  const KernelCaseOptions& options_;
  const std::function<void(const KernelCase&)>& measure_;
  const DType act_;
  std::vector<Buffer> buffers_;
  std::vector<PackedWeight> weights_;
};

Status Cases::run_linear() {
  const ModelConfig& c = config_;
  struct Product {
    const char* name;
    int64_t out_features, in_features;
    bool has_silu, is_vocabulary;
  };
  const Product products[] = {
      {"qkv", (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, c.hidden_size, false, false},
      {"o", c.hidden_size, c.num_heads * c.head_dim, false, false},
      {"gate_up-silu", 2 * c.intermediate_size, c.hidden_size, true, false},
      {"down", c.hidden_size, c.intermediate_size, false, false},
      {"lm_head", c.vocab_size, c.hidden_size, false, true},
  };
  struct Input {
    int64_t num_tokens;
    bool has_outliers;
  };
  std::vector<Input> inputs{{1, false}, {kNumSeqs, false}, {kNumSeqs, true}, {kNumTokens, false}, {kNumTokens, true}};
  if (options_.has_large_sizes) {
    for (const int64_t m : {16, 64, 128, 2048, 8192}) inputs.push_back({m, false});
  }
  if (!options_.token_counts.empty()) {
    inputs.clear();
    for (const int64_t m : options_.token_counts) inputs.push_back({m, false});
  }
  const int64_t max_vocabulary_tokens = options_.token_counts.empty() ? kNumSeqs : kMaxLogitRows;
  for (const Product& p : products) {
    const WeightDesc desc{.out_features = p.out_features,
                          .in_features = p.in_features,
                          .spec = p.is_vocabulary ? vocabulary_spec() : linear_spec()};
    const int64_t weight_size = weight_bytes(desc.spec, p.out_features, p.in_features);
    for (const auto& [m, has_outliers] : inputs) {
      if (p.is_vocabulary && m > max_vocabulary_tokens) continue;
      if (has_outliers && (!desc.spec.quantizes_activations() || act_ != DType::kBf16)) continue;
      KernelCase one{.name = fmt::format("{}/{}/{}-{}x{}/m{}{}", p.has_silu ? "linear_silu_and_mul" : "linear",
                                         weight_spec_name(desc.spec), p.name, p.out_features, p.in_features, m,
                                         has_outliers ? "-outliers" : "")};
      if (!wants(one.name)) continue;
      one.num_tokens = m;
      one.num_copies = num_copies_of(weight_size);
      if (weights_.empty()) RETURN_IF_ERROR(add_weights(one.num_copies, desc));
      const int64_t width = p.has_silu ? p.out_features / 2 : p.out_features;
      HostTensor values = random_host(act_, {m, p.in_features});
      if (has_outliers) add_outliers(values.view());
      ASSIGN_OR_RETURN(const Tensor x, upload(values));
      ASSIGN_OR_RETURN(const Tensor out, empty(p.is_vocabulary ? DType::kF32 : act_, {m, width}));
      Tensor gate_up;
      if (p.has_silu) {
        ASSIGN_OR_RETURN(gate_up, empty(act_, {m, p.out_features}));
      }
      one.bytes =
          static_cast<double>(weight_size) + act_bytes(m * p.in_features) + static_cast<double>(out.num_bytes());
      one.ops = 2.0 * static_cast<double>(m * p.out_features) * static_cast<double>(p.in_features);
      one.is_integer = desc.spec.quantizes_activations();
      one.call = [&](int64_t copy) {
        const PackedWeight& weight = weights_[static_cast<size_t>(copy)];
        if (p.has_silu) {
          ops_.linear_silu_and_mul(stream_, {.x = x, .weight = &weight, .bias = {}, .gate_up = gate_up, .out = out});
        } else {
          ops_.linear(stream_, {.x = x, .weight = &weight, .bias = {}, .out = out});
        }
      };
      give(one, /*keeps_weights=*/true);
    }
    weights_.clear();
  }
  return ok_status();
}

double Cases::kv_token_bytes() const {
  const double element = static_cast<double>(dtype_bytes(options_.kv_dtype));
  const double scale = options_.kv_dtype == DType::kI8 ? 4 : 0;
  return 2 * static_cast<double>(config_.num_kv_heads) * (static_cast<double>(config_.head_dim) * element + scale);
}

// Caches of `num_tokens` each, all written: block i holds tokens [i * kv_block_size, ...).
Result<Cases::KvCopies> Cases::make_kv(int64_t count, int64_t num_tokens) {
  const KvLayerDesc desc{.num_kv_heads = config_.num_kv_heads,
                         .head_dim = config_.head_dim,
                         .kv_block_size = options_.kv_block_size,
                         .dtype = options_.kv_dtype};
  const int64_t num_blocks = (num_tokens + desc.kv_block_size - 1) / desc.kv_block_size;
  ASSIGN_OR_RETURN(const Tensor k, random(act_, {num_tokens, desc.num_kv_heads, desc.head_dim}));
  ASSIGN_OR_RETURN(const Tensor slots, ints(num_tokens, [](int64_t i) { return i; }));
  KvCopies kv{.storage = {}, .bytes_per_token = kv_token_bytes()};
  const std::vector<KvLayerDesc> groups(static_cast<size_t>(count), desc);
  ASSIGN_OR_RETURN(kv.storage, KvStorage::create(device_, groups, num_blocks));
  for (const KvView& view : kv.storage.views()) {
    ops_.kv_write(stream_, {.k = k, .v = k, .slot_mapping = slots, .kv = view});
  }
  return kv;
}

Status Cases::run_attention() {
  const ModelConfig& c = config_;
  struct Shape {
    int64_t num_seqs, query_len, seq_len;
  };
  std::vector<Shape> shapes{{1, 1, 2048}, {32, 1, 160}, {1, 512, 512}, {1, 512, 4096}};
  if (options_.has_large_sizes) {
    shapes.insert(shapes.end(), {{32, 1, 2048}, {64, 1, 8192}, {128, 1, 2048}, {1, 1, 65536}});
    shapes.insert(shapes.end(), {{1, 2048, 2048}, {1, 8192, 8192}, {1, 32768, 32768}});
  }
  for (const auto& [num_seqs, query_len, seq_len] : shapes) {
    const std::string what = query_len == 1 ? fmt::format("decode-{}/batch{}", seq_len, num_seqs)
                                            : fmt::format("prefill-{}/{}", seq_len, query_len);
    KernelCase one{.name = fmt::format("attention_paged/{}/{}", dtype_name(options_.kv_dtype), what)};
    if (!wants(one.name)) continue;
    const double kv_bytes = static_cast<double>(num_seqs * seq_len) * kv_token_bytes();
    one.num_copies = num_copies_of(static_cast<int64_t>(kv_bytes));
    // Sequences begin at blocks of their own.
    const int64_t blocks_per_seq = (seq_len + options_.kv_block_size - 1) / options_.kv_block_size;
    ASSIGN_OR_RETURN(const KvCopies kv, make_kv(one.num_copies, num_seqs * blocks_per_seq * options_.kv_block_size));
    const int64_t m = num_seqs * query_len;
    ASSIGN_OR_RETURN(const Tensor q, random(act_, {m, c.num_heads, c.head_dim}));
    ASSIGN_OR_RETURN(const Tensor out, empty(act_, {m, c.num_heads, c.head_dim}));
    ASSIGN_OR_RETURN(const Tensor blocks, ints(num_seqs * blocks_per_seq, [](int64_t i) { return i; }));
    ASSIGN_OR_RETURN(const Tensor rows, ints(num_seqs, [](int64_t i) { return i; }));
    ASSIGN_OR_RETURN(const Tensor cu_seqlens_q, ints(num_seqs + 1, [&](int64_t i) { return i * query_len; }));
    ASSIGN_OR_RETURN(const Tensor seq_lens, ints(num_seqs, [&](int64_t) { return seq_len; }));
    const double pairs =
        static_cast<double>(m) * (static_cast<double>(seq_len) - static_cast<double>(query_len - 1) / 2);
    one.bytes = kv_bytes + 2 * act_bytes(m * c.num_heads * c.head_dim);
    one.ops = 4 * static_cast<double>(c.num_heads * c.head_dim) * pairs;
    one.call = [&](int64_t copy) {
      ops_.attention_paged(stream_, {.q = q,
                                     .kv = kv.storage.views()[static_cast<size_t>(copy)],
                                     .block_table = blocks.reshaped({num_seqs, blocks_per_seq}),
                                     .seq_rows = rows,
                                     .cu_seqlens_q = cu_seqlens_q,
                                     .seq_lens = seq_lens,
                                     .max_query_len = static_cast<int>(query_len),
                                     .max_seq_len = static_cast<int>(seq_len),
                                     .softmax_scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                     .out = out});
    };
    give(one);
  }
  return ok_status();
}

// Absorbed, of one query token a sequence.
Status Cases::run_latent() {
  const LatentConfig& latent = config_.latent;
  const int64_t num_heads = config_.num_heads, rank = latent.kv_lora_rank, width = rank + latent.qk_rope_head_dim;
  const KvLayerDesc desc{.kind = KvKind::kLatent,
                         .kv_lora_rank = rank,
                         .qk_rope_head_dim = latent.qk_rope_head_dim,
                         .kv_block_size = options_.kv_block_size,
                         .dtype = options_.kv_dtype};
  if (ops_.attention_latent == nullptr || !device_.supports_kv(desc)) return ok_status();
  std::vector<std::pair<int64_t, int64_t>> shapes{{1, 2048}, {32, 160}};  // sequences, keys
  if (options_.has_large_sizes)
    shapes.insert(shapes.end(), {{1, 4096}, {1, 65536}, {16, 4096}, {100, 3500}, {128, 4096}});
  for (const auto& [num_seqs, seq_len] : shapes) {
    KernelCase one{.name = fmt::format("attention_latent/{}/decode-{}x{}/batch{}", dtype_name(options_.kv_dtype),
                                       num_heads, seq_len, num_seqs)};
    if (!wants(one.name)) continue;
    const int64_t blocks_per_seq = (seq_len + desc.kv_block_size - 1) / desc.kv_block_size;
    const int64_t num_blocks = num_seqs * blocks_per_seq, num_tokens = num_blocks * desc.kv_block_size;
    const int64_t token_bytes = desc.dtype == DType::kI8 ? width + 8 : width * dtype_bytes(desc.dtype);
    const int64_t kv_bytes = num_seqs * seq_len * token_bytes;
    one.num_copies = num_copies_of(kv_bytes);
    const std::vector<KvLayerDesc> groups(static_cast<size_t>(one.num_copies), desc);
    ASSIGN_OR_RETURN(const KvStorage kv, KvStorage::create(device_, groups, num_blocks));
    ASSIGN_OR_RETURN(const Tensor vectors, random(act_, {num_tokens, width}));
    ASSIGN_OR_RETURN(const Tensor slots, ints(num_tokens, [](int64_t i) { return i; }));
    for (const KvView& view : kv.views()) {
      ops_.latent_write(stream_, {.latent = vectors, .slot_mapping = slots, .kv = view});
    }
    ASSIGN_OR_RETURN(const Tensor q, random(act_, {num_seqs, num_heads, width}));
    ASSIGN_OR_RETURN(const Tensor out, empty(act_, {num_seqs, num_heads, rank}));
    ASSIGN_OR_RETURN(const Tensor blocks, ints(num_blocks, [](int64_t i) { return i; }));
    ASSIGN_OR_RETURN(const Tensor rows, ints(num_seqs, [](int64_t i) { return i; }));
    ASSIGN_OR_RETURN(const Tensor cu_seqlens_q, ints(num_seqs + 1, [](int64_t i) { return i; }));
    ASSIGN_OR_RETURN(const Tensor seq_lens, ints(num_seqs, [&, keys = seq_len](int64_t) { return keys; }));
    one.bytes = static_cast<double>(kv_bytes) + act_bytes(num_seqs * num_heads * (width + rank));
    one.ops = 2 * static_cast<double>(num_seqs * seq_len * num_heads) * static_cast<double>(width + rank);
    one.call = [&, keys = seq_len, count = num_seqs](int64_t copy) {
      ops_.attention_latent(stream_, {.q_latent = q.columns(0, rank),
                                      .q_rope = q.columns(rank, width),
                                      .kv = kv.views()[static_cast<size_t>(copy)],
                                      .block_table = blocks.reshaped({count, blocks_per_seq}),
                                      .seq_rows = rows,
                                      .cu_seqlens_q = cu_seqlens_q,
                                      .seq_lens = seq_lens,
                                      .max_query_len = 1,
                                      .max_seq_len = static_cast<int>(keys),
                                      .softmax_scale = 1 / std::sqrt(static_cast<float>(width)),
                                      .out = out});
    };
    give(one);
  }
  return ok_status();
}

// Ops on rows of activations.
Status Cases::run_rows() {
  const int64_t m = kNumTokens, width = config_.hidden_size, inner = config_.intermediate_size;
  const double row_bytes = act_bytes(m * width);
  struct RowOp {
    const char* name;
    int64_t in_width, out_width;
    double bytes;
  };
  for (const RowOp& op :
       {RowOp{"rms_norm", width, width, 2 * row_bytes}, RowOp{"add_rms_norm", width, width, 4 * row_bytes},
        RowOp{"add", width, width, 3 * row_bytes}, RowOp{"silu_and_mul", 2 * inner, inner, 3 * act_bytes(m * inner)},
        RowOp{"gather_rows", width, width, 2 * row_bytes}, RowOp{"scatter_rows", width, width, 2 * row_bytes}}) {
    KernelCase one{.name = fmt::format("{}/{}/{}/m{}", op.name, act_name(), op.out_width, m), .bytes = op.bytes};
    if (!wants(one.name)) continue;
    one.num_copies = num_copies_of(static_cast<int64_t>(op.bytes));
    ASSIGN_OR_RETURN(const std::vector<Tensor> x, copies(one.num_copies, act_, {m, op.in_width}));
    ASSIGN_OR_RETURN(const std::vector<Tensor> other, copies(one.num_copies, act_, {m, op.out_width}));
    ASSIGN_OR_RETURN(const std::vector<Tensor> out, copies(one.num_copies, act_, {m, op.out_width}));
    ASSIGN_OR_RETURN(const Tensor weight, random(act_, {width}));
    ASSIGN_OR_RETURN(const Tensor row_ids, ints(m, [&](int64_t i) { return (i * 7) % m; }));
    const std::string_view name = op.name;
    one.call = [&](int64_t copy) {
      const auto i = static_cast<size_t>(copy);
      if (name == "rms_norm") ops_.rms_norm(stream_, {.x = x[i], .weight = weight, .eps = 1e-6f, .out = out[i]});
      if (name == "add_rms_norm") {
        ops_.add_rms_norm(stream_, {.x = x[i], .residual = other[i], .weight = weight, .eps = 1e-6f, .out = out[i]});
      }
      if (name == "add") ops_.add(stream_, {.a = x[i], .b = other[i], .out = out[i]});
      if (name == "silu_and_mul") ops_.silu_and_mul(stream_, {.gate_up = x[i], .out = out[i]});
      if (name == "scatter_rows") ops_.scatter_rows(stream_, {.x = x[i], .row_ids = row_ids, .out = out[i]});
      if (name == "gather_rows") ops_.gather_rows(stream_, {.x = x[i], .row_ids = row_ids, .out = out[i]});
    };
    give(one);
  }
  KernelCase one{
      .name = fmt::format("embedding/{}/{}x{}/m{}", weight_spec_name(vocabulary_spec()), config_.vocab_size, width, m)};
  if (!wants(one.name)) return ok_status();
  RETURN_IF_ERROR(
      add_weights(1, {.out_features = config_.vocab_size, .in_features = width, .spec = vocabulary_spec()}));
  Rng rng(11);
  ASSIGN_OR_RETURN(const Tensor token_ids, ints(m, [&](int64_t) {
                     return static_cast<int64_t>(rng.below(static_cast<uint64_t>(config_.vocab_size)));
                   }));
  ASSIGN_OR_RETURN(const Tensor out, empty(act_, {m, width}));
  one.bytes = static_cast<double>(weight_bytes(vocabulary_spec(), m, width)) + row_bytes;
  one.call = [&](int64_t) {
    ops_.embedding(stream_, {.token_ids = token_ids, .table = &weights_[0], .first_row = 0, .out = out});
  };
  give(one);
  return ok_status();
}

// Ops that turn, store and copy keys and values.
Status Cases::run_kv() {
  const ModelConfig& c = config_;
  const int64_t m = kNumTokens, heads = c.num_heads, kv_heads = c.num_kv_heads,
                width = (heads + 2 * kv_heads) * c.head_dim;
  const double kv_bytes = static_cast<double>(m) * kv_token_bytes();
  const double q_bytes = act_bytes(m * heads * c.head_dim), k_bytes = act_bytes(m * kv_heads * c.head_dim);
  struct KvOp {
    const char* name;
    double bytes;
  };
  for (const KvOp& op :
       {KvOp{"rope", 2 * q_bytes}, KvOp{"kv_write", 2 * k_bytes + kv_bytes},
        KvOp{"qk_norm_rope_kv_write", 2 * q_bytes + 2 * k_bytes + kv_bytes}, KvOp{"kv_copy_blocks", 2 * kv_bytes}}) {
    const std::string_view name = op.name;
    KernelCase one{
        .name = fmt::format("{}/{}/{}x{}/m{}", op.name,
                            name == "rope" ? act_name() : std::string(dtype_name(options_.kv_dtype)),
                            name == "kv_write" || name == "kv_copy_blocks" ? kv_heads : heads, c.head_dim, m),
        .bytes = op.bytes};
    if (!wants(one.name)) continue;
    one.num_copies = num_copies_of(static_cast<int64_t>(op.bytes));
    // kv_copy_blocks copies the first half of a cache into the second.
    ASSIGN_OR_RETURN(const KvCopies kv, make_kv(one.num_copies, 2 * m));
    ASSIGN_OR_RETURN(const std::vector<Tensor> qkv, copies(one.num_copies, act_, {m, width}));
    ASSIGN_OR_RETURN(const Tensor slots, ints(m, [](int64_t i) { return i; }));
    ASSIGN_OR_RETURN(const Tensor norm, random(act_, {c.head_dim}));
    HostTensor cos_sin_host(DType::kF32, {m, c.head_dim});
    for (int64_t i = 0; i < m * c.head_dim; ++i) {
      cos_sin_host.span<float>()[static_cast<size_t>(i)] = i % c.head_dim < c.head_dim / 2 ? 0.8f : 0.6f;
    }
    ASSIGN_OR_RETURN(const Tensor cos_sin, upload(cos_sin_host));
    const int64_t num_blocks = (m + options_.kv_block_size - 1) / options_.kv_block_size;
    ASSIGN_OR_RETURN(const Tensor src_dst,
                     ints(2 * num_blocks, [&](int64_t i) { return i / 2 + (i % 2) * num_blocks; }));
    one.call = [&](int64_t copy) {
      const auto i = static_cast<size_t>(copy);
      const int64_t k_begin = heads * c.head_dim, v_begin = k_begin + kv_heads * c.head_dim;
      const Tensor q = qkv[i].columns(0, k_begin).split_last(heads, c.head_dim);
      const Tensor k = qkv[i].columns(k_begin, v_begin).split_last(kv_heads, c.head_dim);
      const Tensor v = qkv[i].columns(v_begin, width).split_last(kv_heads, c.head_dim);
      if (name == "rope") ops_.rope(stream_, {.positions = slots, .cos_sin = cos_sin, .x = q});
      if (name == "kv_write") ops_.kv_write(stream_, {.k = k, .v = v, .slot_mapping = slots, .kv = kv.storage.views()[i]});
      if (name == "qk_norm_rope_kv_write") {
        ops_.qk_norm_rope_kv_write(stream_, {.q = q,
                                             .k = k,
                                             .v = v,
                                             .q_norm = norm,
                                             .k_norm = norm,
                                             .eps = 1e-6f,
                                             .positions = slots,
                                             .cos_sin = cos_sin,
                                             .slot_mapping = slots,
                                             .kv = kv.storage.views()[i]});
      }
      if (name == "kv_copy_blocks") {
        ops_.kv_copy_blocks(stream_, {.kv = kv.storage.views()[i], .src_dst = src_dst.reshaped({num_blocks, 2})});
      }
    };
    give(one);
  }
  return ok_status();
}

Status Cases::run_logits() {
  const int64_t vocab_size = config_.vocab_size;
  constexpr int64_t kNumTop = 5;
  struct Sampling {
    const char* name;
    float temperature, top_p;
    int32_t top_k;
  };
  for (const Sampling& s : {Sampling{"greedy", 0, 1, 0}, Sampling{"random", 1, 1, 0}, Sampling{"top_p", 1, 0.9f, 0},
                            Sampling{"top_k-top_p", 1, 0.9f, 50}, Sampling{"logprobs", 0, 1, 0}}) {
    const bool is_logprobs = std::string_view(s.name) == "logprobs";
    KernelCase one{.name = is_logprobs ? fmt::format("logprobs/f32/top{}-{}/batch{}", kNumTop, vocab_size, kNumSeqs)
                                       : fmt::format("sample/f32/{}-{}/batch{}", s.name, vocab_size, kNumSeqs),
                   .bytes = static_cast<double>(4 * kNumSeqs * vocab_size)};
    if (!wants(one.name)) continue;
    one.num_copies = num_copies_of(static_cast<int64_t>(one.bytes));
    ASSIGN_OR_RETURN(const std::vector<Tensor> logits, copies(one.num_copies, DType::kF32, {kNumSeqs, vocab_size}));
    HostTensor sampling(DType::kU8, {kNumSeqs, static_cast<int64_t>(sizeof(RowSampling))});
    for (int64_t row = 0; row < kNumSeqs; ++row) {
      const RowSampling params{.seed = static_cast<uint64_t>(row),
                               .temperature = s.temperature,
                               .top_p = s.top_p,
                               .sampling_top_k = s.top_k,
                               .prompt_len = 1};
      std::memcpy(static_cast<char*>(sampling.view().raw()) + row * static_cast<int64_t>(sizeof params), &params,
                  sizeof params);
    }
    RowState state;
    ASSIGN_OR_RETURN(state.sampling, upload(sampling));
    ASSIGN_OR_RETURN(state.token_ids, ints(kNumSeqs * 4, [](int64_t i) { return i; }));
    state.token_ids = state.token_ids.reshaped({kNumSeqs, 4});
    ASSIGN_OR_RETURN(state.num_tokens, ints(kNumSeqs, [](int64_t) { return 2; }));
    ASSIGN_OR_RETURN(state.num_computed_tokens, ints(kNumSeqs, [](int64_t) { return 1; }));
    ASSIGN_OR_RETURN(state.block_table, ints(kNumSeqs, [](int64_t i) { return i; }));
    state.block_table = state.block_table.reshaped({kNumSeqs, 1});
    ASSIGN_OR_RETURN(state.bias_ids, empty(DType::kI32, {kNumSeqs, kMaxLogitBias}));
    ASSIGN_OR_RETURN(state.bias_values, empty(DType::kF32, {kNumSeqs, kMaxLogitBias}));
    ASSIGN_OR_RETURN(state.stop_ids, empty(DType::kI32, {kNumSeqs, kMaxStopIds}));
    ASSIGN_OR_RETURN(const Tensor rows, ints(kNumSeqs, [](int64_t i) { return i; }));
    ASSIGN_OR_RETURN(const Tensor next_token_ids, ints(kNumSeqs, [](int64_t) { return 1; }));
    ASSIGN_OR_RETURN(const Tensor logprob, empty(DType::kF32, {kNumSeqs}));
    ASSIGN_OR_RETURN(const Tensor rank, empty(DType::kI32, {kNumSeqs}));
    ASSIGN_OR_RETURN(const Tensor top_ids, empty(DType::kI32, {kNumSeqs, kNumTop}));
    ASSIGN_OR_RETURN(const Tensor top_logprobs, empty(DType::kF32, {kNumSeqs, kNumTop}));
    one.call = [&](int64_t copy) {
      const Tensor& some = logits[static_cast<size_t>(copy)];
      if (is_logprobs) {
        ops_.logprobs(stream_, {.logits = some,
                                .target_ids = next_token_ids,
                                .target_logprob = logprob,
                                .target_rank = rank,
                                .top_ids = top_ids,
                                .top_logprobs = top_logprobs});
      } else {
        ops_.sample(stream_,
                    {.logits = some, .sample_state_rows = rows, .state = state, .next_token_ids = next_token_ids});
      }
    };
    give(one);
  }
  return ok_status();
}

// apply_updates, begin_step and finish_step of a decode step: all latency.
Status Cases::run_state() {
  constexpr int64_t kMaxTokens = 64;
  StepPlanBuilder builder;
  builder.begin(1);
  const std::vector<int32_t> tokens{1, 2, 3};
  for (int32_t row = 0; row < kNumSeqs; ++row) {
    builder.add_row({.row = row, .num_computed_tokens = 2, .sampling = {.prompt_len = 3}, .token_ids = tokens});
    builder.add_blocks(row, 0, 1)[0] = row;
    builder.add_seq({.row = row, .query_len = 1, .flags = kSample, .num_computed_tokens = 2});
  }
  const std::span<const std::byte> image = builder.finish();
  for (const std::string_view name : {"apply_updates", "begin_step", "finish_step"}) {
    KernelCase one{.name = fmt::format("{}/i32/decode/batch{}", name, kNumSeqs)};
    if (!wants(one.name)) continue;
    const auto zeros = [&](int64_t count) { return ints(count, [](int64_t) { return 0; }); };
    HostTensor plan_host(DType::kU8, {static_cast<int64_t>(image.size())});
    std::memcpy(plan_host.view().raw(), image.data(), image.size());
    ASSIGN_OR_RETURN(const Tensor plan, upload(plan_host));
    const auto* header = reinterpret_cast<const StepPlanHeader*>(image.data());
    RowState state;
    StepInputs inputs;
    ASSIGN_OR_RETURN(const Tensor token_ids, zeros(kNumSeqs * kMaxTokens));
    state.token_ids = token_ids.reshaped({kNumSeqs, kMaxTokens});
    ASSIGN_OR_RETURN(const Tensor block_table, zeros(kNumSeqs * kMaxTokens));
    state.block_table = block_table.reshaped({kNumSeqs, kMaxTokens});
    ASSIGN_OR_RETURN(state.num_tokens, zeros(kNumSeqs));
    ASSIGN_OR_RETURN(state.num_computed_tokens, zeros(kNumSeqs));
    ASSIGN_OR_RETURN(state.sampling, empty(DType::kU8, {kNumSeqs, static_cast<int64_t>(sizeof(RowSampling))}));
    ASSIGN_OR_RETURN(state.bias_ids, empty(DType::kI32, {kNumSeqs, kMaxLogitBias}));
    ASSIGN_OR_RETURN(state.bias_values, empty(DType::kF32, {kNumSeqs, kMaxLogitBias}));
    ASSIGN_OR_RETURN(state.stop_ids, empty(DType::kI32, {kNumSeqs, kMaxStopIds}));
    for (Tensor* tensor : {&inputs.token_ids, &inputs.positions, &inputs.slot_mapping, &inputs.seq_rows,
                           &inputs.seq_lens, &inputs.sample_token_idxs, &inputs.sample_state_rows,
                           &inputs.sample_offsets, &inputs.sample_masks, &inputs.sample_drafts, &inputs.cu_seqlens_q}) {
      ASSIGN_OR_RETURN(*tensor, zeros(kNumSeqs + (tensor == &inputs.cu_seqlens_q ? 1 : 0)));
    }
    ASSIGN_OR_RETURN(const Tensor next_token_ids, zeros(kNumSeqs));
    one.call = [&](int64_t) {
      if (name == "apply_updates") {
        ops_.apply_updates(stream_, {.plan_host = header, .plan = plan.raw(), .state = state});
      } else if (name == "begin_step") {
        ops_.begin_step(stream_, {.plan = plan.raw(),
                                  .state = state,
                                  .inputs = inputs,
                                  .kv_block_size = options_.kv_block_size});
      } else {
        ops_.finish_step(
            stream_,
            {.plan = plan.raw(), .state = state, .num_seqs = kNumSeqs, .next_token_ids = next_token_ids});
      }
    };
    give(one);
  }
  return ok_status();
}

}  // namespace

Status for_each_kernel_case(Device& device, Stream& stream, const ModelConfig& config, const KernelCaseOptions& options,
                            const std::function<void(const KernelCase&)>& measure) {
  return Cases(device, stream, config, options, measure).run();
}

}  // namespace spate
