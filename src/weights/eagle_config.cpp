#include "weights/eagle_config.h"

#include <cstring>
#include <numeric>

#include "weights/file_text.h"
#include "weights/json_fields.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

constexpr std::string_view kArchitecture = "LlamaForCausalLMEagle3";

// Two layers behind the embedding, the middle, three before the last: what heads are trained on whose config.json names
// none.
void set_layer_idxs(JsonFields& fields, const ModelConfig& target, EagleConfig& eagle) {
  const int64_t n = target.num_layers;
  eagle.layer_idxs = {2, n / 2, n - 3};
  const std::optional<JsonFields> inner = fields.object("eagle_config");
  std::vector<int64_t> idxs;
  fields.read_sizes("eagle_aux_hidden_state_layer_ids", idxs);
  if (inner && idxs.empty()) JsonFields(*inner).read_sizes("eagle_aux_hidden_state_layer_ids", idxs);
  if (!idxs.empty() && std::ssize(idxs) != EagleConfig::kNumInputs) {
    return fields.problem(
        fmt::format("eagle_aux_hidden_state_layer_ids has {} entries, needs {}", idxs.size(), EagleConfig::kNumInputs));
  }
  if (!idxs.empty()) std::copy(idxs.begin(), idxs.end(), eagle.layer_idxs.begin());
  for (const int64_t idx : eagle.layer_idxs) {
    if (idx >= 1 && idx < n) continue;
    return fields.problem(
        fmt::format("the head reads what layer {} takes ({}), needs a layer in [1, {}] of the model's {}", idx,
                    idxs.empty() ? "the default" : "eagle_aux_hidden_state_layer_ids", n - 1, n));
  }
}

// Heads of other makers say here what they do otherwise than the first ones. Unread, they would draft nonsense.
void refuse_variants(JsonFields& fields) {
  for (const char* key : {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "parallel_drafting"}) {
    bool is_on = false;
    if (!fields.is_null(key)) fields.read(key, is_on);
    if (is_on) fields.problem(fmt::format("{} is true, needs false: such heads are not served", key));
  }
  int64_t window = 0;
  bool has_window = true;
  if (!fields.is_null("sliding_window")) fields.read("sliding_window", window, 0, INT32_MAX);
  if (!fields.is_null("use_sliding_window")) fields.read("use_sliding_window", has_window);
  if (window > 0 && has_window) {
    fields.problem(fmt::format("sliding_window is {}, needs null: a head that sees all tokens is served", window));
  }
}

Status check_tensor(const Checkpoint& file, std::string_view name, std::string_view dtype_name, int64_t size) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    return not_found(
        "no tensor {}: it says which of the model's tokens the head's are; a head of all tokens has "
        "draft_vocab_size = vocab_size",
        name);
  }
  if (entry->dtype_name == dtype_name && entry->shape == std::vector<int64_t>{size}) return ok_status();
  return invalid_argument("tensor {} is {} {}, needs {} [{}]", name, entry->dtype_name, entry->shape_string(),
                          dtype_name, size);
}

// d2t: what is added to an id of the head's. t2d: which of the target's ids the head has.
Status read_tables(const Checkpoint& file, EagleConfig& eagle) {
  const int64_t num_drafts = eagle.draft_vocab_size, num_targets = eagle.layer.vocab_size;
  RETURN_IF_ERROR(check_tensor(file, "d2t", "I64", num_drafts));
  RETURN_IF_ERROR(check_tensor(file, "t2d", "BOOL", num_targets));
  const std::string_view offsets = file.bytes(*file.find("d2t")), is_draft = file.bytes(*file.find("t2d"));
  std::vector<bool> taken(static_cast<size_t>(num_targets));
  for (int64_t i = 0; i < num_drafts; ++i) {
    int64_t offset = 0;
    std::memcpy(&offset, offsets.data() + i * 8, 8);
    // The offset itself may be anything.
    const bool in_range = offset >= -i && offset < num_targets - i;
    const auto id = static_cast<size_t>(in_range ? i + offset : 0);
    if (!in_range || taken[id]) {
      return data_loss("tensor d2t: {} + {} is no token of the {}, or comes twice", i, offset, num_targets);
    }
    if (is_draft[id] == 0) return data_loss("tensors d2t and t2d disagree: d2t names token {}, t2d leaves it out", id);
    taken[id] = true;
    eagle.target_ids.push_back(static_cast<int32_t>(id));
  }
  return ok_status();
}

}  // namespace

