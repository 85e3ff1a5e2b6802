// CudaDevice and CudaStream: what the launchers see of a GPU.
//
// Threads: as Device. The device's context is made current on whatever thread calls, so a device may be made on one
// thread and used by another. A failed driver call after start-up is fatal and prints what this thread launched last
// (launch.h).
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/driver_api.h"
#include "backend/cuda/integer_scratch.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/kernel_modules.h"
#include "backend/cuda/step_graphs.h"
#include "backend/cuda/tile_table.h"
#include "backend/layer_products.h"
#include "backend/ops.h"
#include "backend/product_tuning.h"

namespace spate::cuda {

class CudaDevice;

class CudaStream final : public Stream {
 public:
  explicit CudaStream(CudaDevice& device);
  ~CudaStream() override;
  CudaDevice& cuda_device() const { return cuda_device_; }
  CUstream handle() const { return handle_; }
  // Of the kernel launched last: LaunchGrid::launches_late.
  bool launches_late() const { return launches_late_; }
  void set_launches_late(bool is_late) { launches_late_ = is_late; }
  // Whether a kernel launched early now may read the step's inputs and the keys of earlier steps in `kv` before it
  // waits: since a kernel wrote some of them another one has been launched at its turn, or lets its dependents start
  // late, or the stream was waited for. Replays of graphs and captures that were given up are not counted: a step with
  // attention begins with a kernel that writes its inputs.
  bool has_settled(const void* kv) const;
  // Of each launch, in order. writes_step: inputs of a step, or a cache.
  void note_launch(bool is_early, bool writes_step);
  // The kernel launched last lets later ones start when all before it have ended.
  void note_late_launch() { num_ended_ = std::max(num_ended_, num_launches_ - 1); }
  // All launches have ended.
  void note_end() { num_ended_ = num_launches_; }
  // While attention over latent vectors is launched whose query tokens are those that the kernels launched since
  // has_settled() have written.
  bool latents_are_settled() const { return latents_are_settled_; }
  void set_latents_are_settled(bool are_settled) { latents_are_settled_ = are_settled; }
  // By the kernel launched last.
  void note_kv_write(const void* kv) { kv_written_[kv] = num_launches_; }

 private:
  CudaDevice& cuda_device_;
  CUstream handle_ = nullptr;
  bool launches_late_ = false;
  bool latents_are_settled_ = false;
  int64_t num_launches_ = 0;
  int64_t num_ended_ = 0;     // of the launches before the one that was last launched at its turn
  int64_t step_written_ = 0;  // the last launch that wrote inputs of a step
  std::map<const void*, int64_t> kv_written_;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(CudaDevice& device);
  ~CudaEvent() override;
  void record(Stream& stream) override;
  void stream_wait(Stream& stream) override;
  void host_wait() override;
  double seconds_since(const Event& earlier) const override;

 private:
  CudaDevice& device_;
  CUevent handle_ = nullptr;
};

// What the driver tells of a GPU without a context.
struct GpuFacts {
  CUdevice device = 0;
  std::string name;
  int capability_major = 0, capability_minor = 0;
  int num_sms = 0;
  int max_shared_bytes = 0;  // of a CTA
};
// A device that does not exist or is too old is an error.
Result<GpuFacts> find_gpu(const DriverApi& api, int device_idx);

// A GPU's retained primary context.
class Context {
 public:
  static Result<std::unique_ptr<Context>> open(const DriverApi& api, const GpuFacts& gpu);
  Context(const DriverApi& api, CUdevice device, CUcontext handle) : api_(api), device_(device), handle_(handle) {}
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const DriverApi& api() const { return api_; }
  CUdevice device() const { return device_; }
  void make_current() const;

 private:
  const DriverApi& api_;
  CUdevice device_;
  CUcontext handle_;
};

class CudaDevice final : public Device, public LayerProductsDevice, public ProductTuningDevice {
 public:
  static Result<std::unique_ptr<Device>> make(const DeviceOptions& options);
  ~CudaDevice() override;

  std::string_view kind() const override { return "cuda"; }
  std::string description() const override { return description_; }

