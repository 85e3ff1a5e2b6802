// tokenizer_golden_test.cpp
//
// Goal     Every kind of tokenizer gives, id for id and letter for letter, what Hugging Face `tokenizers` gives.
// Method   Goldens made by tools/goldens/make_tokenizer_goldens.py: 20 small tokenizers, some 480 texts each in
//          many scripts, with and without special tokens, decoded back; and random id lists decoded, whole and token
//          by token, where the pieces must add up and no piece may hold half a character.

#include <simdjson.h>

#include "base/test_support.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#include "base/test.h"

namespace spate {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;

const char* const kKinds[] = {"gpt2",
                              "roberta",
                              "llama3",
                              "qwen2",
                              "deepseek_v3",
                              "deepseek_llm",
                              "o200k",
                              "added_lowercase",
                              "llama2_legacy",
                              "llama2_first",
                              "llama2_never",
                              "bpe_metaspace_unk",
                              "t5",
                              "unigram_bytes",
                              "bert",
                              "bert_cased",
                              "bpe_suffix",
                              "bpe_prefix",
                              "split_behaviors",
                              "word_level"};

std::filesystem::path golden(const std::string& file) { return repo_root() / "test" / "goldens" / "tokenizer" / file; }

std::unique_ptr<const Tokenizer> load_kind(const std::string& kind) {
  auto tokenizer = Tokenizer::from_json(read_file_or_die(golden(kind + ".tokenizer.json")), "");
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
  return *std::move(tokenizer);
}

std::vector<int32_t> to_ids(element value) {
  std::vector<int32_t> ids;
  for (const element id : value.get_array()) ids.push_back(static_cast<int32_t>(id.get_int64().value()));
  return ids;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens) {
  IncrementalDecoder decoder(tokenizer, {.skip_special_tokens = skip_special_tokens});
  std::string text;
  bool is_whole = true;
  for (const int32_t id : ids) {
    const std::string piece = decoder.append(id);
    is_whole = is_whole && is_valid_utf8(piece);
    text += piece;
  }
  CHECK(is_whole);
  return text + decoder.finish();
}

TEST_CASE("tokenizer goldens: encode and decode as Hugging Face does") {
  for (const std::string kind : kKinds) {
    CAPTURE(kind);
    const auto tokenizer = load_kind(kind);
    simdjson::dom::parser parser;
    const element root = parser.load(golden(kind + ".cases.json").string());
    int num_texts = 0;
    for (const element entry : root["encode"].get_array()) {
      const array fields = entry.get_array();
      const std::string text(fields.at(0).get_string().value());
      const std::vector<int32_t> expected = to_ids(fields.at(1).value());
      CAPTURE(text);
      CHECK(tokenizer->encode(text) == expected);
      const std::vector<int32_t> with_special = fields.at(2).is_null() ? expected : to_ids(fields.at(2).value());
      CHECK(tokenizer->encode(text, {.add_special_tokens = true}) == with_special);
      const std::string decoded(fields.at(3).is_null() ? text : std::string(fields.at(3).get_string().value()));
      CHECK(tokenizer->decode(expected, false) == decoded);
      CHECK(streamed(*tokenizer, expected, false) == decoded);
      ++num_texts;
    }
    CHECK(num_texts >= 380);
  }
}

TEST_CASE("tokenizer goldens: random ids decode as Hugging Face decodes them") {
  for (const std::string kind : kKinds) {
    CAPTURE(kind);
    const auto tokenizer = load_kind(kind);
    simdjson::dom::parser parser;
    const element root = parser.load(golden(kind + ".cases.json").string());
    for (const element entry : root["decode"].get_array()) {
      const array fields = entry.get_array();
      const std::vector<int32_t> ids = to_ids(fields.at(0).value());
      CAPTURE(simdjson::minify(fields.at(0).value()));
      for (const bool skip : {false, true}) {
        const std::string expected(fields.at(skip ? 2 : 1).get_string().value());
        CHECK(tokenizer->decode(ids, skip) == expected);
        CHECK(streamed(*tokenizer, ids, skip) == expected);
      }
    }
  }
}

}  // namespace
}  // namespace spate
