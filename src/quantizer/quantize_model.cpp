#include "quantizer/quantize_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "model/model.h"
#include "quant/quantize.h"
#include "quantizer/awq.h"
#include "quantizer/gptq.h"
#include "quantizer/layer_runner.h"
#include "quantizer/output_directory.h"
#include "quantizer/packed_layout.h"
#include "quantizer/safetensors_writer.h"
#include "weights/file_text.h"
#include "weights/open_weights.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBatchTokens = 2048;
constexpr int64_t kMaxSamples = 1024;     // inputs of each matrix that searches and reports use
constexpr int64_t kCopyBytes = 64 << 20;  // of a tensor that stays as it is, at once
constexpr int64_t kMaxConfigBytes = 16 << 20;

std::string module_of(const std::string& weight_name) { return weight_name.substr(0, weight_name.rfind('.')); }

double relative(double squared_error, double squared) { return squared > 0 ? std::sqrt(squared_error / squared) : 0; }

// What copy_tensor() writes of a tensor: 8-bit floats as BF16, all others as they are.
PlannedTensor plan_copy(const TensorEntry& entry) {
  if (entry.dtype != DType::kBf16) {
    return {entry.name, entry.dtype_name, entry.shape, static_cast<int64_t>(entry.num_bytes)};
  }
  return {entry.name, "BF16", entry.shape, entry.num_elements() * dtype_bytes(DType::kBf16)};
}

// What the experts of a layer are given for all calibration tokens.
struct ExpertInputs {
  std::vector<HostTensor> x;           // of each batch: [num_tokens, hidden_size] f32
  std::vector<HostTensor> expert_ids;  // [num_tokens, num_experts_per_tok] i32

  // Rows of the tokens that are sent to it, [n, hidden_size].
  HostTensor of_expert(int64_t expert, int64_t hidden_size) const {
    std::vector<const float*> rows;
    for (size_t b = 0; b < x.size(); ++b) {
      const Tensor& ids = expert_ids[b];
      for (int64_t t = 0; t < ids.dim(0); ++t) {
        const int32_t* chosen = ids.data<int32_t>() + t * ids.dim(1);
        if (std::find(chosen, chosen + ids.dim(1), static_cast<int32_t>(expert)) == chosen + ids.dim(1)) continue;
        rows.push_back(x[b].view().data<float>() + t * hidden_size);
      }
    }
    HostTensor gathered(DType::kF32, {static_cast<int64_t>(rows.size()), hidden_size});
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(rows[i], hidden_size, gathered.view().data<float>() + static_cast<int64_t>(i) * hidden_size);
    }
    return gathered;
  }
};

// Everything of a run; lives on the stack of quantize_model().
class Run {
 public:
  Run(const fs::path& model_dir, Device& device, const QuantizeOptions& options,
      const std::function<void(double)>& progress, const std::function<bool()>& stop)
      : model_dir_(model_dir), device_(device), options_(options), progress_(progress), stop_(stop), math_(device) {}

  Result<QuantizeReport> into(OutputDirectory& out) {
    RETURN_IF_ERROR(open());
    RETURN_IF_ERROR(create_writer(out.path()));
    RETURN_IF_ERROR(copy_files(out.path()));
    RETURN_IF_ERROR(write_outside_layers());
    RETURN_IF_ERROR(embed_calibration());
    for (int64_t layer_idx = 0; layer_idx < config_.num_layers; ++layer_idx) {
      RETURN_IF_ERROR(run_layer(layer_idx).with_context(fmt::format("layer {}", layer_idx)));
    }
    RETURN_IF_ERROR(writer_->finish());
    RETURN_IF_ERROR(check_stop());
    RETURN_IF_ERROR(out.commit());
    if (progress_) progress_(1.0);
    return std::move(report_);
  }

