// Goal    A model that nobody uses gives its memory back, and no request notices more than the time of a load.
// Method  The whole server over a socket; its models echo, and their loader waits or fails as the test wants.
#include "server/test_model_server.h"

namespace spate {

TEST_CASE("idle models: one that nobody uses gives its memory back, stays listed, and the next request loads it") {
  IdleServer test;
  CHECK(test.chat("b", "hello").status == 200);
  REQUIRE(test.falls_idle());
  CHECK(test.b.expired());  // its memory is free
  CHECK(test.num_reloads == 0);
  std::vector<std::string> ids;
  const Json list = Json::parse(test.get("/v1/models").body);
  for (const Json& model : list["data"]) ids.push_back(model["id"]);
  CHECK(ids == std::vector<std::string>{"a", "first", "b", "second"});
  CHECK(Json::parse(test.get("/v1/models/second").body)["max_model_len"] == 512);
  CHECK(test.get("/health").status == 200);
  CHECK(test.get("/debug/live?model=b").body.empty());
  for (const char* path : {"/config?model=b", "/debug/steps?model=b"}) {  // only what wants an answer loads it
    CHECK(test.get(path).status == 503);
    CHECK(Json::parse(test.get(path).body)["status"] == "idle");
  }
  CHECK(test.chat("c", "x").status == 404);
  CHECK(test.num_reloads == 0);
  CHECK(metric(test, "spate:model_state{model_name=\"b\",state=\"idle\"}") == 1);
  CHECK(metric(test, "spate:model_state{model_name=\"b\",state=\"ready\"}") == 0);
  CHECK(metric(test, "spate:model_idle_unloads_total{model_name=\"b\"}") == 1);
  const double num_tokens = metric(test, "vllm:prompt_tokens_total{model_name=\"b\",engine=\"0\"}");
  CHECK(num_tokens > 0);

  const TestResponse answer = test.chat("second", "hello again");
  CHECK(answer.status == 200);
  CHECK(Json::parse(answer.body)["choices"][0]["message"]["content"] == "hello again");
  CHECK(test.num_reloads == 1);
  CHECK(metric(test, "spate:model_loads_total{model_name=\"b\"}") == 2);
  CHECK(metric(test, "vllm:prompt_tokens_total{model_name=\"b\",engine=\"0\"}") > num_tokens);  // no counter goes back
  CHECK(metric(test, "vllm:request_success_total{model_name=\"b\",engine=\"0\",finished_reason=\"stop\"}") == 2);
  CHECK(metric(test, "spate:model_idle_unloads_total{model_name=\"a\"}") == 0);
}

TEST_CASE("idle models: a server of one model; a wrong name does not load it") {
  ServerConfig config = test_config();
  ModelServer test(false, config);
  CHECK(test.post("/admin/models/unload", {{"name", "a"}}).status == 200);
  test.idle_seconds = 0.1;
  test.add({"b"});
  REQUIRE(wait_until([&] { return test.state_of("b") == "idle"; }));
  CHECK(test.chat("nobody", "x").status == 404);
  CHECK(test.num_reloads == 0);
  CHECK(Json::parse(test.post("/v1/completions", {{"prompt", "x"}}).body)["model"] == "b");
  REQUIRE(wait_until([&] { return test.state_of("b") == "idle"; }));
  CHECK(test.post("/tokenize", {{"prompt", "x"}, {"model", "b"}}).status == 200);
  CHECK(test.num_reloads == 2);
}

TEST_CASE("idle models: what runs keeps a model; requests wait while it loads, in order and beside another model") {
  IdleServer test;
  const TestResponse stream =
      test.post("/v1/completions", {{"prompt", "FOREVER"}, {"max_tokens", 400}, {"model", "b"}, {"stream", true}});
  CHECK(sse_events(stream.body).back() == "[DONE]");  // takes twice the idle time
  CHECK(stream.body.find("\"finish_reason\":\"length\"") != std::string::npos);
  CHECK(test.num_reloads == 0);
  REQUIRE(test.falls_idle());
  test.may_load = false;
  std::vector<TestResponse> answers(6);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < answers.size(); ++i) {
    clients.emplace_back([&, i] { answers[i] = test.chat("b", "text " + std::to_string(i)); });
  }
  CHECK(wait_until([&] { return metric(test, "spate:model_load_waiters{model_name=\"b\"}") == 6; }));
  const Json listed = Json::parse(test.get("/admin/models").body)["models"][1];
  CHECK(listed["state"] == "loading");
  CHECK(listed["progress"] == 0.5);
  CHECK(listed["num_waiting"] == 6);
  CHECK(listed["idle_unload_seconds"] == 0.2);
  CHECK(test.chat("a", "x").status == 200);
  CHECK(test.post("/admin/models/unload", {{"name", "b"}}).status == 409);
  test.may_load = true;
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < answers.size(); ++i) {
    CHECK(answers[i].status == 200);
    CHECK(answers[i].body.find("\"text " + std::to_string(i) + "\"") != std::string::npos);
  }
  CHECK(test.num_reloads == 1);
}

