#include "server/request_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/step_plan.h"
#include "server/json_parse.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxStopStrings = 64;
constexpr size_t kMaxStopBytes = 1024;  // of a stop string, and of one of bad_words
constexpr size_t kMaxBadWords = 1024;
constexpr int kMaxNamedKeys = 8;  // of a logit_bias, in its message
constexpr size_t kMaxReferences = 64;

void read_float(FieldReader& fields, std::string_view name, float& out) {
  const std::optional<double> value = fields.number(name);
  if (!value) return;
  // Beyond float's range a value would turn into infinity; the range check that follows must see that.
  out = static_cast<float>(*value);
}

void read_stop(FieldReader& fields, SamplingParams& sampling) {
  const Json* stop = fields.any("stop");
  if (!stop) return;
  if (stop->is_string()) {
    sampling.stop = {stop->get<std::string>()};
  } else if (stop->is_array()) {
    for (const Json& item : *stop) {
      if (!item.is_string()) return fields.fail_type("stop", "a string or an array of strings", item);
      sampling.stop.push_back(item.get<std::string>());
      if (sampling.stop.size() > kMaxStopStrings) break;
    }
  } else {
    return fields.fail_type("stop", "a string or an array of strings", *stop);
  }
  if (sampling.stop.size() > kMaxStopStrings) {
    fields.fail("stop", fmt::format("stop has {} strings, at most {} are taken", stop->size(), kMaxStopStrings));
  }
  for (const std::string& text : sampling.stop) {
    if (text.size() > kMaxStopBytes) {
      fields.fail("stop", fmt::format("a stop string has {} bytes, at most {} are taken", text.size(), kMaxStopBytes));
    }
  }
}

// llama-server's form: [[id, bias], ["text", bias], [id, false]]; false: never.
void read_logit_bias_list(FieldReader& fields, const Json& list, ApiRequest& request) {
  constexpr const char* kWanted = "a map of token ids to numbers, or a list of [token id or text, number or false]";
  for (const Json& entry : list) {
    const bool is_pair = entry.is_array() && entry.size() == 2;
    const bool has_key = is_pair && (entry[0].is_string() || has_type(entry[0], FieldType::kInteger));
    if (!has_key || !(entry[1].is_number() || entry[1] == false)) return fields.fail_type("logit_bias", kWanted, entry);
    std::optional<float> bias;  // none: never
    if (entry[1].is_number()) bias = entry[1].get<float>();
    if (entry[0].is_string()) {
      const std::string& text = entry[0].get_ref<const std::string&>();
      if (text.size() > kMaxStopBytes) {
        return fields.fail("logit_bias", fmt::format("a text of logit_bias has {} bytes, at most {} are taken",
                                                     text.size(), kMaxStopBytes));
      }
      if (bias && !(std::abs(*bias) <= 100)) {
        return fields.fail("logit_bias", fmt::format("logit_bias must be in [-100, 100], got {:g} for {}", *bias,
                                                     json_excerpt(entry[0])));
      }
      request.text_biases.emplace_back(text, bias);
      continue;
    }
    const double id = entry[0].get<double>();
    const bool is_token_id = id >= 0 && id <= INT32_MAX;
    const auto token_id = static_cast<int32_t>(is_token_id ? id : -1);  // the check of the ids names it
    request.sampling.logit_bias.emplace_back(token_id, bias.value_or(0));
    if (!bias) request.bad_token_ids.push_back(token_id);
  }
}

void read_logit_bias(FieldReader& fields, ApiRequest& request) {
  const Json* bias = fields.any("logit_bias");
  if (!bias) return;
  SamplingParams& sampling = request.sampling;
  if (bias->size() > static_cast<size_t>(kMaxLogitBias)) {
    return fields.fail("logit_bias",
                       fmt::format("logit_bias has {} entries, at most {} are taken", bias->size(), kMaxLogitBias));
  }
  if (bias->is_array()) return read_logit_bias_list(fields, *bias, request);
  if (!bias->is_object()) return fields.fail_type("logit_bias", "a map of token ids to numbers", *bias);
  std::string bad_keys;
  int num_bad_keys = 0;
  for (const auto& [key, value] : bias->items()) {
    int32_t token_id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token_id);
    if (error != std::errc() || end != key.data() + key.size()) {
      if (++num_bad_keys <= kMaxNamedKeys) bad_keys += (bad_keys.empty() ? "" : ", ") + json_excerpt(key);
      continue;
    }
    if (!value.is_number()) return fields.fail_type("logit_bias", "a map of token ids to numbers", value);
    sampling.logit_bias.emplace_back(token_id, value.get<float>());
  }
  if (num_bad_keys == 0) return;
  const std::string more =
      num_bad_keys > kMaxNamedKeys ? fmt::format(" and {} more", num_bad_keys - kMaxNamedKeys) : "";
  fields.fail("logit_bias", fmt::format("logit_bias must have token ids as keys, got {}{}", bad_keys, more));
}

