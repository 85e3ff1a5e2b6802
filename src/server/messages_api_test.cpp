// Goal    Anthropic's Messages are answered in their own form, whole and as events, with tools and thinking; what cannot be
//         done is refused in their envelope.
// Method  As server_api_test.cpp: the whole server, a model that answers what the request says.
#include <cctype>
#include <string>

#include "server/dialect_test.h"

namespace spate {

TEST_CASE("messages: a whole answer, blocks and system, stop sequences") {
  DialectServer test;
  const Json answer = test.post("/v1/messages", message("<think>\nhm\n</think>\n\nHello!", {{"system", "Be brief."}}));
  CHECK(answer["type"] == "message");
  CHECK(answer["role"] == "assistant");
  CHECK(answer["id"].get<std::string>().starts_with("msg_"));
  REQUIRE(answer["content"].size() == 2);
  const std::string signature = answer["content"][0]["signature"];
  CHECK(signature.size() == 32);
  CHECK(answer["content"][0] == Json({{"type", "thinking"}, {"thinking", "hm"}, {"signature", signature}}));
  CHECK(answer["content"][1] == Json({{"type", "text"}, {"text", "Hello!"}}));
  CHECK(answer["stop_reason"] == "end_turn");
  CHECK(answer["stop_sequence"].is_null());
  CHECK(answer["usage"]["output_tokens"].get<int>() > 1);
  const Json stopped = test.post("/v1/messages", message("one two three", {{"stop_sequences", {" three"}}}));
  CHECK(stopped["content"][0]["text"] == "one two");
  CHECK(stopped["stop_reason"] == "stop_sequence");
  CHECK(stopped["stop_sequence"] == " three");
  CHECK(test.post("/v1/messages", message("one two three four", {{"max_tokens", 2}}))["stop_reason"] == "max_tokens");
  const Json blocks = test.post(
      "/v1/messages",
      {{"max_tokens", 50},
       {"system", {{{"type", "text"}, {"text", "Be brief."}, {"cache_control", {{"type", "ephemeral"}}}}}},
       {"messages",
        {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "3 and 4?"}}}}},
         {{"role", "assistant"},
          {"content",
           {{{"type", "thinking"}, {"thinking", "I add."}, {"signature", "x"}},
            {{"type", "tool_use"}, {"id", "toolu_1"}, {"name", "add"}, {"input", {{"a", 3}}}}}}},
         {{"role", "user"},
          {"content",
           {{{"type", "tool_result"}, {"tool_use_id", "toolu_1"}, {"content", {{{"type", "text"}, {"text", "7"}}}}},
            {{"type", "text"}, {"text", "Thanks."}}}}}}}});
  CHECK(blocks["content"][0]["text"] == "Thanks.");
}

TEST_CASE("messages, responses: time grows with the size of a request, too many entries are refused under their name") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kNumBlocks = 20'000;  // ten times as slow
#else
  constexpr int kNumBlocks = 200'000;
#endif
  DialectServer test;
  const auto time_of = [&](int num_blocks) {
    std::string body = R"({"max_tokens":1,"messages":[{"role":"assistant","content":[)";
    for (int i = 0; i < num_blocks; ++i) body += R"({"type":"thinking","thinking":"abcdefgh"},)";
    body += R"({"type":"text","text":"x"}]}]})";
    TestClient client(test.server.port());
    const std::clock_t begin = std::clock();
    const TestResponse response = client.post("/v1/messages", body);
    CHECK(response.status == 400);
    CHECK(response.body.find("maximum context length") != std::string::npos);
    return std::clock() - begin;  // of this process, the server's threads included: other programs do not count
  };
  // Were each block to copy those before it, 16 times as many would take 256 times as long.
  const auto quick = std::min(time_of(kNumBlocks / 16), time_of(kNumBlocks / 16));
  CHECK(time_of(kNumBlocks) < 80 * quick);
  const Json many(70000, Json::object()), tools(2000, Json{{"name", "f"}});
  const Json input = test.post("/v1/responses", {{"input", many}}, 400);
  CHECK(input["error"]["message"] == "input has 70000 entries, at most 65536 are taken");
  CHECK(input["error"]["param"] == "input");
  CHECK(test.post("/v1/messages", {{"max_tokens", 1}, {"messages", many}}, 400)["error"]["message"] ==
        "messages has 70000 entries, at most 65536 are taken");
  CHECK(test.post("/v1/messages", message("x", {{"tools", tools}}), 400)["error"]["message"] ==
        "tools has 2000 entries, at most 1024 are taken");
}