TEST_CASE("idle models: beside a model under load one comes and goes all the time, and no request of either is lost") {
  IdleServer test(0.02);
  Load load(test, "a", 2);
  int num_right = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  const auto ask = [&](int i) {
    const std::string text = "round " + std::to_string(i);
    const TestResponse answer = test.chat("b", text);
    num_right += answer.status == 200 && answer.body.find("\"" + text + "\"") != std::string::npos ? 1 : 0;
    if (answer.status != 200) MESSAGE(answer.status, " ", answer.body);
  };
  int num_asked = 0;
  while (std::chrono::steady_clock::now() < end) {
    ask(num_asked++);
    std::this_thread::sleep_for(milliseconds(num_asked % 40));  // before, at and after the time-out
  }
  load.stop();
  CHECK(num_right == num_asked);
  CHECK(load.num_lost == 0);
  CHECK(test.num_reloads > 2);
}

TEST_CASE("idle models: a model that cannot be loaded again says why to all who wait, and is tried again later") {
  IdleServer test;
  REQUIRE(test.falls_idle());
  test.reload_fails = true;
  for (int i = 0; i < 3; ++i) {  // the second and the third hear of the first one's failure
    const TestResponse refused = test.chat("b", "x");
    CHECK(refused.status == 503);
    CHECK(refused.header("retry-after") == "5");
    CHECK(refused.body.find("it needs 9 GiB, 1 GiB is free") != std::string::npos);
  }
  CHECK(test.num_reloads == 1);
  CHECK(metric(test, "spate:model_failed_reloads_total{model_name=\"b\"}") == 1);
  CHECK(test.get("/health").status == 200);
  CHECK(test.chat("a", "x").status == 200);
  test.reload_fails = false;
  CHECK(wait_until([&] { return test.chat("b", "x").status == 200; }));
  CHECK(test.num_reloads >= 2);  // on a busy machine it may have been idle once more
}

TEST_CASE("idle models: an idle one can be unloaded for good; one that nobody can load again is refused") {
  IdleServer test;
  REQUIRE(test.falls_idle());
  CHECK(test.load_model("b").status == 409);
  const Json unloaded = Json::parse(test.post("/admin/models/unload", {{"name", "b"}}).body);
  CHECK(unloaded["state"] == "unloaded");
  CHECK(test.chat("b", "x").status == 404);
  CHECK(Json::parse(test.get("/v1/models").body)["data"].size() == 2);
  ServingModel stays = test.make({"c"});
  stays.reload = nullptr;
  const Status refused = test.server.add_model(stays);
  CHECK(refused.message() == "idle-unload-seconds 0.2: this program cannot load the model c again");
}

TEST_CASE("idle models: a server that ends lets those who wait for a load hear of it") {
  IdleServer test;
  REQUIRE(test.falls_idle());
  test.may_load = false;
  TestResponse answer, generated;
  std::thread client([&] { answer = test.post("/tokenize", {{"prompt", "x"}, {"model", "b"}}); });
  CHECK(wait_until([&] { return metric(test, "spate:model_load_waiters{model_name=\"b\"}") == 1; }));
  std::thread loads([&] {
    std::this_thread::sleep_for(milliseconds(300));
    test.may_load = true;
  });
  std::thread runs([&] { generated = test.chat("b", "late"); });
  CHECK(wait_until([&] { return metric(test, "spate:model_load_waiters{model_name=\"b\"}") == 2; }));
  test.server.shutdown();
  CHECK(test.server.run() == 0);
  for (std::thread* each : {&client, &loads, &runs}) each->join();
  CHECK(generated.status == 200);  // it was waited for
  CHECK((answer.status == 200 || answer.status == 503));
}

