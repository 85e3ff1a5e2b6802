#include "server/http_server.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <thread>

#include "base/log.h"
#include "server/http_connection.h"
#include "server/http_message.h"
#include "server/port_owner.h"

namespace spate {
namespace {

std::string peer_name(const asio::ip::tcp::endpoint& endpoint) {
  const bool is_v6 = endpoint.address().is_v6();
  const std::string address = endpoint.address().to_string();
  return is_v6 ? fmt::format("[{}]:{}", address, endpoint.port()) : fmt::format("{}:{}", address, endpoint.port());
}

}  // namespace

struct HttpServer::Impl {
  using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, asio::io_context::executor_type>;

  asio::io_context io;
  HttpShared shared;  // after io: destroyed before it, once no thread runs
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
    std::make_shared<HttpConnection>(shared, std::move(socket), std::move(peer))->start();
  }

  int num_connections() const {
    const std::lock_guard lock(shared.mutex);
    return static_cast<int>(shared.connections.size());
  }

  void close_connections(bool only_if_idle) {
    std::vector<std::shared_ptr<HttpConnection>> alive;  // freed after the lock, which their destructor takes
    const std::lock_guard lock(shared.mutex);
    for (HttpConnection* connection : shared.connections) {
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