 private:
  Status open();
  Status check_experts() const;
  Status create_writer(const fs::path& dir);
  Status copy_files(const fs::path& dir);
  Status write_outside_layers();
  Status embed_calibration();
  Status run_layer(int64_t layer_idx);
  Result<LayerTensors> read_layer(const LayerSource& source) const;
  Result<std::vector<InputStatistics>> observe(const LayerSource& source, ExpertInputs& expert_inputs);
  InputStatistics statistics_for(int64_t num_tokens) const;
  Status fold(const LayerSource& source, const std::vector<Product>& products, LayerTensors& layer,
              std::vector<InputStatistics>& statistics);
  Status quantize_products(const std::vector<Product>& products, LayerTensors& layer,
                           const std::vector<InputStatistics>& statistics, int64_t num_expert_tokens);
  Status quantize_expert(LayerSource& source, const std::vector<Product>& products, const ExpertInputs& inputs);
  Result<CodedMatrix> quantize(const Product::Matrix& matrix, const Tensor& w, const InputStatistics& input,
                               const GptqFactor* factor) const;
  Status report(const std::string& name, const Tensor& w, const Tensor& decoded, const InputStatistics& input,
                int64_t num_expert_tokens = -1);
  Status copy_tensor(const TensorEntry& entry);
  Status write_vector(const std::string& name, const TensorEntry& entry, const Tensor& values);
  Status check_stop() const {
    return stop_ && stop_() ? cancelled("quantize: interrupted; nothing is kept") : ok_status();
  }

  // "model.layers.3.mlp.experts.7.up_proj.weight"
  static bool is_expert(std::string_view name) { return name.find(".experts.") != std::string_view::npos; }
  bool is_linear(const std::string& name) const { return linear_names_.contains(name); }
  bool is_vocabulary(const std::string& name) const;  // to be quantised
  bool is_in_layer(const std::string& name) const;
  const ModelOutline::Layer& layer_of(const LayerSource& source) const {
    return outline_.layers[static_cast<size_t>(source.layer_idx())];
  }
  int64_t num_calibration_tokens() const {
    int64_t n = 0;
    for (const HiddenBatch& batch : batches_) n += batch.hidden_states.view().dim(0);
    return n;
  }

  const fs::path model_dir_;
  Device& device_;
  const QuantizeOptions& options_;
  const std::function<void(double)>& progress_;
  const std::function<bool()>& stop_;
  DeviceMath math_;

  ModelConfig config_;
  ModelOutline outline_;
  std::set<std::string> linear_names_;  // of the weights of all products
  CodeFormat format_, vocabulary_format_;
  std::unique_ptr<WeightSource> checkpoint_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::vector<HiddenBatch> batches_;
  QuantizeReport report_;
};

Status Run::open() {
  ASSIGN_OR_RETURN(config_, load_model_config(model_dir_));
  ASSIGN_OR_RETURN(outline_, Model::outline(config_));
  for (const ModelOutline::Layer& layer : outline_.layers) {
    for (const Product& product : layer.products) {
      for (const Product::Matrix& matrix : product.matrices) linear_names_.insert(matrix.name + ".weight");
    }
  }
  ASSIGN_OR_RETURN(checkpoint_, open_weights(model_dir_));
  RETURN_IF_ERROR(check_experts());
  // 8-bit floats are floats.
  const std::vector<TensorEntry>& entries = checkpoint_->entries();
  const bool has_codes =
      std::any_of(entries.begin(), entries.end(), [](const TensorEntry& e) { return !!e.quantized; });
  if (has_codes || checkpoint_->layout() == "gguf") {
    return invalid_argument("{} is quantised already ({}); quantise the model of floats that it was made from",
                            model_dir_.string(), checkpoint_->layout());
  }
  RETURN_IF_ERROR(Model::verify(config_, *checkpoint_));
  format_ = {.spec = options_.spec, .scale_dtype = config_.torch_dtype == DType::kBf16 ? DType::kBf16 : DType::kF16};
  vocabulary_format_ = {.spec = integer_spec(Codes::kInt8), .scale_dtype = format_.scale_dtype};
  return ok_status();
}

Status Run::check_experts() const {
  for (const TensorEntry& entry : checkpoint_->entries()) {
    if (is_expert(entry.name) && entry.shape.size() == 3 && is_in_layer(entry.name)) {
      return unimplemented("{} holds all experts of its layer; quantize needs a tensor for each expert", entry.name);
    }
  }
  return ok_status();
}

bool Run::is_vocabulary(const std::string& name) const {
  return options_.quantize_vocabulary &&
         (name == outline_.embed_tokens + ".weight" || name == outline_.lm_head + ".weight");
}

bool Run::is_in_layer(const std::string& name) const {
  return std::any_of(outline_.layers.begin(), outline_.layers.end(),
                     [&](const ModelOutline::Layer& layer) { return name.starts_with(layer.name + "."); });
}

