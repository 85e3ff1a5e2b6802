#include "server/http_exchange.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>
#include <utility>
#include <vector>

#include "server/http_message.h"

namespace spate {
namespace {

constexpr size_t kMaxNewsAtOnce = 64;

}  // namespace

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
    if (!is_too_slow_) return;
  }
  abandon();
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
    news_ = nullptr;
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

void HttpExchange::wake(const Lock&) {
  if (is_news_ || news_ == nullptr) return;
  is_news_ = true;
  news_->add(shared_from_this());
}

std::shared_ptr<HttpSender> HttpExchange::take_sender() {
  const std::lock_guard lock(mutex_);
  is_news_ = false;
  return sender_.lock();
}

void HttpNews::add(std::shared_ptr<HttpExchange> exchange) {
  const std::lock_guard lock(mutex_);
  exchanges_.push_back(std::move(exchange));
  if (std::exchange(is_posted_, true)) return;
  asio::post(executor_, [this] { post_some(); });
}

// A few at a time: other events of the loop, and its other threads, get their turn.
void HttpNews::post_some() {
  std::vector<std::shared_ptr<HttpExchange>> some;
  {
    const std::lock_guard lock(mutex_);
    const auto end = exchanges_.begin() + static_cast<std::ptrdiff_t>(std::min(exchanges_.size(), kMaxNewsAtOnce));
    some.assign(std::make_move_iterator(exchanges_.begin()), std::make_move_iterator(end));
    exchanges_.erase(exchanges_.begin(), end);
    is_posted_ = !exchanges_.empty();
    if (is_posted_) asio::post(executor_, [this] { post_some(); });
  }
  for (std::shared_ptr<HttpExchange>& exchange : some) {
    if (const auto sender = exchange->take_sender()) sender->post_news(std::move(exchange));
  }
}

}  // namespace spate
