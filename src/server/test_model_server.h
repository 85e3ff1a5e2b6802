// Servers of several models for tests: a loader that makes echoing models (test_model.h), fails or waits as it is told, and streams
// that note what is lost.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/model_admin.h"
#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"

#include "base/test.h"

namespace spate {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kKey = "Authorization: Bearer secret\r\n";

inline ServerConfig test_config() {
  ServerConfig config = test_server_config();
  config.shutdown_timeout = 5;
  config.api_key = {"secret"};
  config.enable_admin = true;
  return config;
}

inline bool wait_until(const std::function<bool()>& is_true) {
  for (int i = 0; i < 2000 && !is_true(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return is_true();
}

// A server with the models "a" (alias "first") and, when asked, "b"; its loader makes more of them.
struct ModelServer {
  explicit ModelServer(bool has_b = true, const ServerConfig& config = test_config()) : server(config) {
    REQUIRE(server.listen().ok());
    server.set_loader({.check = [](const ModelSpec& spec) { return check(spec); },
                       .load = [this](const ModelSpec& spec, const std::function<void(double)>& progress) {
                         return load(spec, progress);
                       }});
    add({"a", "first"});
    if (has_b) add({"b"});
    server.set_ready();
  }

  static Status check(const ModelSpec& spec) {
    for (const auto& [key, value] : spec.settings) {
      if (key != "max_num_seqs") return invalid_argument("there is no setting {}", key);
    }
    return ok_status();
  }
  Result<ServingModel> load(const ModelSpec& spec, const std::function<void(double)>& progress) {
    progress(0.25);
    wait_until([this] { return may_load.load(); });
    if (spec.path == "throws") throw std::runtime_error("read error at byte 7");
    if (spec.path == "exhausts") throw std::bad_alloc();
    if (spec.path == "huge") return resource_exhausted("it needs 9 GiB, 1 GiB is free: lower --kv-cache-memory of a");
    return make({spec.name});
  }
  // The engine owns the whole model, as a loader promises.
  ServingModel make(std::vector<std::string> names) {
    auto model = std::make_shared<TestModel>();
    model->executor->step_milliseconds = 1;
    ServingModel serving = model->serving;
    serving.names = std::move(names);
    serving.about_json = Json{{"name", serving.names.front()}}.dump();
    serving.engine = std::shared_ptr<Engine>(model, model->engine.get());
    last_made = model;
    if (idle_seconds == 0) return serving;
    serving.idle_unload_seconds = idle_seconds;
    serving.reload = [this,
                      names = serving.names](const std::function<void(double)>& progress) -> Result<ServingModel> {
      ++num_reloads;
      progress(0.5);
      wait_until([this] { return may_load.load(); });
      if (reload_fails) return resource_exhausted("it needs 9 GiB, 1 GiB is free");
      return make(names);
    };
    return serving;
  }
  void add(std::vector<std::string> names) { REQUIRE(server.add_model(make(std::move(names))).ok()); }

  TestResponse get(const std::string& path) { return TestClient(server.port()).get(path, kKey); }
  TestResponse post(const std::string& path, const Json& body) {
    return TestClient(server.port()).post(path, body.dump(), kKey);
  }
  TestResponse load_model(const std::string& name) { return post("/admin/models/load", {{"name", name}, {"path", "x"}}); }
  TestResponse chat(const std::string& model, const std::string& text) {
    return post("/v1/chat/completions", {{"model", model}, {"messages", {{{"role", "user"}, {"content", text}}}}});
  }
  std::string state_of(const std::string& name) {
    const Json answer = Json::parse(get("/admin/models").body);
    for (const Json& model : answer["models"]) {
      if (model["name"] == name) return model["state"];
    }
    return "";
  }

  std::atomic<double> idle_seconds{0};  // of models that are made from now on
  std::atomic<bool> may_load{true}, reload_fails{false};
  std::atomic<int> num_reloads{0};
  std::weak_ptr<TestModel> last_made;
  Server server;
};

// Beside "a", which stays: "b", which is unloaded after a fifth of a second. Made only after its server: its loader
// ends before it.
struct IdleServer : ModelServer {
  explicit IdleServer(double seconds = 0.2) : ModelServer(false) {
    idle_seconds = seconds;
    add({"b", "second"});
    b = last_made;
  }
  bool is_idle() { return state_of("b") == "idle"; }
  bool falls_idle() {
    return wait_until([this] { return is_idle() && last_made.expired(); });
  }
  std::weak_ptr<TestModel> b;
};

// The sample's value in /metrics; -1: there is none.
inline double metric(ModelServer& test, const std::string& sample) {
  const std::string text = test.get("/metrics").body;
  const size_t at = text.find("\n" + sample + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + sample.size() + 2));
}

// Streams of one model on threads of their own, until stop(): each is whole, or counted as lost.
class Load {
 public:
  Load(ModelServer& server, std::string model, int num_clients) {
    for (int i = 0; i < num_clients; ++i) {
      threads_.emplace_back([this, &server, model, i] {
        for (int round = 0; !is_stopping_; ++round) run(server, model, fmt::format("stream {} of {}, round {}", i, model, round));
      });
    }
  }
  ~Load() { stop(); }
  void stop() {
    is_stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  std::atomic<int> num_whole{0}, num_lost{0};

 private:
  void run(ModelServer& server, const std::string& model, const std::string& text) {
    const TestResponse response = server.post(
        "/v1/completions", {{"prompt", text}, {"max_tokens", 60}, {"stream", true}, {"model", model}});
    std::string answer;
    const std::vector<std::string> events = sse_events(response.body);
    for (const std::string& event : events) {
      if (event == "[DONE]") continue;
      const Json chunk = Json::parse(event);
      if (chunk.contains("choices") && !chunk["choices"].empty()) answer += chunk["choices"][0]["text"].get<std::string>();
    }
    const bool is_whole = response.status == 200 && !events.empty() && events.back() == "[DONE]" && answer == text;
    ++(is_whole ? num_whole : num_lost);
  }
  std::atomic<bool> is_stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace spate
