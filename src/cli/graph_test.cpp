// Goal    A graph asks its engines what its file says: in order, for each part, under its conditions, within its
// limits; its errors name
//         the step.
// Method  Engines are a function that notes each call and answers from a table; the file's errors are seen whole in
//         test/clients/deployment.py.
#include "cli/graph.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

struct Engines {
  std::mutex mutex;
  std::vector<std::string> asked;  // "engine: the user message", in the order of the calls
  std::vector<Json> bodies;
  std::function<Result<StepAnswer>(const std::string& text)> answer = [](const std::string& text) {
    return StepAnswer{"<" + text + ">", 10, 2, "stop"};
  };
  std::atomic<int> num_now{0}, num_at_once{0};

  CallEngine call() {
    return [this](const StepCall& call) -> Result<StepAnswer> {
      const int now = ++num_now;
      for (int most = num_at_once; now > most && !num_at_once.compare_exchange_weak(most, now);) {
      }
      const std::string text = call.body["messages"].back()["content"];
      {
        const std::lock_guard lock(mutex);
        asked.push_back(call.engine + ": " + text);
        bodies.push_back(call.body);
      }
      Result<StepAnswer> result = answer(text);
      while (text == "hang" && !call.should_stop()) std::this_thread::sleep_for(milliseconds(1));
      if (text == "hang") result = cancelled("left");
      if (result.ok() && call.on_text) call.on_text(result->text);
      --num_now;
      return result;
    };
  }
};

GraphStep step(const std::string& id, const std::string& prompt, std::vector<std::string> after = {}) {
  GraphStep made;
  made.id = id;
  made.engine = "e";
  made.prompt = prompt;
  made.after = std::move(after);
  return made;
}

Json question(const std::string& text) {
  return {{"model", "g"}, {"messages", {{{"role", "user"}, {"content", text}}}}};
}

struct Ran {
  Result<StepAnswer> answer;
  std::string streamed;
};
Ran run(Engines& engines, std::vector<GraphStep> steps, const Json& request = question("hi"), double timeout = 30) {
  GraphSpec graph;
  graph.name = "g";
  graph.timeout = timeout;
  graph.steps = std::move(steps);
  std::string streamed;
  Result<StepAnswer> answer =
      run_graph(graph, request, engines.call(), [&](std::string_view text) { streamed += text; }, {});
  return {std::move(answer), streamed};
}

TEST_CASE("graph: a step's answer is in the next one's prompt; the last is streamed, the tokens are summed") {
  Engines engines;
  GraphStep last = step("b", "{{ steps.a.text }} of {{ messages | length }}", {"a"});
  last.system = "be {{ input }}";
  last.request = {{"max_tokens", 7}, {"temperature", 0}};
  Json request = question("hi");
  request["temperature"] = 0.5;
  request["stream"] = true;
  const Ran ran = run(engines, {step("a", "say {{ input }}"), last}, request);
  REQUIRE(ran.answer.ok());
  CHECK(ran.answer->text == "<<say hi> of 1>");
  CHECK(ran.streamed == ran.answer->text);
  CHECK(ran.answer->num_prompt_tokens == 20);
  CHECK(ran.answer->num_completion_tokens == 4);
  CHECK(engines.asked == std::vector<std::string>{"e: say hi", "e: <say hi> of 1"});
  CHECK_FALSE(engines.bodies[0].contains("temperature"));  // the client's fields are the last step's
  CHECK(engines.bodies[1]["temperature"] == 0.5);
  CHECK(engines.bodies[1]["max_tokens"] == 7);
  CHECK(engines.bodies[1]["messages"][0] == Json{{"role", "system"}, {"content", "be hi"}});
  CHECK_FALSE(engines.bodies[1].contains("stream"));
}

TEST_CASE("graph: a map asks once for each part, so many at once, and keeps their order") {
  Engines engines;
  engines.answer = [](const std::string& text) -> Result<StepAnswer> {
    if (text == "list") return StepAnswer{"Here:\n", 1, 1, "stop"};
    if (text == "json") return StepAnswer{"```json\n[\"x\", {\"y\": 2}, 3]\n```", 1, 1, "stop"};
    std::this_thread::sleep_for(milliseconds(text.starts_with("0") ? 60 : 20));
    return StepAnswer{"<" + text + ">", 1, 1, "stop"};
  };
  GraphStep each = step("each", "{{ index }} {{ item | tojson }}", {"a"});
  each.map = "steps.a.json";
  each.max_parallel = 2;
  const Ran ran = run(engines, {step("a", "json"), each, step("end", "{{ steps.each.texts | join('+') }}", {"each"})});
  REQUIRE(ran.answer.ok());
  CHECK(ran.answer->text == "<<0 \"x\">+<1 {\"y\": 2}>+<2 3>>");
  CHECK(engines.num_at_once == 2);
  const Ran alone = run(engines, {step("a", "json"), each});  // the map is the answer
  REQUIRE(alone.answer.ok());
  CHECK(alone.streamed == "<0 \"x\">\n<1 {\"y\": 2}>\n<2 3>");

  each.max_parts = 2;
  CHECK(run(engines, {step("a", "json"), each}).answer.status().message() ==
        "graph g, step each: map: steps.a.json has 3 parts, max_parts is 2");
  const Ran none = run(engines, {step("a", "list"), each});
  CHECK(none.answer.status().message() == "graph g, step each: map: steps.a.json is no list but null");
}