Status Run::create_writer(const fs::path& dir) {
  std::vector<PlannedTensor> planned;
  PackedGroup linear{.format = format_, .targets = {"Linear"}, .act_order = options_.act_order};
  PackedGroup vocabulary{.format = vocabulary_format_};
  for (const TensorEntry& entry : checkpoint_->entries()) {
    report_.bytes_before += static_cast<int64_t>(entry.num_bytes);
    if (!is_linear(entry.name) && !is_vocabulary(entry.name)) {
      planned.push_back(plan_copy(entry));
      continue;
    }
    const bool in_layer = is_linear(entry.name);
    if (!in_layer) vocabulary.targets.push_back(module_of(entry.name));
    for (PlannedTensor& tensor : plan_packed_matrix(module_of(entry.name), in_layer ? format_ : vocabulary_format_,
                                                    entry.shape[0], entry.shape[1])) {
      planned.push_back(std::move(tensor));
    }
  }
  for (const PlannedTensor& tensor : planned) report_.bytes_after += tensor.num_bytes;
  ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(dir, std::move(planned)));
  writer_ = std::make_unique<SafetensorsWriter>(std::move(writer));

  ASSIGN_OR_RETURN(const std::string config_json, read_text_file(model_dir_ / "config.json", kMaxConfigBytes));
  std::vector<PackedGroup> groups = {std::move(linear)};
  // Readers take every matrix but the embedding table for codes. Here are those that stay floats: routers, kv_b_proj of
  // latent attention, and layers for multi-token prediction.
  std::vector<std::string> ignore;
  for (const TensorEntry& entry : checkpoint_->entries()) {
    const std::string module = module_of(entry.name);
    const bool is_matrix = entry.shape.size() == 2 && entry.name.ends_with(".weight");
    if (is_matrix && !is_linear(entry.name) && module != outline_.embed_tokens && module != outline_.lm_head) {
      ignore.push_back(module);
    }
  }
  if (vocabulary.targets.empty()) {
    ignore.push_back(outline_.lm_head);
  } else {
    groups.push_back(std::move(vocabulary));
  }
  ASSIGN_OR_RETURN(const std::string text, with_quantization_config(config_json, groups, ignore));
  std::ofstream out(dir / "config.json");
  out << text;
  return out.flush() ? ok_status() : resource_exhausted("{}: cannot be written", (dir / "config.json").string());
}

// Everything but weights and what describes them: tokenizer, template, generation_config.json, eval/, licences.
Status Run::copy_files(const fs::path& dir) {
  static const std::set<std::string> kLeftOut = {".safetensors", ".bin", ".pt",      ".pth",
                                                 ".gguf",        ".h5",  ".msgpack", ".onnx"};
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(model_dir_, error)) {
    const std::string name = file.path().filename().string();
    const bool is_data = file.is_regular_file() || (file.is_directory() && name == "eval");
    if (!is_data || name.starts_with('.') || name == "config.json" || name == "README.md" ||
        name.ends_with(".index.json") || kLeftOut.contains(file.path().extension().string())) {
      continue;
    }
    fs::copy(file.path(), dir / name, fs::copy_options::recursive, error);
    if (error) return resource_exhausted("{}: cannot be copied: {}", file.path().string(), error.message());
  }
  return error ? resource_exhausted("{}: {}", model_dir_.string(), error.message()) : ok_status();
}

Status Run::copy_tensor(const TensorEntry& entry) {
  const int64_t num_rows = entry.shape.empty() ? 1 : entry.shape[0];
  if (entry.num_bytes == 0 || num_rows == 0) return ok_status();
  const int64_t row_bytes = plan_copy(entry).num_bytes / num_rows, piece = std::max<int64_t>(1, kCopyBytes / row_bytes);
  HostTensor scratch;
  for (int64_t row = 0; row < num_rows; row += piece) {
    const int64_t end = std::min(num_rows, row + piece);
    ASSIGN_OR_RETURN(const Tensor rows, checkpoint_->rows(entry, row, end, scratch));
    RETURN_IF_ERROR(writer_->write(entry.name, row * row_bytes, rows.raw(), rows.num_bytes()));
    checkpoint_->release(entry, row, end);
  }
  return ok_status();
}

