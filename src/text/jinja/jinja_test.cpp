// Goal    What the goldens cannot show: the limits that stop hostile templates, the texts and lines of errors, use by
//         several threads, and the changes that a chat template makes to messages.
#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "text/jinja/chat_template.h"
#include "text/jinja/jinja_json.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> render(std::string_view source, const Json& context = Json::object(),
                           const jinja::Limits& limits = {}) {
  auto parsed = jinja::Template::parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->render(jinja::from_json(context), jinja::system_strftime, limits);
}

std::string error_of(std::string_view source, const Json& context = Json::object()) {
  const Result<std::string> result = render(source, context);
  CHECK_MESSAGE(!result.ok(), source);
  CHECK(result.status().code() == StatusCode::kInvalidArgument);
  return result.status().message();
}

ChatTemplate chat_template(const std::string& source) {
  auto parsed = ChatTemplate::parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
  return std::move(parsed).value();
}

Result<std::string> render_chat(const std::string& source, const Json& messages, bool continue_final = false) {
  ChatTemplateInput input;
  input.messages = &messages;
  input.continue_final_message = continue_final;
  return chat_template(source).render(input);
}

}  // namespace

TEST_CASE("errors say line and cause") {
  CHECK(error_of("a\n{{ x.y }}") == "line 2: 'x' is undefined");
  CHECK(error_of("\n\n{% if true %}\n{{ d.x.y }}{% endif %}", {{"d", Json::object()}}) ==
        "line 4: 'dict object' has no attribute 'x'");
  CHECK(error_of("{{ (1 }}") == "line 1: unexpected '}', expected ')'");
  CHECK(error_of("x\n{% for i in l %}\n{% endif %}") ==
        "line 3: Encountered unknown tag 'endif'. Jinja was looking for the following tags: 'endfor' or 'else'.");
  CHECK(error_of("{{ 1|nosuch }}") == "line 1: No filter named 'nosuch'.");
  CHECK(error_of("{{ l.append(1) }}", {{"l", {1}}}) ==
        "line 1: access to attribute 'append' of 'list' object is unsafe.");
  CHECK(error_of("{{ 'a' + 1 }}") == "line 1: can only concatenate str (not \"int\") to str");
  CHECK(error_of("{% include 'x' %}").find("no other templates") != std::string::npos);
  CHECK(error_of("{{ 9223372036854775807 + 1 }}") == "line 1: an integer does not fit into 64 bits");
  CHECK(error_of("{{ raise_exception('Exactly this.') }}") == "Exactly this.");
  CHECK(error_of(std::string_view("\xff")) == "the template is not valid UTF-8");
}

TEST_CASE("hostile templates end in an error, soon and within the memory allowed") {
  const char* const hostile[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% "
      "endfor %}",
      "{{ 'x' * 100000000000 }}",
      "{{ ('x' * 10000000) * 10000000 }}",
      "{{ [0] * 100000000000 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=['x']) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
      "ns.l|tojson }}",
      "{% set ns = namespace(l=['x'], m=['x']) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = "
      "[ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}",
      "{% set ns = namespace(i=[1]) %}{% for i in range(100000) %}{% set ns.i = ns.i|map('string') %}{% endfor %}{{ "
      "ns.i|list }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + ['x' * 1000000] %}{% endfor %}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% for i in range(100000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 100 }}{% endfor %}",
      "{{ range(99999999999)|list }}",
      "{{ 2 ** 2 ** 2 ** 2 ** 2 ** 2 ** 2 }}",
      "{{ '%1000000000d' % 5 }}",
      "{{ '{:1000000000}'.format(5) }}",
      "{{ 'x'.center(1000000000000) }}",
      "{{ 'x'|indent(1000000000000) }}",
      "{{ ('x' * 1000000).replace('', 'y' * 1000000) }}",
      "{{ (['x' * 1000000] * 1000)|join }}",
      "{{ [1]|batch(1000000000000, 1)|list }}",
      "{{ [1]|slice(1000000000000)|list }}",
      "{{ [[1]]|tojson(indent=1000000000) }}",
      "{{ ('ab' * 4000000).rfind('b' * 2000000) }}",
      "{% set c = cycler(1) %}{% for a in range(100000) %}{% for b in range(100000) %}{% set x = c.next() %}{% endfor "
      "%}{% endfor %}",
  };
  for (const std::string_view source : hostile) {
    const std::clock_t begin = std::clock();
    const Result<std::string> result = render(source);
    // Seconds at most, of this process: other programs do not count. Sanitizers are slow.
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    const bool allowed = source.find("rfind") != std::string_view::npos;
    CHECK_MESSAGE((allowed || !result.ok()), source);
    CHECK_MESSAGE(seconds < 30, source << " took " << seconds << " s");
  }
}

