// Goal    The OpenAI protocol end to end over a real socket: answers, streams, errors.
// Method  The whole server over the real tokenizer, template and engine, and an executor that answers what the request
//         says (test_model.h).
#include <nlohmann/json.hpp>

#include "server/test_server.h"

#include "base/test.h"

namespace spate {

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
  CHECK(answer["choices"][0]["matched_stop"] == "three");
  answer = test.post("/v1/chat/completions",
                     chat_body("one two three four", {{"stop", {"o t", "zzz"}}, {"include_stop_str_in_output", true}}));
  CHECK(answer["choices"][0]["message"]["content"] == "one two t");
  answer = test.post("/v1/chat/completions", chat_body("FOREVER and a day ", {{"max_tokens", 3}}));
  CHECK(answer["choices"][0]["finish_reason"] == "length");
  CHECK(answer["usage"]["completion_tokens"] == 3);
  CHECK(answer["choices"][0].at("matched_stop").is_null());
  const int32_t second = test.model.tokenizer->encode("one two three four")[1];
  answer = test.post("/v1/chat/completions", chat_body("one two three four", {{"stop_token_ids", {second}}}));
  CHECK(answer["choices"][0]["message"]["content"] == "one");
  CHECK(answer["choices"][0]["stop_reason"] == second);
  CHECK(answer["choices"][0]["matched_stop"] == second);
  // The model's own end: vLLM tells nothing, SGLang the token.
  const int32_t eos = test.model.serving.eos_token_ids.front();
  answer = test.post("/v1/completions", {{"prompt", "one two"}});
  CHECK(answer["choices"][0].at("stop_reason").is_null());
  CHECK(answer["choices"][0]["matched_stop"] == eos);
  const auto whole = test.stream("/v1/chat/completions", chat_body("one two", {{"stream", true}}));
  CHECK(whole.back()["choices"][0].at("stop_reason").is_null());
  CHECK(whole.back()["choices"][0]["matched_stop"] == eos);
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
  CHECK(answer["choices"][0]["message"]["reasoning"].is_null());
  answer = test.post("/v1/chat/completions", chat_body(thinking, {{"separate_reasoning", false}}));
  CHECK(answer["choices"][0]["message"]["content"] == thinking);
  CHECK(answer["choices"][0]["message"]["reasoning"].is_null());
  chunks = test.stream("/v1/chat/completions", chat_body(thinking, {{"separate_reasoning", false}, {"stream", true}}));
  CHECK(joined(chunks, "content") == thinking);
  CHECK(joined(chunks, "reasoning_content").empty());
  const Json neither{{"separate_reasoning", false}, {"include_reasoning", false}};
  CHECK(test.post("/v1/chat/completions", chat_body(thinking, neither), 400)["error"]["param"] == "include_reasoning");

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
  // A stop string inside a call: what there is of it is told, but the answer does not end with a call to make.
  for (const auto& [stop, reason, told] : {std::tuple{"1", "stop", "{\"a\": "},
                                           {"arguments", "stop", ""},
                                           {"}\n</tool", "tool_calls", "{\"a\": 1}"},
                                           {"</tool_call>", "tool_calls", "{\"a\": 1}"}}) {
    INFO(stop);
    answer = test.post("/v1/chat/completions", chat_body(call, {{"tools", tools}, {"stop", stop}}));
    CHECK(answer["choices"][0]["finish_reason"] == reason);
    CHECK(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == told);
    chunks = test.stream("/v1/chat/completions", chat_body(call, {{"tools", tools}, {"stop", stop}, {"stream", true}}));
    CHECK(chunks.back()["choices"][0]["finish_reason"] == reason);
  }
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
    CHECK(chunks[0]["usage"]["prompt_tokens"] == chunks.back()["usage"]["prompt_tokens"]);
    CHECK(chunks[0]["usage"]["completion_tokens"] == (is_chat ? 0 : 1));
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

TEST_CASE("api: completions: a prompt of ids that ends inside a character") {
  TestServer test;
  const auto id_of_byte = [&](char byte) {
    for (int32_t id = 0; id < test.model.tokenizer->vocab_size(); ++id) {
      if (test.model.tokenizer->token_bytes(id) == std::string(1, byte)) return id;
    }
    return kNoToken;
  };
  std::vector<int32_t> prompt = test.model.tokenizer->encode("say it");
  prompt.insert(prompt.end(), {id_of_byte('\xE4'), id_of_byte('\xBD')});
  const auto text_of = [&](Json body) {
    body["prompt"] = prompt;
    const auto whole = test.post("/v1/completions", body)["choices"][0]["text"].get<std::string>();
    body["stream"] = true;
    std::string text;
    for (const Json& chunk : test.stream("/v1/completions", body))
      text += chunk["choices"][0]["text"].get<std::string>();
    CHECK(text == whole);
    return whole;
  };
  CHECK(text_of({}) == "say it\uFFFD");  // the answer's own, behind the prompt's
  CHECK(text_of({{"allowed_token_ids", {id_of_byte('\xA0')}}, {"max_tokens", 1}}) == "你");
  CHECK(text_of({{"allowed_token_ids", {id_of_byte('\xE4')}}, {"max_tokens", 1}}) == "\uFFFD");
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
  REQUIRE(client.send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"));
  const TestResponse whole = client.receive(true);
  CHECK(whole.status == 204);
  CHECK(whole.header("allow") == "GET, HEAD, POST, DELETE, OPTIONS");
  REQUIRE(client.send("GET * HTTP/1.1\r\nHost: x\r\n\r\n"));
  CHECK(client.receive().status == 404);
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
  CHECK(detokenized == Json({{"prompt", "Hello"}, {"content", "Hello"}}));
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
  for (const char* path : {"/health", "/v1/health", "/ping", "/livez", "/"}) CHECK(client.get(path).status == 200);
}

TEST_CASE("server: paths with extra slashes are found, those of other servers say what to use") {
  TestServer test;
  TestClient client(test.server.port());
  for (const char* path : {"/v1/models/", "//v1/models", "/v1//models//"}) CHECK(client.get(path).status == 200);
  CHECK(Json::parse(client.get("/v1/models/org/alias").body)["id"] == "org/alias");
  CHECK(client.post("/v1/completions/", R"({"prompt":"a"})").status == 200);
  CHECK(TestClient(test.server.port()).get("/v1/completions/").status == 405);
  const auto message = [&](const std::string& path) {
    const TestResponse response = TestClient(test.server.port()).get(path);
    CHECK(response.status == 404);
    return Json::parse(response.body)["error"]["message"].get<std::string>();
  };
  CHECK(message("/generate") ==
        "There is no /generate here. Use /v1/completions, or /inference/v1/generate for token ids.");
  CHECK(message("/v1/v1/chat/completions").find("take one of them away") != std::string::npos);
  CHECK(message("/slots/0").find("/reset_prefix_cache") != std::string::npos);
  CHECK(message("/nope") == "There is no /nope here.");
  ServerConfig config = api_test_config();
  config.api_key = {"k"};
  TestServer guarded(config);
  CHECK(TestClient(guarded.server.port()).get("//v1/models/").status == 401);
}

}  // namespace spate
