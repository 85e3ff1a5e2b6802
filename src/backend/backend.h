// The hardware, cut in four places (docs/architecture.md): (a) a small runtime table: memory, copies, streams, events;
// (b) the op catalogue (backend/ops.h); (c) the physical layout of weights and KV; (d) how a step runs.
// A new chip is a folder that implements Device and the primitives of OpTable; spate-conformance says when it is right.
//
// Threads: a Device and everything made from it belong to one rank thread, but Event::host_wait() and seconds_since() may be
// called by any. Making devices is thread-safe.
// Errors: what the operator can cause (memory, a missing driver) is a Status. A failed device call while a step runs
// is fatal: the context is lost, the message names the op that ran last.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"
#include "quant/quantize.h"

namespace spate {

class Device;
struct OpTable;

enum class MemoryKind {
  kDevice,      // where ops read and write
  kPinnedHost,  // host memory that copies reach without staging
};

struct MemoryInfo {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Owns bytes of a device; the device outlives it. Empty after a move. 256-byte aligned.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, MemoryKind kind, Device* device)
      : data_(data), bytes_(bytes), kind_(kind), device_(device) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  void reset();
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // A contiguous tensor at a byte offset of the buffer.
  Tensor tensor(DType dtype, std::initializer_list<int64_t> dims, size_t offset_bytes = 0) const;

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
  Device* device_ = nullptr;
};

// Work in order on one device. The CPU's streams run each op before the call returns.
class Stream {
 public:
  explicit Stream(Device& device) : device_(device) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Device& device() const { return device_; }

 private:
  Device& device_;
};

// A point in the work of a stream. Made by Device::create_event(), recorded again and again.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // The event now stands behind all work given to `stream` so far. The waits below are for the last record() before them.
  virtual void record(Stream& stream) = 0;
  // Work given to `stream` from now on starts when the recorded work is done. Does not block the caller.
  virtual void stream_wait(Stream& stream) = 0;
  // Returns when the recorded work is done; at once if nothing was recorded.
  virtual void host_wait() = 0;
  // Time on the device between two recorded points of one stream; both are done.
  virtual double seconds_since(const Event& earlier) const = 0;
};

// For back-ends whose ops run before their call returns: recorded work is done already.
class HostEvent final : public Event {
 public:
  void record(Stream&) override { time_ = std::chrono::steady_clock::now(); }
  void stream_wait(Stream&) override {}
  void host_wait() override {}
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(time_ - static_cast<const HostEvent&>(earlier).time_).count();
  }

 private:
  std::chrono::steady_clock::time_point time_;
};

// --- (c) layouts -----------------------------------------------------------------------------------------------------

// A matrix W [out_features, in_features] of y = x W^T, or an embedding table [vocab_size, hidden_size]; or several
// matrices of one shape (experts).
struct WeightDesc {
  int64_t out_features = 0;
  int64_t in_features = 0;
  WeightSpec spec;
  int64_t num_matrices = 1;
};

// Where rows of a weight go.
struct RowPlace {
  int64_t row = 0;
  int64_t matrix_idx = 0;
};

// Matrices in the back-end's own layout, which only the back-end knows: others copy the bytes as a whole or not at all.
// Filled row by row through Device::pack_rows or pack_quantized_rows, then constant.
class PackedWeight {
 public:
  PackedWeight() = default;
  PackedWeight(WeightDesc desc, Buffer storage) : desc_(desc), storage_(std::move(storage)) {}
  // A constant weight in memory of somebody else, which `owner` keeps: `packed` is what a weight of the same desc held
  // after it was filled, on a device of the same packed_layout().
  PackedWeight(WeightDesc desc, std::span<const char> packed, std::shared_ptr<const void> owner)
      : desc_(desc), packed_(packed), owner_(std::move(owner)) {}
  const WeightDesc& desc() const { return desc_; }
  const void* data() const { return owner_ ? packed_.data() : storage_.data(); }
  void* mutable_data() { return storage_.data(); }  // null where somebody else owns the bytes
  size_t bytes() const { return owner_ ? packed_.size() : storage_.bytes(); }
  // For back-ends: all lay the matrices one behind the other, each in as many bytes.
  size_t matrix_bytes() const { return bytes() / static_cast<size_t>(desc_.num_matrices); }
  const char* matrix(int64_t i) const {
    return static_cast<const char*>(data()) + i * static_cast<int64_t>(matrix_bytes());
  }
  char* mutable_matrix(int64_t i) {
    return static_cast<char*>(mutable_data()) + i * static_cast<int64_t>(matrix_bytes());
  }
  bool defined() const { return desc_.out_features > 0; }

 private:
  WeightDesc desc_;
  Buffer storage_;
  std::span<const char> packed_;
  std::shared_ptr<const void> owner_;  // of packed_
};

// What a layer stores of a token.
enum class KvKind : uint8_t {
  kFull,    // k and v of num_kv_heads heads
  kWindow,  // the same; no query looks further back than the window
  kLatent,  // one vector for all heads: kv_lora_rank compressed elements, then qk_rope_head_dim rotated ones
};

