// HttpExchange: the answer to one request, filled by any thread, sent by the connection. Private to the HTTP server.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "server/http_asio.h"
#include "server/http_server.h"

namespace spate {

class HttpExchange;

// Who sends the answer: the connection.
class HttpSender {
 public:
  virtual ~HttpSender() = default;
  // On an I/O thread: there is something new to send.
  virtual void post_news(std::shared_ptr<HttpExchange> exchange) = 0;
};

// Exchanges with something new to send, on their way to the I/O threads. A step of the engine writes to all streams at
// once: they wake the event loop together, not each by itself.
class HttpNews {
 public:
  explicit HttpNews(asio::io_context::executor_type executor) : executor_(executor) {}
  void add(std::shared_ptr<HttpExchange> exchange);  // any thread; once until its take_sender()

 private:
  void post_some();

  const asio::io_context::executor_type executor_;
  std::mutex mutex_;  // guards what follows
  std::deque<std::shared_ptr<HttpExchange>> exchanges_;
  bool is_posted_ = false;
};

class HttpExchange final : public HttpResponder, public std::enable_shared_from_this<HttpExchange> {
 public:
  HttpExchange(HttpNews& news, std::weak_ptr<HttpSender> sender, size_t max_buffer_bytes)
      : news_(&news), sender_(std::move(sender)), max_buffer_bytes_(max_buffer_bytes) {}

  void respond(HttpResponse response) override;
  void begin_stream(HttpHeaders headers) override;
  void write(std::string_view bytes) override;
  void end_stream() override;
  void on_disconnect(std::function<void()> callback) override;
  bool is_gone() const override { return locked_state() == State::kGone; }

  // Who is told of the news; what is written from now on is news again. Null: nobody any more.
  std::shared_ptr<HttpSender> take_sender();

  // The connection's side, on its strand.
  void set_request(bool is_head, bool is_http_1_0, bool keep_alive, HttpHeaders headers);
  std::string take_pending();
  // A stream's pending bytes into `bytes`, which is empty; its room is kept for more. False, with nothing taken: the stream
  // has ended or is cut off.
  bool take_stream_bytes(std::string& bytes);
  void add_ping();
  bool is_streaming() const { return locked_state() == State::kStreaming; }
  bool takes_interim() const { return !is_http_1_0_ && locked_state() == State::kWaiting; }  // 1xx
  bool is_ended() const { return locked_state() == State::kEnded; }
  bool is_too_slow() const;
  bool keep_alive() const;
  int status() const;
  // The client has gone or is cut off: what is unsent is dropped. True when the answer had not ended.
  bool abandon();

 private:
  enum class State { kWaiting, kStreaming, kEnded, kGone };
  using Lock = std::lock_guard<std::mutex>;

  State locked_state() const;
  void append_chunk(std::string_view bytes);
  void end(const Lock& lock);
  void wake(const Lock& lock);

  HttpNews* news_;  // null without the connection: a handler may hold the responder longer than the server lives
  std::weak_ptr<HttpSender> sender_;
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
  bool is_news_ = false;
  bool is_too_slow_ = false;
};

}  // namespace spate
