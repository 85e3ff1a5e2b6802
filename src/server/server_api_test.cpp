// Goal    The OpenAI protocol end to end over a real socket: answers, streams, errors, disconnects, the server's life.
// Method  The whole server over the real tokenizer, template and engine, and an executor that answers what the request
//         says (test_model.h).
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/test_support.h"
#include "server/frontend.h"
#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

ServerConfig test_config() {
  ServerConfig config = test_server_config();
  config.shutdown_timeout = 5;
  return config;
}

struct TestServer {
  explicit TestServer(ServerConfig config = test_config()) : server(std::move(config)) {
    REQUIRE(server.listen().ok());
    server.set_ready(model.serving);
  }
  Json post(const std::string& path, const Json& body, int expected_status = 200) {
    TestClient client(server.port());
    const TestResponse response = client.post(path, body.dump());
    INFO(response.body);
    CHECK(response.status == expected_status);
    return Json::parse(response.body);
  }
  std::vector<Json> stream(const std::string& path, const Json& body) {
    TestClient client(server.port());
    const TestResponse response = client.post(path, body.dump());
    CHECK(response.status == 200);
    CHECK(response.header("content-type") == "text/event-stream; charset=utf-8");
    std::vector<std::string> events = sse_events(response.body);
    REQUIRE(!events.empty());
    CHECK(events.back() == "[DONE]");
    std::vector<Json> chunks;
    for (size_t i = 0; i + 1 < events.size(); ++i) chunks.push_back(Json::parse(events[i]));
    return chunks;
  }
  // Waits until no sequence and no KV block is in use, at most five seconds.
  bool is_idle() {
    for (int i = 0; i < 1000; ++i) {
      const EngineStats stats = model.engine->stats();
      if (stats.num_running == 0 && stats.num_waiting == 0 && stats.num_kv_blocks_used == 0) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }
  TestModel model;
  Server server;
};

Json chat_body(const std::string& text, Json fields = Json::object()) {
  fields["messages"] = {{{"role", "user"}, {"content", text}}};
  return fields;
}

std::string joined(const std::vector<Json>& chunks, const char* field, int choice = 0) {
  std::string text;
  for (const Json& chunk : chunks) {
    for (const Json& item : chunk["choices"]) {
      if (item["index"] == choice && item["delta"].contains(field)) text += item["delta"][field].get<std::string>();
    }
  }
  return text;
}

}  // namespace

