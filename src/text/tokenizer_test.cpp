// tokenizer_test.cpp
//
// Goal     What a server relies on: special tokens and chat templates of the config, streaming that adds up, threads,
//          and a Status that names the part for every bad file.
// Method   Tokenizers written out in the test where a few tokens suffice, the goldens' where a vocabulary is needed.

#include "text/tokenizer.h"

#include <fstream>
#include <map>
#include <thread>

#include "base/rng.h"
#include "base/test_support.h"
#include "text/unicode.h"

#include "base/test.h"

namespace spate {
namespace {

std::string golden_json(const std::string& kind) {
  return read_file_or_die(repo_root() / "test" / "goldens" / "tokenizer" / (kind + ".tokenizer.json"));
}

std::unique_ptr<const Tokenizer> make(std::string_view json, std::string_view config = "") {
  auto tokenizer = Tokenizer::from_json(json, config);
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
  return *std::move(tokenizer);
}

// A SentencePiece-like vocabulary with byte tokens for the three bytes of U+4F60.
constexpr std::string_view kTiny = R"({"added_tokens":[
  {"id":0,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
  {"id":1,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
  "normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false},
  "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
    "pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[0],"tokens":["<s>"]}}},
  "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},
    {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
  "model":{"type":"BPE","unk_token":null,"byte_fallback":true,"vocab":{"<s>":0,"</s>":1,"▁":2,"a":3,"b":4,"▁a":5,"▁b":6,
    "<0xE4>":7,"<0xBD>":8,"<0xA0>":9},"merges":["▁ a",["▁","b"]]}})";

// Ids of transformers 5.23 with these files of test/goldens/tokenizer as tokenizer.json.
TEST_CASE("tokenizer: add_prefix_space of tokenizer_config.json") {
  struct Case {
    const char *kind, *config;
    std::vector<int32_t> ids;  // of "Hello world"
    const char* text;          // of these ids
  };
  const std::vector<int32_t> llama{745, 321, 582, 330, 561, 626, 625}, llama_bare{299, 321, 582, 330, 561, 626, 625};
  const std::vector<int32_t> gpt2{39, 68, 296, 78, 262, 369, 382}, gpt2_space{1181, 68, 296, 78, 262, 369, 382};
  const Case cases[] = {
      {"llama2_first", R"({"tokenizer_class":"LlamaTokenizerFast"})", llama, "Hello world"},
      {"llama2_first", R"({"tokenizer_class":"LlamaTokenizerFast","add_prefix_space":false})", llama_bare, "Hello world"},
      {"llama2_legacy", R"({"tokenizer_class":"LlamaTokenizer","add_prefix_space":false})", llama_bare, "Hello world"},
      {"llama2_legacy", R"({"tokenizer_class":"LlamaTokenizer","add_prefix_space":true})", llama, "Hello world"},
      {"llama2_first", R"({"tokenizer_class":"PreTrainedTokenizerFast","add_prefix_space":false})", llama, "Hello world"},
      {"gpt2", R"({"tokenizer_class":"GPT2TokenizerFast","add_prefix_space":false})", gpt2, "Hello world"},
      {"gpt2", R"({"tokenizer_class":"GPT2Tokenizer","add_prefix_space":true})", gpt2_space, " Hello world"},
      {"gpt2", R"({"tokenizer_class":"PreTrainedTokenizerFast","add_prefix_space":true})", gpt2, "Hello world"},
      {"roberta", R"({"tokenizer_class":"RobertaTokenizerFast","add_prefix_space":true})", {567, 72, 303, 82, 265, 390, 389}, " Hello world"},
      {"qwen2", R"({"tokenizer_class":"Qwen2TokenizerFast","add_prefix_space":true})", {1160, 68, 297, 78, 262, 366, 380}, " Hello world"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.kind);
    CAPTURE(c.config);
    const auto tokenizer = make(golden_json(c.kind), c.config);
    CHECK(tokenizer->encode("Hello world") == c.ids);
    CHECK(tokenizer->decode(c.ids) == c.text);
  }
  CHECK(!Tokenizer::from_json(golden_json("gpt2"), R"({"add_prefix_space":"yes"})").ok());
}

// A text whose beginning a normalizer removed does not begin at its start: no space is put in front. By tokenizers 0.23.3.
TEST_CASE("tokenizer: Metaspace 'first' behind normalizers that remove leading text") {
  struct Case {
    const char *normalizer, *text, *pieces;
  };
  const Case cases[] = {
      {R"({"type":"Strip","strip_left":true,"strip_right":true})", " ab", "ab"},
      {R"({"type":"Strip","strip_left":true,"strip_right":true})", "ab ", "_ab"},
      {R"({"type":"Nmt"})", "\x01" "ab", "ab"},
      {R"({"type":"Nmt"})", "ab\x01", "_ab"},
      {R"({"type":"Replace","pattern":{"String":"x"},"content":""})", "xab", "ab"},
      {R"({"type":"Replace","pattern":{"String":"x"},"content":""})", "abx", "_ab"},
      {R"({"type":"Replace","pattern":{"String":"x"},"content":"yy"})", "xab", "_yyab"},
      {R"({"type":"Replace","pattern":{"String":"xx"},"content":"y"})", "xxab", "yab"},
      {R"({"type":"Replace","pattern":{"String":"xx"},"content":"yyy"})", "xxab", "yyyab"},
      {R"({"type":"Replace","pattern":{"String":"xx"},"content":"y"})", "axxb", "_ayb"},
      {R"({"type":"Replace","pattern":{"Regex":"^"},"content":"y"})", "ab", "_yab"},
      {R"({"type":"StripAccents"})", "\u0301ab", "ab"},
      {R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true})", "\x01" "ab", "ab"},
      {R"({"type":"Prepend","prepend":"y"})", "ab", "_yab"},
      {R"({"type":"Sequence","normalizers":[{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Prepend","prepend":"y"}]})", " ab", "yab"},
      {R"({"type":"NFD"})", "\u00e9b", "_e\u0301b"},
      {R"({"type":"NFC"})", "e\u0301b", "_\u00e9b"},
      {R"({"type":"Lowercase"})", "\u0130ab", "_i\u0307ab"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.normalizer);
    CAPTURE(c.text);
    const auto tokenizer = make(std::string(R"({"normalizer":)") + c.normalizer +
                                R"(,"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false},
                                   "model":{"type":"BPE","vocab":{"_":0,"a":1,"b":2,"x":3,"y":4,"e":5,"\u0301":6,"\u00e9":7,"i":8,"\u0307":9},"merges":[]}})");
    std::string pieces;
    for (const int32_t id : tokenizer->encode(c.text)) pieces += tokenizer->token_text(id);
    CHECK(pieces == c.pieces);
  }
}

