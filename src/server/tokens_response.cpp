// Answers of /inference/v1/generate, whole or streamed: token ids, and their log-probabilities when asked.
#include <utility>

#include "server/api_response.h"

namespace spate {
namespace {

// With logprobs 0 the only alternative is the token itself, as at vLLM.
void write_tokens_logprobs(JsonWriter& json, const Tokenizer& tokenizer, bool has_logprobs,
                           const std::vector<TokenLogprobs>& logprobs) {
  json.key("logprobs");
  if (!has_logprobs) {
    json.null();
    return;
  }
  json.begin_object().key("content").begin_array();
  for (TokenLogprobs token : logprobs) {
    if (token.top.empty()) token.top = {{.token_id = token.token_id, .logprob = token.logprob}};
    write_chat_logprob(json, tokenizer, token, true);
  }
  json.end_array().end_object();
}

// A chunk for each delta that has tokens, and for each choice's end.
class TokensStream final : public GenerationListener {
 public:
  TokensStream(const CompletionRequest& request, ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : has_logprobs_(request.sampling.logprobs.has_value()),
        include_usage_(request.include_usage || info.force_include_usage),
        continuous_usage_(request.continuous_usage || info.force_include_usage),
        collect_metrics_(request.collect_metrics || info.force_metrics),
        info_(std::move(info)),
        responder_(std::move(responder)) {}

  void on_admitted(const GenerationRequest&) override { responder_->begin_stream({}); }

  void on_delta(ChoiceDelta delta, const GenerationUsage& usage) override {
    if (has_failed_ || responder_->is_gone()) return;
    if (is_failure(delta.finish_reason)) {
      has_failed_ = true;
      responder_->write("data: " + error_json(error_of_delta(delta)) + "\n\ndata: [DONE]\n\n");
      return responder_->end_stream();
    }
    const bool has_ended = delta.finish_reason != FinishReason::kNone;
    if (delta.token_ids.empty() && !has_ended) return;
    JsonWriter json = chunk();
    json.begin_object().field("index", delta.choice);
    write_token_ids(json, "token_ids", delta.token_ids);
    write_tokens_logprobs(json, *info_.tokenizer, has_logprobs_, delta.logprobs);
    if (has_ended) {
      json.field("finish_reason", api_finish_reason(delta.finish_reason, false));
      write_stop_reason(json, delta);
    } else {
      json.null_field("finish_reason");
    }
    json.end_object().end_array();
    if (include_usage_ && continuous_usage_) write_usage(json.key("usage"), usage, -1);
    send(json);
  }

  void on_done(const GenerationUsage& usage) override {
    if (has_failed_) return;
    if (include_usage_ || collect_metrics_) {
      JsonWriter json = chunk();
      json.end_array();
      if (include_usage_) write_usage(json.key("usage"), usage, -1);
      if (collect_metrics_) write_metrics(json, usage);
      send(json);
    }
    responder_->write("data: [DONE]\n\n");
    responder_->end_stream();
  }

 private:
  JsonWriter chunk() const {
    JsonWriter json;
    json.begin_object().field("request_id", info_.id).field("model", info_.model).key("choices").begin_array();
    return json;
  }
  void send(JsonWriter& json) { responder_->write("data: " + json.end_object().take() + "\n\n"); }

  const bool has_logprobs_, include_usage_, continuous_usage_, collect_metrics_;
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  bool has_failed_ = false;
};

class TokensWhole final : public GenerationListener {
 public:
  TokensWhole(const CompletionRequest& request, ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : has_logprobs_(request.sampling.logprobs.has_value()),
        has_prompt_logprobs_(request.sampling.prompt_logprobs.has_value()),
        collect_metrics_(request.collect_metrics || info.force_metrics),
        info_(std::move(info)),
        responder_(std::move(responder)) {
    choices_.resize(static_cast<size_t>(request.sampling.n));
  }

  void on_prompt_logprobs(int, std::vector<TokenLogprobs> logprobs) override { prompt_logprobs_ = std::move(logprobs); }

  void on_delta(ChoiceDelta delta, const GenerationUsage&) override {
    if (has_failed_) return;
    if (is_failure(delta.finish_reason)) {
      has_failed_ = true;
      return responder_->respond(http_response_of(error_of_delta(delta)));
    }
    Choice& choice = choices_[static_cast<size_t>(delta.choice)];
    choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (TokenLogprobs& token : delta.logprobs) choice.logprobs.push_back(std::move(token));
    choice.end = std::move(delta);
  }

  void on_done(const GenerationUsage& usage) override {
    if (has_failed_) return;
    JsonWriter json;
    json.begin_object().field("request_id", info_.id).field("model", info_.model).key("choices").begin_array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      json.begin_object().field("index", static_cast<int>(i));
      write_token_ids(json, "token_ids", choice.token_ids);
      write_tokens_logprobs(json, *info_.tokenizer, has_logprobs_, choice.logprobs);
      json.field("finish_reason", api_finish_reason(choice.end.finish_reason, false));
      write_stop_reason(json, choice.end);
      json.end_object();
    }
    json.end_array().key("prompt_logprobs");
    if (has_prompt_logprobs_) {
      write_prompt_logprobs(json, *info_.tokenizer, prompt_logprobs_);
    } else {
      json.null();
    }
    json.key("usage");
    write_usage(json, usage, -1);
    if (collect_metrics_) write_metrics(json, usage);
    responder_->respond({.body = json.end_object().take()});
  }

 private:
  struct Choice {
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    ChoiceDelta end;
  };
  const bool has_logprobs_, has_prompt_logprobs_, collect_metrics_;
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  std::vector<Choice> choices_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  bool has_failed_ = false;
};

}  // namespace

std::shared_ptr<GenerationListener> make_tokens_response(const CompletionRequest& request, ResponseInfo info,
                                                         std::shared_ptr<HttpResponder> responder) {
  if (request.stream) return std::make_shared<TokensStream>(request, std::move(info), std::move(responder));
  return std::make_shared<TokensWhole>(request, std::move(info), std::move(responder));
}

}  // namespace spate
