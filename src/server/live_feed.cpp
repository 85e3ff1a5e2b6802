#include "server/live_feed.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <limits>

#include "base/log.h"
#include "server/state_report.h"

namespace spate {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr auto kLookInterval = milliseconds(250);
constexpr auto kHistoryInterval = milliseconds(1000);
constexpr auto kLookTimeout = milliseconds(5000);  // a step may take long; then this look is left out
constexpr size_t kMaxHistory = 900;                // points: fifteen minutes
constexpr int kMaxCells = 2048;
constexpr int64_t kFreeCell = 0, kCachedCell = 1, kSharedCell = 2, kFirstRequestCell = 3;  // 3 + request id

double seconds_now() { return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count(); }

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t num_pages = 0, num_resident = 0;
  statm >> num_pages >> num_resident;
  return num_resident * ::sysconf(_SC_PAGESIZE);
}

// As Prometheus' histogram_quantile: linear inside the bucket; NaN (null in JSON) of nothing.
double quantile(double q, const std::vector<double>& bounds, const std::vector<uint64_t>& then,
                const std::vector<uint64_t>& now) {
  uint64_t total = 0;
  for (size_t i = 0; i < now.size(); ++i) total += now[i] - (then.empty() ? 0 : then[i]);
  const double rank = q * static_cast<double>(total);
  double below = 0;
  for (size_t i = 0; total > 0 && i < bounds.size(); ++i) {
    const double count = static_cast<double>(now[i] - (then.empty() ? 0 : then[i]));
    const double lower = i == 0 ? 0 : bounds[i - 1];
    if (count > 0 && below + count >= rank) return lower + (bounds[i] - lower) * (rank - below) / count;
    below += count;
  }
  return total > 0 ? bounds.back() : std::numeric_limits<double>::quiet_NaN();
}

std::string event_of(JsonWriter& json) { return "data: " + json.take() + "\n\n"; }

}  // namespace

HttpResponse steps_response(const Frontend& /*frontend*/, const EngineInspection& seen) {
  std::string text;
  for (const StepRecord& step : seen.steps) text += describe_step(step) + "\n";
  return {.content_type = "text/plain; charset=utf-8", .body = std::move(text)};
}

LiveFeed::LiveFeed(const ServingMetrics& metrics, FindFrontend find_frontend)
    : metrics_(metrics), find_frontend_(std::move(find_frontend)), thread_([this] { run(); }) {}

LiveFeed::~LiveFeed() { stop(); }

void LiveFeed::watch(std::shared_ptr<HttpResponder> responder) {
  responder->begin_stream({});
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return responder->end_stream();
  new_watchers_.push_back(std::move(responder));
  changed_.notify_all();
}

void LiveFeed::tell(std::shared_ptr<HttpResponder> responder, Answer answer) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return responder->respond(http_response_of(unavailable_error("The server is shutting down.", 5)));
  askers_.push_back({std::move(responder), std::move(answer)});
  changed_.notify_all();
}

void LiveFeed::stop() {
  const std::lock_guard stop_lock(stop_mutex_);
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LiveFeed::run() {
  auto next_look = SteadyClock::now(), next_history = next_look;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto until = watchers_.empty() ? next_history : std::min(next_look, next_history);
      changed_.wait_until(lock, until, [&] { return is_stopping_ || !new_watchers_.empty() || !askers_.empty(); });
      if (is_stopping_) break;
    }
    const auto now = SteadyClock::now();
    const bool is_history_due = now >= next_history;
    if (is_history_due) next_history = std::max(next_history + kHistoryInterval, now);
    look_at_frontend(is_history_due);
    next_look = now + kLookInterval;
  }
  for (const auto& watcher : watchers_) watcher->end_stream();
  for (const auto& watcher : new_watchers_) watcher->end_stream();
  for (const Asker& asker : askers_) {
    asker.responder->respond(http_response_of(unavailable_error("The server is shutting down.", 5)));
  }
}

void LiveFeed::look_at_frontend(bool is_history_due) {
  const std::lock_guard lock(frontend_mutex_);
  const std::shared_ptr<Frontend> frontend = find_frontend_();
  if (!frontend) return end_watches();
  if (is_history_due) add_history(frontend);
  if (seen_frontend_.lock() != frontend) {  // steps and blocks begin anew
    last_step_told_ = 0;
    seen_frontend_ = frontend;
  }
  look(*frontend);
}

