#include "model/golden_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "backend/kv_storage.h"
#include "base/rng.h"
#include "base/tensor_compare.h"
#include "model/model.h"
#include "parallel/communicators.h"
#include "weights/open_weights.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

constexpr int kKvBlockSize = 16;
constexpr int kMaxNumLogits = 13;  // below a prompt's length, so that logits come in several pieces
constexpr double kTimeLimitS = 600;  // how long ranks wait for each other: the sanitizers are slow
constexpr double kF32Tolerance = 1e-5;
constexpr double kBf16Slack = 2.0;

constexpr const char* kPlaces[] = {"embed", "first", "mid", "last"};
constexpr size_t kNumPlaces = std::size(kPlaces);

// One sequence: what transformers was given and said.
struct GoldenSequence {
  std::vector<int32_t> token_ids;
  int64_t prompt_len = 0;
  std::vector<int64_t> logit_rows;
  HostTensor hidden[kNumPlaces];  // of kPlaces: [n, hidden_size] f32
  HostTensor logits;              // [logit_rows, vocab_size] f32
};

struct Golden {
  ModelConfig config;
  int64_t mid_layer = 0;
  int64_t max_model_len = 0;
  double bf16_hidden_error = 0, bf16_logits_error = 0;
  std::optional<double> float_tolerance, integer_tolerance;  // of a quantised checkpoint
  std::vector<GoldenSequence> sequences;
};

Result<HostTensor> read_tensor(const Checkpoint& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr || entry->dtype != DType::kF32) return not_found("goldens.safetensors: no f32 tensor {}", name);
  HostTensor scratch;
  ASSIGN_OR_RETURN(const Tensor rows, file.rows(*entry, 0, entry->shape[0], scratch));
  HostTensor copy(DType::kF32, rows.dims());
  std::copy_n(rows.data<float>(), rows.num_elements(), copy.span<float>().data());
  return copy;
}

Result<GoldenSequence> read_sequence(const Checkpoint& file, const std::string& name) {
  GoldenSequence sequence;
  ASSIGN_OR_RETURN(const HostTensor token_ids, read_tensor(file, name + ".token_ids"));
  for (const float id : token_ids.span<float>()) sequence.token_ids.push_back(static_cast<int32_t>(id));
  ASSIGN_OR_RETURN(const HostTensor prompt_len, read_tensor(file, name + ".prompt_len"));
  sequence.prompt_len = static_cast<int64_t>(prompt_len.span<float>()[0]);
  ASSIGN_OR_RETURN(const HostTensor rows, read_tensor(file, name + ".logit_rows"));
  for (const float row : rows.span<float>()) sequence.logit_rows.push_back(static_cast<int64_t>(row));
  for (size_t place = 0; place < kNumPlaces; ++place) {
    ASSIGN_OR_RETURN(sequence.hidden[place], read_tensor(file, fmt::format("{}.hidden.{}", name, kPlaces[place])));
  }
  ASSIGN_OR_RETURN(sequence.logits, read_tensor(file, name + ".logits"));
  return sequence;
}

Result<Golden> read_golden(const std::filesystem::path& folder) {
  Golden golden;
  ASSIGN_OR_RETURN(golden.config, load_model_config(golden_model_path(folder)));
  ASSIGN_OR_RETURN(const Checkpoint file, Checkpoint::open(folder / "goldens.safetensors"));
  ASSIGN_OR_RETURN(const HostTensor mid_layer, read_tensor(file, "mid_layer"));
  golden.mid_layer = static_cast<int64_t>(mid_layer.span<float>()[0]);
  ASSIGN_OR_RETURN(const HostTensor max_model_len, read_tensor(file, "max_model_len"));
  golden.max_model_len = static_cast<int64_t>(max_model_len.span<float>()[0]);
  ASSIGN_OR_RETURN(const HostTensor error, read_tensor(file, "bf16_error"));
  golden.bf16_hidden_error = error.span<float>()[0];
  golden.bf16_logits_error = error.span<float>()[1];
  if (file.find("tolerance") != nullptr) {
    ASSIGN_OR_RETURN(const HostTensor tolerance, read_tensor(file, "tolerance"));
    golden.float_tolerance = tolerance.span<float>()[0];
    golden.integer_tolerance = tolerance.span<float>()[1];
  }
  for (int i = 0; file.find(fmt::format("seq{}.token_ids", i)) != nullptr; ++i) {
    ASSIGN_OR_RETURN(GoldenSequence sequence, read_sequence(file, fmt::format("seq{}", i)));
    golden.sequences.push_back(std::move(sequence));
  }
  if (golden.sequences.empty()) return not_found("goldens.safetensors: no sequence");
  return golden;
}