void read_stream_options(FieldReader& fields, ApiRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (!options) return;
  if (!request.stream) {
    return fields.fail("stream_options", "stream_options can only be set when stream is true");
  }
  FieldReader reader(*options, "stream_options");
  request.include_usage = reader.boolean("include_usage").value_or(false);
  request.continuous_usage = reader.boolean("continuous_usage_stats").value_or(false);
  reader.ignore({"include_obfuscation"});
  if (reader.has_error()) fields.fail(reader.error());
  fields.adopt_unknown(reader);
}

// n answers of `best_of` beams.
void read_beam_search(FieldReader& fields, const SamplingParams& sampling, BeamSearchParams& beams) {
  const bool is_on = fields.boolean("use_beam_search").value_or(false);
  const auto length_penalty = fields.number("length_penalty");
  const Json* early_stopping = fields.any("early_stopping");
  if (!is_on) {
    if (length_penalty.value_or(1) != 1) fields.fail("length_penalty", "length_penalty needs use_beam_search");
    if (early_stopping && *early_stopping != false) {
      fields.fail("early_stopping", "early_stopping needs use_beam_search");
    }
    return;
  }
  beams.length_penalty = static_cast<float>(length_penalty.value_or(1));
  if (early_stopping && early_stopping->is_boolean()) {
    beams.early_stopping = early_stopping->get<bool>() ? EarlyStopping::kAtOnce : EarlyStopping::kHeuristic;
  } else if (early_stopping && *early_stopping != "never") {
    fields.fail_type("early_stopping", "true, false or \"never\"", *early_stopping);
  }
  beams.width = static_cast<int>(fields.integer("best_of").value_or(sampling.n));
  if (beams.width < sampling.n) {
    fields.fail("best_of", fmt::format("best_of must be at least n = {}, got {}", sampling.n, beams.width));
  }
}

// A search for the most probable answers does not draw, and reads the model's own distribution.
void check_beam_search(FieldReader& fields, ApiRequest& request) {
  if (request.beams.width == 0) return;
  SamplingParams& sampling = request.sampling;
  const auto refuse = [&](const char* name, std::string_view wanted) {
    fields.fail(not_supported(name, fmt::format("{} must be {} with use_beam_search", name, wanted)));
  };
  if (request.stream) {
    fields.fail(not_supported("stream",
                              "stream must be false with use_beam_search: which tokens the best answer "
                              "begins with is known at its end"));
  }
  for (const char* name : {"presence_penalty", "frequency_penalty"}) {
    if (fields.number(name).value_or(0) != 0) refuse(name, "0");
  }
  for (const char* name : {"repetition_penalty", "repeat_penalty"}) {
    if (fields.number(name).value_or(1) != 1) refuse(name, "1");
  }
  if (!sampling.logit_bias.empty() || !request.text_biases.empty()) refuse("logit_bias", "absent");
  if (!sampling.logprob_token_ids.empty()) refuse("logprob_token_ids", "absent");
  if (fields.any("repetition_detection") && sampling.repetition_detection.max_pattern_size > 0) {
    refuse("repetition_detection", "absent");
  }
  if (request.max_tokens == 0) fields.fail("max_tokens", "max_tokens must be at least 1 with use_beam_search, got 0");
  // Neither drawn nor bent, whatever the model's defaults.
  sampling.temperature = 1;
  sampling.repetition_penalty = 1;
  sampling.repetition_detection = {};
  for (const char* name : {"temperature", "top_p", "top_k", "min_p", "seed"}) {
    if (fields.any(name)) request.no_effect_fields.emplace_back(name);
  }
}

