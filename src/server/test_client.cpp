#include "server/test_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace spate {

std::string TestResponse::header(std::string_view name) const {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
  };
  const std::string low_head = lower(head), key = "\r\n" + lower(name) + ": ";
  const size_t pos = low_head.find(key);
  if (pos == std::string::npos) return {};
  const size_t begin = pos + key.size();
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

TestClient::TestClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{.tv_sec = 120, .tv_usec = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
}

TestClient::TestClient(const std::string& unix_path) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
  const timeval timeout{.tv_sec = 120, .tv_usec = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
}

TestClient::~TestClient() { close(); }

void TestClient::shut_down_sending() { ::shutdown(fd_, SHUT_WR); }

void TestClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool TestClient::fill() {
  char bytes[16384];
  const auto got = ::recv(fd_, bytes, sizeof bytes, 0);
  has_ended_ = got == 0 || (got < 0 && errno == ECONNRESET);
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::string TestClient::receive_until(std::string_view text) {
  while (buffer_.find(text) == std::string::npos && fill()) {
  }
  const size_t pos = buffer_.find(text);
  const size_t end = pos == std::string::npos ? buffer_.size() : pos + text.size();
  std::string out = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return out;
}

bool TestClient::is_closed_by_peer() {
  while (fill()) {
  }
  return has_ended_;
}

TestResponse TestClient::receive(bool is_head) {
  TestResponse response;
  response.head = receive_until("\r\n\r\n");
  if (!response.head.starts_with("HTTP/1.1 ")) return response;
  response.status = std::stoi(response.head.substr(9, 3));
  if (response.status == 100) return response;
  if (is_head) return response;
  if (response.header("transfer-encoding") == "chunked") {
    while (true) {
      const std::string size_line = receive_until("\r\n");
      if (size_line.empty()) return response;
      const size_t size = std::stoul(size_line, nullptr, 16);
      while (buffer_.size() < size + 2 && fill()) {
      }
      response.body += buffer_.substr(0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) return response;
    }
  }
  const std::string length = response.header("content-length");
  const size_t size = length.empty() ? SIZE_MAX : std::stoul(length);
  while (buffer_.size() < size && fill()) {
  }
  response.body = buffer_.substr(0, size);
  buffer_.erase(0, response.body.size());
  return response;
}

TestResponse TestClient::get(const std::string& path, const std::string& headers) {
  send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
  return receive();
}

TestResponse TestClient::post(const std::string& path, const std::string& body, const std::string& headers) {
  send(fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                   path, body.size(), headers, body));
  return receive();
}

std::vector<std::string> sse_events(const std::string& body) {
  std::vector<std::string> events;
  size_t pos = 0;
  while (pos < body.size()) {
    const size_t end = body.find("\n\n", pos);
    if (end == std::string::npos) return {"TRUNCATED"};
    const std::string event = body.substr(pos, end - pos);
    if (event.starts_with("data: "))
      events.push_back(event.substr(6));
    else if (!event.starts_with(":"))
      events.push_back("MALFORMED " + event);
    pos = end + 2;
  }
  return events;
}

}  // namespace spate
