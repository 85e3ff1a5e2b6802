#include "server/response_store.h"

#include <nlohmann/json.hpp>

#include "server/response_events.h"

namespace spate {

void ResponseStore::put(const std::string& id, StoredResponse response) { store(id, std::move(response), true); }

void ResponseStore::replace(const std::string& id, StoredResponse response) { store(id, std::move(response), false); }

void ResponseStore::store(const std::string& id, StoredResponse response, bool may_be_new) {
  size_t num_bytes = id.size() + response.response_json.size();
  if (response.messages) num_bytes += response.messages->dump().size();
  if (response.input_items) num_bytes += response.input_items->dump().size();
  if (response.events) num_bytes += response.events->num_bytes();
  const std::lock_guard lock(mutex_);
  if (const auto place = places_.find(id); place != places_.end()) {
    num_bytes_ -= place->second->num_bytes;
    entries_.erase(place->second);
    places_.erase(place);
  } else if (!may_be_new) {
    return;
  }
  entries_.push_front({id, std::move(response), num_bytes});
  places_[id] = entries_.begin();
  num_bytes_ += num_bytes;
  while (entries_.size() > max_count_ || num_bytes_ > max_bytes_) {
    num_bytes_ -= entries_.back().num_bytes;
    places_.erase(entries_.back().id);
    entries_.pop_back();
  }
}

std::optional<StoredResponse> ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(id);
  if (place == places_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, place->second);
  return place->second->response;
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(id);
  if (place == places_.end()) return false;
  num_bytes_ -= place->second->num_bytes;
  entries_.erase(place->second);
  places_.erase(place);
  return true;
}

size_t ResponseStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace spate
