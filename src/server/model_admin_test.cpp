// Goal    Several models in one server: each request reaches the model that it names; models come and go while the others
//         answer, and no request of the others is lost.
// Method  The whole server over a socket; its models echo (test_model.h), so an answer that is cut or mixed up is seen.
#include "server/json_parse.h"
#include "server/test_model_server.h"

namespace spate {

TEST_CASE("models: a request reaches the model that it names, by any of its names; without one, the first") {
  ModelServer test;
  for (const auto& [asked, served] : std::map<std::string, std::string>{{"a", "a"}, {"first", "a"}, {"b", "b"}}) {
    const TestResponse answer = test.chat(asked, "hello " + asked);
    CHECK(answer.status == 200);
    CHECK(Json::parse(answer.body)["model"] == asked);
    CHECK(Json::parse(answer.body)["choices"][0]["message"]["content"] == "hello " + asked);
    CHECK(Json::parse(test.get("/config?model=" + asked).body)["name"] == served);
  }
  CHECK(Json::parse(test.post("/v1/completions", {{"prompt", "x"}}).body)["model"] == "a");
  CHECK(Json::parse(test.get("/config").body)["name"] == "a");
  CHECK(test.get("/debug/steps?model=b").body.find("step 1: 1 sequences") == 0);
  CHECK(test.get("/debug/steps?model=c").status == 404);
  CHECK(test.get("/tokenizer_info?model=b").status == 200);

  std::vector<std::string> ids;
  const Json list = Json::parse(test.get("/v1/models").body);
  for (const Json& model : list["data"]) ids.push_back(model["id"]);
  CHECK(ids == std::vector<std::string>{"a", "first", "b"});
  CHECK(Json::parse(test.get("/v1/models/b").body)["id"] == "b");
  for (const TestResponse& unknown : {test.chat("c", "x"), test.get("/v1/models/c")}) {
    CHECK(unknown.status == 404);
    CHECK(Json::parse(unknown.body)["error"]["code"] == "model_not_found");
    CHECK(Json::parse(unknown.body)["error"]["message"] == "The model `c` does not exist. There are `a`, `first`, `b`.");
  }
  const std::string metrics = test.get("/metrics").body;
  CHECK(metrics.find("vllm:request_success_total{model_name=\"a\",engine=\"0\",finished_reason=\"stop\"} 3\n") != std::string::npos);
  CHECK(metrics.find("vllm:request_success_total{model_name=\"b\",engine=\"0\",finished_reason=\"stop\"} 1\n") != std::string::npos);
  CHECK(test.get("/health").status == 200);
}

TEST_CASE("models: the field model is found wherever it stands, and only the outermost") {
  CHECK(find_model_field(R"({"model": "b"})") == "b");
  CHECK(find_model_field(R"({"messages": [{"model": "x", "content": "\"model\": \"y\""}], "n": 1, "model": "b"})") == "b");
  CHECK(find_model_field(R"({"model": "b", "broken)") == "b");
  CHECK(find_model_field(R"({"model": "a", "model": "b", "x": {"model": "c"}, "y": ["d"]})") == "b");
  CHECK(find_model_field(R"({"model": "a", "model": null})").empty());
  // What routes the request and what answers it read the same name.
  for (const char* body :
       {R"({"model": "a", "model": "b"})", R"({"model": "b", "x": [{"model": "a"}], "model": "c"})"}) {
    CHECK(find_model_field(body) == (**parse_json(body))["model"].get<std::string>());
  }
  CHECK(find_model_field(R"({"model": 7, "x": "b"})").empty());
  CHECK(find_model_field(R"({"model": {"model": "b"}})").empty());
  CHECK(find_model_field(R"(["model", "b"])").empty());
  CHECK(find_model_field(R"("model")").empty());
  CHECK(find_model_field("").empty());
  CHECK(find_model_field(std::string(100000, '[')).empty());
}

TEST_CASE("models: one comes, goes and comes again while another answers; nothing of the other is lost") {
  ModelServer test(false);
  Load load(test, "a", 4);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(test.load_model("b").status == 200);
    const std::weak_ptr<TestModel> b = test.last_made;
    Load load_of_b(test, "b", 2);
    REQUIRE(wait_until([&] { return load_of_b.num_whole > 4; }));
    load_of_b.stop();
    CHECK(load_of_b.num_lost == 0);
    const int num_whole = load.num_whole;
    const Json unloaded = Json::parse(test.post("/admin/models/unload", {{"name", "b"}}).body);
    CHECK(unloaded["state"] == "unloaded");
    CHECK(unloaded["num_aborted"] == 0);
    CHECK(wait_until([&] { return b.expired(); }));  // its memory is free
    CHECK(test.chat("b", "x").status == 404);
    CHECK(wait_until([&] { return load.num_whole > num_whole; }));
  }
  load.stop();
  CHECK(load.num_lost == 0);
  CHECK(load.num_whole > 10);
}

