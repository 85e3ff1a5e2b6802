// Goal    Each request becomes one trace with vLLM's attributes, child of the caller's span; requests never wait for
// the
//         collector, and what is lost is counted.
// Method  The whole server over a socket with a collector that keeps bodies, fails or hangs; the header against the
//         examples of W3C Trace Context.
#include "server/tracer.h"

#include <map>
#include <nlohmann/json.hpp>

#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr const char* kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr const char* kSpanId = "00f067aa0ba902b7";

struct Collector {
  std::mutex mutex;
  std::vector<Json> bodies;
  Tracer::Send send() {
    return [this](const std::string& body, const std::function<bool()>&) {
      const std::lock_guard lock(mutex);
      bodies.push_back(Json::parse(body));
      return ok_status();
    };
  }
  // All spans, by name; "llm_request" once for each request, in order.
  std::vector<Json> spans(const std::string& name) {
    const std::lock_guard lock(mutex);
    std::vector<Json> found;
    for (const Json& body : bodies) {
      for (const Json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
        if (span["name"] == name) found.push_back(span);
      }
    }
    return found;
  }
};

Json attributes_of(const Json& span) {
  Json found;
  for (const Json& attribute : span["attributes"])
    found[std::string(attribute["key"])] = attribute["value"].begin().value();
  return found;
}

int64_t nanoseconds(const Json& text) { return std::stoll(std::string(text)); }

struct TracedServer {
  explicit TracedServer(Tracer::Send send, Tracer::Options options = {.interval = milliseconds(1)})
      : tracer(std::make_shared<Tracer>(std::move(options), std::move(send))) {
    model.serving.tracer = tracer;
    REQUIRE(server.listen().ok());
    server.set_ready(model.serving);
  }
  TestResponse complete(const std::string& body, const std::string& headers = {}) {
    return TestClient(server.port()).post("/v1/completions", body, headers);
  }
  TestModel model;
  std::shared_ptr<Tracer> tracer;
  Server server{test_server_config()};
};

RequestTrace some_trace() {
  RequestTrace trace;
  trace.arrival = trace.scheduled = trace.end = SteadyClock::now();
  return trace;
}