Result<EagleConfig> parse_eagle_config(std::string_view json, const ModelConfig& target) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return data_loss("not a JSON object: {}", simdjson::error_message(error));
  }
  std::vector<std::string> problems;
  JsonFields fields(root, "", problems);
  std::vector<std::string> architectures;
  fields.read_strings("architectures", architectures);
  if (architectures != std::vector<std::string>{std::string(kArchitecture)}) {
    return invalid_argument("architectures is [{}], needs {}: an EAGLE-3 head", fmt::join(architectures, ", "),
                            kArchitecture);
  }
  EagleConfig eagle;
  ASSIGN_OR_RETURN(eagle.layer, parse_model_config(json, "LlamaForCausalLM"));
  ModelConfig& layer = eagle.layer;
  const auto needs = [&](std::string_view key, int64_t value, int64_t needed, std::string_view why) {
    if (value != needed) fields.problem(fmt::format("{} is {}, needs {}: {}", key, value, needed, why));
  };
  int64_t target_hidden_size = layer.hidden_size;
  fields.read("target_hidden_size", target_hidden_size, 1, 1 << 20);
  needs("hidden_size", layer.hidden_size, target.hidden_size, "the head belongs to a model of that size");
  needs("target_hidden_size", target_hidden_size, layer.hidden_size, "a head as wide as its model is served");
  needs("vocab_size", layer.vocab_size, target.vocab_size, "drafts must be tokens of the same vocabulary");
  needs("num_hidden_layers", layer.num_layers, 1, "an EAGLE-3 head is one layer");
  refuse_variants(fields);
  eagle.draft_vocab_size = layer.vocab_size;
  fields.read("draft_vocab_size", eagle.draft_vocab_size, 1, layer.vocab_size);
  set_layer_idxs(fields, target, eagle);
  RETURN_IF_ERROR(problems_status(problems));
  // A smaller number of positions than the model's costs acceptance behind it, and nothing else.
  layer.max_position_embeddings = target.max_position_embeddings;
  layer.architecture = kArchitecture;
  if (eagle.draft_vocab_size == layer.vocab_size) {
    eagle.target_ids.resize(static_cast<size_t>(layer.vocab_size));
    std::iota(eagle.target_ids.begin(), eagle.target_ids.end(), 0);
  }
  return eagle;
}

Result<EagleFiles> open_eagle(const std::filesystem::path& dir, const ModelConfig& target, bool dummy_weights) {
  EagleFiles files;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(dir / "config.json", kMaxConfigBytes));
  Result<EagleConfig> config = parse_eagle_config(text, target);
  if (!config.ok()) return config.status().with_context("config.json");
  files.config = std::move(config).value();
  EagleConfig& eagle = files.config;
  if (dummy_weights) {
    eagle.target_ids.resize(static_cast<size_t>(eagle.draft_vocab_size));
    for (int64_t i = 0; i < eagle.draft_vocab_size; ++i) {
      eagle.target_ids[static_cast<size_t>(i)] = static_cast<int32_t>(i * target.vocab_size / eagle.draft_vocab_size);
    }
    return files;
  }
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir));
  const bool has_all_tokens = !eagle.target_ids.empty() && checkpoint.find("d2t") == nullptr;
  if (!has_all_tokens) {
    eagle.target_ids.clear();
    RETURN_IF_ERROR(read_tables(checkpoint, eagle));
  }
  files.weights = std::make_unique<Checkpoint>(std::move(checkpoint));
  return files;
}

}  // namespace spate
