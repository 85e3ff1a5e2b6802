// Answers of /inference/v1/generate: token ids, and their log-probabilities when asked.
#include <utility>

#include "server/api_response.h"

namespace spate {
namespace {

class TokensWhole final : public GenerationListener {
 public:
  TokensWhole(const CompletionRequest& request, ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : has_logprobs_(request.sampling.logprobs.has_value()),
        has_prompt_logprobs_(request.sampling.prompt_logprobs.has_value()),
        collect_metrics_(request.collect_metrics),
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
      json.key("logprobs");
      if (has_logprobs_) {
        json.begin_object().key("content").begin_array();
        for (const TokenLogprobs& token : choice.logprobs) write_chat_logprob(json, *info_.tokenizer, token, true);
        json.end_array().end_object();
      } else {
        json.null();
      }
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
  return std::make_shared<TokensWhole>(request, std::move(info), std::move(responder));
}

}  // namespace spate
