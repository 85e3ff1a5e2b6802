// HttpConnection: one socket and the requests that come over it, one after the other. Private to the HTTP server.
#pragma once

#include <atomic>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <map>
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
  explicit HttpShared(asio::io_context::executor_type executor) : news(executor) {}

  HttpOptions options;
  HttpServer::Handler handler;
  std::atomic<bool> is_draining{false};
  std::atomic<bool> is_stopping{false};
  HttpNews news;
  std::atomic<size_t> total_body_bytes{0};
  // Shared with the requests, which may live longer.
  std::shared_ptr<std::atomic<size_t>> large_body_bytes = std::make_shared<std::atomic<size_t>>(0);
  mutable std::mutex mutex;  // guards what follows
  std::set<HttpConnection*> connections;
  std::map<uint64_t, HttpConnection*> waiting;  // those without a whole request's head, the longest wait first
  uint64_t num_waits = 0;
  int num_evicted = 0;  // of `connections`: being closed to make room
};

// Everything runs on its strand; run() is its life. Kept alive by its own operations.
class HttpConnection final : public HttpSender, public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpShared& shared, Socket socket, std::string peer, bool is_on_reserve);
  ~HttpConnection() override;

  void start();
  // From any thread, while the caller knows the connection to live.
  void close_soon(bool only_if_idle);
  // To make room: closes the connection unless a request's head has come meanwhile. The caller holds shared.mutex.
  void evict_soon();
  void post_news(std::shared_ptr<HttpExchange> exchange) override;

 private:
  using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  auto token();
  void close();
  void set_deadline(std::chrono::milliseconds timeout);
  void clear_deadline();
  void begin_wait();
  void end_wait();

  asio::awaitable<void> run();
  asio::awaitable<bool> serve_one();
  asio::awaitable<bool> wait_for_bytes();
  bool begins_request();
  asio::awaitable<std::optional<ApiError>> read_header(RequestParser& parser);
  std::optional<ApiError> error_of_parser() const;
  std::optional<ApiError> take_header(RequestParser& parser, HttpExchange& exchange, HttpRequest& request);
  asio::awaitable<std::optional<ApiError>> answer_expect(const HttpRequest& request, bool is_http_1_0);
  asio::awaitable<std::optional<ApiError>> read_body(RequestParser& parser, HttpRequest& request);
  std::optional<ApiError> allow_body(size_t num_bytes, HttpRequest& request);
  void call_handler(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange);
  asio::awaitable<bool> send(std::shared_ptr<HttpExchange> exchange);
  asio::awaitable<void> sleep_until_news(HttpExchange& exchange);
  void on_news(HttpExchange& exchange);
  bool send_at_once(HttpExchange& exchange);
  void note_sent();
  bool must_probe(const HttpExchange& exchange) const;
  asio::awaitable<void> probe();
  void watch(const std::shared_ptr<HttpExchange>& exchange);
  void watch_for_reset(const std::shared_ptr<HttpExchange>& exchange);
  void note_gone(HttpExchange& exchange);
  asio::awaitable<void> stop_watching();
  bool has_unread();
  asio::awaitable<void> linger();

  HttpShared& shared_;
  Strand strand_;
  Socket socket_;
  Timer deadline_;
  Timer wake_;
  std::string peer_;
  boost::beast::flat_buffer buffer_;
  error_code ec_;
  std::string unsent_;             // taken from the exchange; room for the next event once it is sent
  Clock::time_point last_sent_;    // of a stream's bytes
  int num_served_ = 0;
  bool timed_out_ = false;
  const bool is_on_reserve_;
  bool is_idle_ = false;
  bool is_waiting_ = false;
  std::optional<uint64_t> wait_number_;  // in shared_.waiting; guarded by shared_.mutex
  bool is_evicted_ = false;              // guarded by shared_.mutex
  bool sends_at_once_ = false;  // asleep while its stream runs
  bool is_watching_ = false;
  bool is_watch_ending_ = false;
  bool is_client_gone_ = false;
  bool is_half_closed_ = false;  // the client sends no more; it may still read
  Clock::time_point next_probe_;
};

}  // namespace spate
