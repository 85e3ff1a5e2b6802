// Goal    HTTP as clients, proxies and attackers speak it: the right answer, in the error envelope, or a closed
//         connection; never a hang, never a leaked connection.
// Method  A server with a handler that echoes, short timeouts, and raw sockets.
#include "server/http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/rng.h"
#include "base/test_support.h"
#include "server/http_message.h"
#include "server/test_client.h"

#include "base/test.h"

namespace spate {
namespace {

using std::chrono::milliseconds;

// Echoes method, path and body; /stream streams `body` times 1000 events; /slow never answers by itself.
constexpr int kNumPieces = 1000;
std::string stream_piece(int i) { return std::to_string(i) + std::string(static_cast<size_t>(i % 7) * 2000, 'x') + "\n"; }

struct EchoServer {
  explicit EchoServer(HttpOptions options = default_options())
      : server(std::move(options), [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          handle(std::move(request), std::move(responder));
        }) {
    const Status status = server.listen("127.0.0.1", 0);
    REQUIRE(status.ok());
    server.start();
  }
  static HttpOptions default_options() {
    return {.max_header_bytes = 8 << 10,
            .max_body_bytes = 1 << 20,
            .max_stream_buffer_bytes = 64 << 10,
            .header_timeout = milliseconds(300),
            .body_timeout = milliseconds(300),
            .write_timeout = milliseconds(300),
            .sse_ping_interval = milliseconds(50)};
  }
  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    if (request.path == "/smuggled") ++num_smuggled;
    if (request.path == "/keep") {
      kept.push_back(std::move(request));
      responder->respond({.body = "kept"});
      return;
    }
    if (request.path == "/throw") throw std::runtime_error("secret detail");
    if (request.path == "/slow") {
      responder->on_disconnect([this] { ++num_gone; });
      waiting = std::move(responder);
      ++num_slow;
      return;
    }
    if (request.path == "/ping") {
      responder->begin_stream({});
      waiting = std::move(responder);
      return;
    }
    if (request.path == "/pieces") {
      responder->begin_stream({});
      writer = std::jthread([responder] {
        for (int i = 0; i < kNumPieces; ++i) {
          responder->write(stream_piece(i));
          if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(5));  // the connection sleeps again
        }
        responder->end_stream();
      });
      return;
    }
    if (request.path == "/large") {  // one write beyond what a client may leave unsent
      responder->begin_stream({});
      responder->write("data: " + std::string(1'000'000, 'x') + "\n\n");
      responder->end_stream();
      return;
    }
    if (request.path == "/stream" || request.path == "/flood") {
      responder->on_disconnect([this] { ++num_gone; });
      responder->begin_stream({});
      const int count = request.path == "/flood" ? 100'000 : 3;
      for (int i = 0; i < count && !responder->is_gone(); ++i) {
        responder->write("data: " + std::string(request.path == "/flood" ? 1000 : 1, 'x') + "\n\n");
      }
      responder->end_stream();
      return;
    }
    responder->respond(
        {.content_type = "text/plain", .body = request.method + " " + request.path + " " + request.body});
  }
  // Until the server has no connection left, at most two seconds.
  bool all_closed() {
    for (int i = 0; i < 400 && server.num_connections() > 0; ++i) std::this_thread::sleep_for(milliseconds(5));
    return server.num_connections() == 0;
  }
  // Until `count` clients were noticed to be gone, at most ten seconds.
  bool has_noticed(int count) {
    for (int i = 0; i < 2000 && num_gone < count; ++i) std::this_thread::sleep_for(milliseconds(5));
    return num_gone == count;
  }
  std::atomic<int> num_gone{0};
  // Until `count` requests for /slow have come, at most ten seconds.
  bool has_slow(int count) {
    for (int i = 0; i < 2000 && num_slow < count; ++i) std::this_thread::sleep_for(milliseconds(5));
    return num_slow == count;
  }
  std::atomic<int> num_slow{0};  // `waiting` is set
  std::atomic<int> num_smuggled{0};
  std::shared_ptr<HttpResponder> waiting;
  std::vector<HttpRequest> kept;
  std::jthread writer;
  HttpServer server;
};

