#include "server/engine_log.h"

#include <algorithm>

#include "base/log.h"

namespace spate {
namespace {

constexpr auto kStuckTimeout = std::chrono::seconds(300);

std::string describe_throughput(const EngineStats& stats, const EngineStats& last, double seconds) {
  const auto rate = [&](uint64_t then, uint64_t now) { return static_cast<double>(now - then) / seconds; };
  const auto num_queries = static_cast<double>(stats.prefix_cache_queries);
  return fmt::format(
      "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: "
      "{} "
      "reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
      rate(last.prompt_tokens, stats.prompt_tokens), rate(last.generation_tokens, stats.generation_tokens),
      stats.num_running, stats.num_waiting, stats.kv_cache_usage * 100,
      num_queries > 0 ? 100 * static_cast<double>(stats.prefix_cache_hits) / num_queries : 0.0);
}

// Empty where no drafts ran.
std::string describe_drafts(const EngineStats& stats, const EngineStats& last, double seconds) {
  const auto num_rows = static_cast<double>(stats.num_drafted_rows - last.num_drafted_rows);
  const auto num_drafts = static_cast<double>(stats.num_drafts - last.num_drafts);
  const auto num_accepted = static_cast<double>(stats.num_drafts_accepted - last.num_drafts_accepted);
  if (num_drafts <= 0) return {};
  std::string by_position;
  for (size_t i = 0; i < stats.num_accepted_at.size(); ++i) {
    const uint64_t count = stats.num_accepted_at[i] - last.num_accepted_at[i];
    if (count == 0) break;
    by_position += fmt::format("{}{:.3f}", i == 0 ? "" : ", ", static_cast<double>(count) / num_rows);
  }
  return fmt::format(
      "SpecDecoding metrics: Mean acceptance length: {:.2f}, Accepted throughput: {:.2f} tokens/s, Drafted throughput: "
      "{:.2f} tokens/s, Accepted: {:.0f} tokens, Drafted: {:.0f} tokens, Per-position acceptance rate: {}, Avg Draft "
      "acceptance rate: {:.1f}%",
      1 + num_accepted / num_rows, num_accepted / seconds, num_drafts / seconds, num_accepted, num_drafts,
      by_position.empty() ? "0" : by_position, 100 * num_accepted / num_drafts);
}

}  // namespace

std::vector<std::string> describe_rates(const EngineStats& stats, const EngineStats& last, double seconds) {
  std::vector<std::string> lines;
  if (stats.num_steps == last.num_steps && stats.num_running + stats.num_waiting == 0) return lines;
  lines.push_back(describe_throughput(stats, last, seconds));
  if (std::string drafts = describe_drafts(stats, last, seconds); !drafts.empty()) lines.push_back(std::move(drafts));
  return lines;
}

bool EngineLog::write(std::span<const std::shared_ptr<ServedModel>> models) {
  std::erase_if(last_, [&](const auto& entry) { return std::ranges::find(models, entry.first) == models.end(); });
  bool is_stuck = false;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::shared_ptr<Frontend> frontend = models[i]->frontend();
    if (!frontend) continue;
    const auto [entry, is_new] = last_.try_emplace(models[i]);
    Last& last = entry->second;
    if (is_new) last.time = written_;  // it came since then
    if (last.frontend.lock() != frontend) {
      last.frontend = frontend;
      last.stats = {};
      last.step_time = Clock::now();
    }
    const std::string name = models.size() > 1 ? " (" + models[i]->names().front() + ")" : "";
    is_stuck |= write_model(fmt::format("Engine {:03}{}", i, name), frontend->model().engine->stats(), last);
  }
  written_ = Clock::now();
  return is_stuck;
}

// True: it is stuck.
bool EngineLog::write_model(const std::string& title, const EngineStats& stats, Last& last) const {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last.time).count();
  for (const std::string& line : describe_rates(stats, last.stats, seconds)) log_info("engine", "{}: {}", title, line);
  if (stats.num_steps != last.stats.num_steps || stats.num_running == 0) last.step_time = now;
  last.time = now;
  last.stats = stats;
  return now - last.step_time > kStuckTimeout;
}

}  // namespace spate
