#include "cli/graph.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "text/jinja/jinja_json.h"
#include "text/jinja/template.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;
using TimePoint = SteadyClock::time_point;

constexpr double kFirstRetryDelay = 0.2, kMaxRetryDelay = 5;  // seconds; doubled each time
constexpr auto kStopPoll = std::chrono::milliseconds(20);

TimePoint after(double seconds) {
  return SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

Result<std::string> render(const std::string& source, const Json& context) {
  ASSIGN_OR_RETURN(const jinja::Template parsed, jinja::Template::parse(source));
  try {
    return parsed.render(jinja::from_json(context), {});
  } catch (const std::exception& e) {
    return invalid_argument("{}", e.what());
  }
}

std::string list_template(const std::string& expression) { return "{{ (" + expression + ") | tojson }}"; }
std::string condition_template(const std::string& expression) { return "{% if " + expression + " %}1{% endif %}"; }

// A text that is JSON, alone or as a block of Markdown; else null.
Json json_in(std::string_view text) {
  constexpr std::string_view kFence = "```", kSpace = " \t\r\n";
  const auto trim = [&](std::string_view part) {
    const size_t first = part.find_first_not_of(kSpace);
    return first == std::string_view::npos ? std::string_view()
                                           : part.substr(first, part.find_last_not_of(kSpace) + 1 - first);
  };
  text = trim(text);
  if (text.starts_with(kFence) && text.size() > 2 * kFence.size() && text.ends_with(kFence)) {
    text.remove_suffix(kFence.size());
    text = trim(text.substr(std::min(text.find('\n'), text.size())));
  }
  Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_discarded() ? Json() : parsed;
}

std::string last_user_text(const Json& messages) {
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if (!message->is_object() || message->value("role", "") != "user" || !message->contains("content")) continue;
    const Json& content = (*message)["content"];
    if (content.is_string()) return content.get<std::string>();
    std::string text;
    for (const Json& part : content) {
      if (part.is_object() && part.value("type", "") == "text") text += part.value("text", "");
    }
    return text;
  }
  return {};
}

class GraphRun {
 public:
  GraphRun(const GraphSpec& graph, const Json& request, const CallEngine& call_engine,
           const std::function<void(std::string_view)>& on_text, const std::function<bool()>& should_stop)
      : graph_(graph),
        request_(request),
        call_engine_(call_engine),
        on_text_(on_text),
        client_stops_(should_stop),
        end_(after(graph.timeout)) {
    context_["messages"] = request.value("messages", Json::array());
    context_["input"] = last_user_text(context_["messages"]);
    context_["steps"] = Json::object();
    for (const GraphStep& step : graph.steps) {
      for (const std::string& id : step.after) has_followers_.insert(id);
    }
  }

  Result<StepAnswer> run();

 private:
  enum class State { kWaiting, kRunning, kDone, kSkipped };

  bool is_last(const GraphStep& step) const { return !has_followers_.contains(step.id); }
  // A last step waits for those in front of it in the file, since the first that is not skipped gives the answer.
  bool is_ready(size_t i) const;
  void run_step(const GraphStep& step);
  Status run_step_or_error(const GraphStep& step);
  Status run_step_once(const GraphStep& step);
  Result<StepAnswer> run_part(const GraphStep& step, Json context,
                              const std::function<void(std::string_view)>& on_text);
  Status run_map(const GraphStep& step);
  Result<StepAnswer> try_call(const GraphStep& step, const Json& body,
                              const std::function<void(std::string_view)>& on_text);
  bool should_stop() const { return has_failed_ || SteadyClock::now() >= end_ || (client_stops_ && client_stops_()); }
  void finish(const GraphStep& step, State state, Json value, const StepAnswer& answer);
  Json context() {
    const std::lock_guard lock(mutex_);
    return context_;
  }

  const GraphSpec& graph_;
  const Json& request_;
  const CallEngine& call_engine_;
  const std::function<void(std::string_view)>& on_text_;
  const std::function<bool()>& client_stops_;
  const TimePoint end_;
  std::set<std::string> has_followers_;
  std::atomic<bool> has_failed_{false};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Json context_;
  std::map<std::string, State> states_;
  Status failure_;
  StepAnswer answer_;
  bool has_answer_ = false;
};

