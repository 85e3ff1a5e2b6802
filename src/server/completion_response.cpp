#include <utility>

#include "server/api_response.h"

namespace spate {
namespace {

// Streamed and whole answers differ in when a choice's text goes out; the rest is one class.
class CompletionResponse final : public GenerationListener {
 public:
  CompletionResponse(const CompletionRequest& request, ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : is_stream_(request.stream),
        logprobs_(request.sampling.logprobs.has_value()),
        echo_(request.echo),
        score_only_(request.score_only),
        as_token_ids_(request.return_tokens_as_token_ids),
        return_token_ids_(request.return_token_ids),
        wants_prompt_logprobs_(request.sampling.prompt_logprobs.has_value()),
        include_usage_(request.include_usage || info.force_include_usage),
        continuous_usage_(request.continuous_usage || info.force_include_usage),
        collect_metrics_(request.collect_metrics || info.force_metrics),
        n_(request.sampling.n),
        info_(std::move(info)),
        responder_(std::move(responder)) {
    JsonWriter head;
    head.begin_object();
    write_head(head, info_, "text_completion");
    chunk_head_ = "data: " + head.take() + R"(,"choices":[)";
    if (!echo_) return;
    for (const auto& prompt : request.prompts) {
      const auto* text = std::get_if<std::string>(&prompt);
      prompt_texts_.push_back(text ? *text : info_.tokenizer->decode(std::get<std::vector<int32_t>>(prompt), false));
    }
  }

  void on_admitted(const GenerationRequest& request) override {
    prompt_logprobs_list_.resize(request.prompts.size());
    for (size_t i = 0; i < request.prompts.size() * static_cast<size_t>(n_); ++i) {
      choices_.emplace_back(*info_.tokenizer, as_token_ids_);
    }
    if (return_token_ids_ || (echo_ && logprobs_)) prompt_token_ids_ = request.prompts;
    if (is_stream_) responder_->begin_stream({});
  }

  void on_prompt_logprobs(int prompt_idx, std::vector<TokenLogprobs> logprobs) override {
    prompt_logprobs_list_[static_cast<size_t>(prompt_idx)] = std::move(logprobs);
  }

  void on_delta(ChoiceDelta delta, const GenerationUsage& usage) override {
    if (has_failed_ || responder_->is_gone()) return;
    Choice& choice = choices_[static_cast<size_t>(delta.choice)];
    if (is_failure(delta.finish_reason)) return fail(delta);
    if (!choice.has_begun) begin(choice, delta.choice / n_);
    if (!score_only_) {
      choice.text += delta.text;
      if (logprobs_) {
        for (const TokenLogprobs& token : delta.logprobs) choice.logprobs.add(token);
      }
      if (return_token_ids_) {
        choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      }
    }
    if (is_stream_) {
      const bool is_end = delta.finish_reason != FinishReason::kNone;
      send_chunk(choice, delta.choice, is_end ? &delta : nullptr, usage);  // "" while text is held
    } else if (delta.finish_reason != FinishReason::kNone) {
      choice.end = std::move(delta);
    }
  }

  void on_done(const GenerationUsage& usage) override {
    if (has_failed_) return;
    JsonWriter json;
    json.begin_object();
    write_head(json, info_, "text_completion");
    json.field("system_fingerprint", info_.system_fingerprint).key("choices").begin_array();
    for (size_t i = 0; !is_stream_ && i < choices_.size(); ++i) {
      write_choice(json, choices_[i], static_cast<int>(i), &choices_[i].end);
    }
    json.end_array();
    if (!is_stream_ || include_usage_) write_usage(json.key("usage"), told(usage), -1);
    if (collect_metrics_) write_metrics(json, usage);
    json.end_object();
    if (!is_stream_) return responder_->respond({.body = json.take()});
    if (include_usage_ || collect_metrics_) responder_->write("data: " + json.take() + "\n\n");
    responder_->write("data: [DONE]\n\n");
    responder_->end_stream();
  }

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, bool as_id) : logprobs(tokenizer, as_id) {}
    std::string text;  // not sent yet
    CompletionLogprobs logprobs;
    std::vector<int32_t> token_ids;
    bool has_begun = false, has_told_prompt = false;
    ChoiceDelta end;
  };

