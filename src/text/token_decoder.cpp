#include "text/token_decoder.h"

#include <algorithm>

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace spate {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (size_t pos = 0; (pos = text.find(from, pos)) != std::string::npos; pos += to.size())
    text.replace(pos, from.size(), to);
}

std::string replace_matches(const ReplaceDecoder& replace, std::string_view token) {
  std::string out;
  for_each_match(replace.pattern, token, [&](size_t start, size_t end, bool is_match) {
    out += is_match ? std::string_view(replace.content) : token.substr(start, end - start);
  });
  return out;
}

// English spacing, in this order: "do n't ." becomes "don't.".
void clean_up_wordpiece(std::string& text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

std::string_view strip_token(const StripDecoder& strip, std::string_view token) {
  for (size_t i = 0; i < strip.start && token.starts_with(strip.content); ++i)
    token.remove_prefix(strip.content.size());
  for (size_t i = 0; i < strip.stop && token.ends_with(strip.content); ++i) token.remove_suffix(strip.content.size());
  return token;
}

std::string metaspace_to_text(const MetaspaceDecoder& metaspace, std::string_view token, bool is_first) {
  std::string out(token);
  const bool drops = is_first && metaspace.prepend_scheme != PrependScheme::kNever;
  replace_all(out, metaspace.replacement, drops ? "" : " ");
  return out;
}

}  // namespace

void TokenDecoder::add_stage(DecoderStage stage) {
  const auto fuses = [](const Entry& entry) {
    return entry.is_fused || std::holds_alternative<FuseDecoder>(entry.stage) ||
           std::holds_alternative<ByteLevelDecoder>(entry.stage);
  };
  const bool is_fused = !stages_.empty() && fuses(stages_.back());
  stages_.push_back({std::move(stage), is_fused});
}

void TokenDecoder::keep_leading_space() {
  for (Entry& entry : stages_) {
    if (auto* strip = std::get_if<StripDecoder>(&entry.stage); strip != nullptr && strip->content == " ") strip->start = 0;
    if (auto* metaspace = std::get_if<MetaspaceDecoder>(&entry.stage)) metaspace->prepend_scheme = PrependScheme::kNever;
  }
}

TokenDecoderStream::TokenDecoderStream(const TokenDecoder& decoder)
    : decoder_(&decoder), states_(decoder.stages_.size()) {}

void TokenDecoderStream::push_bytes(std::string_view bytes, std::string& out) {
  DCHECK(decoder_->is_byte_level());
  std::string& held = states_[0].held;
  if (held.empty()) {
    held = bytes.substr(append_valid_utf8(bytes, false, out));
  } else {
    held += bytes;
    held.erase(0, append_valid_utf8(held, false, out));
  }
}

void TokenDecoderStream::push_at(size_t stage_idx, std::string_view token, std::string& out) {
  if (stage_idx == decoder_->stages_.size()) {
    out += token;
    return;
  }
  const TokenDecoder::Entry& entry = decoder_->stages_[stage_idx];
  State& state = states_[stage_idx];
  if (!entry.is_fused) {
    push_whole(stage_idx, token, out);
  } else if (std::holds_alternative<FuseDecoder>(entry.stage) || std::holds_alternative<JoinDecoder>(entry.stage)) {
    push_at(stage_idx + 1, token, out);
  } else if (const auto* metaspace = std::get_if<MetaspaceDecoder>(&entry.stage)) {
    push_at(stage_idx + 1, metaspace_to_text(*metaspace, token, true), out);
  } else if (const auto* strip = std::get_if<StripDecoder>(&entry.stage)) {
    push_strip_stream(*strip, stage_idx, token, out);
  } else if (const auto* replace = std::get_if<ReplaceDecoder>(&entry.stage);
             replace != nullptr && replace->pattern.kind() == SplitKind::kLiteral) {
    push_replace_stream(*replace, stage_idx, token, out);
  } else {
    state.held += token;  // the rare stages that need the whole text wait for its end
  }
}

// The stage's work on one complete token.
void TokenDecoderStream::push_whole(size_t stage_idx, std::string_view token, std::string& out) {
  const DecoderStage& stage = decoder_->stages_[stage_idx].stage;
  State& state = states_[stage_idx];
  const bool is_first = std::exchange(state.is_first, false);
  if (const auto* replace = std::get_if<ReplaceDecoder>(&stage)) {
    push_at(stage_idx + 1, replace_matches(*replace, token), out);
  } else if (std::holds_alternative<ByteFallbackDecoder>(stage)) {
    if (const auto byte = byte_of_fallback_token(token)) {
      state.held += static_cast<char>(*byte);
    } else {
      flush_byte_run(stage_idx, out);
      push_at(stage_idx + 1, token, out);
    }
  } else if (const auto* strip = std::get_if<StripDecoder>(&stage)) {
    push_at(stage_idx + 1, strip_token(*strip, token), out);
  } else if (const auto* metaspace = std::get_if<MetaspaceDecoder>(&stage)) {
    push_at(stage_idx + 1, metaspace_to_text(*metaspace, token, is_first), out);
  } else if (std::holds_alternative<ByteLevelDecoder>(stage)) {
    state.held += bytes_of_byte_level_token(token).value_or(std::string(token));
    std::string text;
    state.held.erase(0, append_valid_utf8(state.held, false, text));
    push_at(stage_idx + 1, text, out);
  } else if (const auto* word_piece = std::get_if<WordPieceDecoder>(&stage)) {
    std::string text(token);
    if (!is_first) {
      if (text.starts_with(word_piece->prefix))
        text.erase(0, word_piece->prefix.size());
      else
        text.insert(0, " ");
    }
    if (word_piece->cleanup) clean_up_wordpiece(text);
    push_at(stage_idx + 1, text, out);
  } else if (const auto* suffix = std::get_if<BpeSuffixDecoder>(&stage)) {
    std::string previous = std::exchange(state.held, std::string(token));
    replace_all(previous, suffix->suffix, " ");
    if (!is_first) push_at(stage_idx + 1, previous, out);
  } else if (std::holds_alternative<JoinDecoder>(stage)) {
    if (!is_first) push_at(stage_idx + 1, " ", out);
    push_at(stage_idx + 1, token, out);
  } else {
    push_at(stage_idx + 1, token, out);  // Fuse
  }
}

