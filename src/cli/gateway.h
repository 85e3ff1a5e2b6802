// Gateway: one address for a deployment: graphs and engines are models of it. A graph is run here; what names an engine
// is passed on to it. /engines says how they are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/deployment.h"
#include "cli/engine_process.h"
#include "cli/graph.h"
#include "server/http_server.h"

namespace spate {

class Gateway {
 public:
  // `engines`: of deployment.engines, in their order; they outlive the gateway.
  Gateway(const Deployment& deployment, std::vector<const EngineProcess*> engines);
  ~Gateway();  // stop()
  Status listen();
  void start();
  int port() const { return http_->port(); }
  // New requests are refused; those that run may end within `seconds`, the rest is cut off.
  void stop(double seconds);

 private:
  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);
  void answer(const HttpRequest& request, HttpResponder& responder);
  void answer_graph(const GraphSpec& graph, const HttpRequest& request, const nlohmann::ordered_json& body,
                    HttpResponder& responder);
  void pass_on(const EngineProcess& engine, const HttpRequest& request, HttpResponder& responder);
  Result<StepAnswer> call_engine(const StepCall& call) const;
  const EngineProcess* find_engine(const std::string& serve_id) const;
  std::string models_json() const;
  std::string engines_json() const;
  bool is_ready() const;

  const Deployment& deployment_;
  const std::vector<const EngineProcess*> engines_;
  const int64_t created_;
  std::unique_ptr<HttpServer> http_;
  std::atomic<bool> is_draining_{false}, is_stopping_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int num_running_ = 0;  // threads that answer a request
};

}  // namespace spate
