#include "server/response_events.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Of {"a":1} `,"a":1`.
std::string members_of(const Json& object) {
  if (object.empty()) return "";
  std::string text = dump(object);
  text.front() = ',';
  text.pop_back();
  return text;
}

}  // namespace

std::string ResponseEvents::add(std::string_view type, const Json& fields) {
  const std::lock_guard lock(mutex_);
  frames_.push_back({std::string(type), members_of(fields), ""});
  num_bytes_ += frames_.back().before.size() + sizeof(Frame);
  return append(static_cast<uint32_t>(frames_.size() - 1), "");
}

void ResponseEvents::begin_deltas(std::string_view type, const Json& before, const Json& behind) {
  const std::lock_guard lock(mutex_);
  frames_.push_back({std::string(type), members_of(before) + ",\"delta\":", members_of(behind)});
  num_bytes_ += frames_.back().before.size() + sizeof(Frame);
  delta_frame_ = static_cast<uint32_t>(frames_.size() - 1);
}

std::string ResponseEvents::add_delta(std::string_view delta) {
  std::string json = dump(Json(delta));
  const std::lock_guard lock(mutex_);
  return append(delta_frame_, std::move(json));
}

std::string ResponseEvents::append(uint32_t frame, std::string delta) {
  Event event{frame, std::move(delta)};
  std::string text = text_of(event, num_events_++);
  if (!keeps_) {
    if (event.delta.empty()) frames_.pop_back();
    return text;
  }
  num_bytes_ += sizeof(Event) + event.delta.capacity();
  events_.push_back(std::move(event));
  for (Follower& follower : followers_) feed(follower, kFeedBytes);
  std::erase_if(followers_, [](const Follower& each) { return each.responder->is_gone(); });
  return text;
}

void ResponseEvents::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  for (Follower& follower : followers_) {
    feed(follower, SIZE_MAX);
    follower.responder->end_stream();
  }
  followers_.clear();
}

void ResponseEvents::follow(std::shared_ptr<HttpResponder> responder, int64_t after) {
  responder->begin_stream({});
  const std::lock_guard lock(mutex_);
  Follower follower{std::move(responder), static_cast<size_t>(after + 1)};
  feed(follower, has_ended_ ? SIZE_MAX : kFeedBytes);
  if (has_ended_) {
    follower.responder->end_stream();
  } else {
    followers_.push_back(std::move(follower));
  }
}

// One write: what is written at once may be larger than what a slow client may leave unsent.
void ResponseEvents::feed(Follower& follower, size_t max_bytes) const {
  std::string text;
  for (; follower.next < events_.size() && text.size() < max_bytes; ++follower.next) {
    text += text_of(events_[follower.next], follower.next);
  }
  if (!text.empty()) follower.responder->write(text);
}

std::string ResponseEvents::text_of(const Event& event, size_t number) const {
  const Frame& frame = frames_[event.frame];
  return fmt::format("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1}{2}{3}{4}}}\n\n", frame.type, number,
                     frame.before, event.delta, frame.behind);
}

size_t ResponseEvents::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace spate
