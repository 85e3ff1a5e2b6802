// Goal    Around the answers: keys, bounds, clients that leave, loading, failures, the end of the server.
// Method  As server_api_test.cpp.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/test_support.h"
#include "server/frontend.h"
#include "server/responses_request.h"
#include "server/test_server.h"

#include "base/test.h"

namespace spate {

TEST_CASE("api: keys guard the API and nothing else") {
  ServerConfig config = api_test_config();
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
  ServerConfig config = api_test_config();
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
  ServerConfig config = api_test_config();
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
  ServerConfig config = api_test_config();
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
    ServerConfig config = api_test_config();
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
  ServerConfig config = api_test_config();
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
    ServerConfig config = api_test_config();
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
  ServerConfig config = api_test_config();
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

TEST_CASE("front-end: instructions between turns come first where the template takes none there") {
  TestModel model;
  auto chat_template = ChatTemplate::parse(
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}"
      "{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}",
      {});
  REQUIRE(chat_template.ok());
  model.serving.chat_template = std::make_shared<ChatTemplate>(std::move(*chat_template));
  {
    const Frontend frontend(model.serving, nullptr);
    const ParseLimits limits = frontend.parse_limits();
    const std::string turns = R"([{"role":"user","content":"Hi"},{"role":"system","content":[{"type":"text","text":"B"},
                                  {"type":"text","text":"C"}]},{"role":"user","content":"Well?"}])";
    const std::string gathered = "[system] A\n\nB\nC\n[user] Hi\n[user] Well?\n";
    auto messages = parse_messages_request(R"({"max_tokens":5,"system":"A","messages":)" + turns + "}", limits, false);
    REQUIRE(messages.ok());
    CHECK(*frontend.render_chat(*messages) == gathered);
    ResponseStore store;
    auto responses = parse_responses_request(R"({"instructions":"A","input":)" + turns + "}", limits, store);
    REQUIRE(responses.ok());
    CHECK(*frontend.render_chat(responses->chat) == gathered);
    // A chat says itself where they stand.
    auto chat = parse_chat_request(R"({"messages":)" + turns + "}", limits);
    REQUIRE(chat.ok());
    CHECK(frontend.render_chat(*chat).error().code == "template_error");
  }
}

TEST_CASE("api: a Unix socket instead of a port; a root path; /openapi.json") {
  const TempDir dir;
  const std::string path = (dir.path() / "spate.sock").string();
  ServerConfig config = api_test_config();
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