TEST_CASE("sleep: a model gives its memory back until it is told to wake up; no request does") {
  IdleServer test(3600);
  CHECK(test.get("/is_sleeping").body == R"({"is_sleeping":false})");
  CHECK(test.post("/sleep?model=a", {}).status == 409);  // nobody can load it again
  CHECK(test.post("/sleep?model=c", {}).status == 404);
  CHECK(test.post("/sleep?level=3&model=b", {}).status == 400);
  CHECK(test.post("/sleep?mode=keep&model=b", {}).status == 400);
  TestResponse cut;
  std::thread client([&] {
    cut = test.post("/v1/completions", {{"prompt", "FOREVER"}, {"max_tokens", 400}, {"model", "b"}});
  });
  CHECK(wait_until([&] { return metric(test, "vllm:num_requests_running{model_name=\"b\",engine=\"0\"}") == 1; }));
  CHECK(test.post("/sleep?level=1&model=b", {}).status == 200);
  client.join();
  CHECK(cut.status == 503);
  CHECK(cut.body.find("was put to sleep") != std::string::npos);
  CHECK(wait_until([&] { return test.b.expired(); }));  // its memory is free
  CHECK(test.get("/is_sleeping").body == R"({"is_sleeping":true})");
  CHECK(test.get("/is_sleeping?model=a").body == R"({"is_sleeping":false})");
  const TestResponse refused = test.chat("b", "x");
  CHECK(refused.status == 503);
  CHECK(Json::parse(refused.body)["error"]["message"] == "The model b sleeps until POST /wake_up.");
  const Json question = {{{"role", "user"}, {"content", "x"}}};
  const Json theirs = Json::parse(test.post("/v1/messages", {{"model", "b"}, {"max_tokens", 1}, {"messages", question}}).body);
  CHECK(theirs["type"] == "error");
  CHECK(theirs["error"] == Json({{"type", "overloaded_error"}, {"message", "The model b sleeps until POST /wake_up."}}));
  CHECK(Json::parse(refused.body)["status"] == "asleep");
  CHECK(test.chat("a", "x").status == 200);
  CHECK(test.get("/health").status == 200);
  CHECK(metric(test, "vllm:engine_sleep_state{model_name=\"b\",engine=\"0\",sleep_state=\"discard_all\"}") == 1);
  CHECK(metric(test, "vllm:engine_sleep_state{model_name=\"a\",engine=\"0\",sleep_state=\"awake\"}") == 1);
  CHECK(test.post("/sleep?model=b", {}).status == 200);  // it does
  CHECK(test.post("/wake_up?tags=weights", {}).status == 400);
  test.reload_fails = true;
  CHECK(test.post("/wake_up", {}).status >= 400);
  test.reload_fails = false;
  CHECK(test.num_reloads == 1);
  CHECK(wait_until([&] { return test.post("/wake_up", {}).status == 200 && test.chat("b", "hello").status == 200; }));
  CHECK(test.get("/is_sleeping").body == R"({"is_sleeping":false})");
  CHECK(test.post("/wake_up", {}).status == 200);  // nothing sleeps

  const auto num_prompt_tokens = [&] {
    return metric(test, "vllm:prompt_tokens_total{model_name=\"b\",engine=\"0\"}");
  };
  const double num_before = num_prompt_tokens();
  std::thread waited([&] {
    cut = test.post("/v1/completions", {{"prompt", "FOREVER"}, {"max_tokens", 400}, {"model", "b"}});
  });
  CHECK(wait_until([&] { return num_prompt_tokens() > num_before; }));
  TestResponse slept;
  std::thread sleeper([&] { slept = test.post("/sleep?mode=wait&model=b", {}); });
  CHECK(wait_until([&] { return test.get("/is_sleeping").body == R"({"is_sleeping":true})"; }));
  const TestResponse early = test.post("/wake_up", {});  // it waits for its request, so it does not sleep yet
  CHECK((early.status == 409 || test.chat("b", "hello").status == 200));
  waited.join();
  sleeper.join();
  CHECK(cut.status == 200);
  CHECK(slept.status == 200);
}

TEST_CASE("sleep: of several models all sleep, or none") {
  IdleServer test(3600);
  test.idle_seconds = 0;
  test.add({"c"});  // nobody can load it again; b, before it, could be
  CHECK(test.post("/admin/models/unload", {{"name", "a"}}).status == 200);
  const TestResponse refused = test.post("/sleep", {});
  CHECK(refused.status == 409);
  CHECK(refused.body.find("the model c") != std::string::npos);
  CHECK(test.get("/is_sleeping").body == R"({"is_sleeping":false})");
  for (const char* name : {"b", "c"}) CHECK(test.chat(name, "hello").status == 200);
  CHECK(test.post("/admin/models/unload", {{"name", "c"}}).status == 200);
  CHECK(test.post("/sleep", {}).status == 200);
  CHECK(test.get("/is_sleeping").body == R"({"is_sleeping":true})");
}

TEST_CASE("reset_prefix_cache: a prompt's beginning is computed again; admin only") {
  ModelServer test;
  const Json body{
      {"prompt", std::string(600, 'y')}, {"max_tokens", 1}, {"model", "b"}, {"truncate_prompt_tokens", 100}};
  const auto num_cached = [&] {
    return Json::parse(test.post("/v1/completions", body).body)["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  CHECK(num_cached() == 0);
  CHECK(num_cached() > 0);
  const TestResponse reset = test.post("/reset_prefix_cache?model=a", {});
  CHECK(reset.body == R"({"success":true,"num_blocks":0})");
  CHECK(num_cached() > 0);
  CHECK(Json::parse(test.post("/reset_prefix_cache", {}).body)["num_blocks"].get<int>() > 0);
  CHECK(num_cached() == 0);
  CHECK(test.post("/reset_prefix_cache?model=c", {}).status == 404);
  ServerConfig config = test_config();
  config.enable_admin = false;
  ModelServer closed(false, config);
  for (const char* path : {"/reset_prefix_cache", "/sleep", "/wake_up"}) CHECK(closed.post(path, {}).status == 403);
  CHECK(closed.get("/is_sleeping").status == 403);
  CHECK(TestClient(test.server.port()).post("/sleep", "{}").status == 401);
}

}  // namespace spate
