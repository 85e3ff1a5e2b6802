#include "server/relaxed_acceptance.h"

namespace spate {
namespace {

constexpr const char* kField = "--speculative-config: use_relaxed_acceptance_for_thinking";

Result<int32_t> token_of(const Tokenizer& tokenizer, std::string_view marker) {
  const std::vector<int32_t> ids = tokenizer.encode(marker, {.add_special_tokens = false});
  if (ids.size() == 1) return ids.front();
  return invalid_argument(
      "{}: the marker {} of this model's reasoning must be one token, it is {}; leave the field out", kField, marker,
      ids.size());
}

}  // namespace

Result<RelaxedAcceptance> relaxed_acceptance(const SpeculativeConfig& config, const ReasoningFormat* reasoning,
                                             const Tokenizer* tokenizer) {
  if (config.method == SpeculativeMethod::kNone || !config.use_relaxed_acceptance_for_thinking)
    return RelaxedAcceptance{};
  if (reasoning == nullptr || reasoning->is_harmony || tokenizer == nullptr) {
    return invalid_argument(
        "{}: nothing tells where this model's reasoning ends ({}); name its format with --reasoning-parser or leave "
        "the "
        "field out",
        kField,
        tokenizer == nullptr   ? "it has no tokenizer"
        : reasoning == nullptr ? "no format of reasoning is known for it"
                               : "harmony's channels are not supported");
  }
  RelaxedAcceptance relaxed{.top_k = config.relaxed_topk, .delta = config.relaxed_delta};
  ASSIGN_OR_RETURN(relaxed.begin_id, token_of(*tokenizer, reasoning->begin));
  ASSIGN_OR_RETURN(relaxed.end_id, token_of(*tokenizer, reasoning->end));
  return relaxed;
}

RelaxedAcceptance relaxed_after(RelaxedAcceptance of_model, const ReasoningFormat& reasoning, std::string_view text) {
  if (of_model.top_k == 0 || ends_with_tag(text, reasoning.end)) return {};
  of_model.has_begun = ends_with_tag(text, reasoning.begin);
  return of_model;
}

bool ends_with_tag(std::string_view text, std::string_view tag) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && text.substr(0, last + 1).ends_with(tag);
}

}  // namespace spate