  // The engine generates at least one token; where none was asked for, it is not told.
  GenerationUsage told(GenerationUsage usage) const {
    if (score_only_) usage.num_completion_tokens = 0;
    return usage;
  }

  void begin(Choice& choice, int prompt_idx) {
    choice.has_begun = true;
    if (!echo_) return;
    choice.text = prompt_texts_[static_cast<size_t>(prompt_idx)];
    if (!logprobs_) return;
    choice.logprobs.add_first_prompt_token(prompt_token_ids_[static_cast<size_t>(prompt_idx)][0]);
    for (const TokenLogprobs& token : prompt_logprobs_list_[static_cast<size_t>(prompt_idx)])
      choice.logprobs.add(token);
  }

  void write_choice(JsonWriter& json, Choice& choice, int choice_idx, const ChoiceDelta* end) {
    json.begin_object().field("index", choice_idx).field("text", choice.text);
    if (logprobs_ && !choice.logprobs.empty()) {
      json.raw_field("logprobs", choice.logprobs.take());
    } else {
      json.null_field("logprobs");
    }
    if (end) {
      json.field("finish_reason", score_only_ ? "length" : api_finish_reason(end->finish_reason, false));
      write_stop_reason(json, *end);
    } else {
      json.null_field("finish_reason");
    }
    const auto prompt_idx = static_cast<size_t>(choice_idx / n_);
    if (!is_stream_) {
      json.key("prompt_logprobs");
      if (wants_prompt_logprobs_) {
        write_prompt_logprobs(json, *info_.tokenizer, prompt_logprobs_list_[prompt_idx]);
      } else {
        json.null();
      }
    }
    if (return_token_ids_) {
      const bool is_first = !std::exchange(choice.has_told_prompt, true);
      if (is_first) write_token_ids(json, "prompt_token_ids", prompt_token_ids_[prompt_idx]);
      write_token_ids(json, "token_ids", choice.token_ids);
    } else if (!is_stream_) {
      json.null_field("prompt_token_ids").null_field("token_ids");
    }
    json.end_object();
    choice.text.clear();
    choice.token_ids.clear();
  }

  void send_chunk(Choice& choice, int choice_idx, const ChoiceDelta* end, const GenerationUsage& usage) {
    JsonWriter json(std::move(event_));
    json.append(chunk_head_);
    write_choice(json, choice, choice_idx, end);
    json.append("]");
    if (include_usage_) {
      json.append(R"(,"usage":)");
      if (continuous_usage_) {
        write_usage(json, told(usage), -1);
      } else {
        json.append("null");
      }
    }
    json.append("}\n\n");
    event_ = json.take();
    responder_->write(event_);
  }

  void fail(const ChoiceDelta& delta) {
    has_failed_ = true;
    const ApiError error = error_of_delta(delta);
    if (!is_stream_) return responder_->respond(http_response_of(error));
    responder_->write("data: " + error_json(error) + "\n\ndata: [DONE]\n\n");
    responder_->end_stream();
  }

  const bool is_stream_, logprobs_, echo_, score_only_, as_token_ids_, return_token_ids_, wants_prompt_logprobs_;
  const bool include_usage_, continuous_usage_, collect_metrics_;
  const int n_;
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  std::string chunk_head_;  // every chunk's beginning, up to its choice
  std::string event_;       // its room is used again
  std::vector<std::string> prompt_texts_;               // with echo
  std::vector<std::vector<int32_t>> prompt_token_ids_;  // when told
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs_list_;
  std::vector<Choice> choices_;
  bool has_failed_ = false;
};

}  // namespace

std::shared_ptr<GenerationListener> make_completion_response(const CompletionRequest& request, ResponseInfo info,
                                                             std::shared_ptr<HttpResponder> responder) {
  return std::make_shared<CompletionResponse>(request, std::move(info), std::move(responder));
}

}  // namespace spate