std::string error_code(const TestResponse& response) {
  const size_t pos = response.body.find("\"code\":\"");
  return pos == std::string::npos ? response.body
                                  : response.body.substr(pos + 8, response.body.find('"', pos + 8) - pos - 8);
}

}  // namespace

TEST_CASE("http: keep-alive, then pipelined requests answered in order") {
  EchoServer echo;
  TestClient client(echo.server.port());
  CHECK(client.get("/a").body == "GET /a ");
  CHECK(client.post("/b", "hello").body == "POST /b hello");
  client.send(
      "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\nPOST /3 HTTP/1.1\r\nHost: x\r\n"
      "Content-Length: 2\r\n\r\nok");
  CHECK(client.receive().body == "GET /1 ");
  CHECK(client.receive().body == "GET /2 ");
  CHECK(client.receive().body == "POST /3 ok");
}

TEST_CASE("http: a chunked body, Expect: 100-continue, HEAD, HTTP/1.0, Connection: close, percent-encoding") {
  EchoServer echo;
  TestClient client(echo.server.port());
  client.send("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  CHECK(client.receive().body == "POST /c abcde");
  client.send("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  CHECK(client.receive().status == 100);
  client.send("xyz");
  CHECK(client.receive().body == "POST /e xyz");
  client.send("HEAD /h HTTP/1.1\r\nHost: x\r\n\r\n");
  const TestResponse head = client.receive(true);
  CHECK(head.header("content-length") == "8");
  CHECK(client.get("/after%2Fhead?q=1").body == "GET /after/head ");
  client.send("GET /old HTTP/1.0\r\n\r\n");
  CHECK(client.receive().header("connection") == "close");
  CHECK(client.is_closed_by_peer());
  TestClient closing(echo.server.port());
  CHECK(closing.get("/x", "Connection: close\r\n").header("connection") == "close");
  CHECK(closing.is_closed_by_peer());
}

TEST_CASE("http: what a client sends after its last request does not cost it the answer") {
  EchoServer echo;
  for (int i = 0; i < 20; ++i) {
    TestClient client(echo.server.port());
    client.send("POST /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok" +
                std::string(200'000, '\n'));
    std::this_thread::sleep_for(milliseconds(5));  // a reset would drop what was not received
    CHECK(client.receive().body == "POST /last ok");
  }
  TestClient old(echo.server.port());  // HTTP/1.0 knows no interim answer
  old.send("POST /old HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok");
  CHECK(old.receive().body == "POST /old ok");
}

TEST_CASE("http: request ids are echoed or made, 32 hexadecimal digits; a hostile one is replaced") {
  EchoServer echo;
  TestClient client(echo.server.port());
  CHECK(client.get("/", "X-Request-Id: abc-1\r\n").header("x-request-id") == "abc-1");
  const std::string id = client.get("/").header("x-request-id");
  CHECK(id.size() == 32);
  CHECK(id.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(client.get("/", "X-Request-Id: " + std::string(500, 'a') + "\r\n").header("x-request-id").size() == 32);
}

TEST_CASE("http: too large, too slow and malformed requests get the envelope, then the connection closes") {
  EchoServer echo;
  {
    TestClient client(echo.server.port());
    const TestResponse response = client.get("/", "X: " + std::string(20'000, 'a') + "\r\n");
    CHECK(response.status == 431);
    CHECK(error_code(response) == "request_header_too_large");
  }
  {
    TestClient client(echo.server.port());  // ten thousand small headers
    std::string flood;
    for (int i = 0; i < 10'000; ++i) flood += "h" + std::to_string(i) + ": v\r\n";
    CHECK(client.get("/", flood).status == 431);
  }
  {
    TestClient client(echo.server.port());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n");
    const TestResponse response = client.receive();
    CHECK(response.status == 413);
    CHECK(response.body.find("1048576 bytes") != std::string::npos);
  }
  {
    TestClient client(echo.server.port());  // the size comes out only while it is being sent
    client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "10000\r\n" + std::string(0x10000, 'a') + "\r\n";
    for (int i = 0; i < 40 && client.send(chunk); ++i) {
    }
    CHECK(client.receive().status == 413);
  }
  for (const char* bad : {"NONSENSE\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
                          "GET / HTTP/1.1\r\nbad header\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                          "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    TestClient client(echo.server.port());
    client.send(bad);
    INFO(bad);
    CHECK(client.receive().status == 400);
    CHECK(client.is_closed_by_peer());
  }
  {
    TestClient client(echo.server.port());  // slow loris
    client.send("GET / HTTP/1.1\r\nHost:");
    const TestResponse response = client.receive();
    CHECK(response.status == 408);
    CHECK(client.is_closed_by_peer());
  }
  {
    TestClient client(echo.server.port());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nonly this");
    CHECK(client.receive().status == 408);
  }
  {
    TestClient client(echo.server.port());  // much at once saves up no time to stop in
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + std::string(900'000, 'a'));
    const auto start = std::chrono::steady_clock::now();
    CHECK(client.receive().status == 408);
    CHECK(std::chrono::steady_clock::now() - start < milliseconds(5000));  // 900 kB are worth nine seconds
  }
  CHECK(echo.all_closed());
}

// Goal    No byte of a request's body runs as a request, whatever a proxy in front makes of the head.
// Method  Each head is followed by what would be an empty chunked body and by a request for /smuggled; the answer must
// be
//         one 400, then the end.
TEST_CASE("http: whoever frames a body in an unusual way gets 400, and nothing after it runs") {
  EchoServer echo;
  using namespace std::string_view_literals;
  const std::string_view heads[] = {
      "Transfer-Encoding: xchunked\r\n",
      "Transfer-Encoding: gzip\r\n",
      "Transfer-Encoding: identity\r\n",
      "Transfer-Encoding: chunked, identity\r\n",
      "Transfer-Encoding: gzip, chunked\r\n",
      "Transfer-Encoding: chunked, chunked\r\n",
      "Transfer-Encoding: ,chunked\r\n",
      "Transfer-Encoding: \"chunked\"\r\n",
      "Transfer-Encoding: chunked;q=1\r\n",
      "Transfer-Encoding: chunk\r\n",
      "Transfer-Encoding:\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
      "Transfer-Encoding : chunked\r\n",
      "Transfer-Encoding: \vchunked\r\n",
      "Transfer-Encoding:\r\n chunked\r\n",
      "X: y\r\n Transfer-Encoding: chunked\r\n",
      "X: y\r\n\tTransfer-Encoding: chunked\r\n",
      "X: y\nTransfer-Encoding: chunked\r\n",
      "X: y\rTransfer-Encoding: chunked\r\n",
      "X: y\0z\r\nTransfer-Encoding: chunked\r\n"sv,
      "X: \x7f\r\nTransfer-Encoding: chunked\r\n",
      "X\0: y\r\nTransfer-Encoding: chunked\r\n"sv,
      ": y\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
      "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
      "Content-Length: 0\r\nTransfer-Encoding: identity\r\n",
      "Content-Length: 5\r\nContent-Length: 5\r\n",
      "Content-Length: 0\r\nContent-Length: 5\r\n",
      "Content-Length: 5, 5\r\n",
      "Content-Length: 0, 5\r\n",
      "Content-Length: +5\r\n",
      "Content-Length: -5\r\n",
      "Content-Length: 0x5\r\n",
      "Content-Length: 5 5\r\n",
      "Content-Length: 5.0\r\n",
      "Content-Length: \"5\"\r\n",
      "Content-Length:\r\n",
      "Content-Length: 18446744073709551621\r\n",
      "Host: y\r\n",
  };
  for (const std::string_view head : heads) {
    INFO(std::string(head));
    TestClient client(echo.server.port());
    client.send("POST /a HTTP/1.1\r\nHost: x\r\n" + std::string(head) +
                "\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    const TestResponse response = client.receive();
    CHECK(response.status == 400);
    CHECK(response.header("connection") == "close");
    CHECK(client.receive().status == 0);
    CHECK(client.is_closed_by_peer());
  }
  for (const std::string_view whole :
       {"GET / HTTP/1.1\r\n\r\n"sv, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"sv, "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"sv,
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"sv, "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"sv,
        "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"sv, "GET / HTTP/1.1\r\n Host: x\r\n\r\n"sv,
        "GET / HTTP/1.1\nHost: x\n\n"sv, "GET / HTTP/1.1\r\nHost: x\n\r\n"sv, "GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n"sv,
        "GET  / HTTP/1.1\r\nHost: x\r\n\r\n"sv, "GET / HTTP/1.1 \r\nHost: x\r\n\r\n"sv, "GET /\r\n\r\n"sv,
        "GET / HTTP/1.2\r\nHost: x\r\n\r\n"sv, "GET / http/1.1\r\nHost: x\r\n\r\n"sv,
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"sv, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"sv}) {
    INFO(std::string(whole));
    TestClient client(echo.server.port());
    client.send(std::string(whole) + "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(client.receive().status == 400);
    CHECK(client.receive().status == 0);
    CHECK(client.is_closed_by_peer());
  }
  CHECK(echo.num_smuggled == 0);
}

TEST_CASE("http: chunks: extensions and trailers are read over; what is no chunk ends the connection") {
  EchoServer echo;
  const std::string head = "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: CHUNKED \r\n\r\n";
  const std::string next = "GET /next HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const char* body : {"3\r\nabc\r\n0\r\n\r\n", "3;a=b;c=\"d\"\r\nabc\r\n0;e\r\n\r\n", "003\r\nabc\r\n000\r\n\r\n",
                           "1\r\na\r\n2\r\nbc\r\n0\r\nX-Trailer: y\r\nHost: z\r\n\r\n"}) {
    INFO(body);
    TestClient client(echo.server.port());
    client.send(head + body + next);
    CHECK(client.receive().body == "POST /c abc");
    CHECK(client.receive().body == "GET /next ");
  }
  for (const char* body :
       {"g\r\n", "-1\r\n", "0x3\r\nabc\r\n", "\r\n", ";a\r\n", "3\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n", "3\r\nabc\n0\r\n\r\n", "10000000000000003\r\nabc\r\n0\r\n\r\n", "3;\r\nabc\r\n0\r\n\r\n",
        "3 3\r\nabc\r\n0\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nbad trailer\r\n\r\n"}) {
    INFO(body);
    TestClient client(echo.server.port());
    client.send(head + body + "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(client.receive().status == 400);
    CHECK(client.receive().status == 0);
    CHECK(client.is_closed_by_peer());
  }
  for (const char* size : {"7fffffffffffffff", "ffffffffffffffff", "100001"}) {
    TestClient client(echo.server.port());
    client.send(head + size + "\r\nabc");
    CHECK(client.receive().status == 413);
  }
  {
    TestClient client(echo.server.port());  // an extension without an end
    client.send(head + "3;" + std::string(100'000, 'a'));
    CHECK(client.receive().status >= 400);
    CHECK(client.is_closed_by_peer());
  }
  CHECK(echo.num_smuggled == 0);
}

TEST_CASE("http: the forms of a target") {
  EchoServer echo;
  TestClient client(echo.server.port());
  const auto path_of = [&](const std::string& target) {
    client.send("GET " + target + " HTTP/1.1\r\nHost: ignored\r\n\r\n");
    return client.receive().body;
  };
  CHECK(path_of("http://a.example/b%20c?d=e") == "GET /b c ");
  CHECK(path_of("HTTPS://a.example:8000/b") == "GET /b ");
  CHECK(path_of("http://[::1]:8000/") == "GET / ");
  CHECK(path_of("http://a.example") == "GET / ");
  CHECK(path_of("http://a.example?b/c") == "GET / ");
  CHECK(path_of("/http://a.example/b") == "GET /http://a.example/b ");
  for (const char* target : {"b", "ftp://a/b", "http:///b", "http://u@a/b", "a.example:80", "://a/b"}) {
    INFO(target);
    TestClient other(echo.server.port());
    other.send(std::string("GET ") + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(other.receive().status == 400);
  }
}

TEST_CASE("http: empty lines between requests are read over") {
  EchoServer echo;
  TestClient client(echo.server.port());
  client.send("\r\nPOST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1\r\n\r");
  CHECK(client.receive().body == "POST /a 1");
  client.send("\nPOST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n2\r\n");
  CHECK(client.receive().body == "POST /b 2");
  std::this_thread::sleep_for(milliseconds(400));  // idle, beyond the time that a header may take
  CHECK(client.get("/c").body == "GET /c ");
  client.send("\rGET /d HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.receive().status == 400);
}

TEST_CASE("http: a head in single bytes") {
  EchoServer echo;
  TestClient client(echo.server.port());
  for (const char c : std::string("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab")) client.send({&c, 1});
  CHECK(client.receive().body == "POST /p ab");
}

TEST_CASE("http: a client that closes its side gets its answers; one that has gone is noticed") {
  EchoServer echo;
  {
    TestClient client(echo.server.port());
    client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\nGET /second HTTP/1.1\r\nHost: x\r\n\r\n");
    client.shut_down_sending();
    CHECK(client.receive().status == 100);  // asks whether it is there
    CHECK(echo.num_gone == 0);
    echo.waiting->respond({.body = "late"});
    CHECK(client.receive().body == "late");
    TestResponse second = client.receive();
    if (second.status == 100) second = client.receive();
    CHECK(second.body == "GET /second ");
    CHECK(client.is_closed_by_peer());
  }
  {
    TestClient old(echo.server.port());  // HTTP/1.0 has no interim answers
    old.send("GET /slow HTTP/1.0\r\n\r\n");
    old.shut_down_sending();
    CHECK(echo.has_slow(2));
    std::this_thread::sleep_for(milliseconds(50));
    CHECK(echo.num_gone == 0);
    echo.waiting->respond({.body = "late"});
    CHECK(old.receive().body == "late");
  }
  {
    TestClient stream(echo.server.port());
    stream.send("GET /ping HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.shut_down_sending();
    CHECK(stream.receive_until(": ping\n\n").ends_with(": ping\n\n"));
    echo.waiting->write("data: end\n\n");
    echo.waiting->end_stream();
    CHECK(stream.receive_until("0\r\n\r\n").find("data: end") != std::string::npos);
  }
  {
    TestClient gone(echo.server.port());  // first half, then altogether
    gone.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    gone.shut_down_sending();
    CHECK(gone.receive_until("100 Continue").ends_with("100 Continue"));
  }
  CHECK(echo.has_noticed(1));
  CHECK(echo.all_closed());
}

TEST_CASE("http: a handler that throws is a 500 without its text") {
  EchoServer echo;
  TestClient client(echo.server.port());
  const TestResponse response = client.get("/throw");
  CHECK(response.status == 500);
  CHECK(response.body.find("secret") == std::string::npos);
  CHECK(client.get("/fine").status == 200);
}

TEST_CASE("http: streams: framing, then the next request on the same connection; HTTP/1.0 without chunks") {
  EchoServer echo;
  TestClient client(echo.server.port());
  const TestResponse stream = client.get("/stream");
  CHECK(stream.header("content-type") == "text/event-stream; charset=utf-8");
  CHECK(stream.header("cache-control") == "no-cache");
  CHECK(stream.header("x-accel-buffering") == "no");
  CHECK(stream.body == "data: x\n\ndata: x\n\ndata: x\n\n");
  CHECK(client.get("/next").body == "GET /next ");
  TestClient old(echo.server.port());
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  CHECK(old.receive().body == "data: x\n\ndata: x\n\ndata: x\n\n");
}

TEST_CASE("http: a silent stream is kept alive by comments") {
  EchoServer echo;
  TestClient client(echo.server.port());
  client.send("GET /ping HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.receive_until(": ping\n\n").ends_with(": ping\n\n"));
  CHECK(client.receive_until(": ping\n\n").ends_with(": ping\n\n"));
  echo.waiting->end_stream();
  CHECK(client.receive_until("0\r\n\r\n").ends_with("0\r\n\r\n"));
}

TEST_CASE("http: what a stream says comes whole and in order, however full the socket is") {
  HttpOptions options = EchoServer::default_options();
  options.max_stream_buffer_bytes = 16 << 20;
  options.write_timeout = milliseconds(5000);
  options.sse_ping_interval = milliseconds(0);
  EchoServer echo(options);
  TestClient client(echo.server.port());
  client.send("GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n");
  std::this_thread::sleep_for(milliseconds(400));  // the socket is full by now
  std::string all;
  for (int i = 0; i < kNumPieces; ++i) all += stream_piece(i);
  CHECK(client.receive().body == all);
}

TEST_CASE("http: a stream is pinged when it has been silent, not while it speaks") {
  HttpOptions options = EchoServer::default_options();
  options.sse_ping_interval = milliseconds(500);
  EchoServer echo(options);
  TestClient client(echo.server.port());
  client.send("GET /ping HTTP/1.1\r\nHost: x\r\n\r\n");
  client.receive_until(": ping\n\n");
  const auto start = std::chrono::steady_clock::now();
  auto spoken = start;
  std::chrono::steady_clock::duration longest{};
  for (int i = 0; i < 40; ++i) {
    echo.waiting->write("tick");
    longest = std::max(longest, std::chrono::steady_clock::now() - spoken);
    spoken = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(milliseconds(20));
  }
  echo.waiting->write("END");
  const std::string said = client.receive_until("END");
  // A machine that stops threads for an interval gives the stream its silence.
  if (longest < milliseconds(250)) CHECK(said.find("ping") == std::string::npos);
  CHECK(client.receive_until(": ping\n\n").ends_with(": ping\n\n"));
}

TEST_CASE("http: a client that goes away is noticed while its answer is made") {
  EchoServer echo;
  {
    TestClient client(echo.server.port());
    client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    for (int i = 0; i < 200 && echo.server.num_connections() == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
    std::this_thread::sleep_for(milliseconds(50));
  }
  CHECK(echo.all_closed());
  CHECK(echo.num_gone == 1);
  echo.waiting->respond({.body = "nobody hears this"});  // harmless
}

TEST_CASE("http: one write of a stream may be larger than its buffer") {
  EchoServer echo;
  TestClient client(echo.server.port());
  CHECK(client.get("/large").body.size() == 1'000'008);
}

TEST_CASE("http: a reader slower than its stream is cut off, the memory is bounded") {
  EchoServer echo;
  TestClient client(echo.server.port());
  client.send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  for (int i = 0; i < 400 && echo.num_gone == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  CHECK(echo.num_gone == 1);
  CHECK(echo.all_closed());
}

TEST_CASE("http: at the limit of connections the one that waits longest makes room; busy ones stay") {
  HttpOptions options = EchoServer::default_options();
  options.max_connections = 3;
  options.header_timeout = milliseconds(20'000);
  EchoServer echo(options);
  TestClient first(echo.server.port()), second(echo.server.port()), third(echo.server.port());
  CHECK(first.get("/").status == 200);
  CHECK(third.get("/").status == 200);
  CHECK(first.get("/").status == 200);
  second.send("GET / HTT");  // has waited longest: half a head is none
  CHECK(third.get("/").status == 200);
  TestClient fourth(echo.server.port());
  CHECK(fourth.get("/").status == 200);
  CHECK(second.is_closed_by_peer());
  CHECK(third.get("/").status == 200);  // now `first` is the oldest
  fourth.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(echo.has_slow(1));
  third.send("GET /ping HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(third.receive_until(": ping").ends_with(": ping"));
  TestClient fifth(echo.server.port());
  fifth.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(first.is_closed_by_peer());
  CHECK(echo.has_slow(2));
  TestClient sixth(echo.server.port());  // all three are busy
  CHECK(sixth.receive().status == 503);
  CHECK(third.receive_until(": ping").ends_with(": ping"));
}

TEST_CASE("http: thousands of idle connections keep nobody out") {
  HttpOptions options = EchoServer::default_options();
  options.max_connections = 100;
  options.keep_alive_timeout = milliseconds(60'000);
  EchoServer echo(options);
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(std::make_unique<TestClient>(echo.server.port()));
    if (i % 2 == 0) idle.back()->send("POST / HTTP/1.1\r\n");
    if (i % 20 == 0) CHECK(TestClient(echo.server.port()).get("/").status == 200);
  }
  CHECK(TestClient(echo.server.port()).get("/").status == 200);
  CHECK(echo.server.num_connections() <= 101);
}

TEST_CASE("http: on_head answers before the body and before 100 Continue; the reserve is told of") {
  HttpOptions options = EchoServer::default_options();
  options.max_connections = 1;
  options.num_reserve_connections = 2;
  options.on_head = [](HttpRequest& head) -> std::optional<HttpResponse> {
    if (head.path == "/small") head.max_body_bytes = 10;
    if (head.path == "/no") return http_response_of(http_error(401, "no"));
    if (head.is_on_reserve && head.path != "/health") return http_response_of(http_error(503, "full"));
    return std::nullopt;
  };
  EchoServer echo(options);
  {
    TestClient client(echo.server.port());
    client.send("POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n");
    const TestResponse response = client.receive();
    CHECK(response.status == 401);
    CHECK(response.header("connection") == "close");
    client.send(std::string(1000, 'a'));
    CHECK(client.receive().status == 0);
  }
  CHECK(echo.all_closed());
  {
    TestClient client(echo.server.port());
    CHECK(client.get("/no").status == 401);
    CHECK(client.get("/yes").status == 200);  // without a body the connection goes on
    client.send("POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n");
    CHECK(client.receive().status == 413);
  }
  CHECK(echo.all_closed());
  TestClient busy(echo.server.port());
  busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(echo.has_slow(1));
  TestClient other(echo.server.port());
  other.send("POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n");
  CHECK(other.receive().status == 503);
  for (const char* framing : {"Content-Length: 5", "Transfer-Encoding: chunked"}) {  // would hold the reserve
    TestClient slow(echo.server.port());
    slow.send(fmt::format("GET /health HTTP/1.1\r\nHost: x\r\n{}\r\n\r\n", framing));
    CHECK(slow.receive().status == 503);
  }
  TestClient monitor(echo.server.port());
  const TestResponse health = monitor.get("/health");
  CHECK(health.status == 200);
  CHECK(health.header("connection") == "close");
  CHECK(monitor.is_closed_by_peer());
}

TEST_CASE("http: large bodies have a bound together, from their heads until their requests are gone") {
  HttpOptions options = EchoServer::default_options();
  options.large_body_bytes = 1000;
  options.max_total_large_body_bytes = 1 << 20;
  options.body_timeout = milliseconds(20'000);
  EchoServer echo(options);
  const auto head = [](int size) {
    return fmt::format("POST /keep HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n", size);
  };
  {
    TestClient first(echo.server.port()), second(echo.server.port());
    first.send(head(700'000) + "Expect: 100-continue\r\n\r\n");
    CHECK(first.receive().status == 100);
    second.send(head(700'000) + "Expect: 100-continue\r\n\r\n");
    const TestResponse refused = second.receive();
    CHECK(refused.status == 429);
    CHECK(refused.header("retry-after") != "");
    CHECK(refused.header("connection") == "close");
    TestClient chunked(echo.server.port());  // grows into the bound
    chunked.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "10000\r\n" + std::string(0x10000, 'a') + "\r\n";
    for (int i = 0; i < 6; ++i) chunked.send(chunk);
    CHECK(chunked.receive().status == 429);
    TestClient small(echo.server.port());
    CHECK(small.post("/small", std::string(1000, 'a')).status == 200);
    first.send(std::string(700'000, 'a'));
    CHECK(first.receive().status == 200);
  }
  CHECK(echo.kept.size() == 1);
  TestClient again(echo.server.port());
  CHECK(again.post("/a", std::string(700'000, 'a')).status == 429);  // the first one is being prepared, as it were
  echo.kept.clear();
  TestClient free(echo.server.port());
  CHECK(free.post("/a", std::string(700'000, 'a')).status == 200);
}

TEST_CASE("http: CORS only for allowed origins") {
  HttpOptions options = EchoServer::default_options();
  options.allowed_origins = {"https://a.example"};
  EchoServer echo(options);
  TestClient client(echo.server.port());
  CHECK(client.get("/", "Origin: https://a.example\r\n").header("access-control-allow-origin") == "https://a.example");
  CHECK(client.get("/", "Origin: https://b.example\r\n").header("access-control-allow-origin").empty());
}

TEST_CASE("http: a port in use is said with the way out") {
  EchoServer echo;
  HttpServer second({}, [](HttpRequest, std::shared_ptr<HttpResponder>) {});
  const Status status = second.listen("127.0.0.1", echo.server.port());
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.message().find(fmt::format("port {} on 127.0.0.1 is in use", echo.server.port())) == 0);
  CHECK(status.message().find(fmt::format("by process {}", ::getpid())) != std::string::npos);
  CHECK(status.message().find(fmt::format("--port {}", echo.server.port() + 1)) != std::string::npos);
}

TEST_CASE("http: stop ends everything that is open") {
  auto echo = std::make_unique<EchoServer>();
  TestClient idle(echo->server.port()), waiting(echo->server.port());
  CHECK(idle.get("/").status == 200);
  waiting.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  std::this_thread::sleep_for(milliseconds(50));
  echo->server.stop();
  CHECK(idle.is_closed_by_peer());
  CHECK(waiting.is_closed_by_peer());
  CHECK(echo->num_gone == 1);
}

TEST_CASE("http: randomly damaged requests are answered or cut, and the server goes on") {
  EchoServer echo;
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  const std::string good =
      "POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello"
      "POST /s HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nGET / HTTP/1.0\r\n\r\n";
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (uint64_t i = 0; i < 1 + rng.below(6); ++i) {
      const size_t pos = rng.below(bytes.size());
      switch (rng.below(4)) {
        case 0:
          bytes[pos] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bytes.erase(pos, 1 + rng.below(8));
          break;
        case 2:
          bytes.insert(pos, bytes.substr(rng.below(bytes.size()), rng.below(20)));
          break;
        case 3:
          bytes.insert(pos, std::string(1, "\r\n :\0;,"[rng.below(8)]));
          break;
      }
      if (bytes.empty()) bytes = "\r\n";
    }
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    echo.server.adopt(fds[0]);
    // Peers may be reset while they still send; that is their end, not a failure.
    [[maybe_unused]] const auto sent = ::send(fds[1], bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(fds[1], SHUT_WR);
    std::string answer;
    char buffer[4096];
    for (ssize_t got; (got = ::recv(fds[1], buffer, sizeof buffer, 0)) > 0;)
      answer.append(buffer, static_cast<size_t>(got));
    ::close(fds[1]);
    INFO(round, " ", bytes);
    CHECK((answer.empty() || answer.starts_with("HTTP/1.1 ")));
  }
  CHECK(echo.all_closed());
  TestClient client(echo.server.port());
  CHECK(client.get("/fine").status == 200);
}

TEST_CASE("http message: values cannot start another header") {
  const std::string head = format_http_head({}, {{"X", "a\r\nSet-Cookie: b"}});
  CHECK(head.find("\r\nSet-Cookie") == std::string::npos);
}

}  // namespace spate