  Result<MemoryInfo> memory_info() override;
  Result<Buffer> allocate(size_t bytes, MemoryKind kind) override;
  void deallocate(void* data, size_t bytes, MemoryKind kind) noexcept override;
  std::unique_ptr<Stream> create_stream() override;
  std::unique_ptr<Event> create_event() override { return std::make_unique<CudaEvent>(*this); }
  void copy_to_device(Stream& stream, void* dst, const void* src_host, size_t bytes) override;
  void copy_to_host(Stream& stream, void* dst_host, const void* src, size_t bytes) override;
  void fill_bytes(Stream& stream, void* dst, int byte, size_t bytes) override;
  void synchronize(Stream& stream) override;
  Status prepare(const DeviceUse& use) override;

  const OpTable& ops() const override { return ops_; }
  int64_t op_workspace_bytes(const OpLimits& limits) const override;

  Result<PackedWeight> create_weight(const WeightDesc& desc) override;
  bool supports(const WeightSpec& spec) const override;
  bool supports_experts(const WeightSpec& spec) const override;
  int64_t max_experts() const override;
  Status pack_rows(PackedWeight& weight, RowPlace place, const Tensor& rows) override;
  Status pack_quantized_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows) override;
  bool supports_kv(const KvLayerDesc& desc) const override;
  int64_t kv_block_bytes(const KvLayerDesc& desc) const override;
  int min_expanded_query_len(const LatentShape& shape) const override;
  void run_step(Stream& stream, const StepKey& key, const std::function<void()>& step) override;
  StepKey padded_step(const StepKey& exact, const StepKey& largest) const override {
    return padded_decode_step(exact, largest);
  }

  bool joins_layer_products(int64_t num_tokens) const override;
  void layer_products(Stream& stream, const LayerProductsParams& params) override;
  void layer_products(Stream& stream, const ExpertLayerProductsParams& params) override;
  void latent_attention(Stream& stream, const LatentAttentionParams& params) override;

  std::optional<ProductShape> take_last_product() override;
  std::vector<std::string> choices(const ProductShape& shape) const override;
  void try_choice(const ProductShape& shape, int choice_idx) override;
  void end_trials() override;
  void keep_choice(const ProductShape& shape, int64_t min_num_tokens, int choice_idx) override;
  Result<std::string> save_choices() override;

  // For launchers. The context is current after make_current().
  const DriverApi& api() const { return context_->api(); }
  void make_current() const { context_->make_current(); }
  int num_sms() const { return num_sms_; }
  // Kernels may be put on the SMs before the one ahead of them has ended (kernel/primitive/grid_dependency.h).
  bool launches_early() const { return launches_early_; }
  // Only kernels whose results do not depend on the other rows of a step.
  bool is_deterministic() const { return is_deterministic_; }
  // Loads the kernel's program if it is not loaded yet. False: this is a capture, which is given up.
  bool load(KernelId kernel) const;
  CUfunction function(KernelId kernel) const { return modules_.function(kernel); }  // after load()
  bool has(KernelId kernel) const;                                                  // whether the GPU can run it
  // What was measured for this product; nothing: the rule decides, as always of a deterministic device.
  std::optional<TileChoice> tile_choice(std::string_view kernel, int64_t out_features, int64_t num_steps,
                                        int64_t num_tokens) const;
  // Scratch of at least this many bytes for one op; the next call may move it. All ops of a device share it, so they
  // must run on one stream. It grows when a larger shape than ever before appears; what was captured is then dropped.
  void* workspace(size_t bytes);
  // Of linear_wgmma: num_sms() tiles of sums, and a flag for each, 0 between kernels. Null where linear_wgmma does not
  // run.
  float* partial_sums() const { return static_cast<float*>(partial_sums_.data()); }
  uint32_t* partial_flags() const { return static_cast<uint32_t*>(partial_flags_.data()); }
  // kExpertStreamArrivals words, 0 between kernels (expert_stream.h). Null as partial_sums().
  uint32_t* expert_arrivals() const { return partial_flags() + num_sms_; }
  // Of products with integer weights; its places do not move once all weights are made.
  const IntegerScratch& integer_scratch() const { return integer_scratch_; }
  // Between the op that wrote them and the product that reads them; both are given to the device one after the other,
  // in a capture too.
  HandedCodes& handed_codes() { return handed_codes_; }
  // Two words, 0 between kernels, of a kernel whose CTAs take their work from a common list. Null as partial_sums().
  uint32_t* work_counters() const { return static_cast<uint32_t*>(work_counters_.data()); }
  // Whether this device may launch kernels whose CTAs wait for each other: one of the process may, of a GPU.
  bool has_grid_barriers() const { return grid_barrier_right_ != nullptr; }
  // How many CTAs have come to barriers of grids of num_sms() CTAs. Null as partial_sums().
  uint64_t* grid_arrivals() const { return static_cast<uint64_t*>(work_counters_.data()) + 1; }
  // [num_sms()] of latent_wgmma.cu, 0 between kernels. Null as partial_sums().
  uint32_t* latent_arrivals() const { return expert_arrivals() + kExpertStreamArrivals; }
  // [kExpertChainMaxExperts] of expert_chain.cu: 0, and left so.
  uint64_t* logit_sums() const { return grid_arrivals() + 1; }