void read_best_of(FieldReader& fields, const SamplingParams& sampling) {
  const auto best_of = fields.integer("best_of");
  if (!best_of || *best_of == 1 || *best_of == sampling.n) return;
  fields.fail(
      not_supported("best_of", fmt::format("best_of must be 1 or n = {}, got {}: candidates that are not returned are "
                                           "not generated",
                                           sampling.n, *best_of)));
}

// speculate turns drafts off for a request; speculative_reference names texts that the answer may repeat;
// relaxed_acceptance says whether drafts that the model only nearly chose may stand in its reasoning.
void read_speculation(FieldReader& fields, ApiRequest& request) {
  request.speculate = fields.boolean("speculate").value_or(true);
  request.relaxed_acceptance = fields.boolean("relaxed_acceptance");
  const Json* reference = fields.any("speculative_reference");
  if (!reference) return;
  if (reference->is_string()) {
    request.speculative_reference = {reference->get<std::string>()};
    return;
  }
  const bool is_list =
      reference->is_array() && std::ranges::all_of(*reference, [](const Json& item) { return item.is_string(); });
  if (!is_list) return fields.fail_type("speculative_reference", "a string or an array of strings", *reference);
  if (reference->size() > kMaxReferences) {
    return fields.fail("speculative_reference", fmt::format("speculative_reference has {} texts, at most {} are taken",
                                                            reference->size(), kMaxReferences));
  }
  request.speculative_reference = reference->get<std::vector<std::string>>();
}

}  // namespace

namespace {

void read_allowed_tokens(FieldReader& fields, const ParseLimits& limits, ApiRequest& request) {
  const Json* given = fields.any("allowed_token_ids");
  if (!given) return;
  request.allowed_token_ids = fields.token_ids("allowed_token_ids", static_cast<size_t>(limits.vocab_size));
  if (given->is_array() && given->empty())
    fields.fail("allowed_token_ids", "allowed_token_ids must have at least one id");
  for (const int32_t id : request.allowed_token_ids) {
    if (id < limits.vocab_size) continue;
    return fields.fail("allowed_token_ids",
                       fmt::format("allowed_token_ids contains token id {}, the vocabulary has ids 0 to {}", id,
                                   limits.vocab_size - 1));
  }
  if (request.structured_output && !request.allowed_token_ids.empty()) {
    fields.fail("allowed_token_ids",
                fmt::format("allowed_token_ids and {} both say what the answer must look like; give one of them",
                            request.structured_output->param));
  }
}

void read_bad_words(FieldReader& fields, const ParseLimits& limits, ApiRequest& request) {
  for (const int32_t id : fields.token_ids("bad_words_token_ids", static_cast<size_t>(limits.vocab_size))) {
    request.bad_token_ids.push_back(id);
    if (id < limits.vocab_size) continue;
    return fields.fail("bad_words_token_ids",
                       fmt::format("bad_words_token_ids contains token id {}, the vocabulary has ids 0 to {}", id,
                                   limits.vocab_size - 1));
  }
  const Json* words = fields.array("bad_words");
  if (!words) return;
  check_count(fields, "bad_words", *words, kMaxBadWords);
  for (const Json& word : *words) {
    if (fields.has_error()) return;
    if (!word.is_string()) return fields.fail_type("bad_words", "an array of strings", word);
    const std::string& text = word.get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n\f\v") == std::string::npos) {
      return fields.fail("bad_words", "bad_words cannot contain an empty string or one of white space only");
    }
    if (text.size() > kMaxStopBytes) {
      return fields.fail(
          "bad_words", fmt::format("one of bad_words has {} bytes, at most {} are taken", text.size(), kMaxStopBytes));
    }
    request.bad_words.push_back(text);
  }
}

// A field that is absent is 0, in vLLM too; min_pattern_size 0 is 1.
void read_repetition_detection(FieldReader& fields, RepetitionDetection& detection) {
  const Json* given = fields.object("repetition_detection");
  if (!given) return;
  FieldReader reader(*given, "repetition_detection");
  const auto read = [&](const char* name) { return static_cast<int>(reader.integer(name, 0, INT32_MAX).value_or(0)); };
  detection.max_pattern_size = read("max_pattern_size");
  detection.min_pattern_size = std::max(1, read("min_pattern_size"));
  detection.min_count = read("min_count");
  const std::vector<std::string> unknown = reader.unknown_fields();
  if (reader.has_error()) return fields.fail(reader.error());
  if (unknown.empty()) return;
  fields.fail("repetition_detection", fmt::format("repetition_detection.{} is not known; there are max_pattern_size, "
                                                  "min_pattern_size and min_count",
                                                  unknown.front()));
}