// Nothing is there to see: the page asks again.
void LiveFeed::end_watches() {
  for (const auto& watcher : watchers_) watcher->end_stream();
  watchers_.clear();
  const std::lock_guard lock(mutex_);
  for (const auto& watcher : new_watchers_) watcher->end_stream();
  for (const Asker& asker : askers_) {
    asker.responder->respond(http_response_of(unavailable_error("The model is not loaded.", 5)));
  }
  new_watchers_.clear();
  askers_.clear();
}

void LiveFeed::without_frontend(const std::function<void()>& take) {
  const std::lock_guard lock(frontend_mutex_);
  take();
}

void LiveFeed::add_history(const std::shared_ptr<Frontend>& frontend) {
  Counts now{.seconds = seconds_now(),
             .frontend = frontend,
             .stats = frontend->model().engine->stats(),
             .first_token = metrics_.time_to_first_token().counts(),
             .inter_token = metrics_.inter_token_latency().counts()};
  if (last_.frontend.lock() == frontend) {
    const double elapsed = now.seconds - last_.seconds;
    const auto rate = [&](uint64_t then, uint64_t later) { return static_cast<double>(later - then) / elapsed; };
    const uint64_t num_steps = now.stats.num_steps - last_.stats.num_steps;
    const uint64_t num_queries = now.stats.prefix_cache_queries - last_.stats.prefix_cache_queries;
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    const auto& ttft = metrics_.time_to_first_token().upper_bounds();
    const auto& itl = metrics_.inter_token_latency().upper_bounds();
    JsonWriter json;
    json.begin_array().value(static_cast<int64_t>(std::time(nullptr)));
    json.value(rate(last_.stats.prompt_tokens, now.stats.prompt_tokens));
    json.value(rate(last_.stats.generation_tokens, now.stats.generation_tokens));
    json.value(now.stats.num_running).value(now.stats.num_waiting).value(now.stats.kv_cache_usage);
    json.value(num_queries == 0 ? nothing
                                : static_cast<double>(now.stats.prefix_cache_hits - last_.stats.prefix_cache_hits) /
                                      static_cast<double>(num_queries));
    json.value(now.stats.num_preemptions - last_.stats.num_preemptions);
    for (const double q : {0.5, 0.95}) json.value(quantile(q, ttft, last_.first_token, now.first_token));
    for (const double q : {0.5, 0.95}) json.value(quantile(q, itl, last_.inter_token, now.inter_token));
    json.value(num_steps == 0
                   ? nothing
                   : (now.stats.device_seconds - last_.stats.device_seconds) / static_cast<double>(num_steps));
    json.value(resident_bytes()).end_array();
    history_.push_back(json.take());
    ++num_history_made_;
    if (history_.size() > kMaxHistory) history_.pop_front();
  }
  last_ = std::move(now);
}

void LiveFeed::look(const Frontend& frontend) {
  std::vector<std::shared_ptr<HttpResponder>> added;
  std::vector<Asker> askers;
  {
    const std::lock_guard lock(mutex_);
    added.swap(new_watchers_);
    askers.swap(askers_);
  }
  std::erase_if(watchers_, [](const auto& watcher) { return watcher->is_gone(); });
  if (watchers_.empty() && added.empty() && askers.empty()) return;

  std::future<EngineInspection> future = frontend.model().engine->inspect();
  if (future.wait_for(kLookTimeout) != std::future_status::ready) {
    for (const auto& watcher : added) watcher->end_stream();
    for (const Asker& asker : askers) {
      asker.responder->respond(http_response_of(unavailable_error("The engine is in a long step.", 1)));
    }
    return;
  }
  const EngineInspection seen = future.get();
  for (const Asker& asker : askers) asker.responder->respond(asker.answer(frontend, seen));

  const int num_blocks_each = std::max(1, (static_cast<int>(seen.block_owners.size()) + kMaxCells - 1) / kMaxCells);
  std::vector<int64_t> cells = cells_of(seen, num_blocks_each);
  if (!watchers_.empty()) {
    JsonWriter json;
    json.begin_object();
    write_head(json, frontend);
    write_sequences(json, seen);
    write_steps(json, seen, last_step_told_);
    json.key("changed_cells").begin_array();
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i >= cells_.size() || cells_[i] != cells[i]) {
        json.begin_array().value(static_cast<int64_t>(i)).value(cells[i]).end_array();
      }
    }
    json.end_array();
    json.key("history").begin_array();
    const size_t num_new = std::min(history_.size(), num_history_made_ - num_history_told_);
    for (size_t i = history_.size() - num_new; i < history_.size(); ++i) json.raw(history_[i]);
    json.end_array().end_object();
    const std::string event = event_of(json);
    for (const auto& watcher : watchers_) watcher->write(event);
  }
  cells_ = std::move(cells);
  num_history_told_ = num_history_made_;
  if (!seen.steps.empty()) last_step_told_ = seen.steps.back().step_id;
  if (added.empty()) return;
  JsonWriter json;
  json.begin_object();
  write_head(json, frontend);
  json.field("num_blocks", static_cast<int64_t>(seen.block_owners.size()));
  json.field("kv_block_size", frontend.model().engine->config().limits.kv_block_size);
  json.field("num_blocks_each", num_blocks_each);
  write_sequences(json, seen);
  write_steps(json, seen, 0);
  json.key("cells").begin_array();
  for (const int64_t cell : cells_) json.value(cell);
  json.end_array();
  json.key("history").begin_array();
  for (const std::string& point : history_) json.raw(point);
  json.end_array().end_object();
  const std::string event = event_of(json);
  for (auto& watcher : added) {
    watcher->write(event);
    watchers_.push_back(std::move(watcher));
  }
}