TEST_CASE("api: a chat answer has every field that clients read") {
  TestServer test;
  const Json answer = test.post("/v1/chat/completions", chat_body("Hello there, 你好!", {{"model", "test-model"}}));
  CHECK(answer["object"] == "chat.completion");
  CHECK(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  CHECK(answer["model"] == "test-model");
  const Json& choice = answer["choices"][0];
  CHECK(choice["message"]["role"] == "assistant");
  CHECK(choice["message"]["content"] == "Hello there, 你好!");
  CHECK(choice["message"]["refusal"].is_null());
  CHECK(choice["logprobs"].is_null());
  CHECK(choice["finish_reason"] == "stop");
  CHECK(choice["stop_reason"].is_null());
  CHECK(!choice["message"].contains("tool_calls"));
  const Json& usage = answer["usage"];
  const size_t num_tokens = test.model.tokenizer->encode("Hello there, 你好!").size() + 1;  // and the end token
  CHECK(usage["completion_tokens"] == num_tokens);
  CHECK(usage["total_tokens"] == usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  CHECK(usage["prompt_tokens_details"].contains("cached_tokens"));
  CHECK(usage["completion_tokens_details"]["reasoning_tokens"] == 0);
}

TEST_CASE("api: a chat stream is role, content, finish, usage, [DONE]") {
  TestServer test;
  const auto chunks =
      test.stream("/v1/chat/completions",
                  chat_body("Streams of 中文 text", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  REQUIRE(chunks.size() >= 4);
  CHECK(chunks[0]["choices"][0]["delta"] == Json({{"role", "assistant"}, {"content", ""}}));
  CHECK(chunks[0]["usage"].is_null());
  CHECK(joined(chunks, "content") == "Streams of 中文 text");
  CHECK(joined(chunks, "role") == "assistant");
  const Json& finish = chunks[chunks.size() - 2]["choices"][0];
  CHECK(finish["delta"] == Json::object());
  CHECK(finish["finish_reason"] == "stop");
  CHECK(chunks.back()["choices"].empty());
  CHECK(chunks.back()["usage"]["completion_tokens"].get<int>() > 1);
  for (const Json& chunk : chunks) {
    CHECK(chunk["id"] == chunks[0]["id"]);
    CHECK(chunk["object"] == "chat.completion.chunk");
    CHECK(chunk.contains("usage"));
  }
  const auto plain = test.stream("/v1/chat/completions", chat_body("x", {{"stream", true}}));
  for (const Json& chunk : plain) CHECK(!chunk.contains("usage"));
}

TEST_CASE("api: /debug/allowed_tokens tells what a structured output lets follow") {
  TestServer test;
  const auto ask = [&](const Json& tokens, const Json& form, int status = 200) {
    Json body = form;
    body["tokens"] = tokens;
    return test.post("/debug/allowed_tokens", body, status);
  };
  const Json choice = {{"structured_outputs", {{"choice", {"yes", "yesterday", "no"}}}}};
  const Json first = ask(Json::array(), choice);
  CHECK(first["may_end"] == false);
  CHECK(first["num_allowed"] == first["tokens"].size());
  std::set<std::string> pieces;
  for (const Json& token : first["tokens"]) pieces.insert(token["piece"].get<std::string>());
  CHECK(pieces.contains("y"));
  CHECK(pieces.contains("n"));
  for (const std::string& piece : pieces) {
    INFO(piece);
    CHECK((std::string("yesterday").starts_with(piece) || std::string("no").starts_with(piece)));
  }
  const Json yes = ask(test.model.tokenizer->encode("yes"), choice);
  CHECK(yes["may_end"] == true);
  CHECK(yes["num_allowed"].get<int>() >= 1);
  CHECK(ask(test.model.tokenizer->encode("no"), choice) ==
        Json({{"num_allowed", 0}, {"may_end", true}, {"tokens", Json::array()}}));
  const Json free = ask(Json::array(), {{"structured_outputs", {{"regex", ".*"}}}});
  CHECK(free["tokens"].size() == 200);
  CHECK(free["num_allowed"].get<int>() > 200);

  CHECK(ask(test.model.tokenizer->encode("maybe"), choice, 400)["error"]["message"].get<std::string>().starts_with(
      "the structured output does not allow tokens[0], id "));
  CHECK(ask({1 << 30}, choice, 400)["error"]["param"] == "tokens");
  CHECK(ask(Json::array(), Json::object(), 400)["error"]["param"] == "structured_outputs");
  CHECK(ask(Json::array(), {{"guided_regex", "("}}, 400)["error"]["param"] == "guided_regex");
}

TEST_CASE("api: stream_interval gathers tokens, the first comes at once, nothing is lost") {
  TestServer test;
  const std::string text = "one two three four five six seven eight nine ten";
  const auto count = [&](int interval) {
    const auto chunks =
        test.stream("/v1/chat/completions",
                    chat_body(text, {{"stream", true}, {"stream_interval", interval}, {"return_token_ids", true}}));
    CHECK(joined(chunks, "content") == text);
    size_t num_tokens = 0, num_chunks = 0;
    for (const Json& chunk : chunks) {
      if (!chunk["choices"][0].contains("token_ids")) continue;
      num_tokens += chunk["choices"][0]["token_ids"].size();
      num_chunks += chunk["choices"][0]["token_ids"].empty() ? 0 : 1;
    }
    CHECK(num_tokens == test.model.tokenizer->encode(text).size() + 1);
    return num_chunks;
  };
  const size_t all = count(1), some = count(4);
  CHECK(some < all);
  CHECK(some >= 3);
  CHECK(count(1000) == 2);
}

TEST_CASE("api: truncate_prompt_tokens keeps the end of a prompt, or its beginning") {
  TestServer test;
  const std::vector<int32_t> ids = test.model.tokenizer->encode("alpha beta gamma delta");
  const auto kept = [&](Json fields) {
    fields["prompt"] = ids;
    fields["return_token_ids"] = true;
    return test.post("/v1/completions", fields)["choices"][0]["prompt_token_ids"].get<std::vector<int32_t>>();
  };
  CHECK(kept({{"truncate_prompt_tokens", 2}}) == std::vector<int32_t>(ids.end() - 2, ids.end()));
  CHECK(kept({{"truncate_prompt_tokens", 2}, {"truncation_side", "right"}}) ==
        std::vector<int32_t>(ids.begin(), ids.begin() + 2));
  CHECK(kept({{"truncate_prompt_tokens", 100}}) == ids);
  Json fields{{"prompt", std::vector<int32_t>(700, ids[0])}, {"truncate_prompt_tokens", -1}, {"max_tokens", 12}};
  CHECK(test.post("/v1/completions", fields)["usage"]["prompt_tokens"] == 500);
  fields["truncate_prompt_tokens"] = 0;
  CHECK(test.post("/v1/completions", fields, 400)["error"]["param"] == "prompt");
}

TEST_CASE("api: structured outputs hold whatever the model wants to say") {
  TestServer test;
  const auto content_of = [&](const std::string& text, Json fields) {
    const Json answer = test.post("/v1/chat/completions", chat_body(text, std::move(fields)));
    CHECK(answer["choices"][0]["finish_reason"] == "stop");
    return answer["choices"][0]["message"]["content"].get<std::string>();
  };
  const Json schema = Json::parse(R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
      "age":{"type":"integer","minimum":0,"maximum":150}},"required":["name","age"],"additionalProperties":false})");
  const Json format{{"type", "json_schema"}, {"json_schema", {{"name", "person"}, {"schema", schema}}}};
  const std::string person = R"({"age": 33, "name": "Ann é"})";
  CHECK(content_of(person, {{"response_format", format}}) == person);
  const Json forced = Json::parse(content_of("Hello there!", {{"response_format", format}, {"max_tokens", 300}}));
  CHECK(forced.size() == 2);
  CHECK(forced["age"].is_number_integer());
  CHECK(content_of("{\"x\": [1, null]}", {{"response_format", {{"type", "json_object"}}}}) == "{\"x\": [1, null]}");
  CHECK(content_of("maybe", {{"structured_outputs", {{"choice", {"maybe", "no"}}}}}) == "maybe");
  const std::string chosen = content_of("perhaps", {{"guided_choice", {"yes", "no"}}});
  CHECK((chosen == "yes" || chosen == "no"));
  CHECK(content_of("555-0123", {{"guided_regex", "\\d{3}-\\d{4}"}}) == "555-0123");
  CHECK(content_of("1+(2+3)",
                   {{"structured_outputs",
                     {{"grammar", "root ::= sum\nsum ::= sum \"+\" n | n\nn ::= [0-9]+ | \"(\" sum \")\""}}}}) ==
        "1+(2+3)");
  // The end comes with the text's, and does not need the end token.
  const Json one = test.post("/v1/chat/completions",
                             chat_body("yes yes yes", {{"guided_choice", {"yes"}}, {"ignore_eos", true}, {"n", 2}}));
  for (const Json& choice : one["choices"]) {
    CHECK(choice["message"]["content"] == "yes");
    CHECK(choice["finish_reason"] == "stop");
  }
  // Longer than max_tokens: finish_reason says so. A stop string ends it as ever.
  const Json cut = test.post(
      "/v1/completions",
      {{"prompt", "FOREVER 123456789"}, {"structured_outputs", {{"regex", "(.|\\n){900}"}}}, {"max_tokens", 5}});
  CHECK(cut["choices"][0]["finish_reason"] == "length");
  const Json stopped =
      test.post("/v1/completions",
                {{"prompt", "one two three"}, {"guided_regex", "[a-z ]+"}, {"stop", " three"}, {"max_tokens", 50}});
  CHECK(stopped["choices"][0]["text"] == "one two");
  // Where the prompt has opened the reasoning, that is free.
  const Json messages = {{{"role", "user"}, {"content", "Is it so?</think>\n\nyes"}},
                         {{"role", "assistant"}, {"content", "<think>"}}};
  const Json thinking =
      test.post("/v1/chat/completions",
                {{"messages", messages}, {"continue_final_message", true}, {"guided_choice", {"yes", "no"}}});
  CHECK(thinking["choices"][0]["message"]["content"] == "Is it so?</think>\n\nyes");
  const auto chunks =
      test.stream("/v1/chat/completions", chat_body(person, {{"response_format", format}, {"stream", true}}));
  CHECK(joined(chunks, "content") == person);
  CHECK(test.is_idle());
}

TEST_CASE("api: allowed_token_ids: no other token comes, the end included") {
  TestServer test;
  const auto ids_of = [&](const std::string& text) {
    return test.post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}})["tokens"];
  };
  const Json word = ids_of("yes");
  const int eos = *test.model.serving.eos_token_ids.begin();
  const Json body{{"prompt", "no yes no"}, {"max_tokens", 9}, {"return_token_ids", true}, {"allowed_token_ids", word}};
  const auto ids_in = [&](const Json& answer) { return answer["choices"][0]["token_ids"].get<std::vector<int>>(); };
  const std::vector<int> allowed = word;
  const Json endless = test.post("/v1/completions", body);
  CHECK(endless["choices"][0]["finish_reason"] == "length");
  CHECK(ids_in(endless).size() == 9);
  for (const int id : ids_in(endless)) CHECK(std::ranges::find(allowed, id) != allowed.end());
  Json ended = body;
  ended["allowed_token_ids"].push_back(eos);
  const Json answer = test.post("/v1/completions", ended);
  CHECK(answer["choices"][0]["finish_reason"] == "stop");
  CHECK(ids_in(answer).size() < 9);
  ended["allowed_token_ids"] = {eos};
  CHECK(test.post("/v1/completions", ended)["usage"]["completion_tokens"] == 1);
  for (const char* field : {"min_tokens", "ignore_eos"}) {
    Json impossible = ended;
    impossible[field] = std::string_view(field) == "min_tokens" ? Json(2) : Json(true);
    CHECK(test.post("/v1/completions", impossible, 400)["error"]["param"] == "allowed_token_ids");
  }
  CHECK(test.post("/v1/completions", {{"prompt", "x"}, {"allowed_token_ids", {1 << 30}}}, 400)["error"]["param"] ==
        "allowed_token_ids");
  CHECK(test.is_idle());
}

