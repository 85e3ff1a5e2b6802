#include "core/speculative_config.h"

#include "core/step_plan.h"

namespace spate {
namespace {

constexpr int kMaxLookup = 64;

Status in_range(const char* field, int value, int lowest, int highest) {
  if (value >= lowest && value <= highest) return ok_status();
  return invalid_argument("--speculative-config: {} must be in [{}, {}], got {}", field, lowest, highest, value);
}

Status check_relaxed(const SpeculativeConfig& config) {
  if (!config.use_relaxed_acceptance_for_thinking) {
    if (config.relaxed_topk == 1 && config.relaxed_delta == 0 && config.relaxed_by_default) return ok_status();
    return invalid_argument(
        "--speculative-config: relaxed_topk, relaxed_delta and relaxed_by_default count only with "
        "\"use_relaxed_acceptance_for_thinking\": true, which changes answers; add it or leave them out");
  }
  RETURN_IF_ERROR(in_range("relaxed_topk", config.relaxed_topk, 2, kMaxRelaxedTopk));
  if (config.relaxed_delta > 0 && config.relaxed_delta <= 1) return ok_status();
  return invalid_argument("--speculative-config: relaxed_delta must be above 0 and at most 1, got {}",
                          config.relaxed_delta);
}

}  // namespace

std::string_view speculative_method_name(SpeculativeMethod method) {
  switch (method) {
    case SpeculativeMethod::kNone: return "none";
    case SpeculativeMethod::kNgram: return "ngram";
    case SpeculativeMethod::kReference: return "reference";
    case SpeculativeMethod::kDraftModel: return "draft_model";
    case SpeculativeMethod::kMtp: return "mtp";
    case SpeculativeMethod::kEagle:
      return "eagle";
  }
  return "";
}

Status validate_speculative_config(const SpeculativeConfig& config) {
  if (config.method == SpeculativeMethod::kNone) return ok_status();
  RETURN_IF_ERROR(in_range("num_speculative_tokens", config.num_speculative_tokens, 1, kMaxDrafts));
  RETURN_IF_ERROR(check_relaxed(config));
  const bool is_eagle = config.method == SpeculativeMethod::kEagle;
  const bool has_model = is_eagle || config.method == SpeculativeMethod::kDraftModel;
  if (has_model && config.model.empty()) {
    return invalid_argument("--speculative-config: method {} needs the field model: a folder{}",
                            speculative_method_name(config.method), is_eagle ? "" : ", or a *.gguf file");
  }
  if (!has_model && !config.model.empty()) {
    return invalid_argument(
        "--speculative-config: model is a field of the methods draft_model and eagle, got it with {}",
        speculative_method_name(config.method));
  }
  RETURN_IF_ERROR(in_range("prompt_lookup_max", config.prompt_lookup_max, 1, kMaxLookup));
  return in_range("prompt_lookup_min", config.prompt_lookup_min, 1, config.prompt_lookup_max);
}

}  // namespace spate
