#include "cli/sse_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace spate {
namespace {

constexpr int kStopPollMs = 100;
constexpr std::string_view kEventStream = "text/event-stream";
// Of a peer that sends without end.
constexpr size_t kMaxHeaderBytes = 64 << 10, kMaxChunkLine = 1 << 10, kMaxEventBytes = size_t{64} << 20,
                 kMaxBodyBytes = size_t{256} << 20;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// As connect(), which would wait for minutes where nothing answers: until should_stop says so, where there is one.
bool connect_socket(int fd, const addrinfo& address, const std::function<bool()>& should_stop) {
  if (!should_stop) return ::connect(fd, address.ai_addr, address.ai_addrlen) == 0;
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  int error = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd waiting{.fd = fd, .events = POLLOUT, .revents = 0};
    int num_ready = 0;
    while (num_ready <= 0 && !should_stop()) num_ready = ::poll(&waiting, 1, kStopPollMs);
    socklen_t size = sizeof error;
    if (num_ready <= 0) {
      error = ETIMEDOUT;
    } else {
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  ::fcntl(fd, F_SETFL, flags);
  errno = error;
  return error == 0;
}

Result<int> connect_to(const HttpTarget& target, const std::function<bool()>& should_stop) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(target.port);
  if (const int error = ::getaddrinfo(target.host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return unavailable("{}: {}", target.host, ::gai_strerror(error));
  }
  int fd = -1;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    fd = ::socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    if (fd < 0) continue;
    if (connect_socket(fd, *address, should_stop)) break;
    const int error = errno;
    ::close(fd);
    errno = error;
    fd = -1;
  }
  ::freeaddrinfo(found);
  if (fd < 0) return unavailable("cannot connect to {}:{}: {}", target.host, target.port, std::strerror(errno));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

// Reads the reply as it comes: header, then body pieces with the chunk framing taken off.
class ReplyReader {
 public:
  ReplyReader(int fd, const std::function<bool()>& should_stop) : fd_(fd), should_stop_(should_stop) {}

  Status read_header(HttpReply& reply) {
    size_t end;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (buffer_.size() > kMaxHeaderBytes) return data_loss("a header of more than {} bytes", kMaxHeaderBytes);
      RETURN_IF_ERROR(more("the header"));
    }
    std::string header = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    if (header.rfind("HTTP/1.", 0) != 0 || header.size() < 12) return data_loss("not an HTTP reply");
    reply.status = std::atoi(header.c_str() + 9);
    if (reply.status < 200 || reply.status > 599) return data_loss("a reply of status {}", header.substr(9, 3));
    reply.content_type = field(header, "content-type");
    const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7F; };
    if (std::ranges::any_of(reply.content_type, is_control)) return data_loss("a content type with control characters");
    is_chunked_ = lower(field(header, "transfer-encoding")).ends_with("chunked");
    if (const std::string length = field(header, "content-length"); !length.empty()) {
      const char* const last = length.data() + length.size();
      const auto [end_of_number, error] = std::from_chars(length.data(), last, remaining_);
      if (error != std::errc() || end_of_number != last || remaining_ < 0) return data_loss("a broken content length");
    }
    if (reply.status == 204 || reply.status == 304) {  // they have no body, and may keep the connection
      is_chunked_ = false;
      remaining_ = 0;
    }
    return ok_status();
  }

  // The next piece of the body; empty at its end.
  Result<std::string> next() {
    if (!is_chunked_) {
      if (remaining_ == 0) return std::string();
      if (buffer_.empty()) {
        const Status status = more("the body");
        if (!status.ok() && (remaining_ >= 0 || status.code() == StatusCode::kCancelled)) return status;
        if (!status.ok()) return std::string();
      }
      std::string piece = std::exchange(buffer_, {});
      if (remaining_ > 0) {
        piece.resize(std::min<size_t>(piece.size(), static_cast<size_t>(remaining_)));
        remaining_ -= static_cast<int64_t>(piece.size());
      }
      return piece;
    }
    size_t line_end;
    while ((line_end = buffer_.find("\r\n")) == std::string::npos) {
      if (buffer_.size() > kMaxChunkLine) return data_loss("a broken chunk size");
      RETURN_IF_ERROR(more("a chunk"));
    }
    size_t size = 0;
    const auto [p, error] = std::from_chars(buffer_.data(), buffer_.data() + line_end, size, 16);
    if (error != std::errc() || size > kMaxBodyBytes) return data_loss("a broken chunk size");
    while (buffer_.size() < line_end + 2 + size + 2) RETURN_IF_ERROR(more("a chunk"));
    std::string piece = buffer_.substr(line_end + 2, size);
    buffer_.erase(0, line_end + 2 + size + 2);
    return piece;
  }

 private:
  static std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  }

  // The value of a field of the head, whose lines each end with CRLF; empty: there is none. `name` in lower case.
  static std::string field(const std::string& header, const std::string& name) {
    constexpr std::string_view kSpace = " \t";
    const size_t at = lower(header).find("\r\n" + name + ":");
    if (at == std::string::npos) return {};
    const size_t begin = at + 2 + name.size() + 1, end = header.find("\r\n", begin);
    const std::string value = header.substr(begin, end - begin);
    const size_t first = value.find_first_not_of(kSpace);
    return first == std::string::npos ? std::string() : value.substr(first, value.find_last_not_of(kSpace) + 1 - first);
  }

  Status more(const char* what) {
    char bytes[16384];
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    // Asked also of a peer that never pauses.
    if (should_stop_ && should_stop_()) return cancelled("stopped");
    while (should_stop_ && ::poll(&waiting, 1, kStopPollMs) <= 0) {
      if (should_stop_()) return cancelled("stopped");
    }
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return data_loss("the connection ended inside {}", what);
    buffer_.append(bytes, static_cast<size_t>(n));
    return ok_status();
  }

  int fd_;
  const std::function<bool()>& should_stop_;
  std::string buffer_;
  bool is_chunked_ = false;
  int64_t remaining_ = -1;  // of a body with a length; below 0: until the connection ends
};

