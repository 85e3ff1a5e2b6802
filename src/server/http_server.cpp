#include "server/http_server.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "server/http_message.h"
#include "server/port_owner.h"

namespace spate {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, asio::io_context::executor_type>;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, asio::io_context::executor_type>;
using RequestParser = http::request_parser<http::string_body>;

constexpr size_t kReadBytes = 16 << 10;                   // a read's size while a request is being answered
constexpr size_t kMaxPipelinedBytes = 64 << 10;           // beyond, the client waits for its answers
constexpr auto kLingerTimeout = std::chrono::seconds(5);  // for a client to take an error before the reset

class Connection;

// What the connections share. Lives in HttpServer::Impl, which outlives them.
struct Shared {
  HttpOptions options;
  HttpServer::Handler handler;
  std::atomic<bool> is_draining{false};
  std::atomic<bool> is_stopping{false};
  std::atomic<size_t> total_body_bytes{0};
  mutable std::mutex mutex;  // guards connections
  std::set<Connection*> connections;
};

// The answer to one request: filled by any thread, sent by the connection.
class Exchange final : public HttpResponder {
 public:
  Exchange(Strand strand, std::weak_ptr<Timer> wake, size_t max_buffer_bytes)
      : strand_(std::move(strand)), wake_(std::move(wake)), max_buffer_bytes_(max_buffer_bytes) {}

  void set_request(bool is_head, bool is_http_1_0, bool keep_alive, HttpHeaders headers) {
    is_head_ = is_head, is_http_1_0_ = is_http_1_0, keep_alive_ = keep_alive, headers_ = std::move(headers);
  }

  void respond(HttpResponse response) override {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kWaiting) return;
    status_ = response.status;
    if (response.close) keep_alive_ = false;
    headers_.insert(headers_.end(), response.headers.begin(), response.headers.end());
    const bool has_body = response.status != 204;
    pending_ =
        format_http_head({.status = response.status,
                          .content_type = has_body ? std::string_view(response.content_type) : std::string_view(),
                          .content_length = has_body ? static_cast<long>(response.body.size()) : 0,
                          .keep_alive = keep_alive_,
                          .is_http_1_0 = is_http_1_0_},
                         headers_);
    if (!is_head_ && has_body) pending_ += response.body;
    end(lock);
  }

  void begin_stream(HttpHeaders headers) override {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kWaiting) return;
    state_ = State::kStreaming;
    if (is_http_1_0_) keep_alive_ = false;
    headers_.insert(headers_.end(), headers.begin(), headers.end());
    headers_.emplace_back("Cache-Control", "no-cache");
    headers_.emplace_back("X-Accel-Buffering", "no");
    pending_ += format_http_head(
        {.content_type = "text/event-stream; charset=utf-8", .keep_alive = keep_alive_, .is_http_1_0 = is_http_1_0_},
        headers_);
    wake(lock);
  }

  void write(std::string_view bytes) override {
    {
      const std::lock_guard lock(mutex_);
      if (state_ != State::kStreaming || bytes.empty()) return;
      is_too_slow_ = pending_.size() + bytes.size() > max_buffer_bytes_;
      if (!is_too_slow_) append_chunk(bytes);
      wake(lock);
    }
    if (is_too_slow()) abandon();
  }

  void end_stream() override {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming) return;
    if (!is_http_1_0_) pending_ += "0\r\n\r\n";
    end(lock);
  }

  void on_disconnect(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kEnded) return;
      if (state_ != State::kGone) {
        on_gone_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  bool is_gone() const override {
    const std::lock_guard lock(mutex_);
    return state_ == State::kGone;
  }

  // The connection's side, on its strand.
  std::string take_pending() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }
  void add_ping() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kStreaming && pending_.empty()) append_chunk(": ping\n\n");
  }
  bool is_streaming() const { return locked_state() == State::kStreaming; }
  bool is_ended() const { return locked_state() == State::kEnded; }
  bool is_too_slow() const {
    const std::lock_guard lock(mutex_);
    return is_too_slow_;
  }
  bool keep_alive() const {
    const std::lock_guard lock(mutex_);
    return keep_alive_;
  }
  int status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  // The client has gone or is cut off: what is unsent is dropped. True when the answer had not ended.
  bool abandon() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      wake_.reset();
      strand_.reset();
      pending_.clear();
      if (state_ == State::kEnded || state_ == State::kGone) return false;
      state_ = State::kGone;
      callback = std::move(on_gone_);
    }
    if (callback) callback();
    return true;
  }

 private:
  enum class State { kWaiting, kStreaming, kEnded, kGone };
  using Lock = std::lock_guard<std::mutex>;

  State locked_state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  void append_chunk(std::string_view bytes) {
    if (is_head_) return;
    pending_ += is_http_1_0_ ? std::string(bytes) : format_http_chunk(bytes);
  }
  void end(const Lock& lock) {
    state_ = State::kEnded;
    on_gone_ = nullptr;
    wake(lock);
  }
  // The strand runs this after the connection went to sleep on its timer, never between its look at us and its sleep.
  void wake(const Lock&) {
    if (is_wake_posted_ || !strand_) return;
    is_wake_posted_ = true;
    asio::post(*strand_, [self = wake_self_.lock(), weak_timer = wake_] {
      {
        const std::lock_guard lock(self->mutex_);
        self->is_wake_posted_ = false;
      }
      if (const auto timer = weak_timer.lock()) timer->cancel();
    });
  }

  friend class Connection;
  std::weak_ptr<Exchange> wake_self_;
  std::optional<Strand>
      strand_;  // given up with the connection: a handler may hold the responder longer than the server lives
  std::weak_ptr<Timer> wake_;
  const size_t max_buffer_bytes_;
  mutable std::mutex mutex_;
  State state_ = State::kWaiting;
  std::string pending_;
  std::function<void()> on_gone_;
  HttpHeaders headers_;
  int status_ = 200;
  bool is_head_ = false;
  bool is_http_1_0_ = false;
  bool keep_alive_ = true;
  bool is_wake_posted_ = false;
  bool is_too_slow_ = false;
};

