// ResponseEvents: what happened to one response of /v1/responses, event by event, for streams that begin or go on
// later. Their number is their place, so that a client goes on behind the last one that it has. Thread-safe; one thread
// adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_server.h"

namespace spate {

class ResponseEvents {
 public:
  // keeps = false: only numbers and renders.
  explicit ResponseEvents(bool keeps) : keeps_(keeps) {}

  // Appends; gives the event as a stream has it.
  std::string add(std::string_view type, const nlohmann::ordered_json& fields);
  // The events of add_delta() have these fields before and behind their delta.
  void begin_deltas(std::string_view type, const nlohmann::ordered_json& before, const nlohmann::ordered_json& behind);
  std::string add_delta(std::string_view delta);
  void end();

  // A stream of the events with numbers above `after`, then of those to come.
  void follow(std::shared_ptr<HttpResponder> responder, int64_t after);

  size_t num_bytes() const;

 private:
  // What the deltas of one item share; of any other event all but its number.
  struct Frame {
    std::string type, before, behind;
  };
  struct Event {
    uint32_t frame = 0;
    std::string delta;  // as JSON; empty: the event has none
  };
  struct Follower {
    std::shared_ptr<HttpResponder> responder;
    size_t next = 0;  // the event that it gets next
  };
  std::string append(uint32_t frame, std::string delta);
  std::string text_of(const Event& event, size_t number) const;
  void feed(Follower& follower, size_t max_bytes) const;
  static constexpr size_t kFeedBytes = 256 << 10;  // at once, below what a connection may have unsent

  const bool keeps_;
  mutable std::mutex mutex_;
  std::vector<Frame> frames_;
  std::vector<Event> events_;
  std::vector<Follower> followers_;
  size_t num_events_ = 0, num_bytes_ = 0;
  uint32_t delta_frame_ = 0;
  bool has_ended_ = false;
};

}  // namespace spate
