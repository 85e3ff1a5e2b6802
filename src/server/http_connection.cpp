#include "server/http_connection.h"

#include <strings.h>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>

#include "base/log.h"
#include "server/http_message.h"

namespace spate {

namespace http = boost::beast::http;
using asio::awaitable;

namespace {

constexpr size_t kReadBytes = 16 << 10;                   // a read's size while a request is being answered
constexpr size_t kMaxPipelinedBytes = 64 << 10;           // beyond, the client waits for its answers
constexpr auto kLingerTimeout = std::chrono::seconds(5);  // for a client to take an error before the reset

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, Socket socket, std::string peer)
    : shared_(shared),
      strand_(asio::make_strand(socket.get_executor())),
      socket_(std::move(socket)),
      deadline_(strand_.get_inner_executor()),
      wake_(std::make_shared<Timer>(strand_.get_inner_executor())),
      peer_(std::move(peer)),
      buffer_(shared.options.max_header_bytes + kReadBytes) {}

HttpConnection::~HttpConnection() {
  const std::lock_guard lock(shared_.mutex);
  shared_.connections.erase(this);
}

void HttpConnection::start() {
  {
    const std::lock_guard lock(shared_.mutex);
    shared_.connections.insert(this);
  }
  if (shared_.is_stopping) return;
  asio::co_spawn(
      strand_, [self = shared_from_this()]() -> awaitable<void> { co_await self->run(); }, asio::detached);
}

void HttpConnection::close_soon(bool only_if_idle) {
  asio::post(strand_, [self = shared_from_this(), only_if_idle] {
    if (!only_if_idle || self->is_idle_) self->close();
  });
}

// Completion tokens: the error goes to ec_, the coroutine continues on the strand.
auto HttpConnection::token() { return asio::redirect_error(asio::use_awaitable, ec_); }

void HttpConnection::close() {
  error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
  wake_->cancel();
}

// After `timeout` the socket's operations are aborted and timed_out_ is set; the next call replaces it.
void HttpConnection::set_deadline(std::chrono::milliseconds timeout) {
  timed_out_ = false;
  deadline_.expires_after(timeout);
  deadline_.async_wait(asio::bind_executor(strand_, [self = weak_from_this()](error_code ec) {
    const auto connection = self.lock();
    if (ec || !connection || connection->deadline_.expiry() > Clock::now()) return;
    connection->timed_out_ = true;
    error_code ignored;
    connection->socket_.cancel(ignored);
  }));
}

void HttpConnection::clear_deadline() {
  deadline_.expires_at(Clock::time_point::max());
  deadline_.cancel();
}

awaitable<void> HttpConnection::run() {
  try {
    while (socket_.is_open() && co_await serve_one()) {
    }
  } catch (const std::exception& e) {
    log_error("http", "connection {}: {}", peer_, e.what());
  }
  close();
}

// One request and its answer. False when the connection must end.
awaitable<bool> HttpConnection::serve_one() {
  if (!co_await wait_for_request()) co_return false;
  const auto start = Clock::now();
  RequestParser parser;
  parser.header_limit(static_cast<std::uint32_t>(shared_.options.max_header_bytes));
  parser.body_limit(shared_.options.max_body_bytes);
  auto exchange = std::make_shared<HttpExchange>(strand_, wake_, shared_.options.max_stream_buffer_bytes);

  HttpSummary summary{.peer = peer_};
  HttpRequest request;
  std::optional<ApiError> error = co_await read_header(parser);
  if (!error) error = take_header(parser, *exchange, request);
  summary.method = std::string(parser.get().method_string());
  summary.path = request.path.empty() ? std::string(parser.get().target()) : request.path;
  summary.request_id = request.request_id;
  if (!error) error = co_await read_body(parser, request);
  if (!error && ec_) co_return false;  // gone in the middle of its own request
  if (error && error->http_status == 0) co_return false;
  if (error) {
    HttpResponse response = http_response_of(*error);
    response.close = true;
    exchange->respond(std::move(response));
  } else {
    call_handler(std::move(request), exchange);
  }
  parser.get().body() = {};
  const bool was_sent = co_await send(exchange);
  summary.status = was_sent ? exchange->status() : 499;
  summary.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (shared_.options.on_done) shared_.options.on_done(summary);
  if (was_sent && error) co_await linger();
  co_return was_sent && !error && exchange->keep_alive();
}

// Idle until the first byte of a request is in the buffer.
awaitable<bool> HttpConnection::wait_for_request() {
  if (buffer_.size() > 0) co_return true;
  if (shared_.is_draining && num_served_ > 0) co_return false;
  is_idle_ = true;
  set_deadline(shared_.options.keep_alive_timeout);
  const size_t num_bytes = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), token());
  clear_deadline();
  is_idle_ = false;
  if (ec_) co_return false;
  buffer_.commit(num_bytes);
  co_return true;
}