TEST_CASE("graph: conditions choose the branch; the first last step that is not skipped answers") {
  Engines engines;
  engines.answer = [](const std::string& text) {
    return StepAnswer{text == "hi" ? R"({"kind": "b"})" : "<" + text + ">", 1, 1, "stop"};
  };
  const auto branch = [](const char* id, const char* kind) {
    GraphStep made = step(id, std::string("as ") + kind, {"a"});
    made.when = std::string("steps.a.json.kind == '") + kind + "'";
    return made;
  };
  const Ran ran =
      run(engines, {step("a", "{{ input }}"), branch("x", "a"), branch("y", "b"), step("z", "never", {"a"})});
  REQUIRE(ran.answer.ok());
  CHECK(ran.answer->text == "<as b>");
  CHECK(engines.asked.size() == 2);
  const Ran none = run(engines, {step("a", "{{ input }}"), branch("x", "q")});
  CHECK(none.answer.status().message() == "graph g: all its last steps were skipped, so there is no answer");
  GraphStep wrong = step("w", "{{ steps.x.text }}", {"x"});  // of a step that was skipped
  CHECK(run(engines, {step("a", "hi"), branch("x", "q"), wrong})
            .answer.status()
            .message()
            .find("graph g, step w: line 1") == 0);
}

TEST_CASE("graph: steps that do not wait for each other run side by side") {
  Engines engines;
  std::atomic<int> num_here{0};
  engines.answer = [&](const std::string& text) {
    if (text.size() == 1) {  // the first two answer only when both have been asked
      ++num_here;
      while (num_here < 2) std::this_thread::sleep_for(milliseconds(1));
    }
    return StepAnswer{text, 1, 1, "stop"};
  };
  const Ran ran =
      run(engines, {step("a", "1"), step("b", "2"), step("c", "{{ steps.a.text }}{{ steps.b.text }}", {"a", "b"})});
  REQUIRE(ran.answer.ok());
  CHECK(ran.answer->text == "12");
}

TEST_CASE("graph: what may pass is tried again, what cannot is not, and the step is named") {
  Engines engines;
  int num_calls = 0;
  engines.answer = [&](const std::string&) -> Result<StepAnswer> {
    if (++num_calls < 3) return unavailable("busy");
    return StepAnswer{"ok", 1, 1, "stop"};
  };
  GraphStep patient = step("a", "x");
  patient.retries = 2;
  CHECK(run(engines, {patient}).answer.ok());
  CHECK(num_calls == 3);
  num_calls = 0;
  patient.retries = 1;
  const Ran ran = run(engines, {patient});
  CHECK(ran.answer.status().message() == "graph g, step a: after 2 attempts: busy");
  CHECK(ran.answer.status().code() == StatusCode::kUnavailable);
  num_calls = 0;
  engines.answer = [&](const std::string&) -> Result<StepAnswer> { return ++num_calls, invalid_argument("too long"); };
  patient.retries = 5;
  CHECK(run(engines, {patient}).answer.status().message() == "graph g, step a: too long");
  CHECK(num_calls == 1);
}

TEST_CASE("graph: limits of time hold, and a failure ends what runs beside it") {
  Engines engines;
  GraphStep slow = step("a", "hang");
  slow.timeout = 0.05;
  CHECK(run(engines, {slow}).answer.status().message() == "graph g, step a: no answer within 0.05 s");
  slow.timeout = 60;
  CHECK(run(engines, {slow}, question("hi"), 0.05).answer.status().message() ==
        "graph g, step a: the graph's 0.05 s are over");
  engines.answer = [](const std::string& text) -> Result<StepAnswer> {
    return text == "bad" ? Result<StepAnswer>(invalid_argument("no")) : Result<StepAnswer>(StepAnswer{});
  };
  CHECK(run(engines, {slow, step("b", "bad"), step("c", "x", {"a", "b"})}).answer.status().message() ==
        "graph g, step b: no");
}

TEST_CASE("graph: steps are ordered, a cycle is named") {
  const std::vector<GraphStep> steps{step("c", "x", {"b"}), step("b", "x", {"a"}), step("a", "x")};
  CHECK(*order_of_steps(steps) == std::vector<size_t>{2, 1, 0});
  CHECK(order_of_steps({step("a", "x", {"b"}), step("b", "x", {"a"}), step("c", "x")}).status().message() ==
        "the steps a, b wait for each other");
}

}  // namespace
}  // namespace spate