void TokenDecoderStream::flush_byte_run(size_t stage_idx, std::string& out) {
  const std::string run = std::exchange(states_[stage_idx].held, {});
  if (run.empty()) return;
  if (is_valid_utf8(run)) {
    push_at(stage_idx + 1, run, out);
  } else {
    for (size_t i = 0; i < run.size(); ++i) push_at(stage_idx + 1, kReplacementCharacter, out);
  }
}

void TokenDecoderStream::settle(std::string& out) {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!std::holds_alternative<ByteFallbackDecoder>(decoder_->stages_[i].stage)) continue;
    std::string characters;
    states_[i].held.erase(0, append_valid_utf8(states_[i].held, false, characters));
    if (!characters.empty()) push_at(i + 1, characters, out);
  }
}

void TokenDecoderStream::push_strip_stream(const StripDecoder& strip, size_t stage_idx, std::string_view chunk,
                                           std::string& out) {
  State& state = states_[stage_idx];
  while (state.is_first && !chunk.empty()) {
    if (state.num_stripped < strip.start && chunk.starts_with(strip.content)) {
      chunk.remove_prefix(strip.content.size());
      ++state.num_stripped;
    } else {
      state.is_first = false;
    }
  }
  state.held += chunk;
  size_t keep = state.held.size();
  for (size_t i = 0; i < strip.stop && std::string_view(state.held).substr(0, keep).ends_with(strip.content); ++i) {
    keep -= strip.content.size();
  }
  const std::string ready = state.held.substr(0, keep);
  state.held.erase(0, keep);
  if (!ready.empty()) push_at(stage_idx + 1, ready, out);
}

// Holds back the longest end that may be the beginning of a match.
void TokenDecoderStream::push_replace_stream(const ReplaceDecoder& replace, size_t stage_idx, std::string_view chunk,
                                             std::string& out) {
  std::string& held = states_[stage_idx].held;
  held += chunk;
  std::string ready;
  size_t done = 0;
  SplitMatch match;
  while (replace.pattern.find(held, done, &match)) {
    ready.append(held, done, match.start - done);
    ready += replace.content;
    done = match.end;
  }
  size_t keep_from = done;
  for (; keep_from < held.size(); ++keep_from) {
    if (replace.pattern.literal().starts_with(std::string_view(held).substr(keep_from))) break;
  }
  ready.append(held, done, keep_from - done);
  held.erase(0, keep_from);
  if (!ready.empty()) push_at(stage_idx + 1, ready, out);
}

void TokenDecoderStream::flush_at(size_t stage_idx, std::string& out) {
  const TokenDecoder::Entry& entry = decoder_->stages_[stage_idx];
  const bool is_whole_text_stage = entry.is_fused && !std::holds_alternative<StripDecoder>(entry.stage) &&
                                   !std::holds_alternative<MetaspaceDecoder>(entry.stage);
  if (is_whole_text_stage) {
    const std::string text = std::exchange(states_[stage_idx].held, {});
    const auto* replace = std::get_if<ReplaceDecoder>(&entry.stage);
    if (replace != nullptr && replace->pattern.kind() == SplitKind::kLiteral) {
      push_at(stage_idx + 1, text, out);
      return;
    }
    if (!text.empty()) push_whole(stage_idx, text, out);
  }
  State& state = states_[stage_idx];
  if (std::holds_alternative<ByteFallbackDecoder>(entry.stage)) {
    flush_byte_run(stage_idx, out);
  } else if (std::holds_alternative<ByteLevelDecoder>(entry.stage)) {
    std::string text;
    append_valid_utf8(state.held, true, text);
    if (!text.empty()) push_at(stage_idx + 1, text, out);
  } else if (const auto* suffix = std::get_if<BpeSuffixDecoder>(&entry.stage)) {
    std::string last = std::exchange(state.held, {});
    replace_all(last, suffix->suffix, "");
    if (!last.empty()) push_at(stage_idx + 1, last, out);
  }
}

void TokenDecoderStream::finish(std::string& out) {
  for (size_t i = 0; i < states_.size(); ++i) flush_at(i, out);
  std::fill(states_.begin(), states_.end(), State{});
}

}  // namespace spate
