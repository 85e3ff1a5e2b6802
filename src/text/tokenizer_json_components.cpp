#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace spate::tokenizer_json {
namespace {

bool is_single_char(std::string_view text) { return !text.empty() && decode_utf8(text, 0).size_bytes == text.size(); }

Result<std::string> require_char(object from, std::string_view name, std::string_view where) {
  ASSIGN_OR_RETURN(const std::string_view text, require_string(from, name, where));
  if (!is_single_char(text)) return invalid_argument("{}: {} must be one character, is '{}'", where, name, text);
  return std::string(text);
}

// {"String": "..."} or {"Regex": "..."}
Result<SplitMatcher> parse_pattern(object from, std::string_view where) {
  ASSIGN_OR_RETURN(const element value, require_field(from, "pattern", where));
  ASSIGN_OR_RETURN(const object pattern, as_object(value, where));
  element text;
  if (pattern["String"].get(text) == simdjson::SUCCESS) {
    ASSIGN_OR_RETURN(const std::string_view literal, as_string(text, where));
    return SplitMatcher::from_literal(literal);
  }
  if (pattern["Regex"].get(text) == simdjson::SUCCESS) {
    ASSIGN_OR_RETURN(const std::string_view regex, as_string(text, where));
    Result<SplitMatcher> matcher = SplitMatcher::from_regex(regex);
    if (!matcher.ok()) return matcher.status().with_context(where);
    return matcher;
  }
  return invalid_argument("{}: pattern needs String or Regex", where);
}

Result<SplitBehavior> parse_behavior(std::string_view name, std::string_view where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return invalid_argument("{}: unknown behavior '{}'", where, name);
}

Result<PrependScheme> parse_prepend_scheme(object from, std::string_view where) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, bool_or(from, "add_prefix_space", true, where));
  ASSIGN_OR_RETURN(const std::string_view name,
                   string_or(from, "prepend_scheme", add_prefix_space ? "always" : "never", where));
  if (name == "always") return PrependScheme::kAlways;
  if (name == "never") return PrependScheme::kNever;
  if (name == "first") return PrependScheme::kFirst;
  return invalid_argument("{}: unknown prepend_scheme '{}'", where, name);
}

// Calls parse(element, depth + 1) for each member of a Sequence.
template <typename Parse>
Status parse_sequence(object from, std::string_view field, int depth, Parse&& parse) {
  if (depth >= kMaxSequenceDepth) return data_loss("{}: nested more than {} deep", field, kMaxSequenceDepth);
  ASSIGN_OR_RETURN(const array members, require_array(from, field, "Sequence"));
  for (const element member : members) RETURN_IF_ERROR(parse(member, depth + 1));
  return ok_status();
}

}  // namespace