// http_status 0: close without an answer.
awaitable<std::optional<ApiError>> HttpConnection::read_header(RequestParser& parser) {
  set_deadline(shared_.options.header_timeout);
  co_await http::async_read_header(socket_, buffer_, parser, token());
  clear_deadline();
  if (!ec_) co_return std::nullopt;
  if (timed_out_) {
    co_return http_error(408, fmt::format("The request's header did not arrive within {} s.",
                                          shared_.options.header_timeout.count() / 1000));
  }
  co_return error_of_parser();
}

std::optional<ApiError> HttpConnection::error_of_parser() const {
  const HttpOptions& options = shared_.options;
  if (ec_ == http::error::header_limit || ec_ == http::error::buffer_overflow) {
    return http_error(431, fmt::format("The request's header is larger than {} bytes.", options.max_header_bytes));
  }
  if (ec_ == http::error::body_limit) {
    return http_error(413, fmt::format("The request's body is larger than {} bytes.", options.max_body_bytes));
  }
  if (ec_ == http::error::end_of_stream || ec_ == http::error::partial_message) return ApiError{.http_status = 0};
  if (ec_.category() == make_error_code(http::error::bad_method).category()) {
    return http_error(400, fmt::format("The request is not valid HTTP/1.1: {}.", ec_.message()));
  }
  return ApiError{.http_status = 0};  // the transport failed
}