TEST_CASE("messages: an answer without a text has one empty block, whole and streamed") {
  DialectServer test;
  const Json body = message("one two", {{"stop_sequences", {"one"}}});
  const Json answer = test.post("/v1/messages", body);
  CHECK(answer["content"] == Json::parse(R"([{"type":"text","text":""}])"));
  CHECK(answer["stop_reason"] == "stop_sequence");
  CHECK(types_of(test.stream("/v1/messages", body)) ==
        "message_start content_block_start content_block_stop message_delta message_stop");
}

TEST_CASE("messages: tools and their choice") {
  DialectServer test;
  const Json called = test.post("/v1/messages", message(kCall, {{"tools", kAnthropicTools}}));
  REQUIRE(called["content"].size() == 1);
  CHECK(called["content"][0]["type"] == "tool_use");
  CHECK(called["content"][0]["name"] == "add");
  CHECK(called["content"][0]["input"] == Json({{"a", 3}}));
  CHECK(called["stop_reason"] == "tool_use");
  for (const Json& choice :
       {Json({{"type", "any"}, {"disable_parallel_tool_use", true}}), Json({{"type", "tool"}, {"name", "add"}})}) {
    const Json forced =
        test.post("/v1/messages", message("No.", {{"tools", kAnthropicTools}, {"tool_choice", choice}}));
    REQUIRE(forced["content"].size() == 1);
    CHECK(forced["content"][0]["input"]["a"].get<int>() <= 9);
    CHECK(forced["stop_reason"] == "tool_use");
  }
}

TEST_CASE("messages: a stop sequence inside a call ends the answer, not with a call to make") {
  DialectServer test;
  const Json answer =
      test.post("/v1/messages", message(kCall, {{"tools", kAnthropicTools}, {"stop_sequences", {"3"}}}));
  CHECK(answer["stop_reason"] == "stop_sequence");
  CHECK(answer["stop_sequence"] == "3");
}

TEST_CASE("messages: an answer held to a schema") {
  DialectServer test;
  const Json format = {{"type", "json_schema"}, {"schema", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}};
  const Json answer = test.post("/v1/messages", message("Hi.", {{"output_config", {{"format", format}}}}));
  CHECK(Json::parse(answer["content"][0]["text"].get<std::string>()).is_number_integer());
  const Json bad = test.post("/v1/messages", message("Hi.", {{"output_config", {{"format", {{"type", "x"}}}}}}), 400);
  CHECK(bad["error"]["message"].get<std::string>().starts_with("output_config.format must be "));
}

TEST_CASE("messages: the events of a stream") {
  DialectServer test;
  const auto events = test.stream("/v1/messages", message("<think>hm</think>Hello there!"));
  CHECK(types_of(events) ==
        "message_start content_block_start content_block_delta content_block_stop content_block_start "
        "content_block_delta content_block_stop message_delta message_stop");
  const auto stop = std::ranges::find(events, "content_block_stop", [](const Json& event) { return event["type"]; });
  REQUIRE(stop != events.end());
  CHECK((stop - 1)->at("delta")["type"] == "signature_delta");
  CHECK((stop - 1)->at("delta")["signature"].get<std::string>().size() == 32);
  CHECK(events[0]["message"]["usage"]["input_tokens"].get<int>() > 0);
  std::string text, thinking;
  for (const Json& event : events) {
    if (event["type"] != "content_block_delta") continue;
    text += event["delta"].value("text", "");
    thinking += event["delta"].value("thinking", "");
  }
  CHECK(text == "Hello there!");
  CHECK(thinking == "hm");
  const auto calls = test.stream("/v1/messages", message(kCall, {{"tools", kAnthropicTools}}));
  std::string input;
  for (const Json& event : calls) {
    if (event["type"] == "content_block_start") CHECK(event["content_block"]["name"] == "add");
    if (event["type"] == "content_block_delta") input += event["delta"]["partial_json"].get<std::string>();
  }
  CHECK(Json::parse(input) == Json({{"a", 3}}));
  CHECK(calls[calls.size() - 2]["delta"]["stop_reason"] == "tool_use");
}

