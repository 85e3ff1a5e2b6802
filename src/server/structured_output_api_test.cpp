// Goal    Forms of answers end to end: whatever the model wants to say, an answer has the form that its request asks
// for. Method  As server_api_test.cpp.
#include <nlohmann/json.hpp>
#include <set>

#include "server/test_server.h"

#include "base/test.h"

namespace spate {

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
  CHECK(error_of({{"guided_regex", "(?<=a)"}})["message"].get<std::string>().find("at 4: look-behind") !=
        std::string::npos);
  CHECK(error_of({{"guided_grammar", "root ::= x"}})["message"].get<std::string>().find("line 1, column 10") !=
        std::string::npos);
  CHECK(error_of({{"guided_regex", "((a{1000}){1000}){1000}"}})["message"].get<std::string>().find("too large") !=
        std::string::npos);
  CHECK(test.post("/v1/chat/completions", chat_body("still here"))["choices"][0]["message"]["content"] == "still here");
}

}  // namespace spate
