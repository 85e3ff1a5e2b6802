#include "quantizer/outlier_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "quantizer/output_directory.h"
#include "quantizer/safetensors_writer.h"
#include "weights/model_config.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kLmHead = "lm_head.weight";

std::vector<int64_t> distinct(Rng& rng, int64_t count, int64_t bound) {
  std::vector<int64_t> chosen;
  while (std::ssize(chosen) < std::min(count, bound)) {
    const auto one = static_cast<int64_t>(rng.below(static_cast<uint64_t>(bound)));
    if (std::find(chosen.begin(), chosen.end(), one) == chosen.end()) chosen.push_back(one);
  }
  return chosen;
}

// The tensors of a checkpoint in memory, to be scaled.
class BfTensors {
 public:
  static Result<BfTensors> read(const fs::path& dir) {
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(dir));
    BfTensors tensors;
    for (const TensorEntry& entry : checkpoint.entries()) {
      if (entry.dtype != DType::kBf16 || entry.shape.empty() || entry.shape.size() > 2) {
        return invalid_argument("{}: {} is {} of {}; only vectors and matrices of BF16 can get outliers", dir.string(),
                                entry.name, entry.dtype_name, entry.shape_string());
      }
      const std::string_view bytes = checkpoint.bytes(entry);
      One& one = tensors.add(entry.name, entry.shape);
      std::memcpy(one.values.data(), bytes.data(), bytes.size());
    }
    return tensors;
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  void copy(const std::string& from, const std::string& to) {
    const One one = tensors_.at(from);
    add(to, one.shape).values = one.values;
  }

  Status scale_rows(const std::string& name, const std::vector<int64_t>& rows, float factor) {
    return scale(name, rows, factor, true);
  }
  Status scale_columns(const std::string& name, const std::vector<int64_t>& columns, float factor) {
    return scale(name, columns, factor, false);
  }

  Status write(const fs::path& dir) const {
    std::vector<PlannedTensor> planned;
    for (const std::string& name : order_) {
      const One& one = tensors_.at(name);
      planned.push_back({name, "BF16", one.shape, static_cast<int64_t>(one.values.size() * sizeof(Bf16))});
    }
    ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(dir, planned));
    for (const PlannedTensor& tensor : planned) {
      RETURN_IF_ERROR(writer.write(tensor.name, 0, tensors_.at(tensor.name).values.data(), tensor.num_bytes));
    }
    return writer.finish();
  }

 private:
  struct One {
    std::vector<int64_t> shape;
    std::vector<Bf16> values;
  };

  One& add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    order_.push_back(name);
    return tensors_[name] = {shape, std::vector<Bf16>(static_cast<size_t>(count))};
  }
  // A vector has rows of one element.
  Status scale(const std::string& name, const std::vector<int64_t>& places, float factor, bool rows) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return invalid_argument("the model has no {}", name);
    One& one = found->second;
    const int64_t width = one.shape.size() == 2 ? one.shape[1] : 1;
    for (const int64_t place : places) {
      for (int64_t i = 0; i < (rows ? width : one.shape[0]); ++i) {
        Bf16& value = one.values[static_cast<size_t>(rows ? place * width + i : i * width + place)];
        value = Bf16::from_float(value.to_float() * factor);
      }
    }
    return ok_status();
  }

  std::map<std::string, One> tensors_;
  std::vector<std::string> order_;
};

class OutlierMaker {
 public:
  OutlierMaker(const ModelConfig& config, const OutlierOptions& options, BfTensors& tensors)
      : config_(config),
        channels_(options.channels),
        up_(static_cast<float>(options.strength)),
        down_(1 / up_),
        rng_(options.seed),
        tensors_(tensors) {}

