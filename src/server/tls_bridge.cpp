#include "server/tls_bridge.h"

#ifdef SPATE_TLS

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <mutex>
#include <vector>

#include "server/http_asio.h"

namespace spate {
namespace {

namespace ssl = asio::ssl;
using asio::awaitable;
using std::chrono::seconds;

constexpr auto kHandshakeTimeout = seconds(15), kShutdownTimeout = seconds(1), kDrainTimeout = seconds(5);
constexpr auto kStopTimeout = seconds(2);
constexpr size_t kPieceBytes = 16 << 10;  // a TLS record's most

// One connection: two coroutines on one strand, one for each direction. Kept alive by its own operations.
class Bridge : public std::enable_shared_from_this<Bridge> {
 public:
  Bridge(asio::io_context& io, Socket tcp, Socket plain, ssl::context& context)
      : strand_(asio::make_strand(io.get_executor())),
        tls_(std::move(tcp), context),
        plain_(std::move(plain)),
        deadline_(io.get_executor()),
        limit_(io.get_executor()) {}

  void start() {
    asio::co_spawn(
        strand_, [self = shared_from_this()]() -> awaitable<void> { co_await self->run(); }, asio::detached);
  }

  void stop_soon() {
    asio::post(strand_, [self = shared_from_this()] {
      if (!self->is_open_) return self->close();
      self->limit_.expires_after(kStopTimeout);
      self->limit_.async_wait(asio::bind_executor(self->strand_, [weak = self->weak_from_this()](error_code ec) {
        const auto bridge = weak.lock();
        if (!ec && bridge) bridge->close();
      }));
    });
  }

 private:
  using Bytes = std::array<char, kPieceBytes>;
  static auto token(error_code& ec) { return asio::redirect_error(asio::use_awaitable, ec); }

  awaitable<void> run() {
    error_code ec;
    set_deadline(kHandshakeTimeout);
    co_await tls_.async_handshake(ssl::stream_base::server, token(ec));
    clear_deadline();
    if (ec) co_return close();
    is_open_ = is_receiving_ = true;
    asio::co_spawn(
        strand_, [self = shared_from_this()]() -> awaitable<void> { co_await self->receive(); }, asio::detached);
    co_await send();
  }

  // From the client to the server, until either ends.
  awaitable<void> receive() {
    auto bytes = std::make_unique<Bytes>();
    error_code ec;
    while (!ec) {
      const size_t num_bytes = co_await tls_.async_read_some(asio::buffer(*bytes), token(ec));
      if (ec) break;
      co_await asio::async_write(plain_, asio::buffer(bytes->data(), num_bytes), token(ec));
    }
    is_receiving_ = false;
    error_code ignored;
    if (is_ending_) {
      deadline_.cancel();  // end() waits
    } else if (ec == asio::error::eof) {
      plain_.shutdown(asio::socket_base::shutdown_send, ignored);  // it sends no more, and may still read
    } else {
      close();
    }
  }

  // From the server to the client, until the server ends.
  awaitable<void> send() {
    auto bytes = std::make_unique<Bytes>();
    error_code ec;
    while (true) {
      const size_t num_bytes = co_await plain_.async_read_some(asio::buffer(*bytes), token(ec));
      if (ec) break;
      co_await asio::async_write(tls_, asio::buffer(bytes->data(), num_bytes), token(ec));
      if (ec) break;
    }
    if (ec == asio::error::eof) co_await end(*bytes);
    close();
  }

  // The server has said all. What the client still sends is read over, so that a reset does not cost it the answer.
  awaitable<void> end(Bytes& bytes) {
    is_ending_ = true;
    error_code ec;
    tcp().cancel(ec);
    while (is_receiving_) {
      deadline_.expires_at(Clock::time_point::max());
      co_await deadline_.async_wait(token(ec));
    }
    set_deadline(kShutdownTimeout);
    co_await tls_.async_shutdown(token(ec));
    tcp().shutdown(asio::socket_base::shutdown_send, ec);
    set_deadline(kDrainTimeout);
    do {
      co_await tcp().async_read_some(asio::buffer(bytes), token(ec));
    } while (!ec);
    clear_deadline();
  }

  Socket& tcp() { return tls_.next_layer(); }