TEST_CASE("models: while one loads, a request for it gets 503 with the progress; the others answer") {
  ModelServer test(false);
  test.may_load = false;
  TestResponse answer;
  std::thread loading([&] { answer = test.load_model("b"); });
  REQUIRE(wait_until([&] { return test.chat("b", "x").body.find("0.25") != std::string::npos; }));
  const TestResponse refused = test.chat("b", "x");
  CHECK(refused.status == 503);
  CHECK(refused.header("retry-after") == "5");
  CHECK(Json::parse(refused.body)["error"]["message"] == "The model b is loading: 25 %.");
  CHECK(Json::parse(refused.body)["status"] == "loading");
  CHECK(Json::parse(refused.body)["progress"] == 0.25);
  CHECK(test.state_of("b") == "loading");
  CHECK(test.chat("a", "x").status == 200);
  CHECK(test.get("/health").status == 200);
  CHECK(test.get("/debug/live?model=b").body.empty());
  CHECK(test.load_model("b").status == 409);
  CHECK(test.post("/admin/models/unload", {{"name", "b"}}).status == 409);
  test.may_load = true;
  loading.join();
  CHECK(answer.status == 200);
  CHECK(test.chat("b", "x").status == 200);
}

TEST_CASE("models: what is unloaded ends its requests first; what is left after the time-out ends with an error") {
  ModelServer test;
  const Json endless{{"prompt", "FOREVER"}, {"max_tokens", 300}, {"model", "b"}, {"stream", true}};
  TestResponse answer;
  const auto run_and_unload = [&](double timeout) {
    std::thread runner([&] { answer = test.post("/v1/completions", endless); });
    // Not /load, which counts a request before it holds the model.
    CHECK(wait_until([&] { return metric(test, "vllm:num_requests_running{model_name=\"b\",engine=\"0\"}") == 1; }));
    std::thread unloader([&] {
      const Json unloaded = Json::parse(test.post("/admin/models/unload", {{"name", "b"}, {"timeout", timeout}}).body);
      CHECK(unloaded["num_aborted"] == (timeout > 0 ? 0 : 1));
    });
    if (timeout > 0) {
      CHECK(wait_until([&] { return test.state_of("b") == "unloading"; }));
      const TestResponse refused = test.chat("b", "x");
      CHECK(refused.status == 503);
      CHECK(refused.body.find("is being unloaded") != std::string::npos);
      CHECK(test.chat("a", "x").status == 200);
    }
    runner.join();
    unloader.join();
  };
  run_and_unload(30);
  CHECK(sse_events(answer.body).back() == "[DONE]");
  CHECK(answer.body.find("\"finish_reason\":\"length\"") != std::string::npos);
  REQUIRE(test.load_model("b").status == 200);
  run_and_unload(0);
  CHECK(answer.body.find("\"message\":\"the model b was unloaded\"") != std::string::npos);
  CHECK(test.state_of("b").empty());
  CHECK(test.chat("a", "x").status == 200);
}

TEST_CASE("models: with none left a request hears so, and the server lives on; SIGTERM's drain covers all models") {
  ModelServer test;
  CHECK(test.post("/admin/models/unload", {{"name", "a"}}).status == 200);
  CHECK(Json::parse(test.chat("", "x").body)["model"] == "b");  // the default now
  CHECK(test.post("/admin/models/unload", {{"name", "b"}}).status == 200);
  CHECK(test.chat("", "x").status == 503);
  CHECK(test.chat("", "x").body.find("No model is loaded.") != std::string::npos);
  CHECK(Json::parse(test.get("/v1/models").body)["data"].empty());
  CHECK(test.get("/health").status == 200);
  REQUIRE(test.load_model("a").status == 200);
  REQUIRE(test.load_model("c").status == 200);
  std::vector<TestResponse> answers(2);
  std::vector<std::thread> runners;
  for (size_t i = 0; i < 2; ++i) {
    runners.emplace_back([&, i] {
      answers[i] = test.post("/v1/completions", {{"prompt", "FOREVER"}, {"max_tokens", 200}, {"model", i == 0 ? "a" : "c"}});
    });
  }
  CHECK(wait_until([&] { return test.get("/load").body.find(":2}") != std::string::npos; }));
  test.server.shutdown();
  CHECK(test.server.run() == 0);
  for (std::thread& runner : runners) runner.join();
  for (const TestResponse& answer : answers) CHECK(Json::parse(answer.body)["choices"][0]["finish_reason"] == "length");
}

