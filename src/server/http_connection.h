// HttpConnection: one socket and the requests that come over it, one after the other. Private to the HTTP server.
#pragma once

#include <atomic>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "server/http_exchange.h"

namespace spate {

class HttpConnection;

// What the connections share. Lives in HttpServer::Impl, which outlives them.
struct HttpShared {
  HttpOptions options;
  HttpServer::Handler handler;
  std::atomic<bool> is_draining{false};
  std::atomic<bool> is_stopping{false};
  std::atomic<size_t> total_body_bytes{0};
  mutable std::mutex mutex;  // guards connections
  std::set<HttpConnection*> connections;
};

// Everything runs on its strand; run() is its life. Kept alive by its own operations.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpShared& shared, Socket socket, std::string peer);
  ~HttpConnection();

  void start();
  // From any thread, while the caller knows the connection to live.
  void close_soon(bool only_if_idle);

 private:
  using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  auto token();
  void close();
  void set_deadline(std::chrono::milliseconds timeout);
  void clear_deadline();

  asio::awaitable<void> run();
  asio::awaitable<bool> serve_one();
  asio::awaitable<bool> wait_for_request();
  asio::awaitable<std::optional<ApiError>> read_header(RequestParser& parser);
  std::optional<ApiError> error_of_parser() const;
  std::optional<ApiError> take_header(RequestParser& parser, HttpExchange& exchange, HttpRequest& request);
  asio::awaitable<std::optional<ApiError>> read_body(RequestParser& parser, HttpRequest& request);
  void call_handler(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange);
  asio::awaitable<bool> send(std::shared_ptr<HttpExchange> exchange);
  asio::awaitable<void> sleep_until_news(HttpExchange& exchange);
  void watch(const std::shared_ptr<HttpExchange>& exchange);
  asio::awaitable<void> stop_watching();
  asio::awaitable<void> linger();

  HttpShared& shared_;
  Strand strand_;
  Socket socket_;
  Timer deadline_;
  std::shared_ptr<Timer> wake_;
  std::string peer_;
  boost::beast::flat_buffer buffer_;
  error_code ec_;
  int num_served_ = 0;
  bool timed_out_ = false;
  bool is_idle_ = false;
  bool is_watching_ = false;
  bool is_watch_ending_ = false;
  bool is_client_gone_ = false;
};

}  // namespace spate