TEST_CASE("tokenizer: the tiny model by hand") {
  const auto tokenizer =
      make(kTiny, R"({"bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null,"unk_token":"<unk>"})");
  CHECK(tokenizer->encode("a b") == std::vector<int32_t>{5, 6});
  CHECK(tokenizer->encode("你", {.add_special_tokens = true}) == std::vector<int32_t>{0, 2, 7, 8, 9});
  CHECK(tokenizer->encode("a</s>b") == std::vector<int32_t>{5, 1, 4});
  CHECK(tokenizer->encode("<s>", {.parse_special = false}) == std::vector<int32_t>{2});  // no token for '<', 's', '>'
  CHECK(tokenizer->encode("") == std::vector<int32_t>{});
  CHECK(tokenizer->vocab_size() == 10);
  CHECK(tokenizer->bos_token()->id == 0);
  CHECK(tokenizer->eos_token()->text == "</s>");
  CHECK(tokenizer->eos_token()->id == 1);
  CHECK(!tokenizer->pad_token());
  CHECK(tokenizer->unk_token()->id == -1);
  CHECK(tokenizer->adds_bos());
  CHECK(tokenizer->token_text(5) == "▁a");
  CHECK(tokenizer->token_bytes(5) == " a");
  CHECK(tokenizer->token_bytes(7) == "\xE4");
  CHECK(tokenizer->token_bytes(1) == "</s>");
  CHECK(tokenizer->token_bytes(99) == "");
  CHECK(tokenizer->token_id("▁b") == 6);
  CHECK(!tokenizer->token_id("nothing"));
  CHECK(tokenizer->is_special(0));
  CHECK(!tokenizer->is_special(5));
  CHECK(!tokenizer->is_special(-1));
  CHECK(!tokenizer->is_special(99));
  CHECK(tokenizer->decode(std::vector<int32_t>{0, 5, -3, 99, 6, 1}) == "a b");
  CHECK(tokenizer->decode(std::vector<int32_t>{0, 5, 1}, false) == "<s> a</s>");
}

