#include "text/tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

namespace spate {

Status TokenizerParts::add_token(AddedToken token) {
  if (token.content.empty()) return ok_status();
  if (const int32_t index = find_added(token.content); index >= 0) {
    AddedToken& same = added_tokens[static_cast<size_t>(index)];
    token.id = same.id;
    same = std::move(token);
    return ok_status();
  }
  token.id = vocabulary.find(token.content);
  if (token.id == kNoToken) {
    next_added_id_ = std::max(next_added_id_, first_added_id.value_or(static_cast<int64_t>(vocabulary.num_tokens())));
    if (next_added_id_ > kMaxTokenId)
      return data_loss("added token '{}' would get id {}", token.content, next_added_id_);
    token.id = static_cast<int32_t>(next_added_id_++);
  }
  added_by_content_.assign(token.content, static_cast<int32_t>(added_tokens.size()));
  added_tokens.push_back(std::move(token));
  return ok_status();
}

void TokenizerParts::finish() {
  int32_t vocab_size = vocabulary.size();
  for (const AddedToken& token : added_tokens) vocab_size = std::max(vocab_size, token.id + 1);
  id_entries.resize(static_cast<size_t>(vocab_size));

  std::vector<std::pair<std::string, int32_t>> raw_patterns, normalized_patterns;
  std::vector<std::string_view> special_texts;
  for (size_t i = 0; i < added_tokens.size(); ++i) {
    const AddedToken& token = added_tokens[i];
    IdEntry& entry = id_entries[static_cast<size_t>(token.id)];
    entry.added_index = static_cast<int32_t>(i);
    std::string pattern = token.content;
    if (token.normalized) {
      std::string storage;
      pattern = normalizer.normalize(token.content, storage);
      if (pattern != token.content) {
        entry.decode_text = static_cast<int32_t>(decode_texts.size());
        decode_texts.push_back(pattern);
      }
    }
    (token.normalized ? normalized_patterns : raw_patterns).emplace_back(std::move(pattern), static_cast<int32_t>(i));
    if (token.special) special_texts.push_back(token.content);
  }
  raw_matcher = AddedTokenMatcher(added_tokens, raw_patterns);
  normalized_matcher = AddedTokenMatcher(added_tokens, normalized_patterns);

  // Special is a property of the decoded string, not of the id: the same text under another id is skipped too.
  std::sort(special_texts.begin(), special_texts.end());
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (!contains(id)) continue;
    id_entries[static_cast<size_t>(id)].is_special =
        std::binary_search(special_texts.begin(), special_texts.end(), decode_text(id));
  }
  if (!decoder.has_stages()) decoder.add_stage(JoinDecoder{});
  if (!decoder.is_byte_level()) return;
  token_bytes.resize(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string_view text = decode_text(id);
    token_bytes[static_cast<size_t>(id)] = bytes_of_byte_level_token(text).value_or(std::string(text));
  }
}

bool TokenizerParts::contains(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= id_entries.size()) return false;
  return id_entries[static_cast<size_t>(id)].added_index >= 0 || vocabulary.contains(id);
}

std::string_view TokenizerParts::decode_text(int32_t id) const {
  const IdEntry& entry = id_entries[static_cast<size_t>(id)];
  if (entry.decode_text >= 0) return decode_texts[static_cast<size_t>(entry.decode_text)];
  if (entry.added_index >= 0) return added_tokens[static_cast<size_t>(entry.added_index)].content;
  return vocabulary.text(id);
}

Tokenizer::Tokenizer(std::unique_ptr<TokenizerParts> parts) {
  CHECK(parts != nullptr && parts->model != nullptr);
  parts->finish();
  parts_ = std::move(parts);
  std::vector<int32_t> ids;
  parts_->post_processor.apply(true, ids);
  adds_bos_ = parts_->bos_token && !ids.empty() && ids.front() == parts_->bos_token->id;
}

Tokenizer::~Tokenizer() = default;

namespace {

class ModelSink : public PieceSink {
 public:
  ModelSink(const TokenModel& model, std::vector<int32_t>& ids) : model_(model), ids_(ids) {}
  void add_piece(std::string_view piece) override { model_.tokenize(piece, ids_); }

