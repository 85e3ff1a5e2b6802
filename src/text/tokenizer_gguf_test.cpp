// tokenizer_gguf_test.cpp
//
// Goal     Five vocabularies of published models give, id for id, what llama.cpp gives for its test texts.
//          Other splits that tokenizer.ggml.pre names give what Hugging Face `tokenizers` gives with the same splits.
// Method   The vocabularies and vectors are other people's and stay where they are, beside the checkout. The other
// splits
//          run over the vocabulary of GPT-2, written again with another name in it
//          (tools/goldens/make_gguf_split_goldens.py).

#include <simdjson.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "base/test_support.h"
#include "text/tokenizer.h"
#include "weights/gguf/gguf.h"

#include "base/test.h"

namespace spate {
namespace {

std::vector<std::string> split_texts(const std::string& content) {
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t start = 0;
  for (size_t end; (end = content.find(kSeparator, start)) != std::string::npos; start = end + kSeparator.size()) {
    texts.push_back(content.substr(start, end - start));
  }
  return texts;  // behind the last separator stands nothing
}

std::vector<int32_t> parse_ids(const std::string& line) {
  std::istringstream stream(line);
  std::vector<int32_t> ids;
  for (int32_t id; stream >> id;) ids.push_back(id);
  return ids;
}

TEST_CASE("gguf vocabularies: llama.cpp's vectors") {
  const auto folder = shared_data() / "vocab";
  if (shared_data().empty() || !std::filesystem::exists(folder)) {
    skip_test("no shared vocabularies beside the checkout");
    return;
  }
  for (const char* name : {"gpt-2", "llama-bpe", "llama-spm", "qwen2", "deepseek-llm"}) {
    CAPTURE(name);
    const auto path = folder / (std::string("ggml-vocab-") + name + ".gguf");
    const auto tokenizer = Tokenizer::from_gguf(path);
    REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
    const std::vector<std::string> texts = split_texts(read_file_or_die(path.string() + ".inp"));
    std::istringstream lines(read_file_or_die(path.string() + ".out"));
    REQUIRE(texts.size() > 40);
    for (const std::string& text : texts) {
      CAPTURE(text);
      std::string line;
      REQUIRE(std::getline(lines, line));
      const std::vector<int32_t> ids = (*tokenizer)->encode(text);
      CHECK(ids == parse_ids(line));
      CHECK((*tokenizer)->decode(ids) == text);
    }
  }
}

TEST_CASE("gguf vocabularies: special tokens of llama-bpe") {
  const auto path = shared_data() / "vocab" / "ggml-vocab-llama-bpe.gguf";
  if (shared_data().empty() || !std::filesystem::exists(path)) {
    skip_test("no shared vocabularies beside the checkout");
    return;
  }
  const auto loaded = Tokenizer::from_gguf(path);
  REQUIRE(loaded.ok());
  const Tokenizer& tokenizer = **loaded;
  REQUIRE(tokenizer.bos_token());
  CHECK(tokenizer.bos_token()->text == "<|begin_of_text|>");
  const int32_t bos = tokenizer.bos_token()->id;
  CHECK(tokenizer.is_special(bos));
  CHECK(tokenizer.encode("<|begin_of_text|>") == std::vector<int32_t>{bos});
  CHECK(tokenizer.encode("<|begin_of_text|>", {.parse_special = false}).size() > 3);
}

// A GGUF file of GPT-2's tokens and merges alone; without a `pre` when it is empty.
void write_gpt2_file(const GgufFile& gpt2, const std::string& pre, const std::filesystem::path& path) {
  std::string bytes = "GGUF";
  const auto number = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto string = [&](std::string_view text) {
    number(uint64_t{text.size()});
    bytes += text;
  };
  const auto text_key = [&](std::string_view key, std::string_view value) {
    string(key);
    number(static_cast<uint32_t>(GgufType::kString));
    string(value);
  };
  number(uint32_t{3});
  number(uint64_t{0});
  number(uint64_t{pre.empty() ? 3u : 4u});
  text_key("tokenizer.ggml.model", "gpt2");
  if (!pre.empty()) text_key("tokenizer.ggml.pre", pre);
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    const std::vector<std::string_view> strings = gpt2.get_strings(key).value();
    string(key);
    number(static_cast<uint32_t>(GgufType::kArray));
    number(static_cast<uint32_t>(GgufType::kString));
    number(uint64_t{strings.size()});
    for (const std::string_view one : strings) string(one);
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

struct TestToken {
  std::string text;
  int32_t type = 1;  // 1 normal, 2 unknown, 3 control, 4 user-defined
  float score = 0;
};

// A GGUF file of a few tokens, with `name` as the model's.
void write_small_file(const std::string& model, const std::string& name, const std::vector<TestToken>& tokens,
                      const std::vector<std::string>& merges, const std::filesystem::path& path) {
  std::string bytes = "GGUF";
  const auto number = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto string = [&](std::string_view text) {
    number(uint64_t{text.size()});
    bytes += text;
  };
  const auto key = [&](std::string_view text, GgufType type) {
    string(text);
    number(static_cast<uint32_t>(type));
  };
  const auto array = [&](std::string_view text, GgufType type, size_t size) {
    key(text, GgufType::kArray);
    number(static_cast<uint32_t>(type));
    number(uint64_t{size});
  };
  number(uint32_t{3});
  number(uint64_t{0});
  number(uint64_t{7});
  key("general.name", GgufType::kString);
  string(name);
  key("tokenizer.ggml.model", GgufType::kString);
  string(model);
  key("tokenizer.ggml.add_bos_token", GgufType::kBool);
  number(uint8_t{0});
  array("tokenizer.ggml.tokens", GgufType::kString, tokens.size());
  for (const TestToken& token : tokens) string(token.text);
  array("tokenizer.ggml.token_type", GgufType::kInt32, tokens.size());
  for (const TestToken& token : tokens) number(token.type);
  array("tokenizer.ggml.scores", GgufType::kFloat32, tokens.size());
  for (const TestToken& token : tokens) number(token.score);
  array("tokenizer.ggml.merges", GgufType::kString, merges.size());
  for (const std::string& merge : merges) string(merge);
  std::ofstream(path, std::ios::binary) << bytes;
}

using Ids = std::vector<int32_t>;

const std::vector<TestToken> kSentencePieceTokens = {
    {"<unk>", 2},       {"<s>", 3},    {"</s>", 3},     {"\u2581", 1, -1},    {"a", 1, -2},
    {"\u2581a", 1, -3}, {"\n", 1, -4}, {"<|user|>", 3}, {"<|endoftext|>", 3}, {"<tool>", 4},
};

TEST_CASE("gguf vocabularies: <unk> in a text is that token") {
  TempDir dir;
  const auto file = dir.path() / "model.gguf";
  write_small_file("llama", "a model", kSentencePieceTokens, {}, file);
  const auto tokenizer = Tokenizer::load(file);
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
  CHECK((*tokenizer)->encode("a<unk>a") == Ids{5, 0, 5});
  CHECK((*tokenizer)->is_special(0));
  CHECK((*tokenizer)->encode("<unk>", {.parse_special = false}) != Ids{0});
}

TEST_CASE("gguf vocabularies: one score and one type too few are refused") {
  TempDir dir;
  const auto file = dir.path() / "model.gguf";
  for (const std::string key : {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
    write_small_file("llama", "a model", kSentencePieceTokens, {}, file);
    std::string bytes = read_file_or_die(file);
    const size_t count_at = bytes.find(key) + key.size() + 8;
    bytes[count_at] = static_cast<char>(kSentencePieceTokens.size() - 1);
    bytes.erase(count_at + 8, 4);
    write_file_or_die(file, bytes);
    CHECK(says(Tokenizer::load(file).status(), key + " has 9 elements; the vocabulary has 10 tokens"));
  }
}

TEST_CASE("gguf vocabularies: a normal token that ends an answer is a control token") {
  TempDir dir;
  const auto file = dir.path() / "model.gguf";
  write_small_file("gpt2", "Aquila", {{"<|endoftext|>"}, {"a"}, {"b"}, {"ab"}}, {"a b"}, file);
  const auto tokenizer = Tokenizer::load(file);
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
  CHECK((*tokenizer)->encode("ab<|endoftext|>a") == Ids{3, 0, 1});
  CHECK((*tokenizer)->is_special(0));
}

TEST_CASE("gguf vocabularies: Phi-3's special tokens take the white space behind them") {
  TempDir dir;
  const auto file = dir.path() / "model.gguf";
  const std::string text = "<|user|> \n a</s>\na<tool>\na";
  // Three tokens keep what is behind them.
  const std::string kept = "<s>\na<|endoftext|>\na<unk>\na";
  for (const char* name : {"Phi-3-mini-4k-instruct", "phi3"}) {
    write_small_file("llama", name, kSentencePieceTokens, {}, file);
    const auto tokenizer = Tokenizer::load(file);
    REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
    CHECK((*tokenizer)->encode(text) == Ids{7, 5, 2, 5, 9, 5});
    CHECK((*tokenizer)->encode(kept) == Ids{1, 3, 6, 4, 8, 3, 6, 4, 0, 3, 6, 4});
  }
  write_small_file("llama", "Llama", kSentencePieceTokens, {}, file);
  CHECK((*Tokenizer::load(file))->encode("<|user|>\na") == Ids{7, 3, 6, 4});
}

TEST_CASE("gguf vocabularies: other splits") {
  const auto path = shared_data() / "vocab" / "ggml-vocab-gpt-2.gguf";
  if (shared_data().empty() || !std::filesystem::exists(path)) {
    skip_test("no shared vocabularies beside the checkout");
    return;
  }
  const GgufFile gpt2 = GgufFile::open(path).value();
  TempDir dir;
  const auto file = dir.path() / "model.gguf";
  simdjson::dom::parser parser;
  const std::string goldens = read_file_or_die(repo_root() / "test" / "goldens" / "tokenizer" / "gguf_splits.json");
  int num_splits = 0;
  for (const simdjson::dom::element golden : parser.parse(goldens).get_array()) {
    const std::string pre(golden.at(0).get_string().value());
    CAPTURE(pre);
    write_gpt2_file(gpt2, pre, file);
    const auto tokenizer = Tokenizer::load(file);
    REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
    for (const simdjson::dom::element one : golden.at(1).get_array()) {
      const std::string text(one.at(0).get_string().value());
      CAPTURE(text);
      std::vector<int32_t> expected;
      for (const simdjson::dom::element id : one.at(1).get_array()) {
        expected.push_back(static_cast<int32_t>(id.get_int64().value()));
      }
      CHECK((*tokenizer)->encode(text) == expected);
      CHECK((*tokenizer)->decode(expected) == text);
    }
    ++num_splits;
  }
  CHECK(num_splits == 11);
  write_gpt2_file(gpt2, "", file);
  CHECK((*Tokenizer::from_gguf(file))->decode((*Tokenizer::from_gguf(file))->encode("1234 = x")) == "1234 = x");
  write_gpt2_file(gpt2, "magic", file);
  CHECK(Tokenizer::from_gguf(file).status().message().find("tokenizer.ggml.pre 'magic'; known: gpt-2 mpt") !=
        std::string::npos);
}

}  // namespace
}  // namespace spate