// The KV cache of one layer, of a rank. Only the device knows what it takes: Device::kv_block_bytes().
struct KvLayerDesc {
  KvKind kind = KvKind::kFull;
  int64_t num_kv_heads = 0;      // of this rank; 0 with kLatent
  int64_t head_dim = 0;          // of k and of v; 0 with kLatent
  int64_t kv_lora_rank = 0;      // kLatent
  int64_t qk_rope_head_dim = 0;  // kLatent
  int64_t kv_block_size = 0;     // tokens in a block; a multiple of 16
  // kBf16, kF32, or kI8: codes with one f32 scale for each token, head and part (k, v; with kLatent the compressed
  // elements, the rotated ones): max|x| / 127, rounding as in quantize_activations().
  DType dtype = DType::kBf16;

  int64_t latent_width() const { return kv_lora_rank + qk_rope_head_dim; }
};

// The blocks of one layer: num_blocks times block_bytes of opaque bytes, block b at data + b * block_bytes.
// Made by KvStorage (backend/kv_storage.h).
struct KvView {
  KvLayerDesc desc;
  void* data = nullptr;
  int64_t block_bytes = 0;
  int64_t num_blocks = 0;
};

// Rows of `width` elements fit there; else it is our mistake.
void check_row_place(const WeightDesc& desc, RowPlace place, int64_t num_rows, int64_t width);

// --- the device -------------------------------------------------------------------------------------------------------

struct DeviceOptions {
  int device_idx = 0;      // which GPU
  int num_threads = 0;     // CPU: compute threads of this rank; 0 = its share of the cores
  std::vector<int> core_ids;   // CPU: what its threads are bound to, one a thread; empty: not bound
  bool deterministic = false;  // batch-invariant kernels: the same bits for a sequence whatever runs beside it
  std::string isa;         // CPU: cap on the instruction set, one of BackEnd::instruction_sets; empty: the best
  std::string kernel_dir;  // GPU: read kernel sources from this folder instead of the embedded ones
};

// Tokens whose hidden states are wanted after the last layer.
enum class StepOutputs : uint8_t {
  kAllTokens,
  kSampledTokens,   // the last token of some sequences
  kSampledAllSeqs,  // the last token of every sequence
};

// What of a step its launches are.
enum class StepPart : uint8_t {
  kWhole,
  kForward,  // up to the hidden states: the masks under which it samples come later
  kSample,   // the rest
};

// The sizes that latent attention depends on.
struct LatentShape {
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  DType act_dtype = DType::kBf16;
};

// The prompts of a step whose new tokens are so many that work for each of their known tokens pays
// (Device::min_expanded_query_len): its last sequences and tokens, but for dummies behind them.
struct LongPrompts {
  int first_seq = 0, num_seqs = 0;
  int first_token = 0, num_tokens = 0;
  int num_keys = 0;              // the sum of their seq_lens
  int max_query_len_before = 0;  // of the sequences before them
  auto operator<=>(const LongPrompts&) const = default;
};
constexpr int kMaxLongKeys = 1 << 18;  // LongPrompts::num_keys, so that what is made of keys stays bounded

// Everything that the launches of a step's forward pass and sampling depend on: equal keys mean equal launches, down to
// pointers and scalars. Counts are those of the launches, not below what the plan has (Device::padded_step); the plan's own
// counts are read on the device, from its header.
struct StepKey {
  int num_seqs = 0;
  int num_tokens = 0;
  int num_logits = 0;     // rows of logits that are sampled: with drafts several of a sequence
  int max_query_len = 0;  // 1: every sequence computes one token
  int max_seq_len = 0;
  StepOutputs outputs = StepOutputs::kAllTokens;
  int num_top_logprobs = -1;  // of the sampled tokens: -1 no log-probabilities, 0 only the token's own
  int plan_generation = 0;    // counts the plan buffers of the rank: a larger plan than ever before moves it
  LongPrompts long_prompts;   // none where the device has no use for them
  bool decodes_only = false;  // every sequence decodes; only where the rank's model must know (StepBatch::decodes_only)
  StepPart part = StepPart::kWhole;
  auto operator<=>(const StepKey&) const = default;
};

// What models of a rank launch, as far as a device can get ready for it.
struct DeviceUse {
  bool is_everything = false;  // whatever the device can do; the rest is not read
  DType act_dtype = DType::kBf16;
  std::vector<KvLayerDesc> kv_layers;
  // Formats of matrices on the device, and of those of experts. No experts: empty.
  std::vector<WeightSpec> weights, expert_weights;
};

// The largest sizes that the ops of a rank will see, as far as ops take memory of their own for them.
struct OpLimits {
  int64_t max_num_logits = 0;  // rows of one sample or logprobs call
  int64_t vocab_size = 0;
  // Of expert_mlp; no experts: zeros.
  int64_t max_num_tokens = 0;
  int64_t num_experts_per_tok = 0;
  int64_t hidden_size = 0;
  int64_t expert_intermediate_size = 0;
  bool has_latent_attention = false;
  // Of attention_latent_expanded; it never runs: zeros.
  int64_t max_long_keys = 0;
  int64_t num_latent_heads = 0;  // those of other ranks may be among them
  LatentShape latent = {};
  // Of attention_paged over an INT8 cache; no such cache: zeros.
  int64_t max_num_seqs = 0;
  int64_t max_seq_len = 0;
  KvLayerDesc int8_kv = {};  // its layer with the largest blocks
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view kind() const = 0;      // its name in the registry
  virtual std::string description() const = 0;    // "AVX-512 + AMX, 2 threads" or "H200, 139 GiB"

