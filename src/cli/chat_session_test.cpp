// Goal    The commands of the chat do what /help says and refuse what the server would; a saved conversation comes back as it
//         was, and a broken or foreign file changes nothing. Chunks of any server are read.
#include "cli/chat_session.h"

#include <filesystem>
#include <fstream>

#include "base/test_support.h"
#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

ChatSession session_with(GenerateArguments arguments = {}) {
  return ChatSession({.name = "m", .place = "here", .max_model_len = 100}, arguments);
}

void talk(ChatSession& session, const std::string& text, const std::string& answer) {
  session.begin_turn(text);
  session.end_turn(answer, 10);
}

std::string message(ChatSession& session, const std::string& line) {
  const auto reply = session.run_command(line);
  return reply.ok() ? *reply : "refused: " + reply.status().message();
}

Json body_of(const ChatSession& session) { return Json::parse(session.request_body()); }

}  // namespace

TEST_CASE("chat session: what is a command and what a message") {
  for (const char* line : {"/help", "/set x 1", "/nonsense", "/?"}) CHECK(ChatSession::is_command(line));
  for (const char* line : {"/etc/hosts is what?", "/", "a /help", "", "//"}) CHECK_FALSE(ChatSession::is_command(line));
  ChatSession session = session_with();
  CHECK(message(session, "/hlep").find("the nearest is /help") != std::string::npos);
  CHECK(message(session, "/help").find("/set NAME VALUE") != std::string::npos);
  CHECK_FALSE(session.has_ended());
  CHECK(message(session, "/bye").empty());
  CHECK(session.has_ended());
}

TEST_CASE("chat session: the request has the messages, the system message and what is set") {
  GenerateArguments arguments;
  arguments.temperature = 0;
  arguments.system = "Be brief.";
  arguments.no_thinking = true;
  ChatSession session = session_with(arguments);
  talk(session, "one", "1");
  session.begin_turn("two");
  Json body = body_of(session);
  CHECK(body["messages"].dump() ==
        R"([{"role":"system","content":"Be brief."},{"role":"user","content":"one"},{"role":"assistant","content":"1"},{"role":"user","content":"two"}])");
  CHECK(body["temperature"] == 0);
  CHECK(body["chat_template_kwargs"]["enable_thinking"] == false);
  CHECK(body["stream"] == true);
  CHECK_FALSE(body.contains("max_tokens"));
  session.take_turn_back();
  CHECK(session.num_turns() == 1);
  message(session, "/set think");
  message(session, "/system");
  message(session, "/set parameter num_predict 7");
  message(session, "/set stop END OF IT");
  message(session, "/set temperature default");
  body = body_of(session);
  CHECK(body["messages"].size() == 2);
  CHECK(body["chat_template_kwargs"]["enable_thinking"] == true);
  CHECK(body["max_tokens"] == 7);
  CHECK(body["stop"] == "END OF IT");
  CHECK_FALSE(body.contains("temperature"));
}

TEST_CASE("chat session: bad settings are refused with the server's words and change nothing") {
  ChatSession session = session_with();
  const std::string before = session.request_body();
  CHECK(message(session, "/set temperature 9").starts_with("refused: temperature"));
  CHECK(message(session, "/set top_p hot").find("takes a number, got 'hot'") != std::string::npos);
  CHECK(message(session, "/set max_tokens -2").starts_with("refused: "));
  CHECK(message(session, "/set seed 1.5").starts_with("refused: "));
  CHECK(message(session, "/set temprature 1").find("the nearest is 'temperature'") != std::string::npos);
  CHECK(message(session, "/set temperature").find("needs a value") != std::string::npos);
  CHECK(message(session, "/set markdown maybe").find("takes on or off") != std::string::npos);
  CHECK(message(session, "/set model other").starts_with("refused: "));
  CHECK(message(session, "/drop x").starts_with("refused: "));
  CHECK(session.request_body() == before);
  CHECK(session.renders_markdown());
  message(session, "/set markdown off");
  CHECK_FALSE(session.renders_markdown());
}

TEST_CASE("chat session: turns are forgotten from the oldest") {
  ChatSession session = session_with();
  for (const char* text : {"a", "b", "c"}) talk(session, text, "x");
  session.begin_turn("d");
  CHECK(session.drop_oldest_turn());
  CHECK(session.drop_oldest_turn());
  CHECK(session.drop_oldest_turn());
  CHECK_FALSE(session.drop_oldest_turn());
  CHECK(body_of(session)["messages"].dump() == R"([{"role":"user","content":"d"}])");
  session.end_turn("y", 5);
  CHECK(message(session, "/drop 4") == "forgot 1 turn, 0 left");
  talk(session, "e", "x");
  message(session, "/clear");
  CHECK(session.num_turns() == 0);
}

