#include "backend/cpu/cpu_device.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "backend/cpu/cpu_context.h"
#include "backend/reference/reference_ops.h"
#include "base/cpu_cores.h"
#include "base/system_memory.h"

namespace spate {
namespace cpu {

OpTable cpu_ops() {
  OpTable ops;
  ops.embedding = embedding;
  ops.linear = linear;
  ops.rms_norm = rms_norm;
  ops.add = add;
  ops.silu_and_mul = silu_and_mul;
  ops.rope = rope;
  ops.kv_write = kv_write;
  ops.attention_paged = attention_paged;
  ops.gather_rows = reference::gather_rows;
  ops.scatter_rows = reference::scatter_rows;
  ops.apply_updates = reference::apply_updates;
  ops.begin_step = reference::begin_step;
  ops.sample = sample;
  ops.logprobs = logprobs;
  ops.finish_step = reference::finish_step;
  ops.kv_copy_blocks = reference::kv_copy_blocks;
  ops.route_experts = route_experts;
  ops.expert_mlp = expert_mlp;
  ops.latent_write = latent_write;
  ops.attention_latent = attention_latent;
  ops.linear_heads = linear_heads;
  ops.attention_latent_expanded = attention_latent_expanded;
  ops.add_rms_norm = add_rms_norm;
  ops.qk_norm_rope_kv_write = qk_norm_rope_kv_write;
  ops.linear_silu_and_mul = linear_silu_and_mul;
  return ops;
}

KvLayout kv_layout_of(const KvLayerDesc& desc) {
  if (desc.kind == KvKind::kLatent) {  // as one head; each token's vector begins on a cache line, scales come last
    const int64_t vector_bytes = desc.kv_block_size * latent_token_bytes(elem_of(desc.dtype), desc.latent_width());
    const int64_t scale_bytes = desc.dtype == DType::kI8 ? desc.kv_block_size * 8 : 0;
    return {.elem = elem_of(desc.dtype),
            .num_kv_heads = 1,
            .head_dim = desc.latent_width(),
            .kv_block_size = desc.kv_block_size,
            .k_scales_offset = vector_bytes,
            .head_bytes = vector_bytes + scale_bytes};
  }
  return make_kv_layout(elem_of(desc.dtype), desc.num_kv_heads, desc.head_dim, desc.head_dim, desc.kv_block_size);
}

namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr int64_t kPageBytes = 4096;

// Large buffers come from the kernel in 2 MB pages (4 KB pages cost about a tenth of the memory bandwidth) and untouched, so that a KV
// cache takes memory as it fills.
void* map_huge(size_t bytes) {
  const size_t wanted = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* mapped = mmap(nullptr, wanted + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  const size_t head = (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (head > 0) munmap(begin, head);
  if (head < kHugePageBytes) munmap(begin + head + wanted, kHugePageBytes - head);
  madvise(begin + head, wanted, MADV_HUGEPAGE);
  return begin + head;
}

bool is_mapped(size_t bytes) { return bytes >= 2 * kHugePageBytes; }

// Pages that nobody has touched will lie on all nodes in turn. A hint: containers may forbid the call.
void interleave(void* data, size_t bytes, const std::vector<ThreadHome>& homes) {
  constexpr int kInterleave = 3;  // MPOL_INTERLEAVE
  constexpr size_t kMaxNodes = 1024, kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[kMaxNodes / kBits] = {};
  for (const ThreadHome& home : homes) {
    const auto node = static_cast<size_t>(home.node);
    if (node < kMaxNodes) nodes[node / kBits] |= 1ul << node % kBits;
  }
  syscall(SYS_mbind, data, bytes, kInterleave, nodes, kMaxNodes, 0);
}

class CpuDevice final : public Device {
 public:
  CpuDevice(const Isa& isa, int num_threads, std::vector<ThreadHome> homes, bool is_deterministic)
      : context_(isa, num_threads, std::move(homes)), is_deterministic_(is_deterministic) {}
  CpuContext& context() { return context_; }

  std::string_view kind() const override { return "cpu"; }
  std::string description() const override {
    std::string cores;
    for (const ThreadHome& home : context_.pool.homes()) {
      if (home.core_ids.size() == 1) cores += fmt::format("{}{}", cores.empty() ? " on core " : ",", home.core_ids[0]);
    }
    const int num_nodes = context_.pool.num_nodes();
    return fmt::format("{}, {} thread{}{}{}", context_.isa.description, context_.pool.num_threads(),
                       context_.pool.num_threads() == 1 ? "" : "s", cores,
                       num_nodes == 1 ? "" : fmt::format(", {} nodes", num_nodes));
  }

  Result<MemoryInfo> memory_info() override {
    const SystemMemory memory = system_memory();
    return MemoryInfo{.total_bytes = memory.total_bytes, .free_bytes = memory.available_bytes};
  }
  Result<Buffer> allocate(size_t bytes, MemoryKind kind) override {
    if (bytes == 0) return Buffer(nullptr, 0, kind, this);
    ASSIGN_OR_RETURN(Buffer buffer, allocate_untouched(bytes, kind));
    if (is_mapped(bytes) && context_.pool.num_nodes() > 1) interleave(buffer.data(), bytes, context_.pool.homes());
    return buffer;
  }
  void deallocate(void* data, size_t bytes, MemoryKind) noexcept override {
    if (is_mapped(bytes)) {
      munmap(data, (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
    } else {
      std::free(data);
    }
  }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<Stream>(*this); }
  void copy_to_device(Stream&, void* dst, const void* src_host, size_t bytes) override {
    if (bytes > 0) std::memcpy(dst, src_host, bytes);
  }
  void copy_to_host(Stream&, void* dst_host, const void* src, size_t bytes) override {
    if (bytes > 0) std::memcpy(dst_host, src, bytes);
  }
  void fill_bytes(Stream&, void* dst, int byte, size_t bytes) override {
    if (bytes > 0) std::memset(dst, byte, bytes);
  }
  void synchronize(Stream&) override {}

  const OpTable& ops() const override { return ops_; }
  int64_t op_workspace_bytes(const OpLimits& limits) const override {
    return context_.pool.num_threads() * Scratch::taken_for(row_scratch_bytes(limits.vocab_size)) +
           (limits.max_long_keys > 0 ? Scratch::taken_for(expanded_scratch_bytes(context_, limits)) : 0);
  }
  int min_expanded_query_len(const LatentShape& shape) const override {
    return is_deterministic_ ? 0 : cpu::min_expanded_query_len(context_, shape);
  }

  Result<PackedWeight> create_weight(const WeightDesc& desc) override {
    CHECK(desc.out_features > 0 && desc.in_features > 0, "weight [{}, {}]", desc.out_features, desc.in_features);
    const bool is_integer = desc.spec.has_integer_codes();
    if (is_integer && desc.in_features > kMaxIntFeatures) {
      return invalid_argument("a weight of {} has {} input features: at most {} fit its sums",
                              weight_spec_name(desc.spec), desc.in_features, kMaxIntFeatures);
    }
    const int64_t block_bytes = is_integer
                                    ? int_layout_of(desc).block_bytes
                                    : n_block_bytes(elem_of(desc.spec.codes), round_up(desc.in_features, kKStep));
    const int64_t bytes = desc.num_matrices * ceil_div(desc.out_features, kNBlock) * block_bytes;
    // Any thread may run any of several matrices (experts).
    const bool has_owners = desc.num_matrices == 1 && is_mapped(static_cast<size_t>(bytes)) && context_.pool.num_nodes() > 1;
    ASSIGN_OR_RETURN(Buffer storage, has_owners ? allocate_untouched(static_cast<size_t>(bytes), MemoryKind::kDevice)
                                                : allocate(static_cast<size_t>(bytes), MemoryKind::kDevice));
    if (has_owners) touch_by_owners(static_cast<char*>(storage.data()), ceil_div(desc.out_features, kNBlock), block_bytes);
    PackedWeight weight(desc, std::move(storage));
    // Padding must be zero; pages from the kernel are.
    const bool padded = is_integer || desc.in_features % kKStep != 0 || desc.out_features % kNBlock != 0;
    if (padded && !is_mapped(static_cast<size_t>(bytes))) std::memset(weight.mutable_data(), 0, static_cast<size_t>(bytes));
    return weight;
  }
  // An odd number of lines. A product writes some lines of each row; with rows of 2, 4 or 8 KB those of all rows would lie
  // in one or two sets of L1.
  int64_t activation_row_bytes(int64_t row_bytes) const override { return (ceil_div(row_bytes, int64_t{64}) | 1) * 64; }
  bool supports(const WeightSpec& spec) const override {
    if (!spec.has_integer_codes()) return true;
    const int64_t group_size = spec.tile.columns;
    return spec.tile.rows == 1 && (group_size == 0 || group_size == 32 || group_size % 64 == 0) &&
           (!spec.quantizes_activations() || spec.activations == default_activations(spec));
  }
  Status pack_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) override;
  Status pack_quantized_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) override;
  // Of all instruction sets: they share one layout. Whoever changes the bytes that a weight is packed to changes the
  // number (a test holds hashes of them).
  std::string_view packed_layout() const override { return "cpu 1"; }
  bool supports_kv(const KvLayerDesc& desc) const override {
    return desc.head_dim <= kAttentionMaxHeadDim &&
           (desc.dtype == DType::kF32 || desc.dtype == DType::kBf16 || desc.dtype == DType::kI8);
  }
  int64_t kv_block_bytes(const KvLayerDesc& desc) const override { return kv_block_stride(kv_layout_of(desc)); }
  void run_step(Stream&, const StepKey&, const std::function<void()>& step) override {
    context_.pool.begin_step();
    step();
    context_.pool.end_step();
  }

 private:
  Result<Buffer> allocate_untouched(size_t bytes, MemoryKind kind) {
    void* data = is_mapped(bytes) ? map_huge(bytes) : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (data == nullptr) return resource_exhausted("cannot allocate {} bytes of host memory", bytes);
    return Buffer(data, bytes, kind, this);
  }
  // The kernel puts a page on the node of the thread that touches it first: the one that starts with its n-blocks when a
  // product of few rows divides them.
  void touch_by_owners(char* data, int64_t num_n_blocks, int64_t block_bytes) {
    context_.pool.on_each_thread([&](int thread_idx) {
      const auto first_page = [&](int thread) {
        return ceil_div(context_.pool.first_item(num_n_blocks, thread) * block_bytes, kPageBytes);
      };
      for (int64_t page = first_page(thread_idx); page < first_page(thread_idx + 1); ++page) data[page * kPageBytes] = 0;
    });
  }

  CpuContext context_;
  const bool is_deterministic_;
  OpTable ops_ = cpu_ops();
};

template <typename Src>
float element(const Src& x) {
  if constexpr (std::is_same_v<Src, float>) {
    return x;
  } else {
    return x.to_float();
  }
}

// Rows of the source, one after the other in the columns of an n-block from first_column on. A word of the block holds
// one f32 or two bf16 of k; the words of a k are written together, so that stores fill whole cache lines.
template <typename Src>
void pack_columns(const char* rows, int64_t row_bytes, int64_t num_rows, int64_t in_features, Elem elem, char* n_block,
                  int64_t first_column) {
  const auto value_at = [&](int64_t row, int64_t k) {
    return reinterpret_cast<const Src*>(rows + row * row_bytes)[k];
  };
  if (elem == Elem::kF32) {
    for (int64_t k = 0; k < in_features; ++k) {
      for (int64_t row = 0; row < num_rows; ++row) {
        const float value = element(value_at(row, k));
        std::memcpy(n_block + n_block_offset(Elem::kF32, k, first_column + row), &value, 4);
      }
    }
    return;
  }
  const auto bf16_at = [&](int64_t row, int64_t k) {
    if constexpr (std::is_same_v<Src, Bf16>) {
      return value_at(row, k);
    } else {
      return Bf16::from_float(element(value_at(row, k)));
    }
  };
  const int64_t whole_pairs = in_features / 2 * 2;
  for (int64_t k = 0; k < whole_pairs; k += 2) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const Bf16 pair[2] = {bf16_at(row, k), bf16_at(row, k + 1)};
      std::memcpy(n_block + n_block_offset(Elem::kBf16, k, first_column + row), pair, 4);
    }
  }
  for (int64_t row = 0; row < num_rows && whole_pairs < in_features; ++row) {
    const Bf16 value = bf16_at(row, whole_pairs);
    std::memcpy(n_block + n_block_offset(Elem::kBf16, whole_pairs, first_column + row), &value, 2);
  }
}

Status CpuDevice::pack_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) {
  const WeightDesc& desc = weight.desc();
  check_row_place(desc, place, rows.dim(0), rows.dim(1));
  const DType dtype = rows.dtype();
  CHECK(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16, "weight rows of {}", dtype_name(dtype));
  if (desc.spec.has_integer_codes()) {
    pack_int_rows(context_, weight, place, rows);
    return {};
  }
  const int64_t first_row = place.row;
  char* matrix = weight.mutable_matrix(place.matrix_idx);
  const Elem elem = elem_of(desc.spec.codes);
  const int64_t block_bytes = n_block_bytes(elem, round_up(desc.in_features, kKStep));
  const int64_t row_bytes = rows.stride(0) * dtype_bytes(dtype);
  const auto pack = dtype == DType::kF32   ? pack_columns<float>
                    : dtype == DType::kF16 ? pack_columns<F16>
                                           : pack_columns<Bf16>;
  // Items are whole n-blocks: a thread writes whole cache lines.
  const int64_t end_row = first_row + rows.dim(0), first_block = first_row / kNBlock;
  context_.pool.parallel_for(ceil_div(end_row, kNBlock) - first_block, [&](int, int64_t item) {
    const int64_t begin = std::max(first_row, (first_block + item) * kNBlock);
    const int64_t end = std::min(end_row, (first_block + item + 1) * kNBlock);
    pack(address(rows, (begin - first_row) * rows.stride(0)), row_bytes, end - begin, desc.in_features, elem,
         matrix + begin / kNBlock * block_bytes, begin % kNBlock);
  });
  return {};
}

