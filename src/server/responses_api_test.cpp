// Goal    OpenAI's Responses are answered in their own form, whole and as events, stored, continued, cancelled; what cannot
//         be done is refused under the names that the client sent.
// Method  As server_api_test.cpp: the whole server, a model that answers what the request says.
#include <ctime>
#include <set>
#include <thread>

#include "server/dialect_test.h"
#include "server/response_store.h"

namespace spate {

TEST_CASE("responses: a whole answer, stored, continued") {
  DialectServer test;
  const Json answer =
      test.post("/v1/responses",
                {{"input", "<think>hm</think>Hello!"}, {"instructions", "Be brief."}, {"metadata", {{"k", "v"}}}});
  CHECK(answer["object"] == "response");
  CHECK(answer["status"] == "completed");
  CHECK(answer["id"].get<std::string>().starts_with("resp_"));
  CHECK(answer["metadata"] == Json({{"k", "v"}}));
  REQUIRE(answer["output"].size() == 2);
  CHECK(answer["output"][0]["type"] == "reasoning");
  CHECK(answer["output"][0]["content"][0]["text"] == "hm");
  CHECK(answer["output"][1]["content"][0]["text"] == "Hello!");
  CHECK(answer["output"][1]["content"][0]["type"] == "output_text");
  CHECK(answer["usage"]["total_tokens"] ==
        answer["usage"]["input_tokens"].get<int>() + answer["usage"]["output_tokens"].get<int>());
  const std::string id = answer["id"];
  CHECK(test.get("/v1/responses/" + id) == answer);
  // The conversation goes on: its prompt holds what was said before.
  const Json next = test.post("/v1/responses", {{"input", "More."}, {"previous_response_id", id}});
  CHECK(next["output"][0]["content"][0]["text"] == "More.");
  const Json alone = test.post("/v1/responses", {{"input", "More."}, {"store", false}});
  CHECK(next["usage"]["input_tokens"].get<int>() > alone["usage"]["input_tokens"].get<int>());
  CHECK(test.get("/v1/responses/" + alone["id"].get<std::string>(), 404)["error"]["code"] == "not_found");
  CHECK(test.post("/v1/responses", {{"input", "x"}, {"previous_response_id", "resp_no"}}, 404)["error"]["param"] ==
        "previous_response_id");
  CHECK(test.post("/v1/responses/" + id + "/cancel", Json::object(), 400)["error"]["message"].get<std::string>().find(
            "background") != std::string::npos);
  const Json cut = test.post("/v1/responses", {{"input", "one two three four five"}, {"max_output_tokens", 2}});
  CHECK(cut["status"] == "incomplete");
  CHECK(cut["incomplete_details"]["reason"] == "max_output_tokens");
  CHECK(cut["output"][0]["status"] == "incomplete");
  CHECK(answer["output"][1]["status"] == "completed");
}

TEST_CASE("responses: the items of a request are listed with ids, in pages") {
  DialectServer test;
  const Json items = Json::array({{{"role", "user"}, {"content", "one"}},
                                  {{"id", "fc_mine"}, {"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}},
                                  {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "5"}},
                                  {{"type", nullptr}, {"role", "assistant"}, {"content", "two"}}});
  const Json answer = test.post("/v1/responses", {{"input", items}});
  CHECK(answer["user"].is_null());
  CHECK(answer["usage"]["input_tokens_details"]["cache_write_tokens"] == 0);
  const std::string path = "/v1/responses/" + answer["id"].get<std::string>() + "/input_items";
  const Json all = test.get(path + "?order=asc");
  CHECK(all["object"] == "list");
  CHECK(all["has_more"] == false);
  REQUIRE(all["data"].size() == 4);
  CHECK(all["data"][0]["type"] == "message");
  CHECK(all["data"][0]["content"] == Json::array({{{"type", "input_text"}, {"text", "one"}}}));
  CHECK(all["data"][0]["id"].get<std::string>().starts_with("msg_"));
  CHECK(all["data"][1]["id"] == "fc_mine");
  CHECK(all["data"][2]["output"] == "5");
  CHECK(all["data"][3]["content"][0]["type"] == "output_text");
  CHECK(all["first_id"] == all["data"][0]["id"]);
  CHECK(all["last_id"] == all["data"][3]["id"]);
  const Json page = test.get(path + "?limit=2");  // the last first
  CHECK(page["data"] == Json::array({all["data"][3], all["data"][2]}));
  CHECK(page["has_more"] == true);
  const Json rest = test.get(path + "?limit=2&after=" + page["last_id"].get<std::string>());
  CHECK(rest["data"] == Json::array({all["data"][1], all["data"][0]}));
  CHECK(rest["has_more"] == false);
  for (const char* limit : {"0", "101", "x", "2x", "-1"}) CHECK(test.get(path + "?limit=" + limit, 400)["error"]["param"] == "limit");
  CHECK(test.get(path + "?order=up", 400)["error"]["param"] == "order");
  CHECK(test.get(path + "?after=msg_no", 400)["error"]["param"] == "after");
  const std::string text_id = test.post("/v1/responses", {{"input", "x"}})["id"];
  CHECK(test.get("/v1/responses/" + text_id + "/input_items")["data"][0]["content"][0]["text"] == "x");
}

TEST_CASE("responses: the tokens of an input are counted; of allowed tools the others are left out") {
  DialectServer test;
  const Json tools = {{{"type", "function"}, {"name", "add"}}, {{"type", "function"}, {"name", "subtract"}}};
  Json body = {{"input", "Hello!"}, {"tools", tools}};
  const Json all = test.post("/v1/responses/input_tokens", body);
  CHECK(all["object"] == "response.input_tokens");
  CHECK(all["input_tokens"] == test.post("/v1/responses", body)["usage"]["input_tokens"]);
  body["tool_choice"] = {
      {"type", "allowed_tools"}, {"mode", "auto"}, {"tools", {{{"type", "function"}, {"name", "add"}}}}};
  CHECK(test.post("/v1/responses/input_tokens", body)["input_tokens"] < all["input_tokens"]);
  CHECK(test.post("/v1/responses", body)["tool_choice"] == body["tool_choice"]);
  body["tool_choice"]["tools"][0]["name"] = "divide";
  CHECK(test.post("/v1/responses", body, 400)["error"]["message"].get<std::string>().find("\"divide\"") !=
        std::string::npos);
}

TEST_CASE("responses: deleted ones are forgotten; paths that are not built are not taken for ids") {
  DialectServer test;
  const std::string id = test.post("/v1/responses", {{"input", "Hello!"}})["id"];
  TestClient client(test.server.port());
  const auto send = [&](const std::string& method, const std::string& path) {
    client.send(method + " " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return client.receive(method == "HEAD");
  };
  const std::string path = "/v1/responses/" + id;
  CHECK(Json::parse(send("DELETE", path).body) == Json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  CHECK(send("DELETE", path).status == 404);
  CHECK(test.get(path, 404)["error"]["code"] == "not_found");
  const TestResponse put = send("PUT", path);
  CHECK(put.status == 405);
  CHECK(put.header("allow") == "GET, HEAD, DELETE, OPTIONS");
  CHECK(put.body.find("takes GET and DELETE, not PUT") != std::string::npos);
  CHECK(test.get(path + "/input_items", 404)["error"]["message"] == "There is no response \"" + id + "\" here.");
  CHECK(send("POST", "/v1/responses/compact").status == 404);
  test.model.executor->step_milliseconds = 5;
  const std::string running = test.post("/v1/responses", {{"input", "FOREVER"}, {"background", true}})["id"];
  CHECK(send("DELETE", "/v1/responses/" + running).status == 400);
  test.post("/v1/responses/" + running + "/cancel", Json::object());
}

TEST_CASE("responses, tokens: errors name the fields that the client sent") {
  DialectServer test;
  const auto error_of = [&](const std::string& path, const Json& body) {
    const Json error = test.post(path, body, 400)["error"];
    return error["param"].get<std::string>() + ": " + error["message"].get<std::string>();
  };
  const auto input = [&](const Json& items) { return error_of("/v1/responses", {{"input", items}, {"instructions", "x"}}); };
  CHECK(input({{{"role", "user"}, {"content", "a"}}, {{"role", "robot"}, {"content", "b"}}}).starts_with("input[1].role: input[1].role"));
  CHECK(input({{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}).starts_with("input[0].content[0]"));
  CHECK(error_of("/v1/responses", {{"input", Json::array()}}).starts_with("input: input must have at least one"));
  CHECK(input({{{"role", "user"}, {"content", {{{"type", "input_text"}}}}}}).ends_with("input[0].content[0].text is missing"));
  CHECK(input({{{"type", "function_call_output"}, {"output", "x"}}}) == "input[0].call_id: input[0].call_id is missing or empty");
  CHECK(input({{{"type", "function_call"}, {"call_id", "c"}}}) == "input[0].name: input[0].name is missing or empty");
  CHECK(input({{{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{"}}})
            .starts_with("input[0].arguments: input[0].arguments is not valid JSON: at line 1"));
  CHECK(error_of("/v1/responses", {{"input", "x"}, {"text", {{"format", {{"type", "json_schema"}}}}}})
            .ends_with("text.format.schema is missing"));
  CHECK(error_of("/v1/responses", {{"input", "x"}, {"tools", {{{"type", "function"}}}}}) == "tools[0].name: tools[0].name is missing");
  CHECK(error_of("/v1/responses", {{"input", "x"}, {"max_output_tokens", 0}}).starts_with("max_output_tokens: max_output_tokens"));
  const Json tools = {{{"type", "function"}, {"name", "add"}}};
  const auto choice = [&](const Json& value) {
    return error_of("/v1/responses", {{"input", "x"}, {"tools", tools}, {"tool_choice", value}});
  };
  const auto allowed = [&](const Json& names) {
    return choice({{"type", "allowed_tools"}, {"mode", "required"}, {"tools", names}});
  };
  CHECK(choice({{"type", "function"}, {"name", 5}}) == "tool_choice.name: tool_choice.name must be a string, got 5");
  CHECK(choice({{"type", "function"}}) == "tool_choice: tool_choice.name is missing");
  CHECK(choice({{"type", "allowed_tools"}, {"mode", 7}, {"tools", tools}}) ==
        "tool_choice.mode: tool_choice.mode must be a string, got 7");
  CHECK(allowed({{{"type", "function"}}}) == "tool_choice.tools[0]: tool_choice.tools[0].name is missing");
  CHECK(allowed("add") == "tool_choice.tools: tool_choice.tools must be an array, got \"add\"");
  const auto output = [&](const Json& value) {
    return input({{{"type", "function_call_output"}, {"call_id", "c"}, {"output", value}}});
  };
  CHECK(output(5) == "input[0].output: input[0].output must be a string or an array of parts, got 5");
  CHECK(output({{{"type", "input_text"}, {"text", 5}}}) ==
        "input[0].output[0].text: input[0].output[0].text must be a string, got 5");
  CHECK(output({{{"type", "input_image"}, {"image_url", "x"}}})
            .starts_with("input[0].output[0]: input[0].output[0] is of type input_image"));
  CHECK(error_of("/v1/responses", {{"input", "x"}, {"previous_response_id", "mine"}})
            .starts_with("previous_response_id: previous_response_id must begin with resp_"));
  const auto tokens = [&](const Json& ids) { return error_of("/inference/v1/generate", {{"token_ids", ids}}); };
  CHECK(tokens(Json::array()) == "token_ids: token_ids must not be empty");
  CHECK(tokens({-1}).starts_with("token_ids: token_ids"));
  CHECK(tokens({99999999}).starts_with("token_ids: token_ids"));
}

TEST_CASE("responses: events have no gaps and end with the whole response") {
  DialectServer test;
  const auto events = test.stream("/v1/responses", {{"input", "Hello there!"}});
  CHECK(types_of(events) ==
        "response.created response.in_progress response.output_item.added response.content_part.added "
        "response.output_text.delta response.output_text.done response.content_part.done response.output_item.done "
        "response.completed");
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    CHECK(events[i]["sequence_number"] == i);
    if (events[i]["type"] == "response.output_text.delta") text += events[i]["delta"].get<std::string>();
  }
  CHECK(text == "Hello there!");
  CHECK(events.back()["response"]["output"][0]["content"][0]["text"] == "Hello there!");
}

TEST_CASE("responses: functions, their outputs, and forms of text") {
  DialectServer test;
  const Json tools = {{{"type", "function"}, {"name", "add"}, {"parameters", kAnthropicTools[0]["input_schema"]}}};
  const Json answer = test.post("/v1/responses", {{"input", kCall}, {"tools", tools}});
  REQUIRE(answer["output"].size() == 1);
  const Json& call = answer["output"][0];
  CHECK(call["type"] == "function_call");
  CHECK(call["name"] == "add");
  CHECK(Json::parse(call["arguments"].get<std::string>()) == Json({{"a", 3}}));
  const Json forced = test.post("/v1/responses", {{"input", "No."},
                                                  {"tools", tools},
                                                  {"max_output_tokens", 200},
                                                  {"tool_choice", {{"type", "function"}, {"name", "add"}}}});
  CHECK(forced["output"][0]["name"] == "add");
  const Json output = {{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "7"}};
  const Json next = test.post("/v1/responses", {{"input", {output, {{"role", "user"}, {"content", "Thanks."}}}},
                                                {"previous_response_id", answer["id"]},
                                                {"tools", tools}});
  CHECK(next["output"][0]["content"][0]["text"] == "Thanks.");
  const auto events = test.stream("/v1/responses", {{"input", kCall}, {"tools", tools}});
  CHECK(types_of(events).find("response.function_call_arguments.delta response.function_call_arguments.done") !=
        std::string::npos);
  const Json format = {
      {"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "integer"}, {"maximum", 9}, {"minimum", 0}}}};
  const Json number = test.post("/v1/responses", {{"input", "Hi."}, {"text", {{"format", format}}}});
  CHECK(Json::parse(number["output"][0]["content"][0]["text"].get<std::string>()).is_number_integer());
  const Json search = test.post("/v1/responses", {{"input", "x"}, {"tools", {{{"type", "web_search"}}}}}, 400)["error"];
  CHECK(search["code"] == "unsupported_parameter");
  CHECK(search["message"].get<std::string>().find("tools[0] is of type web_search: this server runs no tools") !=
        std::string::npos);
  const Json custom = test.post("/v1/responses", {{"input", "x"}, {"tools", {{{"type", "custom"}, {"name", "c"}}}}}, 400);
  CHECK(custom["error"]["message"].get<std::string>().find("takes type function") != std::string::npos);
  CHECK(test.post("/v1/responses", {{"input", "x"}, {"relaxed_acceptance", true}}, 400)["error"]["param"] ==
        "relaxed_acceptance");
  test.post("/v1/responses", {{"input", "x"}, {"speculate", false}});
}

TEST_CASE("responses: a conversation goes on behind a call that max_output_tokens cut") {
  DialectServer test;
  const Json tools = {{{"type", "function"}, {"name", "add"}, {"parameters", {{"type", "object"}}}}};
  bool is_cut = false;
  for (int length = 4; length < 80 && !is_cut; ++length) {
    const Json answer =
        test.post("/v1/responses", {{"input", kCall}, {"tools", tools}, {"max_output_tokens", length}});
    if (answer["output"].empty()) continue;
    const Json& last = answer["output"].back();
    if (last["type"] != "function_call" || Json::accept(last["arguments"].get<std::string>())) continue;
    is_cut = true;
    CHECK(answer["status"] == "incomplete");
    CHECK(test.post("/v1/responses", {{"input", "Hello!"}, {"previous_response_id", answer["id"]}})["status"] ==
          "completed");
  }
  CHECK(is_cut);
}

TEST_CASE("responses: vLLM's additional fields work as in chats") {
  DialectServer test;
  const auto answer_of = [&](Json fields) {
    fields["input"] = "one two three";
    const Json response = test.post("/v1/responses", fields);
    return response["output"][0]["content"][0]["text"].get<std::string>();
  };
  CHECK(answer_of({{"stop", " three"}}) == "one two");
  CHECK(answer_of({{"stop", {" three"}}, {"include_stop_str_in_output", true}}) == "one two three");
  CHECK(answer_of({{"structured_outputs", {{"choice", {"red"}}}}}) == "red");
  CHECK(test.post("/v1/responses", {{"input", "x"}, {"request_id", "mine"}})["id"] == "resp_mine");
  CHECK(test.post("/v1/responses", {{"input", "x"}, {"ignore_eos", true}, {"max_output_tokens", 20}})["status"] ==
        "incomplete");
  for (const auto& [fields, name] :
       {std::pair{Json{{"seed", "x"}}, "seed"}, std::pair{Json{{"top_k", -9}}, "top_k"},
        std::pair{Json{{"cache_salt", 5}}, "cache_salt"}, std::pair{Json{{"logit_bias", {{"x", 1}}}}, "logit_bias"},
        std::pair{Json{{"thinking_token_budget", -5}}, "thinking_token_budget"},
        std::pair{Json{{"enable_response_messages", true}}, "enable_response_messages"},
        std::pair{Json{{"vllm_xargs", {{"a", 1}}}}, "vllm_xargs"}}) {
    Json body = fields;
    body["input"] = "x";
    CHECK(test.post("/v1/responses", body, 400)["error"]["param"].get<std::string>().starts_with(name));
  }
}

TEST_CASE("responses: log-probabilities of the text's tokens, and of no others") {
  DialectServer test;
  const auto joined = [](const Json& logprobs) {
    std::string text;
    for (const Json& token : logprobs) text += token["token"].get<std::string>();
    return text;
  };
  const std::string text = "Red, green and 蓝色 🙂.";
  const Json include = {"message.output_text.logprobs"};
  const Json answer = test.post("/v1/responses", {{"input", text}, {"top_logprobs", 2}, {"include", include}});
  CHECK(answer["top_logprobs"] == 2);
  const Json& part = answer["output"][0]["content"][0];
  REQUIRE(part["text"] == text);
  const Json ids = test.post("/tokenize", {{"prompt", text}})["tokens"];
  REQUIRE(part["logprobs"].size() == ids.size());  // the end token has no text
  CHECK(part["logprobs"][0]["logprob"] == -0.5);
  std::string bytes;
  for (const Json& token : part["logprobs"]) {
    for (const Json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
  }
  CHECK(bytes == text);
  CHECK(part["logprobs"][0]["top_logprobs"].size() == 2);
  CHECK(test.post("/v1/responses",
                  {{"input", text}, {"include", include}})["output"][0]["content"][0]["logprobs"][0]["top_logprobs"]
            .empty());
  CHECK(test.post("/v1/responses", {{"input", text}})["output"][0]["content"][0]["logprobs"].empty());

  // Streamed: with the delta that has their text; the whole item has them all.
  Json streamed = Json::array(), done;
  for (const Json& event : test.stream("/v1/responses", {{"input", text}, {"top_logprobs", 2}})) {
    if (event["type"] == "response.output_text.done") done = event["logprobs"];
    if (event["type"] != "response.output_text.delta") continue;
    CHECK(!event["logprobs"].empty());
    for (const Json& token : event["logprobs"]) streamed.push_back(token);
  }
  CHECK(streamed == part["logprobs"]);
  CHECK(done == streamed);

  // Neither the reasoning's, nor a call's, nor those of their markers.
  const std::string thought = "<think>\nIs it so?\n</think>\n\nIt is. ";
  const Json tools = {{{"type", "function"}, {"name", "add"}, {"parameters", {{"type", "object"}}}}};
  for (const bool is_stream : {false, true}) {
    const Json body{{"input", thought + kCall}, {"tools", tools}, {"top_logprobs", 1}};
    const Json mixed =
        is_stream ? test.stream("/v1/responses", body).back()["response"] : test.post("/v1/responses", body);
    REQUIRE(mixed["output"].size() == 3);
    const Json& message = mixed["output"][1]["content"][0];
    CHECK(message["text"] == "It is.");
    CHECK(joined(message["logprobs"]) == "It is.");
  }
  for (const auto& [field, value] : {std::pair{"top_logprobs", Json(21)}, {"top_logprobs", -1}, {"include", {7}}}) {
    CHECK(test.post("/v1/responses", {{"input", "x"}, {field, value}}, 400)["error"]["param"] == field);
  }
}

TEST_CASE("responses: truncation auto leaves out the oldest turns, and no more than it must") {
  DialectServer test;
  Json items = {{{"role", "system"}, {"content", "The system says this."}}};
  for (int i = 0; i < 40; ++i) {
    items.push_back({{"role", "user"}, {"content", fmt::format("question {} of many, with some more words", i)}});
    items.push_back({{"role", "assistant"}, {"content", fmt::format("answer {} to it, with some more words", i)}});
  }
  items.push_back({{"role", "user"}, {"content", "The last."}});
  const auto count = [&](Json fields) {
    fields["input"] = items;
    return test.post("/v1/responses/input_tokens", fields)["input_tokens"].get<int>();
  };
  const Json body{{"input", items}, {"max_output_tokens", 40}};
  CHECK(test.post("/v1/responses", body, 400)["error"]["code"] == "context_length_exceeded");
  Json truncated = body;
  truncated["truncation"] = "auto";
  const Json answer = test.post("/v1/responses", truncated);
  CHECK(answer["truncation"] == "auto");
  CHECK(answer["output"][0]["content"][0]["text"] == "The last.");
  const int num_tokens = answer["usage"]["input_tokens"];
  CHECK(num_tokens <= 512 - 40);
  // A turn more would not fit.
  const int turn = test.post("/v1/responses/input_tokens", {{"input", {items[1], items[2]}}})["input_tokens"];
  CHECK(num_tokens + turn > 512 - 40);
  CHECK(count({{"truncation", "auto"}, {"max_output_tokens", 40}}) == num_tokens);
  CHECK(count({{"truncation", "auto"}}) <= 512 - 512 / 4);
  // The instructions stay, and what was left out is still there for the next response.
  truncated["instructions"] = "Some instructions.";
  CHECK(test.post("/v1/responses", truncated)["status"] == "completed");
  const Json next{{"input", "More."}, {"previous_response_id", answer["id"]}};
  CHECK(test.post("/v1/responses", next, 400)["error"]["code"] == "context_length_exceeded");
  // One turn that does not fit by itself.
  const Json alone{{"input", std::string(9000, 'x')}, {"truncation", "auto"}};
  CHECK(test.post("/v1/responses", alone, 400)["error"]["code"] == "context_length_exceeded");
  CHECK(test.post("/v1/responses", {{"input", "x"}, {"truncation", "off"}}, 400)["error"]["param"] == "truncation");
}

TEST_CASE("responses: one request id for several turns does not overwrite the earlier ones") {
  DialectServer test;
  const auto answer_to = [&](const std::string& text, Json fields = Json::object()) {
    fields["input"] = text;
    fields["request_id"] = "trace-7";
    return test.post("/v1/responses", fields);
  };
  const Json first = answer_to("One.");
  CHECK(first["id"] == "resp_trace-7");
  const Json second = answer_to("Two.", {{"previous_response_id", first["id"]}});
  CHECK(second["id"] != first["id"]);
  CHECK(test.get("/v1/responses/" + first["id"].get<std::string>()) == first);
  CHECK(test.get("/v1/responses/" + second["id"].get<std::string>()) == second);
  // An id that no path can have is not the response's.
  for (const char* id : {"a/b", "a?b", "a b", "a\nb"}) {
    const Json answer = test.post("/v1/responses", {{"input", "x"}, {"request_id", id}});
    CHECK(test.get("/v1/responses/" + answer["id"].get<std::string>()) == answer);
  }
}

TEST_CASE("responses: in the background, found by id, cancelled") {
  DialectServer test;
  const auto wait = [&](const std::string& id) {
    for (int i = 0; i < 1000; ++i) {
      const Json response = test.get("/v1/responses/" + id);
      if (response["status"] != "in_progress") return response;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return Json();
  };
  const Json started = test.post("/v1/responses", {{"input", "Hello!"}, {"background", true}});
  CHECK(started["status"] == "in_progress");
  CHECK(wait(started["id"])["output"][0]["content"][0]["text"] == "Hello!");
  test.model.executor->step_milliseconds = 5;
  const std::string id = test.post("/v1/responses", {{"input", "FOREVER and ever"}, {"background", true}})["id"];
  CHECK(test.get("/v1/responses/" + id)["status"] == "in_progress");
  CHECK(test.post("/v1/responses/" + id + "/cancel", Json::object())["status"] == "cancelled");
  CHECK(test.get("/v1/responses/" + id)["status"] == "cancelled");  // though the last step may still run
  CHECK(test.post("/v1/responses/" + id + "/cancel", Json::object())["status"] == "cancelled");
  const std::string deleted = test.post("/v1/responses", {{"input", "FOREVER"}, {"background", true}})["id"];
  test.post("/v1/responses/" + deleted + "/cancel", Json::object());
  TestClient client(test.server.port());
  client.send("DELETE /v1/responses/" + deleted + " HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.receive().status == 200);
  for (int i = 0; i < 10; ++i) {  // its end does not bring it back
    CHECK(client.get("/v1/responses/" + deleted).status == 404);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(test.post("/v1/responses", {{"input", "x"}, {"background", true}, {"store", false}}, 400)["error"]["param"] ==
        "background");
}

TEST_CASE("responses: the events of a stored response stream again, from any number on") {
  DialectServer test;
  const auto events = test.stream("/v1/responses", {{"input", "Hello there!"}});
  const std::string path = "/v1/responses/" + events[0]["response"]["id"].get<std::string>() + "?stream=true";
  CHECK(test.stream_of(path) == events);
  for (size_t after = 0; after < events.size(); ++after) {
    const auto rest = test.stream_of(path + "&starting_after=" + std::to_string(after));
    CHECK(rest == std::vector<Json>(events.begin() + static_cast<std::ptrdiff_t>(after) + 1, events.end()));
  }
  CHECK(test.stream_of(path + "&starting_after=100000").empty());
  // Calls and reasoning have deltas of their own; a response that was not streamed has events too.
  const Json tools = {{{"type", "function"}, {"name", "add"}, {"parameters", {{"type", "object"}}}}};
  const auto call = test.stream("/v1/responses", {{"input", kCall}, {"tools", tools}});
  CHECK(test.stream_of("/v1/responses/" + call[0]["response"]["id"].get<std::string>() + "?stream=true") == call);
  const Json whole = test.post("/v1/responses", {{"input", "Hello!"}});
  const auto later = test.stream_of("/v1/responses/" + whole["id"].get<std::string>() + "?stream=1");
  CHECK(later.back()["response"] == whole);
  CHECK(test.get("/v1/responses/" + whole["id"].get<std::string>() + "?stream=false") == whole);

  for (const auto& [query, param] :
       std::map<std::string, std::string>{{"stream=maybe", "stream"},
                                          {"starting_after=1", "starting_after"},
                                          {"stream=true&starting_after=-1", "starting_after"},
                                          {"stream=true&starting_after=x", "starting_after"},
                                          {"stream=true&starting_after=1e3", "starting_after"}}) {
    CHECK(test.get("/v1/responses/" + whole["id"].get<std::string>() + "?" + query, 400)["error"]["param"] == param);
  }
  TestClient client(test.server.port());
  client.send("HEAD " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.receive(true).header("content-type") == "application/json");
}

TEST_CASE("responses: a stream of one that runs in the background goes on after its client has left") {
  DialectServer test;
  test.model.executor->step_milliseconds = 2;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "word" + std::to_string(i) + " ";
  std::string id;
  {
    TestClient client(test.server.port());
    const std::string body =
        Json{{"input", text}, {"background", true}, {"stream", true}, {"max_output_tokens", 300}}.dump();
    client.send(fmt::format(
        "POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        body.size(), body));
    const std::string head = client.receive_until("output_text.delta");
    const size_t at = head.find("\"id\":\"resp_");
    REQUIRE(at != std::string::npos);
    id = head.substr(at + 6, head.find('"', at + 6) - at - 6);
  }
  CHECK(test.get("/v1/responses/" + id)["status"] == "in_progress");
  std::vector<std::vector<Json>> followed(4);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < followed.size(); ++i) {
    clients.emplace_back([&, i] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * i));
      followed[i] = test.stream_of("/v1/responses/" + id + "?stream=true&starting_after=" + std::to_string(i));
    });
  }
  for (std::thread& client : clients) client.join();
  const auto all = test.stream_of("/v1/responses/" + id + "?stream=true");
  CHECK(all.back()["type"] == "response.completed");
  std::string told;
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i]["sequence_number"] == i);
    if (all[i]["type"] == "response.output_text.delta") told += all[i]["delta"].get<std::string>();
  }
  CHECK(told == all.back()["response"]["output"][0]["content"][0]["text"].get<std::string>());
  CHECK(all.back()["response"] == test.get("/v1/responses/" + id));
  for (size_t i = 0; i < followed.size(); ++i) {
    CHECK(followed[i] == std::vector<Json>(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end()));
  }
  // A cancel ends the streams that follow.
  const std::string endless = test.post("/v1/responses", {{"input", "FOREVER"}, {"background", true}})["id"];
  std::vector<Json> cut;
  std::thread follower([&] { cut = test.stream_of("/v1/responses/" + endless + "?stream=true"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  test.post("/v1/responses/" + endless + "/cancel", Json::object());
  follower.join();
  CHECK(cut.back()["type"] == "response.cancelled");
  CHECK(cut.back()["response"]["status"] == "cancelled");
}

TEST_CASE("response store: bounded by count and bytes, the last used stay") {
  ResponseStore store(3, 1000);
  const auto put = [&](const std::string& id, size_t size) {
    store.put(id, {.response_json = std::string(size, 'x'),
                   .messages = nullptr,
                   .input_items = nullptr,
                   .cancel = {},
                   .events = nullptr});
  };
  for (const char* id : {"a", "b", "c"}) put(id, 10);
  CHECK(store.find("a"));
  put("d", 10);
  CHECK(store.find("a"));
  CHECK(!store.find("b"));
  put("e", 990);
  CHECK(store.num_bytes() <= 1000);
  CHECK(store.find("e"));
  CHECK(!store.find("c"));
  put("f", 5000);
  CHECK(store.num_bytes() == 0);
}

}  // namespace spate
