#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "base/log.h"
#include "server/api_handlers.h"
#include "server/api_key.h"
#include "server/api_response.h"
#include "server/http_message.h"
#include "server/json_parse.h"
#include "server/live_feed.h"
#include "server/openapi.h"
#include "server/prepare_pools.h"
#include "server/routes.h"
#include "server/serving_metrics.h"
#include "server/web_page.h"

namespace spate {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr const char* kVersion = "0.1.0";
constexpr size_t kMaxLoggedFields = 256;          // names of unknown fields
constexpr auto kStuckTimeout = seconds(300);      // sequences run and no step ends for so long: /livez fails
constexpr size_t kMaxUnusedBodyBytes = 64 << 10;  // of a GET
constexpr auto kFlushTimeout = std::chrono::milliseconds(2000);  // for clients to take the end of their answers

enum class State { kLoading, kReady, kDraining };

// Rounded up: no time becomes 0, which means "never" or "at once".
std::chrono::milliseconds milliseconds_of(double num_seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(num_seconds * 1000)));
}

// A path or a method of a client, for the log: no control characters, no end.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) out += c > 0x1F && c < 0x7F ? c : '?';
  return out;
}

HttpResponse error_response(Endpoint endpoint, const ApiError& error) {
  return is_messages(endpoint) ? messages_error_response(error) : http_response_of(error);
}

}  // namespace

struct Server::Impl {
  const ServerConfig config;
  ServingMetrics metrics;
  std::atomic<State> state{State::kLoading};
  std::atomic<double> progress{0};
  std::atomic<bool> refuses_work{false};
  std::atomic<bool> is_stuck{false};
  std::atomic<bool> is_stopping{false};
  std::atomic<int> num_active{0};  // chat and completion requests in flight

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::shared_ptr<Frontend> frontend;
  int num_shutdown_requests = 0;
  std::set<std::string> logged_fields;

  const std::shared_ptr<ResponseStore> responses = std::make_shared<ResponseStore>();
  std::unique_ptr<PreparePools> prepare_pools;
  std::unique_ptr<HttpServer> http;
  LiveFeed live_feed{metrics, [this] { return get_frontend(); }};

  explicit Impl(ServerConfig server_config) : config(std::move(server_config)) {}

  std::shared_ptr<Frontend> get_frontend() {
    const std::lock_guard lock(mutex);
    return frontend;
  }

  // ---- requests, on an I/O thread ----

  // What the head alone decides, before a body is read. Nothing: the request goes to handle().
  std::optional<HttpResponse> check_head(HttpRequest& request) {
    const std::string& root = config.root_path;
    if (!root.empty() && request.path.starts_with(root) &&
        (request.path.size() == root.size() || request.path[root.size()] == '/')) {
      request.path.erase(0, root.size());
      if (request.path.empty()) request.path = "/";
    }
    const Route* route = find_route(request.path, request.method);
    if (!route) {
      return http_response_of(http_error(404, fmt::format("There is no {} here.", printable(request.path))));
    }
    if (request.method == "OPTIONS")
      return HttpResponse{.status = 204, .headers = {{"Allow", allowed_methods(*route)}}};
    const bool needs_key = route->needs_key || (route->endpoint == Endpoint::kMetrics && config.metrics_auth);
    if (needs_key && !config.api_key.empty() && !has_valid_api_key(request, config.api_key)) {
      HttpResponse response =
          error_response(route->endpoint,
                         http_error(401, "The API key is missing or wrong: send it as \"Authorization: Bearer KEY\"."));
      response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
    if (!takes_method(*route, request.method)) {
      HttpResponse response = http_response_of(
          http_error(405, fmt::format("{} takes {}, not {}.", route->path, taken_methods(*route), printable(request.method))));
      response.headers.emplace_back("Allow", allowed_methods(*route));
      return response;
    }
    if (request.is_on_reserve && needs_model(route->endpoint)) {
      return http_response_of(
          http_error(503, fmt::format("There are {} connections, no more are taken.", config.max_connections)));
    }
    if (request.method != "POST") request.max_body_bytes = std::min(request.max_body_bytes, kMaxUnusedBodyBytes);
    return std::nullopt;
  }

  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    const Route& route = *find_route(request.path, request.method);
    if (std::optional<ApiError> error = answer(route, request, responder)) {
      responder->respond(error_response(route.endpoint, *error));
    }
  }