TEST_CASE("deeply nested sources are refused") {
  const auto repeat = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  const int n = 50000;
  for (const std::string& source :
       {"{{ " + repeat("(", n) + "1" + repeat(")", n) + " }}", "{{ " + repeat("[", n) + repeat("]", n) + " }}",
        "{{ " + repeat("-", n) + "1 }}", "{{ " + repeat("not ", n) + "1 }}", "{{ 1" + repeat("|string", n) + " }}",
        "{{ x" + repeat(".a", n) + " }}", "{{ x" + repeat("[0]", n) + " }}", "{{ x" + repeat("()", n) + " }}",
        "{{ 1" + repeat(" if 1 else 1", n) + " }}", repeat("{% if 1 %}", n) + repeat("{% endif %}", n),
        repeat("{% for x in y %}", n) + repeat("{% endfor %}", n),
        "{% set " + repeat("(", n) + "x" + repeat(")", n) + " = 1 %}",
        "{{ " + repeat("{1:", n) + "1" + repeat("}", n) + " }}",
        repeat("{% macro m() %}", n) + repeat("{% endmacro %}", n)}) {
    CHECK_MESSAGE(!render(source).ok(), source.substr(0, 40));
  }
  // Chains are no nesting: long sums and many branches are fine.
  CHECK(render("{{ 0" + repeat(" + 1", 5000) + " }}").value() == "5000");
  CHECK(render("{% if false %}" + repeat("{% elif false %}", 500) + "{% else %}x{% endif %}").value() == "x");
  CHECK(!jinja::Template::parse(std::string(jinja::kMaxTemplateBytes + 1, 'x')).ok());
}

TEST_CASE("a template may recurse as deep as in Python") {
  CHECK(render("{% macro f(n) %}{% if n %}.{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}").value() ==
        std::string(100, '.'));
}

TEST_CASE("limits can be set") {
  jinja::Limits limits;
  limits.max_output_bytes = 10;
  CHECK(render("0123456789", Json::object(), limits).ok());
  CHECK(!render("0123456789x", Json::object(), limits).ok());
  limits.max_steps = 100;
  CHECK(!render("{% for i in range(1000) %}{% endfor %}", Json::object(), limits).ok());
}

TEST_CASE("values that hold one another do not leak") {
  // Found by the leak sanitizer when it fails.
  CHECK(render(
            "{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{% macro m() %}{{ ns.x }}{% endmacro %}"
            "{% set ns.m = m %}{% for x in [1, 2] %}{% set ns.loop = loop %}{{ loop.changed(loop, ns) }}{% endfor %}"
            "{% macro f(p) %}{% macro g() %}{{ p }}{% endmacro %}{% set ns.g = g %}{% endmacro %}"
            "{% for i in range(50) %}{% set _ = f(ns.g) %}{% endfor %}")
            .ok());
}

TEST_CASE("one template, many threads") {
  const auto parsed = jinja::Template::parse(
      "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for i in range(50) %}{{ m(i ~ 'a'|upper) }}{{ {'k': [i, 'text']} }}{% "
      "endfor %}{{ name }}");
  REQUIRE(parsed.ok());
  const std::string expected = parsed->render(jinja::from_json({{"name", "n"}}), jinja::system_strftime).value();
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto result = parsed->render(jinja::from_json({{"name", "n"}}), jinja::system_strftime);
        if (!result.ok() || *result != expected) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(num_wrong == 0);
}

