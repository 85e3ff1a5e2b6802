// Goal    Anthropic's Messages, OpenAI's Responses and vLLM's tokens-in-tokens-out are answered in their own form,
//         whole and as events, with tools and reasoning; what cannot be done is refused in their own envelope.
// Method  As server_api_test.cpp: the whole server, a model that answers what the request says.
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "server/response_store.h"
#include "server/test_server.h"

#include "base/test.h"

namespace spate {
namespace {

struct DialectServer : TestServer {
  Json get(const std::string& path, int expected_status = 200) {
    TestClient client(server.port());
    const TestResponse response = client.get(path);
    CHECK(response.status == expected_status);
    return Json::parse(response.body);
  }
  // Each event's type is that of its data.
  std::vector<Json> stream(const std::string& path, Json body) {
    body["stream"] = true;
    TestClient client(server.port());
    return events_of(client.post(path, body.dump()));
  }
  std::vector<Json> stream_of(const std::string& path) {
    TestClient client(server.port());
    return events_of(client.get(path));
  }
  static std::vector<Json> events_of(const TestResponse& response) {
    CHECK(response.status == 200);
    std::vector<Json> events;
    for (size_t pos = 0; pos < response.body.size();) {
      const size_t end = response.body.find("\n\n", pos);
      const std::string event = response.body.substr(pos, end - pos);
      pos = end + 2;
      const size_t data = event.find("\ndata: ");
      REQUIRE(data != std::string::npos);
      events.push_back(Json::parse(event.substr(data + 7)));
      CHECK(event.substr(0, data) == "event: " + events.back()["type"].get<std::string>());
    }
    return events;
  }
};

std::string types_of(const std::vector<Json>& events) {
  std::string text;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (!text.ends_with(type)) text += (text.empty() ? "" : " ") + type;
  }
  return text;
}

const Json kAnthropicTools = {{{"name", "add"},
                               {"description", "Adds."},
                               {"input_schema",
                                {{"type", "object"},
                                 {"properties", {{"a", {{"type", "integer"}, {"maximum", 9}}}}},
                                 {"required", {"a"}},
                                 {"additionalProperties", false}}}}};
const std::string kCall = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call>";

Json message(const std::string& text, Json fields = Json::object()) {
  fields["messages"] = {{{"role", "user"}, {"content", text}}};
  if (!fields.contains("max_tokens")) fields["max_tokens"] = 200;
  return fields;
}

}  // namespace

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

TEST_CASE("messages: max_tokens above the context is cut to the room that is left") {
  DialectServer test;
  const Json answer = test.post("/v1/messages", message("Hello!", {{"max_tokens", 32000}}));
  CHECK(answer["stop_reason"] == "end_turn");
  CHECK(answer["content"][0]["text"] == "Hello!");
  const Json longest = test.post("/v1/messages", message("FOREVER", {{"max_tokens", 32000}}));
  CHECK(longest["stop_reason"] == "max_tokens");
  CHECK(longest["usage"]["input_tokens"].get<int>() + longest["usage"]["output_tokens"].get<int>() == 512);
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

}  // namespace spate