TEST_CASE("chat session: saved and loaded") {
  const TempDir dir;
  const std::string path = (dir.path() / "talk of today.json").string();
  ChatSession session = session_with();
  talk(session, "\"quoted\" \x1b[2J\n潮", "an answer");
  message(session, "/system Be brief.");
  message(session, "/set top_k 5");
  CHECK(message(session, "/save " + path) == "saved 1 turns to " + path);
  CHECK(message(session, "/save " + path) == "saved 1 turns to " + path);
  ChatSession other = session_with();
  CHECK(message(other, "/load " + path) == "loaded 1 turns from " + path);
  CHECK(other.request_body() == session.request_body());
  CHECK(message(other, "/show").find("1 turn") != std::string::npos);
}

TEST_CASE("chat session: files that are none of ours change nothing") {
  const TempDir dir;
  const std::string path = (dir.path() / "x").string();
  ChatSession session = session_with();
  talk(session, "a", "b");
  const std::string before = session.request_body();
  for (const char* text :
       {"", "{", "[]", "{}", R"({"messages": []})", R"({"spate_chat": 1, "messages": 3})", R"({"spate_chat": 1, "messages": [{}]})",
        R"({"spate_chat": 1, "messages": [{"role": "system", "content": "x"}]})",
        R"({"spate_chat": 1, "messages": [{"role": "user", "content": "x"}]})",
        R"({"spate_chat": 1, "messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "x"}]})",
        R"({"spate_chat": 1, "system": 3})", R"({"spate_chat": 1, "sampling": {"temperature": 9}})",
        R"({"spate_chat": 1, "sampling": {"stream": false}})", R"({"spate_chat": 1, "sampling": []})"}) {
    INFO(text);
    std::ofstream(path) << text;
    CHECK(message(session, "/load " + path).starts_with("refused: " + path));
    CHECK(session.request_body() == before);
  }
  std::ofstream(path) << "precious";
  CHECK(message(session, "/save " + path).find("it stays as it is") != std::string::npos);
  CHECK(std::filesystem::file_size(path) == 8);
  CHECK(message(session, "/save " + (dir.path() / "none" / "x").string()).find("cannot be written") != std::string::npos);
  CHECK(message(session, "/load " + dir.path().string()).find("no such file") != std::string::npos);
  CHECK(message(session, "/save").find("needs the name of a file") != std::string::npos);
}

TEST_CASE("chat connection: chunks of several servers") {
  const auto reasoning = parse_answer_chunk(R"({"choices":[{"delta":{"reasoning":"a","reasoning_content":"a"},"finish_reason":null}]})");
  REQUIRE(reasoning.ok());
  CHECK(reasoning->reasoning == "a");
  CHECK(parse_answer_chunk(R"({"choices":[{"delta":{"reasoning_content":"b"}}]})")->reasoning == "b");
  CHECK(parse_answer_chunk(R"({"choices":[{"delta":{"role":"assistant","content":null}}]})")->content.empty());
  CHECK(parse_answer_chunk(R"({"choices":[{"text":"c","finish_reason":"length"}]})")->finish_reason == "length");
  const auto usage = parse_answer_chunk(R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}})");
  REQUIRE(usage.ok());
  CHECK(usage->num_prompt_tokens == 3);
  CHECK(usage->num_completion_tokens == 4);
  for (const char* odd : {R"({"choices":[3]})", R"({"choices":[{"delta":3}]})", R"({"choices":{}})", R"({"usage":{"prompt_tokens":"x"}})", "{}"}) {
    CHECK(parse_answer_chunk(odd).ok());
  }
  CHECK_FALSE(parse_answer_chunk("no JSON").ok());
  CHECK(parse_answer_chunk(R"({"error":null,"choices":[{"delta":{"content":"d"}}]})")->content == "d");
  CHECK(parse_answer_chunk(R"({"error":{"message":"broken"}})").status().message() == "broken");
}

TEST_CASE("chat connection: errors of several servers") {
  CHECK(status_of_error(R"({"error":{"message":"m","code":"context_length_exceeded"}})").code() == StatusCode::kOutOfRange);
  CHECK(status_of_error(R"({"object":"error","message":"This model's maximum context length is 5 tokens."})").code() == StatusCode::kOutOfRange);
  CHECK(status_of_error(R"({"error":"plain"})").message() == "plain");
  CHECK(status_of_error(R"({"detail":"Not Found"})").message() == "Not Found");
  CHECK(status_of_error("<html>").message() == "the server refused: <html>");
}

}  // namespace spate