TEST_CASE("messages: tokens are counted, errors come in their envelope") {
  DialectServer test;
  const Json count = test.post("/v1/messages/count_tokens", {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}});
  const Json answer = test.post("/v1/messages", message("Hello"));
  CHECK(count["input_tokens"] ==
        answer["usage"]["input_tokens"].get<int>() + answer["usage"]["cache_read_input_tokens"].get<int>());
  const auto error_of = [&](const Json& body, int status) {
    const Json error = test.post("/v1/messages", body, status);
    CHECK(error["type"] == "error");
    return error["error"]["type"].get<std::string>() + ": " + error["error"]["message"].get<std::string>();
  };
  TestClient client(test.server.port());
  client.send("POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  CHECK(Json::parse(client.receive().body)["type"] == "error");
  // Names of types and encodings have no case.
  client.send(
      "POST /v1/messages/count_tokens HTTP/1.1\r\nHost: x\r\nContent-Type: Application/JSON; Charset=UTF-8\r\n"
      "Content-Encoding: Identity\r\nContent-Length: 44\r\n\r\n"
      R"({"messages":[{"role":"user","content":"x"}]})");
  CHECK(client.receive().status == 200);
  CHECK(error_of({{"max_tokens", 5}}, 400) == "invalid_request_error: messages is missing");
  CHECK(error_of(message("x", {{"model", "no"}}), 404).starts_with("not_found_error: "));
  CHECK(error_of(message("x", {{"max_tokens", 0}}), 400)
            .starts_with("invalid_request_error: max_tokens must be in [1, "));
  CHECK(error_of(message("x", {{"mcp_servers", {{{"type", "url"}}}}}), 400).find("is not supported") !=
        std::string::npos);
  const auto edits = [](const char* type) { return Json{{"edits", {{{"type", type}, {"keep", "all"}}}}}; };
  test.post("/v1/messages", message("x", {{"context_management", edits("clear_thinking_20251015")}}));
  CHECK(error_of(message("x", {{"context_management", edits("clear_tool_uses_20250919")}}), 400)
            .find("context_management.edits[0] is of type \"clear_tool_uses_20250919\"") != std::string::npos);
  const auto block_error = [&](const char* role, Json block) {
    const Json messages = {{{"role", "user"}, {"content", "x"}}, {{"role", role}, {"content", {std::move(block)}}}};
    return error_of({{"max_tokens", 5}, {"messages", messages}}, 400);
  };
  const std::string block = "invalid_request_error: messages[1].content[0]";
  CHECK(block_error("user", {{"type", "image"}}).starts_with(block));
  CHECK(block_error("user", {{"type", "text"}}) == block + ".text is missing");
  CHECK(block_error("assistant", {{"type", "thinking"}, {"signature", "x"}}) == block + ".thinking is missing");
  CHECK(block_error("user", {{"type", "tool_result"}, {"content", "x"}}) == block + ".tool_use_id is missing");
  CHECK(block_error("user", {{"type", "tool_result"}, {"tool_use_id", ""}}) == block + ".tool_use_id must not be empty");
  CHECK(block_error("assistant", {{"type", "tool_use"}, {"name", "f"}, {"input", Json::object()}}) ==
        block + ".id is missing");
  CHECK(block_error("assistant", {{"type", "tool_use"}, {"id", "t"}, {"name", "f"}}) == block + ".input is missing");
  CHECK(block_error("user", {{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}}) ==
        block + " is a tool_use, which only the assistant's messages have");
  CHECK(block_error("assistant", {{"type", "tool_result"}, {"tool_use_id", "t"}}) ==
        block + " is a tool_result, which only the user's messages have");
  // Fields are named as this API has them.
  CHECK(error_of(message("x", {{"stop_sequences", {""}}}), 400).find(": stop_sequences cannot") != std::string::npos);
  CHECK(error_of(message("x", {{"tools", {{{"input_schema", Json::object()}}}}}), 400).ends_with(": tools[0].name is missing"));
  const Json bad_schema = {{"type", "object"}, {"properties", {{"a", {{"$ref", "#/none"}}}}}};
  const Json bad_tool = {{{"name", "f"}, {"input_schema", bad_schema}}};
  CHECK(error_of(message("x", {{"tools", bad_tool}, {"tool_choice", {{"type", "any"}}}}), 400)
            .find("tools[0].input_schema: ") != std::string::npos);
  CHECK(error_of(message("x", {{"tools", kAnthropicTools}, {"tool_choice", {{"type", "tool"}}}}), 400)
            .ends_with(": tool_choice.name is missing"));
  CHECK(error_of(message("x", {{"output_config", {{"format", {{"type", "json_schema"}, {"schema", bad_schema}}}}}}), 400)
            .find("output_config.format.schema: ") != std::string::npos);
  for (const char* body : {R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}]})", "{",
                           R"({"max_tokens":1,"stream":true,"messages":[{"role":"user","content":"x"}]})"}) {
    client.send("POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nContent-Type: application/json\r\n"
                "Content-Length: " + std::to_string(std::string_view(body).size()) + "\r\n\r\n" + body);
    CHECK(client.receive().header("request-id") == "mine");
  }
  CHECK(error_of(message("x", {{"tools", {{{"type", "web_search_20250305"}, {"name", "w"}}}}}), 400)
            .find("runs no tools") != std::string::npos);
  CHECK(error_of(message("x", {{"relaxed_acceptance", true}}), 400).find("use_relaxed_acceptance_for_thinking") !=
        std::string::npos);
  CHECK(error_of(message("x", {{"speculate", 1}}), 400).find("speculate must be true or false") != std::string::npos);
}

