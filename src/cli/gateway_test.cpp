// Goal    What an engine answers goes through the gateway with its status and its content type; an error of the gateway
// itself is
//         JSON.
//         Engines that answer nonsense, break off or never end harm nobody but their own request.
// Method  An HTTP server of the test, or a socket that sends any bytes, stands where the engine listens; the engine's
// own process ends
//         at once, or sleeps.
#include "cli/gateway.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/test.h"
#include "base/test_support.h"
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

using SteadyClock = std::chrono::steady_clock;

// A listener that sends `head` to whoever connects and has asked, then `flood` again and again until the other side
// leaves.
class RawServer {
 public:
  explicit RawServer(std::string head, std::string flood = "", bool reads = true)
      : head_(std::move(head)),
        flood_(std::move(flood)),
        reads_(reads),
        fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(fd_, any, size) == 0);
    REQUIRE(::listen(fd_, 16) == 0);
    ::getsockname(fd_, any, &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~RawServer() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  int port() const { return port_; }

 private:
  void run() {
    for (int fd; (fd = ::accept(fd_, nullptr, nullptr)) >= 0; ::close(fd)) {
      char bytes[65536];
      if (reads_) (void)!::recv(fd, bytes, sizeof bytes, 0);
      const auto send = [fd](const std::string& text) {
        return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) > 0;
      };
      bool is_there = !head_.empty() && send(head_);
      while (is_there && !flood_.empty()) is_there = send(flood_);
      if (!reads_) std::this_thread::sleep_for(std::chrono::seconds(3));
    }
  }
  const std::string head_, flood_;
  const bool reads_;
  const int fd_;
  int port_ = 0;
  std::thread thread_;
};