 private:
  explicit CudaDevice(std::unique_ptr<Context> context) : context_(std::move(context)) {}
  Status describe(const GpuFacts& gpu);
  Status read_tile_table(const GpuFacts& gpu);
  // Whether the copy is one for a kernel: small, by words, and the host's side is pinned memory of this device.
  bool copies_words(const void* host, const void* device, size_t bytes) const;
  void copy_words(Stream& stream, void* dst, const void* src, size_t bytes);
  Status reserve_integer_scratch(const IntegerLayout& layout);
  Status reserve_outlier_scratch();
  Status reserve_pack_buffers(int64_t bytes);
  Status reserve_pack_staging(int64_t bytes);
  Status pack_integer_rows(PackedWeight& weight, RowPlace place, const Tensor& rows);
  Status place_int8_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows);
  Status place_int4_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows);
  Status pack_int4_group_rows(PackedWeight& weight, RowPlace place, const Tensor& rows);
  Status place_int4_group_rows(PackedWeight& weight, RowPlace place, const QuantizedRows& rows);
  // Rows to pack_staging_, f16 as f32, some at a time; pack(first row, number) puts kernels that use them on
  // pack_stream_.
  Status stage_rows(const Tensor& rows, const std::function<void(int64_t begin, int64_t count)>& pack);
  Status allocate_shared_state();

  std::unique_ptr<Context> context_;
  std::string architecture_;
  int num_sms_ = 0, max_shared_bytes_ = 0;
  bool launches_early_ = false;
  bool is_deterministic_ = false;
  std::atomic_flag* grid_barrier_right_ = nullptr;
  std::string description_;
  mutable KernelModules modules_{api()};
  OpTable ops_;
  mutable std::mutex pinned_mutex_;
  std::map<uintptr_t, size_t> pinned_;  // bytes of each piece of pinned memory
  Buffer workspace_;
  Buffer partial_sums_, partial_flags_, work_counters_;
  mutable StepGraphs graphs_{*this};
  std::unique_ptr<CudaStream> pack_stream_;  // made by the first pack_rows, as its buffer
  Buffer pack_buffer_;
  Buffer pack_staging_;  // on the device, as large: rows that a kernel packs
  Buffer integer_scratch_buffer_, outlier_scratch_buffer_;
  IntegerScratch integer_scratch_;
  HandedCodes handed_codes_;
  TileTableKey tile_table_key_;
  TileTable tile_table_;
  bool is_tuning_ = false;
  mutable std::optional<ProductShape> last_product_;  // while tuning
  std::optional<ProductShape> tried_shape_;
  std::optional<TileChoice> tried_choice_;  // of tried_shape_; nothing: the rule
};

// Elements of a packed weight from one row to the next: in_features rounded up to 16, the padding is zero.
int64_t weight_row_stride(const WeightDesc& desc);

}  // namespace spate::cuda
