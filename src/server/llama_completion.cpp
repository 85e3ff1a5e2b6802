// llama-server's /completion and /infill.
//
// A completion is one of /v1/completions under llama-server's names, with its own answer; what it does not say has the
// model's defaults, not llama-server's.
#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_handlers.h"
#include "server/infill.h"
#include "server/json_parse.h"
#include "server/llama_api.h"
#include "server/llama_request.h"
#include "server/response_json.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kInfillAnswerShare = 8;  // of the context, that extra files leave to an answer without a limit

std::string_view stop_type(const ChoiceDelta& end) {
  if (end.finish_reason == FinishReason::kLength || end.finish_reason == FinishReason::kRepetition) return "limit";
  return end.stop_string.empty() ? "eos" : "word";
}

void write_token(JsonWriter& json, const Tokenizer& tokenizer, int32_t token_id, float logprob) {
  json.begin_object().field("id", token_id).field("token", token_label(tokenizer, token_id, false));
  json.key("bytes").begin_array();
  for (const char byte : tokenizer.token_bytes(token_id)) json.value(static_cast<int>(static_cast<uint8_t>(byte)));
  json.end_array().field("logprob", json_logprob(logprob));
}

// Finds the first line of an answer that is indented by less than is asked for. The first line goes on where the prompt
// ends; lines without text count for nothing.
class IndentWatch {
 public:
  explicit IndentWatch(int64_t min_indent) : min_indent_(min_indent) {}
  // What comes next; where in it the answer should end, if it should.
  std::optional<size_t> end_in(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') {
        has_new_line_ = is_at_begin_ = true;
        indent_ = 0;
      } else if (is_at_begin_ && (text[i] == ' ' || text[i] == '\t')) {
        ++indent_;
      } else {
        if (is_at_begin_ && indent_ < min_indent_) return i;
        is_at_begin_ = false;
      }
    }
    return std::nullopt;
  }
  bool has_new_line() const { return has_new_line_; }

 private:
  int64_t min_indent_, indent_ = 0;
  bool has_new_line_ = false, is_at_begin_ = false;
};

class LlamaCompletion final : public GenerationListener {
 public:
  LlamaCompletion(const CompletionRequest& request, LlamaOptions options, ResponseInfo info,
                  std::shared_ptr<HttpResponder> responder)
      : is_stream_(request.stream),
        has_logprobs_(request.sampling.logprobs.has_value()),
        return_tokens_(request.return_token_ids),
        n_(request.sampling.n),
        options_(std::move(options)),
        info_(std::move(info)),
        responder_(std::move(responder)) {}

  // How the generation is ended early. Once; deltas may have come before.
  void set_cancel(std::function<void()> cancel) {
    {
      const std::lock_guard lock(mutex_);
      if (!wants_cancel_) cancel_ = std::exchange(cancel, nullptr);
    }
    if (cancel) cancel();
  }

  void on_admitted(const GenerationRequest& request) override {
    for (const std::vector<int32_t>& prompt : request.prompts) {
      prompts_.push_back(info_.tokenizer->decode(prompt, false));
      for (int i = 0; i < n_; ++i) {
        choices_.push_back({.num_prompt_tokens = prompt.size(), .lines = IndentWatch(options_.min_indent)});
      }
    }
    if (is_stream_) responder_->begin_stream({});
  }

  void on_delta(ChoiceDelta delta, const GenerationUsage&) override {
    if (has_failed_ || responder_->is_gone()) return;
    Choice& choice = choices_[static_cast<size_t>(delta.choice)];
    if (choice.is_over) return;
    if (is_failure(delta.finish_reason)) return fail(delta);
    const int choice_idx = delta.choice;
    const bool is_end = delta.finish_reason != FinishReason::kNone;
    if (!options_.is_prefill_only) take(choice, delta);
    if (is_end && !choice.is_over) {
      choice.is_over = true;
      choice.end = std::move(delta);
      if (options_.is_prefill_only) choice.end.finish_reason = FinishReason::kLength;
    } else if (!is_end && choice.is_over && std::ranges::all_of(choices_, &Choice::is_over)) {
      end_generation();
    }
    const bool has_news = !choice.text.empty() || !choice.token_ids.empty() || !choice.logprobs.empty();
    if (!is_stream_ || !has_news) return;
    JsonWriter json;
    write_choice(json, choice_idx, choice);
    responder_->write("data: " + json.field("stop", false).end_object().take() + "\n\n");
    choice.text.clear();
    choice.token_ids.clear();
    choice.logprobs.clear();
  }