TEST_CASE("chat template: caps are found") {
  const auto plain = chat_template("{% for m in messages %}{{ m.content }}{% endfor %}").caps();
  CHECK_FALSE(plain.reads_content_parts);
  CHECK_FALSE(plain.reads_tools);
  CHECK_FALSE(plain.reads_null_content);
  CHECK(chat_template("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}")
            .caps()
            .reads_content_parts);
  CHECK(chat_template("{% set l = messages[1:] %}{% for m in l %}{% set c = m.content %}{% for p in c %}{{ p.text }}{% "
                      "endfor %}{% endfor %}")
            .caps()
            .reads_content_parts);
  CHECK(chat_template("{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages "
                      "%}{{ show(m.content) }}{% endfor %}")
            .caps()
            .reads_content_parts);
  CHECK(chat_template("{% macro show(m) %}{% set c = m.get('content') %}{% for p in c %}{{ p['type'] }}{% endfor %}{% "
                      "endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}")
            .caps()
            .reads_content_parts);
  // Content under another name that is iterated for something else.
  CHECK_FALSE(
      chat_template(
          "{% for m in messages %}{% set calls = m.content %}{% for c in calls %}{{ c.id }}{% endfor %}{% endfor %}")
          .caps()
          .reads_content_parts);
  CHECK_FALSE(chat_template("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}")
                  .caps()
                  .reads_content_parts);
  CHECK(chat_template("{% if tools %}{% endif %}").caps().reads_tools);
  CHECK(chat_template("{% if enable_thinking is defined %}{% endif %}").caps().reads_enable_thinking);
  CHECK(chat_template("{{ messages[0]['reasoning_content'] }}").caps().reads_reasoning_content);
  CHECK(chat_template("{% if messages[0].content is not none %}{% endif %}").caps().reads_null_content);
}

TEST_CASE("chat template: messages are brought into the form that the template reads") {
  const std::string print_all = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
  const Json parts = {
      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}};
  CHECK(render_chat(print_all, parts).value() == "[a\nb]");
  CHECK(render_chat("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}", parts)
            .value() == "<a><b>");
  const Json image = {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}};
  CHECK(render_chat(print_all, image).status().message() ==
        "messages[0].content has a part of type 'image_url', but this model's chat template takes text only");

  const Json null_content = {{{"role", "assistant"}, {"content", nullptr}}};
  CHECK(render_chat(print_all, null_content).value() == "[]");
  CHECK(render_chat("{% for m in messages %}{{ m.content is none }}{% endfor %}", null_content).value() == "True");

  const auto call = [](const char* arguments) {
    return Json{{{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}};
  };
  const std::string print_call = "{{ messages[0].tool_calls[0].function.arguments";
  CHECK(render_chat(print_call + ".x }}", call("{\"x\": 5}")).value() == "5");
  CHECK(render_chat(print_call + "|tojson }}", call("")).value() == "{}");
  CHECK(render_chat("{{ '!' + messages[0].tool_calls[0].function.arguments }}", call("{\"x\": 5}")).value() ==
        "!{\"x\": 5}");
  CHECK(render_chat(print_call + " }}", call("{x")).status().message() ==
        "messages[0].tool_calls[0].function.arguments is not valid JSON");

  CHECK(render_chat("{{ messages[0].reasoning_content }}", {{{"role", "assistant"}, {"reasoning", "why"}}}).value() ==
        "why");
  CHECK(render_chat("{{ bos_token }}{{ eos_token }}{{ tools is none }}", Json::array()).value() == "<s></s>True");
}

TEST_CASE("chat template: continue_final_message cuts after the message") {
  const Json messages = {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "so far "}}};
  CHECK(render_chat("{% for m in messages %}<{{ m.content }}>{% endfor %}", messages, true).value() == "<q><so far ");
  CHECK(render_chat("{% for m in messages %}<{{ m.content|trim }}>{% endfor %}", messages, true).value() ==
        "<q><so far");
  CHECK_FALSE(render_chat("{{ messages[0].content }}", messages, true).ok());
  CHECK_FALSE(render_chat("{{ messages }}", Json::array(), true).ok());
}

TEST_CASE("chat template: bad input is named") {
  CHECK(render_chat("x", Json::object()).status().message() == "messages must be an array");
  CHECK(render_chat("x", {5}).status().message() == "messages[0] must be an object with a role");
  CHECK(render_chat("\n{{ x.y }}", Json::array()).status().message() == "chat template line 2: 'x' is undefined");
  CHECK(ChatTemplate::parse("{{", {}).status().message() == "chat template line 1: unexpected 'end of template'");
  const Json messages = Json::array(), kwargs = {{"messages", 1}};
  ChatTemplateInput input;
  input.messages = &messages;
  input.kwargs = &kwargs;
  CHECK(chat_template("x").render(input).status().message() ==
        "chat_template_kwargs: 'messages' has a field of its own in the request");
}

}  // namespace spate