bool GraphRun::is_ready(size_t i) const {
  const auto state_of = [this](const std::string& id) {
    const auto found = states_.find(id);
    return found == states_.end() ? State::kWaiting : found->second;
  };
  const GraphStep& step = graph_.steps[i];
  if (state_of(step.id) != State::kWaiting) return false;
  const auto has_ended = [&](const std::string& id) {
    return state_of(id) == State::kDone || state_of(id) == State::kSkipped;
  };
  if (!std::all_of(step.after.begin(), step.after.end(), has_ended)) return false;
  for (size_t j = 0; is_last(step) && j < i; ++j) {
    if (is_last(graph_.steps[j]) && state_of(graph_.steps[j].id) != State::kSkipped) return false;
  }
  return true;
}

Result<StepAnswer> GraphRun::run() {
  std::vector<std::thread> threads;
  {
    std::unique_lock lock(mutex_);
    while (!has_answer_ && failure_.ok()) {
      for (size_t i = 0; i < graph_.steps.size(); ++i) {
        if (!is_ready(i)) continue;
        states_[graph_.steps[i].id] = State::kRunning;
        try {
          threads.emplace_back([this, i] { run_step(graph_.steps[i]); });
        } catch (const std::system_error&) {
          states_[graph_.steps[i].id] = State::kWaiting;
          failure_ = resource_exhausted("graph {}: this machine lends no more threads", graph_.name);
          break;
        }
      }
      const bool is_running = std::any_of(states_.begin(), states_.end(),
                                          [](const auto& entry) { return entry.second == State::kRunning; });
      if (!is_running && !has_answer_ && failure_.ok()) {
        failure_ = invalid_argument("graph {}: all its last steps were skipped, so there is no answer", graph_.name);
        break;
      }
      if (!has_answer_ && failure_.ok()) changed_.wait(lock);
    }
    has_failed_ = true;  // what still runs is not needed
  }
  for (std::thread& thread : threads) thread.join();
  if (has_answer_) return answer_;
  return failure_;
}

// An exception would end the process: it becomes an error of the step.
Status GraphRun::run_step_or_error(const GraphStep& step) {
  try {
    return run_step_once(step);
  } catch (const std::exception& e) {
    return internal_error("{}", e.what());
  }
}

void GraphRun::run_step(const GraphStep& step) {
  Status status = run_step_or_error(step);
  if (status.ok()) return;
  if (SteadyClock::now() >= end_) status = unavailable("the graph's {:g} s are over", graph_.timeout);
  const std::lock_guard lock(mutex_);
  if (failure_.ok() && !has_answer_)
    failure_ = status.with_context(fmt::format("graph {}, step {}", graph_.name, step.id));
  has_failed_ = true;
  changed_.notify_all();
}

Status GraphRun::run_step_once(const GraphStep& step) {
  if (!step.when.empty()) {
    ASSIGN_OR_RETURN(const std::string holds, render(condition_template(step.when), context()));
    if (holds.empty()) {
      finish(step, State::kSkipped, {}, {});
      return ok_status();
    }
  }
  if (!step.map.empty()) return run_map(step);
  ASSIGN_OR_RETURN(const StepAnswer answer, run_part(step, context(), is_last(step) ? on_text_ : nullptr));
  finish(step, State::kDone, {{"text", answer.text}, {"json", json_in(answer.text)}}, answer);
  return ok_status();
}

