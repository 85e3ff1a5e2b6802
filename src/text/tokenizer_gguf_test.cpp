// tokenizer_gguf_test.cpp
//
// Goal     Five vocabularies of published models give, id for id, what llama.cpp gives for its test texts.
// Method   The vocabularies and vectors are other people's and stay where they are, beside the checkout.

#include <fstream>
#include <sstream>

#include "base/test_support.h"
#include "text/tokenizer.h"

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

}  // namespace
}  // namespace spate
