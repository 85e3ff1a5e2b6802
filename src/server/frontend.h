// Frontend: parsed API requests to generations: chat template, tokens, limits, then the engine. Knows no HTTP; the
// server, the terminal chat, the evaluation and the benchmarks use the same one.
//
//   Frontend frontend(model, {}, nullptr);
//   auto listener = std::make_shared<CollectingListener>();
//   ApiResult<std::shared_ptr<Generation>> run = frontend.complete(request, listener);
//   if (run.ok()) listener->wait();
//
// Thread-safe. chat(), complete() and the text functions do their work on the calling thread, milliseconds for long
// texts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/api_error.h"
#include "server/api_request.h"
#include "server/chat_output_parser.h"
#include "server/generation.h"
#include "server/serving_model.h"

namespace spate {

struct ChatPrompt {
  std::vector<int32_t> token_ids;
  ChatOutputOptions output;  // how to read what the model will write
  std::string echo;          // text of the last message, to be repeated before the answer when the request has echo
};

// News of one choice of a chat: its text in parts. The other fields are ChoiceDelta's.
struct ChatDelta {
  ChoiceDelta delta;  // delta.text is moved into the parts
  std::vector<ChatPart> parts;
  std::vector<bool> is_content;      // of each token: neither in the reasoning nor in a call
  bool has_tool_calls = false;       // of the choice so far
  int64_t num_reasoning_tokens = 0;  // of all choices so far
};

class ChatListener {
 public:
  virtual ~ChatListener() = default;
  virtual void on_admitted(const GenerationRequest&) {}
  virtual void on_prompt_logprobs(std::vector<TokenLogprobs> /*logprobs*/) {}
  virtual void on_delta(ChatDelta delta, const GenerationUsage& usage_so_far) = 0;
  virtual void on_done(const GenerationUsage& usage) = 0;
};

// What a chat's answer begins with, for generate().
struct ChatAnswerForm {
  const ReasoningFormat* reasoning = nullptr;  // that it may begin with; null: none
  bool starts_in_reasoning = false;            // the prompt ends with its beginning
  std::optional<int> max_reasoning_tokens;
};

// What a structured output lets follow.
struct AllowedTokens {
  int64_t num_allowed = 0;
  std::vector<int32_t> first_ids;  // of them, ascending
  bool may_end = false;
};

class EmbeddingRun;
struct Embeddings;

class Frontend {
 public:
  Frontend(ServingModel model, ServingMetrics* metrics);  // metrics may be null and outlive the front-end
  ~Frontend();                                            // stop the engine first: no generation may be running

  const ServingModel& model() const { return model_; }
  ParseLimits parse_limits() const;
  int max_model_len() const { return model_.engine->config().max_seq_len(); }
  // Empty names are the served model. An error is 404.
  bool serves(std::string_view model_name) const;

  // Text only.
  ApiResult<std::string> render_chat(const ChatRequest& request) const;
  ApiResult<ChatPrompt> prepare_chat(const ChatRequest& request) const;
  // The calls that the answer must or may be, as a structural tag; null: the tools say nothing about its form.
  ApiResult<std::shared_ptr<const nlohmann::ordered_json>> tool_tag(const ChatRequest& request,
                                                                    const ChatPrompt& prompt) const;
  ApiResult<std::vector<int32_t>> encode_prompt(const std::string& text, bool add_special_tokens,
                                                const std::string& param, bool is_truncated = false) const;

  // Cuts the prompts as the request says; how many tokens each may generate. An error where one does not fit.
  ApiResult<std::vector<int>> fit_prompts(const ApiRequest& request, std::vector<std::vector<int32_t>>& prompts,
                                          const std::string& prompt_param) const;
  ApiResult<std::vector<std::vector<int32_t>>> encode_prompts(const CompletionRequest& request) const;

  ApiResult<std::shared_ptr<Generation>> chat(const ChatRequest& request, std::shared_ptr<ChatListener> listener);
  ApiResult<std::shared_ptr<Generation>> complete(const CompletionRequest& request,
                                                  std::shared_ptr<GenerationListener> listener);
  // Ends the generations whose request has this id; it may begin with what the answer's id begins with ("chatcmpl-").
  // False: none runs.
  bool abort(std::string_view request_id);
  std::vector<std::string> abort_all();  // their ids
  // on_done is called once, on the output thread, with what embed() accepted.
  ApiResult<std::shared_ptr<EmbeddingRun>> embed(const EmbeddingsRequest& request,
                                                 std::function<void(Embeddings)> on_done);
  ApiResult<AllowedTokens> allowed_tokens(const StructuredOutput& output, const std::vector<int32_t>& token_ids);
  // Token ids in, for callers that have them. max_tokens absent: the rest of the context. form: of
  // a chat; a structured output holds behind the reasoning that the prompt has begun.
  ApiResult<std::shared_ptr<Generation>> generate(const ApiRequest& request, std::vector<std::vector<int32_t>> prompts,
                                                  std::shared_ptr<GenerationListener> listener,
                                                  const std::string& prompt_param = "prompt",
                                                  const ChatAnswerForm& form = {});

 private:
  ApiResult<ChatPrompt> prepare_whole_chat(const ChatRequest& request) const;                    // no turn is left out
  ApiResult<std::shared_ptr<const ChatTemplate>> template_of(const ChatRequest& request) const;  // null: there is none
  std::shared_ptr<const StructuredOutput> tool_output(const ChatRequest& request,
                                                      const ChatOutputOptions& output) const;
  std::optional<ApiError> allow_some_tokens(const ApiRequest& request, GenerationRequest& generation) const;
  // The tokens of its texts join the biases by id.
  std::optional<ApiError> add_text_biases(const ApiRequest& request, SamplingParams& sampling,
                                          std::vector<int32_t>& bad_token_ids) const;
  void note_running(const std::string& request_id, const std::shared_ptr<Generation>& run);

  const ServingModel model_;
  ServingMetrics* const metrics_;
  const ReasoningFormat* const reasoning_format_;                                  // null: the model has none
  const ToolFormat* const tool_format_;                                            // the same
  bool has_special_reasoning_markers_ = false, has_special_tool_markers_ = false;  // that are special tokens
  size_t longest_token_bytes_ = 1;
  StructuredOutputCompiler structured_outputs_;
  std::atomic<RequestId> next_id_{1};
  std::mutex running_mutex_;                                                 // guards what follows
  std::unordered_multimap<std::string, std::weak_ptr<Generation>> running_;  // by request id; some have ended
  size_t running_limit_ = 256;                                               // then those that have ended go
  WorkPool output_pool_;
};

// Cuts a prompt as truncate_prompt_tokens says; an error where it is empty or has an id that the model lacks.
std::optional<ApiError> fit_prompt(const ApiRequest& request, int max_model_len, int vocab_size,
                                   const std::string& param, std::vector<int32_t>& prompt);
ApiError submit_error(const Status& status);  // why the engine took nothing
// The message that clients match to learn that a prompt is too long.
ApiError context_length_error(int max_model_len, int64_t num_output_tokens, int64_t num_prompt_tokens,
                              const std::string& param);

}  // namespace spate
