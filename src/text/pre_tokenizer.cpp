#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/byte_alphabet.h"

namespace spate {
namespace {

struct Span {
  size_t start, end;
  bool is_match;
};

// Joins spans by the rule of `behavior`. `first` is the span that a delimiter is merged into: walking forward the
// one before it, walking backward the one after it.
std::vector<Span> merge_spans(const std::vector<Span>& spans, SplitBehavior behavior) {
  std::vector<Span> merged;
  bool previous_is_match = false;
  const bool backward = behavior == SplitBehavior::kMergedWithNext;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = backward ? spans[spans.size() - 1 - i] : spans[i];
    const bool joins = behavior == SplitBehavior::kContiguous ? span.is_match == previous_is_match
                                                              : span.is_match && !previous_is_match;
    previous_is_match = span.is_match;
    if (!joins || merged.empty()) {
      merged.push_back(span);
    } else if (backward) {
      merged.back().start = span.start;
    } else {
      merged.back().end = span.end;
    }
  }
  if (backward) return {merged.rbegin(), merged.rend()};
  return merged;
}

std::string apply_metaspace(const MetaspaceStep& step, std::string_view text, bool is_text_start) {
  std::string out;
  out.reserve(text.size() + step.replacement.size() + text.size() / 4);
  const bool has_prefix = text.starts_with(' ') || text.starts_with(step.replacement);
  const bool wants_prefix =
      step.prepend_scheme == PrependScheme::kAlways || (step.prepend_scheme == PrependScheme::kFirst && is_text_start);
  if (wants_prefix && !has_prefix) out += step.replacement;
  for (const char c : text) {
    if (c == ' ') {
      out += step.replacement;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

bool PreTokenizer::take_final_byte_map() {
  if (steps_.empty() || !std::holds_alternative<ByteMapStep>(steps_.back())) return false;
  steps_.pop_back();
  return true;
}

void PreTokenizer::drop_prefix() {
  std::erase_if(steps_, [](const PreTokenizerStep& step) { return std::holds_alternative<PrefixSpaceStep>(step); });
  for (PreTokenizerStep& step : steps_) {
    if (auto* metaspace = std::get_if<MetaspaceStep>(&step)) metaspace->prepend_scheme = PrependScheme::kNever;
  }
}

void PreTokenizer::add_prefix_space() {
  drop_prefix();
  // Before ByteLevel's own split, if it has one. Its byte map may have been taken off.
  size_t place = steps_.size();
  if (place > 0 && std::holds_alternative<ByteMapStep>(steps_[place - 1])) --place;
  if (place > 0) {
    const auto* split = std::get_if<SplitStep>(&steps_[place - 1]);
    if (split != nullptr && split->matcher.kind() == SplitKind::kGpt2) --place;
  }
  std::vector<PreTokenizerStep> steps;
  steps.reserve(steps_.size() + 1);
  for (size_t i = 0; i < place; ++i) steps.push_back(std::move(steps_[i]));
  steps.emplace_back(PrefixSpaceStep{});
  for (size_t i = place; i < steps_.size(); ++i) steps.push_back(std::move(steps_[i]));
  steps_ = std::move(steps);
}

bool PreTokenizer::depends_on_text_start() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const PreTokenizerStep& step) {
    const auto* metaspace = std::get_if<MetaspaceStep>(&step);
    return metaspace != nullptr && metaspace->prepend_scheme == PrependScheme::kFirst;
  });
}

void PreTokenizer::run_step(size_t step_idx, std::string_view text, bool is_text_start, PieceSink& sink) const {
  if (text.empty()) return;
  if (step_idx == steps_.size()) {
    sink.add_piece(text);
    return;
  }
  const PreTokenizerStep& step = steps_[step_idx];
  if (const auto* split = std::get_if<SplitStep>(&step)) {
    run_split(*split, step_idx, text, is_text_start, sink);
  } else if (std::holds_alternative<PrefixSpaceStep>(step)) {
    if (text.starts_with(' ')) {
      run_step(step_idx + 1, text, is_text_start, sink);
    } else {
      run_step(step_idx + 1, " " + std::string(text), is_text_start, sink);
    }
  } else if (const auto* metaspace = std::get_if<MetaspaceStep>(&step)) {
    run_step(step_idx + 1, apply_metaspace(*metaspace, text, is_text_start), is_text_start, sink);
  } else {
    run_step(step_idx + 1, to_byte_level(text), is_text_start, sink);
  }
}

void PreTokenizer::run_split(const SplitStep& step, size_t step_idx, std::string_view text, bool is_text_start,
                             PieceSink& sink) const {
  const auto emit = [&](size_t start, size_t end) {
    run_step(step_idx + 1, text.substr(start, end - start), is_text_start && start == 0, sink);
  };
  if (step.behavior == SplitBehavior::kIsolated || step.behavior == SplitBehavior::kRemoved) {
    const bool removes = step.behavior == SplitBehavior::kRemoved;
    for_each_match(step.matcher, text, [&](size_t start, size_t end, bool is_match) {
      if (!removes || is_match == step.invert) emit(start, end);
    });
    return;
  }
  std::vector<Span> spans;
  for_each_match(step.matcher, text, [&](size_t start, size_t end, bool is_match) {
    spans.push_back({start, end, is_match != step.invert});
  });
  for (const Span& span : merge_spans(spans, step.behavior)) emit(span.start, span.end);
}

}  // namespace spate
