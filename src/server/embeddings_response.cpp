// The answer of /v1/embeddings. openai-node asks for base64 unless told otherwise, and reads an array of floats as an
// empty vector.
#include <bit>
#include <cstring>

#include "server/embedding.h"

namespace spate {
namespace {

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

static_assert(std::endian::native == std::endian::little, "the bytes of a float go out as they are");

std::string_view bytes_of(const std::vector<float>& vector) {
  return {reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float)};
}

void write_vector(JsonWriter& json, const std::vector<float>& vector) {
  json.begin_array();
  for (const float value : vector) json.value(value);
  json.end_array();
}

}  // namespace

std::string llama_embeddings_json(const EmbeddingsRequest& /*request*/, const ResponseInfo& /*info*/,
                                  const Embeddings& embeddings) {
  JsonWriter json;
  json.begin_array();
  for (size_t i = 0; i < embeddings.vectors.size(); ++i) {
    json.begin_object().field("index", static_cast<int64_t>(i)).key("embedding").begin_array();
    write_vector(json, embeddings.vectors[i]);  // the one of the text; llama-server could tell one of each token
    json.end_array().end_object();
  }
  return json.end_array().take();
}

std::string embeddings_json(const EmbeddingsRequest& request, const ResponseInfo& info, const Embeddings& embeddings) {
  JsonWriter json;
  json.begin_object()
      .field("id", info.id)
      .field("object", "list")
      .field("created", info.created)
      .field("model", info.model)
      .key("data")
      .begin_array();
  for (size_t i = 0; i < embeddings.vectors.size(); ++i) {
    json.begin_object().field("object", "embedding").field("index", static_cast<int64_t>(i)).key("embedding");
    if (request.as_base64) {
      json.value(base64(bytes_of(embeddings.vectors[i])));
    } else {
      write_vector(json, embeddings.vectors[i]);
    }
    json.end_object();
  }
  json.end_array().key("usage").begin_object();
  json.field("prompt_tokens", embeddings.num_prompt_tokens).field("total_tokens", embeddings.num_prompt_tokens);
  json.key("prompt_tokens_details").begin_object().field("cached_tokens", embeddings.num_cached_tokens).end_object();
  return json.end_object().end_object().take();
}

}  // namespace spate