Status parse_normalizer(element value, int depth, Normalizer& normalizer) {
  ASSIGN_OR_RETURN(const object from, as_object(value, "normalizer"));
  ASSIGN_OR_RETURN(const std::string_view type, require_string(from, "type", "normalizer"));
  const std::string where = fmt::format("normalizer {}", type);
  if (type == "Sequence") {
    return parse_sequence(from, "normalizers", depth,
                          [&](element member, int d) { return parse_normalizer(member, d, normalizer); });
  }
  if (type == "NFC")
    normalizer.add_step(UnicodeFormStep{UnicodeForm::kNfc});
  else if (type == "NFD")
    normalizer.add_step(UnicodeFormStep{UnicodeForm::kNfd});
  else if (type == "NFKC")
    normalizer.add_step(UnicodeFormStep{UnicodeForm::kNfkc});
  else if (type == "NFKD")
    normalizer.add_step(UnicodeFormStep{UnicodeForm::kNfkd});
  else if (type == "Lowercase")
    normalizer.add_step(LowercaseStep{});
  else if (type == "StripAccents")
    normalizer.add_step(StripAccentsStep{});
  else if (type == "Nmt")
    normalizer.add_step(NmtStep{});
  else if (type == "ByteLevel")
    normalizer.add_step(NormalizeBytesStep{});
  else if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, bool_or(from, "strip_left", true, where));
    ASSIGN_OR_RETURN(const bool right, bool_or(from, "strip_right", true, where));
    normalizer.add_step(StripStep{left, right});
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(const std::string_view prefix, require_string(from, "prepend", where));
    normalizer.add_step(PrependStep{std::string(prefix)});
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(SplitMatcher pattern, parse_pattern(from, where));
    ASSIGN_OR_RETURN(const std::string_view content, require_string(from, "content", where));
    normalizer.add_step(ReplaceStep{std::move(pattern), std::string(content)});
  } else if (type == "Precompiled") {
    ASSIGN_OR_RETURN(const std::string_view charsmap, string_or(from, "precompiled_charsmap", "", where));
    if (charsmap.empty()) return ok_status();  // written by some converters for "no rules"
    ASSIGN_OR_RETURN(PrecompiledCharsmap parsed, PrecompiledCharsmap::parse_base64(charsmap));
    normalizer.add_step(PrecompiledStep{std::move(parsed)});
  } else if (type == "BertNormalizer") {
    BertStep step;
    ASSIGN_OR_RETURN(step.clean_text, bool_or(from, "clean_text", true, where));
    ASSIGN_OR_RETURN(step.handle_chinese_chars, bool_or(from, "handle_chinese_chars", true, where));
    ASSIGN_OR_RETURN(step.lowercase, bool_or(from, "lowercase", true, where));
    ASSIGN_OR_RETURN(step.strip_accents, bool_or(from, "strip_accents", step.lowercase, where));
    normalizer.add_step(step);
  } else {
    return unimplemented("normalizer: unknown type '{}'", type);
  }
  return ok_status();
}

Status parse_pre_tokenizer(element value, int depth, PreTokenizer& pre_tokenizer) {
  ASSIGN_OR_RETURN(const object from, as_object(value, "pre_tokenizer"));
  ASSIGN_OR_RETURN(const std::string_view type, require_string(from, "type", "pre_tokenizer"));
  const std::string where = fmt::format("pre_tokenizer {}", type);
  const auto add_split = [&](SplitMatcher matcher, SplitBehavior behavior, bool invert = false) {
    pre_tokenizer.add_step(SplitStep{std::move(matcher), behavior, invert});
  };
  if (type == "Sequence") {
    return parse_sequence(from, "pretokenizers", depth,
                          [&](element member, int d) { return parse_pre_tokenizer(member, d, pre_tokenizer); });
  }
  if (type == "ByteLevel") {
    ASSIGN_OR_RETURN(const bool add_prefix_space, bool_or(from, "add_prefix_space", true, where));
    ASSIGN_OR_RETURN(const bool use_regex, bool_or(from, "use_regex", true, where));
    if (add_prefix_space) pre_tokenizer.add_step(PrefixSpaceStep{});
    if (use_regex) add_split(SplitMatcher::from_kind(SplitKind::kGpt2), SplitBehavior::kIsolated);
    pre_tokenizer.add_step(ByteMapStep{});
  } else if (type == "Split") {
    ASSIGN_OR_RETURN(SplitMatcher matcher, parse_pattern(from, where));
    ASSIGN_OR_RETURN(const std::string_view name, require_string(from, "behavior", where));
    ASSIGN_OR_RETURN(const SplitBehavior behavior, parse_behavior(name, where));
    ASSIGN_OR_RETURN(const bool invert, bool_or(from, "invert", false, where));
    add_split(std::move(matcher), behavior, invert);
  } else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(const std::string replacement, require_char(from, "replacement", where));
    ASSIGN_OR_RETURN(const PrependScheme scheme, parse_prepend_scheme(from, where));
    ASSIGN_OR_RETURN(const bool split, bool_or(from, "split", true, where));
    pre_tokenizer.add_step(MetaspaceStep{replacement, scheme});
    if (split) {
      ASSIGN_OR_RETURN(SplitMatcher matcher, SplitMatcher::from_literal(replacement));
      add_split(std::move(matcher), SplitBehavior::kMergedWithNext);
    }
  } else if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, bool_or(from, "individual_digits", false, where));
    add_split(SplitMatcher::from_classes(kCharNumber),
              individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  } else if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const std::string_view name, string_or(from, "behavior", "Isolated", where));
    ASSIGN_OR_RETURN(const SplitBehavior behavior, parse_behavior(name, where));
    add_split(SplitMatcher::from_classes(kCharPunctuation), behavior);
  } else if (type == "Whitespace") {
    add_split(SplitMatcher::from_kind(SplitKind::kWordRun), SplitBehavior::kRemoved, true);
  } else if (type == "WhitespaceSplit") {
    add_split(SplitMatcher::from_classes(kCharSpace), SplitBehavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    add_split(SplitMatcher::from_classes(kCharSpace), SplitBehavior::kRemoved);
    add_split(SplitMatcher::from_classes(kCharPunctuation), SplitBehavior::kIsolated);
  } else if (type == "CharDelimiterSplit") {
    ASSIGN_OR_RETURN(const std::string delimiter, require_char(from, "delimiter", where));
    ASSIGN_OR_RETURN(SplitMatcher matcher, SplitMatcher::from_literal(delimiter));
    add_split(std::move(matcher), SplitBehavior::kRemoved);
  } else {
    return unimplemented("pre_tokenizer: unknown type '{}'", type);
  }
  return ok_status();
}