// A peer that takes nothing holds nobody up for longer than should_stop wants.
Status send_all(int fd, const HttpTarget& target, const std::string& request,
                const std::function<bool()>& should_stop) {
  for (size_t sent = 0; sent < request.size();) {
    pollfd waiting{.fd = fd, .events = POLLOUT, .revents = 0};
    while (should_stop && ::poll(&waiting, 1, kStopPollMs) <= 0) {
      if (should_stop()) return cancelled("stopped");
    }
    const ssize_t n =
        ::send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL | (should_stop ? MSG_DONTWAIT : 0));
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (n <= 0) return unavailable("sending to {}:{}: {}", target.host, target.port, std::strerror(errno));
    sent += static_cast<size_t>(n);
  }
  return ok_status();
}

}  // namespace

Result<HttpTarget> parse_base_url(const std::string& url) {
  HttpTarget target;
  constexpr std::string_view kScheme = "http://";
  if (url.rfind(kScheme, 0) != 0) return invalid_argument("a server is given as http://host:port, got '{}'", url);
  std::string_view rest = std::string_view(url).substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  target.path_prefix = rest.substr(slash);
  while (target.path_prefix.ends_with('/')) target.path_prefix.pop_back();
  if (target.path_prefix.ends_with("/v1")) target.path_prefix.resize(target.path_prefix.size() - 3);
  rest = rest.substr(0, slash);
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : std::string_view::npos;
  const size_t colon = bracket == std::string_view::npos ? rest.rfind(':') : rest.find(':', bracket);
  target.host = bracket == std::string_view::npos ? rest.substr(0, colon) : rest.substr(1, bracket - 1);
  target.port = 80;
  if (colon != std::string_view::npos) {
    const std::string_view port = rest.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), target.port);
    if (error != std::errc() || end != port.data() + port.size()) target.port = 0;
  }
  // They are written into the head of a request.
  const auto is_wrong = [](unsigned char c) { return c <= ' ' || c >= 0x7F || c == '@'; };
  if (std::ranges::any_of(url, is_wrong))
    return invalid_argument("a space, '@' or a character beyond ASCII in '{}'", url);
  if (target.host.empty()) return invalid_argument("no host in '{}'", url);
  if (target.port <= 0 || target.port > 65535) return invalid_argument("no port in '{}'", url);
  return target;
}

bool is_event_stream(const HttpReply& head) {
  std::string type = head.content_type.substr(0, kEventStream.size());
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type == kEventStream;
}

Result<HttpReply> http_pass(const HttpTarget& target, const std::string& path, const std::string& body,
                            const std::function<bool(const HttpReply& head)>& takes_pieces,
                            const std::function<bool(std::string_view)>& on_piece,
                            const std::function<bool()>& should_stop) {
  ASSIGN_OR_RETURN(const int fd, connect_to(target, should_stop));
  const Socket socket(fd);
  const bool is_ipv6 = target.host.find(':') != std::string::npos;
  std::string request = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\nConnection: close\r\n", body.empty() ? "GET" : "POST",
                                    target.path_prefix, path, is_ipv6 ? "[" : "", target.host, is_ipv6 ? "]" : "", target.port);
  if (!target.api_key.empty()) request += fmt::format("Authorization: Bearer {}\r\n", target.api_key);
  for (const auto& [name, value] : target.headers) request += fmt::format("{}: {}\r\n", name, value);
  if (!body.empty()) request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  request += "\r\n" + body;
  RETURN_IF_ERROR(send_all(fd, target, request, should_stop));

  HttpReply reply;
  ReplyReader reader(fd, should_stop);
  RETURN_IF_ERROR(reader.read_header(reply));
  const bool is_taken = takes_pieces && takes_pieces(reply);
  while (true) {
    ASSIGN_OR_RETURN(const std::string piece, reader.next());
    if (piece.empty()) return reply;
    if (is_taken) {
      if (!on_piece(piece)) return reply;
      continue;
    }
    if (reply.body.size() + piece.size() > kMaxBodyBytes)
      return data_loss("a body of more than {} bytes", kMaxBodyBytes);
    reply.body += piece;
  }
}

Result<HttpReply> http_call(const HttpTarget& target, const std::string& path, const std::string& body,
                            const std::function<bool(std::string_view)>& on_event,
                            const std::function<bool()>& should_stop) {
  std::string line, data;  // of a line and an event that have not ended
  bool has_data = false;
  Status failure;
  const auto on_piece = [&](std::string_view piece) {
    for (size_t end; (end = piece.find('\n')) != std::string_view::npos; piece.remove_prefix(end + 1)) {
      line += piece.substr(0, end);
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty() && std::exchange(has_data, false) && !on_event(std::exchange(data, {}))) return false;
      if (line.starts_with("data:")) {
        if (std::exchange(has_data, true)) data += '\n';
        data += line.substr(line.starts_with("data: ") ? 6 : 5);
      }
      line.clear();
    }
    line += piece;
    if (line.size() + data.size() > kMaxEventBytes) {
      failure = data_loss("an event of more than {} bytes", kMaxEventBytes);
    }
    return failure.ok();
  };
  Result<HttpReply> reply = http_pass(
      target, path, body, [&](const HttpReply& head) { return on_event && is_event_stream(head); }, on_piece,
      should_stop);
  RETURN_IF_ERROR(failure);
  return reply;
}

}  // namespace spate