  Status make() {
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      RETURN_IF_ERROR(after_norm(layer + "input_layernorm.weight",
                                 {layer + "self_attn.q_proj", layer + "self_attn.k_proj", layer + "self_attn.v_proj"}));
      RETURN_IF_ERROR(
          after_norm(layer + "post_attention_layernorm.weight", {layer + "mlp.gate_proj", layer + "mlp.up_proj"}));
      RETURN_IF_ERROR(before_o(layer + "self_attn."));
      RETURN_IF_ERROR(before_down(layer + "mlp."));
      RETURN_IF_ERROR(in_keys(layer + "self_attn."));
    }
    if (!tensors_.has(kLmHead)) tensors_.copy(kEmbedding, kLmHead);
    return after_norm("model.norm.weight", {"lm_head"});
  }

 private:
  Status after_norm(const std::string& norm, const std::vector<std::string>& readers) {
    const auto channels = distinct(rng_, channels_, config_.hidden_size);
    RETURN_IF_ERROR(tensors_.scale_rows(norm, channels, up_));
    for (const std::string& reader : readers) {
      RETURN_IF_ERROR(tensors_.scale_columns(reader + ".weight", channels, down_));
    }
    return ok_status();
  }

  Status scale_outputs(const std::string& matrix, const std::vector<int64_t>& rows) {
    if (tensors_.has(matrix + ".bias")) RETURN_IF_ERROR(tensors_.scale_rows(matrix + ".bias", rows, up_));
    return tensors_.scale_rows(matrix + ".weight", rows, up_);
  }

  Status before_o(const std::string& attention) {
    const int64_t head_dim = config_.head_dim, group = config_.num_heads / config_.num_kv_heads;
    const auto rows = distinct(rng_, channels_, config_.num_kv_heads * head_dim);
    std::vector<int64_t> columns;
    for (const int64_t row : rows) {
      for (int64_t head = row / head_dim * group; head < (row / head_dim + 1) * group; ++head) {
        columns.push_back(head * head_dim + row % head_dim);
      }
    }
    RETURN_IF_ERROR(scale_outputs(attention + "v_proj", rows));
    return tensors_.scale_columns(attention + "o_proj.weight", columns, down_);
  }

  Status before_down(const std::string& mlp) {
    const auto rows = distinct(rng_, channels_, config_.intermediate_size);
    RETURN_IF_ERROR(scale_outputs(mlp + "up_proj", rows));
    return tensors_.scale_columns(mlp + "down_proj.weight", rows, down_);
  }

  // Both elements of a pair alike, since RoPE turns them into each other. Pairs are (j, j + half) in all families with
  // norms of q and k.
  Status in_keys(const std::string& attention) {
    if (!tensors_.has(attention + "q_norm.weight") || !tensors_.has(attention + "k_norm.weight")) return ok_status();
    const int64_t half = config_.head_dim / 2;
    auto dims = distinct(rng_, channels_, half);
    for (size_t i = 0, count = dims.size(); i < count; ++i) dims.push_back(dims[i] + half);
    RETURN_IF_ERROR(tensors_.scale_rows(attention + "k_norm.weight", dims, up_));
    return tensors_.scale_rows(attention + "q_norm.weight", dims, down_);
  }

  const ModelConfig& config_;
  const int64_t channels_;
  const float up_, down_;
  Rng rng_;
  BfTensors& tensors_;
};

// lm_head stands in the files now.
Status write_config(const fs::path& from, const fs::path& to) {
  std::ifstream in(from);
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(in, nullptr, false);
  if (!config.is_object()) return data_loss("{}: not a JSON object", from.string());
  config["tie_word_embeddings"] = false;
  std::ofstream out(to);
  out << config.dump(2) << "\n";
  return out.flush() ? ok_status() : resource_exhausted("{}: cannot be written", to.string());
}

Status copy_other_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(from, error)) {
    const std::string name = file.path().filename().string();
    if (name == "config.json" || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) continue;
    fs::copy(file.path(), to / name, fs::copy_options::recursive, error);
    if (error) break;
  }
  return error ? resource_exhausted("{} to {}: {}", from.string(), to.string(), error.message()) : ok_status();
}

}  // namespace

Status write_outlier_model(const fs::path& model_dir, const OutlierOptions& options, const fs::path& out) {
  if (options.strength < 1 || options.strength > 4096 ||
      !std::has_single_bit(static_cast<unsigned>(options.strength))) {
    return invalid_argument("strength {}: a power of two from 1 to 4096", options.strength);
  }
  if (options.channels < 1 || options.channels > 64) return invalid_argument("channels {}: 1 to 64", options.channels);
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model_dir));
  if (config.experts.num_experts > 0) {
    return unimplemented("{} has layers of experts, which get no outliers yet", config.architecture);
  }
  ASSIGN_OR_RETURN(BfTensors tensors, BfTensors::read(model_dir));
  RETURN_IF_ERROR(OutlierMaker(config, options, tensors).make());
  ASSIGN_OR_RETURN(OutputDirectory directory, OutputDirectory::create(out));
  RETURN_IF_ERROR(tensors.write(directory.path()));
  RETURN_IF_ERROR(write_config(model_dir / "config.json", directory.path() / "config.json"));
  RETURN_IF_ERROR(copy_other_files(model_dir, directory.path()));
  return directory.commit();
}

}  // namespace spate
