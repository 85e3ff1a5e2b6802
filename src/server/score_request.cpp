// The bodies of /score and /rerank: texts whose embeddings are compared.
#include <nlohmann/json.hpp>

#include "server/api_request.h"
#include "server/json_parse.h"
#include "server/request_fields.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

// Appends a text, or each of a list; a list's entries may also be objects with a "text".
void read_texts(FieldReader& fields, const std::string& name, const Json& value, EmbeddingsRequest& request) {
  if (value.is_string()) {
    request.inputs.emplace_back(value.get<std::string>());
    request.input_names.push_back(name);
    return;
  }
  if (value.empty()) return fields.fail(name, fmt::format("{} must not be empty", name));
  if (value.size() > kMaxPrompts) {
    return fields.fail(name, fmt::format("{} has {} texts, at most {} are taken", name, value.size(), kMaxPrompts));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& item = value[i];
    const Json& text = item.is_object() && item.contains("text") ? item["text"] : item;
    if (!text.is_string()) return fields.fail_type(name, "an array of texts", item);
    request.inputs.emplace_back(text.get<std::string>());
    request.input_names.push_back(fmt::format("{}[{}]", name, i));
  }
}

// The one of `names` that the request has.
void read_one_of(FieldReader& fields, std::initializer_list<const char*> names, EmbeddingsRequest& request) {
  std::string given;
  for (const char* name : names) {
    const Json* value = fields.any(name);
    if (value == nullptr) continue;
    if (!given.empty()) return fields.fail(name, fmt::format("{} and {} are the same field; give one", given, name));
    given = name;
    read_texts(fields, name, *value, request);
  }
  if (!given.empty() || fields.has_error()) return;
  const std::string name = *names.begin();
  fields.fail(bad_request(name, fmt::format("{} is missing", name), "missing_required_parameter"));
}

void read_rest(FieldReader& fields, ScoreRequest& request) {
  request.model = fields.string("model").value_or("");
  request.normalize = true;  // the product of two vectors is then their cosine
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  read_truncation(fields, request);
  read_scheduling(fields, request);
  take_ignored_fields(fields, request);
}

}  // namespace

ApiResult<ScoreRequest> parse_score_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kScoreRequest, limits);
  if (fields.has_error()) return fields.error();
  ScoreRequest request;
  read_one_of(fields, {"text_1", "queries", "data_1"}, request);
  request.num_queries = request.inputs.size();
  read_one_of(fields, {"text_2", "documents", "items", "data_2"}, request);
  const size_t num_documents = request.inputs.size() - request.num_queries;
  if (request.num_queries != 1 && request.num_queries != num_documents) {
    fields.fail("text_1", fmt::format("text_1 must be one text or as many as text_2, got {} and {}",
                                      request.num_queries, num_documents));
  }
  read_rest(fields, request);
  if (fields.has_error()) return fields.error();
  return request;
}

ApiResult<ScoreRequest> parse_rerank_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kRerankRequest, limits);
  if (fields.has_error()) return fields.error();
  ScoreRequest request;
  read_texts(fields, "query", *fields.any("query"), request);
  read_one_of(fields, {"documents", "texts"}, request);
  request.is_list = fields.any("texts") != nullptr;
  request.top_n = static_cast<size_t>(fields.integer("top_n").value_or(0));
  request.return_documents = request.is_list ? fields.boolean("return_text").value_or(false)
                                             : fields.boolean("return_documents").value_or(true);
  read_rest(fields, request);
  if (fields.boolean("truncate").value_or(false) && !request.truncate_prompt_tokens) {
    request.truncate_prompt_tokens = -1;
    request.truncates_end = true;
  }
  if (fields.has_error()) return fields.error();
  return request;
}

}  // namespace spate
