// A responder for clients of Anthropic's API, who read the request's id under a name of its own.
#pragma once

#include <string>
#include <utility>

#include "server/passing_responder.h"

namespace spate {

constexpr const char* kMessagesIdHeader = "request-id";

class MessagesResponder final : public PassingResponder {
 public:
  MessagesResponder(std::shared_ptr<HttpResponder> inner, std::string request_id)
      : PassingResponder(std::move(inner)), request_id_(std::move(request_id)) {}
  void respond(HttpResponse response) override {
    response.headers.emplace_back(kMessagesIdHeader, request_id_);
    PassingResponder::respond(std::move(response));
  }
  void begin_stream(HttpHeaders headers) override {
    headers.emplace_back(kMessagesIdHeader, request_id_);
    PassingResponder::begin_stream(std::move(headers));
  }

 private:
  const std::string request_id_;
};

}  // namespace spate
