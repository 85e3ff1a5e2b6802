// TlsBridge: takes the TLS off a connection. HttpConnection serves a local socket as any other; what it writes there
// leaves encrypted, what comes in is decrypted. Private to the HTTP server.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace boost::asio {
class io_context;
}

namespace spate {

class TlsBridge {
 public:
  // Errors name the flag and the file; unavailable where this program is built without TLS.
  static Result<std::unique_ptr<TlsBridge>> create(const std::string& certfile, const std::string& keyfile);
  ~TlsBridge();

  // Takes a connected TCP socket of `family`. Returns the socket to serve instead, or -1 where there is none. The
  // bridge between the two runs on `io` until both have ended.
  int connect(boost::asio::io_context& io, int fd, int family);
  void stop();  // bridges end soon: what their servers have said goes out, within 2 s

 private:
  struct Impl;
  explicit TlsBridge(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace spate