  // (a) Runtime.
  virtual Result<MemoryInfo> memory_info() = 0;
  virtual Result<Buffer> allocate(size_t bytes, MemoryKind kind) = 0;
  virtual void deallocate(void* data, size_t bytes, MemoryKind kind) noexcept = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  virtual std::unique_ptr<Event> create_event() { return std::make_unique<HostEvent>(); }
  virtual void copy_to_device(Stream& stream, void* dst, const void* src_host, size_t bytes) = 0;
  virtual void copy_to_host(Stream& stream, void* dst_host, const void* src, size_t bytes) = 0;
  virtual void fill_bytes(Stream& stream, void* dst, int byte, size_t bytes) = 0;
  virtual void synchronize(Stream& stream) = 0;  // all work given to the stream is done

  // Makes ready what the use needs, so that steps do not wait for it. Never needed for right results: what it was not
  // told of becomes ready when it is first used. Default: nothing to do.
  virtual Status prepare(const DeviceUse& /*use*/) { return ok_status(); }

  // (b) Ops. Every primitive is set; a fused op may be null (backend/ops.h binds its decomposition).
  virtual const OpTable& ops() const = 0;
  // What ops take for themselves beside the tensors they are given, for the memory plan. Counts what grows with the
  // vocabulary, with tokens and experts, latent attention and prompts over an INT8 cache; the rest is a few MB.
  virtual int64_t op_workspace_bytes(const OpLimits& /*limits*/) const { return 0; }

  // (c) Layouts. Activations of row_bytes a row are written and read fastest with this many bytes from row to row, row_bytes
  // to row_bytes + 127. All ops of a device that answers with more take such rows, also where backend/ops.h names no stride.
  virtual int64_t activation_row_bytes(int64_t row_bytes) const { return row_bytes; }
  // pack_rows reads `rows` [n, in_features] on the host (f32, f16 or bf16; any row stride) and may be called
  // in any order of rows, each row once. `rows` is not used after the call returns. Into an integer weight they are
  // quantised as quantize_row() does it, symmetrically (an offset is zero). pack_quantized_rows takes rows of the
  // weight's own codes and scales (WeightSpec::stores_as).
  virtual bool supports(const WeightSpec& spec) const;  // the others must not be asked for; default: f32 and bf16
  virtual bool supports_experts(const WeightSpec& spec) const { return supports(spec); }  // in expert_mlp
  // Of a layer; route_experts and expert_mlp must not be asked for more.
  virtual int64_t max_experts() const { return std::numeric_limits<int64_t>::max(); }
  // Whether ops read and write such a cache. Default: heads of f32 and bf16.
  virtual bool supports_kv(const KvLayerDesc& desc) const;
  virtual Result<PackedWeight> create_weight(const WeightDesc& desc) = 0;
  virtual Status pack_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) = 0;
  virtual Status pack_quantized_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows);
  // The layout of filled weights and its version, where ops can read them in any host memory that is aligned to 64
  // bytes. The same answer in another process means the same bytes. Empty: they cannot be kept (weights/weight_cache.h).
  virtual std::string_view packed_layout() const { return {}; }
  // From so many new tokens of a sequence on attention_latent_expanded is faster than the absorbed form. 0: it never
  // runs, be it that the op is null, that it does not take this shape, or that the device is deterministic: a sequence
  // must not change its form with how its prompt is cut.
  virtual int min_expanded_query_len(const LatentShape& /*shape*/) const { return 0; }
  // Of one block of one layer, padding included. Also where supports_kv() says no.
  virtual int64_t kv_block_bytes(const KvLayerDesc& desc) const = 0;

  // (d) How a step runs. `step` launches a forward pass and sampling, or one of the two (StepPart). The default calls
  // it (eager); a capturing back-end may replay what an equal key launched, without calling it.
  virtual void run_step(Stream& stream, const StepKey& key, const std::function<void()>& step);
  // The key that a step runs under: counts rounded up to sizes that recur, none above `largest`. Additional sequences and
  // tokens are dummies (begin_step in backend/ops.h). Rounds num_seqs, num_tokens, num_logits, max_query_len, max_seq_len and
  // num_top_logprobs; max_query_len 1 and num_top_logprobs -1 stay. Default: as it is.
  virtual StepKey padded_step(const StepKey& exact, const StepKey& /*largest*/) const { return exact; }
};

// Makes a device of a kind, or says in one line why it cannot ("no driver: ... is not found").
using DeviceFactory = Result<std::unique_ptr<Device>> (*)(const DeviceOptions& options);

}  // namespace spate