bool wait_until(const std::function<bool()>& is_true) {
  for (int i = 0; i < 2000 && !is_true(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return is_true();
}

TEST_CASE("traceparent is read as W3C Trace Context has it") {
  const auto header = [](const char* version, const char* flags) {
    return std::string(version) + "-" + kTraceId + "-" + kSpanId + "-" + flags;
  };
  const std::optional<TraceContext> context = parse_traceparent(header("00", "01"));
  REQUIRE(context);
  CHECK(context->trace_id == kTraceId);
  CHECK(context->span_id == kSpanId);
  CHECK(context->is_sampled);
  CHECK_FALSE(parse_traceparent(header("00", "00"))->is_sampled);
  CHECK_FALSE(parse_traceparent(header("00", "fe"))->is_sampled);
  CHECK(parse_traceparent(header("cc", "09"))->is_sampled);
  CHECK(parse_traceparent(header("cc", "01") + "-what-the-future-will-be-like"));
  const std::string zeros(32, '0');
  for (const std::string& bad :
       {std::string(), header("ff", "01"), header("00", "0x"), header("00", "1"), header("00", "01") + "-more",
        header("cc", "01") + "more", "00-" + zeros + "-" + kSpanId + "-01",
        std::string("00-") + kTraceId + "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + std::string(kSpanId) + "-01", "00_" + header("00", "01").substr(3)}) {
    CHECK_MESSAGE(!parse_traceparent(bad), bad);
  }
}

TEST_CASE("a request is a span with its phases inside, child of the caller's span") {
  Collector collector;
  {
    TracedServer traced(collector.send(),
                        {.service_name = "chat", .service_version = "9", .interval = milliseconds(1)});
    traced.model.executor->step_milliseconds = 5;
    const std::string parent =
        std::string("traceparent: 00-") + kTraceId + "-" + kSpanId + "-01\r\nX-Request-Id: mine\r\n";
    CHECK(traced.complete(R"({"prompt":"one two three","max_tokens":20,"temperature":0.5,"top_p":0.9,"n":2})", parent)
              .status == 200);
    CHECK(traced.complete(R"({"prompt":"FOREVER","max_tokens":3,"stream":true})").status == 200);
    REQUIRE(wait_until([&] { return traced.tracer->num_sent() == 2; }));
  }
  const std::vector<Json> requests = collector.spans("llm_request");
  REQUIRE(requests.size() == 2);
  const Json& span = requests[0];
  CHECK(span["traceId"] == kTraceId);
  CHECK(span["parentSpanId"] == kSpanId);
  CHECK(span["kind"] == 2);
  CHECK_FALSE(span.contains("status"));
  const Json seen = attributes_of(span);
  CHECK(seen["gen_ai.request.id"] == "mine");
  CHECK(seen["gen_ai.response.model"] == "test-model");
  CHECK(seen["gen_ai.request.n"] == "2");
  CHECK(seen["gen_ai.request.max_tokens"] == "20");
  CHECK(seen["gen_ai.request.temperature"] == 0.5);
  CHECK(seen["gen_ai.response.finish_reason"] == "stop");
  CHECK(std::stoi(std::string(seen["gen_ai.usage.prompt_tokens"])) > 0);
  CHECK(seen["gen_ai.latency.time_to_first_token"] >= 0.005);
  CHECK(seen["gen_ai.latency.time_in_model_decode"] >= 0.005);
  CHECK(seen["gen_ai.latency.e2e"] >= seen["gen_ai.latency.time_to_first_token"]);

  CHECK(requests[1]["traceId"] != kTraceId);
  CHECK_FALSE(requests[1].contains("parentSpanId"));
  CHECK(attributes_of(requests[1])["gen_ai.usage.completion_tokens"] == "3");
  CHECK(attributes_of(requests[1])["gen_ai.response.finish_reason"] == "length");

  std::string at = requests[0]["startTimeUnixNano"];
  for (const char* part : {"queue", "prefill", "decode", "detokenize"}) {  // one begins where the other ends
    const Json phase = collector.spans(part).at(0);
    CHECK(phase["traceId"] == kTraceId);
    CHECK(phase["parentSpanId"] == span["spanId"]);
    CHECK(phase["startTimeUnixNano"] == at);
    at = phase["endTimeUnixNano"];
  }
  CHECK(at == span["endTimeUnixNano"]);
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  CHECK(std::abs(now - nanoseconds(span["endTimeUnixNano"])) < 60'000'000'000);
  const Json resource = collector.bodies[0]["resourceSpans"][0]["resource"];
  CHECK(attributes_of(resource) == Json{{"service.name", "chat"}, {"service.version", "9"}});
}

TEST_CASE("a request that fails says so, one that is not sampled is not traced") {
  Collector collector;
  {
    TracedServer traced(collector.send());
    CHECK(traced.complete(R"({"prompt":"hi"})", std::string("traceparent: 00-") + kTraceId + "-" + kSpanId + "-00\r\n")
              .status == 200);
    CHECK(traced.complete(R"({"prompt":"BROKEN a b","max_tokens":20})").status == 500);
    REQUIRE(wait_until([&] { return traced.tracer->num_sent() == 1; }));
  }
  const std::vector<Json> requests = collector.spans("llm_request");
  REQUIRE(requests.size() == 1);
  CHECK(requests[0]["status"]["code"] == 2);
  CHECK_FALSE(std::string(requests[0]["status"]["message"]).empty());
  CHECK(attributes_of(requests[0])["gen_ai.response.finish_reason"] == "error");
  CHECK(requests[0]["traceId"] != kTraceId);
}

TEST_CASE("a collector that hangs holds up no request, and no end") {
  std::atomic<int> num_calls{0};
  const auto hangs = [&](const std::string&, const std::function<bool()>& should_stop) -> Status {
    ++num_calls;
    while (!should_stop()) std::this_thread::sleep_for(milliseconds(1));
    return unavailable("stopped");
  };
  const auto start = SteadyClock::now();
  {
    TracedServer traced(hangs, {.max_waiting = 2, .interval = milliseconds(1), .flush_timeout = milliseconds(50)});
    for (int i = 0; i < 6; ++i) {
      CHECK(traced.complete(R"({"prompt":"hi"})").status == 200);
      if (i == 0) REQUIRE(wait_until([&] { return num_calls == 1; }));
    }
    REQUIRE(wait_until([&] { return traced.tracer->num_dropped() == 3; }));  // one is being sent, two wait
  }
  CHECK(SteadyClock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a batch is tried three times, then lost and counted; what waits at the end is sent") {
  std::atomic<int> num_calls{0};
  std::atomic<bool> works{false};
  const auto send = [&](const std::string&, const std::function<bool()>&) -> Status {
    ++num_calls;
    return works ? ok_status() : unavailable("no");
  };
  {
    Tracer tracer({.interval = milliseconds(1), .retry_delay = milliseconds(1)}, send);
    tracer.record(some_trace());
    REQUIRE(wait_until([&] { return tracer.num_dropped() == 1; }));
    CHECK(num_calls == 3);
    CHECK(tracer.num_sent() == 0);
  }
  works = true;
  num_calls = 0;
  {
    Tracer tracer({.interval = std::chrono::seconds(60)}, send);
    tracer.record(some_trace());
  }
  CHECK(num_calls == 1);
}

}  // namespace
}  // namespace spate
