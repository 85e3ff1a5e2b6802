#include "text/tokenizer_json.h"

#include <fstream>
#include <sstream>

#include "base/log.h"
#include "weights/gguf/gguf_path.h"

namespace spate {
namespace tokenizer_json {

Result<object> as_object(element value, std::string_view where) {
  object result;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: an object is needed", where);
  return result;
}

Result<array> as_array(element value, std::string_view where) {
  array result;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: an array is needed", where);
  return result;
}

Result<std::string_view> as_string(element value, std::string_view where) {
  std::string_view result;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: a string is needed", where);
  return result;
}

Result<element> require_field(object from, std::string_view name, std::string_view where) {
  element value;
  if (from.at_key(name).get(value) != simdjson::SUCCESS) return data_loss("{}: field '{}' is missing", where, name);
  return value;
}

Result<std::string_view> require_string(object from, std::string_view name, std::string_view where) {
  ASSIGN_OR_RETURN(const element value, require_field(from, name, where));
  std::string_view result;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: field '{}' must be a string", where, name);
  return result;
}

Result<array> require_array(object from, std::string_view name, std::string_view where) {
  ASSIGN_OR_RETURN(const element value, require_field(from, name, where));
  array result;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: field '{}' must be an array", where, name);
  return result;
}

Result<int64_t> require_int(object from, std::string_view name, std::string_view where) {
  ASSIGN_OR_RETURN(const element value, require_field(from, name, where));
  int64_t result = 0;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: field '{}' must be a whole number", where, name);
  return result;
}

Result<bool> bool_or(object from, std::string_view name, bool if_absent, std::string_view where) {
  element value;
  if (from.at_key(name).get(value) != simdjson::SUCCESS || value.is_null()) return if_absent;
  bool result = if_absent;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: field '{}' must be true or false", where, name);
  return result;
}

Result<std::string_view> string_or(object from, std::string_view name, std::string_view if_absent,
                                   std::string_view where) {
  element value;
  if (from.at_key(name).get(value) != simdjson::SUCCESS || value.is_null()) return if_absent;
  std::string_view result;
  if (value.get(result) != simdjson::SUCCESS) return data_loss("{}: field '{}' must be a string", where, name);
  return result;
}

namespace {

Result<AddedToken> parse_added_token(object from, std::string_view where) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, require_string(from, "content", where));
  ASSIGN_OR_RETURN(token.special, bool_or(from, "special", false, where));
  ASSIGN_OR_RETURN(token.single_word, bool_or(from, "single_word", false, where));
  ASSIGN_OR_RETURN(token.lstrip, bool_or(from, "lstrip", false, where));
  ASSIGN_OR_RETURN(token.rstrip, bool_or(from, "rstrip", false, where));
  ASSIGN_OR_RETURN(token.normalized, bool_or(from, "normalized", !token.special, where));
  return token;
}

Status parse_added_tokens(element value, TokenizerParts& parts) {
  ASSIGN_OR_RETURN(const array tokens, as_array(value, "added_tokens"));
  std::string first_moved;
  size_t num_moved = 0;
  for (const element member : tokens) {
    ASSIGN_OR_RETURN(const object from, as_object(member, "added_tokens"));
    ASSIGN_OR_RETURN(AddedToken token, parse_added_token(from, "added_tokens"));
    ASSIGN_OR_RETURN(const int64_t file_id, require_int(from, "id", "added_tokens"));
    const std::string content = token.content;
    RETURN_IF_ERROR(parts.add_token(std::move(token)));
    const int32_t index = parts.find_added(content);
    if (index < 0) continue;
    const int32_t id = parts.added_tokens[static_cast<size_t>(index)].id;
    if (id != file_id && num_moved++ == 0) first_moved = fmt::format("'{}' (file: {}, here: {})", content, file_id, id);
  }
  if (num_moved > 0) {
    log_warning("tokenizer",
                "{} added tokens have another id in the file than by their place in the vocabulary, which counts; the "
                "first is {}",
                num_moved, first_moved);
  }
  return ok_status();
}

// Present and not null.
bool find_component(object from, std::string_view name, element* value) {
  return from.at_key(name).get(*value) == simdjson::SUCCESS && !value->is_null();
}

Status parse_tokenizer(object from, TokenizerParts& parts) {
  element value;
  if (find_component(from, "normalizer", &value)) RETURN_IF_ERROR(parse_normalizer(value, 0, parts.normalizer));
  if (find_component(from, "pre_tokenizer", &value))
    RETURN_IF_ERROR(parse_pre_tokenizer(value, 0, parts.pre_tokenizer));
  if (find_component(from, "post_processor", &value))
    RETURN_IF_ERROR(parse_post_processor(value, 0, parts.post_processor));
  if (find_component(from, "decoder", &value)) RETURN_IF_ERROR(parse_decoder(value, 0, parts.decoder));
  ASSIGN_OR_RETURN(const element model, require_field(from, "model", "tokenizer"));
  RETURN_IF_ERROR(parse_model(model, parts));
  if (find_component(from, "added_tokens", &value)) RETURN_IF_ERROR(parse_added_tokens(value, parts));
  return ok_status();
}

// "bos_token": "<s>", or {"content": "<s>", ...}, or null. A named token that is in the vocabulary is special.
Status parse_special_token(object from, std::string_view name, TokenizerParts& parts,
                           std::optional<SpecialToken>& token) {
  element value;
  if (token || !find_component(from, name, &value)) return ok_status();
  AddedToken added{.normalized = false, .special = true};
  if (object fields; value.get(fields) == simdjson::SUCCESS) {
    ASSIGN_OR_RETURN(added, parse_added_token(fields, name));
    added.special = true;
  } else {
    ASSIGN_OR_RETURN(added.content, as_string(value, name));
  }
  token = SpecialToken{added.content, kNoToken};
  if (parts.find_added(added.content) < 0 && parts.vocabulary.find(added.content) != kNoToken) {
    RETURN_IF_ERROR(parts.add_token(added));
  }
  if (const int32_t index = parts.find_added(added.content); index >= 0) {
    token->id = parts.added_tokens[static_cast<size_t>(index)].id;
  }
  return ok_status();
}

// "chat_template": "..." or [{"name": "default", "template": "..."}, ...]
Status parse_chat_templates(object from, TokenizerParts& parts) {
  element value;
  if (!find_component(from, "chat_template", &value)) return ok_status();
  std::string_view source;
  if (value.get(source) == simdjson::SUCCESS) {
    parts.chat_templates.push_back({"default", std::string(source)});
    return ok_status();
  }
  ASSIGN_OR_RETURN(const array templates, as_array(value, "chat_template"));
  for (const element member : templates) {
    ASSIGN_OR_RETURN(const object named, as_object(member, "chat_template"));
    ASSIGN_OR_RETURN(const std::string_view name, require_string(named, "name", "chat_template"));
    ASSIGN_OR_RETURN(source, require_string(named, "template", "chat_template"));
    parts.chat_templates.push_back({std::string(name), std::string(source)});
  }
  return ok_status();
}

Status parse_special_tokens(object from, TokenizerParts& parts) {
  // Tokens that only the config lists, with the flags that it gives them.
  element value;
  if (find_component(from, "added_tokens_decoder", &value)) {
    ASSIGN_OR_RETURN(const object by_id, as_object(value, "added_tokens_decoder"));
    for (const auto field : by_id) {
      ASSIGN_OR_RETURN(const object fields, as_object(field.value, "added_tokens_decoder"));
      ASSIGN_OR_RETURN(AddedToken token, parse_added_token(fields, "added_tokens_decoder"));
      const bool is_known = parts.find_added(token.content) >= 0 || parts.vocabulary.find(token.content) != kNoToken;
      if (is_known) RETURN_IF_ERROR(parts.add_token(std::move(token)));
    }
  }
  RETURN_IF_ERROR(parse_special_token(from, "bos_token", parts, parts.bos_token));
  RETURN_IF_ERROR(parse_special_token(from, "eos_token", parts, parts.eos_token));
  RETURN_IF_ERROR(parse_special_token(from, "unk_token", parts, parts.unk_token));
  RETURN_IF_ERROR(parse_special_token(from, "pad_token", parts, parts.pad_token));
  return ok_status();
}

// add_prefix_space of tokenizer_config.json overrides tokenizer.json where the tokenizer's class builds its parts itself, as
// transformers 5 does it: LlamaTokenizer puts nothing in front of a text with false; GPT-2's, RoBERTa's and Qwen2's classes put a
// space there with true. Other classes take tokenizer.json as it is.
Status apply_add_prefix_space(object from, TokenizerParts& parts) {
  element value;
  if (!find_component(from, "add_prefix_space", &value)) return ok_status();
  bool add_prefix_space;
  if (value.get(add_prefix_space) != simdjson::SUCCESS) return invalid_argument("add_prefix_space: true or false is needed");
  ASSIGN_OR_RETURN(std::string_view name, string_or(from, "tokenizer_class", "", "tokenizer_config"));
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (name == "LlamaTokenizer" && !add_prefix_space) {
    parts.normalizer.drop_prepend();
    parts.pre_tokenizer.drop_prefix();
    parts.decoder.keep_leading_space();
  } else if (name == "GPT2Tokenizer" || name == "RobertaTokenizer" || name == "Qwen2Tokenizer") {
    if (add_prefix_space)
      parts.pre_tokenizer.add_prefix_space();
    else
      parts.pre_tokenizer.drop_prefix();
  }
  return ok_status();
}

constexpr size_t kMaxFileBytes = size_t{512} << 20;

Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return not_found("{}: {}", path.string(), error.message());
  if (size > kMaxFileBytes)
    return invalid_argument("{}: {} bytes; at most {} are read", path.string(), size, kMaxFileBytes);
  std::ifstream file(path, std::ios::binary);
  std::string content(size, '\0');
  if (!file.read(content.data(), static_cast<std::streamsize>(size)))
    return data_loss("{}: cannot be read", path.string());
  return content;
}

