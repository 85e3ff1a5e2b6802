// llama-server's own API, as far as its clients need it beside OpenAI's: /completion, /apply-template and /props.
//
// A completion is one of /v1/completions under llama-server's names, with its own answer; what it does not say has the
// model's defaults, not llama-server's.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_handlers.h"
#include "server/json_parse.h"
#include "server/response_json.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

ApiResult<CompletionRequest> read_llama_completion(const Json& body, const ParseLimits& limits) {
  if (!body.is_object()) return bad_request("", "The request body must be a JSON object.");
  Json completion = body;
  const auto is_given = [&](const char* name) { return !completion.value(name, Json()).is_null(); };
  for (const char* name : {"echo", "suffix", "stream_options", "return_tokens_as_token_ids", "use_beam_search"}) {
    const Json value = completion.value(name, Json());
    if (value.is_null() || value == false || value == "") continue;
    return not_supported(name, fmt::format("{} is not taken by /completion; use /v1/completions", name));
  }
  const auto rename = [&](const char* name, const char* ours) {
    if (const Json value = completion.value(name, Json()); !value.is_null()) completion[ours] = value;
    completion.erase(name);
  };
  if (completion.value("n_probs", Json()) == 0) completion.erase("n_probs");
  rename("n_probs", "logprobs");
  rename("return_tokens", "return_token_ids");
  if (!is_given("max_tokens") && !is_given("max_completion_tokens") && !is_given("n_predict")) {
    completion["max_tokens"] = -1;
  } else if (completion.value("n_predict", Json()) == -1 && !is_given("max_tokens")) {
    completion["max_tokens"] = -1;
  }
  ApiResult<CompletionRequest> request = read_completion_request(completion, limits);
  if (request.ok()) return request;
  return with_field_name(with_field_name(request.error(), "logprobs", "n_probs"), "return_token_ids", "return_tokens");
}

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

class LlamaCompletion final : public GenerationListener {
 public:
  LlamaCompletion(const CompletionRequest& request, ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : is_stream_(request.stream),
        has_logprobs_(request.sampling.logprobs.has_value()),
        return_tokens_(request.return_token_ids),
        n_(request.sampling.n),
        info_(std::move(info)),
        responder_(std::move(responder)) {}

  void on_admitted(const GenerationRequest& request) override {
    for (const std::vector<int32_t>& prompt : request.prompts) {
      for (int i = 0; i < n_; ++i) choices_.push_back({.num_prompt_tokens = prompt.size()});
    }
    if (is_stream_) responder_->begin_stream({});
  }

  void on_delta(ChoiceDelta delta, const GenerationUsage&) override {
    if (has_failed_ || responder_->is_gone()) return;
    if (is_failure(delta.finish_reason)) return fail(delta);
    Choice& choice = choices_[static_cast<size_t>(delta.choice)];
    choice.num_tokens += delta.token_ids.size();
    choice.text += delta.text;
    if (return_tokens_) choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    if (has_logprobs_) std::ranges::move(delta.logprobs, std::back_inserter(choice.logprobs));
    const int choice_idx = delta.choice;
    const bool is_end = delta.finish_reason != FinishReason::kNone;
    if (is_end) choice.end = std::move(delta);
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
      write_end(json, choices_[i], usage);
      const std::string text = json.end_object().take();
      if (is_stream_) responder_->write("data: " + text + "\n\n");
      list += (i > 0 ? "," : "") + text;
    }
    if (is_stream_) return responder_->end_stream();
    responder_->respond({.body = choices_.size() == 1 ? list : "[" + list + "]"});
  }

 private:
  struct Choice {
    size_t num_prompt_tokens = 0, num_tokens = 0;
    std::string text;  // this and what follows: not told yet
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    ChoiceDelta end;
  };

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

  void write_end(JsonWriter& json, const Choice& choice, const GenerationUsage& usage) {
    json.field("stop", true).field("model", info_.model).field("truncated", false);
    json.field("stop_type", stop_type(choice.end)).field("stopping_word", choice.end.stop_string);
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
    write_rate("predicted", usage.num_completion_tokens, predicted_ms);
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
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  std::vector<Choice> choices_;
  bool has_failed_ = false;
};

}  // namespace

std::shared_ptr<GenerationListener> make_llama_response(const CompletionRequest& request, ResponseInfo info,
                                                        std::shared_ptr<HttpResponder> responder) {
  return std::make_shared<LlamaCompletion>(request, std::move(info), std::move(responder));
}

ApiResult<CompletionRequest> parse_llama_completion(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  return read_llama_completion(**json, limits);
}

ApiOutcome handle_apply_template(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<TokenizeRequest> request = parse_tokenize_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  if (request->prompt) return bad_request("messages", "messages is missing", "missing_required_parameter");
  if (!call.frontend->serves(request->model)) return model_not_found(request->model, call.frontend->model().names);
  const ApiResult<std::string> prompt = call.frontend->render_chat(request->chat);
  if (!prompt.ok()) return prompt.error();
  JsonWriter json;
  call.responder->respond({.body = json.begin_object().field("prompt", *prompt).end_object().take()});
  return std::nullopt;
}

ApiOutcome handle_props(ApiCall& call) {
  const ServingModel& model = call.frontend->model();
  const SamplingParams sampling;
  const SamplingDefaults& defaults = model.defaults;
  JsonWriter json;
  json.begin_object().key("default_generation_settings").begin_object().field("n_ctx", call.frontend->max_model_len());
  json.key("params").begin_object();
  json.field("temperature", defaults.temperature.value_or(sampling.temperature));
  json.field("top_k", defaults.sampling_top_k.value_or(sampling.sampling_top_k));
  json.field("top_p", defaults.top_p.value_or(sampling.top_p));
  json.field("min_p", defaults.min_p.value_or(sampling.min_p));
  json.field("repeat_penalty", defaults.repetition_penalty.value_or(sampling.repetition_penalty));
  json.field("n_predict", defaults.max_tokens.value_or(-1)).end_object().end_object();
  json.field("total_slots", model.engine->config().limits.max_num_seqs);
  json.field("model_alias", model.names.front()).field("model_path", model.root);
  json.field("chat_template", model.chat_template ? model.chat_template->source() : std::string());
  const auto text_of = [](const auto& token) { return token ? token->text : std::string(); };
  json.field("bos_token", text_of(model.tokenizer->bos_token()))
      .field("eos_token", text_of(model.tokenizer->eos_token()));
  json.key("modalities").begin_object().field("vision", false).field("audio", false).end_object();
  json.field("build_info", model.system_fingerprint).field("is_sleeping", false).end_object();
  call.responder->respond({.body = json.take()});
  return std::nullopt;
}

}  // namespace spate
