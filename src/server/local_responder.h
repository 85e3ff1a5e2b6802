// LocalResponder: takes an answer inside the process, piece by piece, as a socket would.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "server/http_server.h"

namespace spate {

class LocalResponder final : public HttpResponder {
 public:
  enum class Kind { kChunk, kDone, kFailed };
  struct Piece {
    Kind kind;
    std::string json;  // kDone: empty behind a stream
  };

  // HttpResponder: any thread.
  void respond(HttpResponse response) override;
  void begin_stream(HttpHeaders) override {}
  void write(std::string_view bytes) override;
  void end_stream() override;
  void on_disconnect(std::function<void()> callback) override;
  bool is_gone() const override;

  // The next piece; waits at most `timeout_seconds` (below 0: without a limit).
  std::optional<Piece> next(double timeout_seconds);
  // The caller wants no more: what runs for it is ended.
  void disconnect();

 private:
  void push(Piece piece);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  std::string unread_;  // of the stream: an event that is not complete
  bool has_failed_ = false, has_ended_ = false, is_gone_ = false;
  std::function<void()> on_disconnect_;
};

}  // namespace spate
