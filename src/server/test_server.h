// For tests of the OpenAI protocol: the whole server over a TestModel on a free port, and what reads its answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"

#include "base/test.h"

namespace spate {

using Json = nlohmann::json;
using std::chrono::milliseconds;

inline ServerConfig api_test_config() {
  ServerConfig config = test_server_config();
  config.shutdown_timeout = 5;
  return config;
}

struct TestServer {
  explicit TestServer(ServerConfig config = api_test_config()) : server(std::move(config)) {
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

inline Json chat_body(const std::string& text, Json fields = Json::object()) {
  fields["messages"] = {{{"role", "user"}, {"content", text}}};
  return fields;
}

inline std::string joined(const std::vector<Json>& chunks, const char* field, int choice = 0) {
  std::string text;
  for (const Json& chunk : chunks) {
    for (const Json& item : chunk["choices"]) {
      if (item["index"] == choice && item["delta"].contains(field)) text += item["delta"][field].get<std::string>();
    }
  }
  return text;
}

}  // namespace spate
