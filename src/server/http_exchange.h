// HttpExchange: the answer to one request, filled by any thread, sent by the connection. Private to the HTTP server.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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
  virtual void on_news(HttpExchange& exchange) = 0;  // on the strand: there is something new to send
};

class HttpExchange final : public HttpResponder, public std::enable_shared_from_this<HttpExchange> {
 public:
  HttpExchange(Strand strand, std::weak_ptr<HttpSender> sender, size_t max_buffer_bytes)
      : strand_(std::move(strand)), sender_(std::move(sender)), max_buffer_bytes_(max_buffer_bytes) {}

  void respond(HttpResponse response) override;
  void begin_stream(HttpHeaders headers) override;
  void write(std::string_view bytes) override;
  void end_stream() override;
  void on_disconnect(std::function<void()> callback) override;
  bool is_gone() const override { return locked_state() == State::kGone; }

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

  // Given up with the connection: a handler may hold the responder longer than the server lives.
  std::optional<Strand> strand_;
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
  bool is_wake_posted_ = false;
  bool is_too_slow_ = false;
};

}  // namespace spate