// Tokens [begin, end) of a sequence.
struct Chunk {
  size_t seq_idx = 0;
  int64_t begin = 0, end = 0;
};
using Step = std::vector<Chunk>;

// Each sequence enters at step seq_idx * stagger; chunk_sizes, taken in turn, bound the chunks of a prompt.
std::vector<Step> make_steps(const std::vector<GoldenSequence>& sequences, std::vector<int64_t> chunk_sizes,
                             size_t stagger) {
  std::vector<Step> steps;
  std::vector<int64_t> done(sequences.size(), 0);
  size_t next_size = 0;
  for (size_t step_idx = 0;; ++step_idx) {
    Step step;
    bool all_done = true;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t total = static_cast<int64_t>(sequences[i].token_ids.size());
      all_done = all_done && done[i] == total;
      if (done[i] == total || step_idx < i * stagger) continue;
      const int64_t rest = sequences[i].prompt_len - done[i];
      const int64_t count = rest > 0 ? std::min(rest, chunk_sizes[next_size++ % chunk_sizes.size()]) : 1;
      step.push_back({i, done[i], done[i] + count});
      done[i] += count;
    }
    if (all_done) return steps;
    if (!step.empty()) steps.push_back(std::move(step));
  }
}

std::vector<Step> make_schedule(const std::vector<GoldenSequence>& sequences, GoldenSchedule schedule) {
  constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();
  switch (schedule) {
    case GoldenSchedule::kOneByOne:
      return make_steps(sequences, {kWhole}, 1000);
    case GoldenSchedule::kBatched:
      return make_steps(sequences, {kWhole}, 0);
    case GoldenSchedule::kChunked:
      return make_steps(sequences, {7, 1, 3, 17, 5}, 2);
  }
  return {};
}

// What a rank computed, as f32 on the host; NaN where nothing was written.
struct GoldenOutput {
  HostTensor hidden[kNumPlaces];  // [n, hidden_size]
  HostTensor logits;              // [n, vocab_size]
};

HostTensor nan_tensor(int64_t rows, int64_t columns) {
  HostTensor tensor(DType::kF32, {rows, columns});
  std::fill(tensor.span<float>().begin(), tensor.span<float>().end(), std::nanf(""));
  return tensor;
}

// One rank: its device, model, cache and step arrays. Made and used by one thread.
class GoldenRank {
 public:
  GoldenRank(const Golden& golden, const GoldenRun& run, const Communicators& communicators)
      : golden_(golden), run_(run), communicators_(communicators) {}

  Status create(DeviceFactory factory, const DeviceOptions& device_options, const WeightSource& weights) {
    ASSIGN_OR_RETURN(device_, factory(device_options));
    stream_ = device_->create_stream();
    bound_ = bind_ops(device_->ops());
    for (const GoldenSequence& sequence : golden_.sequences) {
      const int64_t n = static_cast<int64_t>(sequence.token_ids.size());
      max_tokens_ += n;
      GoldenOutput& output = outputs_.emplace_back();
      for (HostTensor& hidden : output.hidden) hidden = nan_tensor(n, golden_.config.hidden_size);
      output.logits = nan_tensor(n, golden_.config.vocab_size);
    }
    const auto floats_only = [](const WeightSpec& spec) { return !spec.has_integer_codes(); };
    Quantization quantization = run_.quantization;
    quantization.activations = run_.activations;
    const ModelOptions options{.act_dtype = run_.act_dtype,
                               .kv_dtype = run_.act_dtype,
                               .quantization = quantization,
                               .source = &weights,
                               .supports_weight = run_.integer_weights ? WeightSupport() : floats_only,
                               .limits = {.max_model_len = static_cast<int>(golden_.max_model_len),
                                          .max_num_batched_tokens = static_cast<int>(max_tokens_),
                                          .max_num_logits = kMaxNumLogits,
                                          .kv_block_size = kKvBlockSize}};
    const TensorParallel tp{.rank = communicators_.tp->rank(), .size = communicators_.tp->size()};
    ASSIGN_OR_RETURN(model_, Model::create(golden_.config, *device_, tp, options));
    RETURN_IF_ERROR(model_->load(weights));
    model_->set_tap([this](const StepContext&, int64_t layer_idx, const Tensor& hidden_states) {
      keep_hidden(layer_idx, hidden_states);
    });
    return create_kv_cache();
  }

