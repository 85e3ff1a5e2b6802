#include "server/http_connection.h"

#include <poll.h>
#include <strings.h>
#include <sys/socket.h>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>

#include "base/log.h"
#include "server/http_framing.h"
#include "server/http_message.h"
#include "server/random_hex.h"

namespace spate {

namespace http = boost::beast::http;
using asio::awaitable;

namespace {

constexpr size_t kReadBytes = 16 << 10;                   // a read's size while a request is being answered
constexpr size_t kMaxKeptBytes = 4 << 10;                 // of a stream's buffer, from one event to the next
constexpr size_t kMaxPipelinedBytes = 64 << 10;           // beyond, the client waits for its answers
constexpr auto kLingerTimeout = std::chrono::seconds(5);  // for a client to take an error before the reset
constexpr auto kProbeInterval = std::chrono::seconds(5);
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// The share of a large body in HttpShared::large_body_bytes.
struct BodyAllowance {
  explicit BodyAllowance(std::shared_ptr<std::atomic<size_t>> counter) : total_bytes(std::move(counter)) {}
  ~BodyAllowance() { *total_bytes -= num_bytes; }
  BodyAllowance(const BodyAllowance&) = delete;
  BodyAllowance& operator=(const BodyAllowance&) = delete;

  const std::shared_ptr<std::atomic<size_t>> total_bytes;
  size_t num_bytes = 0;
};

// The connection is closed in both directions, or broken.
bool has_ended(Socket& socket) {
  pollfd state{.fd = socket.native_handle(), .events = 0, .revents = 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, Socket socket, std::string peer, bool is_on_reserve)
    : shared_(shared),
      strand_(asio::make_strand(socket.get_executor())),
      socket_(std::move(socket)),
      deadline_(strand_.get_inner_executor()),
      wake_(strand_.get_inner_executor()),
      peer_(std::move(peer)),
      buffer_(shared.options.max_header_bytes + kReadBytes),
      is_on_reserve_(is_on_reserve) {}

HttpConnection::~HttpConnection() {
  const std::lock_guard lock(shared_.mutex);
  shared_.connections.erase(this);
  if (wait_number_) shared_.waiting.erase(*wait_number_);
  if (is_evicted_) --shared_.num_evicted;
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

void HttpConnection::evict_soon() {
  shared_.waiting.erase(*wait_number_);
  wait_number_.reset();
  std::shared_ptr<HttpConnection> self = weak_from_this().lock();
  if (!self) return;  // it is ending already
  is_evicted_ = true;
  ++shared_.num_evicted;
  asio::post(strand_, [self = std::move(self)] {
    if (self->is_waiting_) return self->close();
    const std::lock_guard lock(self->shared_.mutex);
    self->is_evicted_ = false;
    --self->shared_.num_evicted;
  });
}

void HttpConnection::begin_wait() {
  is_waiting_ = true;
  const std::lock_guard lock(shared_.mutex);
  wait_number_ = shared_.num_waits++;
  shared_.waiting.emplace(*wait_number_, this);
}

void HttpConnection::end_wait() {
  is_waiting_ = false;
  const std::lock_guard lock(shared_.mutex);
  if (wait_number_) shared_.waiting.erase(*wait_number_);
  wait_number_.reset();
}

// Completion tokens: the error goes to ec_, the coroutine continues on the strand.
auto HttpConnection::token() { return asio::redirect_error(asio::use_awaitable, ec_); }

void HttpConnection::close() {
  error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
  wake_.cancel();
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
  begin_wait();
  if (!co_await wait_for_bytes()) co_return false;
  const auto start = Clock::now();
  RequestParser parser;
  parser.header_limit(static_cast<std::uint32_t>(shared_.options.max_header_bytes));
  parser.body_limit(shared_.options.max_body_bytes);
  auto exchange =
      std::make_shared<HttpExchange>(shared_.news, weak_from_this(), shared_.options.max_stream_buffer_bytes);

  HttpSummary summary{.peer = peer_};
  HttpRequest request;
  std::optional<ApiError> error = co_await read_header(parser);
  end_wait();
  if (!error) error = take_header(parser, *exchange, request);
  summary.method = std::string(parser.get().method_string());
  summary.path = request.path.empty() ? std::string(parser.get().target()) : request.path;
  summary.request_id = request.request_id;
  std::optional<HttpResponse> answer;  // instead of the handler's
  if (!error && shared_.options.on_head) answer = shared_.options.on_head(request);
  if (!error && !answer) {
    error = co_await read_body(parser, request);
    if (!error && ec_) co_return false;  // gone in the middle of its own request
  }
  if (error && error->http_status == 0) co_return false;
  if (error) answer = http_response_of(*error);
  // Then the end of the request is unknown or has not come, and nothing after it can be read.
  const bool must_close = error || (answer && !parser.is_done());
  if (answer) {
    request.body_allowance.reset();
    answer->close |= must_close;
    exchange->respond(std::move(*answer));
  } else {
    call_handler(std::move(request), exchange);
  }
  parser.get().body() = {};
  const bool was_sent = co_await send(exchange);
  summary.status = was_sent ? exchange->status() : 499;
  summary.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (shared_.options.on_done) shared_.options.on_done(summary);
  const bool goes_on = was_sent && !must_close && exchange->keep_alive();
  if (was_sent && !goes_on && (must_close || has_unread())) {
    begin_wait();  // may be closed to make room
    co_await linger();
  }
  co_return goes_on;
}

// Idle until the first byte of a request is in the buffer.
awaitable<bool> HttpConnection::wait_for_bytes() {
  if (begins_request()) co_return true;
  if (shared_.is_draining && num_served_ > 0) co_return false;
  is_idle_ = true;
  ec_ = {};
  set_deadline(shared_.options.keep_alive_timeout);
  while (!ec_ && !begins_request()) {
    buffer_.commit(co_await socket_.async_read_some(buffer_.prepare(kReadBytes), token()));
  }
  clear_deadline();
  is_idle_ = false;
  co_return !ec_;
}

// Empty lines in front of a request are taken out: some clients send one after a body (RFC 9112, 2.2).
bool HttpConnection::begins_request() {
  const auto view = [this] {
    return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  };
  while (view().starts_with("\r\n")) buffer_.consume(2);
  return buffer_.size() > 0 && view() != "\r";
}

// The whole head is looked at before it is parsed: the parser forgives what HttpHeadScanner does not. http_status 0:
// close without an answer.
awaitable<std::optional<ApiError>> HttpConnection::read_header(RequestParser& parser) {
  const HttpOptions& options = shared_.options;
  HttpHeadScanner scanner;
  HttpHeadScanner::State state;
  ec_ = {};
  set_deadline(options.header_timeout);
  while (true) {
    state = scanner.scan({static_cast<const char*>(buffer_.data().data()), buffer_.size()});
    if (state != HttpHeadScanner::State::kIncomplete || buffer_.size() >= options.max_header_bytes) break;
    const size_t num_bytes = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), token());
    if (ec_) break;
    buffer_.commit(num_bytes);
  }
  clear_deadline();
  if (ec_ && timed_out_) {
    co_return http_error(
        408, fmt::format("The request's header did not arrive within {} s.", options.header_timeout.count() / 1000));
  }
  if (ec_) co_return ApiError{.http_status = 0};
  if (state == HttpHeadScanner::State::kMalformed) {
    co_return http_error(400, fmt::format("The request is not valid HTTP/1.1: its head has {}.", scanner.problem()));
  }
  if (state == HttpHeadScanner::State::kIncomplete || scanner.num_head_bytes() > options.max_header_bytes) {
    ec_ = http::error::header_limit;
  } else {
    buffer_.consume(parser.put(buffer_.data(), ec_));
  }
  if (ec_) co_return error_of_parser();
  co_return std::nullopt;
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
  request.is_on_reserve = is_on_reserve_;
  request.max_body_bytes = shared_.options.max_body_bytes;
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
  exchange.set_request(request.method == "HEAD", header.version() < 11,
                       header.keep_alive() && !shared_.is_draining && !is_on_reserve_, std::move(headers));
  if (header.version() != 10 && header.version() != 11) {
    return http_error(
        400, fmt::format("HTTP/{}.{} is not spoken here, HTTP/1.1 is.", header.version() / 10, header.version() % 10));
  }
  if (auto error = check_http_framing(request.headers, static_cast<int>(header.version()))) return error;
  return take_target(std::string_view(header.target().data(), header.target().size()), request);
}

awaitable<std::optional<ApiError>> HttpConnection::answer_expect(const HttpRequest& request, bool is_http_1_0) {
  const std::string_view expect = request.header("expect");
  if (expect.empty() || is_http_1_0) co_return std::nullopt;
  if (expect.size() != 12 || ::strncasecmp(expect.data(), "100-continue", 12) != 0) {
    co_return http_error(417, "Of Expect, only 100-continue is known.");
  }
  set_deadline(shared_.options.write_timeout);
  co_await asio::async_write(socket_, asio::buffer(kContinue), token());
  clear_deadline();
  if (ec_) co_return ApiError{.http_status = 0};
  co_return std::nullopt;
}

// A body of so many bytes: may it be read, and counted among the large ones?
std::optional<ApiError> HttpConnection::allow_body(size_t num_bytes, HttpRequest& request) {
  const HttpOptions& options = shared_.options;
  if (num_bytes > request.max_body_bytes) {
    return http_error(413, fmt::format("The request's body is larger than {} bytes.", request.max_body_bytes));
  }
  if (num_bytes <= options.large_body_bytes) return std::nullopt;
  if (!request.body_allowance) request.body_allowance = std::make_shared<BodyAllowance>(shared_.large_body_bytes);
  auto& allowance = *std::static_pointer_cast<BodyAllowance>(request.body_allowance);
  if (num_bytes <= allowance.num_bytes) return std::nullopt;
  const size_t more = num_bytes - allowance.num_bytes;
  allowance.num_bytes = num_bytes;
  if ((*allowance.total_bytes += more) <= options.max_total_large_body_bytes) return std::nullopt;
  return http_error(429, fmt::format("The large requests that are received and prepared now have more than {} bytes "
                                     "together: try again later.",
                                     options.max_total_large_body_bytes));
}

awaitable<std::optional<ApiError>> HttpConnection::read_body(RequestParser& parser, HttpRequest& request) {
  ec_ = {};
  if (parser.is_done()) co_return std::nullopt;
  if (is_on_reserve_) co_return http_error(503, "All connections are taken; one beyond them takes no body.");
  // The whole of it at once where the length is told: better refused now than after half of it.
  if (auto error = allow_body(parser.content_length().value_or(0), request)) co_return error;
  if (auto error = co_await answer_expect(request, parser.get().version() < 11)) co_return error;
  auto deadline = Clock::now() + shared_.options.body_timeout;
  size_t reserved_bytes = 0;
  std::optional<ApiError> error;
  while (!parser.is_done()) {
    const size_t received_bytes = parser.get().body().size();
    if (received_bytes > reserved_bytes) {
      shared_.total_body_bytes += received_bytes - reserved_bytes;
      reserved_bytes = received_bytes;
    }
    error = allow_body(received_bytes, request);
    if (error) break;
    if (shared_.total_body_bytes > shared_.options.max_total_body_bytes) {
      error = http_error(503, fmt::format("The requests being received together exceed {} bytes.",
                                          shared_.options.max_total_body_bytes));
      break;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    set_deadline(std::max(left, std::chrono::milliseconds(1)));
    co_await http::async_read_some(socket_, buffer_, parser, token());
    clear_deadline();
    if (!ec_) {
      // Every 100 kB give a second, and no second is saved up: a client that stops, or sends a byte now and then, is
      // cut off after body_timeout, however much it has sent before.
      const size_t num_bytes = parser.get().body().size() - received_bytes;
      deadline =
          std::min(deadline + std::chrono::milliseconds(num_bytes / 100), Clock::now() + shared_.options.body_timeout);
      continue;
    }
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
  last_sent_ = Clock::now();
  bool is_ok = true;
  while (is_ok) {
    const bool is_ended = exchange->is_ended();  // before taking: what ended it is in unsent_
    if (unsent_.empty()) unsent_ = exchange->take_pending();
    if (!unsent_.empty()) {
      set_deadline(shared_.options.write_timeout);
      co_await asio::async_write(socket_, asio::buffer(unsent_), token());
      clear_deadline();
      note_sent();
      is_ok = !ec_;
      continue;
    }
    if (is_ended) break;
    if (is_client_gone_ || exchange->is_too_slow() || !socket_.is_open()) {
      is_ok = false;
      break;
    }
    if (must_probe(*exchange)) {
      co_await probe();
      is_ok = !ec_;
    } else {
      co_await sleep_until_news(*exchange);
    }
  }
  if (exchange->is_too_slow()) log_warning("http", "{} reads its stream too slowly and is cut off", peer_);
  exchange->abandon();
  unsent_ = {};
  if (!is_ok) close();
  co_await stop_watching();
  co_return is_ok;
}

// What a stream says meanwhile goes out without an end of the sleep, where the socket takes it: it is nearly all that a
// loaded server does.
awaitable<void> HttpConnection::sleep_until_news(HttpExchange& exchange) {
  const auto ping_interval = shared_.options.sse_ping_interval;
  const bool is_streaming = exchange.is_streaming();
  const bool must_ping = is_streaming && ping_interval.count() > 0;
  if (must_ping) {
    wake_.expires_at(last_sent_ + ping_interval);
  } else if (is_half_closed_ && exchange.takes_interim()) {
    wake_.expires_at(next_probe_);
  } else {
    wake_.expires_at(Clock::time_point::max());
  }
  sends_at_once_ = is_streaming;
  co_await wake_.async_wait(token());
  sends_at_once_ = false;
  if (!ec_ && must_ping && Clock::now() >= last_sent_ + ping_interval) exchange.add_ping();
  ec_ = {};
}

// At once where nothing else runs on the strand: never between a look at the exchange and the sleep that follows.
void HttpConnection::post_news(std::shared_ptr<HttpExchange> exchange) {
  asio::dispatch(strand_, [self = shared_from_this(), exchange = std::move(exchange)] { self->on_news(*exchange); });
}

void HttpConnection::on_news(HttpExchange& exchange) {
  if (!sends_at_once_ || !send_at_once(exchange)) wake_.cancel();
}

// False: the coroutine has to look, at an answer's end or a socket that takes no more now. What it has not taken is in
// unsent_.
bool HttpConnection::send_at_once(HttpExchange& exchange) {
  if (!unsent_.empty() || !exchange.take_stream_bytes(unsent_)) return false;
  if (unsent_.empty()) return true;
  const ssize_t num_bytes =
      ::send(socket_.native_handle(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (num_bytes == static_cast<ssize_t>(unsent_.size())) {
    note_sent();
    return true;
  }
  if (num_bytes > 0) unsent_.erase(0, static_cast<size_t>(num_bytes));
  return false;
}

void HttpConnection::note_sent() {
  unsent_.clear();
  if (unsent_.capacity() > kMaxKeptBytes) unsent_.shrink_to_fit();
  last_sent_ = Clock::now();
}

bool HttpConnection::must_probe(const HttpExchange& exchange) const {
  return is_half_closed_ && exchange.takes_interim() && Clock::now() >= next_probe_;
}

// A client that sends no more either waits for its answer or has gone. The two look alike until it is sent something;
// then the host of one that has gone resets the connection. An interim answer means nothing to one that waits.
awaitable<void> HttpConnection::probe() {
  next_probe_ = Clock::now() + kProbeInterval;
  set_deadline(shared_.options.write_timeout);
  co_await asio::async_write(socket_, asio::buffer(kContinue), token());
  clear_deadline();
}

// While an answer is being made, reading tells whether the client is still there. What it sends ahead is kept.
void HttpConnection::watch(const std::shared_ptr<HttpExchange>& exchange) {
  if (exchange->is_ended()) return;
  const size_t max_bytes = std::min(kMaxPipelinedBytes, buffer_.max_size());
  if (buffer_.size() >= max_bytes) return watch_for_reset(exchange);
  is_watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(std::min(kReadBytes, max_bytes - buffer_.size())),
      asio::bind_executor(strand_, [self = shared_from_this(), exchange](error_code ec, size_t num_bytes) {
        self->is_watching_ = false;
        self->buffer_.commit(num_bytes);
        if (!self->is_watch_ending_ && !self->timed_out_) {
          if (!ec) return self->watch(exchange);
          if (ec == asio::error::eof) {
            self->is_half_closed_ = true;
            self->next_probe_ = Clock::now();
            self->watch_for_reset(exchange);
          } else {
            self->note_gone(*exchange);
          }
        }
        self->wake_.cancel();
      }));
}

// Nothing more is read: waits for the connection to break.
void HttpConnection::watch_for_reset(const std::shared_ptr<HttpExchange>& exchange) {
  is_watching_ = true;
  socket_.async_wait(Socket::wait_error,
                     asio::bind_executor(strand_, [self = shared_from_this(), exchange](error_code ec) {
                       self->is_watching_ = false;
                       if (!ec && !self->is_watch_ending_ && !self->is_client_gone_) {
                         return self->watch_for_reset(exchange);
                       }
                       self->wake_.cancel();
                     }));
  // The wait is for a change; what has broken before it began does not end it.
  if (has_ended(socket_)) note_gone(*exchange);
}

void HttpConnection::note_gone(HttpExchange& exchange) {
  is_client_gone_ = true;
  exchange.abandon();
  wake_.cancel();
}

awaitable<void> HttpConnection::stop_watching() {
  is_watch_ending_ = true;
  if (is_watching_) {
    error_code ignored;
    socket_.cancel(ignored);
  }
  while (is_watching_) {
    wake_.expires_at(Clock::time_point::max());
    co_await wake_.async_wait(token());
  }
  is_watch_ending_ = false;
  ec_ = {};
}

// The client has sent more than its requests.
bool HttpConnection::has_unread() {
  error_code ec;
  return buffer_.size() > 0 || socket_.available(ec) > 0;
}

// The client may still be sending; a close now would reset the connection and lose the answer.
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
