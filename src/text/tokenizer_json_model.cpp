#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "base/log.h"
#include "text/bpe_model.h"
#include "text/tokenizer_json.h"
#include "text/unigram_model.h"
#include "text/word_models.h"

namespace spate::tokenizer_json {
namespace {

// {"token": id, ...}
Status parse_vocabulary(object model, std::string_view where, Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const element value, require_field(model, "vocab", where));
  ASSIGN_OR_RETURN(const object vocab, as_object(value, where));
  vocabulary.reserve(vocab.size());
  for (const auto field : vocab) {
    int64_t id = 0;
    if (field.value.get(id) != simdjson::SUCCESS) return data_loss("{}: id of '{}' is no number", where, field.key);
    RETURN_IF_ERROR(vocabulary.add(field.key, id));
  }
  return ok_status();
}

// "a b" or ["a", "b"]
Status parse_merge(element value, size_t rank, std::string_view* left, std::string_view* right) {
  std::string_view line;
  if (value.get(line) == simdjson::SUCCESS) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return data_loss("merges[{}]: '{}' is not two tokens with a space between", rank, line);
    }
    *left = line.substr(0, space);
    *right = line.substr(space + 1);
    return ok_status();
  }
  array pair;
  if (value.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(*left) != simdjson::SUCCESS ||
      pair.at(1).get(*right) != simdjson::SUCCESS) {
    return data_loss("merges[{}]: neither \"a b\" nor [\"a\", \"b\"]", rank);
  }
  return ok_status();
}

Status parse_merges(object model, size_t prefix_bytes, const Vocabulary& vocabulary, MergeTable& merges) {
  ASSIGN_OR_RETURN(const array lines, require_array(model, "merges", "model BPE"));
  size_t num_lines = 0;  // array::size() saturates at 2^24 - 1
  for ([[maybe_unused]] const element line : lines) ++num_lines;
  merges.reserve(num_lines);
  std::string merged;
  uint32_t rank = 0;
  for (const element line : lines) {
    std::string_view left, right;
    if (std::string_view text; line.get(text) == simdjson::SUCCESS && text.starts_with("#version")) continue;
    RETURN_IF_ERROR(parse_merge(line, rank, &left, &right));
    if (right.size() < prefix_bytes) return data_loss("merges[{}]: '{}' lacks the subword prefix", rank, right);
    merged = left;
    merged += right.substr(prefix_bytes);
    const int32_t left_id = vocabulary.find(left), right_id = vocabulary.find(right),
                  merged_id = vocabulary.find(merged);
    if (left_id == kNoToken || right_id == kNoToken || merged_id == kNoToken) {
      return data_loss("merges[{}]: '{}' is not in the vocabulary", rank,
                       left_id == kNoToken    ? left
                       : right_id == kNoToken ? right
                                              : std::string_view(merged));
    }
    merges.assign(left_id, right_id, {rank++, merged_id});
  }
  return ok_status();
}

Status parse_bpe(object from, TokenizerParts& parts) {
  constexpr std::string_view kWhere = "model BPE";
  RETURN_IF_ERROR(parse_vocabulary(from, kWhere, parts.vocabulary));
  BpeOptions options;
  ASSIGN_OR_RETURN(const std::string_view unk, string_or(from, "unk_token", "", kWhere));
  if (!unk.empty()) options.unk_token = std::string(unk);
  ASSIGN_OR_RETURN(options.continuing_subword_prefix, string_or(from, "continuing_subword_prefix", "", kWhere));
  ASSIGN_OR_RETURN(options.end_of_word_suffix, string_or(from, "end_of_word_suffix", "", kWhere));
  ASSIGN_OR_RETURN(options.fuse_unk, bool_or(from, "fuse_unk", false, kWhere));
  ASSIGN_OR_RETURN(options.byte_fallback, bool_or(from, "byte_fallback", false, kWhere));
  ASSIGN_OR_RETURN(options.ignore_merges, bool_or(from, "ignore_merges", false, kWhere));
  double dropout = 0.0;
  if (element value;
      from["dropout"].get(value) == simdjson::SUCCESS && value.get(dropout) == simdjson::SUCCESS && dropout != 0.0) {
    log_warning("tokenizer", "model BPE: dropout {} is for training and has no effect here", dropout);
  }
  MergeTable merges;
  RETURN_IF_ERROR(parse_merges(from, options.continuing_subword_prefix.size(), parts.vocabulary, merges));
  const bool works_on_bytes =
      options.continuing_subword_prefix.empty() && options.end_of_word_suffix.empty() && !options.byte_fallback;
  options.raw_bytes = works_on_bytes && parts.pre_tokenizer.take_final_byte_map();
  parts.model = std::make_unique<BpeModel>(parts.vocabulary, std::move(merges), std::move(options));
  return ok_status();
}

