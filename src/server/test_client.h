// A plain blocking HTTP client over a socket, for tests: it can send anything, and read what comes byte by byte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spate {

struct TestResponse {
  int status = 0;                                   // 0: the connection closed without an answer
  std::string head, body;                           // body without chunk framing
  std::string header(std::string_view name) const;  // case-insensitive; empty when absent
};

class TestClient {
 public:
  explicit TestClient(int port);
  explicit TestClient(const std::string& unix_path);
  ~TestClient();
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool send(std::string_view bytes);  // false: the other side has closed
  TestResponse receive(bool is_head = false);
  // Until `text` has come or the connection ends; what came.
  std::string receive_until(std::string_view text);
  bool is_closed_by_peer();  // waits up to the timeout for the end
  void shut_down_sending();  // half-closed: it may still receive
  void close();

  TestResponse get(const std::string& path, const std::string& headers = {});
  TestResponse post(const std::string& path, const std::string& body, const std::string& headers = {});

 private:
  bool fill();
  int fd_ = -1;
  bool has_ended_ = false;
  std::string buffer_;
};

// The data of the events of an SSE body, "[DONE]" included.
std::vector<std::string> sse_events(const std::string& body);

}  // namespace spate