// One socket. Everything runs on its strand; run() is its life.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, Socket socket, std::string peer)
      : shared_(shared),
        strand_(asio::make_strand(socket.get_executor())),
        socket_(std::move(socket)),
        deadline_(strand_.get_inner_executor()),
        wake_(std::make_shared<Timer>(strand_.get_inner_executor())),
        peer_(std::move(peer)),
        buffer_(shared.options.max_header_bytes + kReadBytes) {}
  ~Connection() {
    const std::lock_guard lock(shared_.mutex);
    shared_.connections.erase(this);
  }

  void start() {
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.connections.insert(this);
    }
    if (shared_.is_stopping) return;
    asio::co_spawn(
        strand_, [self = shared_from_this()]() -> awaitable<void> { co_await self->run(); }, asio::detached);
  }
  // From any thread, while the caller knows the connection to live.
  void close_soon(bool only_if_idle) {
    asio::post(strand_, [self = shared_from_this(), only_if_idle] {
      if (!only_if_idle || self->is_idle_) self->close();
    });
  }

 private:
  // Completion tokens: the error goes to ec_, the coroutine continues on the strand.
  auto token() { return asio::redirect_error(asio::use_awaitable, ec_); }

  void close() {
    error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
    wake_->cancel();
  }

  // After `timeout` the socket's operations are aborted and timed_out_ is set; the next call replaces it.
  void set_deadline(std::chrono::milliseconds timeout) {
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
  void clear_deadline() {
    deadline_.expires_at(Clock::time_point::max());
    deadline_.cancel();
  }

  awaitable<void> run() {
    try {
      while (socket_.is_open() && co_await serve_one()) {
      }
    } catch (const std::exception& e) {
      log_error("http", "connection {}: {}", peer_, e.what());
    }
    close();
  }

  // One request and its answer. False when the connection must end.
  awaitable<bool> serve_one() {
    if (!co_await wait_for_request()) co_return false;
    const auto start = Clock::now();
    RequestParser parser;
    parser.header_limit(static_cast<std::uint32_t>(shared_.options.max_header_bytes));
    parser.body_limit(shared_.options.max_body_bytes);
    auto exchange = std::make_shared<Exchange>(strand_, wake_, shared_.options.max_stream_buffer_bytes);
    exchange->wake_self_ = exchange;

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
  awaitable<bool> wait_for_request() {
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
  awaitable<std::optional<ApiError>> read_header(RequestParser& parser) {
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

  std::optional<ApiError> error_of_parser() const {
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

  std::optional<ApiError> take_header(RequestParser& parser, Exchange& exchange, HttpRequest& request) {
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
    add_cors(request, headers);
    exchange.set_request(request.method == "HEAD", header.version() < 11, header.keep_alive() && !shared_.is_draining,
                         std::move(headers));
    if (header.version() != 10 && header.version() != 11) {
      return http_error(400, fmt::format("HTTP/{}.{} is not spoken here, HTTP/1.1 is.", header.version() / 10,
                                         header.version() % 10));
    }
    const std::string_view target(header.target().data(), header.target().size());
    const size_t question = target.find('?');
    Result<std::string> path = percent_decode(target.substr(0, question));
    if (!path.ok()) return http_error(400, path.status().message());
    request.path = std::move(*path);
    if (question != std::string_view::npos) request.query = std::string(target.substr(question + 1));
    return std::nullopt;
  }

  void add_cors(const HttpRequest& request, HttpHeaders& headers) const {
    const std::string_view origin = request.header("origin");
    if (origin.empty()) return;
    for (const std::string& allowed : shared_.options.allowed_origins) {
      if (allowed != "*" && allowed != origin) continue;
      headers.emplace_back("Access-Control-Allow-Origin", allowed == "*" ? "*" : std::string(origin));
      headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
      if (allowed != "*") headers.emplace_back("Vary", "Origin");
      if (request.method == "OPTIONS") {
        headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, HEAD, OPTIONS");
        const std::string_view asked = request.header("access-control-request-headers");
        headers.emplace_back("Access-Control-Allow-Headers",
                             asked.empty() ? "Authorization, Content-Type, X-Request-Id" : std::string(asked));
        headers.emplace_back("Access-Control-Max-Age", "600");
      }
      return;
    }
  }

  awaitable<std::optional<ApiError>> read_body(RequestParser& parser, HttpRequest& request) {
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

  void call_handler(HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
    ++num_served_;
    try {
      shared_.handler(std::move(request), exchange);
    } catch (const std::exception& e) {
      log_error("http", "handler: {}", e.what());
      exchange->respond(http_response_of(http_error(500, "Internal error.")));
    }
  }

  // Sends the answer as it comes. False when the client is gone or was cut off.
  awaitable<bool> send(std::shared_ptr<Exchange> exchange) {
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

  awaitable<void> sleep_until_news(Exchange& exchange) {
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
  void watch(const std::shared_ptr<Exchange>& exchange) {
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

  awaitable<void> stop_watching() {
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
  awaitable<void> linger() {
    error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    set_deadline(kLingerTimeout);
    std::string scratch(64 << 10, '\0');
    do {
      co_await socket_.async_read_some(asio::buffer(scratch), token());
    } while (!ec_);
    clear_deadline();
  }

  Shared& shared_;
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

std::string peer_name(const asio::ip::tcp::endpoint& endpoint) {
  const bool is_v6 = endpoint.address().is_v6();
  const std::string address = endpoint.address().to_string();
  return is_v6 ? fmt::format("[{}]:{}", address, endpoint.port()) : fmt::format("{}:{}", address, endpoint.port());
}

}  // namespace

struct HttpServer::Impl {
  using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, asio::io_context::executor_type>;

  asio::io_context io;
  Shared shared;  // after io: destroyed before it, once no thread runs
  std::vector<Acceptor> acceptors;
  std::unique_ptr<asio::signal_set> signals;
  std::function<void(int)> on_signal;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;
  int port = 0;

  Status bind(const asio::ip::tcp::endpoint& endpoint, const std::string& host) {
    Acceptor acceptor(io.get_executor());
    error_code ec;
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) acceptor.set_option(asio::socket_base::reuse_address(true), ec);
    if (!ec && endpoint.protocol() == asio::ip::tcp::v6()) acceptor.set_option(asio::ip::v6_only(true), ec);
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
    if (ec == asio::error::address_in_use) {
      const std::string owner = find_port_owner(endpoint.port());
      return unavailable("port {} on {} is in use{}{}: stop it, or choose another with --port {}", endpoint.port(),
                         host, owner.empty() ? "" : " by ", owner, endpoint.port() + 1);
    }
    if (ec == asio::error::access_denied) {
      return unavailable("port {} on {} may not be used by this user: choose one above 1023 with --port",
                         endpoint.port(), host);
    }
    if (ec) return unavailable("cannot listen on {} port {}: {}", host, endpoint.port(), ec.message());
    if (port == 0) port = acceptor.local_endpoint(ec).port();
    acceptors.push_back(std::move(acceptor));
    return ok_status();
  }

  void accept(Acceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](error_code ec, asio::ip::tcp::socket socket) {
      if (ec == asio::error::operation_aborted || !acceptor.is_open()) return;
      if (ec) {
        // Out of descriptors, most likely: wait for some to be closed rather than spin.
        log_warning("http", "accept: {}", ec.message());
        auto pause = std::make_shared<Timer>(io.get_executor(), std::chrono::milliseconds(100));
        pause->async_wait([this, &acceptor, pause](error_code) { accept(acceptor); });
        return;
      }
      serve(std::move(socket));
      accept(acceptor);
    });
  }

  void serve(asio::ip::tcp::socket socket) {
    error_code ec;
    const auto endpoint = socket.remote_endpoint(ec);
    if (ec) return;
    const int one = 1;
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (num_connections() >= shared.options.max_connections) {
      refuse(socket);
      return;
    }
    const int family = endpoint.protocol().family();
    const auto fd = socket.release(ec);
    if (!ec) start_connection(fd, family, peer_name(endpoint));
  }

  // Too many connections: a short answer if the socket takes it at once, then the end.
  void refuse(asio::ip::tcp::socket& socket) {
    HttpResponse response = http_response_of(
        http_error(503, fmt::format("There are {} connections, no more are taken.", shared.options.max_connections)));
    const std::string text = format_http_head({.status = response.status,
                                               .content_type = response.content_type,
                                               .content_length = static_cast<long>(response.body.size()),
                                               .keep_alive = false},
                                              response.headers) +
                             response.body;
    error_code ec;
    socket.non_blocking(true, ec);
    socket.write_some(asio::buffer(text), ec);
  }

  void start_connection(int fd, int family, std::string peer) {
    error_code ec;
    Socket socket(io.get_executor());
    socket.assign(asio::generic::stream_protocol(family, 0), fd, ec);
    if (ec) {
      ::close(fd);
      return;
    }
    std::make_shared<Connection>(shared, std::move(socket), std::move(peer))->start();
  }

  int num_connections() const {
    const std::lock_guard lock(shared.mutex);
    return static_cast<int>(shared.connections.size());
  }

  void close_connections(bool only_if_idle) {
    std::vector<std::shared_ptr<Connection>> alive;  // freed after the lock, which their destructor takes
    const std::lock_guard lock(shared.mutex);
    for (Connection* connection : shared.connections) {
      if (auto shared_connection = connection->weak_from_this().lock()) alive.push_back(std::move(shared_connection));
    }
    for (const auto& connection : alive) connection->close_soon(only_if_idle);
  }

  void wait_for_signal() {
    signals->async_wait([this](error_code ec, int number) {
      if (ec) return;
      on_signal(number);
      wait_for_signal();
    });
  }
};

HttpServer::HttpServer(HttpOptions options, Handler handler) : impl_(std::make_unique<Impl>()) {
  impl_->shared.options = std::move(options);
  impl_->shared.handler = std::move(handler);
}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::listen(const std::string& host, int port) {
  if (port < 0 || port > 65535) return invalid_argument("port must be in [0, 65535], got {}", port);
  error_code ec;
  asio::ip::tcp::resolver resolver(impl_->io);
  const auto flags = asio::ip::tcp::resolver::passive | asio::ip::tcp::resolver::numeric_service;
  const auto found = resolver.resolve(host.empty() ? "0.0.0.0" : host, std::to_string(port), flags, ec);
  if (ec || found.empty())
    return invalid_argument("--host {} is not an address of this machine: {}", host, ec.message());
  impl_->acceptors.reserve(1);  // accept() keeps references
  return impl_->bind(found.begin()->endpoint(), host);
}

int HttpServer::port() const { return impl_->port; }
int HttpServer::num_connections() const { return impl_->num_connections(); }

void HttpServer::on_signals(std::initializer_list<int> signals, std::function<void(int)> callback) {
  impl_->on_signal = std::move(callback);
  impl_->signals = std::make_unique<asio::signal_set>(impl_->io);
  for (const int number : signals) impl_->signals->add(number);
  impl_->wait_for_signal();
}

void HttpServer::adopt(int fd) { impl_->start_connection(fd, AF_UNIX, "local"); }

void HttpServer::start() {
  for (auto& acceptor : impl_->acceptors) impl_->accept(acceptor);
  impl_->work.emplace(impl_->io.get_executor());
  for (int i = 0; i < impl_->shared.options.num_io_threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->io.run(); });
  }
}

void HttpServer::begin_drain() {
  impl_->shared.is_draining = true;
  asio::post(impl_->io, [impl = impl_.get()] { impl->close_connections(true); });
}

void HttpServer::stop() {
  if (impl_->threads.empty()) return;
  begin_drain();
  impl_->shared.is_stopping = true;
  asio::post(impl_->io, [impl = impl_.get()] {
    error_code ignored;
    for (auto& acceptor : impl->acceptors) acceptor.close(ignored);
    if (impl->signals) impl->signals->cancel();
    impl->close_connections(false);
    impl->work.reset();  // run() returns when the last connection has ended
  });
  for (auto& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace spate