std::optional<ApiError> HttpConnection::take_header(RequestParser& parser, HttpExchange& exchange,
                                                    HttpRequest& request) {
  const auto& header = parser.get();
  request.peer = peer_;
  request.method = std::string(header.method_string());
  for (const auto& field : header) {
    std::string name(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  const std::string_view id = request.header("x-request-id");
  request.has_client_request_id = is_valid_request_id(id);
  request.request_id = request.has_client_request_id ? std::string(id) : random_hex(32);

  HttpHeaders headers{{"X-Request-Id", request.request_id}};
  add_cors_headers(request, shared_.options.allowed_origins, headers);
  exchange.set_request(request.method == "HEAD", header.version() < 11, header.keep_alive() && !shared_.is_draining,
                       std::move(headers));
  if (header.version() != 10 && header.version() != 11) {
    return http_error(
        400, fmt::format("HTTP/{}.{} is not spoken here, HTTP/1.1 is.", header.version() / 10, header.version() % 10));
  }
  return take_target(std::string_view(header.target().data(), header.target().size()), request);
}

awaitable<std::optional<ApiError>> HttpConnection::read_body(RequestParser& parser, HttpRequest& request) {
  ec_ = {};
  if (parser.is_done()) co_return std::nullopt;
  const std::string_view expect = request.header("expect");
  if (!expect.empty()) {
    if (expect.size() != 12 || ::strncasecmp(expect.data(), "100-continue", 12) != 0) {
      co_return http_error(417, "Of Expect, only 100-continue is known.");
    }
    co_await asio::async_write(socket_, asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")), token());
    if (ec_) co_return ApiError{.http_status = 0};
  }
  const auto start = Clock::now();
  size_t reserved_bytes = 0;
  std::optional<ApiError> error;
  while (!parser.is_done()) {
    const size_t received_bytes = parser.get().body().size();
    if (received_bytes > reserved_bytes) {
      shared_.total_body_bytes += received_bytes - reserved_bytes;
      reserved_bytes = received_bytes;
    }
    if (shared_.total_body_bytes > shared_.options.max_total_body_bytes) {
      error = http_error(503, fmt::format("The requests being received together exceed {} bytes.",
                                          shared_.options.max_total_body_bytes));
      break;
    }
    // A second for every 100 kB received: a client that sends a byte now and then is cut off.
    const auto allowed = shared_.options.body_timeout + std::chrono::milliseconds(received_bytes / 100);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(start + allowed - Clock::now());
    set_deadline(std::max(left, std::chrono::milliseconds(1)));
    co_await http::async_read_some(socket_, buffer_, parser, token());
    clear_deadline();
    if (!ec_) continue;
    error = timed_out_ ? http_error(408, "The request's body arrives too slowly.") : error_of_parser();
    break;
  }
  shared_.total_body_bytes -= reserved_bytes;
  if (!error) request.body = std::move(parser.get().body());
  co_return error;
}

void HttpConnection::call_handler(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange) {
  ++num_served_;
  try {
    shared_.handler(std::move(request), exchange);
  } catch (const std::exception& e) {
    log_error("http", "handler: {}", e.what());
    exchange->respond(http_response_of(http_error(500, "Internal error.")));
  }
}

// Sends the answer as it comes. False when the client is gone or was cut off.
awaitable<bool> HttpConnection::send(std::shared_ptr<HttpExchange> exchange) {
  watch(exchange);
  bool is_ok = true;
  while (is_ok) {
    const bool is_ended = exchange->is_ended();  // before taking: what ended it is in `pending`
    const std::string pending = exchange->take_pending();
    if (!pending.empty()) {
      set_deadline(shared_.options.write_timeout);
      co_await asio::async_write(socket_, asio::buffer(pending), token());
      clear_deadline();
      is_ok = !ec_;
      continue;
    }
    if (is_ended) break;
    if (is_client_gone_ || exchange->is_too_slow() || !socket_.is_open()) {
      is_ok = false;
      break;
    }
    co_await sleep_until_news(*exchange);
  }
  if (exchange->is_too_slow()) log_warning("http", "{} reads its stream too slowly and is cut off", peer_);
  exchange->abandon();
  if (!is_ok) close();
  co_await stop_watching();
  co_return is_ok;
}

awaitable<void> HttpConnection::sleep_until_news(HttpExchange& exchange) {
  const auto ping_interval = shared_.options.sse_ping_interval;
  if (exchange.is_streaming() && ping_interval.count() > 0) {
    wake_->expires_after(ping_interval);
  } else {
    wake_->expires_at(Clock::time_point::max());
  }
  co_await wake_->async_wait(token());
  if (!ec_) exchange.add_ping();
  ec_ = {};
}

// While an answer is being made, reading tells whether the client is still there. What it sends ahead is kept.
void HttpConnection::watch(const std::shared_ptr<HttpExchange>& exchange) {
  if (exchange->is_ended() || buffer_.size() >= kMaxPipelinedBytes) return;
  is_watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(std::min(kReadBytes, buffer_.max_size() - buffer_.size())),
      asio::bind_executor(strand_, [self = shared_from_this(), exchange](error_code ec, size_t num_bytes) {
        self->is_watching_ = false;
        if (!ec) {
          self->buffer_.commit(num_bytes);
          if (!self->is_watch_ending_) return self->watch(exchange);
        } else if (!self->is_watch_ending_ && !self->timed_out_) {
          self->is_client_gone_ = true;
          exchange->abandon();
        }
        self->wake_->cancel();
      }));
}

awaitable<void> HttpConnection::stop_watching() {
  is_watch_ending_ = true;
  if (is_watching_) {
    error_code ignored;
    socket_.cancel(ignored);
  }
  while (is_watching_) {
    wake_->expires_at(Clock::time_point::max());
    co_await wake_->async_wait(token());
  }
  is_watch_ending_ = false;
  ec_ = {};
}

// After an error the client may still be sending; a close now would reset the connection and lose the answer.
awaitable<void> HttpConnection::linger() {
  error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  set_deadline(kLingerTimeout);
  std::string scratch(64 << 10, '\0');
  do {
    co_await socket_.async_read_some(asio::buffer(scratch), token());
  } while (!ec_);
  clear_deadline();
}

}  // namespace spate
