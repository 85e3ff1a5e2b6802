// llama-server's own API, as far as its clients need it beside OpenAI's: /apply-template, /props, /slots. Its
// completions are in llama_completion.cpp.
#include "server/llama_api.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api_handlers.h"
#include "server/json_parse.h"
#include "server/json_writer.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDrawnSeed = UINT32_MAX;  // llama-server's word for a seed that nobody gave

constexpr std::string_view kOurSamplers[] = {"penalties", "temperature", "top_k", "min_p", "top_p"};

}  // namespace

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

HttpResponse slots_response(const Frontend& frontend, const EngineInspection& seen, bool fails_when_full) {
  const int num_slots = frontend.model().engine->config().limits.max_num_seqs;
  std::vector<const SequenceInspection*> running;
  for (const SequenceInspection& seq : seen.seqs) {
    if (seq.phase != SequenceInspection::Phase::kWaiting) running.push_back(&seq);
  }
  if (fails_when_full && static_cast<int>(running.size()) >= num_slots) {
    return http_response_of(http_error(503, fmt::format("All {} slots are taken.", num_slots)));
  }
  JsonWriter json;
  json.begin_array();
  for (int i = 0; i < num_slots; ++i) {
    const SequenceInspection* seq = static_cast<size_t>(i) < running.size() ? running[static_cast<size_t>(i)] : nullptr;
    json.begin_object().field("id", i).field("id_task", seq ? static_cast<int64_t>(seq->id) : -1);
    json.field("n_ctx", frontend.max_model_len()).field("is_processing", seq != nullptr);
    if (seq) {
      json.field("speculative", seq->num_drafts > 0).field("n_past", seq->num_computed_tokens);
      json.field("n_prompt_tokens", seq->prompt_len).field("n_prompt_tokens_cache", seq->num_cached_tokens);
      json.field("n_prompt_tokens_processed",
                 std::max(0, std::min(seq->prompt_len, seq->num_computed_tokens) - seq->num_cached_tokens));
      json.key("next_token").begin_object().field("has_next_token", true);
      json.field("n_decoded", seq->num_output_tokens).end_object();
    }
    json.end_object();
  }
  return {.body = json.end_array().take()};
}

std::optional<ApiError> set_lora_adapters(std::string_view body, HttpResponder& responder) {
  const auto list = parse_json(body);
  if (!list.ok()) return list.error();
  if (!(**list).is_array()) return bad_request("", "The request body must be an array of objects with id and scale.");
  for (const Json& adapter : **list) {
    const Json scale = adapter.is_object() ? adapter.value("scale", Json()) : Json();
    if (!scale.is_number() || !adapter.value("id", Json()).is_number_integer()) {
      return bad_request("", fmt::format("An adapter must be an object with an integer id and a number scale, got {}.",
                                         json_excerpt(adapter)));
    }
    if (scale != 0) {
      return not_supported("id", fmt::format("There are no adapters; the id {} is not known.", adapter["id"].dump()));
    }
  }
  responder.respond({.body = R"({"success":true})"});
  return std::nullopt;
}

std::string generation_settings_json(const CompletionRequest& request, const Json& asked, int n_ctx) {
  const SamplingParams& sampling = request.sampling;
  JsonWriter json;
  json.begin_object().field("n_ctx", n_ctx);
  json.field("seed", sampling.seed ? static_cast<int64_t>(*sampling.seed) : kDrawnSeed);
  json.field("temperature", sampling.temperature).field("dynatemp_range", 0).field("dynatemp_exponent", 1);
  json.field("top_k", sampling.sampling_top_k).field("top_p", sampling.top_p);
  const Json min_p = asked.value("min_p", Json());
  json.field("min_p", min_p.is_number() && sampling.min_p > 0 ? min_p.get<float>() : sampling.min_p);
  json.field("top_n_sigma", -1).field("xtc_probability", 0).field("xtc_threshold", 0.1).field("typical_p", 1);
  json.field("repeat_last_n", -1).field("repeat_penalty", sampling.repetition_penalty);
  json.field("presence_penalty", sampling.presence_penalty).field("frequency_penalty", sampling.frequency_penalty);
  json.field("dry_multiplier", 0).field("dry_base", 1.75).field("dry_allowed_length", 2);
  json.field("dry_penalty_last_n", -1).key("dry_sequence_breakers").begin_array().end_array();
  json.field("mirostat", 0).field("mirostat_tau", 5).field("mirostat_eta", 0.1);
  json.key("stop").begin_array();
  for (const std::string& stop : sampling.stop) json.value(stop);
  json.end_array();
  const int n_predict = asked.value("n_predict", Json()) == 0 ? 0 : request.max_tokens.value_or(-1);
  json.field("max_tokens", n_predict).field("n_predict", n_predict).field("n_keep", 0).field("n_discard", 0);
  json.field("ignore_eos", sampling.ignore_eos).field("stream", request.stream);
  json.key("logit_bias").begin_array();
  for (const auto& [token_id, bias] : sampling.logit_bias) {
    json.begin_object().field("bias", bias).field("token", token_id).end_object();
  }
  json.end_array().field("n_probs", sampling.logprobs.value_or(0)).field("min_keep", 0);
  const Json grammar = asked.value("grammar", Json());
  json.field("grammar", grammar.is_string() ? grammar.get<std::string>() : std::string());
  json.key("samplers").begin_array();
  if (request.samplers) {
    for (const std::string_view name : *request.samplers) json.value(name);
  } else {
    for (const std::string_view name : kOurSamplers) json.value(name);
  }
  json.end_array().field("timings_per_token", false).field("post_sampling_probs", false);
  return json.key("lora").begin_array().end_array().end_object().take();
}

}  // namespace spate
