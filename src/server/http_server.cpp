#include "server/http_server.h"

#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <thread>

#include "base/log.h"
#include "server/http_connection.h"
#include "server/http_message.h"
#include "server/port_owner.h"
#include "server/tls_bridge.h"

namespace spate {
namespace {

constexpr size_t kNumOtherDescriptors = 128;  // model files, log, the event loop's own

std::string peer_name(const asio::ip::tcp::endpoint& endpoint) {
  const bool is_v6 = endpoint.address().is_v6();
  const std::string address = endpoint.address().to_string();
  return is_v6 ? fmt::format("[{}]:{}", address, endpoint.port()) : fmt::format("{}:{}", address, endpoint.port());
}

// Raises the limit of open files as far as needed and possible; what it is then.
size_t raise_descriptor_limit(size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur;
}

}  // namespace

struct HttpServer::Impl {
  using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, asio::io_context::executor_type>;

  asio::io_context io;
  HttpShared shared{io.get_executor()};  // after io: destroyed before it, once no thread runs
  using UnixAcceptor = asio::basic_socket_acceptor<asio::local::stream_protocol, asio::io_context::executor_type>;
  std::vector<Acceptor> acceptors;
  std::optional<UnixAcceptor> unix_acceptor;
  std::string unix_path;
  std::unique_ptr<asio::signal_set> signals;
  std::function<void(int)> on_signal;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;
  int port = 0;
  std::unique_ptr<TlsBridge> tls;  // null: plain HTTP

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