void turn_off_penalties(SamplingParams& sampling) {
  sampling.repetition_penalty = 1;
  sampling.presence_penalty = 0;
  sampling.frequency_penalty = 0;
}

// llama-server's repeat_last_n. Its clients send 64 with every request, most of them without a penalty.
void read_penalty_window(FieldReader& fields, const ParseLimits& limits, SamplingParams& sampling) {
  const auto num_tokens = fields.integer("repeat_last_n");
  if (!num_tokens || *num_tokens == -1) return;
  if (*num_tokens == 0) return turn_off_penalties(sampling);
  if (*num_tokens >= limits.max_model_len) return;
  const auto asks = [&](const char* name, double neutral) { return fields.number(name).value_or(neutral) != neutral; };
  if (!asks("repeat_penalty", 1) && !asks("repetition_penalty", 1) && !asks("presence_penalty", 0) &&
      !asks("frequency_penalty", 0)) {
    return;
  }
  fields.fail(
      not_supported("repeat_last_n", fmt::format("repeat_last_n must be -1, 0 or at least {} with a penalty, got "
                                                 "{}: penalties look at all tokens",
                                                 limits.max_model_len, *num_tokens)));
}

// llama-server's samplers, by name or, in a string, by letter. Those it has and this server has not do nothing unless
// their own fields ask for something, which is refused.
constexpr struct {
  std::string_view name;
  char letter;
} kSamplers[] = {{"penalties", 'e'}, {"dry", 'd'},         {"top_n_sigma", 's'}, {"top_k", 'k'},
                 {"typ_p", 'y'},     {"typical_p", 'y'},   {"top_p", 'p'},       {"min_p", 'm'},
                 {"xtc", 'x'},       {"temperature", 't'}, {"infill", 'i'},      {"adaptive_p", 'a'}};

std::string_view sampler_name(char letter) {
  return std::ranges::find_if(kSamplers, [&](const auto& sampler) { return sampler.letter == letter; })->name;
}

// Ours is penalties, temperature, top_k and min_p, top_p. Whether another order draws the same tokens: top_k and min_p
// ask for ranks and for ratios to the best token, which no other cut changes.
bool draws_as_ours(std::string_view letters, const SamplingParams& sampling) {
  constexpr std::string_view kOurs = "etkmp";
  const bool is_drawn = sampling.temperature >= kMinTemperature;
  const auto is_active = [&](char letter) {
    switch (letter) {
      case 'e':
        return sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 || sampling.frequency_penalty != 0;
      case 't':
        return is_drawn && sampling.temperature != 1;
      case 'k':
        return sampling.sampling_top_k > 0;
      case 'm':
        return sampling.min_p > 0;
      default:
        return letter == 'p' && sampling.top_p < 1;
    }
  };
  const auto commute = [&](char a, char b) {
    if (a == b) return a == 'k' || a == 'm';
    return a != 'e' && b != 'e' && (!is_drawn || (a != 'p' && b != 'p'));
  };
  std::string active;
  for (const char letter : letters) {
    if (is_active(letter)) active += letter;
  }
  for (size_t later = 1; later < active.size(); ++later) {
    for (size_t i = 0; i < later; ++i) {
      if (kOurs.find(active[i]) >= kOurs.find(active[later]) && !commute(active[i], active[later])) return false;
    }
  }
  return true;
}