void LiveFeed::write_head(JsonWriter& json, const Frontend& frontend) const {
  const EngineStats stats = frontend.model().engine->stats();
  json.key("stats").begin_object();
  json.field("num_running", stats.num_running).field("num_waiting", stats.num_waiting);
  json.field("kv_cache_usage", stats.kv_cache_usage).field("num_kv_blocks_cached", stats.num_kv_blocks_cached);
  json.field("num_steps", stats.num_steps).field("num_preemptions", stats.num_preemptions);
  json.field("prompt_tokens", stats.prompt_tokens).field("generation_tokens", stats.generation_tokens);
  json.field("prefix_cache_queries", stats.prefix_cache_queries).field("prefix_cache_hits", stats.prefix_cache_hits);
  json.end_object();
}

void LiveFeed::write_sequences(JsonWriter& json, const EngineInspection& seen) const {
  json.field("num_seqs", seen.num_running + seen.num_waiting);
  json.key("seqs").begin_array();
  for (const SequenceInspection& seq : seen.seqs) {
    json.begin_object().field("id", seq.id).field("index", seq.index).field("phase", phase_name(seq.phase));
    json.field("age", seq.age_seconds).field("prompt", seq.prompt_len).field("cached", seq.num_cached_tokens);
    json.field("computed", seq.num_computed_tokens).field("output", seq.num_output_tokens);
    json.field("blocks", seq.num_blocks);
    json.field("drafts", seq.num_drafts).field("accepted", seq.num_drafts_accepted).end_object();
  }
  json.end_array();
}

void LiveFeed::write_steps(JsonWriter& json, const EngineInspection& seen, uint64_t after) const {
  json.key("steps").begin_array();  // [id, sequences, prefill, decode, cached, wasted, ms, drafts, accepted]
  for (const StepRecord& step : seen.steps) {
    if (step.step_id <= after) continue;
    json.begin_array().value(step.step_id).value(step.num_seqs).value(step.num_prefill_tokens);
    json.value(step.num_decode_tokens).value(step.num_cached_tokens).value(step.num_wasted_tokens);
    json.value(step.device_seconds * 1e3).value(step.num_drafts).value(step.num_drafts_accepted).end_array();
  }
  json.end_array();
}

// A cell stands for its most telling block: of a request before a shared one before a cached one.
std::vector<int64_t> LiveFeed::cells_of(const EngineInspection& seen, int num_blocks_each) const {
  std::vector<int64_t> cells((seen.block_owners.size() + static_cast<size_t>(num_blocks_each) - 1) /
                             static_cast<size_t>(num_blocks_each));
  for (size_t i = 0; i < seen.block_owners.size(); ++i) {
    const int32_t owner = seen.block_owners[i];
    const int64_t cell = owner >= 0 ? kFirstRequestCell + static_cast<int64_t>(seen.seqs[static_cast<size_t>(owner)].id)
                         : owner == EngineInspection::kSharedBlock ? kSharedCell
                         : owner == EngineInspection::kCachedBlock ? kCachedCell
                                                                   : kFreeCell;
    int64_t& shown = cells[i / static_cast<size_t>(num_blocks_each)];
    shown = std::max(shown, cell);
  }
  return cells;
}

}  // namespace spate
