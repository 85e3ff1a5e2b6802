// LiveFeed: what people see of the engine while it runs: the stream of /debug/live, the steps of /debug/steps, and a
// history of fifteen minutes.
//
// A thread of its own looks: once a second at the engine's counters, and while somebody watches four times a second at
// the engine itself. All watchers share one look and one text, so twenty cost the engine what one does.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/inspection.h"
#include "server/frontend.h"
#include "server/http_server.h"
#include "server/json_writer.h"

namespace spate {

HttpResponse steps_response(const Frontend& frontend, const EngineInspection& seen);  // a line a step, newest last

class LiveFeed {
 public:
  using FindFrontend = std::function<std::shared_ptr<Frontend>()>;  // null while the model loads; any thread
  LiveFeed(const ServingMetrics& metrics, FindFrontend find_frontend);
  ~LiveFeed();  // stop()

  // Streams a full picture, then what changed. Any thread.
  void watch(std::shared_ptr<HttpResponder> responder);
  // Answers once, with what `answer` makes of the engine's state. Any thread.
  using Answer = std::function<HttpResponse(const Frontend&, const EngineInspection&)>;
  void tell(std::shared_ptr<HttpResponder> responder, Answer answer);
  void stop();  // ends the streams
  // Runs `take` while the feed does not use the front-end: what find_frontend gave until now may be let go in it.
  // Watchers of a model that has none hear the end of their stream. Any thread.
  void without_frontend(const std::function<void()>& take);

 private:
  // Counters at one moment; the history is made of their differences.
  struct Counts {
    double seconds = 0;
    std::weak_ptr<const Frontend> frontend;  // whose they are: those of another begin at 0
    EngineStats stats;
    std::vector<uint64_t> first_token, inter_token;  // buckets
  };
  void run();
  void add_history(const std::shared_ptr<Frontend>& frontend);
  void look_at_frontend(bool is_history_due);
  void end_watches();
  void look(const Frontend& frontend);
  void write_head(JsonWriter& json, const Frontend& frontend) const;
  void write_sequences(JsonWriter& json, const EngineInspection& seen) const;
  void write_steps(JsonWriter& json, const EngineInspection& seen, uint64_t after) const;
  std::vector<int64_t> cells_of(const EngineInspection& seen, int num_blocks_each) const;

  const ServingMetrics& metrics_;
  const FindFrontend find_frontend_;

  // The thread's own.
  Counts last_;
  std::deque<std::string> history_;  // JSON arrays, one a second
  size_t num_history_told_ = 0;      // points ever told to watchers; with num_history_made_ for the difference
  size_t num_history_made_ = 0;
  std::vector<std::shared_ptr<HttpResponder>> watchers_;
  std::vector<int64_t> cells_;  // as the watchers have them
  std::weak_ptr<const Frontend> seen_frontend_;  // of the last look
  uint64_t last_step_told_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<HttpResponder>> new_watchers_;
  struct Asker {
    std::shared_ptr<HttpResponder> responder;
    Answer answer;
  };
  std::vector<Asker> askers_;
  bool is_stopping_ = false;

  std::mutex frontend_mutex_;  // held while the thread uses the front-end
  std::mutex stop_mutex_;      // of stop(), which several threads may call
  std::thread thread_;     // last: it uses all of the above
};

}  // namespace spate
