// The requests of the OpenAI protocol as plain data, and the pure functions that make them from request bodies.
//
// Parsing knows the wire only: types, ranges, and what is refused. Whether a prompt fits is found later, by the
// front-end, which has the tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/beam_search_params.h"
#include "core/sampling_params.h"
#include "server/api_error.h"
#include "server/structured_output.h"
#include "server/trace_context.h"

namespace spate {

// What a model's generation_config.json says; it takes effect where the request says nothing (vLLM's rule).
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> sampling_top_k;
  RepetitionDetection repetition_detection;  // of --repetition-detection
  std::optional<int> max_tokens;  // max_new_tokens: also an upper bound of an absent max_tokens
};

// {"max_pattern_size": 32, "min_pattern_size": 1, "min_count": 4}, for the server's default. Errors name the field.
Result<RepetitionDetection> parse_repetition_detection(std::string_view json);

struct ParseLimits {
  SamplingDefaults defaults;
  int vocab_size = 0;
  int max_logprobs = 20;
  int max_model_len = 0;
  bool return_tokens_as_token_ids = false;  // where the request does not say it
  int stream_interval = 1;                  // at least
};

// What chat and completions have in common.
struct ApiRequest {
  std::string model;        // as requested; empty = the served one
  SamplingParams sampling;  // max_tokens is 1 until the front-end resolves max_tokens below
  std::optional<int> max_tokens;
  bool caps_max_tokens = false;  // to the room that the prompt leaves, instead of an error
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool collect_metrics = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  bool add_special_tokens = false;
  int stream_interval = 1;                        // tokens of a chunk
  std::optional<int64_t> truncate_prompt_tokens;  // -1: as many as leave room for max_tokens
  bool truncates_end = false;                     // else the beginning
  int priority = 0;
  std::string cache_salt;
  std::string request_id;                                     // the body's request_id; empty = from the header
  std::string answer_id;                                      // of the answer where it is another one
  std::optional<TraceContext> trace_parent;                   // of the header traceparent
  std::shared_ptr<const StructuredOutput> structured_output;  // null: any text
  std::vector<int32_t> allowed_token_ids;                     // empty: all
  std::vector<std::string> bad_words;                         // none is empty or white space only
  std::vector<int32_t> bad_token_ids;                         // never chosen
  std::vector<std::pair<std::string, std::optional<float>>> text_biases;  // of each token of a text; none: never chosen
  std::optional<std::vector<std::string_view>> samplers;  // llama-server's names as asked for; what is off may be named
  BeamSearchParams beams;  // width 0: none
  bool speculate = true;
  std::optional<bool> relaxed_acceptance;  // nullopt: as the server does
  std::vector<std::string> speculative_reference;
  std::vector<std::string> unknown_fields;
  std::vector<std::string> no_effect_fields;
};

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

struct ChatRequest : ApiRequest {
  std::shared_ptr<const nlohmann::ordered_json> messages;  // checked; content is a string, a list of text parts or null
  std::shared_ptr<const nlohmann::ordered_json> tools;     // null when there are none
  std::shared_ptr<const nlohmann::ordered_json> documents;        // null when there are none
  std::shared_ptr<const nlohmann::ordered_json> template_kwargs;  // never null; an object
  std::optional<std::string> chat_template;                       // in place of the server's
  ToolChoice tool_choice = ToolChoice::kNone;                     // other than kNone only with tools
  std::string named_function;                                     // kNamed
  bool parallel_tool_calls = true;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool echo = false;
  bool include_reasoning = true;
  bool separate_reasoning = true;  // else the content begins with it, as the model wrote it
  bool drops_old_turns = false;  // of a conversation that does not fit; else that is an error
  bool gathers_instructions = false;  // in front, where the template has no other place for them; else that is an error
  std::optional<int> max_reasoning_tokens;
};

using TextOrTokens = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest : ApiRequest {
  std::vector<TextOrTokens> prompts;  // at least one
  bool echo = false;
  bool score_only = false;  // max_tokens 0 with echo: nothing is generated
};

struct EmbeddingsRequest : ApiRequest {
  std::vector<TextOrTokens> inputs;      // at least one
  std::vector<std::string> input_names;  // in errors; empty: as /v1/embeddings calls them
  bool as_base64 = false;
  std::optional<int> dimensions;
  std::optional<bool> normalize;  // absent: as the model is configured
};

// /score and /rerank: `inputs` are the queries, then the documents.
struct ScoreRequest : EmbeddingsRequest {
  size_t num_queries = 1;  // 1, or one for each document
  size_t top_n = 0;        // rerank: results, best first; 0: all
  bool return_documents = true;
  bool is_list = false;  // rerank: the answer is the list of results alone, as Text Embeddings Inference has it
};

struct AbortRequest {
  std::vector<std::string> request_ids;
  bool is_all = false;
};

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;  // or a chat:
  ChatRequest chat;
  bool add_special_tokens = true;
  bool return_token_strs = false;
  bool with_pieces = false;      // each token with its text
  bool content_dialect = false;  // llama-server's {"content"}: the answer has tokens only
  std::vector<std::string> unknown_fields;
  std::vector<std::string> no_effect_fields;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> token_ids;
  std::vector<std::string> unknown_fields;
};

struct AllowedTokensRequest {
  std::string model;
  std::shared_ptr<const StructuredOutput> structured_output;
  std::vector<int32_t> token_ids;  // of the answer so far
  std::vector<std::string> unknown_fields;
};

ApiResult<ChatRequest> parse_chat_request(std::string_view body, const ParseLimits& limits);
ApiResult<ChatRequest> read_chat_request(const nlohmann::ordered_json& body, const ParseLimits& limits);
// Anthropic's /v1/messages, translated to a chat, whose body is left in `translated` where it is not null; counts_only:
// /v1/messages/count_tokens.
ApiResult<ChatRequest> parse_messages_request(std::string_view body, const ParseLimits& limits, bool counts_only,
                                              nlohmann::ordered_json* translated = nullptr);
// vLLM's /inference/v1/generate, translated to a completion.
ApiResult<CompletionRequest> parse_tokens_request(std::string_view body, const ParseLimits& limits);
ApiResult<CompletionRequest> read_completion_request(const nlohmann::ordered_json& body, const ParseLimits& limits);
ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const ParseLimits& limits);
ApiResult<EmbeddingsRequest> parse_embeddings_request(std::string_view body, const ParseLimits& limits);
// llama-server's /embedding: `content`, or /v1/embeddings' own fields.
ApiResult<EmbeddingsRequest> parse_llama_embeddings_request(std::string_view body, const ParseLimits& limits);
ApiResult<ScoreRequest> parse_score_request(std::string_view body, const ParseLimits& limits);
ApiResult<ScoreRequest> parse_rerank_request(std::string_view body, const ParseLimits& limits);
ApiResult<AbortRequest> parse_abort_request(std::string_view body);
ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const ParseLimits& limits);
ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body, const ParseLimits& limits);
ApiResult<AllowedTokensRequest> parse_allowed_tokens_request(std::string_view body, const ParseLimits& limits);

}  // namespace spate
