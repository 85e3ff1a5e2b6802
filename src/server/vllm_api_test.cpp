// Goal    vLLM's own paths and fields: tokens in and out, renderings, counts, metrics of a request, templates of requests,
//         ends of requests.
// Method  As server_api_test.cpp: the whole server, a model that answers what the request says.
#include <set>
#include <thread>

#include "server/dialect_test.h"

namespace spate {

TEST_CASE("tokens in, tokens out; invocations") {
  DialectServer test;
  const std::vector<int32_t> ids = test.model.tokenizer->encode("Hello there!");
  const Json answer = test.post("/inference/v1/generate",
                                {{"token_ids", ids}, {"sampling_params", {{"max_tokens", 20}, {"logprobs", 1}}}});
  std::vector<int32_t> out = answer["choices"][0]["token_ids"];
  CHECK(out.size() == ids.size() + 1);
  out.pop_back();
  CHECK(out == ids);
  CHECK(answer["choices"][0]["finish_reason"] == "stop");
  CHECK(answer["choices"][0]["logprobs"]["content"].size() == out.size() + 1);
  CHECK(answer["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:" + std::to_string(ids[0]));
  const std::vector<int32_t> longer =
      test.model.tokenizer->encode("one two three four five six seven eight nine ten eleven twelve");
  REQUIRE(longer.size() > 16);  // the limit of completions
  CHECK(test.post("/inference/v1/generate", {{"token_ids", longer}})["choices"][0]["finish_reason"] == "stop");
  CHECK(test.post("/inference/v1/generate", {{"sampling_params", Json::object()}}, 400)["error"]["param"] ==
        "token_ids");
  for (const Json& wrong : {Json({"a"}), Json::array({ids}), Json::array(), Json({1, -1}), Json("a")}) {
    CHECK(test.post("/inference/v1/generate", {{"token_ids", wrong}}, 400)["error"]["param"] == "token_ids");
  }
  CHECK(test.post("/inference/v1/generate", {{"token_ids", ids}, {"sampling_params", {{"temperature", 9}}}},
                  400)["error"]["param"] == "temperature");
  CHECK(test.post("/invocations", {{"prompt", "Hello"}})["object"] == "text_completion");
  CHECK(test.post("/invocations", message("Hello"))["object"] == "chat.completion");
}

TEST_CASE("tokens in, tokens out: a stream") {
  DialectServer test;
  const std::vector<int32_t> ids = test.model.tokenizer->encode("Hello there, 你好!");
  const auto stream = [&](Json body) {
    body["token_ids"] = ids;
    body["stream"] = true;
    return test.TestServer::stream("/inference/v1/generate", body);
  };
  const Json params{{"max_tokens", 40}, {"logprobs", 1}, {"detokenize", false}};
  const Json usage{{"include_usage", true}, {"continuous_usage_stats", true}};
  const auto chunks = stream({{"sampling_params", params}, {"stream_options", usage}});
  std::vector<int32_t> out;
  size_t num_logprobs = 0;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    const Json& choice = chunks[i]["choices"][0];
    CHECK(chunks[i]["request_id"] == chunks[0]["request_id"]);
    CHECK(choice["index"] == 0);
    CHECK(choice["finish_reason"].is_null() == (i + 2 < chunks.size()));
    for (const Json& id : choice["token_ids"]) out.push_back(id);
    num_logprobs += choice["logprobs"]["content"].size();
    CHECK(chunks[i]["usage"]["completion_tokens"] == out.size());
  }
  CHECK(num_logprobs == out.size());
  CHECK(chunks[chunks.size() - 2]["choices"][0]["finish_reason"] == "stop");
  out.pop_back();  // the end token
  CHECK(out == ids);
  CHECK(chunks.back()["choices"].empty());
  CHECK(chunks.back()["usage"]["prompt_tokens"] == ids.size());

  const Json no_usage{{"include_usage", false}, {"continuous_usage_stats", true}};  // none anywhere, as in chats
  for (const Json& chunk : stream({{"stream_options", no_usage}})) CHECK(!chunk.contains("usage"));

  const auto plain = stream({{"sampling_params", {{"n", 2}, {"temperature", 1}}}});
  std::set<int> indices;
  for (const Json& chunk : plain) {
    CHECK(!chunk.contains("usage"));
    indices.insert(chunk["choices"][0]["index"].get<int>());
  }
  CHECK(indices == std::set<int>{0, 1});
  const Json beside{{"token_ids", ids}, {"stream_options", {{"include_usage", true}}}};
  CHECK(test.post("/inference/v1/generate", beside, 400)["error"]["param"] == "stream_options");
  for (const char* name : {"stream", "echo"}) {
    const Json inside{{"token_ids", ids}, {"sampling_params", {{name, true}}}};
    CHECK(test.post("/inference/v1/generate", inside, 400)["error"]["param"] == "sampling_params");
  }
  // A rendered request streams as the request would.
  const Json rendered = test.post("/v1/chat/completions/render",
                                  message("Hello", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  CHECK(rendered["stream"] == true);
  CHECK(rendered["stream_options"]["include_usage"] == true);
}

TEST_CASE("chats: the tokens of a prompt are counted") {
  DialectServer test;
  const Json body = message("Hello there!");
  const Json count = test.post("/v1/chat/completions/input_tokens", body);
  CHECK(count["input_tokens"] == test.post("/v1/chat/completions", body)["usage"]["prompt_tokens"]);
  CHECK(test.post("/chat/completions/input_tokens", body) == count);
  CHECK(test.post("/v1/chat/completions/input_tokens", Json::object(), 400)["error"]["message"] ==
        "messages is missing");
}

TEST_CASE("render: a request as tokens, which answer as the request itself does") {
  DialectServer test;
  const Json chat =
      message("Hello there!", {{"temperature", 0.5}, {"stop", {"x"}}, {"cache_salt", "s"}, {"priority", 3}});
  Json rendered = test.post("/v1/chat/completions/render", chat);
  const Json tokens = test.post("/tokenize", {{"messages", chat["messages"]}})["tokens"];
  CHECK(rendered["token_ids"] == tokens);
  CHECK(rendered["sampling_params"]["temperature"] == 0.5);
  CHECK(rendered["sampling_params"]["stop"] == Json({"x"}));
  CHECK(rendered["sampling_params"]["max_tokens"] == 200);
  CHECK(!rendered["sampling_params"].contains("messages"));
  CHECK(rendered["cache_salt"] == "s");
  CHECK(rendered["priority"] == 3);
  CHECK(rendered["model"] == "test-model");
  CHECK(rendered["request_id"].get<std::string>().size() == 32);
  CHECK(!test.post("/inference/v1/generate", rendered)["choices"][0]["token_ids"].empty());
  const Json unbounded = test.post("/v1/chat/completions/render", {{"messages", chat["messages"]}});
  CHECK(unbounded["sampling_params"]["max_tokens"] == 512 - tokens.size());

  const Json many =
      test.post("/v1/completions/render",
                {{"prompt", {"Hello", "Hello there"}}, {"guided_regex", "[a-z]+"}, {"request_id", "mine"}});
  REQUIRE(many.size() == 2);
  CHECK(many[1]["token_ids"] == test.post("/tokenize", {{"prompt", "Hello there"}})["tokens"]);
  CHECK(many[0]["sampling_params"]["guided_regex"] == "[a-z]+");
  CHECK(many[0]["sampling_params"]["max_tokens"] == 16);
  CHECK(many[0]["request_id"] == "mine");
  const Json answer = test.post("/inference/v1/generate", many[0])["choices"][0]["token_ids"];
  const std::string word = test.post("/detokenize", {{"tokens", answer}})["prompt"];
  CHECK(std::islower(static_cast<unsigned char>(word.at(0))));

  Json messages = message("Hello there!", {{"temperature", 0.5}, {"stop_sequences", {"x"}}, {"system", "Be brief."}});
  const Json of_messages = test.post("/v1/messages/render", messages);
  messages.erase("max_tokens");
  CHECK(of_messages["token_ids"].size() == test.post("/v1/messages/count_tokens", messages)["input_tokens"]);
  CHECK(of_messages["sampling_params"]["temperature"] == 0.5);
  CHECK(of_messages["sampling_params"]["stop"] == Json({"x"}));
  CHECK(of_messages["sampling_params"]["max_tokens"] == 200);
  CHECK(!test.post("/inference/v1/generate", of_messages)["choices"][0]["token_ids"].empty());
  messages["thinking"] = {{"type", "enabled"}, {"budget_tokens", 5}};
  const Json refused = test.post("/v1/messages/render", messages, 400);
  CHECK(refused["type"] == "error");
  CHECK(refused["error"]["message"] == "thinking.budget_tokens has no place in a rendered request");

  CHECK(test.post("/v1/completions/render", {{"prompt", "x"}, {"max_tokens", 9999}}, 400)["error"]["code"] ==
        "context_length_exceeded");
  CHECK(test.post("/v1/chat/completions/render", {{"model", "none"}, {"messages", chat["messages"]}},
                  404)["error"]["code"] == "model_not_found");
  CHECK(test.post("/v1/chat/completions/render", Json::object(), 400)["error"]["message"] == "messages is missing");
}

TEST_CASE("render: what tools demand of the answer is a structural tag") {
  DialectServer test;
  const Json tool = {
      {"type", "function"},
      {"function",
       {{"name", "weather"},
        {"parameters",
         {{"type", "object"}, {"properties", {{"city", {{"const", "Rome"}}}}}, {"required", {"city"}}}}}}};
  const Json named = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  for (const Json& choice : {Json("required"), named}) {
    const Json chat = message("Hello", {{"tools", {tool}},
                                        {"tool_choice", choice},
                                        {"response_format", {{"type", "json_object"}}},
                                        {"max_tokens", 100}});
    const Json rendered = test.post("/v1/chat/completions/render", chat);
    const Json& params = rendered["sampling_params"];
    CHECK(!params.contains("response_format"));
    CHECK(params["structured_outputs"]["structural_tag"]["type"] == "structural_tag");
    const Json ids = test.post("/inference/v1/generate", rendered)["choices"][0]["token_ids"];
    const std::string text = test.post("/detokenize", {{"tokens", ids}})["prompt"];
    CHECK(text.find(R"({"name": "weather", "arguments": {)") != std::string::npos);
  }
  const Json free = test.post("/v1/chat/completions/render", message("Hello", {{"tools", {tool}}}));
  CHECK(!free["sampling_params"].contains("structured_outputs"));
  Json strict = tool;
  strict["function"]["strict"] = true;
  const Json format = test.post(
      "/v1/chat/completions/render",
      message("Hello", {{"tools", {strict}}}))["sampling_params"]["structured_outputs"]["structural_tag"]["format"];
  CHECK(format["elements"].back()["type"] == "triggered_tags");
  CHECK(test.post("/v1/chat/completions/render", message("Hello", {{"thinking_token_budget", 5}}),
                  400)["error"]["param"] == "thinking_token_budget");
}

TEST_CASE("metrics of a request: told on demand, in the last chunk of a stream") {
  DialectServer test;
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const bool is_chat = std::string_view(path) == "/v1/chat/completions";
    Json body = is_chat ? message("Hello there!", {}) : Json{{"prompt", "Hello there!"}};
    body["max_tokens"] = 4;
    CHECK(!test.post(path, body).contains("metrics"));
    body["collect_metrics"] = true;
    const Json whole = test.post(path, body)["metrics"];
    for (const char* name : {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms"}) {
      CHECK(whole[name].get<double>() >= 0);
    }
    CHECK(whole.contains("mean_itl_ms"));
    CHECK(whole.contains("tokens_per_second"));
    body["stream"] = true;
    const std::vector<std::string> events = sse_events(TestClient(test.server.port()).post(path, body.dump()).body);
    REQUIRE(events.size() >= 3);
    const Json last = Json::parse(events[events.size() - 2]);
    CHECK(last["choices"].empty());
    CHECK(last["metrics"]["time_to_first_token_ms"].get<double>() > 0);
    CHECK(!last.contains("usage"));
    CHECK(!Json::parse(events[0]).contains("metrics"));
  }
}

TEST_CASE("chat_template of a request: taken where the server trusts it, within the interpreter's limits") {
  DialectServer test;
  const Json body = message("Hello there!", {{"chat_template", "{{ messages[0].content }} and {{ eos_token }}more"}});
  const Json refused = test.post("/v1/chat/completions", body, 400);
  CHECK(refused["error"]["param"] == "chat_template");
  CHECK(refused["error"]["message"].get<std::string>().find("--trust-request-chat-template") != std::string::npos);
  TestModel model;
  model.serving.trust_request_chat_template = true;
  Server trusting(test_server_config());
  REQUIRE(trusting.listen().ok());
  trusting.set_ready(model.serving);
  const auto post = [&](const Json& request) {
    return Json::parse(TestClient(trusting.port()).post("/v1/chat/completions/render", request.dump()).body);
  };
  const std::string end = model.tokenizer->eos_token()->text;
  const std::vector<int32_t> expected =
      model.tokenizer->encode("Hello there! and " + end + "more", {.add_special_tokens = false});
  CHECK(post(body)["token_ids"] == Json(expected));
  Json wrong = body;
  wrong["chat_template"] = "{% for";
  CHECK(post(wrong)["error"]["param"] == "chat_template");
  wrong["chat_template"] = "{% for i in range(1000000000) %}{% for j in range(1000000000) %}x{% endfor %}{% endfor %}";
  CHECK(post(wrong)["error"]["type"] == "invalid_request_error");
  wrong["chat_template"] = std::string(300000, 'x');
  CHECK(post(wrong)["error"]["param"] == "chat_template");
  CHECK(post(message("x", {{"enable_thinking", false}, {"chat_template", "{{ enable_thinking }}"}}))["token_ids"] ==
        Json(model.tokenizer->encode("False", {.add_special_tokens = false})));
}

TEST_CASE("abort_requests: by the id of the request or of its answer, or all; others go on") {
  DialectServer test;
  test.model.executor->step_milliseconds = 2;
  const Json endless{{"prompt", "FOREVER"}, {"max_tokens", 480}};
  std::vector<TestResponse> answers(4);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < answers.size(); ++i) {
    clients.emplace_back([&, i] {
      Json body = endless;
      body["request_id"] = fmt::format("r{}", i);
      answers[i] = TestClient(test.server.port()).post("/v1/completions", body.dump());
    });
  }
  for (int i = 0; i < 2000 && test.model.engine->stats().num_running < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Json some = test.post("/abort_requests", {{"request_ids", {"r0", "cmpl-r1", "r9"}}});
  CHECK(some["aborted"] == Json({"r0", "cmpl-r1"}));
  CHECK(some["not_found"] == Json({"r9"}));
  clients[0].join();
  clients[1].join();
  for (int i = 0; i < 2000 && test.model.engine->stats().num_running != 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(test.model.engine->stats().num_running == 2);
  const Json first_two{{"request_ids", {"r0", "r1"}}};  // until the server has taken note of their ends
  for (int i = 0; i < 2000 && !test.post("/abort_requests", first_two)["aborted"].empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (size_t i = 0; i < 2; ++i) {
    CHECK(answers[i].status >= 500);
    CHECK(answers[i].body.find("abort") != std::string::npos);
  }
  const Json all = test.post("/v1/abort_requests", {{"abort_all", true}});
  CHECK(all["aborted"].size() == 2);
  clients[2].join();
  clients[3].join();
  CHECK(test.post("/abort_requests", {{"req_ids", {"r0"}}})["not_found"] == Json({"r0"}));  // it has ended
  // A response whose id is not the request's is found by both, and counts once.
  const Json response{{"input", "FOREVER"}, {"background", true}, {"request_id", "a b"}};
  const std::string first = test.post("/v1/responses", response)["id"];
  test.post("/v1/responses", response);
  CHECK(first != "resp_a b");
  CHECK(test.post("/abort_requests", {{"request_ids", {first}}})["aborted"] == Json({first}));
  for (int i = 0; i < 2000 && test.get("/v1/responses/" + first)["status"] == "in_progress"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(test.post("/abort_requests", {{"abort_all", true}})["aborted"] == Json({"a b"}));
  CHECK(test.is_idle());
  CHECK(test.post("/abort_requests", {{"request_ids", Json::array()}})["aborted"].empty());
  CHECK(test.post("/abort_requests", Json::object(), 400)["error"]["message"] == "request_ids is missing");
  CHECK(test.post("/abort_requests", {{"request_ids", {7}}}, 400)["error"]["param"] == "request_ids");
  CHECK(test.post("/abort_requests", Json::array(), 400)["error"]["type"] == "invalid_request_error");
}

TEST_CASE("vLLM's answers: what has no value is null in whole answers") {
  DialectServer test;
  const Json chat = test.post("/v1/chat/completions", message("Hello"));
  CHECK(chat["prompt_token_ids"].is_null());
  CHECK(chat["choices"][0].at("token_ids").is_null());
  for (const char* name : {"reasoning", "reasoning_content", "refusal"}) {
    CHECK(chat["choices"][0]["message"].at(name).is_null());
  }
  const Json text = test.post("/v1/completions", {{"prompt", "Hello"}});
  for (const char* name : {"token_ids", "prompt_token_ids", "prompt_logprobs", "stop_reason"}) {
    CHECK(text["choices"][0].at(name).is_null());
  }
  const Json told = test.post("/v1/completions", {{"prompt", "Hello"}, {"return_token_ids", true}})["choices"][0];
  CHECK(!told["token_ids"].empty());
  CHECK(!told["prompt_token_ids"].empty());
}

TEST_CASE("completions: a stream tells the prompt's ids once, in the first chunk of each choice") {
  DialectServer test;
  const Json body{{"prompt", {"one two", "three"}}, {"n", 2}, {"stream", true}, {"return_token_ids", true}};
  std::vector<std::vector<int32_t>> prompts(4), answers(4);
  for (const Json& chunk : test.TestServer::stream("/v1/completions", body)) {
    const Json& choice = chunk["choices"][0];
    const auto index = choice["index"].get<size_t>();
    CHECK(choice.contains("prompt_token_ids") == prompts[index].empty());
    if (prompts[index].empty()) prompts[index] = choice["prompt_token_ids"].get<std::vector<int32_t>>();
    for (const Json& id : choice["token_ids"]) answers[index].push_back(id);
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    CHECK(prompts[i] == test.model.tokenizer->encode(i < 2 ? "one two" : "three"));
    CHECK(answers[i].size() == prompts[i].size() + 1);
  }
}

TEST_CASE("logprob_token_ids win over top_logprobs; logprobs 0 of tokens in, tokens out tells the token itself") {
  DialectServer test;
  const Json picked = test.post("/v1/chat/completions",
                                message("Hello", {{"logprobs", true}, {"top_logprobs", 3}, {"logprob_token_ids", {11}}}));
  for (const Json& token : picked["choices"][0]["logprobs"]["content"]) CHECK(token["top_logprobs"].size() == 1);
  CHECK(test.post("/v1/chat/completions", message("Hello", {{"logprob_token_ids", {11}}}), 400)["error"]["param"] ==
        "logprob_token_ids");
  const Json ids = test.post("/tokenize", {{"prompt", "Hello"}})["tokens"];
  const Json tokens =
      test.post("/inference/v1/generate", {{"token_ids", ids}, {"sampling_params", {{"logprobs", 0}}}});
  const Json content = tokens["choices"][0]["logprobs"]["content"];
  REQUIRE(!content.empty());
  for (const Json& token : content) {
    REQUIRE(token["top_logprobs"].size() == 1);
    CHECK(token["top_logprobs"][0]["token"] == token["token"]);
    CHECK(token["top_logprobs"][0]["logprob"] == token["logprob"]);
  }
}

TEST_CASE("endpoint-load-metrics-format: the load is told with the answer, whole or streamed") {
  DialectServer test;
  const auto report = [&](const std::string& format, const Json& body) {
    return TestClient(test.server.port())
        .post("/v1/completions", body.dump(), "endpoint-load-metrics-format: " + format + "\r\n")
        .header("endpoint-load-metrics");
  };
  const Json body{{"prompt", "Hello"}};
  const std::string text = report("TEXT", body);
  CHECK(text.starts_with("TEXT named_metrics.kv_cache_usage_perc="));
  CHECK(text.find(", named_metrics.num_requests_waiting=0.0") != std::string::npos);
  const std::string json = report("json", body);
  REQUIRE(json.starts_with("JSON "));
  const Json metrics = Json::parse(json.substr(5))["named_metrics"];
  CHECK(metrics["num_requests_waiting"] == 0.0);
  CHECK(metrics["kv_cache_usage_perc"].get<double>() >= 0);
  CHECK(report("json", {{"prompt", "Hello"}, {"stream", true}}).starts_with("JSON {"));
  CHECK(report("json", {{"prompt", "Hello"}, {"n", 0}}).starts_with("JSON {"));  // an error tells it too
  CHECK(report("xml", body).empty());
  CHECK(TestClient(test.server.port()).post("/v1/completions", body.dump()).header("endpoint-load-metrics").empty());
}

TEST_CASE("defaults of the server: metrics, chunks, names of tokens, variables of the template") {
  ServerConfig config = api_test_config();
  config.enable_per_request_metrics = true;
  TestModel model;
  model.serving.return_tokens_as_token_ids = true;
  model.serving.stream_interval = 4;
  model.serving.template_kwargs = std::make_shared<nlohmann::ordered_json>(
      nlohmann::ordered_json{{"enable_thinking", false}});
  Server server(config);
  REQUIRE(server.listen().ok());
  server.set_ready(model.serving);
  const auto post = [&](const char* path, const Json& body) {
    return Json::parse(TestClient(server.port()).post(path, body.dump()).body);
  };
  const Json told = post("/v1/completions", {{"prompt", "Hello there"}, {"logprobs", 1}});
  CHECK(told["metrics"]["time_to_first_token_ms"].get<double>() > 0);
  CHECK(told["choices"][0]["logprobs"]["tokens"][0].get<std::string>().starts_with("token_id:"));
  const Json by_text =
      post("/v1/completions", {{"prompt", "Hello"}, {"logprobs", 1}, {"return_tokens_as_token_ids", false}});
  CHECK(!by_text["choices"][0]["logprobs"]["tokens"][0].get<std::string>().starts_with("token_id:"));
  const Json stream{{"prompt", "one two three four five six seven"}, {"stream", true}, {"stream_interval", 2}};
  const auto events = sse_events(TestClient(server.port()).post("/v1/completions", stream.dump()).body);
  const size_t num_tokens = post("/tokenize", {{"prompt", stream["prompt"]}})["count"];
  CHECK(events.size() < num_tokens);  // chunks of 4, not of 2
  CHECK(Json::parse(events[events.size() - 2])["metrics"]["queue_time_ms"].get<double>() >= 0);
  // The template's own default is to think.
  const auto prompt_of = [&](Json fields) { return post("/apply-template", message("Hi", std::move(fields)))["prompt"]; };
  CHECK(prompt_of(Json::object()) == prompt_of({{"enable_thinking", false}}));
  CHECK(prompt_of(Json::object()) != prompt_of({{"enable_thinking", true}}));
}

}  // namespace spate