TEST_CASE("api: structural tags: free text, then a tag that is held to its schema; with tools, reasoning and streams") {
  TestServer test;
  const Json schema = Json::parse(
      R"({"type":"object","properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"],"additionalProperties":false})");
  const Json call_schema =
      Json::parse(R"({"type":"object","properties":{"name":{"const":"get_weather"},"arguments":{"type":"object",
      "properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"],"additionalProperties":false}},"required":["name","arguments"],
      "additionalProperties":false})");
  const Json structures{{"structures", {{{"begin", "<f=weather>"}, {"schema", schema}, {"end", "</f>"}}}},
                        {"triggers", {"<f="}}};
  const Json tagged{
      {"type", "triggered_tags"},
      {"triggers", {"<f="}},
      {"tags",
       {{{"begin", "<f=weather>"}, {"content", {{"type", "json_schema"}, {"json_schema", schema}}}, {"end", "</f>"}}}}};
  const auto with_type = [](Json json) { return json["type"] = "structural_tag", json; };
  const std::string right = "I look. <f=weather>{\"city\": \"Rome\"}</f> Done.",
                    wrong = "I look. <f=weather>{\"town\": 7}</f>";
  for (const Json& fields :
       {Json{{"response_format", with_type(structures)}}, Json{{"response_format", with_type({{"format", tagged}})}},
        Json{{"structured_outputs", {{"structural_tag", structures.dump()}}}},
        Json{{"structured_outputs", {{"structural_tag", {{"format", tagged}}}}}},
        Json{{"structural_tag", structures}}}) {
    Json answer = test.post("/v1/chat/completions", chat_body(right, fields));
    CHECK(answer["choices"][0]["message"]["content"] == right);
    Json limited = fields;
    limited["max_tokens"] = 60;
    const std::string held =
        test.post("/v1/chat/completions", chat_body(wrong, limited))["choices"][0]["message"]["content"];
    CHECK(held.starts_with("I look. <f=weather>{"));
    CHECK(held.find("\"city\"") != std::string::npos);
    CHECK(held.find("town") == std::string::npos);
    Json stream_fields = fields;
    stream_fields["stream"] = true;
    CHECK(joined(test.stream("/v1/chat/completions", chat_body(right, stream_fields)), "content") == right);
    // The tag holds behind the reasoning, which is free and may name the trigger.
    const std::string thinking = "<think>\nShould I write <f=nothing>?\n</think>\n\n" + right;
    answer = test.post("/v1/chat/completions", chat_body(thinking, fields));
    CHECK(answer["choices"][0]["message"]["content"].get<std::string>() == right);
  }
  // A tag around what the model's own calls look like: they are read as calls.
  const Json call_tag{
      {"structures", {{{"begin", "<tool_call>\n"}, {"schema", call_schema}, {"end", "\n</tool_call>"}}}},
      {"triggers", {"<tool_call>"}}};
  const Json tools = {{{"type", "function"}, {"function", {{"name", "get_weather"}, {"parameters", schema}}}}};
  const Json fields{{"structured_outputs", {{"structural_tag", call_tag}}}, {"tools", tools}, {"max_tokens", 100}};
  const Json called = test.post(
      "/v1/chat/completions",
      chat_body("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>", fields));
  REQUIRE(called["choices"][0]["message"]["tool_calls"].size() >= 1);
  const Json arguments =
      Json::parse(called["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>());
  CHECK((arguments["city"] == "Paris" || arguments["city"] == "Rome"));
  const Json refused = test.post(
      "/v1/chat/completions",
      chat_body("x", {{"response_format", {{"type", "structural_tag"}, {"format", {{"type", "poem"}}}}}}), 400);
  CHECK(refused["error"]["param"] == "response_format");
  CHECK(refused["error"]["message"].get<std::string>().find("the format \"poem\" is not supported") !=
        std::string::npos);
  CHECK(test.is_idle());
}

TEST_CASE("api: tool_choice required and named are held to the tools' schemas") {
  TestServer test;
  const Json tools = Json::parse(R"([
    {"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer","minimum":3,
      "maximum":9}},"required":["a"],"additionalProperties":false}}},
    {"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{"zone":{"enum":["utc","cet"]}},
      "required":["zone"],"additionalProperties":false}}}])");
  const auto call_of = [&](const std::string& text, Json fields) {
    fields["tools"] = tools;
    fields["max_tokens"] = 200;
    const Json choice = test.post("/v1/chat/completions", chat_body(text, fields))["choices"][0];
    CHECK(choice["finish_reason"] == (fields["tool_choice"].is_object() ? "stop" : "tool_calls"));
    REQUIRE(choice["message"]["tool_calls"].size() >= 1);
    return choice["message"]["tool_calls"][0]["function"];
  };
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"cet\"}}\n</tool_call>";
  const Json required = call_of(now, {{"tool_choice", "required"}});
  CHECK(required["name"] == "now");
  CHECK(required["arguments"] == "{\"zone\": \"cet\"}");
  // Whatever the model wants to say.
  const Json forced = call_of("I will not.", {{"tool_choice", "required"}, {"parallel_tool_calls", false}});
  CHECK((forced["name"] == "add" || forced["name"] == "now"));
  const Json named = call_of(now, {{"tool_choice", {{"type", "function"}, {"function", {{"name", "add"}}}}}});
  CHECK(named["name"] == "add");
  const Json arguments = Json::parse(named["arguments"].get<std::string>());
  CHECK(arguments["a"].get<int>() >= 3);
  CHECK(arguments["a"].get<int>() <= 9);
  // auto with a strict tool: text is free, a call that begins is one of the tools'.
  Json strict = tools;
  strict[0]["function"]["strict"] = true;
  const auto strict_answer = [&](const std::string& text) {
    const Json body = chat_body(text, {{"tools", strict}, {"max_tokens", 200}});
    return test.post("/v1/chat/completions", body)["choices"][0]["message"];
  };
  CHECK(strict_answer("Just < text.")["content"] == "Just < text.");
  const Json call = strict_answer("Well.\n<tool_call>\n{\"name\": \"sub\", \"arguments\": {}}\n</tool_call>");
  CHECK(call["content"] == "Well.");
  CHECK((call["tool_calls"][0]["function"]["name"] == "add" || call["tool_calls"][0]["function"]["name"] == "now"));
  // A schema that cannot be compiled is named.
  Json bad = tools;
  bad[1]["function"]["parameters"] = {{"type", "thing"}};
  const Json error =
      test.post("/v1/chat/completions", chat_body("x", {{"tools", bad}, {"tool_choice", "required"}}), 400);
  CHECK(error["error"]["message"].get<std::string>().find("tools[1].function.parameters") != std::string::npos);
  // In a stream: name once, then the arguments.
  const auto chunks = test.stream(
      "/v1/chat/completions",
      chat_body(now, {{"tools", tools}, {"tool_choice", "required"}, {"stream", true}, {"max_tokens", 200}}));
  std::string name, streamed;
  for (const Json& chunk : chunks) {
    const Json& delta = chunk["choices"][0]["delta"];
    if (!delta.contains("tool_calls") || delta["tool_calls"][0]["index"] != 0) continue;
    name += delta["tool_calls"][0]["function"].value("name", "");
    streamed += delta["tool_calls"][0]["function"].value("arguments", "");
  }
  CHECK(name == "now");
  CHECK(Json::parse(streamed)["zone"] == "cet");
  CHECK(test.is_idle());
}

TEST_CASE("api: a grammar that cannot be compiled is a 400 with its place") {
  TestServer test;
  const auto error_of = [&](const Json& fields) {
    return test.post("/v1/chat/completions", chat_body("x", fields), 400)["error"];
  };
  const Json schema =
      error_of({{"response_format",
                 {{"type", "json_schema"},
                  {"json_schema", {{"name", "x"}, {"schema", {{"properties", {{"a", {{"type", "thing"}}}}}}}}}}}});
  CHECK(schema["param"] == "response_format.json_schema.schema");
  CHECK(schema["message"].get<std::string>().find("at #/properties/a: type must be") != std::string::npos);
  CHECK(error_of({{"guided_regex", "(?=a)"}})["message"].get<std::string>().find("at 2: look-ahead") !=
        std::string::npos);
  CHECK(error_of({{"guided_grammar", "root ::= x"}})["message"].get<std::string>().find("line 1, column 10") !=
        std::string::npos);
  CHECK(error_of({{"guided_regex", "((a{1000}){1000}){1000}"}})["message"].get<std::string>().find("too large") !=
        std::string::npos);
  CHECK(test.post("/v1/chat/completions", chat_body("still here"))["choices"][0]["message"]["content"] == "still here");
}

TEST_CASE("api: n choices, whole and streamed") {
  TestServer test;
  const Json fields{{"n", 3}, {"temperature", 1.0}};
  const Json answer = test.post("/v1/chat/completions", chat_body("three times", fields));
  REQUIRE(answer["choices"].size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(answer["choices"][i]["index"] == i);
    CHECK(answer["choices"][i]["message"]["content"] == "three times");
  }
  Json stream_fields = fields;
  stream_fields["stream"] = true;
  const auto chunks = test.stream("/v1/chat/completions", chat_body("three times", stream_fields));
  for (int i = 0; i < 3; ++i) {
    CHECK(joined(chunks, "content", i) == "three times");
    CHECK(joined(chunks, "role", i) == "assistant");
    const auto finishes = std::count_if(chunks.begin(), chunks.end(), [&](const Json& chunk) {
      return chunk["choices"][0]["index"] == i && chunk["choices"][0]["finish_reason"] == "stop";
    });
    CHECK(finishes == 1);
  }
}