// Ids of `tokenizers` 0.23.
TEST_CASE("tokenizer: a Unigram vocabulary: ties of scores, a string twice") {
  // Of "a" and "aaaaa" every order has the same score but for its last bit, and the library reads -9.294690902562909
  // as -9.294690902562907.
  const auto ties = make(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[
      ["<unk>",0.0],["a",-3.3044682611446534],["aaaaa",-9.294690902562909]]}})");
  CHECK(ties->encode("aaaaaaa") == std::vector<int32_t>{1, 1, 2});
  // The added token follows the list of four, not the three strings.
  const auto twice = make(R"({"added_tokens":[{"id":4,"content":"new"}],"model":{"type":"Unigram","unk_id":0,"vocab":[
      ["<unk>",0.0],["a",-1.0],["b",-2.0],["a",-3.0]]}})");
  CHECK(twice->encode("newba") == std::vector<int32_t>{4, 2, 3});
  CHECK(twice->vocab_size() == 5);
}

TEST_CASE("incremental decoding: characters come whole, the prompt decides about the first space") {
  const auto tokenizer = make(kTiny);
  IncrementalDecoder fresh(*tokenizer);
  CHECK(fresh.append(5) == "a");  // the space of a text's first token is the pre-tokenizer's
  CHECK(fresh.append(7) == "");
  CHECK(fresh.append(8) == "");
  CHECK(fresh.append(9) == "");  // a fourth byte token could still make the run invalid
  CHECK(fresh.append(6) == "你 b");
  CHECK(fresh.append(7) == "");
  CHECK(fresh.finish() == "\uFFFD");
  const std::vector<int32_t> prompt = {0, 6, 6};
  IncrementalDecoder behind_prompt(*tokenizer, {}, prompt);
  CHECK(behind_prompt.append(5) == " a");
  const std::vector<int32_t> open_prompt = {6, 7, 8};
  IncrementalDecoder inside_character(*tokenizer, {}, open_prompt);
  CHECK(inside_character.append(9) == "");
  CHECK(inside_character.append(4) == "你b");
}

TEST_CASE("incremental decoding: what the prompt left incomplete is not the answer's") {
  const auto behind = [](const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& ids) {
    IncrementalDecoder decoder(tokenizer, {}, prompt);
    std::string text;
    for (const int32_t id : ids) text += decoder.append(id);
    return text + decoder.finish();
  };
  const auto fallback = make(kTiny);
  CHECK(behind(*fallback, {6, 7, 8}, {4}) == "b");
  CHECK(behind(*fallback, {6, 7, 8}, {}) == "");
  CHECK(behind(*fallback, {6, 7, 8}, {7, 8, 9, 4}) == "\uFFFD\uFFFD\uFFFDb");  // one for each token of the invalid run
  // A character that the prompt completes is the prompt's, whatever bytes follow it.
  CHECK(behind(*fallback, {6, 7, 8, 9}, {4}) == "b");
  CHECK(behind(*fallback, {6, 7, 8, 9}, {7, 4}) == "\uFFFDb");
  CHECK(behind(*fallback, {7, 8, 9, 7}, {8, 9, 4}) == "你b");
  std::vector<int32_t> many_bytes;  // more than the decoder looks at, so that it begins inside a character
  for (int i = 0; i < 10; ++i) many_bytes.insert(many_bytes.end(), {7, 8, 9});
  CHECK(behind(*fallback, many_bytes, {4}) == "b");
  CHECK(behind(*fallback, many_bytes, {7, 8, 9, 4}) == "你b");

  const auto byte_level = make(golden_json("gpt2"));
  std::map<std::string, int32_t> id_of_bytes;
  for (int32_t id = 0; id < byte_level->vocab_size(); ++id) id_of_bytes.emplace(byte_level->token_bytes(id), id);
  const int32_t a = id_of_bytes.at("a"), e4 = id_of_bytes.at("\xE4"), bd = id_of_bytes.at("\xBD"),
                a0 = id_of_bytes.at("\xA0");
  CHECK(behind(*byte_level, {a, e4, bd}, {a}) == "a");
  CHECK(behind(*byte_level, {a, e4, bd}, {}) == "");
  CHECK(behind(*byte_level, {a, e4, bd}, {a0, a}) == "你a");
  CHECK(behind(*byte_level, {a, e4}, {bd, a}) == "a");  // of the two bytes, one U+FFFD: the prompt's
  CHECK(behind(*byte_level, {a, e4}, {e4, a}) == "\uFFFDa");
}

