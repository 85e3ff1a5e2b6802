// LocalApi: the handlers of the server, called inside the process, without a socket. The C interface and the terminal use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/frontend.h"
#include "server/local_responder.h"
#include "server/response_store.h"

namespace spate {

class LocalApi {
 public:
  explicit LocalApi(std::shared_ptr<Frontend> frontend) : frontend_(std::move(frontend)) {}

  // Starts what POST (GET where that is the route's method) of `path` does. Errors arrive as a piece, too. Any thread.
  std::shared_ptr<LocalResponder> start(std::string_view path, std::string body);
  const Frontend& frontend() const { return *frontend_; }

 private:
  void run(std::string_view path, std::string body, const std::shared_ptr<LocalResponder>& responder);

  const std::shared_ptr<Frontend> frontend_;
  const std::shared_ptr<ResponseStore> responses_ = std::make_shared<ResponseStore>();
  std::atomic<uint64_t> num_requests_ = 0;
};

}  // namespace spate