Status Run::write_outside_layers() {
  for (const TensorEntry& entry : checkpoint_->entries()) {
    RETURN_IF_ERROR(check_stop());
    if (is_linear(entry.name)) continue;
    if (is_vocabulary(entry.name)) {
      HostTensor scratch;
      ASSIGN_OR_RETURN(const Tensor rows, checkpoint_->rows(entry, 0, entry.shape[0], scratch));
      HostTensor w(DType::kF32, {entry.shape[0], entry.shape[1]});
      for (int64_t i = 0; i < w.view().dim(0); ++i) row_to_float(rows, i, w.view().rows(i, i + 1).data<float>());
      RETURN_IF_ERROR(check_finite(w, entry.name));
      const CodedMatrix matrix = round_to_nearest(vocabulary_format_, w);
      RETURN_IF_ERROR(write_packed_matrix(*writer_, module_of(entry.name), matrix));
      RETURN_IF_ERROR(report(module_of(entry.name), w, decode(matrix), InputStatistics(0, 1, false)));
      checkpoint_->release(entry, 0, entry.shape[0]);
      continue;
    }
    // AWQ changes the vectors of a layer.
    const bool later = options_.method == QuantizeMethod::kAwq && is_in_layer(entry.name);
    if (!later) RETURN_IF_ERROR(copy_tensor(entry));
  }
  return ok_status();
}

// The sequences in batches, as the embedding table gives them.
Status Run::embed_calibration() {
  const TensorEntry& table = *checkpoint_->find(outline_.embed_tokens + ".weight");
  std::vector<std::vector<int32_t>> batch_ids;
  for (const std::vector<int32_t>& sequence : options_.calibration) {
    const int64_t len =
        std::min<int64_t>({static_cast<int64_t>(sequence.size()), kMaxCalibrationLen, config_.max_position_embeddings});
    if (len == 0) continue;
    if (batches_.empty() || static_cast<int64_t>(batch_ids.back().size()) + len > kBatchTokens ||
        static_cast<int64_t>(batches_.back().seq_lens.size()) == LayerRunner::kMaxSeqs) {
      batches_.emplace_back();
      batch_ids.emplace_back();
    }
    batches_.back().seq_lens.push_back(len);
    batch_ids.back().insert(batch_ids.back().end(), sequence.begin(), sequence.begin() + len);
  }
  for (size_t b = 0; b < batches_.size(); ++b) {
    HostTensor& hidden = batches_[b].hidden_states;
    hidden = HostTensor(DType::kF32, {static_cast<int64_t>(batch_ids[b].size()), config_.hidden_size});
    HostTensor scratch;
    for (size_t t = 0; t < batch_ids[b].size(); ++t) {
      const int64_t id = batch_ids[b][t];
      if (id < 0 || id >= config_.vocab_size)
        return invalid_argument("calibration token {} of {}", id, config_.vocab_size);
      ASSIGN_OR_RETURN(const Tensor row, checkpoint_->rows(table, id, id + 1, scratch));
      row_to_float(row, 0, hidden.view().data<float>() + static_cast<int64_t>(t) * config_.hidden_size);
    }
  }
  report_.num_calibration_tokens = num_calibration_tokens();
  if (options_.method != QuantizeMethod::kRtn && batches_.empty()) {
    return invalid_argument("awq and gptq need calibration tokens; there are none");
  }
  return ok_status();
}

Result<LayerTensors> Run::read_layer(const LayerSource& source) const {
  LayerTensors tensors;
  for (const TensorEntry& entry : source.entries()) {
    if (!entry.name.starts_with(layer_of(source).name + ".") || entry.name.ends_with("rotary_emb.inv_freq")) continue;
    if (is_expert(entry.name)) continue;  // run_layer() reads them one by one
    ASSIGN_OR_RETURN(tensors[entry.name], source.read(entry.name));
  }
  return tensors;
}

InputStatistics Run::statistics_for(int64_t num_tokens) const {
  return InputStatistics(num_tokens, kMaxSamples, options_.method == QuantizeMethod::kGptq);
}

Result<std::vector<InputStatistics>> Run::observe(const LayerSource& source, ExpertInputs& expert_inputs) {
  std::vector<InputStatistics> statistics;
  for (size_t i = 0; i < layer_of(source).products.size(); ++i)
    statistics.push_back(statistics_for(num_calibration_tokens()));
  if (batches_.empty()) return statistics;
  ASSIGN_OR_RETURN(const auto runner,
                   LayerRunner::create(device_, config_, source, kBatchTokens,
                                       std::min(kMaxCalibrationLen, config_.max_position_embeddings)));
  Status status;
  for (const HiddenBatch& batch : batches_) {
    RETURN_IF_ERROR(check_stop());
    runner->run(
        batch,
        [&](size_t product_idx, const Tensor& x) {
          if (status.ok()) status = statistics[product_idx].add(x, math_);
        },
        [&](HostTensor x, HostTensor expert_ids) {
          expert_inputs.x.push_back(std::move(x));
          expert_inputs.expert_ids.push_back(std::move(expert_ids));
        });
    RETURN_IF_ERROR(status);
  }
  return statistics;
}

