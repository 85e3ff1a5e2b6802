// Goal    /debug/live shows what runs and what changed; /debug/steps tells the steps; /debug/abort ends a request.
// Method  The whole server over a socket with a model that answers for ever (test_model.h).
#include "server/live_feed.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "server/server.h"
#include "server/state_report.h"
#include "server/test_client.h"
#include "server/test_model.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::json;

struct LiveServer {
  LiveServer() {
    REQUIRE(server.listen().ok());
    model.executor->step_milliseconds = 2;
    server.set_ready(model.serving);
  }
  static ServerConfig config() {
    ServerConfig config = test_server_config();
    config.shutdown_timeout = 1;
    return config;
  }
  TestModel model;
  Server server{config()};
};

// The next event of a stream that was asked for.
Json next_event(TestClient& client) {
  const std::string text = client.receive_until("}\n\n");
  const size_t begin = text.rfind("data: ");
  REQUIRE(begin != std::string::npos);
  const size_t end = text.find("\n\n", begin);
  return Json::parse(text.substr(begin + 6, end - begin - 6));
}

constexpr const char* kForever =
    "{\"prompt\":\"FOREVER and ever\",\"max_tokens\":400,\"temperature\":0,\"stream\":true}";
constexpr const char* kLive = "GET /debug/live HTTP/1.1\r\nHost: x\r\n\r\n";

std::string post_of(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

TEST_CASE("HEAD of the stream has a head and no watcher") {
  LiveServer live;
  TestClient client(live.server.port());
  client.send("HEAD /debug/live HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.receive(true).header("content-type") == "text/event-stream; charset=utf-8");
  CHECK(client.get("/livez").status == 200);  // the connection goes on
}

TEST_CASE("/debug/log has the last lines, by level and behind a number") {
  LiveServer live;
  TestClient client(live.server.port());
  const auto lines_of = [&](const std::string& query) {
    const TestResponse response = client.get("/debug/log" + query);
    INFO(response.body);
    REQUIRE(response.status == 200);
    return Json::parse(response.body)["lines"];
  };
  const LogLevel level = log_level();
  set_log_level(LogLevel::kInfo);
  log_info("test", "a line with \"quotes\" and \xff");
  log_warning("test", "{}", std::string(5000, 'w'));
  const Json all = lines_of("");
  REQUIRE(all.size() >= 2);
  const Json warning = all.back(), info = all[all.size() - 2];
  CHECK(info["level"] == "INFO");
  CHECK(info["component"] == "test");
  CHECK(info["message"] == "a line with \"quotes\" and \uFFFD");
  CHECK(info["time"].get<double>() > 1.7e9);
  CHECK(warning["message"].get<std::string>() == std::string(4000, 'w'));
  CHECK(warning["number"] == info["number"].get<int>() + 1);
  const std::string number = std::to_string(info["number"].get<int>());
  CHECK(lines_of("?after=" + number) == Json::array({warning}));
  for (const Json& line : lines_of("?level=warning")) CHECK(line["level"] != "INFO");
  CHECK(lines_of("?level=warning&after=" + number) == Json::array({warning}));
  CHECK(lines_of("?level=error&after=" + number).empty());
  for (const char* query : {"?level=loud", "?after=x", "?after=-1", "?after=99999999999999999999"}) {
    CHECK(client.get(std::string("/debug/log") + query).status == 400);
  }
  for (int i = 0; i < 1100; ++i) log_debug("test", "more");  // below the level of the log: not kept
  CHECK(lines_of("").size() == all.size());
  set_log_level(level);
}

TEST_CASE("a watcher sees the request that runs, its blocks, steps, and its abort") {
  LiveServer live;
  TestClient runner(live.server.port()), watcher(live.server.port()), other(live.server.port());
  REQUIRE(runner.send(post_of("/v1/completions", kForever)));
  runner.receive_until("data: ");
  REQUIRE(watcher.send(kLive));
  const Json full = next_event(watcher);
  REQUIRE(full["seqs"].size() == 1);
  const Json seq = full["seqs"][0];
  CHECK(seq["phase"] == "decode");
  CHECK(seq["prompt"].get<int>() > 0);
  CHECK(full["num_blocks"] == 512);
  CHECK(full["cells"].size() == 512);
  const int64_t cell = seq["id"].get<int64_t>() + 3;
  CHECK(std::count(full["cells"].begin(), full["cells"].end(), Json(cell)) + 1 >= seq["blocks"].get<int>());
  REQUIRE(!full["steps"].empty());
  CHECK(full["steps"][0].size() == 9);
  CHECK(seq["drafts"] == 0);
  const Json delta = next_event(watcher);
  CHECK(!delta.contains("cells"));
  REQUIRE(!delta["steps"].empty());
  CHECK(delta["steps"][0][0] > full["steps"].back()[0]);  // each step once

  const TestResponse steps = other.get("/debug/steps");
  CHECK(steps.status == 200);
  CHECK(steps.body.find("1 sequences, 0 prefill and 1 decode tokens") != std::string::npos);

  CHECK(other.post("/debug/abort", "{\"id\":\"x\"}").status == 400);
  CHECK(other.post("/debug/abort", Json{{"id", seq["id"]}}.dump()).status == 200);
  runner.receive_until("[DONE]");
  for (int i = 0; i < 20 && !next_event(watcher)["seqs"].empty(); ++i) {
  }
  CHECK(live.model.engine->stats().num_running == 0);
  CHECK(live.model.engine->stats().num_kv_blocks_used == 0);
}

TEST_CASE("steps and sequences tell of drafts where some ran") {
  StepRecord step{.step_id = 7, .num_seqs = 2, .num_decode_tokens = 6};
  CHECK(describe_step(step).find("drafts") == std::string::npos);
  step.num_drafts = 4;
  step.num_drafts_accepted = 3;
  CHECK(describe_step(step).find("6 decode tokens, 3 of 4 drafts accepted, 0 from") != std::string::npos);
  EngineInspection seen{.num_running = 1};
  seen.seqs.push_back({.id = 5, .num_output_tokens = 9, .num_drafts = 8, .num_drafts_accepted = 6});
  CHECK(describe_state({}, &seen).back().find("9 generated, 6 of 8 drafts accepted, ") != std::string::npos);
}

TEST_CASE("a server that stops ends the streams of its watchers") {
  auto live = std::make_unique<LiveServer>();
  TestClient watcher(live->server.port());
  REQUIRE(watcher.send(kLive));
  CHECK(next_event(watcher)["seqs"].empty());
  live.reset();
  CHECK(watcher.is_closed_by_peer());
}

TEST_CASE("while the model loads there is nothing to watch") {
  Server server(LiveServer::config());
  REQUIRE(server.listen().ok());
  TestClient client(server.port());
  CHECK(client.get("/debug/steps").status == 503);
  CHECK(client.get("/config").status == 503);
  CHECK(client.get("/debug/live").body.empty());
}

}  // namespace
}  // namespace spate
