// A responder that passes everything on; others add to one of its steps.
#pragma once

#include <memory>
#include <utility>

#include "server/http_server.h"

namespace spate {

class PassingResponder : public HttpResponder {
 public:
  explicit PassingResponder(std::shared_ptr<HttpResponder> inner) : inner_(std::move(inner)) {}
  void respond(HttpResponse response) override { inner_->respond(std::move(response)); }
  void begin_stream(HttpHeaders headers) override { inner_->begin_stream(std::move(headers)); }
  void write(std::string_view bytes) override { inner_->write(bytes); }
  void end_stream() override { inner_->end_stream(); }
  void on_disconnect(std::function<void()> callback) override { inner_->on_disconnect(std::move(callback)); }
  bool is_gone() const override { return inner_->is_gone(); }

 private:
  const std::shared_ptr<HttpResponder> inner_;
};

}  // namespace spate