  Status bind_unix(const std::string& path) {
    error_code ec;
    UnixAcceptor acceptor(io.get_executor());
    // Long paths do not fit the address; the constructor throws.
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return invalid_argument("--uds {}: at most {} bytes are possible", path, sizeof(sockaddr_un::sun_path) - 1);
    }
    const asio::local::stream_protocol::endpoint endpoint(path);
    struct stat file {};
    if (::stat(path.c_str(), &file) == 0) {
      if (!S_ISSOCK(file.st_mode)) return invalid_argument("--uds {}: a file that is no socket is there", path);
      asio::local::stream_protocol::socket probe(io);
      probe.connect(endpoint, ec);
      if (!ec) return unavailable("--uds {}: another server listens there", path);
      ::unlink(path.c_str());
    }
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) return unavailable("cannot listen on --uds {}: {}", path, ec.message());
    unix_path = path;
    unix_acceptor.emplace(std::move(acceptor));
    return ok_status();
  }

  template <typename AnyAcceptor>
  void accept(AnyAcceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](error_code ec, auto socket) {
      if (ec == asio::error::operation_aborted || !acceptor.is_open()) return;
      if (ec) {
        // Out of descriptors, most likely: close a connection that waits, and pause rather than spin.
        log_warning("http", "accept: {}", ec.message());
        {
          const std::lock_guard lock(shared.mutex);
          evict_one();
        }
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
    set_options(socket.native_handle());
    if (tls) return serve_tls(socket, endpoint.protocol().family(), peer_name(endpoint));
    serve_or_refuse(socket, endpoint.protocol().family(), peer_name(endpoint));
  }
  void serve(asio::local::stream_protocol::socket socket) { serve_or_refuse(socket, AF_UNIX, "local"); }

  // What the bridge makes of the connection is served as one over a local socket.
  void serve_tls(asio::ip::tcp::socket& socket, int family, std::string peer) {
    const Place place = find_place();
    if (place == Place::kNone) return;  // a refusal would cost a handshake
    error_code ec;
    const auto fd = socket.release(ec);
    if (ec) return;
    const int plain_fd = tls->connect(io, fd, family);
    if (plain_fd >= 0) start_connection(plain_fd, AF_UNIX, std::move(peer), place == Place::kReserve);
  }

  template <typename AnySocket>
  void serve_or_refuse(AnySocket& socket, int family, std::string peer) {
    const Place place = find_place();
    if (place == Place::kNone) {
      refuse(socket);
      return;
    }
    error_code ec;
    const auto fd = socket.release(ec);
    if (!ec) start_connection(fd, family, std::move(peer), place == Place::kReserve);
  }

  // Keep-alive probes find clients that are gone without a word while their answer is made.
  static void set_options(int fd) {
    const auto set = [fd](int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); };
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  }

  enum class Place { kNormal, kReserve, kNone };

  Place find_place() {
    const std::lock_guard lock(shared.mutex);
    const int limit = shared.options.max_connections;
    const auto num_used = [&] { return static_cast<int>(shared.connections.size()) - shared.num_evicted; };
    if (num_used() >= limit) evict_one();
    if (num_used() < limit) return Place::kNormal;
    return num_used() < limit + shared.options.num_reserve_connections ? Place::kReserve : Place::kNone;
  }

  // Closes the connection that has waited longest for a request. The caller holds shared.mutex.
  void evict_one() {
    if (!shared.waiting.empty()) shared.waiting.begin()->second->evict_soon();
  }

  // Too many connections: a short answer if the socket takes it at once, then the end.
  template <typename AnySocket>
  void refuse(AnySocket& socket) {
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

  void start_connection(int fd, int family, std::string peer, bool is_on_reserve) {
    error_code ec;
    Socket socket(io.get_executor());
    socket.assign(asio::generic::stream_protocol(family, 0), fd, ec);
    if (ec) {
      ::close(fd);
      return;
    }
    std::make_shared<HttpConnection>(shared, std::move(socket), std::move(peer), is_on_reserve)->start();
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
  HttpOptions& own = impl_->shared.options;
  own = std::move(options);
  own.max_total_large_body_bytes = std::max(own.max_total_large_body_bytes, own.max_body_bytes);
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

Status HttpServer::listen_unix(const std::string& path) { return impl_->bind_unix(path); }

Status HttpServer::use_tls(const std::string& certfile, const std::string& keyfile) {
  ASSIGN_OR_RETURN(impl_->tls, TlsBridge::create(certfile, keyfile));
  return ok_status();
}

int HttpServer::port() const { return impl_->port; }

bool HttpServer::is_loopback() const {
  return std::all_of(impl_->acceptors.begin(), impl_->acceptors.end(), [](const Impl::Acceptor& acceptor) {
    error_code ec;
    return acceptor.local_endpoint(ec).address().is_loopback();
  });
}

int HttpServer::num_connections() const { return impl_->num_connections(); }

void HttpServer::on_signals(std::initializer_list<int> signals, std::function<void(int)> callback) {
  impl_->on_signal = std::move(callback);
  impl_->signals = std::make_unique<asio::signal_set>(impl_->io);
  for (const int number : signals) impl_->signals->add(number);
  impl_->wait_for_signal();
}

void HttpServer::adopt(int fd) { impl_->start_connection(fd, AF_UNIX, "local", false); }

void HttpServer::start() {
  HttpOptions& options = impl_->shared.options;
  const size_t num_others = kNumOtherDescriptors + static_cast<size_t>(options.num_reserve_connections);
  const size_t num_each = impl_->tls ? 3 : 1;  // of a connection
  const size_t wanted = num_each * static_cast<size_t>(options.max_connections) + num_others;
  if (const size_t limit = raise_descriptor_limit(wanted); limit < wanted) {
    options.max_connections = static_cast<int>((limit > 2 * num_others ? limit - num_others : limit / 2) / num_each);
    log_warning("http", "at most {} connections: the limit of open files is {} (ulimit -n), {} are wanted",
                options.max_connections, limit, wanted);
  }
  for (auto& acceptor : impl_->acceptors) impl_->accept(acceptor);
  if (impl_->unix_acceptor) impl_->accept(*impl_->unix_acceptor);
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
    if (impl->unix_acceptor) {
      impl->unix_acceptor->close(ignored);
      ::unlink(impl->unix_path.c_str());
    }
    if (impl->signals) impl->signals->cancel();
    impl->close_connections(false);
    if (impl->tls) impl->tls->stop();
    impl->work.reset();  // run() returns when the last connection has ended
  });
  for (auto& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace spate