Result<std::string> read_file_if_exists(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found) return std::string();
  return read_file(path);
}

Status parse_json(simdjson::dom::parser& parser, std::string_view text, std::string_view name, object* root) {
  if (text.size() > kMaxFileBytes)
    return invalid_argument("{}: {} bytes; at most {} are taken", name, text.size(), kMaxFileBytes);
  element document;
  const auto error = parser.parse(text.data(), text.size()).get(document);
  if (error != simdjson::SUCCESS) return data_loss("{}: {}", name, simdjson::error_message(error));
  if (document.get(*root) != simdjson::SUCCESS) return data_loss("{}: an object is needed at the top", name);
  return ok_status();
}

struct Sources {
  std::string_view tokenizer, tokenizer_config, special_tokens_map, chat_template;
};

Result<std::unique_ptr<const Tokenizer>> make_tokenizer(const Sources& sources) {
  simdjson::dom::parser parser;
  object root;
  auto parts = std::make_unique<TokenizerParts>();
  RETURN_IF_ERROR(parse_json(parser, sources.tokenizer, "tokenizer.json", &root));
  if (const Status status = parse_tokenizer(root, *parts); !status.ok()) return status.with_context("tokenizer.json");
  if (!sources.tokenizer_config.empty()) {
    RETURN_IF_ERROR(parse_json(parser, sources.tokenizer_config, "tokenizer_config.json", &root));
    Status status = parse_special_tokens(root, *parts);
    if (status.ok()) status = parse_chat_templates(root, *parts);
    if (status.ok()) status = apply_add_prefix_space(root, *parts);
    if (!status.ok()) return status.with_context("tokenizer_config.json");
  }
  if (!sources.special_tokens_map.empty()) {
    RETURN_IF_ERROR(parse_json(parser, sources.special_tokens_map, "special_tokens_map.json", &root));
    const Status status = parse_special_tokens(root, *parts);
    if (!status.ok()) return status.with_context("special_tokens_map.json");
  }
  if (!sources.chat_template.empty()) {
    std::erase_if(parts->chat_templates, [](const ChatTemplateSource& t) { return t.name == "default"; });
    parts->chat_templates.push_back({"default", std::string(sources.chat_template)});
  }
  return std::make_unique<const Tokenizer>(std::move(parts));
}

}  // namespace
}  // namespace tokenizer_json

Result<std::unique_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                              std::string_view tokenizer_config_json) {
  return tokenizer_json::make_tokenizer({.tokenizer = tokenizer_json, .tokenizer_config = tokenizer_config_json});
}

Result<std::unique_ptr<const Tokenizer>> Tokenizer::load(const std::filesystem::path& model_dir) {
  if (is_gguf_path(model_dir)) return from_gguf(model_dir);
  using tokenizer_json::read_file_if_exists;
  ASSIGN_OR_RETURN(const std::string tokenizer, tokenizer_json::read_file(model_dir / "tokenizer.json"));
  ASSIGN_OR_RETURN(const std::string config, read_file_if_exists(model_dir / "tokenizer_config.json"));
  ASSIGN_OR_RETURN(const std::string special_tokens_map, read_file_if_exists(model_dir / "special_tokens_map.json"));
  ASSIGN_OR_RETURN(const std::string chat_template, read_file_if_exists(model_dir / "chat_template.jinja"));
  Result<std::unique_ptr<const Tokenizer>> result =
      tokenizer_json::make_tokenizer({tokenizer, config, special_tokens_map, chat_template});
  if (!result.ok()) return result.status().with_context(model_dir.string());
  return result;
}

}  // namespace spate
