// stream_client: the measured streams of test/soak/mock_streams.py, read by one thread that costs the machine little:
// what a client takes of the cores is latency, too.
//
//   stream_client PORT NUM_STREAMS TIMEOUT_S < request
//
// Sends the bytes of stdin on so many connections to 127.0.0.1 and reads their answers to the end. Prints a line for
// each: the status, 1 if "data: [DONE]" came, else 0, then the time of each event in microseconds of CLOCK_MONOTONIC.
// The last line is the CPU time of this process in seconds. Exit code 1: a connection failed.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace spate {
namespace {

constexpr std::string_view kEvent = "\ndata: {", kEnd = "data: [DONE]";

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Stream {
  int fd = -1;
  std::string status, tail;
  std::vector<int64_t> times_us;
  bool is_done = false;

  bool open(uint16_t port, std::string_view request) {
    fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    return fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
           ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
           ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
  }
  // False at the end.
  bool receive() {
    std::array<char, 1 << 16> buffer;
    const ssize_t num_bytes = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (num_bytes <= 0) return false;
    const int64_t now = now_us();
    // A marker may begin in what came before: no more than its length less one of that is kept.
    std::string text = std::move(tail);
    text.append(buffer.data(), static_cast<size_t>(num_bytes));
    if (status.empty() && text.size() >= 12) status = text.substr(9, 3);
    for (size_t pos = 0; (pos = text.find(kEvent, pos)) != std::string::npos; pos += kEvent.size())
      times_us.push_back(now);
    is_done |= text.find(kEnd) != std::string::npos;
    tail = text.substr(text.size() - std::min(text.size(), kTail));
    if (const size_t event = tail.rfind(kEvent); event != std::string::npos) tail.erase(0, event + kEvent.size());
    return true;
  }
  static constexpr size_t kTail = kEnd.size() - 1;
};

int run(uint16_t port, size_t num_streams, double timeout_s) {
  const std::string request(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<Stream> streams(num_streams);
  const int poll = ::epoll_create1(0);
  for (size_t i = 0; i < num_streams; ++i) {
    if (!streams[i].open(port, request)) {
      std::perror("stream_client");
      return 1;
    }
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    ::epoll_ctl(poll, EPOLL_CTL_ADD, streams[i].fd, &event);
  }
  const int64_t end_us = now_us() + static_cast<int64_t>(timeout_s * 1e6);
  std::array<epoll_event, 64> events;
  for (size_t num_open = num_streams; num_open > 0 && now_us() < end_us;) {
    const int num_ready = ::epoll_wait(poll, events.data(), events.size(), 1000);
    for (int i = 0; i < num_ready; ++i) {
      Stream& stream = streams[events[static_cast<size_t>(i)].data.u64];
      if (stream.receive()) continue;
      ::close(stream.fd);
      --num_open;
    }
  }
  for (const Stream& stream : streams)
    fmt::print("{} {} {}\n", stream.status, stream.is_done ? 1 : 0, fmt::join(stream.times_us, " "));
  fmt::print("{:.3f}\n", static_cast<double>(std::clock()) / CLOCKS_PER_SEC);
  return 0;
}

}  // namespace
}  // namespace spate

int main(int argc, char** argv) {
  unsigned port = 0, num_streams = 0;
  double timeout_s = 0;
  const auto read = [&](int i, auto& value) {
    const std::string_view text = argv[i];
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  };
  if (argc != 4 || !read(1, port) || !read(2, num_streams) || !read(3, timeout_s) || port > 65535) {
    fmt::print(stderr, "usage: stream_client PORT NUM_STREAMS TIMEOUT_S < request\n");
    return 2;
  }
  // The soft limit on files is 1,024 on most machines.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  return spate::run(static_cast<uint16_t>(port), num_streams, timeout_s);
}