TEST_CASE("messages: what is refused by its path or method has the form of the dialect") {
  DialectServer test;
  TestClient client(test.server.port());
  const auto send = [&](const std::string& method, const std::string& path) {
    client.send(method + " " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return client.receive();
  };
  for (const auto& [method, path, status, type] :
       {std::tuple{"GET", "/v1/messages/batches", 404, "not_found_error"},
        {"GET", "/v1/messages", 405, "invalid_request_error"},
        {"DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"}}) {
    CAPTURE(path);
    const TestResponse response = send(method, path);
    CHECK(response.status == status);
    const Json error = Json::parse(response.body);
    CHECK(error["type"] == "error");
    CHECK(error["error"]["type"] == type);
    CHECK(!response.header("request-id").empty());
  }
  CHECK(Json::parse(send("GET", "/v1/messages_of_others").body)["error"]["code"] == "not_found");
}

TEST_CASE("messages: max_tokens above the context is cut to the room that is left") {
  DialectServer test;
  const Json answer = test.post("/v1/messages", message("Hello!", {{"max_tokens", 32000}}));
  CHECK(answer["stop_reason"] == "end_turn");
  CHECK(answer["content"][0]["text"] == "Hello!");
  const Json longest = test.post("/v1/messages", message("FOREVER", {{"max_tokens", 32000}}));
  CHECK(longest["stop_reason"] == "max_tokens");
  CHECK(longest["usage"]["input_tokens"].get<int>() + longest["usage"]["output_tokens"].get<int>() == 512);
}

}  // namespace spate