TEST_CASE("models: bad input of the admin endpoints is refused by name") {
  ModelServer test;
  const auto refused = [&](const char* what, const Json& body, int status, const std::string& expected) {
    const TestResponse response = test.post(std::string("/admin/models/") + what, body);
    INFO(body.dump(), ": ", response.body);
    CHECK(response.status == status);
    CHECK(Json::parse(response.body)["error"]["message"].get<std::string>().find(expected) != std::string::npos);
  };
  refused("load", Json::array(), 400, "must be a JSON object");
  refused("load", {{"path", "x"}}, 400, "name must be the name that requests will use");
  refused("load", {{"name", ""}, {"path", "x"}}, 400, "name must be");
  refused("load", {{"name", "c"}, {"path", 7}}, 400, "path must be the model's folder");
  refused("load", {{"name", "c"}, {"path", "x"}, {"alias", 7}}, 400, "alias must be a name or a list of names");
  refused("load", {{"name", "c"}, {"path", "x"}, {"max_num_seqs", {1, 2}}}, 400, "max_num_seqs must be one value");
  refused("load", {{"name", "c"}, {"path", "x"}, {"seqs", 1}}, 400, "there is no setting seqs");
  refused("load", {{"name", "a"}, {"path", "x"}}, 409, "the name a is taken: the model a has it, which is ready");
  refused("load", {{"name", "c"}, {"path", "x"}, {"alias", "first"}}, 409, "the name first is taken: the model a has it");
  refused("load", {{"name", "c"}, {"path", "huge"}}, 409, "it needs 9 GiB, 1 GiB is free: lower --kv-cache-memory of a");
  refused("load", {{"name", "c\nINFO"}, {"path", "x"}}, 400, "the name of a model has no control characters, got byte 10 at 1");
  refused("load", {{"name", "c"}, {"path", "x"}, {"alias", std::string(257, 'a')}}, 400, "has 1 to 256 bytes, got 257");
  refused("unload", {{"name", "c"}}, 404, "There are `a`, `first`, `b`.");
  refused("unload", {{"name", "b"}, {"timeout", -1}}, 400, "timeout must be a number of seconds in [0, 86400], got -1");
  refused("unload", {{"name", "b"}, {"time", 1}}, 400, "unload takes name and timeout, got time");
  CHECK(test.state_of("c").empty());  // what failed leaves nothing behind
  CHECK(test.chat("b", "x").status == 200);
}

TEST_CASE("models: a loader that throws ends the load, not the server") {
  ModelServer test;
  const auto load = [&](const char* path) {
    return test.post("/admin/models/load", {{"name", "c"}, {"path", path}});
  };
  for (int i = 0; i < 2; ++i) {  // the name is free again
    const TestResponse failed = load("throws");
    CHECK(failed.status == 500);
    CHECK(Json::parse(failed.body)["error"]["message"] == "throws: read error at byte 7");
    const TestResponse full = load("exhausts");
    CHECK(full.status == 409);
    CHECK(Json::parse(full.body)["error"]["code"] == "does_not_fit");
    CHECK(test.chat("a", "x").status == 200);
  }
  CHECK(load("x").status == 200);
}

TEST_CASE("models: an alias that comes twice is listed once") {
  ModelServer test;
  const Json body{{"name", "c"}, {"path", "x"}, {"alias", {"d", "c", "d"}}};
  REQUIRE(test.post("/admin/models/load", body).status == 200);
  std::vector<std::string> names;
  const Json listed = Json::parse(test.get("/v1/models").body);
  for (const Json& model : listed["data"]) names.push_back(model["id"]);
  CHECK(names == std::vector<std::string>{"a", "first", "b", "c", "d"});
}

TEST_CASE("models: the admin endpoints need their flag and a key") {
  const Json unload_b{{"name", "b"}};
  const auto status_of = [&](bool has_flag, const std::vector<std::string>& keys, const char* sent) {
    ServerConfig config = test_config();
    config.enable_admin = has_flag;
    config.api_key = keys;
    ModelServer test(true, config);
    return TestClient(test.server.port()).post("/admin/models/unload", unload_b.dump(), sent).status;
  };
  CHECK(status_of(false, {"secret"}, kKey) == 403);
  CHECK(status_of(true, {}, kKey) == 403);
  CHECK(status_of(true, {"secret"}, "") == 401);
  CHECK(status_of(true, {"secret"}, "Authorization: Bearer wrong\r\n") == 401);
  CHECK(status_of(true, {"secret"}, kKey) == 200);
}

}  // namespace spate