namespace {

Result<int32_t> as_token_id(element value, std::string_view where) {
  int64_t id = 0;
  if (value.get(id) != simdjson::SUCCESS || id < 0 || id > kMaxTokenId) {
    return data_loss("{}: a token id must be a number from 0 to {}", where, kMaxTokenId);
  }
  return static_cast<int32_t>(id);
}

// ["[SEP]", 102]
Result<int32_t> parse_text_and_id(object from, std::string_view name, std::string_view where) {
  ASSIGN_OR_RETURN(const array pair, require_array(from, name, where));
  element id;
  if (pair.size() != 2 || pair.at(1).get(id) != simdjson::SUCCESS) {
    return invalid_argument("{}: {} must be [text, id]", where, name);
  }
  return as_token_id(id, where);
}

Result<PostProcessorPiece> parse_template_piece(element value, object special_tokens, std::string_view where) {
  ASSIGN_OR_RETURN(const object piece, as_object(value, where));
  element inner;
  if (piece["Sequence"].get(inner) == simdjson::SUCCESS) {
    ASSIGN_OR_RETURN(const object sequence, as_object(inner, where));
    ASSIGN_OR_RETURN(const std::string_view id, require_string(sequence, "id", where));
    if (id != "A") return invalid_argument("{}: template for one text uses sequence '{}'", where, id);
    return PostProcessorPiece{.is_text = true, .ids = {}};
  }
  if (piece["SpecialToken"].get(inner) != simdjson::SUCCESS) {
    return invalid_argument("{}: a template piece needs Sequence or SpecialToken", where);
  }
  ASSIGN_OR_RETURN(const object token, as_object(inner, where));
  ASSIGN_OR_RETURN(const std::string_view name, require_string(token, "id", where));
  element entry;
  if (special_tokens.at_key(name).get(entry) != simdjson::SUCCESS) {
    return invalid_argument("{}: special token '{}' is not in special_tokens", where, name);
  }
  ASSIGN_OR_RETURN(const object entry_object, as_object(entry, where));
  ASSIGN_OR_RETURN(const array ids, require_array(entry_object, "ids", where));
  PostProcessorPiece result;
  for (const element id : ids) {
    ASSIGN_OR_RETURN(const int32_t token_id, as_token_id(id, where));
    result.ids.push_back(token_id);
  }
  return result;
}

}  // namespace