Status CpuDevice::pack_quantized_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) {
  const WeightDesc& desc = weight.desc();
  CHECK(rows.spec.stores_as(desc.spec), "rows of {} for a weight of {}", weight_spec_name(rows.spec),
        weight_spec_name(desc.spec));
  check_row_place(desc, place, rows.num_rows(), rows.in_features());
  pack_int_rows(context_, weight, place, rows);
  return {};
}

}  // namespace

CpuContext& context_of(Stream& stream) { return static_cast<CpuDevice&>(stream.device()).context(); }

}  // namespace cpu

Result<std::unique_ptr<Device>> make_cpu_device(const DeviceOptions& options) {
  return make_cpu_device_on(options.core_ids.empty() ? usable_topology().within(allowed_cores()) : usable_topology(), options);
}

Result<std::unique_ptr<Device>> make_cpu_device_on(const Topology& topology, const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const cpu::Isa* isa, cpu::choose_isa(options.isa));
  if (options.num_threads < 0 || options.num_threads > 1024) {
    return invalid_argument("{} compute threads: use 1 to 1024, or 0 for all physical cores", options.num_threads);
  }
  const int num_threads = options.num_threads > 0 ? options.num_threads : default_num_threads();
  if (!options.core_ids.empty() && static_cast<int>(options.core_ids.size()) != num_threads) {
    return invalid_argument("{} cores for {} compute threads", options.core_ids.size(), num_threads);
  }
  return std::unique_ptr<Device>(std::make_unique<cpu::CpuDevice>(
      *isa, num_threads,
      options.core_ids.empty() ? homes_on_nodes(topology, num_threads) : homes_on_cores(topology, options.core_ids),
      options.deterministic));
}

}  // namespace spate