  void run_step(const Step& step) {
    step_ = &step;
    const StepBatch batch = upload_batch(step);
    const StepContext ctx{
        .stream = *stream_, .ops = bound_.ops, .communicators = communicators_, .batch = batch, .kv = kv_.views()};
    const Tensor hidden_states = model_->forward(ctx);
    std::vector<int32_t> row_ids(static_cast<size_t>(batch.num_tokens()));
    for (size_t i = 0; i < row_ids.size(); ++i) row_ids[i] = static_cast<int32_t>(i);
    const Tensor rows = upload("row_ids", row_ids);
    for (int64_t begin = 0; begin < batch.num_tokens(); begin += kMaxNumLogits) {
      const int64_t end = std::min(batch.num_tokens(), begin + kMaxNumLogits);
      const Tensor logits = model_->compute_logits(ctx, hidden_states, rows.rows(begin, end));
      if (logits.defined()) scatter(begin, logits, [](GoldenOutput& output) -> HostTensor& { return output.logits; });
    }
    device_->synchronize(*stream_);
  }

  const std::vector<GoldenOutput>& outputs() const { return outputs_; }

 private:
  int64_t blocks_of(const GoldenSequence& sequence) const {
    return (static_cast<int64_t>(sequence.token_ids.size()) + kKvBlockSize - 1) / kKvBlockSize;
  }

  // Blocks in a shuffled order, two of them nobody's, all filled with NaN.
  Status create_kv_cache() {
    int64_t num_blocks = 2;
    for (const GoldenSequence& sequence : golden_.sequences) {
      num_blocks += blocks_of(sequence);
      max_blocks_ = std::max(max_blocks_, blocks_of(sequence));
    }
    std::vector<int32_t> block_ids(static_cast<size_t>(num_blocks));
    for (size_t i = 0; i < block_ids.size(); ++i) block_ids[i] = static_cast<int32_t>(i);
    Rng rng(17);
    for (size_t i = block_ids.size() - 1; i > 0; --i) std::swap(block_ids[i], block_ids[rng.below(i + 1)]);
    for (const GoldenSequence& sequence : golden_.sequences) {
      blocks_.emplace_back(block_ids.end() - blocks_of(sequence), block_ids.end());
      block_ids.resize(block_ids.size() - static_cast<size_t>(blocks_of(sequence)));
    }
    ASSIGN_OR_RETURN(kv_, KvStorage::create(*device_, model_->kv_layers(), num_blocks));
    device_->fill_bytes(*stream_, kv_.buffer().data(), 0xff, kv_.buffer().bytes());
    device_->synchronize(*stream_);
    return ok_status();
  }

  Tensor upload(const std::string& name, const std::vector<int32_t>& values) {
    Buffer& buffer = index_buffers_[name];
    const size_t bytes = std::max<size_t>(values.size() * 4, 4);
    if (buffer.bytes() < bytes) buffer = device_->allocate(bytes, MemoryKind::kDevice).value();
    device_->copy_to_device(*stream_, buffer.data(), values.data(), values.size() * 4);
    device_->synchronize(*stream_);
    return buffer.tensor(DType::kI32, {static_cast<int64_t>(values.size())});
  }