Result<CodedMatrix> Run::quantize(const Product::Matrix& matrix, const Tensor& w, const InputStatistics& input,
                                  const GptqFactor* factor) const {
  RETURN_IF_ERROR(check_finite(w, matrix.name + ".weight"));
  if (factor != nullptr) return factor->quantize(format_, w);
  // Clipping is chosen by the loss of one matrix, which does not show what it does to scores. An expert that saw no
  // token has no inputs.
  if (options_.method == QuantizeMethod::kRtn || matrix.feeds_scores || input.in_features() == 0) {
    return round_to_nearest(format_, w);
  }
  return round_clipped(format_, w, input.samples(), options_.num_threads);
}

Status Run::report(const std::string& name, const Tensor& w, const Tensor& decoded, const InputStatistics& input,
                   int64_t num_expert_tokens) {
  MatrixReport one{.name = name, .num_rows = w.dim(0), .in_features = w.dim(1), .num_expert_tokens = num_expert_tokens};
  HostTensor difference(DType::kF32, {w.dim(0), w.dim(1)});
  double squared = 0, squared_error = 0;
  for (int64_t i = 0; i < w.num_elements(); ++i) {
    const float value = w.data<float>()[i], error = decoded.data<float>()[i] - value;
    difference.span<float>()[static_cast<size_t>(i)] = error;
    squared += double{value} * value;
    squared_error += double{error} * error;
  }
  one.weight_error = relative(squared_error, squared);
  if (input.in_features() > 0) {
    const HostTensor samples = input.samples();
    ASSIGN_OR_RETURN(const double output_error, math_.squared_output(samples, difference));
    ASSIGN_OR_RETURN(const double output, math_.squared_output(samples, w));
    one.output_error = relative(output_error, output);
  }
  report_.matrices.push_back(std::move(one));
  return ok_status();
}

Status Run::write_vector(const std::string& name, const TensorEntry& entry, const Tensor& values) {
  const int64_t n = values.num_elements();
  if (entry.dtype == DType::kF32) return writer_->write(name, 0, values.raw(), n * 4);
  std::vector<uint16_t> rounded;
  for (int64_t i = 0; i < n; ++i) {
    const float value = values.data<float>()[i];
    rounded.push_back(entry.dtype == DType::kBf16 ? Bf16::from_float(value).bits : F16::from_float(value).bits);
  }
  return writer_->write(name, 0, rounded.data(), n * 2);
}

Status Run::fold(const LayerSource& source, const std::vector<Product>& products, LayerTensors& layer,
                 std::vector<InputStatistics>& statistics) {
  const auto norm = std::find_if(products.begin(), products.end(), [](const Product& p) { return p.source_is_norm; });
  const DType norm_dtype = norm == products.end() ? config_.torch_dtype
                                                  : source.find(norm->source + ".weight")->dtype.value_or(DType::kBf16);
  return fold_awq_scales(format_, products, norm_dtype, layer, statistics, math_);
}

// The matrices in `layer` become what they are as codes.
Status Run::quantize_products(const std::vector<Product>& products, LayerTensors& layer,
                              const std::vector<InputStatistics>& statistics, int64_t num_expert_tokens) {
  for (size_t i = 0; i < products.size(); ++i) {
    std::unique_ptr<GptqFactor> factor;
    if (options_.method == QuantizeMethod::kGptq && statistics[i].in_features() > 0) {
      ASSIGN_OR_RETURN(GptqFactor made,
                       GptqFactor::create(statistics[i].moments(),
                                          {.act_order = options_.act_order, .num_threads = options_.num_threads}));
      factor = std::make_unique<GptqFactor>(std::move(made));
    }
    for (const Product::Matrix& matrix : products[i].matrices) {
      RETURN_IF_ERROR(check_stop());
      HostTensor& w = layer.at(matrix.name + ".weight");
      ASSIGN_OR_RETURN(const CodedMatrix coded, quantize(matrix, w, statistics[i], factor.get()));
      RETURN_IF_ERROR(write_packed_matrix(*writer_, matrix.name, coded));
      HostTensor decoded = decode(coded);
      RETURN_IF_ERROR(report(matrix.name, w, decoded, statistics[i], num_expert_tokens));
      w = std::move(decoded);
    }
  }
  return ok_status();
}

