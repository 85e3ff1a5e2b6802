// The answers of /score and /rerank: vectors of length 1, whose product is a cosine.
#include <algorithm>
#include <numeric>

#include "server/embedding.h"

namespace spate {
namespace {

// Of each document and its query.
std::vector<double> cosines(const ScoreRequest& request, const Embeddings& embeddings) {
  std::vector<double> scores(embeddings.vectors.size() - request.num_queries);
  for (size_t i = 0; i < scores.size(); ++i) {
    const std::vector<float>& query = embeddings.vectors[request.num_queries == 1 ? 0 : i];
    const std::vector<float>& document = embeddings.vectors[request.num_queries + i];
    scores[i] = std::inner_product(query.begin(), query.end(), document.begin(), 0.0);
  }
  return scores;
}

const std::string& document(const ScoreRequest& request, size_t i) {
  return std::get<std::string>(request.inputs[request.num_queries + i]);
}

void write_prompt_usage(JsonWriter& json, const Embeddings& embeddings) {
  json.key("usage").begin_object();
  json.field("prompt_tokens", embeddings.num_prompt_tokens).field("total_tokens", embeddings.num_prompt_tokens);
  json.key("prompt_tokens_details").begin_object().field("cached_tokens", embeddings.num_cached_tokens).end_object();
  json.end_object();
}

}  // namespace

std::string score_json(const ScoreRequest& request, const ResponseInfo& info, const Embeddings& embeddings) {
  const std::vector<double> scores = cosines(request, embeddings);
  JsonWriter json;
  json.begin_object().field("id", info.id).field("object", "list").field("created", info.created);
  json.field("model", info.model).key("data").begin_array();
  for (size_t i = 0; i < scores.size(); ++i) {
    json.begin_object().field("index", static_cast<int64_t>(i)).field("object", "score");
    json.field("score", scores[i]).end_object();
  }
  json.end_array();
  write_prompt_usage(json, embeddings);
  return json.end_object().take();
}

std::string rerank_json(const ScoreRequest& request, const ResponseInfo& info, const Embeddings& embeddings) {
  const std::vector<double> scores = cosines(request, embeddings);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (request.top_n > 0) order.resize(std::min(order.size(), request.top_n));
  JsonWriter json;
  if (request.is_list) {
    json.begin_array();
    for (const size_t i : order) {
      json.begin_object().field("index", static_cast<int64_t>(i)).field("score", scores[i]);
      if (request.return_documents) json.field("text", document(request, i));
      json.end_object();
    }
    return json.end_array().take();
  }
  json.begin_object().field("id", info.id).field("model", info.model);
  write_prompt_usage(json, embeddings);
  json.key("results").begin_array();
  for (const size_t i : order) {
    json.begin_object().field("index", static_cast<int64_t>(i));
    if (request.return_documents) {
      json.key("document").begin_object().field("text", document(request, i)).end_object();
    }
    json.field("relevance_score", scores[i]).end_object();
  }
  return json.end_array().end_object().take();
}

}  // namespace spate