// A number of a JSON text as the `tokenizers` library reads it: the digits as a whole number, then times or divided by
// a power of ten, which is up to one unit in the last place away from the nearest double. Scores of whole texts tie
// often ("aaaaaaa" of "a" and "aaaaa"), and the last bit decides. Digits are those of the shortest text of `number`,
// which is what JSON writers emit.
double as_tokenizers_reads(double number) {
  std::array<char, 32> buffer;
  const char* end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::abs(number), std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));  // "9.294690902562909e+00"
  const size_t mark = std::min(text.find('e'), text.size() - 1);
  const std::string_view mantissa = text.substr(0, mark);
  int exponent = 0;
  std::from_chars(text.data() + mark + (text[mark + 1] == '+' ? 2 : 1), end, exponent);
  uint64_t digits = 0;
  for (const char c : mantissa) digits = c == '.' ? digits : digits * 10 + static_cast<uint64_t>(c - '0');
  if (mantissa.size() > 2) exponent -= static_cast<int>(mantissa.size()) - 2;
  const std::string power_text = fmt::format("1e{}", std::abs(exponent));
  double power = 0;
  const auto parsed = std::from_chars(power_text.data(), power_text.data() + power_text.size(), power);
  if (parsed.ec != std::errc()) return number;  // beyond 10^308
  const auto whole = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? whole / power : whole * power, number);
}

// [["token", score], ...]; the index is the id.
Status parse_unigram(object from, TokenizerParts& parts) {
  constexpr std::string_view kWhere = "model Unigram";
  ASSIGN_OR_RETURN(const array vocab, require_array(from, "vocab", kWhere));
  std::vector<double> scores;
  for (const element entry : vocab) {
    ASSIGN_OR_RETURN(const array pair, as_array(entry, kWhere));
    std::string_view token;
    double score = 0.0;
    if (pair.size() != 2 || pair.at(0).get(token) != simdjson::SUCCESS || pair.at(1).get(score) != simdjson::SUCCESS) {
      return data_loss("{}: vocab[{}] is not [token, score]", kWhere, scores.size());
    }
    RETURN_IF_ERROR(parts.vocabulary.add(token, static_cast<int64_t>(scores.size())));
    scores.push_back(as_tokenizers_reads(score));
  }
  parts.first_added_id = static_cast<int64_t>(scores.size());
  int64_t unk_id = kNoToken;
  if (element value; from["unk_id"].get(value) == simdjson::SUCCESS && !value.is_null()) {
    if (value.get(unk_id) != simdjson::SUCCESS || unk_id < 0 || unk_id >= static_cast<int64_t>(scores.size())) {
      return data_loss("{}: unk_id is not an id of the {} tokens", kWhere, scores.size());
    }
  }
  ASSIGN_OR_RETURN(const bool byte_fallback, bool_or(from, "byte_fallback", false, kWhere));
  parts.model =
      std::make_unique<UnigramModel>(parts.vocabulary, std::move(scores), static_cast<int32_t>(unk_id), byte_fallback);
  return ok_status();
}

Status parse_word_piece(object from, TokenizerParts& parts) {
  constexpr std::string_view kWhere = "model WordPiece";
  RETURN_IF_ERROR(parse_vocabulary(from, kWhere, parts.vocabulary));
  ASSIGN_OR_RETURN(const std::string_view unk, string_or(from, "unk_token", "[UNK]", kWhere));
  ASSIGN_OR_RETURN(const std::string_view prefix, string_or(from, "continuing_subword_prefix", "##", kWhere));
  int64_t max_chars = 100;
  if (element value; from["max_input_chars_per_word"].get(value) == simdjson::SUCCESS) {
    if (value.get(max_chars) != simdjson::SUCCESS || max_chars < 0) {
      return data_loss("{}: max_input_chars_per_word must be a number from 0 on", kWhere);
    }
  }
  parts.model = std::make_unique<WordPieceModel>(parts.vocabulary, parts.vocabulary.find(unk), prefix,
                                                 static_cast<size_t>(max_chars));
  return ok_status();
}

Status parse_word_level(object from, TokenizerParts& parts) {
  constexpr std::string_view kWhere = "model WordLevel";
  RETURN_IF_ERROR(parse_vocabulary(from, kWhere, parts.vocabulary));
  ASSIGN_OR_RETURN(const std::string_view unk, string_or(from, "unk_token", "<unk>", kWhere));
  parts.model = std::make_unique<WordLevelModel>(parts.vocabulary, parts.vocabulary.find(unk));
  return ok_status();
}

}  // namespace

Status parse_model(element value, TokenizerParts& parts) {
  ASSIGN_OR_RETURN(const object from, as_object(value, "model"));
  // Files from before 2020 have no type; only BPE has merges, only Unigram a list as vocabulary.
  element merges, vocab;
  const bool has_merges = from["merges"].get(merges) == simdjson::SUCCESS;
  const bool has_vocab_list = from["vocab"].get(vocab) == simdjson::SUCCESS && vocab.is_array();
  ASSIGN_OR_RETURN(const std::string_view type, string_or(from, "type",
                                                          has_merges       ? "BPE"
                                                          : has_vocab_list ? "Unigram"
                                                                           : "",
                                                          "model"));
  if (type == "BPE") return parse_bpe(from, parts);
  if (type == "Unigram") return parse_unigram(from, parts);
  if (type == "WordPiece") return parse_word_piece(from, parts);
  if (type == "WordLevel") return parse_word_level(from, parts);
  return unimplemented("model: unknown type '{}'", type);
}

}  // namespace spate::tokenizer_json