Status parse_post_processor(element value, int depth, PostProcessor& post_processor) {
  ASSIGN_OR_RETURN(const object from, as_object(value, "post_processor"));
  ASSIGN_OR_RETURN(const std::string_view type, require_string(from, "type", "post_processor"));
  const std::string where = fmt::format("post_processor {}", type);
  if (type == "Sequence") {
    return parse_sequence(from, "processors", depth,
                          [&](element member, int d) { return parse_post_processor(member, d, post_processor); });
  }
  if (type == "ByteLevel") return ok_status();  // trims offsets, which we do not keep
  if (type == "TemplateProcessing") {
    ASSIGN_OR_RETURN(const array single, require_array(from, "single", where));
    ASSIGN_OR_RETURN(const element special, require_field(from, "special_tokens", where));
    ASSIGN_OR_RETURN(const object special_tokens, as_object(special, where));
    std::vector<PostProcessorPiece> pieces;
    for (const element piece : single) {
      ASSIGN_OR_RETURN(PostProcessorPiece parsed, parse_template_piece(piece, special_tokens, where));
      pieces.push_back(std::move(parsed));
    }
    post_processor.add_template(std::move(pieces));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    ASSIGN_OR_RETURN(const int32_t cls, parse_text_and_id(from, "cls", where));
    ASSIGN_OR_RETURN(const int32_t sep, parse_text_and_id(from, "sep", where));
    post_processor.add_template({{.ids = {cls}}, {.is_text = true}, {.ids = {sep}}});
  } else {
    return unimplemented("post_processor: unknown type '{}'", type);
  }
  return ok_status();
}

Status parse_decoder(element value, int depth, TokenDecoder& decoder) {
  ASSIGN_OR_RETURN(const object from, as_object(value, "decoder"));
  ASSIGN_OR_RETURN(const std::string_view type, require_string(from, "type", "decoder"));
  const std::string where = fmt::format("decoder {}", type);
  if (type == "Sequence") {
    return parse_sequence(from, "decoders", depth,
                          [&](element member, int d) { return parse_decoder(member, d, decoder); });
  }
  if (type == "ByteLevel")
    decoder.add_stage(ByteLevelDecoder{});
  else if (type == "ByteFallback")
    decoder.add_stage(ByteFallbackDecoder{});
  else if (type == "Fuse")
    decoder.add_stage(FuseDecoder{});
  else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(const std::string replacement, require_char(from, "replacement", where));
    ASSIGN_OR_RETURN(const PrependScheme scheme, parse_prepend_scheme(from, where));
    decoder.add_stage(MetaspaceDecoder{replacement, scheme});
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(SplitMatcher pattern, parse_pattern(from, where));
    ASSIGN_OR_RETURN(const std::string_view content, require_string(from, "content", where));
    decoder.add_stage(ReplaceDecoder{std::move(pattern), std::string(content)});
  } else if (type == "Strip") {
    StripDecoder strip;
    ASSIGN_OR_RETURN(strip.content, require_char(from, "content", where));
    ASSIGN_OR_RETURN(const int64_t start, require_int(from, "start", where));
    ASSIGN_OR_RETURN(const int64_t stop, require_int(from, "stop", where));
    if (start < 0 || stop < 0)
      return invalid_argument("{}: start {} and stop {} must not be negative", where, start, stop);
    strip.start = static_cast<size_t>(start);
    strip.stop = static_cast<size_t>(stop);
    decoder.add_stage(std::move(strip));
  } else if (type == "WordPiece") {
    ASSIGN_OR_RETURN(const std::string_view prefix, string_or(from, "prefix", "##", where));
    ASSIGN_OR_RETURN(const bool cleanup, bool_or(from, "cleanup", true, where));
    decoder.add_stage(WordPieceDecoder{std::string(prefix), cleanup});
  } else if (type == "BPEDecoder") {
    ASSIGN_OR_RETURN(const std::string_view suffix, string_or(from, "suffix", "</w>", where));
    decoder.add_stage(BpeSuffixDecoder{std::string(suffix)});
  } else {
    return unimplemented("decoder: unknown type '{}'", type);
  }
  return ok_status();
}

}  // namespace spate::tokenizer_json