void read_samplers(FieldReader& fields, ApiRequest& request) {
  SamplingParams& sampling = request.sampling;
  const Json* given = fields.any("samplers");
  if (!given) return;
  constexpr const char* kWanted = "a list of samplers' names, or a string of their letters";
  std::string letters;
  if (given->is_string()) {
    letters = given->get<std::string>();
    const auto is_known = [](char c) { return std::ranges::any_of(kSamplers, [c](auto& s) { return s.letter == c; }); };
    if (!std::ranges::all_of(letters, is_known)) return fields.fail_type("samplers", kWanted, *given);
  } else if (given->is_array()) {
    for (const Json& item : *given) {
      const auto* found = std::ranges::find_if(kSamplers, [&](const auto& s) { return item == s.name; });
      if (found == std::end(kSamplers)) return fields.fail_type("samplers", kWanted, item);
      letters += found->letter;
    }
  } else {
    return fields.fail_type("samplers", kWanted, *given);
  }
  request.samplers.emplace();
  for (const char letter : letters) request.samplers->push_back(sampler_name(letter));
  const auto runs = [&](char letter) { return letters.find(letter) != std::string::npos; };
  if (!runs('e')) turn_off_penalties(sampling);
  if (!runs('k')) sampling.sampling_top_k = 0;
  if (!runs('p')) sampling.top_p = 1;
  if (!runs('m')) sampling.min_p = 0;
  if (!runs('t')) sampling.temperature = 1;
  if (!draws_as_ours(letters, sampling)) request.no_effect_fields.emplace_back("samplers (their order)");
  // The ratio of two probabilities at the temperature T is their ratio at 1 to the power of 1 / T.
  const bool is_drawn = sampling.temperature >= kMinTemperature && sampling.min_p > 0;
  if (is_drawn && letters.find('m') < letters.find('t') && runs('t')) {
    sampling.min_p = std::pow(sampling.min_p, 1 / sampling.temperature);
  }
}

}  // namespace

Result<RepetitionDetection> parse_repetition_detection(std::string_view json) {
  auto parsed = parse_json(json);
  if (!parsed.ok()) return invalid_argument("{}", parsed.error().message);
  const Json request{{"repetition_detection", **parsed}};
  FieldReader fields(request);
  SamplingParams params;
  read_repetition_detection(fields, params.repetition_detection);
  if (fields.has_error()) return invalid_argument("{}", fields.error().message);
  RETURN_IF_ERROR(validate_sampling_params(params, 1, 0));
  return params.repetition_detection;
}

void check_count(FieldReader& fields, std::string_view name, const Json& list, size_t max_count) {
  if (list.size() <= max_count) return;
  fields.fail(name, fmt::format("{} has {} entries, at most {} are taken", name, list.size(), max_count));
}

void read_common_fields(FieldReader& fields, const ParseLimits& limits, ApiRequest& request) {
  SamplingParams& sampling = request.sampling;
  const SamplingDefaults& defaults = limits.defaults;
  sampling.temperature = defaults.temperature.value_or(sampling.temperature);
  sampling.top_p = defaults.top_p.value_or(sampling.top_p);
  sampling.min_p = defaults.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = defaults.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.sampling_top_k = defaults.sampling_top_k.value_or(sampling.sampling_top_k);

  request.model = fields.string("model").value_or("");
  read_float(fields, "temperature", sampling.temperature);
  read_float(fields, "top_p", sampling.top_p);
  read_float(fields, "min_p", sampling.min_p);
  read_float(fields, "repeat_penalty", sampling.repetition_penalty);
  read_float(fields, "repetition_penalty", sampling.repetition_penalty);
  read_float(fields, "presence_penalty", sampling.presence_penalty);
  read_float(fields, "frequency_penalty", sampling.frequency_penalty);
  if (const auto top_k = fields.integer("top_k")) sampling.sampling_top_k = static_cast<int>(*top_k);
  for (const char* name : {"n_cmpl", "n"}) {
    if (const auto n = fields.integer(name)) sampling.n = static_cast<int>(*n);
  }
  // A model whose default is greedy still gives several answers to those who ask for them.
  if (sampling.n > 1 && sampling.temperature == 0 && !fields.any("temperature")) sampling.temperature = 1;
  if (const auto seed = fields.integer("seed"); seed && *seed != -1) sampling.seed = static_cast<uint64_t>(*seed);
  for (const char* name : {"min_new_tokens", "min_tokens"}) {
    if (const auto min_tokens = fields.integer(name)) sampling.min_tokens = static_cast<int>(*min_tokens);
  }
  read_penalty_window(fields, limits, sampling);
  read_samplers(fields, request);
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  const bool keeps_stop = fields.boolean("no_stop_trim").value_or(false);
  sampling.include_stop_str_in_output = fields.boolean("include_stop_str_in_output").value_or(keeps_stop);
  sampling.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  sampling.spaces_between_special_tokens = fields.boolean("spaces_between_special_tokens").value_or(true);
  sampling.stop_token_ids = fields.token_ids("stop_token_ids", kMaxStopIds / 2);
  read_stop(fields, sampling);
  sampling.repetition_detection = defaults.repetition_detection;
  read_repetition_detection(fields, sampling.repetition_detection);
  read_logit_bias(fields, request);
  read_stream_options(fields, request);
  request.structured_output = read_structured_output(fields);
  read_allowed_tokens(fields, limits, request);
  read_bad_words(fields, limits, request);
  read_speculation(fields, request);

  sampling.logprob_token_ids = fields.token_ids("logprob_token_ids", kMaxLogprobTokenIds);
  if (const auto count = read_logprobs_count(fields, "prompt_logprobs", limits)) {
    sampling.prompt_logprobs = *count;
    if (request.stream) fields.fail("prompt_logprobs", "prompt_logprobs are not available when stream is true");
  }
  request.collect_metrics = fields.boolean("collect_metrics").value_or(false);
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  request.return_tokens_as_token_ids =
      fields.boolean("return_tokens_as_token_ids").value_or(limits.return_tokens_as_token_ids);
  read_scheduling(fields, request);
  const auto interval = fields.integer("stream_interval");
  request.stream_interval =
      std::max(limits.stream_interval,
               static_cast<int>(interval.value_or(fields.integer("max_streaming_response_tokens").value_or(1))));
  read_beam_search(fields, sampling, request.beams);
  if (request.beams.width == 0) read_best_of(fields, sampling);
  read_truncation(fields, request);
}