  std::optional<ApiError> answer(const Route& route, HttpRequest& request,
                                 const std::shared_ptr<HttpResponder>& responder) {
    switch (route.endpoint) {
      case Endpoint::kRoot:
        if (config.ui && asks_for_web_page(request)) {
          responder->respond(web_page_response("index.html"));
        } else {
          responder->respond({.content_type = "text/plain; charset=utf-8",
                              .body = "Spate. The API is under /v1, the metrics are at /metrics.\n"});
        }
        return std::nullopt;
      case Endpoint::kWebPage:
        if (!config.ui) return http_error(404, "There is no web page here: the server runs with --no-ui.");
        responder->respond(web_page_response(request.path.substr(kWebPagePrefix.size())));
        return std::nullopt;
      case Endpoint::kHealth:
        return answer_health(*responder);
      case Endpoint::kLivez:
        return answer_livez(*responder);
      case Endpoint::kLoad:
        responder->respond({.body = fmt::format(R"({{"server_load":{}}})", num_active.load())});
        return std::nullopt;
      case Endpoint::kServerVersion:
        responder->respond({.body = fmt::format(R"({{"version":"{}"}})", kVersion)});
        return std::nullopt;
      case Endpoint::kOpenApi:
        responder->respond({.body = openapi_json(kVersion)});
        return std::nullopt;
      case Endpoint::kMetrics:
        responder->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = render_metrics()});
        return std::nullopt;
      case Endpoint::kLive:
        if (request.method == "HEAD") {
          responder->begin_stream({});
          responder->end_stream();
        } else {
          live_feed.watch(responder);
        }
        return std::nullopt;
      case Endpoint::kSteps:
        live_feed.tell_steps(responder);
        return std::nullopt;
      case Endpoint::kAbort:
        return answer_abort(request, *responder);
      case Endpoint::kConfig:
        if (const std::shared_ptr<Frontend> ready = get_frontend()) {
          responder->respond({.body = ready->model().about_json});
          return std::nullopt;
        }
        return answer_unready(*responder);
      default:
        return prepare(route, std::move(request), responder);
    }
  }

  // Not ready: the status says why, in the envelope and beside it, where probes of several engines look.
  std::optional<ApiError> answer_unready(HttpResponder& responder) {
    ApiError error = unavailable_error("The model is loading.", 5);
    std::string extra = fmt::format(R"("status":"loading","progress":{:.3f})", progress.load());
    const std::shared_ptr<Frontend> ready = get_frontend();
    const Status health = ready ? ready->model().engine->health() : ok_status();
    if (state == State::kDraining) {
      error = unavailable_error("The server is shutting down.", 5);
      extra = R"("status":"draining")";
    } else if (!health.ok()) {
      error = unavailable_error(fmt::format("The engine has failed: {}", health.message()), 0);
      extra = R"("status":"dead")";
    }
    HttpResponse response = http_response_of(error);
    response.body.insert(response.body.size() - 1, "," + extra);
    responder.respond(std::move(response));
    return std::nullopt;
  }

  bool is_serving() {
    const std::shared_ptr<Frontend> ready = get_frontend();
    return state == State::kReady && ready && ready->model().engine->health().ok();
  }

  std::optional<ApiError> answer_health(HttpResponder& responder) {
    if (!is_serving()) return answer_unready(responder);
    responder.respond({.body = R"({"status":"ok"})"});
    return std::nullopt;
  }

  std::optional<ApiError> answer_livez(HttpResponder& responder) {
    const std::shared_ptr<Frontend> ready = get_frontend();
    if (ready && state != State::kDraining && !ready->model().engine->health().ok()) return answer_unready(responder);
    if (is_stuck) return unavailable_error("The engine makes no progress.", 0);
    responder.respond({.body = R"({"status":"alive"})"});
    return std::nullopt;
  }

  std::optional<ApiError> answer_abort(const HttpRequest& request, HttpResponder& responder) {
    const std::shared_ptr<Frontend> ready = get_frontend();
    if (!ready) return answer_unready(responder);
    // A page of another origin cannot send this type without asking first.
    if (request.header("content-type").find("application/json") == std::string_view::npos) {
      return bad_request("", "Content-Type must be application/json", "unsupported_media_type");
    }
    ApiResult<std::shared_ptr<const nlohmann::ordered_json>> body = parse_json(request.body);
    if (!body.ok()) return body.error();
    const nlohmann::ordered_json& json = **body;
    if (!json.is_object() || !json.contains("id") || !json["id"].is_number_unsigned()) {
      return bad_request("id", "id must be the number that /debug/live has for the request");
    }
    ready->model().engine->cancel(json["id"].get<RequestId>());
    responder.respond({.body = "{}"});
    return std::nullopt;
  }

  std::string render_metrics() {
    const std::shared_ptr<Frontend> ready = get_frontend();
    if (!ready) return metrics.render(nullptr, {});
    const ServingModel& model = ready->model();
    const EngineConfig& engine = model.engine->config();
    const EngineStats stats = model.engine->stats();
    MetricLabels cache{
        {"block_size", std::to_string(engine.limits.kv_block_size)},
        {"num_gpu_blocks", std::to_string(engine.num_kv_blocks)},
        {"kv_cache_size_tokens", std::to_string(engine.kv_cache_tokens())},
        {"kv_cache_max_concurrency", fmt::format("{:.2f}", static_cast<double>(engine.kv_cache_tokens()) /
                                                               static_cast<double>(std::max(1, engine.max_seq_len())))},
        {"cache_dtype", model.dtype},
        {"enable_prefix_caching", engine.enable_prefix_caching ? "True" : "False"}};
    cache.insert(cache.end(), model.cache_config.begin(), model.cache_config.end());
    return metrics.render(&stats, {.model_name = model.names.front(), .cache_config = std::move(cache)});
  }

  // ---- requests that need the model: the work happens on a prepare thread ----

  std::optional<ApiError> prepare(const Route& route, HttpRequest request,
                                  const std::shared_ptr<HttpResponder>& responder) {
    if (state == State::kLoading || refuses_work || !(state == State::kDraining || is_serving())) {
      return answer_unready(*responder);
    }
    if (std::string_view(route.method) == "POST") {
      const std::string_view type = request.header("content-type");
      if (!type.empty() && type.find("json") == std::string_view::npos) {
        return bad_request("", fmt::format("Content-Type must be application/json, got {}", printable(type)),
                           "unsupported_media_type");
      }
      if (const std::string_view encoding = request.header("content-encoding");
          !encoding.empty() && encoding != "identity") {
        return http_error(
            415, fmt::format("Content-Encoding {} is not read here: send the body as it is.", printable(encoding)));
      }
    }
    const size_t num_body_bytes = request.body.size();
    prepare_pools->post(
        num_body_bytes,
        [this, endpoint = route.endpoint,
         call = std::make_shared<ApiCall>(
             ApiCall{get_frontend(), std::move(request), responder, config.enable_force_include_usage, responses}),
         active = is_generation(route.endpoint) ? std::make_shared<ActiveCount>(num_active) : nullptr]() mutable {
          if (active)
            call->responder = std::make_shared<CountedResponder>(std::move(call->responder), std::move(active));
          if (!is_stopping) run_call(endpoint, *call);
        });
    return std::nullopt;
  }

  // Counts a generation from its request to the end of its answer, when the last holder of the responder lets go.
  struct ActiveCount {
    explicit ActiveCount(std::atomic<int>& counter) : count(counter) { ++count; }
    ~ActiveCount() { --count; }
    ActiveCount(const ActiveCount&) = delete;
    ActiveCount& operator=(const ActiveCount&) = delete;
    std::atomic<int>& count;
  };
  class CountedResponder final : public HttpResponder {
   public:
    CountedResponder(std::shared_ptr<HttpResponder> inner, std::shared_ptr<ActiveCount> count)
        : inner_(std::move(inner)), count_(std::move(count)) {}
    void respond(HttpResponse response) override { inner_->respond(std::move(response)); }
    void begin_stream(HttpHeaders headers) override { inner_->begin_stream(std::move(headers)); }
    void write(std::string_view bytes) override { inner_->write(bytes); }
    void end_stream() override { inner_->end_stream(); }
    void on_disconnect(std::function<void()> callback) override { inner_->on_disconnect(std::move(callback)); }
    bool is_gone() const override { return inner_->is_gone(); }

   private:
    std::shared_ptr<HttpResponder> inner_;
    std::shared_ptr<ActiveCount> count_;
  };

  void run_call(Endpoint endpoint, ApiCall& call) {
    ApiOutcome error;
    IgnoredFields ignored;
    try {
      error = run_api_call(endpoint, call, ignored);
    } catch (const std::exception& e) {
      log_error("server", "{} {}: {}", call.request.method, printable(call.request.path), e.what());
      error = http_error(500, "Internal error.");
    }
    for (const std::string& name : ignored.unknown) note_unknown_field(name);
    for (const std::string& name : ignored.no_effect) note_no_effect_field(name);
    if (error) call.responder->respond(error_response(endpoint, *error));
  }

  bool is_logged_first_time(const std::string& shown) {
    const std::lock_guard lock(mutex);
    return logged_fields.size() < kMaxLoggedFields && logged_fields.insert(shown).second;
  }
  void note_unknown_field(const std::string& name) {
    metrics.count_unknown_field();
    const std::string shown = printable(name);
    if (!is_logged_first_time(shown)) return;
    log_warning("server", "the request field \"{}\" is not known and is ignored (said once)", shown);
  }
  void note_no_effect_field(const std::string& name) {
    if (!is_logged_first_time(name)) return;
    for (const RequestField& field : request_fields()) {
      if (field.name != name || field.use != FieldUse::kNoEffect) continue;
      log_info("server", "the request field \"{}\" has no effect (said once): {}", name, field.help);
      return;
    }
  }

  // ---- bookkeeping ----

  void on_request_done(const HttpSummary& summary) {
    const Route* route = find_route(summary.path);
    metrics.count_http(route ? route->path : "none", summary.method.size() <= 7 ? summary.method : "other",
                       summary.status, summary.seconds);
    const bool is_logged = config.uvicorn_log_level == "info" || config.uvicorn_log_level == "debug" ||
                           config.uvicorn_log_level == "trace";
    const auto& silent = config.disable_access_log_for_endpoints;
    if (!is_logged || std::find(silent.begin(), silent.end(), summary.path) != silent.end()) return;
    log_info("http", "{} - \"{} {} HTTP/1.1\" {} {} {:.3f} s", summary.peer, printable(summary.method),
             printable(summary.path), summary.status, http_status_text(summary.status), summary.seconds);
  }

  struct StatsLog {
    SteadyClock::time_point time = SteadyClock::now();
    EngineStats stats;
    SteadyClock::time_point last_step = SteadyClock::now();
  };

  // The line people grep in vLLM's logs; nothing while nothing happens.
  void log_stats(StatsLog& last) {
    const std::shared_ptr<Frontend> ready = get_frontend();
    if (!ready) return;
    const EngineStats stats = ready->model().engine->stats();
    const auto now = SteadyClock::now();
    const double elapsed = std::chrono::duration<double>(now - last.time).count();
    const auto rate = [&](uint64_t then, uint64_t later) { return static_cast<double>(later - then) / elapsed; };
    if (stats.num_steps != last.stats.num_steps || stats.num_running + stats.num_waiting > 0) {
      const double queries = static_cast<double>(stats.prefix_cache_queries);
      log_info("engine",
               "Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
               "Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
               rate(last.stats.prompt_tokens, stats.prompt_tokens),
               rate(last.stats.generation_tokens, stats.generation_tokens), stats.num_running, stats.num_waiting,
               stats.kv_cache_usage * 100,
               queries > 0 ? 100 * static_cast<double>(stats.prefix_cache_hits) / queries : 0.0);
    }
    if (stats.num_steps != last.stats.num_steps || stats.num_running == 0) last.last_step = now;
    is_stuck = now - last.last_step > kStuckTimeout;
    last.time = now;
    last.stats = stats;
  }

  // ---- the end ----

  void request_shutdown() {
    int count = 0;
    {
      const std::lock_guard lock(mutex);
      count = ++num_shutdown_requests;
    }
    changed.notify_all();
    if (count > 2) std::_Exit(1);
  }
  int shutdown_requests() {
    const std::lock_guard lock(mutex);
    return num_shutdown_requests;
  }
  // Until the time is over or shutdown is asked for `count` times; true in the latter case.
  bool wait_for_shutdown(int count, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, timeout, [&] { return num_shutdown_requests >= count; });
  }

  void drain() {
    state = State::kDraining;
    log_info(
        "server", "shutting down: new requests are {}",
        config.drain_delay > 0 ? fmt::format("taken for {:g} s more", config.drain_delay) : std::string("refused"));
    if (config.drain_delay > 0) wait_for_shutdown(2, milliseconds_of(config.drain_delay));
    refuses_work = true;
    http->begin_drain();
    const auto end = SteadyClock::now() + milliseconds_of(config.shutdown_timeout);
    auto next_log = SteadyClock::now();
    while (num_active > 0 && SteadyClock::now() < end) {
      if (SteadyClock::now() >= next_log) {
        next_log += seconds(5);
        const std::shared_ptr<Frontend> ready = get_frontend();
        const EngineStats stats = ready ? ready->model().engine->stats() : EngineStats{};
        log_info("server", "draining: {} running, {} waiting, {} s left", stats.num_running, stats.num_waiting,
                 std::chrono::duration_cast<seconds>(end - SteadyClock::now()).count());
      }
      if (wait_for_shutdown(2, std::chrono::milliseconds(20))) break;
    }
  }

  void stop() {
    refuses_work = true;
    state = State::kDraining;
    live_feed.stop();
    // The engine's stop() ends what runs with an error, which the listeners still write to their clients.
    if (const std::shared_ptr<Frontend> ready = get_frontend()) ready->model().engine->stop();
    // What has ended goes out before the sockets are cut.
    http->begin_drain();
    const auto end = SteadyClock::now() + kFlushTimeout;
    while ((num_active > 0 || http->num_connections() > 0) && SteadyClock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    http->stop();
    is_stopping = true;  // nobody hears what is still to be prepared
    prepare_pools.reset();
    const std::lock_guard lock(mutex);
    frontend.reset();
  }
};

