#include "server/local_responder.h"

#include <utility>

namespace spate {
namespace {

constexpr std::string_view kData = "data: ", kEnd = "\n\n";

}  // namespace

void LocalResponder::push(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    if (has_ended_) return;
    has_ended_ = piece.kind != Kind::kChunk;
    pieces_.push_back(std::move(piece));
    if (has_ended_) on_disconnect_ = nullptr;
  }
  changed_.notify_all();
}

void LocalResponder::respond(HttpResponse response) {
  push({response.status < 400 ? Kind::kDone : Kind::kFailed, std::move(response.body)});
}

// Server-sent events: "data: {...}\n\n". Names of events are in their JSON too; comments keep connections alive.
void LocalResponder::write(std::string_view bytes) {
  unread_ += bytes;
  for (size_t end; (end = unread_.find(kEnd)) != std::string::npos; unread_.erase(0, end + kEnd.size())) {
    const std::string_view event = std::string_view(unread_).substr(0, end);
    const size_t begin = event.starts_with(kData) ? 0 : event.find("\ndata: ");
    if (begin == std::string_view::npos) continue;
    std::string json(event.substr(begin + kData.size() + (event[begin] == '\n' ? 1 : 0)));
    if (json == "[DONE]") continue;
    const bool is_error = json.starts_with("{\"error\":");
    push({is_error ? Kind::kFailed : Kind::kChunk, std::move(json)});
  }
}

void LocalResponder::end_stream() { push({Kind::kDone, {}}); }

void LocalResponder::on_disconnect(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_gone_) {
      if (!has_ended_) on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool LocalResponder::is_gone() const {
  const std::lock_guard lock(mutex_);
  return is_gone_;
}

std::optional<LocalResponder::Piece> LocalResponder::next(double timeout_seconds) {
  std::unique_lock lock(mutex_);
  const auto has_piece = [this] { return !pieces_.empty(); };
  if (timeout_seconds < 0) {
    changed_.wait(lock, has_piece);
  } else if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), has_piece)) {
    return std::nullopt;
  }
  Piece piece = std::move(pieces_.front());
  pieces_.pop_front();
  return piece;
}

void LocalResponder::disconnect() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_gone_, true)) return;
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback();
  push({Kind::kFailed, R"({"error":{"message":"The request was cancelled.","type":"cancelled","param":null,"code":null}})"});
}

}  // namespace spate