  // The times are known when all choices have ended.
  void on_done(const GenerationUsage& usage) override {
    if (has_failed_) return;
    std::string list;
    for (size_t i = 0; i < choices_.size(); ++i) {
      JsonWriter json;
      write_choice(json, static_cast<int>(i), choices_[i]);
      write_end(json, choices_[i], prompts_[i / static_cast<size_t>(n_)], usage);
      std::string text = json.end_object().take();
      if (options_.picks_fields) text = picked_fields(text);
      if (is_stream_) responder_->write("data: " + text + "\n\n");
      list += (i > 0 ? "," : "") + text;
    }
    if (is_stream_) return responder_->end_stream();
    responder_->respond({.body = choices_.size() == 1 ? list : "[" + list + "]"});
  }

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Choice {
    size_t num_prompt_tokens = 0, num_tokens = 0;
    IndentWatch lines{0};
    std::optional<SteadyClock::time_point> first_token;
    bool is_over = false;
    std::string text;  // this and what follows: not told yet
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    ChoiceDelta end;
  };

  // The choice is over where its text or its time ends it.
  void take(Choice& choice, const ChoiceDelta& delta) {
    choice.num_tokens += delta.token_ids.size();
    if (return_tokens_) choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    if (has_logprobs_) std::ranges::copy(delta.logprobs, std::back_inserter(choice.logprobs));
    const std::optional<size_t> end = choice.lines.end_in(delta.text);
    choice.text += end ? delta.text.substr(0, *end) : delta.text;
    const auto now = SteadyClock::now();
    if (!choice.first_token && !delta.token_ids.empty()) choice.first_token = now;
    const bool is_late =
        options_.max_predict_ms > 0 && choice.first_token && choice.lines.has_new_line() &&
        std::chrono::duration<double, std::milli>(now - *choice.first_token).count() > options_.max_predict_ms;
    if (!end && !is_late) return;
    choice.is_over = true;
    choice.end.finish_reason = FinishReason::kLength;
  }

  void end_generation() {
    std::function<void()> cancel;
    {
      const std::lock_guard lock(mutex_);
      wants_cancel_ = true;
      cancel = std::move(cancel_);
    }
    if (cancel) cancel();
  }

  // A name may be a path, "timings/predicted_ms"; it is the name in the answer too.
  std::string picked_fields(const std::string& text) const {
    const Json whole = Json::parse(text);
    Json picked = Json::object();
    for (const std::string& path : options_.response_fields) {
      const Json* value = &whole;
      for (size_t begin = 0; value != nullptr && begin <= path.size();) {
        const size_t end = std::min(path.find('/', begin), path.size());
        const auto found = value->is_object() ? value->find(path.substr(begin, end - begin)) : value->end();
        value = found == value->end() ? nullptr : &*found;
        begin = end + 1;
      }
      if (value != nullptr) picked[path] = *value;
    }
    return picked.dump();
  }

  void write_choice(JsonWriter& json, int index, const Choice& choice) {
    json.begin_object().field("index", index).field("content", choice.text);
    write_token_ids(json, "tokens", choice.token_ids);
    json.field("id_slot", -1).field("tokens_predicted", static_cast<int64_t>(choice.num_tokens));
    json.field("tokens_evaluated", static_cast<int64_t>(choice.num_prompt_tokens));
    if (!has_logprobs_) return;
    json.key("completion_probabilities").begin_array();
    for (const TokenLogprobs& token : choice.logprobs) {
      write_token(json, *info_.tokenizer, token.token_id, token.logprob);
      json.key("top_logprobs").begin_array();
      for (const TokenLogprobs::Top& top : token.top) {
        write_token(json, *info_.tokenizer, top.token_id, top.logprob);
        json.end_object();
      }
      json.end_array().end_object();
    }
    json.end_array();
  }

