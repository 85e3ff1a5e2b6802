// Goal    What an engine answers goes through the gateway with its status and its content type; an error of the gateway itself is
//         JSON.
// Method  An HTTP server of the test stands where the engine listens; the engine's own process ends at once.
#include "cli/gateway.h"

#include "base/test.h"
#include "cli/engine_process.h"

namespace spate {
namespace {

void answer_as_engine(const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
  if (request.path == "/v1/text") {
    return responder->respond({.status = 202, .content_type = "text/plain; charset=UTF-8", .body = "so it is"});
  }
  if (request.path == "/v1/stream") {
    responder->begin_stream({});
    responder->write("data: one\n\n");
    return responder->end_stream();
  }
  responder->respond({.status = 400, .body = R"({"error":{}})"});
}

}  // namespace

TEST_CASE("gateway: a reply keeps its status and its content type") {
  HttpServer stub({}, [](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
    answer_as_engine(request, responder);
  });
  REQUIRE(stub.listen("127.0.0.1", 0).ok());
  stub.start();
  EngineSpec spec{.serve_id = "e", .port = stub.port()};
  EngineProcess engine(spec, {.first_delay = 60, .max_delay = 60}, 1, "/bin/false");
  Deployment deployment;
  deployment.engines = {spec};
  deployment.gateway_port = 0;
  Gateway gateway(deployment, {&engine});
  REQUIRE(gateway.listen().ok());
  gateway.start();
  const HttpTarget target{.port = gateway.port()};
  const std::string body = R"({"model": "e"})";

  const Result<HttpReply> text = http_call(target, "/v1/text", body);
  REQUIRE(text.ok());
  CHECK(text->status == 202);
  CHECK(text->content_type == "text/plain; charset=UTF-8");
  CHECK(text->body == "so it is");

  const Result<HttpReply> refused = http_call(target, "/v1/other", body);
  REQUIRE(refused.ok());
  CHECK(refused->status == 400);
  CHECK(refused->content_type == "application/json");
  CHECK(refused->body == R"({"error":{}})");

  std::string events;
  const Result<HttpReply> stream = http_call(target, "/v1/stream", body, [&](std::string_view event) {
    events += event;
    return true;
  });
  REQUIRE(stream.ok());
  CHECK(stream->content_type.starts_with("text/event-stream"));
  CHECK(events == "one");

  const Result<HttpReply> unknown = http_call(target, "/v1/text", R"({"model": "nobody"})");
  REQUIRE(unknown.ok());
  CHECK(unknown->status == 404);
  CHECK(unknown->content_type == "application/json");
  gateway.stop(0);
  stub.stop();
}

}  // namespace spate