 private:
  const TokenModel& model_;
  std::vector<int32_t>& ids_;
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::string valid_text;
  if (!is_valid_utf8(text)) {
    valid_text = to_valid_utf8(text);
    text = valid_text;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  ModelSink sink(*parts_->model, ids);
  std::string normalized;
  using Segment = AddedTokenMatcher::Segment;
  parts_->raw_matcher.for_each_segment(text, options.parse_special, [&](const Segment& raw) {
    if (raw.token != nullptr) {
      ids.push_back(raw.token->id);
      return;
    }
    bool keeps_start = true;
    const std::string_view whole = parts_->normalizer.normalize(
        raw.text, normalized, raw.start == 0 && parts_->pre_tokenizer.depends_on_text_start() ? &keeps_start : nullptr);
    parts_->normalized_matcher.for_each_segment(whole, options.parse_special, [&](const Segment& segment) {
      if (segment.token != nullptr) {
        ids.push_back(segment.token->id);
      } else {
        parts_->pre_tokenizer.run(segment.text, raw.start == 0 && segment.start == 0 && keeps_start, sink);
      }
    });
  });
  parts_->post_processor.apply(options.add_special_tokens, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> token_ids, bool skip_special_tokens) const {
  IncrementalDecoder decoder(*this, {.skip_special_tokens = skip_special_tokens});
  std::string text;
  for (const int32_t id : token_ids) text += decoder.append(id);
  return text + decoder.finish();
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(parts_->id_entries.size()); }

std::string_view Tokenizer::token_text(int32_t id) const {
  if (!parts_->contains(id)) return {};
  const int32_t added_index = parts_->id_entries[static_cast<size_t>(id)].added_index;
  if (added_index >= 0) return parts_->added_tokens[static_cast<size_t>(added_index)].content;
  return parts_->vocabulary.text(id);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  if (!parts_->contains(id)) return {};
  if (is_added(id)) return std::string(token_text(id));
  if (!parts_->token_bytes.empty()) return parts_->token_bytes[static_cast<size_t>(id)];
  if (const auto byte = byte_of_fallback_token(token_text(id))) return std::string(1, static_cast<char>(*byte));
  // Between two others the token is neither first nor last: no stripping, no missing space.
  std::string text;
  TokenDecoderStream stream(parts_->decoder);
  std::string before;
  stream.push("x", before);
  stream.push(parts_->decode_text(id), text);
  stream.finish(text);
  return text;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token_text) const {
  if (const int32_t index = parts_->find_added(token_text); index >= 0) {
    return parts_->added_tokens[static_cast<size_t>(index)].id;
  }
  const int32_t id = parts_->vocabulary.find(token_text);
  return id == kNoToken ? std::nullopt : std::optional<int32_t>(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return parts_->contains(id) && parts_->id_entries[static_cast<size_t>(id)].is_special;
}
bool Tokenizer::is_added(int32_t id) const {
  return parts_->contains(id) && parts_->id_entries[static_cast<size_t>(id)].added_index >= 0;
}
const std::optional<SpecialToken>& Tokenizer::bos_token() const { return parts_->bos_token; }
const std::optional<SpecialToken>& Tokenizer::eos_token() const { return parts_->eos_token; }
const std::optional<SpecialToken>& Tokenizer::unk_token() const { return parts_->unk_token; }
const std::optional<SpecialToken>& Tokenizer::pad_token() const { return parts_->pad_token; }
bool Tokenizer::adds_bos() const { return adds_bos_; }
const std::vector<ChatTemplateSource>& Tokenizer::chat_templates() const { return parts_->chat_templates; }

const ChatTemplateSource* Tokenizer::find_chat_template(std::string_view name) const {
  for (const ChatTemplateSource& chat_template : parts_->chat_templates) {
    if (chat_template.name == name) return &chat_template;
  }
  return nullptr;
}

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, DecodeOptions options,
                                       std::span<const int32_t> prompt_ids)
    : tokenizer_(tokenizer), options_(options), stream_(tokenizer.parts_->decoder) {
  // The last few tokens decide: an incomplete character has at most four bytes, a run of byte tokens is short, and
  // any token in front makes the first generated one not the first of the text.
  constexpr size_t kMaxPrimingTokens = 16;
  if (prompt_ids.size() > kMaxPrimingTokens) prompt_ids = prompt_ids.last(kMaxPrimingTokens);
  std::string unused;
  for (const int32_t id : prompt_ids) push(id, unused);
  stream_.settle(unused);
  TokenDecoderStream(stream_).finish(prompt_end_);
}

void IncrementalDecoder::push(int32_t token_id, std::string& out) {
  const TokenizerParts& parts = *tokenizer_.parts_;
  if (!parts.contains(token_id)) return;
  if (options_.skip_special_tokens && parts.id_entries[static_cast<size_t>(token_id)].is_special) return;
  if (!parts.token_bytes.empty()) {
    stream_.push_bytes(parts.token_bytes[static_cast<size_t>(token_id)], out);
  } else {
    stream_.push(parts.decode_text(token_id), out);
  }
}

std::string IncrementalDecoder::append(int32_t token_id) {
  std::string text;
  push(token_id, text);
  text = without_prompt_end(std::move(text));
  if (options_.skip_special_tokens || options_.spaces_between_special_tokens) return text;
  const bool is_added = tokenizer_.is_added(token_id);
  if (is_added && last_was_added_) text = tokenizer_.token_text(token_id);
  last_was_added_ = is_added;
  return text;
}

std::string IncrementalDecoder::finish() {
  std::string text;
  stream_.finish(text);
  return without_prompt_end(std::move(text));
}

std::string IncrementalDecoder::without_prompt_end(std::string text) {
  if (prompt_end_.empty()) return text;
  held_ += text;
  if (held_.size() < prompt_end_.size() && prompt_end_.starts_with(held_)) return {};
  if (held_.starts_with(prompt_end_)) held_.erase(0, prompt_end_.size());
  prompt_end_.clear();
  return std::exchange(held_, {});
}

}  // namespace spate
