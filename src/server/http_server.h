// HttpServer: HTTP/1.1 over TCP, and nothing about models. Boost is behind this header.
//
// A connection serves one request after the other (keep-alive, pipelined ones in order). For each the handler is called
// on an I/O thread with the whole request and a responder; it must return soon. It answers at once or later, from any
// thread. What is wrong with the HTTP itself (too large, too slow, malformed) is answered here, in the error envelope.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/api_error.h"

namespace spate {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // percent-decoded, without the query
  std::string query;    // as sent
  HttpHeaders headers;  // names in lower case, in the order sent
  std::string body;
  std::string request_id;  // X-Request-Id as sent, else 32 hexadecimal digits
  bool has_client_request_id = false;
  std::string peer;                      // "127.0.0.1:51234"
  bool is_on_reserve = false;            // the connection is beyond max_connections
  size_t max_body_bytes = 0;             // HttpOptions' bound; on_head may lower it
  std::shared_ptr<void> body_allowance;  // held until the body has been used: counts in max_total_large_body_bytes
  std::string_view header(std::string_view lower_case_name) const;  // empty when absent
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
  bool close = false;  // close the connection after this response
};
HttpResponse http_response_of(const ApiError& error);

// The answer to one request. Thread-safe; calls after the end or after the client has gone do nothing.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;
  virtual void respond(HttpResponse response) = 0;

  // Or a stream of server-sent events: the head, then bytes as they come, then the end. Comment lines keep it alive
  // while it is silent. write() never blocks: when the client reads slower than the stream grows, HttpOptions says when
  // it is cut.
  virtual void begin_stream(HttpHeaders headers) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;

  // Called once, from an I/O thread, when the client goes away (or is cut off) before the end of the answer; at once
  // when it has gone already.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  virtual bool is_gone() const = 0;
};

struct HttpSummary {  // one answered (or failed) request, for the access log and the counters
  std::string method, path, peer, request_id;
  int status = 0;  // 499: the client went away first
  double seconds = 0;
};

struct HttpOptions {
  int num_io_threads = 1;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_total_body_bytes = size_t{1} << 30;  // of all requests being received
  // Bodies above large_body_bytes count here from their head (or, chunked, as they grow) until the request they belong
  // to is destroyed. Beyond, they are refused with 429.
  size_t large_body_bytes = 64 << 10;
  size_t max_total_large_body_bytes = size_t{256} << 20;
  size_t max_stream_buffer_bytes = 1 << 20;  // a stream's unsent bytes; who leaves more is cut off at the next write
  // When all are taken, the one that has waited longest for a request's head is closed for the next. When none waits,
  // num_reserve_connections more are taken; each serves one request without a body, which on_head may refuse.
  int max_connections = 4096;
  int num_reserve_connections = 0;
  std::chrono::milliseconds keep_alive_timeout{75'000};  // idle between requests; above the 60 s of common proxies
  std::chrono::milliseconds header_timeout{15'000};      // from a request's first byte to the end of its header
  std::chrono::milliseconds body_timeout{30'000};        // without progress; every 100 kB are a second of it
  std::chrono::milliseconds write_timeout{30'000};       // the client takes nothing for so long
  std::chrono::milliseconds sse_ping_interval{15'000};   // 0 = never
  std::vector<std::string> allowed_origins;              // CORS; "*" = all; empty = no CORS headers
  // Called on an I/O thread with a request's head, before its body is read and before "100 Continue". An answer is sent
  // instead of calling the handler; the connection then closes if there is a body.
  std::function<std::optional<HttpResponse>(HttpRequest& head)> on_head;
  std::function<void(const HttpSummary&)> on_done;  // called on an I/O thread
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;
  HttpServer(HttpOptions options, Handler handler);
  ~HttpServer();  // stop()

  // Binds and listens; connections wait in the kernel until start(). Port 0 takes a free one. An address in use names
  // the process that has it, when the system tells.
  Status listen(const std::string& host, int port);
  // Instead of a port: a Unix domain socket. A file that a dead server left is replaced; the file goes with the server.
  Status listen_unix(const std::string& path);
  // Before listen(): connections over TCP speak TLS 1.2 or 1.3, with the certificate chain and the key of PEM files.
  // unavailable where this program is built without TLS.
  Status use_tls(const std::string& certfile, const std::string& keyfile);
  int port() const;
  void start();
  // From now on answers carry "Connection: close"; idle connections are closed. New ones are still taken, so that their
  // clients hear why they get nothing.
  void begin_drain();
  // Cuts every connection and joins the threads.
  void stop();
  int num_connections() const;
  bool is_loopback() const;  // reached from this machine only; after listen()

  // Calls `callback` on an I/O thread for each of the signals, instead of their default action. Before start().
  void on_signals(std::initializer_list<int> signals, std::function<void(int)> callback);
  // Serves a connected stream socket (takes the descriptor): for tests and fuzzing.
  void adopt(int fd);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "%2F" to "/"; nothing when a sequence is malformed. Exposed for its test.
Result<std::string> percent_decode(std::string_view text);

}  // namespace spate
