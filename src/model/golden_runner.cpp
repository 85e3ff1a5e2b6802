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
constexpr int kMaxNumLogits = 13;    // below a prompt's length, so that logits come in several pieces
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
  // With a layer for multi-token prediction:
  int32_t next_token = -1;  // behind the last one
  HostTensor mtp_hidden;    // [n, hidden_size] f32
  HostTensor mtp_logits;    // [logit_rows, vocab_size] f32
  HostTensor chain_logits;  // [1, vocab_size] f32, of a second draft at the last token
  // With a second one:
  int32_t second_token = -1;                // behind next_token
  HostTensor second_hidden, second_logits;  // as of the first

  bool has_mtp() const { return next_token >= 0; }
  int num_mtp_layers() const { return second_token >= 0 ? 2 : has_mtp() ? 1 : 0; }
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
  if (file.find(name + ".mtp.next_token") == nullptr) return sequence;
  ASSIGN_OR_RETURN(const HostTensor next_token, read_tensor(file, name + ".mtp.next_token"));
  sequence.next_token = static_cast<int32_t>(next_token.span<float>()[0]);
  ASSIGN_OR_RETURN(sequence.mtp_hidden, read_tensor(file, name + ".mtp.hidden"));
  ASSIGN_OR_RETURN(sequence.mtp_logits, read_tensor(file, name + ".mtp.logits"));
  ASSIGN_OR_RETURN(sequence.chain_logits, read_tensor(file, name + ".mtp.chain_logits"));
  if (file.find(name + ".mtp.second_token") == nullptr) return sequence;
  ASSIGN_OR_RETURN(const HostTensor second_token, read_tensor(file, name + ".mtp.second_token"));
  sequence.second_token = static_cast<int32_t>(second_token.span<float>()[0]);
  ASSIGN_OR_RETURN(sequence.second_hidden, read_tensor(file, name + ".mtp.second_hidden"));
  ASSIGN_OR_RETURN(sequence.second_logits, read_tensor(file, name + ".mtp.second_logits"));
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
  HostTensor hidden[kNumPlaces];                    // [n, hidden_size]
  HostTensor logits;                                // [n, vocab_size]
  HostTensor mtp_hidden, mtp_logits, chain_logits;  // with a layer for multi-token prediction
  HostTensor second_hidden, second_logits;          // with two
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
    RETURN_IF_ERROR(device_->prepare({.is_everything = true}));
    stream_ = device_->create_stream();
    bound_ = bind_ops(device_->ops());
    for (const GoldenSequence& sequence : golden_.sequences) {
      const int64_t n = static_cast<int64_t>(sequence.token_ids.size());
      max_tokens_ += n;
      GoldenOutput& output = outputs_.emplace_back();
      for (HostTensor& hidden : output.hidden) hidden = nan_tensor(n, golden_.config.hidden_size);
      output.logits = nan_tensor(n, golden_.config.vocab_size);
      output.mtp_hidden = nan_tensor(n, golden_.config.hidden_size);
      output.mtp_logits = nan_tensor(n, golden_.config.vocab_size);
      output.chain_logits = nan_tensor(n, golden_.config.vocab_size);
      output.second_hidden = nan_tensor(n, golden_.config.hidden_size);
      output.second_logits = nan_tensor(n, golden_.config.vocab_size);
    }
    const auto runs = [this](const WeightSpec& spec) {
      return !spec.has_integer_codes() || (run_.integer_weights && device_->supports(spec));
    };
    Quantization quantization = run_.quantization;
    quantization.activations = run_.activations;
    const ModelOptions options{.act_dtype = run_.act_dtype,
                               .kv_dtype = run_.act_dtype,
                               .quantization = quantization,
                               .source = &weights,
                               .supports_weight = runs,
                               .limits = {.max_model_len = static_cast<int>(golden_.max_model_len),
                                          .max_num_batched_tokens = static_cast<int>(max_tokens_),
                                          .max_num_logits = kMaxNumLogits,
                                          .kv_block_size = kKvBlockSize},
                               .num_mtp_layers = num_mtp_layers(),
                               .min_expanded_query_len = min_expanded_query_len()};
    const TensorParallel tp{.rank = communicators_.tp->rank(), .size = communicators_.tp->size()};
    ASSIGN_OR_RETURN(model_, Model::create(golden_.config, *device_, tp, options));
    RETURN_IF_ERROR(model_->load(weights));
    model_->set_tap([this](const StepContext&, int64_t layer_idx, const Tensor& hidden_states) {
      keep_hidden(layer_idx, hidden_states);
    });
    return create_kv_cache();
  }

  int num_mtp_layers() const { return golden_.sequences[0].num_mtp_layers(); }
  bool has_mtp() const { return num_mtp_layers() > 0; }
  // Goldens of latent attention run both forms where the device does.
  int min_expanded_query_len() const {
    if (golden_.config.latent.kv_lora_rank == 0) return 0;
    return device_->min_expanded_query_len(latent_shape(golden_.config, run_.act_dtype));
  }

  void run_step(const Step& step) {
    step_ = &step;
    const StepBatch batch = upload_batch(step);
    const StepContext ctx = context(batch);
    const Tensor hidden_states = model_->forward(ctx);
    const auto compute = [&](const Tensor& row_ids) { return model_->compute_logits(ctx, hidden_states, row_ids); };
    scatter_logits(batch.num_tokens(), compute, &GoldenOutput::logits);
    if (has_mtp()) {
      const Tensor first = run_mtp(hidden_states, -1, &GoldenOutput::mtp_hidden, &GoldenOutput::mtp_logits);
      if (num_mtp_layers() > 1) {
        run_mtp(upload_batch(step, 2), {.hidden_states = first, .mtp_idx = 1, .source_idx = 0},
                &GoldenOutput::second_hidden, &GoldenOutput::second_logits);
      }
    }
    device_->synchronize(*stream_);
  }

  // A second draft at the last token of each sequence, on the layer's own output of the token before. Then all tokens
  // once more, of which the last one's output alone is wanted: it takes the place of the first.
  void run_chains() {
    model_->set_tap({});
    for (size_t i = 0; i < golden_.sequences.size(); ++i) {
      const int64_t n = static_cast<int64_t>(golden_.sequences[i].token_ids.size());
      const Tensor known = outputs_[i].hidden[kNumPlaces - 1];
      const Step all{{i, 0, n}}, before_last{{i, n - 2, n - 1}}, last{{i, n - 1, n}};
      step_ = &before_last;
      const Tensor drafted =
          run_mtp(upload_hidden(known.rows(n - 2, n - 1)), -1, &GoldenOutput::mtp_hidden, &GoldenOutput::mtp_logits);
      step_ = &last;
      run_mtp(drafted, 0, nullptr, &GoldenOutput::chain_logits);

      StepBatch batch = upload_batch(all, 1);
      batch.output_rows = upload("output_rows", {static_cast<int32_t>(n - 1)});
      batch.outputs_all_seqs = true;
      batch.arange = upload("arange", {0, 1});
      run_mtp(batch, {.hidden_states = upload_hidden(known)}, &GoldenOutput::mtp_hidden, &GoldenOutput::mtp_logits);
      device_->synchronize(*stream_);
    }
  }

  const std::vector<GoldenOutput>& outputs() const { return outputs_; }

 private:
  StepContext context(const StepBatch& batch) const { return context(batch, kv_); }
  StepContext context(const StepBatch& batch, const KvStorage& kv) const {
    return {.stream = *stream_, .ops = bound_.ops, .communicators = communicators_, .batch = batch, .kv = kv.views()};
  }

  // Logits of all rows of the step, in pieces.
  template <typename Compute>
  void scatter_logits(int64_t num_rows, const Compute& compute, HostTensor GoldenOutput::*out) {
    std::vector<int32_t> row_ids(static_cast<size_t>(num_rows));
    for (size_t i = 0; i < row_ids.size(); ++i) row_ids[i] = static_cast<int32_t>(i);
    const Tensor rows = upload("row_ids", row_ids);
    for (int64_t begin = 0; begin < num_rows; begin += kMaxNumLogits) {
      const Tensor logits = compute(rows.rows(begin, std::min(num_rows, begin + kMaxNumLogits)));
      if (logits.defined()) scatter(begin, logits, [out](GoldenOutput& output) -> HostTensor& { return output.*out; });
    }
  }

  // The layer for multi-token prediction on the tokens of the step.
  Tensor run_mtp(const Tensor& hidden_states, int64_t source_idx, HostTensor GoldenOutput::*hidden,
                 HostTensor GoldenOutput::*logits) {
    return run_mtp(upload_batch(*step_, 1), {.hidden_states = hidden_states, .source_idx = source_idx}, hidden, logits);
  }
  // Its outputs are those of the step's tokens; `hidden` may be null.
  Tensor run_mtp(const StepBatch& batch, const MtpRun& run, HostTensor GoldenOutput::*hidden,
                 HostTensor GoldenOutput::*logits) {
    const StepContext ctx = context(batch, mtp_kv_);
    const Tensor out = model_->mtp_forward(ctx, run);
    const auto compute = [&](const Tensor& row_ids) {
      return model_->compute_mtp_logits(ctx, run.mtp_idx, out, row_ids);
    };
    scatter_logits(out.dim(0), compute, logits);
    if (hidden != nullptr) {
      scatter(0, out, [hidden](GoldenOutput& output) -> HostTensor& { return output.*hidden; });
    }
    return out;
  }

  // Rows of f32 in the activations' dtype, of which they hold values.
  Tensor upload_hidden(const Tensor& rows) {
    HostTensor host(run_.act_dtype, {rows.dim(0), rows.dim(1)});
    for (int64_t i = 0; i < rows.num_elements(); ++i) {
      if (run_.act_dtype == DType::kF32)
        host.span<float>()[static_cast<size_t>(i)] = rows.data<float>()[i];
      else
        host.span<Bf16>()[static_cast<size_t>(i)] = Bf16::from_float(rows.data<float>()[i]);
    }
    const size_t bytes = static_cast<size_t>(host.view().num_bytes());
    hidden_buffer_ = device_->allocate(bytes, MemoryKind::kDevice).value();
    device_->copy_to_device(*stream_, hidden_buffer_.data(), host.view().raw(), bytes);
    device_->synchronize(*stream_);
    return hidden_buffer_.tensor(run_.act_dtype, {rows.dim(0), rows.dim(1)});
  }

  // Of the sequence and what follows it.
  static int32_t token_at(const GoldenSequence& sequence, int64_t position) {
    const int64_t num_behind = position - static_cast<int64_t>(sequence.token_ids.size());
    if (num_behind < 0) return sequence.token_ids[static_cast<size_t>(position)];
    return num_behind == 0 ? sequence.next_token : sequence.second_token;
  }

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
    ASSIGN_OR_RETURN(mtp_kv_, KvStorage::create(*device_, model_->mtp_kv_layers(), num_blocks));
    for (const KvStorage* kv : {&kv_, &mtp_kv_}) {
      device_->fill_bytes(*stream_, kv->buffer().data(), 0xff, kv->buffer().bytes());
    }
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

  // Sequence i lives in row num_seqs - 1 - i of the state, so that row and place in the step differ. shift 1 or 2: the
  // ids are those of the tokens so far behind.
  StepBatch upload_batch(const Step& step, int64_t shift = 0) {
    const size_t num_rows = golden_.sequences.size();
    std::vector<int32_t> token_ids, positions, slots, seq_rows, cu_seqlens{0}, seq_lens;
    std::vector<SeqStep> seqs;
    std::vector<int32_t> block_table(num_rows * static_cast<size_t>(max_blocks_), -1);
    for (size_t i = 0; i < num_rows; ++i) {
      std::copy(blocks_[i].begin(), blocks_[i].end(),
                block_table.begin() + static_cast<int64_t>(num_rows - 1 - i) * max_blocks_);
    }
    StepBatch batch;
    for (const Chunk& chunk : step) {
      for (int64_t p = chunk.begin; p < chunk.end; ++p) {
        token_ids.push_back(token_at(golden_.sequences[chunk.seq_idx], p + shift));
        positions.push_back(static_cast<int32_t>(p));
        const int32_t block_id = blocks_[chunk.seq_idx][static_cast<size_t>(p / kKvBlockSize)];
        slots.push_back(static_cast<int32_t>(block_id * kKvBlockSize + p % kKvBlockSize));
      }
      seq_rows.push_back(static_cast<int32_t>(num_rows - 1 - chunk.seq_idx));
      cu_seqlens.push_back(static_cast<int32_t>(token_ids.size()));
      seq_lens.push_back(static_cast<int32_t>(chunk.end));
      seqs.push_back({.query_len = static_cast<int32_t>(chunk.end - chunk.begin),
                      .num_computed_tokens = static_cast<int32_t>(chunk.begin)});
      batch.max_query_len = std::max(batch.max_query_len, static_cast<int>(chunk.end - chunk.begin));
      batch.max_seq_len = std::max(batch.max_seq_len, static_cast<int>(chunk.end));
    }
    batch.long_prompts = long_prompts_of(seqs, min_expanded_query_len());
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
  KvStorage kv_, mtp_kv_;
  std::map<std::string, Buffer> index_buffers_;
  Buffer hidden_buffer_;
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
    if (!sequence.has_mtp()) continue;
    check(fmt::format("seq{} mtp.hidden", i), outputs[i].mtp_hidden, sequence.mtp_hidden,
          tolerance_of(golden.bf16_hidden_error), result.hidden_error);
    check(fmt::format("seq{} mtp.logits", i), select_rows(outputs[i].mtp_logits, sequence.logit_rows),
          sequence.mtp_logits, tolerance_of(golden.bf16_logits_error), result.logits_error);
    const int64_t last = static_cast<int64_t>(sequence.token_ids.size()) - 1;
    check(fmt::format("seq{} mtp.chain_logits", i), outputs[i].chain_logits.view().rows(last, last + 1),
          sequence.chain_logits, tolerance_of(golden.bf16_logits_error), result.logits_error);
    if (sequence.num_mtp_layers() < 2) continue;
    check(fmt::format("seq{} mtp.second_hidden", i), outputs[i].second_hidden, sequence.second_hidden,
          tolerance_of(golden.bf16_hidden_error), result.hidden_error);
    check(fmt::format("seq{} mtp.second_logits", i), select_rows(outputs[i].second_logits, sequence.logit_rows),
          sequence.second_logits, tolerance_of(golden.bf16_logits_error), result.logits_error);
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
    if (ranks[r]->has_mtp()) ranks[r]->run_chains();
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