TEST_CASE("api: stop strings, stop tokens and max_tokens end an answer as told") {
  TestServer test;
  Json answer = test.post("/v1/chat/completions", chat_body("one two three four", {{"stop", "three"}}));
  CHECK(answer["choices"][0]["message"]["content"] == "one two ");
  CHECK(answer["choices"][0]["stop_reason"] == "three");
  answer = test.post("/v1/chat/completions",
                     chat_body("one two three four", {{"stop", {"o t", "zzz"}}, {"include_stop_str_in_output", true}}));
  CHECK(answer["choices"][0]["message"]["content"] == "one two t");
  answer = test.post("/v1/chat/completions", chat_body("FOREVER and a day ", {{"max_tokens", 3}}));
  CHECK(answer["choices"][0]["finish_reason"] == "length");
  CHECK(answer["usage"]["completion_tokens"] == 3);
  const int32_t second = test.model.tokenizer->encode("one two three four")[1];
  answer = test.post("/v1/chat/completions", chat_body("one two three four", {{"stop_token_ids", {second}}}));
  CHECK(answer["choices"][0]["message"]["content"] == "one");
  CHECK(answer["choices"][0]["stop_reason"] == second);
  // A stop string across chunks never shows its beginning; an endless answer ends in the engine too.
  const auto chunks =
      test.stream("/v1/chat/completions", chat_body("FOREVER young STOP here", {{"stop", "STOP"}, {"stream", true}}));
  CHECK(joined(chunks, "content") == "FOREVER young ");
  CHECK(test.is_idle());
}

TEST_CASE("api: generation_tokens_total counts the tokens of answers, not what came behind a stop string") {
  TestServer test;
  int64_t num_told = 0;
  for (int i = 0; i < 8; ++i) {
    const Json answer = test.post("/v1/chat/completions", chat_body("FOREVER young STOP here", {{"stop", "STOP"}}));
    num_told += answer["usage"]["completion_tokens"].get<int64_t>();
  }
  REQUIRE(test.is_idle());
  CHECK(num_told > 8);
  CHECK(test.model.engine->stats().generation_tokens >= static_cast<uint64_t>(num_told));
  const std::string metrics = TestClient(test.server.port()).get("/metrics").body;
  const size_t at = metrics.find("\nvllm:generation_tokens_total{");
  REQUIRE(at != std::string::npos);
  CHECK(std::stoll(metrics.substr(metrics.find("} ", at) + 2)) == num_told);
}

// Goal    A stop string ends an answer only when a token after the first min_tokens completes it, as in vLLM.
TEST_CASE("api: an answer that repeats itself is ended on demand") {
  TestServer test;
  const Json detection{{"max_pattern_size", 32}, {"min_count", 3}};
  const Json body{{"prompt", "FOREVER and a day, "}, {"max_tokens", 300}, {"repetition_detection", detection}};
  const Json answer = test.post("/v1/completions", body);
  CHECK(answer["choices"][0]["finish_reason"] == "stop");
  CHECK(answer["choices"][0]["stop_reason"] == "repetition_detected");
  const int num_tokens = answer["usage"]["completion_tokens"];
  CHECK(num_tokens % 3 == 0);
  CHECK(num_tokens <= 96);
  const Json chat =
      test.post("/v1/chat/completions", chat_body("FOREVER and a day, ", {{"repetition_detection", detection}}));
  CHECK(chat["choices"][0]["stop_reason"] == "repetition_detected");
  // Off: by default, with null, with a pattern of no token. The server's default counts where the request says nothing.
  for (const Json& off : {Json(), Json(nullptr), Json::object(), Json{{"max_pattern_size", 0}}}) {
    Json other = body;
    other["repetition_detection"] = off;
    CHECK(test.post("/v1/completions", other)["choices"][0]["finish_reason"] == "length");
  }
  const auto refusal = [&](const Json& bad) {
    Json other = body;
    other["repetition_detection"] = bad;
    return test.post("/v1/completions", other, 400)["error"]["message"].get<std::string>();
  };
  CHECK(refusal({{"max_pattern_size", 4}}) == "repetition_detection.min_count must be in [2, 1024], got 0");
  CHECK(refusal({{"max_pattern_size", 4}, {"min_pattern_size", 5}, {"min_count", 2}}) ==
        "repetition_detection.min_pattern_size must be in [1, 4], got 5");
  CHECK(refusal({{"max_pattern_size", 1 << 20}, {"min_count", 2}}).find("[0, 1024]") != std::string::npos);
  CHECK(refusal({{"max_size", 4}}).find("repetition_detection.max_size is not known") == 0);
  CHECK(parse_repetition_detection(R"({"max_pattern_size": 32, "min_count": 4})")->min_pattern_size == 1);
  CHECK(parse_repetition_detection("{").status().message().find("valid JSON") != std::string::npos);
  CHECK_FALSE(parse_repetition_detection(R"({"max_pattern_size": 32})").ok());
}

TEST_CASE("api: stop strings respect min_tokens") {
  TestServer test;
  const std::vector<int32_t> ids = test.model.tokenizer->encode("one two one two one two");
  const size_t num_two = test.model.tokenizer->encode("one two").size();
  const auto complete = [&](int min_tokens, const Json& stop, bool stream) {
    const Json body{{"prompt", "one two one two one two"},
                    {"max_tokens", 64},
                    {"min_tokens", min_tokens},
                    {"stop", stop},
                    {"stream", stream}};
    if (!stream) return test.post("/v1/completions", body)["choices"][0]["text"].get<std::string>();
    std::string text;
    for (const Json& chunk : test.stream("/v1/completions", body)) text += chunk["choices"][0]["text"];
    return text;
  };
  REQUIRE(ids.size() > 2 * num_two);
  const int first_two = static_cast<int>(num_two);  // tokens up to the end of the first "two"
  for (const bool stream : {false, true}) {
    INFO(stream);
    CHECK(complete(first_two - 1, "two", stream) == "one ");
    CHECK(complete(first_two, "two", stream) == "one two one ");
    // It begins within the first tokens and is completed after them.
    CHECK(complete(first_two, "two one", stream) == "one ");
    CHECK(complete(static_cast<int>(ids.size()), "two", stream) == "one two one two one two");
  }
  const Json answer =
      test.post("/v1/completions",
                {{"prompt", "one two"}, {"max_tokens", first_two}, {"min_tokens", first_two}, {"stop", "two"}});
  CHECK(answer["choices"][0]["text"] == "one two");
  CHECK(answer["choices"][0]["finish_reason"] == "length");
  CHECK(test.is_idle());
}

TEST_CASE("api: logprobs and token ids in chat, as many as tokens") {
  TestServer test;
  const Json fields{{"logprobs", true}, {"top_logprobs", 2}, {"return_token_ids", true}};
  const Json answer = test.post("/v1/chat/completions", chat_body("a b", fields));
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  CHECK(content.size() == answer["usage"]["completion_tokens"].get<size_t>());
  CHECK(answer["choices"][0]["token_ids"].size() == content.size());
  CHECK(content[0]["token"] == "a");
  CHECK(content[0]["bytes"] == Json({97}));
  CHECK(content[0]["logprob"] == -0.5);
  REQUIRE(content[0]["top_logprobs"].size() == 2);
  CHECK(content[0]["top_logprobs"][1]["logprob"] == -1.5);
  Json stream_fields = fields;
  stream_fields["stream"] = true;
  size_t num_logprobs = 0, num_ids = 0;
  for (const Json& chunk : test.stream("/v1/chat/completions", chat_body("a b", stream_fields))) {
    const Json& choice = chunk["choices"][0];
    if (choice["logprobs"].is_object()) num_logprobs += choice["logprobs"]["content"].size();
    if (choice.contains("token_ids")) num_ids += choice["token_ids"].size();
  }
  CHECK(num_logprobs == content.size());
  CHECK(num_ids == content.size());
}

