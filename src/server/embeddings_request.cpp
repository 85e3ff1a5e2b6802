// The body of /v1/embeddings.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api_request.h"
#include "server/json_parse.h"
#include "server/request_fields.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

// One of a few names; the first is the default.
std::string read_choice(FieldReader& fields, std::string_view name, std::initializer_list<std::string_view> choices) {
  const std::string value = fields.string(name).value_or(std::string(*choices.begin()));
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    fields.fail(name, fmt::format("{} must be {}, got \"{}\"", name, fmt::join(choices, " or "), value.substr(0, 40)));
  }
  return value;
}

ApiResult<EmbeddingsRequest> read_embeddings_request(const Json& body, const ParseLimits& limits) {
  FieldReader fields(body, kEmbeddingsRequest, limits);
  if (fields.has_error()) return fields.error();
  EmbeddingsRequest request;
  request.model = fields.string("model").value_or("");
  read_texts_or_tokens(fields, "input", *fields.any("input"), request.inputs);
  request.as_base64 = read_choice(fields, "encoding_format", {"float", "base64"}) == "base64";
  read_choice(fields, "embed_dtype", {"float32"});
  read_choice(fields, "endianness", {"native", "little"});
  if (const auto dimensions = fields.integer("dimensions")) request.dimensions = static_cast<int>(*dimensions);
  request.normalize = fields.boolean("normalize");
  if (const auto use_activation = fields.boolean("use_activation"); !request.normalize) {
    request.normalize = use_activation;
  }
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  read_truncation(fields, request);
  read_scheduling(fields, request);
  if (fields.has_error()) return fields.error();
  take_ignored_fields(fields, request);
  return request;
}

}  // namespace

ApiResult<EmbeddingsRequest> parse_embeddings_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  return read_embeddings_request(**json, limits);
}

ApiResult<EmbeddingsRequest> parse_llama_embeddings_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  Json embeddings = **json;
  if (!embeddings.is_object()) return read_embeddings_request(embeddings, limits);
  const Json content = embeddings.value("content", Json()), norm = embeddings.value("embd_normalize", Json());
  const bool has_content = !content.is_null() && embeddings.value("input", Json()).is_null();
  if (has_content) embeddings["input"] = content;
  if (!norm.is_null()) {
    if (norm != 2 && norm != -1) {
      return not_supported("embd_normalize", fmt::format("embd_normalize must be -1 or 2, got {}", json_excerpt(norm)));
    }
    embeddings["normalize"] = norm == 2;
  }
  embeddings.erase("content");
  embeddings.erase("embd_normalize");
  ApiResult<EmbeddingsRequest> request = read_embeddings_request(embeddings, limits);
  if (request.ok() && has_content) request->input_names.assign(request->inputs.size(), "content");
  if (request.ok() || !has_content) return request;
  return with_field_name(request.error(), "input", "content");
}

}  // namespace spate
