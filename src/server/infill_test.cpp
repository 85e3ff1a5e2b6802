// Goal    /infill asks a model for what stands between two texts, in the form that the model's vocabulary has.
// Method  The tokenizer of models/mini-qwen3 with tokens of several families added; the prompt as text; the whole
// server
//         over it.
#include "server/infill.h"

#include <nlohmann/json.hpp>

#include "base/test_support.h"
#include "server/test_server.h"

namespace spate {
namespace {

std::shared_ptr<const Tokenizer> tokenizer_with(const std::vector<std::string>& tokens) {
  Json json = Json::parse(read_file_or_die(repo_root() / "models/mini-qwen3/tokenizer.json"));
  int id = 8192;
  for (const std::string& token : tokens) {
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", token},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  auto made = Tokenizer::from_json(json.dump(), "");
  CHECK_MESSAGE(made.ok(), made.status().message());
  return std::move(*made);
}

const std::vector<std::string> kQwen = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>",
                                        "<|file_sep|>"};
const InfillText kText{
    .prefix = "def f(", .suffix = "):", .extra = {{"a.py", "x = 1\n"}, {"b.py", "y = 2\n"}}, .begun = "n"};

std::string prompt_of(const Tokenizer& tokenizer, size_t max_tokens = 500) {
  return tokenizer.decode(infill_prompt(tokenizer, find_infill_tokens(tokenizer).value(), kText, max_tokens), false);
}

struct InfillServer {
  InfillServer() : server(api_test_config()) {
    model.serving.tokenizer = tokenizer_with(kQwen);
    model.serving.vocab_size = model.serving.tokenizer->vocab_size();
    REQUIRE(server.listen().ok());
    server.set_ready(model.serving);
  }
  Json post(const Json& body, int expected_status = 200) {
    const TestResponse response = TestClient(server.port()).post("/infill", body.dump());
    INFO(response.body);
    CHECK(response.status == expected_status);
    return Json::parse(response.body);
  }
  TestModel model;
  Server server;
};

}  // namespace

TEST_CASE("infill: the prompt has the form of the model's family") {
  CHECK(prompt_of(*tokenizer_with(kQwen)) ==
        "<|repo_name|>project\n<|file_sep|>a.py\nx = 1\n<|file_sep|>b.py\ny = 2\n<|file_sep|>file\n"
        "<|fim_prefix|>def f(<|fim_suffix|>):<|fim_middle|>n");
  CHECK(prompt_of(*tokenizer_with({"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<filename>"})) ==
        "<reponame>project\n<filename>a.py\nx = 1\n<filename>b.py\ny = 2\n<filename>file\n"
        "<fim_prefix>def f(<fim_suffix>):<fim_middle>n");
  CHECK(prompt_of(*tokenizer_with({"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"})) ==
        "\n\n--- snippet ---\n\nx = 1\n\n\n--- snippet ---\n\ny = 2\n"
        "<|code_prefix|>def f(<|code_suffix|>):<|code_middle|>n");
  CHECK(!find_infill_tokens(*tokenizer_with({"<|fim_prefix|>", "<|fim_suffix|>"})));
  // Without room the end of the files stays; the hole is never cut.
  const auto tokenizer = tokenizer_with(kQwen);
  CHECK(
      prompt_of(*tokenizer, 24).ends_with("2\n<|file_sep|>file\n<|fim_prefix|>def f(<|fim_suffix|>):<|fim_middle|>n"));
  CHECK(prompt_of(*tokenizer, 0) ==
        "<|repo_name|>project\n<|file_sep|>file\n<|fim_prefix|>def f(<|fim_suffix|>):<|fim_middle|>n");
}

TEST_CASE("infill: answers as /completion does, and refuses what is not a text") {
  InfillServer test;
  const Json body{{"input_prefix", "def f("},
                  {"input_suffix", "):"},
                  {"input_extra", {{{"filename", "a.py"}, {"text", "x"}}}},
                  {"prompt", "n"}};
  CHECK(test.post(body)["content"] == "project\na.py\nxfile\ndef f():n");  // the model here repeats its prompt
  Json picked = body;
  picked["response_fields"] = {"content"};
  picked["n_predict"] = 1;
  CHECK(test.post(picked) == Json{{"content", "pro"}});
  // Files that do not fit are left out, from their beginning; texts that do not fit are an error.
  Json long_extra = body;
  long_extra["input_extra"][0]["text"] = std::string(20'000, 'x');
  CHECK(test.post(long_extra)["tokens_evaluated"] == 512 - 512 / 8);
  Json long_prefix = body;
  long_prefix["input_prefix"] = std::string(20'000, 'x');
  CHECK(test.post(long_prefix, 400)["error"]["code"] == "context_length_exceeded");
  const auto refused = [&](const char* name, const Json& value) {
    Json wrong = body;
    wrong[name] = value;
    return test.post(wrong, 400)["error"]["param"];
  };
  for (const char* name : {"input_prefix", "input_suffix"}) CHECK(refused(name, nullptr) == name);
  for (const char* name : {"input_prefix", "input_suffix", "prompt", "input_extra"}) CHECK(refused(name, 5) == name);
  CHECK(refused("input_extra", {{{"filename", "a"}}}) == "input_extra");
  CHECK(refused("input_extra", {{{"text", 1}}}) == "input_extra");
  CHECK(refused("input_extra", Json::array({"x"})) == "input_extra");
  CHECK(refused("n_predict", "x") == "n_predict");
}

}  // namespace spate