TEST_CASE("api: reasoning and tool calls, whole and streamed") {
  TestServer test;
  const std::string thinking = "<think>\nI think.\n</think>\n\nDone.";
  Json answer = test.post("/v1/chat/completions", chat_body(thinking));
  CHECK(answer["choices"][0]["message"]["content"] == "Done.");
  CHECK(answer["choices"][0]["message"]["reasoning"] == "I think.");
  CHECK(answer["choices"][0]["message"]["reasoning_content"] == "I think.");
  CHECK(answer["usage"]["completion_tokens_details"]["reasoning_tokens"].get<int>() > 0);
  auto chunks = test.stream("/v1/chat/completions", chat_body(thinking, {{"stream", true}}));
  CHECK(joined(chunks, "reasoning_content") == "I think.");
  CHECK(joined(chunks, "content") == "Done.");
  answer = test.post("/v1/chat/completions", chat_body(thinking, {{"include_reasoning", false}}));
  CHECK(!answer["choices"][0]["message"].contains("reasoning"));

  const Json tools =
      Json::array({{{"type", "function"}, {"function", {{"name", "add"}, {"parameters", Json::object()}}}}});
  const std::string call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  answer = test.post("/v1/chat/completions", chat_body(call, {{"tools", tools}}));
  CHECK(answer["choices"][0]["finish_reason"] == "tool_calls");
  CHECK(answer["choices"][0]["message"]["content"].is_null());
  const Json& tool_call = answer["choices"][0]["message"]["tool_calls"][0];
  CHECK(tool_call["type"] == "function");
  CHECK(tool_call["function"]["name"] == "add");
  CHECK(tool_call["function"]["arguments"] == "{\"a\": 1}");
  chunks = test.stream("/v1/chat/completions", chat_body(call, {{"tools", tools}, {"stream", true}}));
  std::string arguments;
  int num_heads = 0;
  for (const Json& chunk : chunks) {
    if (!chunk["choices"][0]["delta"].contains("tool_calls")) continue;
    const Json& delta = chunk["choices"][0]["delta"]["tool_calls"][0];
    CHECK(delta["index"] == 0);
    if (delta.contains("id")) ++num_heads;
    CHECK(delta.contains("id") == delta["function"].contains("name"));
    arguments += delta["function"]["arguments"].get<std::string>();
  }
  CHECK(num_heads == 1);
  CHECK(arguments == "{\"a\": 1}");
  CHECK(chunks.back()["choices"][0]["finish_reason"] == "tool_calls");
  answer = test.post("/v1/chat/completions", chat_body(call, {{"tools", tools}, {"tool_choice", "none"}}));
  CHECK(answer["choices"][0]["message"]["content"].get<std::string>().starts_with("<tool_call>"));
}

// Goal    A chunk for every step that brings tokens, so that clients' times to the first token and between tokens are
//         those of the model, whatever the text does.
// Method  Texts whose tokens have no text of their own (an emoji is several tokens), that a stop string or a tag holds
//         back, or that are not shown; a step is one token, so the usage that counts along must rise by one a chunk.
TEST_CASE("api: a stream has a chunk for every step, also while text is held back") {
  TestServer test;
  const auto num_steps = [](const std::vector<Json>& chunks) {
    int num = 0, told = 0;
    for (const Json& chunk : chunks) {
      const int count = chunk["usage"]["completion_tokens"];
      CHECK(count - told <= 1);
      num += count > told;
      told = count;
    }
    CHECK(num == told);
    return num;
  };
  const Json stream{{"stream", true},
                    {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}},
                    {"logprobs", true},
                    {"return_token_ids", true}};
  const Json tools =
      Json::array({{{"type", "function"}, {"function", {{"name", "add"}, {"parameters", Json::object()}}}}});
  const std::vector<std::pair<std::string, Json>> chats{
      {"🦙🦙 and 𓀀", {}},
      {"one two three", {{"stop", "two threshold"}}},
      {"<think>\nI think.\n</think>\n\nDone.", {{"include_reasoning", false}}},
      {"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", {{"tools", tools}}}};
  for (const auto& [text, fields] : chats) {
    INFO(text);
    Json body = stream;
    if (!fields.is_null()) body.update(fields);
    const auto chunks = test.stream("/v1/chat/completions", chat_body(text, body));
    CHECK(num_steps(chunks) == static_cast<int>(test.model.tokenizer->encode(text).size()) + 1);  // and the end token
    size_t num_ids = 0;
    for (size_t i = 0; i + 1 < chunks.size(); ++i) {
      const Json& choice = chunks[i]["choices"][0];
      if (choice.contains("token_ids")) num_ids += choice["token_ids"].size();
    }
    CHECK(num_ids == chunks.back()["usage"]["completion_tokens"].get<size_t>());
  }
  const std::string emoji = "🦙🦙";
  REQUIRE(test.model.tokenizer->encode(emoji).size() > 2);
  Json body{{"prompt", emoji}};
  body.update({{"stream", true}, {"stream_options", stream["stream_options"]}});
  const auto chunks = test.stream("/v1/completions", body);
  CHECK(num_steps(chunks) == static_cast<int>(test.model.tokenizer->encode(emoji).size()) + 1);
  CHECK(chunks[0]["choices"][0]["text"] == "");
  // What was asked only for its prompt's scores brings no token.
  const auto scored =
      test.stream("/v1/completions", {{"prompt", "a b"}, {"stream", true}, {"max_tokens", 0}, {"echo", true}});
  CHECK(scored.size() == 1);
}

// Goal    Chunks as vLLM's, for clients that take a chunk for text: no delta between the first and the last without
//         text, and none behind the last text but one for the usage.
// Method  Answers with held-back text (an emoji is several tokens) and special tokens that are not shown; as many
//         tokens as max_tokens, so that text and end come at once. With usage that counts along each chunk counts more.
TEST_CASE("api: streams have no delta without text, and the end comes with the last text") {
  TestServer test;
  for (const std::string text : {"🦙🦙 and 𓀀", "one <|im_start|> two", "<think>\nI think.\n</think>\n\nDone."}) {
    INFO(text);
    const auto chunks = test.stream("/v1/chat/completions", chat_body(text, {{"stream", true}}));
    REQUIRE(chunks.size() >= 3);
    for (size_t i = 1; i + 1 < chunks.size(); ++i) {
      const Json& delta = chunks[i]["choices"][0]["delta"];
      CHECK(delta.size() >= 1);
      for (const auto& [name, value] : delta.items()) CHECK(value != "");
    }
  }
  const std::string text = "one two three four";
  const int num_tokens = static_cast<int>(test.model.tokenizer->encode(text).size());
  const Json options{{"include_usage", true}, {"continuous_usage_stats", true}};
  for (const bool is_chat : {true, false}) {
    Json body{{"stream", true}, {"max_tokens", num_tokens}, {"stream_options", options}};
    if (is_chat) {
      body = chat_body(text, body);
    } else {
      body["prompt"] = text;
    }
    const auto chunks = test.stream(is_chat ? "/v1/chat/completions" : "/v1/completions", body);
    REQUIRE(chunks.size() == static_cast<size_t>(num_tokens + 1 + is_chat));  // with the usage's, and the role's
    for (int i = 0; i < num_tokens; ++i) {
      const Json& chunk = chunks[static_cast<size_t>(i + is_chat)];
      CHECK(chunk["usage"]["completion_tokens"] == i + 1);
      const Json& choice = chunk["choices"][0];
      CHECK(choice["finish_reason"] == (i + 1 < num_tokens ? Json() : Json("length")));
      CHECK((is_chat ? choice["delta"]["content"] : choice["text"]) != "");
    }
  }
}

TEST_CASE("api: the role comes with the first token, the stream's head before it") {
  TestServer test;
  test.model.executor->step_milliseconds = 1000;
  TestClient client(test.server.port());
  const std::string body = chat_body("FOREVER", {{"stream", true}, {"max_tokens", 2}}).dump();
  const auto start = std::chrono::steady_clock::now();
  client.send(
      fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  client.receive_until("\r\n\r\n");
  CHECK(std::chrono::steady_clock::now() - start < milliseconds(900));
  client.receive_until(R"("role":"assistant")");
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(900));
  client.receive_until("data: [DONE]\n\n");
}