  // Sequence i lives in row num_seqs - 1 - i of the state, so that row and place in the step differ.
  StepBatch upload_batch(const Step& step) {
    const size_t num_rows = golden_.sequences.size();
    std::vector<int32_t> token_ids, positions, slots, seq_rows, cu_seqlens{0}, seq_lens;
    std::vector<int32_t> block_table(num_rows * static_cast<size_t>(max_blocks_), -1);
    for (size_t i = 0; i < num_rows; ++i) {
      std::copy(blocks_[i].begin(), blocks_[i].end(),
                block_table.begin() + static_cast<int64_t>(num_rows - 1 - i) * max_blocks_);
    }
    StepBatch batch;
    for (const Chunk& chunk : step) {
      for (int64_t p = chunk.begin; p < chunk.end; ++p) {
        token_ids.push_back(golden_.sequences[chunk.seq_idx].token_ids[static_cast<size_t>(p)]);
        positions.push_back(static_cast<int32_t>(p));
        const int32_t block_id = blocks_[chunk.seq_idx][static_cast<size_t>(p / kKvBlockSize)];
        slots.push_back(static_cast<int32_t>(block_id * kKvBlockSize + p % kKvBlockSize));
      }
      seq_rows.push_back(static_cast<int32_t>(num_rows - 1 - chunk.seq_idx));
      cu_seqlens.push_back(static_cast<int32_t>(token_ids.size()));
      seq_lens.push_back(static_cast<int32_t>(chunk.end));
      batch.max_query_len = std::max(batch.max_query_len, static_cast<int>(chunk.end - chunk.begin));
      batch.max_seq_len = std::max(batch.max_seq_len, static_cast<int>(chunk.end));
    }
    batch.inputs.token_ids = upload("token_ids", token_ids);
    batch.inputs.positions = upload("positions", positions);
    batch.inputs.slot_mapping = upload("slot_mapping", slots);
    batch.inputs.seq_rows = upload("seq_rows", seq_rows);
    batch.inputs.cu_seqlens_q = upload("cu_seqlens_q", cu_seqlens);
    batch.inputs.seq_lens = upload("seq_lens", seq_lens);
    batch.block_table = upload("block_table", block_table).reshaped({static_cast<int64_t>(num_rows), max_blocks_});
    return batch;
  }

  void keep_hidden(int64_t layer_idx, const Tensor& hidden_states) {
    const int64_t layers_of_places[kNumPlaces] = {-1, 0, golden_.mid_layer, golden_.config.num_layers - 1};
    for (size_t place = 0; place < kNumPlaces; ++place) {
      if (layers_of_places[place] != layer_idx) continue;
      scatter(0, hidden_states, [place](GoldenOutput& output) -> HostTensor& { return output.hidden[place]; });
    }
  }

  // Rows of the step from `first_row` on go to the places of their tokens.
  template <typename Select>
  void scatter(int64_t first_row, const Tensor& rows, Select select) {
    const int64_t width = rows.dim(1), stride_bytes = rows.stride(0) * dtype_bytes(rows.dtype());
    HostTensor host(rows.dtype(), {rows.dim(0), width});
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      device_->copy_to_host(*stream_, host.view().rows(i, i + 1).raw(),
                            static_cast<char*>(rows.raw()) + i * stride_bytes,
                            static_cast<size_t>(width * dtype_bytes(rows.dtype())));
    }
    device_->synchronize(*stream_);
    int64_t row = -first_row;
    for (const Chunk& chunk : *step_) {
      for (int64_t p = chunk.begin; p < chunk.end; ++p, ++row) {
        if (row < 0 || row >= rows.dim(0)) continue;
        const Tensor out = select(outputs_[chunk.seq_idx]).view().rows(p, p + 1);
        for (int64_t c = 0; c < width; ++c)
          out.data<float>()[c] = static_cast<float>(element_at(host, row * width + c));
      }
    }
  }

  const Golden& golden_;
  const GoldenRun& run_;
  const Communicators& communicators_;
  std::unique_ptr<Device> device_;  // outlives all below
  std::unique_ptr<Stream> stream_;
  BoundOps bound_;
  std::unique_ptr<Model> model_;
  int64_t max_tokens_ = 0, max_blocks_ = 0;
  std::vector<std::vector<int32_t>> blocks_;  // of each sequence
  KvStorage kv_;
  std::map<std::string, Buffer> index_buffers_;
  const Step* step_ = nullptr;
  std::vector<GoldenOutput> outputs_;
};