Server::Server(ServerConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {
  Impl* impl = impl_.get();
  const ServerConfig& flags = impl->config;
  HttpOptions options{.num_io_threads = flags.num_io_threads,
                      .max_header_bytes = flags.max_header_bytes,
                      .max_body_bytes = flags.max_body_bytes,
                      .max_total_large_body_bytes = flags.max_total_large_body_bytes,
                      .max_connections = flags.max_connections,
                      .num_reserve_connections = flags.num_reserve_connections,
                      .keep_alive_timeout = milliseconds_of(flags.timeout_keep_alive),
                      .write_timeout = milliseconds_of(flags.stream_write_timeout),
                      .sse_ping_interval = milliseconds_of(flags.sse_ping_interval),
                      .allowed_origins = flags.allowed_origins,
                      .on_head = [impl](HttpRequest& head) { return impl->check_head(head); },
                      .on_done = [impl](const HttpSummary& summary) { impl->on_request_done(summary); }};
  impl->prepare_pools = std::make_unique<PreparePools>(flags.num_prepare_threads);
  impl->http = std::make_unique<HttpServer>(std::move(options),
                                            [impl](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
                                              impl->handle(std::move(request), std::move(responder));
                                            });
}

Server::~Server() { impl_->stop(); }

Status Server::listen() {
  const ServerConfig& config = impl_->config;
  if (config.uds.empty()) {
    RETURN_IF_ERROR(impl_->http->listen(config.host, config.port));
  } else {
    RETURN_IF_ERROR(impl_->http->listen_unix(config.uds));
  }
  if (config.api_key.empty() && !impl_->http->is_loopback()) {
    log_warning("server", "--host {} without --api-key: whoever reaches port {} may use the model", config.host,
                port());
  }
  if (impl_->config.handle_signals) {
    impl_->http->on_signals({SIGINT, SIGTERM}, [impl = impl_.get()](int) {
      // Nothing runs yet that could be lost, and the loader does not look at signals.
      if (impl->state == State::kLoading) std::_Exit(0);
      impl->request_shutdown();
    });
  }
  impl_->http->start();
  return ok_status();
}

int Server::port() const { return impl_->http->port(); }
void Server::set_loading(double progress) { impl_->progress = progress; }
void Server::shutdown() { impl_->request_shutdown(); }
bool Server::is_shutdown_requested() const { return impl_->shutdown_requests() > 0; }

void Server::set_ready(ServingModel model) {
  if (!impl_->config.served_model_name.empty()) model.names = impl_->config.served_model_name;
  auto frontend = std::make_shared<Frontend>(std::move(model), &impl_->metrics);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->frontend = std::move(frontend);
  }
  impl_->progress = 1;
  impl_->state = State::kReady;
}

int Server::run() {
  Impl::StatsLog stats_log;
  const int interval = impl_->config.log_stats_interval;
  while (!impl_->wait_for_shutdown(1, seconds(interval > 0 ? interval : 10))) {
    if (interval > 0) impl_->log_stats(stats_log);
  }
  impl_->drain();
  impl_->stop();
  log_info("server", "stopped");
  return 0;
}

}  // namespace spate
