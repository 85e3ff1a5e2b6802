// Goal    llama-server's own paths answer as its clients read them: /completion whole and streamed, /apply-template,
//         /props; biases in its form.
// Method  As server_api_test.cpp: the whole server, a model that answers what the request says.
#include "server/dialect_test.h"

namespace spate {

TEST_CASE("llama-server: a completion, whole") {
  DialectServer test;
  const std::string prompt = "one two three four five six seven eight nine ten eleven twelve thirteen";
  const Json answer = test.post("/completion", {{"prompt", prompt}});
  CHECK(answer["content"] == prompt);  // beyond the 16 tokens of /v1/completions
  CHECK(answer["stop"] == true);
  CHECK(answer["stop_type"] == "eos");
  CHECK(answer["stopping_word"] == "");
  CHECK(answer["tokens"].empty());
  const Json tokens = test.post("/tokenize", {{"content", prompt}, {"add_special", true}})["tokens"];
  CHECK(answer["tokens_evaluated"] == tokens.size());
  CHECK(answer["tokens_predicted"] == answer["timings"]["predicted_n"]);
  CHECK(answer["timings"]["prompt_n"].get<int>() + answer["timings"]["cache_n"].get<int>() == tokens.size());
  CHECK(answer["timings"]["predicted_per_second"].get<double>() > 0);
  CHECK(!answer.contains("completion_probabilities"));

  const Json cut =
      test.post("/completion", {{"prompt", prompt}, {"n_predict", 3}, {"return_tokens", true}, {"n_probs", 2}});
  CHECK(cut["stop_type"] == "limit");
  CHECK(cut["tokens"].size() == 3);
  REQUIRE(cut["completion_probabilities"].size() == 3);
  CHECK(cut["completion_probabilities"][0]["id"] == cut["tokens"][0]);
  CHECK(cut["completion_probabilities"][0]["top_logprobs"].size() == 2);
  CHECK(cut["completion_probabilities"][0]["top_logprobs"][0]["id"] == cut["tokens"][0]);
  const Json stopped = test.post("/completion", {{"prompt", prompt}, {"stop", {" four"}}, {"n_predict", -1}});
  CHECK(stopped["content"] == "one two three");
  CHECK(stopped["stop_type"] == "word");
  CHECK(stopped["stopping_word"] == " four");
  const Json many = test.post("/completion", {{"prompt", {"a b", "c d"}}});
  REQUIRE(many.size() == 2);
  CHECK(many[1]["content"] == "c d");
  CHECK(many[1]["index"] == 1);
  CHECK(test.post("/completion", {{"prompt", tokens}})["content"] == prompt);
}

TEST_CASE("llama-server: a completion, streamed") {
  DialectServer test;
  const std::string prompt = "one two three 你好!";
  const Json body{{"prompt", prompt}, {"stream", true}, {"return_tokens", true}};
  const auto events = sse_events(TestClient(test.server.port()).post("/completion", body.dump()).body);
  REQUIRE(events.size() > 3);
  std::string text;
  size_t num_tokens = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json event = Json::parse(events[i]);  // no [DONE]
    text += event["content"];
    num_tokens += event["tokens"].size();
    CHECK(event["stop"] == (i + 1 == events.size()));
    CHECK(event["tokens_predicted"].get<size_t>() == num_tokens);
  }
  CHECK(text == prompt);
  const Json last = Json::parse(events.back());
  CHECK(last["content"] == "");
  CHECK(last["stop_type"] == "eos");
  CHECK(last["timings"]["predicted_n"] == num_tokens);
  const Json broken{{"prompt", "BROKEN one"}, {"stream", true}};
  const auto failed = sse_events(TestClient(test.server.port()).post("/completion", broken.dump()).body);
  CHECK(Json::parse(failed.back())["error"]["message"].get<std::string>().find("not finite") != std::string::npos);
}

TEST_CASE("llama-server: what a completion cannot do is refused under its name") {
  DialectServer test;
  const auto param = [&](Json fields) {
    fields["prompt"] = "x";
    return test.post("/completion", fields, 400)["error"]["param"];
  };
  CHECK(param({{"n_probs", 99}}) == "n_probs");
  CHECK(param({{"n_predict", 0}}) == "n_predict");
  CHECK(param({{"mirostat", 2}}) == "mirostat");
  CHECK(param({{"return_tokens", 7}}) == "return_tokens");
  for (const char* name : {"echo", "use_beam_search"}) CHECK(param({{name, true}}) == name);
  CHECK(test.post("/completion", Json::array(), 400)["error"]["type"] == "invalid_request_error");
  CHECK(test.post("/completion", Json::object(), 400)["error"]["message"] == "prompt is missing");
  CHECK(test.post("/completion", {{"prompt", "x"}, {"model", "none"}}, 404)["error"]["code"] == "model_not_found");
}

TEST_CASE("llama-server: templates are applied, properties told") {
  DialectServer test;
  const Json chat = message("Hello there!");
  const std::string prompt = test.post("/apply-template", {{"messages", chat["messages"]}})["prompt"];
  CHECK(prompt.find("Hello there!") != std::string::npos);
  CHECK(test.post("/tokenize", {{"prompt", prompt}})["tokens"] ==
        test.post("/tokenize", {{"messages", chat["messages"]}})["tokens"]);
  CHECK(test.post("/apply-template", {{"prompt", "x"}}, 400)["error"]["param"] == "messages");
  CHECK(test.post("/apply-template", Json::object(), 400)["error"]["type"] == "invalid_request_error");
  const Json props = test.get("/props");
  CHECK(props["default_generation_settings"]["n_ctx"] == 512);
  CHECK(props["total_slots"] == 8);
  CHECK(props["chat_template"].get<std::string>().find("messages") != std::string::npos);
  CHECK(props["eos_token"] == test.get("/tokenizer_info")["eos_token"]);
  CHECK(props["modalities"]["vision"] == false);
}

TEST_CASE("llama-server: biases by text, and tokens that never come") {
  DialectServer test;
  const std::vector<int32_t> ids = test.model.tokenizer->encode("Hello", {.add_special_tokens = false});
  for (const Json& key : {Json(ids[0]), Json("Hello")}) {
    const Json answer = test.post("/completion", {{"prompt", "Hello"},
                                                  {"n_predict", 2},
                                                  {"logit_bias", Json::array({Json::array({key, false})})},
                                                  {"return_tokens", true}});
    REQUIRE(!answer["tokens"].empty());
    CHECK(answer["tokens"][0] != ids[0]);
  }
  const std::string long_text(1024, 'x');
  Json many = Json::array();
  for (int i = 0; i < 1000; ++i) many.push_back(Json::array({long_text.substr(0, 1000), 1}));
  CHECK(test.post("/completion", {{"prompt", "x"}, {"logit_bias", many}}, 400)["error"]["param"] == "logit_bias");
}

}  // namespace spate