// An engine at `port`, ready as soon as it answers, whose process does nothing; a gateway with the graph "g" of two
// steps over it.
struct Deployed {
  explicit Deployed(int port) : spec{.serve_id = "e", .port = port} {
    const std::string program = (dir.path() / "engine").string();
    std::ofstream(program) << "#!/bin/sh\nexec sleep 60\n";
    ::chmod(program.c_str(), 0700);
    engine = std::make_unique<EngineProcess>(spec, RestartPolicy{.health_interval = 0.05}, 1, program);
    deployment.engines = {spec};
    deployment.gateway_port = 0;
    deployment.graphs = {{.name = "g",
                          .timeout = 5,
                          .steps = {{.id = "s", .engine = "e", .map = "[1, 2]", .prompt = "x"},
                                    {.id = "t", .engine = "e", .after = {"s"}, .prompt = "{{ input }}"}}}};
    gateway = std::make_unique<Gateway>(deployment, std::vector<const EngineProcess*>{engine.get()});
    REQUIRE(gateway->listen().ok());
    gateway->start();
    target.port = gateway->port();
  }
  Result<HttpReply> ask_graph(bool is_streamed) {
    return http_call(
        target, "/v1/chat/completions",
        fmt::format(R"({{"model":"g","stream":{},"messages":[{{"role":"user","content":"hi"}}]}})", is_streamed));
  }
  bool is_ready() {
    for (int i = 0; i < 200 && engine->state() != EngineState::kReady; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return engine->state() == EngineState::kReady;
  }
  TempDir dir;
  EngineSpec spec;
  std::unique_ptr<EngineProcess> engine;
  Deployment deployment;
  std::unique_ptr<Gateway> gateway;
  HttpTarget target;
};

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

TEST_CASE("gateway: events of every kind are passed on byte for byte, with the engine's own content type") {
  const std::string events = "event: message_start\ndata: {\"a\":1}\n\n: ping\n\nid: 7\r\ndata: x\ndata: y\n\n";
  const RawServer stub("HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=x\r\n\r\n" + events);
  Deployed deployed(stub.port());
  std::string type, seen;
  const Result<HttpReply> reply = http_pass(
      deployed.target, "/v1/messages", R"({"model": "e", "stream": true})",
      [&](const HttpReply& head) {
        type = head.content_type;
        return true;
      },
      [&](std::string_view piece) {
        seen += piece;
        return true;
      },
      {});
  REQUIRE(reply.ok());
  CHECK(type == "Text/Event-Stream; charset=x");
  CHECK(seen == events);
}

TEST_CASE("http client: events as servers may write them") {
  const RawServer stub(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
      "10\r\ndata: a\r\n\r\ndata:\r\n"
      "2f\r\n b\r\n\r\n: ping\r\n\r\nevent: x\nid: 7\ndata: c\ndata:d\n\n\r\n"
      "13\r\ndata: [DONE]\n\ncut: \r\n0\r\n\r\n");
  std::vector<std::string> events;
  const Result<HttpReply> reply = http_call({.port = stub.port()}, "/x", "{}", [&](std::string_view event) {
    events.emplace_back(event);
    return true;
  });
  INFO(reply.status().message());
  CHECK(reply.ok());
  CHECK(events == std::vector<std::string>{"a", "b", "c\nd", "[DONE]"});
}

TEST_CASE("gateway: an engine that answers nonsense fails its request and nothing else") {
  const auto events = [](const std::string& text) {
    return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text;
  };
  const std::vector<std::string> replies = {
      "",
      "SSH-2.0-x\r\n\r\n",
      "HTTP/1.1 99999 x\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Type: a\x01b\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
      "HTTP/1.1 500 x\r\n\r\n{\"error\":{\"message\":null}}",
      "HTTP/1.1 400 x\r\n\r\n{\"error\":5}",
      "HTTP/1.1 200 OK\r\n\r\n[]",
      events("data: \xff\n\n"),
      events("data: 5\n\n"),
      events("data: {\"error\":\"text\"}\n\n"),
      events("data: {\"error\":null}\n\n"),
      events("data: {\"choices\":5}\n\n"),
      events("data: {\"choices\":[5,null,\"x\",[]]}\n\n"),
      events("data: {\"choices\":[{\"delta\":5,\"finish_reason\":[]}]}\n\n"),
      events("data: {\"usage\":{\"prompt_tokens\":\"many\",\"completion_tokens\":-1e300}}\n\n"),
      events("data: {\"choices\":[{\"delta\":{\"content\":\"cut"),
      events("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")};
  for (const std::string& bytes : replies) {
    INFO(bytes);
    const RawServer stub(bytes);
    Deployed deployed(stub.port());
    deployed.engine->stop();  // its state does not matter to what is passed on
    for (const bool is_streamed : {false, true}) {
      const Result<HttpReply> graph = deployed.ask_graph(is_streamed);
      REQUIRE(graph.ok());
      CHECK(graph->status == 503);  // the engine is stopped
    }
    const Result<HttpReply> passed = http_call(deployed.target, "/v1/x", R"({"model": "e"})");
    CHECK((!passed.ok() || passed->status >= 200));
    CHECK(http_call(deployed.target, "/engines", "")->status == 200);
  }
}

TEST_CASE("gateway: chunks of any type end a graph with an error that names the step") {
  for (const char* chunk :
       {"5", "{\"error\":\"text\"}", "{\"error\":{\"message\":5}}", "{\"choices\":5}", "{\"choices\":[5]}",
        "{\"choices\":[{\"delta\":5}]}", "{\"usage\":{\"prompt_tokens\":\"x\"}}", "\xff"}) {
    INFO(chunk);
    // To a GET, the health, it is a reply of 200 too.
    const RawServer stub(std::string("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ") + chunk +
                         "\n\n");
    Deployed deployed(stub.port());
    REQUIRE(deployed.is_ready());
    for (const bool is_streamed : {false, true}) {
      const Result<HttpReply> reply = deployed.ask_graph(is_streamed);
      REQUIRE(reply.ok());
      CHECK(reply->status >= 500);
      CHECK(reply->body.find("graph g, step s") != std::string::npos);
    }
  }
}

TEST_CASE("gateway: a stream that breaks off ends with an error behind what had come") {
  const RawServer stub(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nb\r\ndata: one\n\n\r\n");
  Deployed deployed(stub.port());
  std::vector<std::string> events;
  const Result<HttpReply> reply = http_call(deployed.target, "/v1/x", R"({"model": "e"})", [&](std::string_view event) {
    events.emplace_back(event);
    return true;
  });
  REQUIRE(reply.ok());
  REQUIRE(events.size() == 2);
  CHECK(events[0] == "one");
  CHECK(events[1].find("the connection ended inside a chunk") != std::string::npos);
}

// As collectors and proxies write them: fields in any case, with any space, beside others that look alike; a reply
// without a body, over a connection that stays.
TEST_CASE("http client: the head of a reply") {
  struct Case {
    std::string head, body;
  };
  for (const Case& each :
       {Case{"HTTP/1.1 200 OK\r\nX-Content-Length: 1\r\nCONTENT-LENGTH:5\r\n\r\nwhole", "whole"},
        Case{"HTTP/1.1 200 OK\r\nContent-Length: \t5 \r\n\r\nwhole of it", "whole"},
        Case{"HTTP/1.1 200 OK\r\ntransfer-encoding:\tgzip, Chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n", "whole"},
        Case{"HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n", ""},
        Case{"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", ""}}) {
    INFO(each.head);
    const RawServer server(each.head, "", false);  // keeps the connection for 3 s
    const auto start = SteadyClock::now();
    const Result<HttpReply> reply = http_call({.port = server.port()}, "/", "{}");
    REQUIRE(reply.ok());
    CHECK(reply->body == each.body);
    CHECK(SteadyClock::now() - start < std::chrono::seconds(2));
  }
  for (const char* length : {"-5", "5x", "99999999999999999999", "5, 5"}) {
    const RawServer server(std::string("HTTP/1.1 200 OK\r\nContent-Length: ") + length + "\r\n\r\nwhole");
    CHECK_FALSE(http_call({.port = server.port()}, "/", "{}").ok());
  }
}

TEST_CASE("http client: a peer that never pauses, never takes or never ends holds nobody up") {
  const std::string many(1 << 16, 'x');
  struct Case {
    const char* what;
    std::string head, flood;
    bool reads = true;
  };
  for (const Case& each :
       {Case{"a head without end", "HTTP/1.1 200 OK\r\n", many},
        Case{"a body without end", "HTTP/1.1 200 OK\r\n\r\n", many},
        Case{"a chunk's size without end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", many},
        Case{"comments without end", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", ": ping\n\n"},
        Case{"one event without end", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ", many},
        Case{"who takes nothing", "", "", false}}) {
    INFO(each.what);
    const RawServer server(each.head, each.flood, each.reads);
    const auto start = SteadyClock::now();
    const auto should_stop = [&] { return SteadyClock::now() - start > std::chrono::milliseconds(500); };
    const std::string body(each.reads ? 10 : 64 << 20, 'y');
    const Result<HttpReply> reply = http_call(
        {.port = server.port()}, "/", body, [](std::string_view) { return true; }, should_stop);
    CHECK_FALSE(reply.ok());
    CHECK(SteadyClock::now() - start < std::chrono::seconds(2));
  }
}

}  // namespace spate
