// Goal    llama-server's own paths answer as its clients read them: /completion whole and streamed, /infill,
//         /apply-template, /props, /slots, /embedding; biases, prompts and samplers in its form.
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

TEST_CASE("llama-server: the end of a completion tells its settings and prompt") {
  DialectServer test;
  const Json body{{"prompt", "one two"}, {"n_predict", 7},     {"temperature", 0.5}, {"min_p", 0.1},
                  {"top_k", 3},          {"samplers", "kymt"}, {"stop", {"nine"}},   {"logit_bias", {{5, -1.5}}},
                  {"seed", 3},           {"n_probs", 2}};
  const Json answer = test.post("/completion", body);
  const Json settings = answer["generation_settings"];
  for (const char* name : {"temperature", "top_k", "seed", "n_predict", "n_probs", "stop"}) {
    CHECK(settings[name] == body[name]);
  }
  CHECK(settings["min_p"].get<float>() == 0.1f);  // as asked for, though it stands before the temperature
  CHECK(settings["max_tokens"] == 7);
  CHECK(settings["samplers"] == Json({"top_k", "typ_p", "min_p", "temperature"}));
  CHECK(settings["logit_bias"] == Json::array({{{"bias", -1.5}, {"token", 5}}}));
  CHECK(settings["stream"] == false);
  CHECK(settings["mirostat"] == 0);
  CHECK(settings["n_ctx"] == 512);
  const std::string prompt = answer["prompt"];
  CHECK(prompt.ends_with("one two"));
  CHECK(test.post("/completion", {{"prompt", {"a b", "c d"}}, {"n", 2}})[3]["prompt"].get<std::string>().ends_with(
      "c d"));
  const Json picked =
      test.post("/completion", {{"prompt", "a b"}, {"response_fields", {"generation_settings/n_predict", "prompt"}}});
  CHECK(picked["generation_settings/n_predict"] == -1);
  CHECK(picked.contains("prompt"));
  const Json none = test.post("/completion", {{"prompt", "a"}, {"n_predict", 0}})["generation_settings"];
  CHECK(none["n_predict"] == 0);
  CHECK(none["seed"] == 4294967295);
  CHECK(none["samplers"].size() == 5);
  const Json streamed{{"prompt", "a b"}, {"stream", true}};
  const auto events = sse_events(TestClient(test.server.port()).post("/completion", streamed.dump()).body);
  CHECK(!Json::parse(events[0]).contains("generation_settings"));
  CHECK(Json::parse(events.back())["generation_settings"]["stream"] == true);
  const Json other =
      test.post("/completion", {{"prompt", "a"}, {"samplers", "pt"}, {"top_p", 0.5}, {"temperature", 0.5}});
  CHECK(other["generation_settings"]["samplers"] == Json{"top_p", "temperature"});
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
  CHECK(param({{"n_predict", -2}}) == "n_predict");
  CHECK(param({{"response_fields", "content"}}) == "response_fields");
  CHECK(param({{"n_indent", -1}}) == "n_indent");
  CHECK(param({{"t_max_predict_ms", "1"}}) == "t_max_predict_ms");
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

TEST_CASE("llama-server: prompts of texts and token ids, in its forms") {
  DialectServer test;
  const auto ids = [&](const char* text) { return test.post("/tokenize", {{"content", text}})["tokens"]; };
  Json mixed = ids("one");
  mixed.push_back(" two");
  for (const Json& id : ids(" three")) mixed.push_back(id);
  const auto content = [&](const Json& prompt) { return test.post("/completion", {{"prompt", prompt}})["content"]; };
  CHECK(content(mixed) == "one two three");
  CHECK(content({{"prompt_string", "a b"}}) == "a b");
  const Json many = test.post("/completion", {{"prompt", {mixed, "c d", {{"prompt_string", "e"}}, ids("f g")}}});
  REQUIRE(many.size() == 4);
  CHECK(many[0]["content"] == "one two three");
  CHECK(many[1]["content"] == "c d");
  CHECK(many[2]["content"] == "e");
  CHECK(many[3]["content"] == "f g");
  const auto refused = [&](const Json& prompt) {
    return test.post("/completion", {{"prompt", prompt}}, 400)["error"]["param"];
  };
  CHECK(refused({{"prompt_string", "a"}, {"multimodal_data", {"aGk="}}}) == "prompt");
  CHECK(refused({{"prompt_string", 5}}) == "prompt");
  CHECK(refused(Json::array({1, "x", nullptr})) == "prompt");
  CHECK(refused(Json::array({1, "x", -1})) == "prompt");
  CHECK(refused(Json::array({"x", Json::array()})) == "prompt");
  CHECK(refused(Json::array({1, std::string(100'000, 'x')})) == "prompt");
}

TEST_CASE("llama-server: n_predict 0 reads the prompt alone; response_fields picks") {
  DialectServer test;
  const std::string prompt = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen";
  for (const bool stream : {false, true}) {
    const Json body{{"prompt", prompt}, {"n_predict", 0}, {"stream", stream}, {"return_tokens", true}, {"n_probs", 1}};
    const TestResponse response = TestClient(test.server.port()).post("/completion", body.dump());
    const auto events = stream ? sse_events(response.body) : std::vector{response.body};
    REQUIRE(events.size() == 1);
    const Json answer = Json::parse(events[0]);
    CHECK(answer["content"] == "");
    CHECK(answer["tokens"].empty());
    CHECK(answer["tokens_predicted"] == 0);
    CHECK(answer["timings"]["predicted_n"] == 0);
    CHECK(answer["stop_type"] == "limit");
  }
  CHECK(test.post("/completion", {{"prompt", prompt}})["timings"]["cache_n"] > 0);
  const auto picked = [&](const Json& names) {
    return test.post("/completion", {{"prompt", "a b"}, {"response_fields", names}});
  };
  CHECK(picked({"content", "timings/cache_n", "none", "content/x"}) ==
        Json{{"content", "a b"}, {"timings/cache_n", 0}});
  CHECK(picked({""}) == Json::object());
  CHECK(picked(Json::array()).contains("timings"));
}

TEST_CASE("llama-server: an answer ends before a line that is indented by less, and when its time is over") {
  DialectServer test;
  const std::string prompt = "if x:\n    a\n\n      b\n  c\n    d";
  const Json answer = test.post("/completion", {{"prompt", prompt}, {"n_indent", 4}});
  CHECK(answer["content"] == "if x:\n    a\n\n      b\n  ");
  CHECK(answer["stop_type"] == "limit");
  CHECK(answer["has_new_line"] == true);
  CHECK(test.post("/completion", {{"prompt", prompt}, {"n_indent", 2}})["content"] == prompt);
  CHECK(test.post("/completion", {{"prompt", prompt}, {"n_indent", 0}})["content"] == prompt);
  const Json streamed{{"prompt", prompt}, {"n_indent", 4}, {"stream", true}};
  std::string text;
  for (const std::string& event :
       sse_events(TestClient(test.server.port()).post("/completion", streamed.dump()).body)) {
    text += Json::parse(event)["content"];
  }
  CHECK(text == answer["content"]);

  test.model.executor->step_milliseconds = 2;
  const Json forever{{"prompt", "FOREVER a\n"}, {"t_max_predict_ms", 30}, {"n", 2}};
  const Json late = test.post("/completion", forever);
  for (const Json& choice : late) {
    CHECK(choice["stop_type"] == "limit");
    CHECK(choice["tokens_predicted"] > 3);
    CHECK(choice["tokens_predicted"] < 200);  // of the 500 that the context has room for
  }
  CHECK(test.is_idle());
  // Without a line break the answer goes on.
  CHECK(test.post("/completion",
                  {{"prompt", "FOREVER a"}, {"t_max_predict_ms", 1}, {"n_predict", 40}})["tokens_predicted"] == 40);
}

TEST_CASE("llama-server: what its clients send with every request") {
  DialectServer test;
  const Json usual{
      {"prompt", "a b"},
      {"samplers", {"penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"}},
      {"repeat_last_n", 64},
      {"repeat_penalty", 1},
      {"n_indent", 0},
      {"t_max_predict_ms", 0},
      {"n_probs", 0},
      {"sse_ping_interval", 5},
      {"n_cache_reuse", 256},
      {"adaptive_target", -1},
      {"speculative.n_max", 3},
      {"t_max_prompt_ms", 500},
      {"lora", Json::array()},
      {"id_slot", -1}};
  CHECK(test.post("/completion", usual)["content"] == "a b");
  CHECK(test.post("/completion", {{"prompt", "a b"}, {"samplers", "edkypmxt"}, {"temperature", -1}})["content"] ==
        "a b");
  CHECK(test.post("/completion",
                  {{"prompt", "a b"}, {"logit_bias", {{"3", 1}, {" b", false}}}, {"n_predict", 5}})["content"] !=
        "a b");
  CHECK(test.post("/completion", {{"prompt", "a b"}, {"n_cmpl", 2}}).size() == 2);
}

TEST_CASE("llama-server: slots show what runs") {
  DialectServer test;
  const Json idle = test.get("/slots");
  REQUIRE(idle.size() == 8);
  for (const Json& slot : idle) CHECK(slot["is_processing"] == false);
  CHECK(idle[7]["id"] == 7);
  CHECK(idle[7]["n_ctx"] == 512);

  test.model.executor->step_milliseconds = 5;
  TestClient client(test.server.port());
  const Json body{{"prompt", "FOREVER one"}, {"n", 8}, {"stream", true}, {"temperature", 1}};
  client.send("POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.dump().size()) +
              "\r\n\r\n" + body.dump());
  Json busy;
  for (int i = 0; i < 500; ++i) {
    busy = test.get("/slots");
    if (busy[7]["is_processing"] == true && busy[7]["next_token"]["n_decoded"] > 0) break;
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(busy[7]["is_processing"] == true);
  CHECK(busy[0]["n_prompt_tokens"] == test.post("/tokenize", {{"prompt", "FOREVER one"}})["count"]);
  CHECK(test.get("/slots?fail_on_no_slot=1", 503)["error"]["type"] == "unavailable_error");
  CHECK(test.get("/slots?model=none", 404)["error"]["code"] == "model_not_found");
  client.close();
  CHECK(test.is_idle());
  CHECK(test.get("/slots?fail_on_no_slot=1").size() == 8);

  ServerConfig config = api_test_config();
  config.slots = false;
  TestServer without(config);
  CHECK(TestClient(without.server.port()).get("/slots").status == 404);
}

TEST_CASE("llama-server: embeddings of its own path") {
  DialectServer test;
  const Json answer = test.post("/embedding", {{"content", {"a", "b c"}}, {"embd_normalize", -1}});
  REQUIRE(answer.size() == 2);
  CHECK(answer[1]["index"] == 1);
  REQUIRE(answer[1]["embedding"].size() == 1);
  const Json same = test.post("/v1/embeddings", {{"input", {"a", "b c"}}, {"normalize", false}});
  CHECK(answer[1]["embedding"][0] == same["data"][1]["embedding"]);
  CHECK(test.post("/embedding", {{"input", "a"}, {"embd_normalize", 2}})[0]["embedding"][0] ==
        test.post("/v1/embeddings", {{"input", "a"}, {"normalize", true}})["data"][0]["embedding"]);
  CHECK(test.post("/embedding", {{"content", "a"}, {"embd_normalize", 0}}, 400)["error"]["param"] == "embd_normalize");
  CHECK(test.post("/embedding", {{"content", 5}}, 400)["error"]["param"] == "content");
  CHECK(test.post("/embedding", Json::object(), 400)["error"]["code"] == "missing_required_parameter");
  CHECK(test.post("/v1/embeddings", {{"input", "a"}, {"embd_normalize", 0}}, 400)["error"]["param"] ==
        "embd_normalize");
}

TEST_CASE("llama-server: there are no adapters, and no infill without tokens for it") {
  DialectServer test;
  CHECK(test.get("/lora-adapters") == Json::array());
  CHECK(test.post("/lora-adapters", Json::array())["success"] == true);
  CHECK(test.post("/lora-adapters", Json::array({{{"id", 0}, {"scale", 0.0}}}))["success"] == true);
  CHECK(test.post("/lora-adapters", Json::array({{{"id", 0}, {"scale", 0.5}}}), 400)["error"]["code"] ==
        "unsupported_parameter");
  for (const Json& wrong :
       {Json::object(), Json::array({5}), Json::array({{{"id", "a"}, {"scale", 0}}}), Json::array({{{"id", 1}}})}) {
    CHECK(test.post("/lora-adapters", wrong, 400)["error"]["type"] == "invalid_request_error");
  }
  TestClient client(test.server.port());
  client.send("DELETE /lora-adapters HTTP/1.1\r\nHost: x\r\n\r\n");
  const TestResponse deleted = client.receive();
  CHECK(deleted.status == 405);
  CHECK(deleted.header("allow") == "GET, HEAD, POST, OPTIONS");
  const Json refused = test.post("/infill", {{"input_prefix", "a"}, {"input_suffix", "b"}}, 400)["error"];
  CHECK(refused["param"] == "model");
  CHECK(refused["message"].get<std::string>().find("does not fill in") != std::string::npos);
}

}  // namespace spate