std::optional<int> read_logprobs_count(FieldReader& fields, std::string_view name, const ParseLimits& limits) {
  const auto count = fields.integer(name);
  if (!count || *count >= 0) return count ? std::optional<int>(static_cast<int>(*count)) : std::nullopt;
  if (limits.max_logprobs < limits.vocab_size) {
    fields.fail(name, fmt::format("{} must be in [0, {}], got {}: the whole vocabulary is told with --max-logprobs -1",
                                  name, limits.max_logprobs, *count));
  }
  return limits.vocab_size;
}

void read_truncation(FieldReader& fields, ApiRequest& request) {
  if (const auto count = fields.integer("truncate_prompt_tokens")) request.truncate_prompt_tokens = *count;
  const std::string side = fields.string("truncation_side").value_or("left");
  if (side != "left" && side != "right") {
    fields.fail("truncation_side",
                fmt::format("truncation_side must be left or right, got \"{}\"", side.substr(0, 40)));
  }
  request.truncates_end = side == "right";
}

void read_scheduling(FieldReader& fields, ApiRequest& request) {
  request.priority = static_cast<int>(fields.integer("priority").value_or(0));
  const std::optional<std::string> salt = fields.string("cache_salt");
  if (salt && salt->empty()) fields.fail("cache_salt", "cache_salt must not be empty: without one the cache is shared");
  request.cache_salt = salt.value_or("");
  for (const char* name : {"request_id", "rid"}) {
    const std::string id = fields.string(name).value_or("");
    if (id.size() > 128) fields.fail(name, fmt::format("{} has {} bytes, at most 128 are taken", name, id.size()));
    if (request.request_id.empty()) request.request_id = id;
  }
}

void check_sampling(FieldReader& fields, const ParseLimits& limits, ApiRequest& request) {
  check_beam_search(fields, request);
  if (fields.has_error()) return;
  SamplingParams checked = request.sampling;
  // Without a max_tokens, min_tokens is checked against the context here and against the room that is left later.
  checked.max_tokens = std::max(1, request.max_tokens.value_or(limits.max_model_len));
  const Status status = validate_sampling_params(checked, limits.vocab_size, limits.max_logprobs);
  if (status.ok()) return;
  const std::string param =
      status.message().substr(0, status.message().find(' '));  // the message begins with the field
  fields.fail(bad_request(param, status.message()));
}

void take_ignored_fields(const FieldReader& fields, ApiRequest& request) {
  request.unknown_fields = fields.unknown_fields();
  const std::vector<std::string> no_effect = fields.no_effect_fields();
  request.no_effect_fields.insert(request.no_effect_fields.end(), no_effect.begin(), no_effect.end());
}

}  // namespace spate