HostTensor select_rows(const Tensor& all, const std::vector<int64_t>& row_ids) {
  HostTensor rows(DType::kF32, {static_cast<int64_t>(row_ids.size()), all.dim(1)});
  for (size_t i = 0; i < row_ids.size(); ++i) {
    std::copy_n(all.rows(row_ids[i], row_ids[i] + 1).data<float>(), all.dim(1),
                rows.span<float>().data() + static_cast<int64_t>(i) * all.dim(1));
  }
  return rows;
}

GoldenResult compare(const Golden& golden, const GoldenRun& run, const std::vector<GoldenOutput>& outputs) {
  const auto tolerance_of = [&](double bf16_error) {
    if (golden.float_tolerance) {
      const bool on_codes = run.integer_weights && run.activations != ActivationDType::kModel;
      return on_codes ? *golden.integer_tolerance : *golden.float_tolerance;
    }
    return run.act_dtype == DType::kF32 ? kF32Tolerance : kBf16Slack * bf16_error;
  };
  GoldenResult result;
  const auto check = [&](const std::string& name, const Tensor& actual, const Tensor& expected, double tolerance,
                         double& worst) {
    const double error = relative_l2(actual, expected);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    if (!(error <= tolerance))
      result.failures.push_back(fmt::format("{}: relative L2 {:.3g}, at most {:.3g}", name, error, tolerance));
  };
  for (size_t i = 0; i < golden.sequences.size(); ++i) {
    const GoldenSequence& sequence = golden.sequences[i];
    for (size_t place = 0; place < kNumPlaces; ++place) {
      check(fmt::format("seq{} hidden.{}", i, kPlaces[place]), outputs[i].hidden[place], sequence.hidden[place],
            tolerance_of(golden.bf16_hidden_error), result.hidden_error);
    }
    check(fmt::format("seq{} logits", i), select_rows(outputs[i].logits, sequence.logit_rows), sequence.logits,
          tolerance_of(golden.bf16_logits_error), result.logits_error);
  }
  return result;
}

}  // namespace

std::string_view golden_schedule_name(GoldenSchedule schedule) {
  switch (schedule) {
    case GoldenSchedule::kOneByOne:
      return "one-by-one";
    case GoldenSchedule::kBatched:
      return "batched";
    case GoldenSchedule::kChunked:
      return "chunked";
  }
  return "?";
}

std::filesystem::path golden_model_path(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path model = folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") model = std::max(model, entry.path());
  }
  return model;
}

std::vector<std::filesystem::path> golden_folders(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    if (std::filesystem::exists(entry.path() / "goldens.safetensors")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

Result<GoldenResult> run_golden(const std::filesystem::path& folder, DeviceFactory factory, const DeviceOptions& device,
                                const GoldenRun& run) {
  ASSIGN_OR_RETURN(const Golden golden, read_golden(folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> weights, open_weights(golden_model_path(folder)));
  const std::vector<Step> steps = make_schedule(golden.sequences, run.schedule);
  const int size = run.tensor_parallel_size;
  ASSIGN_OR_RETURN(const std::vector<Communicators> communicators,
                   make_communicators(make_in_process_group, {.tp = size}, kTimeLimitS));

  std::vector<std::unique_ptr<GoldenRank>> ranks(static_cast<size_t>(size));
  std::vector<Status> statuses(static_cast<size_t>(size));
  std::atomic<bool> all_ok = true;
  std::barrier ready(size);
  const auto run_rank = [&](size_t r) {
    ranks[r] = std::make_unique<GoldenRank>(golden, run, communicators[r]);
    statuses[r] = ranks[r]->create(factory, device, *weights);
    if (!statuses[r].ok()) all_ok = false;
    ready.arrive_and_wait();  // a rank that failed would leave the others waiting in a collective
    if (!all_ok) return;
    for (const Step& step : steps) ranks[r]->run_step(step);
    statuses[r] = communicators[r].error();
  };
  std::vector<std::thread> threads;
  for (size_t r = 1; r < ranks.size(); ++r) threads.emplace_back(run_rank, r);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) RETURN_IF_ERROR(status);
  return compare(golden, run, ranks[0]->outputs());
}

}  // namespace spate