TEST_CASE("incremental decoding: half characters of a byte-level model are held back") {
  const auto tokenizer = make(golden_json("gpt2"));
  std::vector<int32_t> ids;
  for (const char byte : std::string("\xF0\x9F\x98\x80")) {  // byte by byte: no merges
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->token_bytes(id) == std::string(1, byte)) ids.push_back(id);
    }
  }
  REQUIRE(ids.size() == 4);
  IncrementalDecoder decoder(*tokenizer);
  CHECK(decoder.append(ids[0]) == "");
  CHECK(decoder.append(ids[1]) == "");
  CHECK(decoder.append(ids[2]) == "");
  CHECK(decoder.append(ids[3]) == "😀");
  CHECK(decoder.append(ids[0]) == "");
  CHECK(decoder.finish() == "\uFFFD");
  CHECK(decoder.finish() == "");
}

TEST_CASE("incremental decoding: spaces between special tokens") {
  // Without a decoder tokens are joined by spaces; an added token behind an added token may come bare.
  const auto tokenizer = make(
      R"({"added_tokens":[{"id":0,"content":"<x>","special":true},{"id":1,"content":"<y>","special":false,"normalized":false}],
    "model":{"type":"WordLevel","unk_token":"u","vocab":{"<x>":0,"<y>":1,"a":2,"u":3}}})");
  const auto text_of = [&](DecodeOptions options) {
    IncrementalDecoder decoder(*tokenizer, options);
    std::string text;
    for (const int32_t id : {2, 0, 1, 2, 1}) text += decoder.append(id);
    return text + decoder.finish();
  };
  CHECK(text_of({.skip_special_tokens = false, .spaces_between_special_tokens = true}) == "a <x> <y> a <y>");
  CHECK(text_of({.skip_special_tokens = false, .spaces_between_special_tokens = false}) == "a <x><y> a <y>");
  CHECK(text_of({.skip_special_tokens = true, .spaces_between_special_tokens = false}) == "a <y> a <y>");
}

TEST_CASE("tokenizer: token bytes add up to the text for a byte-level model") {
  const auto tokenizer = make(golden_json("llama3"));
  const std::string text = "The rivers' 1234 stones — 中文, 😀!\n\n  end";
  std::string bytes;
  for (const int32_t id : tokenizer->encode(text)) bytes += tokenizer->token_bytes(id);
  CHECK(bytes == text);
}

TEST_CASE("tokenizer: invalid UTF-8 counts as replacement characters") {
  const auto tokenizer = make(golden_json("qwen2"));
  CHECK(tokenizer->encode("a\xFF"
                          "b\xE4\xBD") == tokenizer->encode("a\uFFFD"
                                                            "b\uFFFD"));
}

TEST_CASE("load: a folder with and without its companions") {
  const TempDir dir;
  const auto write = [&](const char* name, std::string_view content) { std::ofstream(dir.path() / name) << content; };
  CHECK(Tokenizer::load(dir.path()).status().code() == StatusCode::kNotFound);
  write("tokenizer.json", kTiny);
  auto tokenizer = Tokenizer::load(dir.path());
  REQUIRE(tokenizer.ok());
  CHECK(!(*tokenizer)->bos_token());
  CHECK(!(*tokenizer)->adds_bos());
  CHECK((*tokenizer)->chat_templates().empty());
  write("special_tokens_map.json", R"({"bos_token":"<s>"})");
  write("tokenizer_config.json",
        R"({"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"}]})");
  tokenizer = Tokenizer::load(dir.path());
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->bos_token()->id == 0);
  CHECK((*tokenizer)->find_chat_template()->source == "D");
  CHECK((*tokenizer)->find_chat_template("tool_use")->source == "T");
  CHECK((*tokenizer)->find_chat_template("other") == nullptr);
  write("chat_template.jinja", "J");
  tokenizer = Tokenizer::load(dir.path());
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->find_chat_template()->source == "J");
  CHECK((*tokenizer)->find_chat_template("tool_use")->source == "T");
  write("tokenizer_config.json", R"({"bos_token":7})");
  const Status status = Tokenizer::load(dir.path()).status();
  CHECK(status.message().find("tokenizer_config.json: bos_token") != std::string::npos);
}

TEST_CASE("load: files that cannot be reached are an error, not the end of the process") {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    const TempDir dir;
    std::ofstream(dir.path() / "tokenizer.json") << kTiny;
    std::filesystem::remove(dir.path() / name);
    std::filesystem::create_symlink(name, dir.path() / name);  // to itself
    const auto tokenizer = Tokenizer::load(dir.path());
    REQUIRE(!tokenizer.ok());
    INFO(name, ": ", tokenizer.status().message());
    CHECK(tokenizer.status().message().find(name) != std::string::npos);
  }
}

