#include "weights/pooling_files.h"

#include <utility>

#include "weights/file_text.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_checkpoint.h"
#include "weights/json_fields.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = 1 << 20;

// What modules.json lists: the model, then what is done with its hidden states.
struct Modules {
  std::string pooling_path = "1_Pooling";
  bool normalize = false;
  std::string unknown;  // a module that is not built
};

Result<Modules> parse_modules(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::array root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return data_loss("not a JSON array: {}", simdjson::error_message(error));
  }
  Modules modules;
  for (const simdjson::dom::element entry : root) {
    std::string_view type, path;
    if (entry["type"].get(type) != simdjson::SUCCESS) return data_loss("a module has no type");
    const std::string_view name = type.substr(type.rfind('.') == type.npos ? 0 : type.rfind('.') + 1);
    if (name == "Pooling") {
      if (entry["path"].get(path) == simdjson::SUCCESS && !path.empty()) modules.pooling_path = path;
    } else if (name == "Normalize") {
      modules.normalize = true;
    } else if (name != "Transformer") {
      modules.unknown = name;
    }
  }
  return modules;
}

// The text of a file, or nothing where there is none.
Result<std::optional<std::string>> read_optional_file(const fs::path& file) {
  Result<std::string> text = read_text_file(file, kMaxFileBytes);
  if (text.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  if (!text.ok()) return text.status();
  return std::optional<std::string>(std::move(text).value());
}

Result<PoolingConfig> load_from_folder(const fs::path& dir) {
  const fs::path modules_file = dir / "modules.json";
  ASSIGN_OR_RETURN(const std::optional<std::string> modules_json, read_optional_file(modules_file));
  Modules modules;
  if (modules_json) {
    Result<Modules> parsed = parse_modules(*modules_json);
    if (!parsed.ok()) return parsed.status().with_context(modules_file.string());
    modules = std::move(parsed).value();
  }
  const fs::path pooling_file = dir / modules.pooling_path / "config.json";
  ASSIGN_OR_RETURN(const std::optional<std::string> pooling_json, read_optional_file(pooling_file));
  if (!pooling_json) return PoolingConfig();
  Result<PoolingConfig> config = parse_pooling_module(*pooling_json);
  if (!config.ok()) return config.status().with_context(pooling_file.string());
  config->source = modules.pooling_path + "/config.json";
  if (modules_json) config->normalize = modules.normalize;
  if (!modules.unknown.empty()) {
    config->pooling = Pooling::kNone;
    config->problem = fmt::format("modules.json lists a module {}, which is not built", modules.unknown);
  }
  return config;
}

}  // namespace

Result<PoolingConfig> parse_pooling_module(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return data_loss("not a JSON object: {}", simdjson::error_message(error));
  }
  // One of many flags, or since sentence-transformers 5 a name.
  constexpr std::pair<const char*, Pooling> kBuilt[] = {{"pooling_mode_lasttoken", Pooling::kLast},
                                                        {"pooling_mode_mean_tokens", Pooling::kMean},
                                                        {"pooling_mode_cls_token", Pooling::kCls}};
  constexpr const char* kOthers[] = {"pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
                                     "pooling_mode_weightedmean_tokens"};
  constexpr std::string_view kPrefix = "pooling_mode_";
  std::vector<std::string> problems;
  JsonFields fields(root, "", problems);
  std::string name;
  fields.read("pooling_mode", name);
  PoolingConfig config;
  std::string modes;
  const auto is_set = [&](const char* key) {
    bool flag = false;
    fields.read(key, flag);
    const std::string_view mode = std::string_view(key).substr(kPrefix.size());
    flag |= mode == name || mode == name + "_token" || mode == name + "_tokens";
    if (flag) modes += (modes.empty() ? "" : ", ") + std::string(key);
    return flag;
  };
  int num_modes = 0;
  for (const auto& [key, pooling] : kBuilt) {
    if (!is_set(key)) continue;
    config.pooling = pooling;
    ++num_modes;
  }
  for (const char* key : kOthers) num_modes += 2 * static_cast<int>(is_set(key));
  RETURN_IF_ERROR(problems_status(problems));
  if (num_modes != 1) {
    config.pooling = Pooling::kNone;
    config.problem = fmt::format("the model asks for {}; last, mean or cls alone is built",
                                 !modes.empty() ? modes : name.empty() ? "no pooling" : "pooling_mode " + name);
  }
  return config;
}

Result<PoolingConfig> load_pooling_config(const fs::path& model) {
  if (!is_gguf_path(model)) return load_from_folder(model);
  ASSIGN_OR_RETURN(const std::unique_ptr<GgufCheckpoint> gguf, GgufCheckpoint::open(model));
  Result<PoolingConfig> config = gguf->pooling_config();
  if (!config.ok()) return config.status().with_context(model.string());
  return config;
}

}  // namespace spate