TEST_CASE("api: completions: prompts, echo, logprobs, scoring") {
  TestServer test;
  Json answer = test.post("/v1/completions", {{"prompt", "say it"}, {"temperature", 0}});
  CHECK(answer["object"] == "text_completion");
  CHECK(answer["choices"][0]["text"] == "say it");
  CHECK(answer["choices"][0]["logprobs"].is_null());
  const auto ids = test.model.tokenizer->encode("say it");
  answer = test.post("/v1/completions", {{"prompt", {"one", "two"}}, {"n", 2}, {"temperature", 1}});
  REQUIRE(answer["choices"].size() == 4);
  CHECK(answer["choices"][1]["text"] == "one");
  CHECK(answer["choices"][2]["text"] == "two");
  CHECK(answer["choices"][3]["index"] == 3);
  answer = test.post("/v1/completions", {{"prompt", ids}, {"echo", true}, {"max_tokens", 1}, {"logprobs", 1}});
  const Json& logprobs = answer["choices"][0]["logprobs"];
  CHECK(answer["choices"][0]["text"].get<std::string>().starts_with("say it"));
  REQUIRE(logprobs["tokens"].size() == ids.size() + 1);
  CHECK(logprobs["token_logprobs"][0].is_null());
  CHECK(logprobs["top_logprobs"][0].is_null());
  CHECK(logprobs["token_logprobs"][1] == -0.25);
  CHECK(logprobs["token_logprobs"].back() == -0.5);
  CHECK(logprobs["text_offset"][0] == 0);
  CHECK(logprobs["text_offset"].back() == 6);
  answer = test.post("/v1/completions", {{"prompt", "say it"}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 0}});
  CHECK(answer["choices"][0]["text"] == "say it");
  CHECK(answer["choices"][0]["logprobs"]["tokens"].size() == ids.size());
  CHECK(answer["usage"]["completion_tokens"] == 0);

  std::string text;
  for (const Json& chunk : test.stream("/v1/completions", {{"prompt", "abc def"}, {"stream", true}, {"echo", true}})) {
    CHECK(chunk["object"] == "text_completion");
    text += chunk["choices"][0]["text"].get<std::string>();
  }
  CHECK(text == "abc defabc def");
}

TEST_CASE("api: a request of more prompts than may wait runs") {
  TestServer test;
  Json prompts = Json::array();
  for (int i = 0; i < 100; ++i) prompts.push_back(fmt::format("prompt {}", i));
  const int limit = test.model.engine->config().max_num_waiting;
  REQUIRE(static_cast<int>(prompts.size()) > limit);
  const Json answer = test.post("/v1/completions", {{"prompt", prompts}, {"n", 2}, {"temperature", 1}});
  REQUIRE(answer["choices"].size() == 2 * prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) CHECK(answer["choices"][2 * i + 1]["text"] == prompts[i]);
  CHECK(test.is_idle());
}

TEST_CASE("api: errors are told in the envelope, before a stream begins, and nothing else breaks") {
  TestServer test;
  const auto error_of = [&](const std::string& path, const Json& body, int status) {
    const Json answer = test.post(path, body, status);
    for (const char* field : {"message", "type", "param", "code"}) CHECK(answer["error"].contains(field));
    return answer["error"];
  };
  CHECK(error_of("/v1/chat/completions", chat_body("x", {{"model", "nope"}}), 404)["code"] == "model_not_found");
  CHECK(error_of("/v1/chat/completions", chat_body("x", {{"temperature", 9}}), 400)["param"] == "temperature");
  const Json too_long = error_of("/v1/chat/completions", chat_body("x", {{"max_tokens", 1000}, {"stream", true}}), 400);
  CHECK(too_long["code"] == "context_length_exceeded");
  const std::string message = too_long["message"];
  CHECK(message.starts_with(
      "This model's maximum context length is 512 tokens. However, you requested 1000 output tokens and "
      "your prompt contains "));
  CHECK(message.ends_with("Please reduce the length of the messages or completion."));
  CHECK(error_of("/v1/completions", {{"prompt", std::string(5'000'000, 'a')}}, 400)["code"] ==
        "context_length_exceeded");
  CHECK(error_of("/v1/completions", {{"prompt", {99999999}}}, 400)["param"] == "prompt");
  CHECK(error_of("/v1/completions", {{"prompt", ""}}, 400)["param"] == "prompt");
  CHECK(error_of("/v1/chat/completions", chat_body("x", {{"response_format", {{"type", "structural_tag"}}}}),
                 400)["param"] == "response_format");
  CHECK(error_of("/v1/nothing", Json::object(), 404)["code"] == "not_found");

  TestClient client(test.server.port());
  const TestResponse wrong_method = client.get("/v1/chat/completions");
  CHECK(wrong_method.status == 405);
  CHECK(wrong_method.header("allow") == "POST, OPTIONS");
  CHECK(client.post("/v1/completions", "{\"prompt\":\"\xff\"}").status == 400);
  CHECK(client.post("/v1/completions", std::string(100'000, '[')).status == 400);
  CHECK(client.get("/health").body == R"({"status":"ok"})");
  CHECK(test.is_idle());
}

TEST_CASE("api: models, tokenize, detokenize, tokenizer_info, version, load, livez, root") {
  TestServer test;
  TestClient client(test.server.port());
  const Json models = Json::parse(client.get("/v1/models").body);
  CHECK(models["data"][0]["id"] == "test-model");
  CHECK(models["data"][0]["max_model_len"] == 512);
  CHECK(models["data"][1]["owned_by"] == "spate");
  CHECK(Json::parse(client.get("/v1/models/org/alias").body)["id"] == "org/alias");
  CHECK(Json::parse(client.get("/v1/models/org%2Falias").body)["id"] == "org/alias");
  CHECK(client.get("/v1/models/none").status == 404);
  const Json tokens = test.post("/tokenize", {{"prompt", "Hello"}, {"return_token_strs", true}});
  CHECK(tokens["count"] == tokens["tokens"].size());
  CHECK(tokens["max_model_len"] == 512);
  CHECK(tokens["token_strs"].size() == tokens["tokens"].size());
  const Json detokenized = test.post("/detokenize", {{"tokens", tokens["tokens"]}});
  CHECK(detokenized == Json({{"prompt", "Hello"}}));
  const Json chat_tokens = test.post("/tokenize", chat_body("Hello"));
  CHECK(chat_tokens["count"].get<int>() > tokens["count"].get<int>());
  CHECK(test.post("/tokenize", {{"content", "Hello"}}).size() == 1);
  const Json pieces = test.post("/tokenize", {{"content", "Hi \U0001F9A5"}, {"with_pieces", true}})["tokens"];
  std::string joined_pieces;
  bool has_bytes = false;
  for (const Json& token : pieces) {
    CHECK(token["id"].is_number());
    if (token["piece"].is_string()) {
      joined_pieces += token["piece"].get<std::string>();
    } else {
      has_bytes = true;
      for (const Json& byte : token["piece"]) joined_pieces += static_cast<char>(byte.get<int>());
    }
  }
  CHECK(has_bytes);  // the sloth is not in the vocabulary
  CHECK(joined_pieces == "Hi \U0001F9A5");
  CHECK(test.post("/tokenize", {{"content", "x"}, {"parse_special", false}}, 400)["error"]["param"] == "parse_special");
  CHECK(Json::parse(client.get("/tokenizer_info").body)["eos_token"] == "<|im_end|>");
  CHECK(Json::parse(client.get("/version").body)["version"].is_string());
  CHECK(client.get("/load").body == R"({"server_load":0})");
  CHECK(client.get("/livez").status == 200);
  CHECK(client.get("/").status == 200);
}

TEST_CASE("api: keys guard the API and nothing else") {
  ServerConfig config = test_config();
  config.api_key = {"first-key", "second-key"};
  TestServer test(config);
  TestClient client(test.server.port());
  const TestResponse refused = client.get("/v1/models");
  CHECK(refused.status == 401);
  CHECK(Json::parse(refused.body)["error"]["code"] == "invalid_api_key");
  CHECK(refused.body.find("first-key") == std::string::npos);
  CHECK(client.get("/v1/models", "Authorization: Bearer second-key\r\n").status == 200);
  CHECK(client.get("/v1/models", "X-Api-Key: first-key\r\n").status == 200);
  CHECK(client.get("/v1/models", "Authorization: Bearer first-ke\r\n").status == 401);
  CHECK(client.get("/v1/models", "Authorization: Bearer first-keyfirst-key\r\n").status == 401);
  CHECK(client.get("/health").status == 200);
  CHECK(client.get("/metrics").status == 200);
}

TEST_CASE("api: the key is looked at before the body, and before 100 Continue") {
  ServerConfig config = test_config();
  config.api_key = {"key"};
  TestServer test(config);
  for (const char* headers : {"", "Authorization: Bearer wrong\r\n"}) {
    TestClient client(test.server.port());
    client.send(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\n{}Content-Length: 60000000\r\n"
                    "Expect: 100-continue\r\n\r\n",
                    headers));
    const TestResponse refused = client.receive();
    CHECK(refused.status == 401);
    CHECK(refused.header("www-authenticate") == "Bearer");
    CHECK(refused.header("connection") == "close");
  }
  TestClient client(test.server.port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\nContent-Length: 14\r\n"
      "Expect: 100-continue\r\n\r\n");
  CHECK(client.receive().status == 100);
  client.send(R"({"prompt":"a"})");
  CHECK(client.receive().status == 200);
  // Where no key is asked for there is nothing to upload either.
  client.send("GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\nExpect: 100-continue\r\n\r\n");
  CHECK(client.receive().status == 413);
}

TEST_CASE("api: when all connections are busy, health and metrics still answer") {
  ServerConfig config = test_config();
  config.max_connections = 3;
  TestServer test(config);
  test.model.executor->step_milliseconds = 20;
  const std::string body = chat_body("FOREVER", {{"stream", true}}).dump();
  std::vector<std::unique_ptr<TestClient>> busy;
  for (int i = 0; i < config.max_connections; ++i) {
    busy.push_back(std::make_unique<TestClient>(test.server.port()));
    busy.back()->send(fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}",
                                  body.size(), body));
    CHECK(busy.back()->receive_until(R"("content":"F)").ends_with("F"));
  }
  for (const char* path : {"/health", "/livez", "/metrics"}) {
    TestClient monitor(test.server.port());
    const TestResponse response = monitor.get(path);
    CHECK(response.status == 200);
    CHECK(response.header("connection") == "close");
  }
  TestClient refused(test.server.port());
  CHECK(refused.post("/v1/completions", R"({"prompt":"a"})").status == 503);
  busy.pop_back();
  CHECK(TestClient(test.server.port()).get("/health").status == 200);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = false;
#else
constexpr bool kIsSanitized = true;  // slow, and memory is not given back
#endif

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total_pages = 0, resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// Of all that malloc has given out and nobody has freed.
size_t allocated_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Goal    Small requests do not wait for large ones that are prepared, and the memory of those goes back.
// Method  Three bodies of many small values at once; while they are prepared, small requests one after the other. Times
//         are compared with each other, so that a loaded machine does not matter: the slowest small request took more
//         than one large one takes when they shared a thread. What is allocated is back where it was. Resident memory
//         is not quite: malloc_trim() leaves the free end of each thread's heap alone, up to 64 MB of it, and how much
//         that is depends on which heaps earlier tests have grown. Untrimmed, 260 to 330 MB stay.
TEST_CASE("api: small requests do not wait for large ones; their memory goes back") {
  TestServer test;
  const size_t num_bytes = kIsSanitized ? 2'000'000 : 15'000'000;
  std::string large = R"({"prompt":"a","max_tokens":1,"metadata":[)";
  while (large.size() < num_bytes) large += R"({"a":"b"},)";
  large += "0]}";
  const std::string small = R"({"prompt":"a","max_tokens":1})";
  CHECK(TestClient(test.server.port()).post("/v1/completions", small).status == 200);
  const size_t allocated_before = allocated_bytes(), resident_before = resident_bytes();
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::atomic<int> num_left{3};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      TestClient client(test.server.port());
      client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", large.size()));
      client.send(large);
      CHECK(client.receive().status == 200);
      --num_left;
    });
  }
  Clock::duration slowest{};
  while (num_left > 0) {
    const auto sent = Clock::now();
    TestClient client(test.server.port());
    CHECK(client.post("/v1/completions", small).status == 200);
    slowest = std::max(slowest, Clock::now() - sent);
    std::this_thread::sleep_for(milliseconds(5));  // leaves the cores to the large ones
  }
  const auto whole = Clock::now() - start;
  for (std::thread& thread : threads) thread.join();
  INFO("small ", std::chrono::duration<double>(slowest).count(), " s, all ",
       std::chrono::duration<double>(whole).count(), " s");
  CHECK(slowest < whole / 4);
  if (kIsSanitized) return;
  // An answer may come a moment before its request is destroyed.
  const auto has_ended = [&] {
    return allocated_bytes() < allocated_before + large.size() / 4 &&
           resident_bytes() < resident_before + 8 * large.size();
  };
  for (int i = 0; i < 400 && !has_ended(); ++i) std::this_thread::sleep_for(milliseconds(10));
  INFO(allocated_before, " bytes allocated before, ", allocated_bytes(), " after; resident ", resident_before, " and ",
       resident_bytes());
  CHECK(has_ended());
}

