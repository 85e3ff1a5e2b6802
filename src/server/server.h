// Server: the OpenAI-compatible API over HTTP, from the first second of the process to its last.
//
//   Server server(config);
//   RETURN_IF_ERROR(server.listen());      // before the weights are read: a port in use is said at once; from here on
//   ... server.set_loading(0.42) ...       // clients get 503 with the progress
//   server.set_ready(std::move(model));    // the first is the default; server.add_model() before it adds others
//   return server.run();                   // until SIGTERM or shutdown(); drains
//
// Owned by the program; listen(), set_ready() and run() from one thread, the others from any.
#pragma once

#include <memory>

#include "base/status.h"
#include "server/model_loader.h"
#include "server/server_config.h"
#include "server/serving_model.h"

namespace spate {

class Server {
 public:
  explicit Server(ServerConfig config);
  ~Server();  // stops at once what still runs, the model's engine included
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Status listen();
  int port() const;
  void set_loading(double progress);  // 0 to 1, of all models together
  // A model that is loaded. Its names are its own; the first model's may be replaced by served_model_name. An error
  // (invalid_argument) names the name that another has.
  Status add_model(ServingModel model);
  void set_ready();  // requests are taken from now on
  void set_ready(ServingModel model);
  void set_loader(ModelLoader loader);  // before set_ready(); for /admin/models/load
  // Serves until shutdown is asked for, then drains: new work is refused with 503, what runs may end within
  // shutdown_timeout, the rest is aborted with an error. Returns the exit code, 0.
  int run();

  void shutdown();                     // as SIGTERM; a second call aborts what runs
  bool is_shutdown_requested() const;  // for a program that is still loading

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spate