Status GraphRun::run_map(const GraphStep& step) {
  const Json shared = context();
  ASSIGN_OR_RETURN(const std::string text, render(list_template(step.map), shared));
  const Json items = Json::parse(text, nullptr, false);
  if (!items.is_array()) return invalid_argument("map: {} is no list but {}", step.map, text.substr(0, 100));
  if (items.size() > static_cast<size_t>(step.max_parts)) {
    return out_of_range("map: {} has {} parts, max_parts is {}", step.map, items.size(), step.max_parts);
  }
  std::vector<StepAnswer> answers(items.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> is_broken{false};
  std::mutex mutex;
  Status failure;
  const auto work = [&] {
    for (size_t i = next++; i < items.size() && !is_broken; i = next++) {
      Json own = shared;
      own["item"] = items[i];
      own["index"] = i;
      Result<StepAnswer> answer = internal_error("");
      try {
        answer = run_part(step, std::move(own), nullptr);
      } catch (const std::exception& e) {
        answer = internal_error("{}", e.what());
      }
      if (answer.ok()) {
        answers[i] = std::move(*answer);
        continue;
      }
      const std::lock_guard lock(mutex);
      if (!is_broken.exchange(true)) failure = answer.status().with_context(fmt::format("part {}", i));
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(items.size(), static_cast<size_t>(step.max_parallel)); ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {  // fewer at once then
      break;
    }
  }
  work();
  for (std::thread& thread : threads) thread.join();
  RETURN_IF_ERROR(failure);
  StepAnswer sum{.finish_reason = "stop"};
  Json texts = Json::array();
  for (StepAnswer& answer : answers) {
    sum.text += (sum.text.empty() ? "" : "\n") + answer.text;
    sum.num_prompt_tokens += answer.num_prompt_tokens;
    sum.num_completion_tokens += answer.num_completion_tokens;
    texts.push_back(std::move(answer.text));
  }
  if (is_last(step) && on_text_) on_text_(sum.text);
  Json value{{"text", sum.text}, {"texts", std::move(texts)}};
  finish(step, State::kDone, std::move(value), sum);
  return ok_status();
}

Result<StepAnswer> GraphRun::run_part(const GraphStep& step, Json context,
                                      const std::function<void(std::string_view)>& on_text) {
  Json body = step.request;
  if (is_last(step)) {
    for (const auto& [key, value] : request_.items()) {
      if (key != "messages" && key != "model" && key != "stream" && key != "stream_options") body[key] = value;
    }
  }
  body["messages"] = Json::array();
  if (!step.system.empty()) {
    ASSIGN_OR_RETURN(std::string text, render(step.system, context));
    body["messages"].push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  ASSIGN_OR_RETURN(std::string text, render(step.prompt, context));
  body["messages"].push_back({{"role", "user"}, {"content", std::move(text)}});
  return try_call(step, body, on_text);
}

Result<StepAnswer> GraphRun::try_call(const GraphStep& step, const Json& body,
                                      const std::function<void(std::string_view)>& on_text) {
  double delay = kFirstRetryDelay;
  for (int attempt = 0;; ++attempt) {
    const TimePoint end = after(step.timeout);
    bool has_told = false;
    StepCall call{.engine = step.engine, .body = body, .on_text = {}, .should_stop = [&] {
                    return should_stop() || SteadyClock::now() >= end;
                  }};
    if (on_text) {
      call.on_text = [&](std::string_view text) {
        has_told = has_told || !text.empty();
        on_text(text);
      };
    }
    Result<StepAnswer> answer = call_engine_(call);
    if (answer.ok()) return answer;
    Status status = answer.status();
    if (SteadyClock::now() >= end) status = unavailable("no answer within {:g} s", step.timeout);
    const bool may_pass = status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kResourceExhausted;
    // What the client has read cannot be taken back.
    if (attempt >= step.retries || !may_pass || has_told || should_stop()) {
      return attempt > 0 ? status.with_context(fmt::format("after {} attempts", attempt + 1)) : status;
    }
    for (const TimePoint next = after(delay); SteadyClock::now() < next && !should_stop();)
      std::this_thread::sleep_for(kStopPoll);
    delay = std::min(2 * delay, kMaxRetryDelay);
  }
}

void GraphRun::finish(const GraphStep& step, State state, Json value, const StepAnswer& answer) {
  const std::lock_guard lock(mutex_);
  states_[step.id] = state;
  if (state == State::kDone) {
    context_["steps"][step.id] = std::move(value);
    answer_.num_prompt_tokens += answer.num_prompt_tokens;
    answer_.num_completion_tokens += answer.num_completion_tokens;
    if (is_last(step)) {
      has_answer_ = true;
      answer_.text = answer.text;
      answer_.finish_reason = answer.finish_reason;
    }
  }
  changed_.notify_all();
}

}  // namespace

Status check_templates(const GraphStep& step) {
  const auto check = [](const char* what, const std::string& source) {
    const Result<jinja::Template> parsed = jinja::Template::parse(source);
    return parsed.ok() ? ok_status() : parsed.status().with_context(what);
  };
  RETURN_IF_ERROR(check("system", step.system));
  RETURN_IF_ERROR(check("prompt", step.prompt));
  if (!step.when.empty()) RETURN_IF_ERROR(check("when", condition_template(step.when)));
  return step.map.empty() ? ok_status() : check("map", list_template(step.map));
}

Result<StepAnswer> run_graph(const GraphSpec& graph, const Json& request, const CallEngine& call_engine,
                             const std::function<void(std::string_view)>& on_text,
                             const std::function<bool()>& should_stop) {
  return GraphRun(graph, request, call_engine, on_text, should_stop).run();
}

}  // namespace spate