// Gate and up, which read the same rows, and down. Read, quantised and forgotten, unless a later layer is calibrated on
// what they give.
Status Run::quantize_expert(LayerSource& source, const std::vector<Product>& products, const ExpertInputs& inputs) {
  LayerTensors tensors;
  for (const Product& product : products) {
    for (const Product::Matrix& matrix : product.matrices) {
      ASSIGN_OR_RETURN(tensors[matrix.name + ".weight"], source.read(matrix.name + ".weight"));
    }
  }
  const HostTensor x = inputs.of_expert(products[0].expert, config_.hidden_size);
  const int64_t n = x.view().dim(0);
  std::vector<InputStatistics> statistics;
  for (int i = 0; i < 2; ++i) statistics.push_back(statistics_for(n));
  if (n > 0) {
    const auto output = [&](size_t i) {
      return math_.product(x, tensors.at(products[0].matrices[i].name + ".weight").view());
    };
    ASSIGN_OR_RETURN(HostTensor activations, output(0));
    ASSIGN_OR_RETURN(const HostTensor up, output(1));
    const auto values = activations.span<float>();
    for (size_t i = 0; i < values.size(); ++i) values[i] *= up.span<float>()[i] / (1 + std::exp(-values[i]));
    RETURN_IF_ERROR(statistics[0].add(x, math_));
    RETURN_IF_ERROR(statistics[1].add(activations, math_));
    if (options_.method == QuantizeMethod::kAwq) RETURN_IF_ERROR(fold(source, products, tensors, statistics));
  }
  RETURN_IF_ERROR(quantize_products(products, tensors, statistics, batches_.empty() ? -1 : n));
  if (batches_.empty()) return ok_status();
  for (auto& [name, values] : tensors) source.replace(name, std::move(values));
  return ok_status();
}

Status Run::run_layer(int64_t layer_idx) {
  const double share = 1.0 / static_cast<double>(config_.num_layers);
  const auto advance = [&](double of_layer) {
    if (progress_) progress_(share * (static_cast<double>(layer_idx) + of_layer) * 0.999);
  };
  LayerSource source(*checkpoint_, outline_, layer_idx, config_.hidden_size);
  const std::vector<Product>& all = layer_of(source).products;
  const auto experts = std::find_if(all.begin(), all.end(), [](const Product& p) { return p.expert >= 0; });
  const std::vector<Product> products(all.begin(), experts);
  ASSIGN_OR_RETURN(LayerTensors layer, read_layer(source));
  ExpertInputs expert_inputs;
  ASSIGN_OR_RETURN(std::vector<InputStatistics> statistics, observe(source, expert_inputs));
  statistics.erase(statistics.begin() + std::ssize(products), statistics.end());
  advance(0.4);
  if (options_.method == QuantizeMethod::kAwq) {
    RETURN_IF_ERROR(fold(source, products, layer, statistics));
    for (auto& [name, values] : layer) {
      if (!is_linear(name)) RETURN_IF_ERROR(write_vector(name, *source.find(name), values));
    }
  }
  RETURN_IF_ERROR(quantize_products(products, layer, statistics, -1));
  for (auto expert = experts; expert != all.end(); expert += 2) {
    RETURN_IF_ERROR(quantize_expert(source, {expert[0], expert[1]}, expert_inputs));
  }
  advance(0.8);
  if (layer_idx + 1 == config_.num_layers || batches_.empty()) return ok_status();
  for (auto& [name, values] : layer) source.replace(name, std::move(values));
  ASSIGN_OR_RETURN(const auto runner,
                   LayerRunner::create(device_, config_, source, kBatchTokens,
                                       std::min(kMaxCalibrationLen, config_.max_position_embeddings)));
  for (HiddenBatch& batch : batches_) batch.hidden_states = runner->run(batch);
  advance(1.0);
  return ok_status();
}

}  // namespace

Result<QuantizeReport> quantize_model(const fs::path& model_dir, const fs::path& out_dir, Device& device,
                                      const QuantizeOptions& options, const std::function<void(double)>& progress,
                                      const std::function<bool()>& stop) {
  if (!options.spec.has_integer_codes())
    return invalid_argument("quantize to {}: needs int8 or int4", weight_spec_name(options.spec));
  ASSIGN_OR_RETURN(OutputDirectory out, OutputDirectory::create(out_dir));
  return Run(model_dir, device, options, progress, stop).into(out);
}

}  // namespace spate