TEST_CASE("api: a bound on the bytes of large requests") {
  ServerConfig config = test_config();
  config.max_body_bytes = 1 << 20;
  config.max_total_large_body_bytes = 1 << 20;
  TestServer test(config);
  TestClient first(test.server.port()), second(test.server.port());
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\nExpect: 100-continue\r\n\r\n";
  first.send(head);
  CHECK(first.receive().status == 100);
  second.send(head);
  const TestResponse refused = second.receive();
  CHECK(refused.status == 429);
  CHECK(Json::parse(refused.body)["error"]["type"] == "rate_limit_error");
  CHECK(TestClient(test.server.port()).post("/v1/completions", R"({"prompt":"a"})").status == 200);
  first.send(R"({"prompt":"a")" + std::string(600'000 - 14, ' ') + "}");
  CHECK(first.receive().status == 200);
  int status = 429;  // the answer may come a moment before the request is destroyed
  for (int i = 0; i < 400 && status == 429; ++i) {
    TestClient third(test.server.port());
    third.send(head);
    status = third.receive().status;
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(status == 100);
}

TEST_CASE("api: an address that others reach, without a key, is warned of") {
  const auto warning_of = [](const std::string& host, std::vector<std::string> keys) {
    ServerConfig config = test_config();
    config.host = host;
    config.api_key = std::move(keys);
    std::FILE* log = std::tmpfile();
    const int stderr_fd = ::dup(STDERR_FILENO);
    ::dup2(::fileno(log), STDERR_FILENO);
    Server server(config);
    const bool is_ok = server.listen().ok();
    ::dup2(stderr_fd, STDERR_FILENO);
    ::close(stderr_fd);
    REQUIRE(is_ok);
    std::rewind(log);
    char text[4096];
    const size_t size = std::fread(text, 1, sizeof text, log);
    std::fclose(log);
    return std::string(text, size).find("without --api-key") != std::string::npos;
  };
  CHECK(warning_of("0.0.0.0", {}));
  CHECK(!warning_of("0.0.0.0", {"key"}));
  CHECK(!warning_of("127.0.0.1", {}));
  CHECK(!warning_of("localhost", {}));
}

TEST_CASE("api: a client that goes away takes its sequences and KV blocks with it") {
  TestServer test;
  test.model.executor->step_milliseconds = 5;
  {
    TestClient streaming(test.server.port());
    const std::string body = chat_body("FOREVER", {{"stream", true}, {"n", 2}, {"temperature", 1}}).dump();
    streaming.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                   "\r\n\r\n" + body);
    CHECK(streaming.receive_until(R"("content":"F)").ends_with("F"));
    TestClient whole(test.server.port());
    whole.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size() - 14) +
               "\r\n\r\n" + chat_body("FOREVER", {{"n", 2}, {"temperature", 1}}).dump());
    for (int i = 0; i < 400 && test.model.engine->stats().num_running < 4; ++i)
      std::this_thread::sleep_for(milliseconds(5));
    CHECK(test.model.engine->stats().num_running == 4);
  }
  CHECK(test.is_idle());
  // The engine has ended them; the server's threads count that a moment later.
  TestClient client(test.server.port());
  const auto has_counted = [&] {
    return client.get("/metrics").body.find("finished_reason=\"abort\"} 4") != std::string::npos &&
           client.get("/load").body == R"({"server_load":0})";
  };
  bool counted = has_counted();
  for (int i = 0; i < 400 && !counted; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    counted = has_counted();
  }
  CHECK(counted);
}

TEST_CASE("api: while the model loads, and when the engine fails") {
  ServerConfig config = test_config();
  Server loading(config);
  REQUIRE(loading.listen().ok());
  loading.set_loading(0.42);
  TestClient client(loading.port());
  const TestResponse health = client.get("/health");
  CHECK(health.status == 503);
  const Json body = Json::parse(health.body);
  CHECK(body["status"] == "loading");
  CHECK(body["progress"] == 0.42);
  CHECK(body["error"]["message"] == "The model is loading.");
  CHECK(client.post("/v1/chat/completions", "{}").status == 503);
  CHECK(client.get("/livez").status == 200);
  CHECK(client.get("/metrics").status == 200);

  TestServer test;
  test.model.executor->fails = true;
  const Json failed = test.post("/v1/chat/completions", chat_body("x"), 500);
  CHECK(failed["error"]["message"].get<std::string>().find("device is lost") != std::string::npos);
  TestClient dead(test.server.port());
  CHECK(Json::parse(dead.get("/health").body)["status"] == "dead");
  CHECK(dead.get("/livez").status == 503);
}

// Goal    Logits that are not finite end their request with an error that its client reads, and no other request.
// Method  The executor answers "BROKEN ..." with the text's tokens and then with no token. Streams, whole answers, n >
// 1
//         and scored prompts; another request runs beside all of them.
TEST_CASE("api: logits that are not finite") {
  TestServer test;
  test.model.executor->step_milliseconds = 2;
  std::atomic<bool> is_done{false};
  std::thread beside([&] {
    while (!is_done) {
      const Json answer = test.post("/v1/completions", {{"prompt", "Hello there"}, {"max_tokens", 20}});
      CHECK(answer["choices"][0]["text"] == "Hello there");
    }
  });
  const auto check_error = [](const Json& error) {
    CHECK(error["message"].get<std::string>().find("logits are not finite in step ") != std::string::npos);
    CHECK(error["type"] == "server_error");
  };
  check_error(test.post("/v1/completions", {{"prompt", "BROKEN a b"}, {"max_tokens", 20}}, 500)["error"]);
  check_error(test.post("/v1/chat/completions", chat_body("BROKEN a b"), 500)["error"]);
  check_error(test.post("/v1/chat/completions", chat_body("BROKEN", {{"n", 3}, {"temperature", 1}}), 500)["error"]);
  const Json scored = {{"prompt", "BROKEN a b"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}};
  check_error(test.post("/v1/completions", scored, 500)["error"]);
  std::vector<Json> chunks = test.stream("/v1/chat/completions", chat_body("BROKEN a b", {{"stream", true}}));
  REQUIRE(!chunks.empty());
  check_error(chunks.back()["error"]);
  chunks.pop_back();
  CHECK(joined(chunks, "content") == "BROKEN a b");  // what came before it is valid
  is_done = true;
  beside.join();
  CHECK(test.is_idle());
  const std::string metrics = TestClient(test.server.port()).get("/metrics").body;
  CHECK(metrics.find("spate:engine_nonfinite_logits_total{model_name=\"test-model\",engine=\"0\"} 5\n") !=
        std::string::npos);
}

TEST_CASE("api: shutdown lets running streams end, and refuses new ones; what is too slow hears an error") {
  for (const bool is_patient : {true, false}) {
    ServerConfig config = test_config();
    config.shutdown_timeout = is_patient ? 10 : 0;
    TestServer test(config);
    test.model.executor->step_milliseconds = is_patient ? 5 : 50;
    std::thread runner([&] { CHECK(test.server.run() == 0); });
    TestClient running(test.server.port()), idle(test.server.port());
    CHECK(idle.get("/health").status == 200);
    const std::string body = chat_body("FOREVER", {{"stream", true}, {"max_tokens", 60}}).dump();
    running.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                 "\r\n\r\n" + body);
    CHECK(running.receive_until(R"("content":"F)").ends_with("F"));
    test.server.shutdown();
    if (is_patient) {
      std::this_thread::sleep_for(milliseconds(50));
      TestClient late(test.server.port());
      const TestResponse refused = late.post("/v1/completions", R"({"prompt":"x"})");
      CHECK(refused.status == 503);
      CHECK(refused.header("retry-after") != "");
      CHECK(Json::parse(refused.body)["status"] == "draining");
    }
    const std::string rest = running.receive_until("data: [DONE]\n\n");
    CHECK(rest.ends_with("data: [DONE]\n\n"));
    CHECK((rest.find("\"finish_reason\":\"length\"") != std::string::npos) == is_patient);
    CHECK((rest.find("{\"error\":") != std::string::npos) == !is_patient);
    runner.join();
    CHECK(running.is_closed_by_peer());
  }
}

TEST_CASE("api: a shutdown timeout below a second is one") {
  ServerConfig config = test_config();
  config.shutdown_timeout = 0.9;
  TestServer test(config);
  test.model.executor->step_milliseconds = 20;
  std::thread runner([&] { CHECK(test.server.run() == 0); });
  TestClient client(test.server.port());
  const std::string body = chat_body("FOREVER", {{"stream", true}}).dump();
  client.send(
      fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  CHECK(client.receive_until(R"("content":"F)").ends_with("F"));
  const auto start = std::chrono::steady_clock::now();
  test.server.shutdown();
  CHECK(client.receive_until("{\"error\":").ends_with("{\"error\":"));
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(850));
  runner.join();
}

TEST_CASE("api: many clients at once, some leave in the middle; nobody else notices, nothing stays") {
  TestServer test;
  std::vector<std::thread> clients;
  std::atomic<int> num_wrong{0};
  for (int i = 0; i < 24; ++i) {
    clients.emplace_back([&, i] {
      for (int round = 0; round < 8; ++round) {
        TestClient client(test.server.port());
        const std::string text = fmt::format("client {} round {} says nothing new", i, round);
        const std::string body = chat_body(text, {{"stream", true}}).dump();
        client.send(fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}",
                                body.size(), body));
        if ((i + round) % 3 == 0) {
          client.receive_until(R"("content":"c)");
          continue;  // gone
        }
        std::vector<Json> chunks;
        for (const std::string& event : sse_events(client.receive().body)) {
          if (event != "[DONE]") chunks.push_back(Json::parse(event, nullptr, false));
        }
        if (joined(chunks, "content") != text) ++num_wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(num_wrong == 0);
  CHECK(test.is_idle());
}

TEST_CASE("front-end: without HTTP") {
  TestModel model;
  {
    Frontend frontend(model.serving, nullptr);
    auto request =
        parse_completion_request(R"({"prompt":"hello world","n":2,"temperature":1})", frontend.parse_limits());
    REQUIRE(request.ok());
    auto listener = std::make_shared<CollectingListener>();
    REQUIRE(frontend.complete(*request, listener).ok());
    listener->wait();
    REQUIRE(listener->choices.size() == 2);
    CHECK(listener->choices[1].text == "hello world");
    CHECK(listener->choices[1].finish_reason == FinishReason::kStop);
    model.engine->stop();
  }
}

TEST_CASE("api: a Unix socket instead of a port; a root path; /openapi.json") {
  const TempDir dir;
  const std::string path = (dir.path() / "spate.sock").string();
  ServerConfig config = test_config();
  config.uds = path;
  config.root_path = "/llm";
  {
    TestServer test(config);
    TestClient client(path);
    CHECK(client.get("/llm/health").status == 200);
    CHECK(client.get("/health").status == 200);
    CHECK(client.get("/llmhealth").status == 404);
    CHECK(Json::parse(client.get("/llm/v1/models").body)["data"][0]["id"] == "test-model");
    CHECK(Json::parse(client.get("/openapi.json").body)["paths"].contains("/v1/completions"));
    Server second(config);
    CHECK(second.listen().message().find("another server listens") != std::string::npos);
  }
  CHECK(!std::filesystem::exists(path));
  config.uds = dir.path().string();
  CHECK(Server(config).listen().message().find("no socket") != std::string::npos);
}

}  // namespace spate
