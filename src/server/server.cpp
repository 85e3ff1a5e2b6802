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
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "base/version.h"
#include "server/api_handlers.h"
#include "server/api_response.h"
#include "server/engine_log.h"
#include "server/head_check.h"
#include "server/http_message.h"
#include "server/idle_models.h"
#include "server/json_parse.h"
#include "server/llama_api.h"
#include "server/load_report_responder.h"
#include "server/log_api.h"
#include "server/messages_responder.h"
#include "server/metrics_compat.h"
#include "server/model_admin.h"
#include "server/model_registry.h"
#include "server/openapi.h"
#include "server/passing_responder.h"
#include "server/prepare_pools.h"
#include "server/request_log.h"
#include "server/routes.h"
#include "server/server_health.h"
#include "server/serving_metrics.h"
#include "server/state_report.h"
#include "server/web_page.h"

namespace spate {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr auto kInspectTimeout = seconds(5);                     // of an engine in a long step
constexpr auto kFlushTimeout = std::chrono::milliseconds(2000);  // for clients to take the end of their answers

// Rounded up: no time becomes 0, which means "never" or "at once".
std::chrono::milliseconds milliseconds_of(double num_seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(num_seconds * 1000)));
}

}  // namespace

struct Server::Impl {
  const ServerConfig config;
  HttpMetrics metrics;
  ModelRegistry models;
  ServerHealth health{models};
  std::unique_ptr<ModelAdmin> admin;
  std::unique_ptr<IdleModels> idle_models;
  std::atomic<bool> refuses_work{false};
  std::atomic<bool> is_stopping{false};
  std::atomic<int> num_active{0};  // chat and completion requests in flight

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  int num_shutdown_requests = 0;
  bool wants_state = false;  // SIGUSR1 has come

  IgnoredNamesLog ignored_names;
  const std::shared_ptr<ResponseStore> responses = std::make_shared<ResponseStore>();
  std::unique_ptr<PreparePools> prepare_pools;
  std::unique_ptr<HttpServer> http;

  explicit Impl(ServerConfig server_config) : config(std::move(server_config)) {}

