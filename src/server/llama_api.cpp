// llama-server's own API, as far as its clients need it beside OpenAI's: /apply-template, /props, /slots. Its
// completions are in llama_completion.cpp.
#include "server/llama_api.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api_handlers.h"
#include "server/json_writer.h"

namespace spate {

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

}  // namespace spate