TEST_CASE("bad files: the message names the part") {
  struct Case {
    std::string_view json, expected;
  };
  const Case cases[] = {
      {"", "tokenizer.json: "},
      {"[]", "an object is needed"},
      {"{}", "field 'model' is missing"},
      {R"({"model":{"type":"RNN","vocab":{}}})", "model: unknown type 'RNN'"},
      {R"({"model":{"type":"BPE","vocab":{}}})", "field 'merges' is missing"},
      {R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})", "id -1"},
      {R"({"model":{"type":"BPE","vocab":{"a":4000000000},"merges":[]}})", "id 4000000000"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})", "merges[0]: 'b' is not in the vocabulary"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}})", "merges[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})", "merges[0]"},
      {R"({"model":{"type":"Unigram","vocab":[["a",0]],"unk_id":1}})", "unk_id"},
      {R"({"model":{"type":"Unigram","vocab":[["a"]]}})", "vocab[0]"},
      {R"({"normalizer":{"type":"Shout"},"model":{}})", "normalizer: unknown type 'Shout'"},
      {R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Chop"}]},"model":{}})",
       "pre_tokenizer: unknown type 'Chop'"},
      {R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"},"model":{}})",
       "pre_tokenizer Split"},
      {R"({"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Chopped"},"model":{}})",
       "unknown behavior 'Chopped'"},
      {R"({"pre_tokenizer":{"type":"Metaspace","replacement":"ab"},"model":{}})", "one character"},
      {R"({"post_processor":{"type":"Bow"},"model":{}})", "post_processor: unknown type 'Bow'"},
      {R"({"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],"special_tokens":{}},"model":{}})",
       "'x' is not in special_tokens"},
      {R"({"decoder":{"type":"CTC"},"model":{}})", "decoder: unknown type 'CTC'"},
      {R"({"added_tokens":[{"id":0}],"model":{"type":"WordLevel","vocab":{}}})", "field 'content' is missing"},
  };
  for (const Case& c : cases) {
    const Status status = Tokenizer::from_json(c.json, "").status();
    CHECK_MESSAGE(status.message().find(c.expected) != std::string::npos,
                  "got: " << status.message() << "; expected: " << c.expected);
  }
  std::string deep = R"({"type":"NFC"})";
  for (int i = 0; i < 100; ++i) deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  CHECK(Tokenizer::from_json(R"({"model":{},"normalizer":)" + deep + "}", "").status().message().find("deep") !=
        std::string::npos);
  CHECK(!Tokenizer::from_json(std::string(100'000, '['), "").ok());
}

TEST_CASE("bad files: cut off or with a byte changed, a file loads or gives a Status") {
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  for (const std::string kind : {"t5", "llama2_legacy", "bert"}) {
    const std::string json = golden_json(kind);
    for (int round = 0; round < 40; ++round) {
      CHECK(!Tokenizer::from_json(json.substr(0, rng.below(json.size() - 2)), "").ok());
      std::string damaged = json;
      damaged[rng.below(damaged.size())] = static_cast<char>(rng.next_u32());
      const auto tokenizer = Tokenizer::from_json(damaged, "");
      if (tokenizer.ok()) (*tokenizer)->decode((*tokenizer)->encode("A river, 123 中文 😀"));
    }
  }
}

TEST_CASE("threads: many encode and decode at once and agree") {
  const auto tokenizer = make(golden_json("qwen2"));
  const auto other = make(golden_json("llama2_first"));  // its words share the per-thread cache
  std::vector<std::string> texts;
  for (int i = 0; i < 50; ++i)
    texts.push_back("River " + std::to_string(i * 7919) + " light <|im_end|> under water'S 中文 e\u0301");
  std::vector<std::vector<int32_t>> expected, expected_other;
  for (const std::string& text : texts) {
    expected.push_back(tokenizer->encode(text));
    expected_other.push_back(other->encode(text));
  }
  std::vector<int> num_wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 40; ++round) {
        for (size_t i = 0; i < texts.size(); ++i) {
          num_wrong[t] += tokenizer->encode(texts[i]) != expected[i];
          num_wrong[t] += other->encode(texts[i]) != expected_other[i];
          num_wrong[t] += tokenizer->decode(expected[i]).empty();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(num_wrong == std::vector<int>(4, 0));
}

}  // namespace
}  // namespace spate