  void write_end(JsonWriter& json, const Choice& choice, const std::string& prompt, const GenerationUsage& usage) {
    json.field("stop", true).field("model", info_.model).field("truncated", false);
    json.raw_field("generation_settings", options_.settings).field("prompt", prompt);
    json.field("stop_type", stop_type(choice.end)).field("stopping_word", choice.end.stop_string);
    json.field("has_new_line", choice.lines.has_new_line());
    const int64_t num_computed = usage.num_prompt_tokens - usage.num_cached_tokens;
    const double prompt_ms = 1e3 * std::max(0.0, usage.first_token_seconds - usage.queue_seconds);
    const double predicted_ms = 1e3 * usage.generation_seconds;
    const auto write_rate = [&](const std::string& name, int64_t count, double ms) {
      json.field(name + "_n", count).field(name + "_ms", ms);
      json.field(name + "_per_token_ms", count > 0 ? ms / static_cast<double>(count) : 0.0);
      json.field(name + "_per_second", ms > 0 ? 1e3 * static_cast<double>(count) / ms : 0.0);
    };
    json.field("tokens_cached", usage.num_cached_tokens).key("timings").begin_object();
    json.field("cache_n", usage.num_cached_tokens);
    write_rate("prompt", num_computed, prompt_ms);
    write_rate("predicted", options_.is_prefill_only ? 0 : usage.num_completion_tokens, predicted_ms);
    json.end_object();
  }

  void fail(const ChoiceDelta& delta) {
    has_failed_ = true;
    const ApiError error = error_of_delta(delta);
    if (!is_stream_) return responder_->respond(http_response_of(error));
    responder_->write("data: " + error_json(error) + "\n\n");
    responder_->end_stream();
  }

  const bool is_stream_, has_logprobs_, return_tokens_;
  const int n_;
  const LlamaOptions options_;
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  std::vector<std::string> prompts_;  // with the texts of special tokens
  std::vector<Choice> choices_;
  bool has_failed_ = false;

  std::mutex mutex_;  // guards what follows
  std::function<void()> cancel_;
  bool wants_cancel_ = false;
};

ApiOutcome complete(ApiCall& call, IgnoredFields& ignored, Json completion) {
  LlamaOptions options;
  if (std::optional<ApiError> error = take_llama_options(completion, options)) return error;
  const auto encode = [&](std::string text, bool is_first) {
    return call.frontend->encode_prompt(text, is_first, "prompt");
  };
  if (std::optional<ApiError> error = make_prompts_plain(completion, encode)) return error;
  ApiResult<CompletionRequest> request =
      read_llama_completion(std::move(completion), call.frontend->parse_limits(), options);
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  std::shared_ptr<LlamaCompletion> listener;
  const auto make = [&](const CompletionRequest& made, ResponseInfo info, std::shared_ptr<HttpResponder> responder) {
    options.settings = generation_settings_json(made, options.asked, call.frontend->max_model_len());
    return listener =
               std::make_shared<LlamaCompletion>(made, std::move(options), std::move(info), std::move(responder));
  };
  const auto on_run = [&](const std::shared_ptr<Generation>& run) {
    listener->set_cancel([weak = std::weak_ptr<Generation>(run)] {  // a generation holds its listener
      if (const auto live = weak.lock()) live->cancel();
    });
  };
  return run_completion_request(call, *request, "cmpl-", make, on_run);
}

ApiResult<Json> read_object(std::string_view body) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  if (!(**json).is_object()) return bad_request("", "The request body must be a JSON object.");
  return **json;
}

}  // namespace

ApiOutcome handle_llama_completion(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<Json> body = read_object(call.request.body);
  if (!body.ok()) return body.error();
  return complete(call, ignored, std::move(*body));
}

ApiOutcome handle_infill(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<Json> body = read_object(call.request.body);
  if (!body.ok()) return body.error();
  const Tokenizer& tokenizer = *call.frontend->model().tokenizer;
  const std::optional<InfillTokens> tokens = find_infill_tokens(tokenizer);
  if (!tokens) {
    return not_supported("model",
                         "this model does not fill in: its vocabulary has no tokens for prefix, suffix and middle");
  }
  ApiResult<InfillText> text = take_infill_text(*body);
  if (!text.ok()) return text.error();
  const int max_len = call.frontend->max_model_len();
  const Json limit = body->value("n_predict", Json());
  const bool has_limit = limit.is_number_integer() && limit > 0 && limit <= max_len;
  const int reserve = has_limit ? limit.get<int>() : max_len / kInfillAnswerShare;
  const std::vector<int32_t> prompt = infill_prompt(tokenizer, *tokens, *text, static_cast<size_t>(max_len - reserve));
  (*body)["prompt"] = std::vector<uint32_t>(prompt.begin(), prompt.end());
  return complete(call, ignored, std::move(*body));
}

}  // namespace spate