  void close() {
    error_code ignored;
    tcp().close(ignored);
    plain_.close(ignored);
    deadline_.cancel();
    limit_.cancel();
  }

  // Then the operations of the TCP socket are aborted; the next call replaces it.
  void set_deadline(seconds timeout) {
    deadline_.expires_after(timeout);
    deadline_.async_wait(asio::bind_executor(strand_, [self = weak_from_this()](error_code ec) {
      const auto bridge = self.lock();
      error_code ignored;
      if (!ec && bridge && bridge->deadline_.expiry() <= Clock::now()) bridge->tcp().cancel(ignored);
    }));
  }
  void clear_deadline() {
    deadline_.expires_at(Clock::time_point::max());
    deadline_.cancel();
  }

  Strand strand_;
  ssl::stream<Socket> tls_;
  Socket plain_;
  Timer deadline_, limit_;  // of an operation; of all, once the server stops
  bool is_open_ = false;    // the handshake has ended well
  bool is_receiving_ = false, is_ending_ = false;
};

}  // namespace

struct TlsBridge::Impl {
  ssl::context context{ssl::context::tls_server};
  std::mutex mutex;                            // guards what follows
  std::vector<std::weak_ptr<Bridge>> bridges;  // some have ended
  size_t bridges_limit = 64;                   // then those go

  void note(const std::shared_ptr<Bridge>& bridge) {
    const std::lock_guard lock(mutex);
    bridges.push_back(bridge);
    if (bridges.size() < bridges_limit) return;
    std::erase_if(bridges, [](const auto& each) { return each.expired(); });
    bridges_limit = std::max<size_t>(64, 2 * bridges.size());
  }
};

TlsBridge::TlsBridge(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsBridge::~TlsBridge() = default;

Result<std::unique_ptr<TlsBridge>> TlsBridge::create(const std::string& certfile, const std::string& keyfile) {
  auto impl = std::make_unique<Impl>();
  ssl::context& context = impl->context;
  error_code ec;
  context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                          ssl::context::no_tlsv1_1 | ssl::context::no_compression,
                      ec);
  // Without a terminal a passphrase would be asked for in vain.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, ec);
  context.use_certificate_chain_file(certfile, ec);
  if (ec) return invalid_argument("--ssl-certfile {}: {}", certfile, ec.message());
  context.use_private_key_file(keyfile, ssl::context::pem, ec);
  if (ec) return invalid_argument("--ssl-keyfile {}: {}", keyfile, ec.message());
  if (SSL_CTX_check_private_key(context.native_handle()) != 1) {
    return invalid_argument("--ssl-keyfile {}: is not the key of --ssl-certfile {}", keyfile, certfile);
  }
  return std::unique_ptr<TlsBridge>(new TlsBridge(std::move(impl)));
}

int TlsBridge::connect(asio::io_context& io, int fd, int family) {
  int pair[2];
  error_code ec;
  Socket tcp(io.get_executor()), plain(io.get_executor());
  tcp.assign(asio::generic::stream_protocol(family, 0), fd, ec);
  if (ec) {
    ::close(fd);
    return -1;
  }
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
  plain.assign(asio::generic::stream_protocol(AF_UNIX, 0), pair[0], ec);
  if (ec) {
    ::close(pair[0]);
    ::close(pair[1]);
    return -1;
  }
  auto bridge = std::make_shared<Bridge>(io, std::move(tcp), std::move(plain), impl_->context);
  impl_->note(bridge);
  bridge->start();
  return pair[1];
}

void TlsBridge::stop() {
  const std::lock_guard lock(impl_->mutex);
  for (const auto& weak : impl_->bridges) {
    if (const auto bridge = weak.lock()) bridge->stop_soon();
  }
}

}  // namespace spate

#else

namespace spate {

struct TlsBridge::Impl {};
TlsBridge::~TlsBridge() = default;

Result<std::unique_ptr<TlsBridge>> TlsBridge::create(const std::string&, const std::string&) {
  return unavailable(
      "--ssl-certfile: this program is built without TLS, as its build found no static OpenSSL; put a proxy with TLS "
      "in front");
}

int TlsBridge::connect(boost::asio::io_context&, int, int) { return -1; }
void TlsBridge::stop() {}

}  // namespace spate

#endif
