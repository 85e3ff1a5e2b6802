#include "weights/generation_config.h"

#include "weights/file_text.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_checkpoint.h"
#include "weights/json_fields.h"

namespace spate {
namespace {

template <typename T, typename... Limits>
void read_optional(JsonFields& fields, std::string_view key, std::optional<T>& value, Limits... limits) {
  if (!fields.has(key)) return;
  T number{};
  fields.read(key, number, limits...);
  value = number;
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return data_loss("not a JSON object: {}", simdjson::error_message(error));
  }
  std::vector<std::string> problems;
  JsonFields fields(root, "", problems);
  GenerationConfig config;
  read_optional(fields, "temperature", config.temperature, 0.0, 100.0);
  read_optional(fields, "top_p", config.top_p, 0.0, 1.0);
  read_optional(fields, "min_p", config.min_p, 0.0, 1.0);
  read_optional(fields, "top_k", config.top_k, int64_t{-1}, int64_t{1} << 24);
  if (config.top_k == -1) config.top_k = 0;  // vLLM's and llama.cpp's word for all tokens, as requests may say it
  read_optional(fields, "repetition_penalty", config.repetition_penalty, 0.01, 100.0);
  read_optional(fields, "max_new_tokens", config.max_new_tokens, int64_t{1}, int64_t{1} << 28);
  read_optional(fields, "do_sample", config.do_sample);
  fields.read_ids("eos_token_id", config.eos_token_ids);
  RETURN_IF_ERROR(problems_status(problems));
  return config;
}

Result<GenerationConfig> load_generation_config(const std::filesystem::path& model) {
  if (is_gguf_path(model)) {
    ASSIGN_OR_RETURN(const std::unique_ptr<GgufCheckpoint> gguf, GgufCheckpoint::open(model));
    Result<GenerationConfig> config = gguf->generation_config();
    if (!config.ok()) return config.status().with_context(model.string());
    return config;
  }
  const auto file = model / "generation_config.json";
  Result<std::string> text = read_text_file(file, 1 << 20);
  if (text.status().code() == StatusCode::kNotFound) return GenerationConfig{};
  if (!text.ok()) return text.status();
  Result<GenerationConfig> config = parse_generation_config(text.value());
  if (!config.ok()) return config.status().with_context(file.string());
  return config;
}

}  // namespace spate