  // ---- requests, on an I/O thread ----

  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    const Route& route = *find_route(request.path, request.method);
    if (is_messages(route.endpoint)) responder = std::make_shared<MessagesResponder>(responder, request.request_id);
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
        health.answer_health(*responder);
        return std::nullopt;
      case Endpoint::kLivez:
        health.answer_livez(*responder);
        return std::nullopt;
      case Endpoint::kLoad:
        responder->respond({.body = fmt::format(R"({{"server_load":{}}})", num_active.load())});
        return std::nullopt;
      case Endpoint::kServerVersion:
        responder->respond({.body = fmt::format(R"({{"version":"{}"}})", kVersion)});
        return std::nullopt;
      case Endpoint::kLoraAdapters:
        responder->respond({.body = "[]"});
        return std::nullopt;
      case Endpoint::kSetLoraAdapters:
        return set_lora_adapters(request.body, *responder);
      case Endpoint::kOpenApi:
        responder->respond({.body = openapi_json(kVersion)});
        return std::nullopt;
      case Endpoint::kMetrics:
        responder->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = render_metrics()});
        return std::nullopt;
      case Endpoint::kLog:
        return answer_log(request, *responder);
      case Endpoint::kLive:
      case Endpoint::kSlots:
      case Endpoint::kSteps:
      case Endpoint::kAbort:
      case Endpoint::kConfig:
        return answer_about_model(route.endpoint, request, responder);
      case Endpoint::kAdminModels:
        return admin->list(*responder);
      case Endpoint::kIsSleeping:
        return admin->is_sleeping(query_value(request.query, "model"), *responder);
      case Endpoint::kAbortRequests:
        return answer_abort_requests(request, *responder);
      case Endpoint::kAdminLoad:
      case Endpoint::kAdminUnload:
      case Endpoint::kResetPrefixCache:
      case Endpoint::kSleep:
      case Endpoint::kWakeUp:
        return answer_admin(route.endpoint, request, responder);
      default:
        return prepare(route, std::move(request), responder);
    }
  }

  std::optional<ApiError> answer_about_model(Endpoint endpoint, const HttpRequest& request,
                                             const std::shared_ptr<HttpResponder>& responder) {
    if (endpoint == Endpoint::kSlots && !config.slots) {
      return http_error(404, "Slots are not told here: the server runs with --no-slots.");
    }
    const std::string name = query_value(request.query, "model");
    const std::shared_ptr<ServedModel> model = models.find(name);
    if (!model && !name.empty() && health.state() != ServerState::kLoading)
      return model_not_found(name, models.names());
    const std::shared_ptr<Frontend> frontend = model ? model->frontend() : nullptr;
    if (!frontend && endpoint != Endpoint::kLive) {
      health.answer_unready(model.get(), *responder);
      return std::nullopt;
    }
    if (endpoint == Endpoint::kAbort) return answer_abort(*frontend, request, *responder);
    if (endpoint == Endpoint::kConfig) {
      responder->respond({.body = frontend->model().about_json});
    } else if (endpoint == Endpoint::kSteps) {
      model->live_feed().tell(responder, steps_response);
    } else if (endpoint == Endpoint::kSlots) {
      const bool fails_when_full = query_value(request.query, "fail_on_no_slot") == "1";
      model->live_feed().tell(responder,
                              [fails_when_full](const Frontend& seen_frontend, const EngineInspection& seen) {
                                return slots_response(seen_frontend, seen, fails_when_full);
                              });
    } else if (!frontend || request.method == "HEAD") {  // nothing to see yet: the page asks again
      responder->begin_stream({});
      responder->end_stream();
    } else {
      model->live_feed().watch(responder);
    }
    return std::nullopt;
  }

  std::optional<ApiError> answer_admin(Endpoint endpoint, const HttpRequest& request,
                                       const std::shared_ptr<HttpResponder>& responder) {
    if (health.state() != ServerState::kReady) {
      health.answer_unready(nullptr, *responder);
      return std::nullopt;
    }
    if (std::optional<ApiError> error = check_json_type(request)) return error;
    const std::string name = query_value(request.query, "model");
    switch (endpoint) {
      case Endpoint::kAdminLoad:
        return admin->load(request.body, responder);
      case Endpoint::kAdminUnload:
        return admin->unload(request.body, responder);
      case Endpoint::kSleep:
        return admin->sleep(name, request.query, responder);
      case Endpoint::kWakeUp:
        return admin->wake_up(name, request.query, responder);
      default:
        return admin->reset_prefix_cache(name, responder);
    }
  }

  std::optional<ApiError> answer_abort(const Frontend& frontend, const HttpRequest& request, HttpResponder& responder) {
    // A page of another origin cannot send this type without asking first.
    if (lower_case(request.header("content-type")).find("application/json") == std::string::npos) {
      return bad_request("", "Content-Type must be application/json", "unsupported_media_type");
    }
    ApiResult<std::shared_ptr<const nlohmann::ordered_json>> body = parse_json(request.body);
    if (!body.ok()) return body.error();
    const nlohmann::ordered_json& json = **body;
    if (!json.is_object() || !json.contains("id") || !json["id"].is_number_unsigned()) {
      return bad_request("id", "id must be the number that /debug/live has for the request");
    }
    frontend.model().engine->cancel(json["id"].get<RequestId>());
    responder.respond({.body = "{}"});
    return std::nullopt;
  }

  std::optional<ApiError> answer_abort_requests(const HttpRequest& request, HttpResponder& responder) {
    if (std::optional<ApiError> error = check_json_type(request)) return error;
    ApiResult<AbortRequest> abort = parse_abort_request(request.body);
    if (!abort.ok()) return abort.error();
    nlohmann::ordered_json aborted = nlohmann::ordered_json::array(), not_found = aborted;
    for (const auto& model : models.all()) {
      const std::shared_ptr<Frontend> frontend = abort->is_all ? model->frontend() : nullptr;
      for (std::string& id : frontend ? frontend->abort_all() : std::vector<std::string>())
        aborted.push_back(std::move(id));
    }
    for (const std::string& id : abort->is_all ? std::vector<std::string>() : abort->request_ids) {
      bool is_found = false;
      for (const auto& model : models.all()) {
        const std::shared_ptr<Frontend> frontend = model->frontend();
        is_found |= frontend && frontend->abort(id);
      }
      (is_found ? aborted : not_found).push_back(id);
    }
    const nlohmann::ordered_json answer{{"aborted", std::move(aborted)}, {"not_found", std::move(not_found)}};
    responder.respond({.body = answer.dump()});
    return std::nullopt;
  }

  std::string render_metrics() {
    MetricsWriter out;
    for (const auto& model : models.all()) model->render_metrics(out);
    metrics.render(out);
    render_process_metrics(out);
    return with_metric_aliases(out.take(), config.metrics_compat);
  }

  // ---- requests that need the model: the work happens on a prepare thread ----

  static std::optional<ApiError> check_json_type(const HttpRequest& request) {
    const std::string_view type = request.header("content-type");
    if (!type.empty() && lower_case(type).find("json") == std::string::npos) {
      return bad_request("", fmt::format("Content-Type must be application/json, got {}", printable(type)),
                         "unsupported_media_type");
    }
    if (const std::string_view encoding = request.header("content-encoding");
        !encoding.empty() && lower_case(encoding) != "identity") {
      return http_error(
          415, fmt::format("Content-Encoding {} is not read here: send the body as it is.", printable(encoding)));
    }
    return std::nullopt;
  }

  std::optional<ApiError> prepare(const Route& route, HttpRequest request,
                                  const std::shared_ptr<HttpResponder>& responder) {
    if (health.state() == ServerState::kLoading || refuses_work) {
      health.answer_unready(models.find({}).get(), *responder, route.endpoint);
      return std::nullopt;
    }
    if (std::string_view(route.method) == "POST") {
      if (std::optional<ApiError> error = check_json_type(request)) return error;
    }
    auto call = std::make_shared<PreparedCall>(
        PreparedCall{.endpoint = route.endpoint,
                     .call = {.frontend = nullptr,
                              .request = std::move(request),
                              .responder = responder,
                              .force_include_usage = config.enable_force_include_usage,
                              .force_metrics = config.enable_per_request_metrics,
                              .responses = responses,
                              .all_models = {}},
                     .active = is_generation(route.endpoint) ? std::make_shared<ActiveCount>(num_active) : nullptr});
    post(std::move(call));
    return std::nullopt;
  }

  struct ActiveCount;
  struct PreparedCall {
    Endpoint endpoint;
    ApiCall call;
    std::shared_ptr<ActiveCount> active;  // null where it does not generate
  };

  // The task is the last owner of the request, whose memory is counted as free when the task has run.
  void post(std::shared_ptr<PreparedCall> prepared) {
    const size_t num_body_bytes = prepared->call.request.body.size();
    prepare_pools->post(num_body_bytes, [this, prepared = std::move(prepared)] { run_prepared(prepared); });
  }

  void run_prepared(const std::shared_ptr<PreparedCall>& prepared) {
    if (is_stopping) return;
    std::shared_ptr<void> hold;
    ApiCall& call = prepared->call;
    if (!find_model(prepared, hold)) return;
    if (prepared->active) {
      prepared->active->hold = hold;
      call.responder = std::make_shared<CountedResponder>(std::move(call.responder), std::move(prepared->active));
    }
    if (is_generation(prepared->endpoint)) add_load_report(call);
    run_call(prepared->endpoint, call);
    call.frontend = nullptr;  // before the hold is let go
  }

  void add_load_report(ApiCall& call) {
    const std::string format = lower_case(call.request.header("endpoint-load-metrics-format"));
    if (format == "text" || format == "json") {
      call.responder = std::make_shared<LoadReportResponder>(std::move(call.responder), call.frontend->model().engine,
                                                             format == "json");
    } else if (!format.empty()) {
      ignored_names.note_load_report_format(format);
    }
  }

  // A model that comes back: the call runs when it is there.
  bool wait_for_model(const std::shared_ptr<ServedModel>& model, const std::shared_ptr<PreparedCall>& prepared) {
    return idle_models->wait_for(model, [this, prepared](const Status& status) {
      if (status.ok()) return post(prepared);
      prepared->call.responder->respond(error_response(prepared->endpoint, unavailable_error(status.message(), 5)));
      prepared->active = nullptr;
    });
  }

  // The front-end of the model that the request names, and a hold on it. False: there is none, which is answered; or
  // none yet, and the call will run later.
  bool find_model(const std::shared_ptr<PreparedCall>& prepared, std::shared_ptr<void>& hold) {
    const Endpoint endpoint = prepared->endpoint;
    ApiCall& call = prepared->call;
    if (!names_model(endpoint)) {
      call.all_models = models.cards();
      return true;
    }
    // With one model that is ready the handler reads the name, with everything else.
    const std::vector<std::shared_ptr<ServedModel>> all = models.all();
    std::string name;
    if (all.size() > 1 || (all.size() == 1 && all.front()->comes_back())) {
      name = call.request.method == "POST" ? find_model_field(call.request.body) : query_value(call.request.query, "model");
    }
    ModelUse use = models.use(name);
    if (use.frontend && engine_health(*use.model).ok()) {
      call.frontend = std::move(use.frontend);
      hold = std::move(use.hold);
      return true;
    }
    if (use.model && !use.frontend && use.model->comes_back() && wait_for_model(use.model, prepared)) return false;
    if (!use.model && !name.empty()) {
      call.responder->respond(error_response(endpoint, model_not_found(name, models.names())));
    } else {
      health.answer_unready(use.model.get(), *call.responder, endpoint);
    }
    return false;
  }

  // Counts a generation from its request to the end of its answer, when the last holder of the responder lets go.
  struct ActiveCount {
    explicit ActiveCount(std::atomic<int>& counter) : count(counter) { ++count; }
    ~ActiveCount() { --count; }
    ActiveCount(const ActiveCount&) = delete;
    ActiveCount& operator=(const ActiveCount&) = delete;
    std::atomic<int>& count;
    std::shared_ptr<void> hold;  // on the model
  };
  class CountedResponder final : public PassingResponder {
   public:
    CountedResponder(std::shared_ptr<HttpResponder> inner, std::shared_ptr<ActiveCount> count)
        : PassingResponder(std::move(inner)), count_(std::move(count)) {}

   private:
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
    for (const std::string& name : ignored.unknown) {
      metrics.count_unknown_field();
      ignored_names.note_unknown_field(name);
    }
    for (const std::string& name : ignored.no_effect) ignored_names.note_no_effect_field(name);
    if (error) call.responder->respond(error_response(endpoint, *error));
  }

  // ---- bookkeeping ----

  void on_request_done(const HttpSummary& summary) {
    const Route* route = find_route(summary.path);
    metrics.count(route ? route->path : "none", summary.method.size() <= 7 ? summary.method : "other", summary.status,
                  summary.seconds);
    log_request(config, summary);
  }

  // On an I/O thread. The engines are asked by run()'s thread, which may wait for them.
  void request_state() {
    if (health.state() == ServerState::kLoading) {
      log_info("state", "loading: {:.0f} %", health.progress() * 100);
      return;
    }
    {
      const std::lock_guard lock(mutex);
      wants_state = true;
    }
    changed.notify_all();
  }

  void log_state_if_asked() {
    {
      const std::lock_guard lock(mutex);
      if (!std::exchange(wants_state, false)) return;
    }
    log_info("state", "{} requests in flight, {} connections", num_active.load(), http->num_connections());
    for (const auto& model : models.all()) {
      const std::string& name = model->names().front();
      log_info(
          "state", "{}: {}, {:.0f} % loaded{}", name, model_state_name(model->state()), model->progress() * 100,
          model->num_waiters() > 0 ? fmt::format(", {} requests wait for it", model->num_waiters()) : std::string());
      const std::shared_ptr<Frontend> frontend = model->frontend();
      if (!frontend) continue;
      std::future<EngineInspection> future = frontend->model().engine->inspect();
      std::optional<EngineInspection> seen;
      if (future.wait_for(kInspectTimeout) == std::future_status::ready) seen = future.get();
      for (const std::string& line : describe_state(frontend->model().engine->stats(), seen ? &*seen : nullptr)) {
        log_info("state", "{}: {}", name, line);
      }
    }
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
  // Until the time is over, the state is asked for, or shutdown `count` times; true in the last case.
  bool wait_for_shutdown(int count, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, timeout, [&] { return wants_state || num_shutdown_requests >= count; });
    return num_shutdown_requests >= count;
  }

  void wait_until_shutdown() {
    EngineLog engine_log;
    const seconds interval(config.log_stats_interval);
    auto next_stats = SteadyClock::now() + interval;
    while (!wait_for_shutdown(1, std::chrono::milliseconds(1000))) {
      log_state_if_asked();
      if (interval == seconds(0) || SteadyClock::now() < next_stats) continue;
      health.set_stuck(engine_log.write(models.all()));
      next_stats += interval;
    }
  }

  void drain() {
    health.set_state(ServerState::kDraining);
    log_info(
        "server", "shutting down: new requests are {}",
        config.drain_delay > 0 ? fmt::format("taken for {:g} s more", config.drain_delay) : std::string("refused"));
    const auto end_of_delay = SteadyClock::now() + milliseconds_of(config.drain_delay);
    while (SteadyClock::now() < end_of_delay) {
      if (wait_for_shutdown(2, std::chrono::duration_cast<std::chrono::milliseconds>(end_of_delay - SteadyClock::now()))) break;
      log_state_if_asked();
    }
    refuses_work = true;
    http->begin_drain();
    const auto end = SteadyClock::now() + milliseconds_of(config.shutdown_timeout);
    auto next_log = SteadyClock::now();
    while (num_active > 0 && SteadyClock::now() < end) {
      if (SteadyClock::now() >= next_log) {
        next_log += seconds(5);
        int num_running = 0, num_waiting = 0;
        for (const auto& model : models.all()) {
          const std::shared_ptr<Frontend> frontend = model->frontend();
          const EngineStats stats = frontend ? frontend->model().engine->stats() : EngineStats{};
          num_running += stats.num_running;
          num_waiting += stats.num_waiting;
        }
        log_info("server", "draining: {} running, {} waiting, {} s left", num_running, num_waiting,
                 std::chrono::duration_cast<seconds>(end - SteadyClock::now()).count());
      }
      if (wait_for_shutdown(2, std::chrono::milliseconds(20))) break;
      log_state_if_asked();
    }
  }

  // What has ended goes out before the sockets are cut.
  void flush() {
    http->begin_drain();
    const auto end = SteadyClock::now() + kFlushTimeout;
    while ((num_active > 0 || http->num_connections() > 0) && SteadyClock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void stop() {
    refuses_work = true;
    health.set_state(ServerState::kDraining);
    idle_models->stop();
    models.end_waits(unavailable("The server is shutting down."));
    // An engine's stop() ends what runs with an error, which the listeners still write to their clients.
    models.stop();
    flush();
    http->stop();
    is_stopping = true;  // nobody hears what is still to be prepared
    admin.reset();       // a model that came meanwhile is stopped with the others
    prepare_pools.reset();
    models.clear();
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
                      .on_head = [impl](HttpRequest& head) { return check_head(impl->config, head); },
                      .on_done = [impl](const HttpSummary& summary) { impl->on_request_done(summary); }};
  impl->admin = std::make_unique<ModelAdmin>(impl->models, milliseconds_of(flags.shutdown_timeout));
  impl->idle_models = std::make_unique<IdleModels>(
      impl->models, [impl](std::function<void()> task) { impl->admin->post_load(std::move(task)); });
  impl->prepare_pools = std::make_unique<PreparePools>(flags.num_prepare_threads);
  impl->http = std::make_unique<HttpServer>(std::move(options),
                                            [impl](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
                                              impl->handle(std::move(request), std::move(responder));
                                            });
}

Server::~Server() { impl_->stop(); }

Status Server::listen() {
  const ServerConfig& config = impl_->config;
  if (!config.ssl_certfile.empty()) RETURN_IF_ERROR(impl_->http->use_tls(config.ssl_certfile, config.ssl_keyfile));
  if (config.uds.empty()) {
    RETURN_IF_ERROR(impl_->http->listen(config.host, config.port));
  } else {
    RETURN_IF_ERROR(impl_->http->listen_unix(config.uds));
  }
  if (!config.asks_for_key() && !impl_->http->is_loopback()) {
    log_warning("server", "--host {} without --api-key: whoever reaches port {} may use the model", config.host,
                port());
  }
  if (impl_->config.handle_signals) {
    impl_->http->on_signals({SIGINT, SIGTERM, SIGUSR1}, [impl = impl_.get()](int number) {
      if (number == SIGUSR1) return impl->request_state();
      // Nothing runs yet that could be lost, and the loader does not look at signals.
      if (impl->health.state() == ServerState::kLoading) std::_Exit(0);
      impl->request_shutdown();
    });
  }
  impl_->http->start();
  return ok_status();
}

int Server::port() const { return impl_->http->port(); }
void Server::set_loading(double progress) { impl_->health.set_progress(progress); }
void Server::shutdown() { impl_->request_shutdown(); }
bool Server::is_shutdown_requested() const { return impl_->shutdown_requests() > 0; }

Status Server::add_model(ServingModel model) {
  const bool is_first = impl_->models.all().empty();
  if (is_first && !impl_->config.served_model_name.empty()) model.names = impl_->config.served_model_name;
  RETURN_IF_ERROR(check_idle_unload(model));
  ASSIGN_OR_RETURN(const std::shared_ptr<ServedModel> added, impl_->models.add(model.names));
  impl_->models.set_ready(*added, std::move(model));
  return ok_status();
}

void Server::set_ready() {
  impl_->health.set_progress(1);
  impl_->health.set_state(ServerState::kReady);
}

void Server::set_ready(ServingModel model) {
  const Status status = add_model(std::move(model));
  CHECK(status.ok(), "{}", status.message());
  set_ready();
}

void Server::set_loader(ModelLoader loader) { impl_->admin->set_loader(std::move(loader)); }

int Server::run() {
  impl_->wait_until_shutdown();
  impl_->drain();
  // A model that is being loaded has no requests, and its loader does not look at signals.
  const bool is_loading = impl_->admin->is_loading();
  if (is_loading && impl_->config.handle_signals) {
    impl_->models.end_waits(unavailable("The server is shutting down."));  // a model that comes back may have some
    impl_->flush();
    log_info("server", "stopped while a model was being loaded");
    std::_Exit(0);
  }
  impl_->stop();
  log_info("server", "stopped");
  return 0;
}

}  // namespace spate
