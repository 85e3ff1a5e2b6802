// ResponseStore: the responses of /v1/responses that may be asked for again or continued. Bounded: the last ones used
// are kept. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <unordered_map>

namespace spate {

class ResponseEvents;

struct StoredResponse {
  std::string response_json;  // the response object, as it stands
  std::shared_ptr<const nlohmann::ordered_json>
      messages;  // the conversation with the answer, as chat messages; null while it runs
  std::shared_ptr<const nlohmann::ordered_json> input_items;  // of the request, each with an id; never null
  std::function<void()> cancel;                               // of a background response that runs; else empty
  std::shared_ptr<ResponseEvents> events;                     // never null, but in tests
};

class ResponseStore {
 public:
  explicit ResponseStore(size_t max_count = 1000, size_t max_bytes = size_t{64} << 20)
      : max_count_(max_count), max_bytes_(max_bytes) {}

  void put(const std::string& id, StoredResponse response);      // replaces
  void replace(const std::string& id, StoredResponse response);  // only where it is here
  std::optional<StoredResponse> find(const std::string& id);
  bool erase(const std::string& id);  // false: it is not here
  size_t num_bytes() const;

 private:
  struct Entry {
    std::string id;
    StoredResponse response;
    size_t num_bytes = 0;
  };
  void store(const std::string& id, StoredResponse response, bool may_be_new);

  const size_t max_count_, max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<std::string, std::list<Entry>::iterator> places_;
  size_t num_bytes_ = 0;
};

}  // namespace spate
