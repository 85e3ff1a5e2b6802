#include "server/http_exchange.h"

#include <boost/asio/post.hpp>

#include "server/http_message.h"

namespace spate {

void HttpExchange::set_request(bool is_head, bool is_http_1_0, bool keep_alive, HttpHeaders headers) {
  is_head_ = is_head, is_http_1_0_ = is_http_1_0, keep_alive_ = keep_alive, headers_ = std::move(headers);
}

void HttpExchange::respond(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return;
  status_ = response.status;
  if (response.close) keep_alive_ = false;
  headers_.insert(headers_.end(), response.headers.begin(), response.headers.end());
  const bool has_body = response.status != 204;
  pending_ = format_http_head({.status = response.status,
                               .content_type = has_body ? std::string_view(response.content_type) : std::string_view(),
                               .content_length = has_body ? static_cast<long>(response.body.size()) : 0,
                               .keep_alive = keep_alive_,
                               .is_http_1_0 = is_http_1_0_},
                              headers_);
  if (!is_head_ && has_body) pending_ += response.body;
  end(lock);
}

void HttpExchange::begin_stream(HttpHeaders headers) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return;
  state_ = State::kStreaming;
  if (is_http_1_0_) keep_alive_ = false;
  headers_.insert(headers_.end(), headers.begin(), headers.end());
  headers_.emplace_back("Cache-Control", "no-cache");
  headers_.emplace_back("X-Accel-Buffering", "no");
  const bool has_type = std::ranges::any_of(headers, [](const auto& header) { return header.first == "Content-Type"; });
  pending_ += format_http_head({.content_type = has_type ? std::string_view() : "text/event-stream; charset=utf-8",
                                .keep_alive = keep_alive_,
                                .is_http_1_0 = is_http_1_0_},
                               headers_);
  wake(lock);
}

void HttpExchange::write(std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming || bytes.empty()) return;
    is_too_slow_ = pending_.size() > max_buffer_bytes_;  // one write may be larger
    if (!is_too_slow_) append_chunk(bytes);
    wake(lock);
  }
  if (is_too_slow()) abandon();
}

void HttpExchange::end_stream() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming) return;
  if (!is_http_1_0_ && !is_head_) pending_ += "0\r\n\r\n";
  end(lock);
}

void HttpExchange::on_disconnect(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) return;
    if (state_ != State::kGone) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

std::string HttpExchange::take_pending() {
  const std::lock_guard lock(mutex_);
  return std::exchange(pending_, {});
}

bool HttpExchange::take_stream_bytes(std::string& bytes) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming || is_too_slow_) return false;
  bytes.swap(pending_);
  return true;
}

void HttpExchange::add_ping() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kStreaming && pending_.empty()) append_chunk(": ping\n\n");
}

bool HttpExchange::is_too_slow() const {
  const std::lock_guard lock(mutex_);
  return is_too_slow_;
}

bool HttpExchange::keep_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_;
}

int HttpExchange::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool HttpExchange::abandon() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    sender_.reset();
    strand_.reset();
    pending_.clear();
    if (state_ == State::kEnded || state_ == State::kGone) return false;
    state_ = State::kGone;
    callback = std::move(on_gone_);
  }
  if (callback) callback();
  return true;
}

HttpExchange::State HttpExchange::locked_state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void HttpExchange::append_chunk(std::string_view bytes) {
  if (is_head_) return;
  if (is_http_1_0_) {
    pending_ += bytes;
  } else {
    append_http_chunk(bytes, pending_);
  }
}

void HttpExchange::end(const Lock& lock) {
  state_ = State::kEnded;
  on_gone_ = nullptr;
  wake(lock);
}

// The strand runs this after the connection went to sleep, never between its look at us and its sleep.
void HttpExchange::wake(const Lock&) {
  if (is_wake_posted_ || !strand_) return;
  is_wake_posted_ = true;
  asio::post(*strand_, [self = shared_from_this(), weak_sender = sender_] {
    {
      const std::lock_guard lock(self->mutex_);
      self->is_wake_posted_ = false;
    }
    if (const auto sender = weak_sender.lock()) sender->on_news(*self);
  });
}

}  // namespace spate
