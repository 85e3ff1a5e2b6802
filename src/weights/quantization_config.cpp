#include "weights/quantization_config.h"

#include <algorithm>

#include "weights/file_text.h"
#include "weights/json_fields.h"

namespace spate {
namespace {

constexpr int64_t kMaxGroup = 1 << 24;

void check_scheme(JsonFields& fields, const QuantScheme& scheme) {
  if (scheme.bits != 4 && scheme.bits != 8) fields.problem(fmt::format("{} bits; 4 and 8 are read", scheme.bits));
  if (scheme.group_size != 0 && scheme.group_size != 32 && scheme.group_size % 64 != 0) {
    fields.problem(fmt::format("group_size {}; -1 (whole rows), 32 and multiples of 64 are read", scheme.group_size));
  }
}

// -1, or no key: whole rows.
int64_t read_group_size(JsonFields& fields, std::string_view key, int64_t otherwise) {
  int64_t group_size = otherwise;
  fields.read(key, group_size, -1, kMaxGroup);
  return group_size <= 0 ? 0 : group_size;
}

std::string lower_case(JsonFields& fields, std::string_view key) {
  std::string value;
  fields.read(key, value);
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  return value;
}

// Of two spellings of a key: where both are there, the older one counts, as in transformers.
std::string_view older_key_of(const JsonFields& fields, std::string_view older, std::string_view newer) {
  return fields.has(older) ? older : newer;
}

void require_one_of(JsonFields& fields, std::string_view key, std::initializer_list<std::string_view> allowed) {
  const std::string value = lower_case(fields, key);
  if (value.empty() || std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  fields.problem(fmt::format("{} \"{}\" cannot be read; {} can", key, value, fmt::join(allowed, ", ")));
}

// Of modules that differ from the others, by name or pattern: "bits", "group_size" and "sym" of the integers among
// them. Which module has which the shapes of its tensors say.
void read_other_schemes(JsonFields& fields, std::string_view key, QuantizationConfig& config) {
  auto modules = fields.object(key);
  if (!modules) return;
  for (const std::string& name : modules->keys()) {
    auto module = name.starts_with("-") ? std::nullopt : modules->object(name);  // GPTQModel: "-:" are left as floats
    if (!module) continue;
    QuantScheme scheme = config.schemes[0];
    module->read("bits", scheme.bits, 1, 32);
    if (scheme.bits >= 16) continue;
    scheme.group_size = read_group_size(*module, "group_size", scheme.group_size);
    module->read("sym", scheme.symmetric);
    check_scheme(*module, scheme);
    if (std::ranges::find(config.schemes, scheme) == config.schemes.end()) config.schemes.push_back(scheme);
  }
}

void read_gptq(JsonFields& fields, QuantizationConfig& config) {
  QuantScheme scheme;
  fields.read("bits", scheme.bits, 1, 32);
  scheme.group_size = read_group_size(fields, "group_size", -1);
  fields.read("sym", scheme.symmetric);
  check_scheme(fields, scheme);
  config.schemes.push_back(scheme);
  const std::string_view format_key = older_key_of(fields, "checkpoint_format", "format");
  require_one_of(fields, format_key, {"gptq", "gptq_v2"});
  config.zeros_minus_one = lower_case(fields, format_key) != "gptq_v2";
  bool is_marlin = false;
  fields.read("is_marlin_format", is_marlin);
  if (is_marlin) fields.problem("is_marlin_format: weights arranged for one kernel cannot be read; convert them back");
  read_other_schemes(fields, "dynamic", config);
}

void read_awq(JsonFields& fields, QuantizationConfig& config) {
  QuantScheme scheme;
  fields.read("w_bit", scheme.bits, 1, 32);
  fields.read("bits", scheme.bits, 1, 32);
  scheme.group_size = read_group_size(fields, "q_group_size", -1);
  scheme.group_size = read_group_size(fields, "group_size", scheme.group_size);
  if (scheme.bits != 4) fields.problem(fmt::format("awq with {} bits; 4 are read", scheme.bits));
  check_scheme(fields, scheme);
  config.schemes.push_back(scheme);
  require_one_of(fields, older_key_of(fields, "version", "format"), {"gemm"});
  // Names the kernels that the writer used, but for one that has a layout of its own.
  if (lower_case(fields, "backend") == "llm-awq") {
    fields.problem("backend \"llm-awq\" arranges weights in another way and cannot be read; autoawq and auto can");
  }
}

// AutoRound writes the layout of GPTQ or AWQ, and says which: "auto_round:auto_gptq", "auto_round:auto_awq"; its older
// files have that in "backend".
void read_auto_round(JsonFields& fields, QuantizationConfig& config) {
  require_one_of(fields, "data_type", {"int"});
  const std::string_view key = older_key_of(fields, "packing_format", "backend");
  const std::string packing = lower_case(fields, key);
  if (packing.find("awq") != std::string::npos) {
    config.method = QuantMethod::kAwq;
    read_awq(fields, config);
  } else if (packing.find("gptq") != std::string::npos) {
    config.method = QuantMethod::kGptq;
    read_gptq(fields, config);
    read_other_schemes(fields, "extra_config", config);
  } else {
    fields.problem(
        fmt::format("{} \"{}\" cannot be read; auto_round:auto_gptq and auto_round:auto_awq can", key, packing));
  }
}

void read_block(JsonFields& weights, const std::string& group, QuantScheme& scheme) {
  std::vector<int64_t> sizes;
  weights.read_sizes("block_structure", sizes);
  if (sizes.size() != 2) {
    return weights.problem(fmt::format("{}: strategy \"block\" needs a block_structure of rows and columns", group));
  }
  scheme.block_rows = sizes[0];
  scheme.group_size = sizes[1];
  if (scheme.block_rows < 2 || scheme.group_size < 1 || scheme.bits != 8 || !scheme.symmetric) {
    weights.problem(fmt::format("{}: blocks of {} x {} by {} bits; blocks of several rows by 8 symmetric bits are read",
                                group, sizes[0], sizes[1], scheme.bits));
  }
}

// Rows and columns of a block.
bool read_block_size(JsonFields& fields, std::string_view key, Fp8Scheme& scheme) {
  std::vector<int64_t> sizes;
  fields.read_sizes(key, sizes);
  if (sizes.size() != 2 || std::min(sizes[0], sizes[1]) < 1 || std::max(sizes[0], sizes[1]) > kMaxGroup) {
    fields.problem(
        fmt::format("{} is [{}], needs rows and columns of a block, as [128, 128]", key, fmt::join(sizes, ", ")));
    return false;
  }
  scheme = {.block_rows = sizes[0], .block_columns = sizes[1]};
  return true;
}

void read_float_scheme(JsonFields& weights, const std::string& group, int64_t bits, QuantizationConfig& config) {
  if (bits != 8) return weights.problem(fmt::format("{}: weights are float of {} bits; 8 are read", group, bits));
  std::string strategy = "tensor";
  weights.read("strategy", strategy);
  Fp8Scheme scheme;
  if (strategy == "block") {
    if (!read_block_size(weights, "block_structure", scheme)) return;
  } else if (strategy == "channel") {
    scheme.block_rows = 1;
  } else if (strategy == "group") {
    scheme = {.block_rows = 1, .block_columns = read_group_size(weights, "group_size", -1)};
  } else if (strategy != "tensor") {
    return weights.problem(
        fmt::format("{}: strategy \"{}\"; tensor, channel, group and block are read", group, strategy));
  }
  config.fp8_schemes.push_back(scheme);
}

void read_weights_scheme(JsonFields& weights, const std::string& group, QuantizationConfig& config) {
  QuantScheme scheme;
  std::string type = "int", strategy;
  weights.read("num_bits", scheme.bits, 1, 32);
  weights.read("type", type);
  if (type == "float") return read_float_scheme(weights, group, scheme.bits, config);
  if (type != "int") {
    return weights.problem(fmt::format("{}: weights are {} of {} bits; int of 4 and 8 bits and float of 8 are read",
                                       group, type, scheme.bits));
  }
  scheme.symmetric = true;
  weights.read("symmetric", scheme.symmetric);
  scheme.group_size = read_group_size(weights, "group_size", -1);
  weights.read("strategy", strategy);
  if (strategy == "channel" || strategy == "tensor") {
    scheme.group_size = 0;
  } else if (strategy == "block") {
    read_block(weights, group, scheme);
  } else if (!strategy.empty() && strategy != "group") {
    weights.problem(fmt::format("{}: strategy \"{}\"; group, channel, tensor and block are read", group, strategy));
  } else if (strategy == "group" && scheme.group_size == 0) {
    weights.problem(fmt::format("{}: strategy \"group\" without a group_size", group));
  }
  check_scheme(weights, scheme);
  config.schemes.push_back(scheme);
}

void require_known_format(JsonFields& fields) {
  require_one_of(fields, "format",
                 {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense"});
}

void read_compressed_tensors(JsonFields& fields, QuantizationConfig& config) {
  require_known_format(fields);
  if (const auto transforms = fields.object("transform_config"); transforms && !transforms->empty()) {
    fields.problem("transform_config: activations that are rotated between layers cannot be computed");
  }
  if (auto sparsity = fields.object("sparsity_config")) require_one_of(*sparsity, "format", {"dense"});
  auto groups = fields.object("config_groups");
  if (!groups) return fields.problem("config_groups is missing");
  bool has_static_inputs = false;
  for (const std::string& name : groups->keys()) {
    auto group = groups->object(name);
    if (!group) continue;
    require_known_format(*group);
    if (auto inputs = group->object("input_activations")) {
      bool dynamic = false;
      inputs->read("dynamic", dynamic);
      has_static_inputs = has_static_inputs || !dynamic;
    }
    auto weights = group->object("weights");
    if (weights) read_weights_scheme(*weights, name, config);
  }
  if (config.schemes.empty() && config.fp8_schemes.empty()) fields.problem("config_groups name no weights");
  if (has_static_inputs) config.notes.push_back("scales of activations are not used: they are computed for each token");
  if (fields.has("kv_cache_scheme")) {
    config.notes.push_back("kv_cache_scheme is not used: --kv-cache-dtype says how the KV cache is kept");
  }
}

// DeepSeek's and Qwen's files have blocks, those for vLLM a scale a tensor or a row.
void read_fp8(JsonFields& fields, QuantizationConfig& config) {
  require_one_of(fields, "fmt", {"e4m3", "float8_e4m3fn"});
  Fp8Scheme block;
  if (!fields.has("weight_block_size")) {
    config.fp8_schemes = {{}, {.block_rows = 1}};
  } else if (read_block_size(fields, "weight_block_size", block)) {
    config.fp8_schemes = {block};
  }
  if (lower_case(fields, "activation_scheme") == "static") {
    config.notes.push_back("scales of activations are not used: activations stay as they are");
  }
}

constexpr std::string_view kMethodNames[] = {"gptq", "awq", "compressed-tensors", "fp8"};

std::optional<QuantMethod> find_method(std::string_view name) {
  for (size_t i = 0; i < std::size(kMethodNames); ++i) {
    if (name == kMethodNames[i]) return static_cast<QuantMethod>(i);
  }
  return {};
}

Result<QuantizationConfig> read_config(simdjson::dom::object root, std::optional<QuantMethod> method) {
  std::vector<std::string> problems;
  JsonFields fields(root, "quantization_config.", problems);
  std::string name;
  fields.read("quant_method", name);
  if (name == "auto-round" || name == "intel/auto-round") {
    QuantizationConfig config;
    read_auto_round(fields, config);
    RETURN_IF_ERROR(problems_status(problems));
    return config;
  }
  if (!method) method = find_method(name);
  if (!method) {
    return unimplemented("quantization_config.quant_method \"{}\" cannot be read; {}, auto-round can", name,
                         fmt::join(kMethodNames, ", "));
  }
  QuantizationConfig config{.method = *method, .schemes = {}, .fp8_schemes = {}, .notes = {}};
  if (*method == QuantMethod::kGptq) read_gptq(fields, config);
  if (*method == QuantMethod::kAwq) read_awq(fields, config);
  if (*method == QuantMethod::kCompressedTensors) read_compressed_tensors(fields, config);
  if (*method == QuantMethod::kFp8) read_fp8(fields, config);
  RETURN_IF_ERROR(problems_status(problems));
  return config;
}

}  // namespace

std::string_view quant_method_name(QuantMethod method) { return kMethodNames[static_cast<size_t>(method)]; }

Result<QuantizationConfig> parse_quantization_config(std::string_view json, std::optional<QuantMethod> method) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return data_loss("not a JSON object: {}", simdjson::error_message(error));
  }
  return read_config(root, method);
}

std::optional<WeightSpec> weight_spec_of(const QuantizationConfig& config) {
  if (config.schemes.empty()) return {};
  const QuantScheme& scheme = config.schemes[0];
  WeightSpec spec = integer_spec(scheme.bits == 4 ? Codes::kInt4 : Codes::kInt8, scheme.group_size, !scheme.symmetric);
  spec.tile.rows = scheme.block_rows;
  return spec;
}

Result<Quantization> dummy_quantization(const std::filesystem::path& model_dir, const Quantization& wanted,
                                        bool is_f32) {
  if (wanted.enabled()) return wanted;
  ASSIGN_OR_RETURN(const std::optional<QuantizationConfig> config, load_quantization_config(model_dir));
  const std::optional<WeightSpec> spec = config ? weight_spec_of(*config) : std::nullopt;
  if (!spec) return wanted;
  Quantization quantization = wanted;
  quantization.linear = wanted.with_activations(*spec);
  quantization.linear.tile.rows = 1;  // blocks are read, not made
  quantization.vocabulary = {.codes = is_f32 ? Codes::kF32 : Codes::kBf16};
  quantization.imitates_checkpoint = true;
  return quantization;
}

Result<std::optional<QuantizationConfig>> load_quantization_config(const std::filesystem::path& model_dir) {
  const auto with_place = [](const std::filesystem::path& path,
                             Result<QuantizationConfig> config) -> Result<std::optional<QuantizationConfig>> {
    if (!config.ok()) return config.status().with_context(path.string());
    return std::optional(std::move(config).value());
  };
  std::error_code error;
  const auto config_file = model_dir / "config.json";
  if (std::filesystem::exists(config_file, error)) {
    ASSIGN_OR_RETURN(const std::string text, read_text_file(config_file, kMaxConfigBytes));
    simdjson::dom::parser parser;
    simdjson::dom::object root, quantization;
    if (parser.parse(text).get(root) != simdjson::SUCCESS) {
      return data_loss("{}: not a JSON object", config_file.string());
    }
    for (const char* key : {"quantization_config", "compression_config"}) {
      if (root.at_key(key).get(quantization) == simdjson::SUCCESS) {
        return with_place(config_file, read_config(quantization, {}));
      }
    }
  }
  for (const auto& [name, method] :
       {std::pair{"quantize_config.json", QuantMethod::kGptq}, {"quant_config.json", QuantMethod::kAwq}}) {
    const auto file = model_dir / name;
    if (!std::filesystem::exists(file, error)) continue;
    ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMaxConfigBytes));
    return with_place(file, parse_quantization_config(text, method));
  }
  return std::optional<QuantizationConfig>();
}

}  // namespace spate
