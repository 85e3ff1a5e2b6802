// compile_limits_test.cpp
//
// Goal    Whatever is asked for, a thread that compiles it is free again soon: a refusal comes by the limit of work, and
//         what is not counted as work takes little time.
// Method  Texts whose compilation took seconds or hundreds of megabytes before what they ask for was counted, and others
//         that always ended by the limit. What counts is the processor's time of this thread.
#include <sys/resource.h>

#include <ctime>

#include <nlohmann/json.hpp>

#include "grammar/grammar_test_support.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/token_grammar.h"

#include "base/test.h"

namespace spate {
namespace {

using OrderedJson = nlohmann::ordered_json;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

struct Compiled {
  std::string message;  // empty: it is a grammar
  double seconds = 0;
};

template <typename Compile>
Compiled compiled(const Compile& compile) {
  const double start = thread_seconds();
  CompileBudget budget;
  const Result<Grammar> grammar = compile(budget);
  return {grammar.ok() ? "" : std::string(grammar.status().message()), thread_seconds() - start};
}

Compiled compiled_schema(const OrderedJson& schema) {
  return compiled([&](CompileBudget& budget) { return compile_json_schema(schema, {}, budget); });
}

Compiled compiled_regex(const std::string& regex) {
  return compiled([&](CompileBudget& budget) -> Result<Grammar> {
    GrammarBuilder builder;
    ASSIGN_OR_RETURN(Expr expr, parse_regex(regex, RegexMatch::kWhole));
    builder.define_rule(builder.declare_rule("root"), std::move(expr));
    return builder.finish(0, budget);
  });
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

OrderedJson object_with(const std::string& key, OrderedJson schema) {
  return {{"type", "object"}, {"properties", {{key, std::move(schema)}}}, {"required", {key}}};
}

std::string numbered(const char* prefix, int number) { return prefix + std::to_string(number); }

// The limit is 0.3 s; a machine at work may take several times that, sanitizers and debug builds several times more.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr double kMostSeconds = 60;
constexpr int64_t kMostBytes = 2'000'000'000;
#else
constexpr double kMostSeconds = 5;
constexpr int64_t kMostBytes = 500'000'000;
#endif
constexpr const char* kTooLarge = "too large";

}  // namespace

TEST_CASE("limits: an anyOf of thirty in thirty, of any kind, ends by the limit or is a grammar") {
  for (const bool is_closed : {false, true}) {
    for (const char* keyword : {"anyOf", "oneOf"}) {
      OrderedJson outer = OrderedJson::array();
      for (int i = 0; i < 30; ++i) {
        OrderedJson inner = OrderedJson::array();
        for (int j = 0; j < 30; ++j) {
          OrderedJson leaf = object_with(numbered("p", j), {{"type", "string"}});
          if (is_closed) leaf["additionalProperties"] = false;
          inner.push_back(std::move(leaf));
        }
        outer.push_back(object_with(numbered("k", i), {{keyword, inner}}));
        if (is_closed) outer.back()["additionalProperties"] = false;
      }
      const Compiled result = compiled_schema({{keyword, outer}});
      INFO(keyword << " closed: " << is_closed << ": " << result.message);
      CHECK(result.seconds < kMostSeconds);
      CHECK(result.message.empty() == is_closed);
    }
  }
}

TEST_CASE("limits: errors that nobody reads do not look for their place in all of a large schema") {
  OrderedJson schema;
  for (int i = 0; i < 4000; ++i) {
    schema["$defs"][numbered("d", i)] = {{"type", "object"}, {"properties", {{"x", {{"type", "string"}}}}}};
  }
  schema["oneOf"] = OrderedJson::array();
  for (int i = 0; i < 100; ++i) {
    OrderedJson branch = object_with("a", {{"contains", OrderedJson::object()}});
    branch["properties"]["b"] = {{"const", i}};
    branch["required"].push_back("b");
    schema["oneOf"].push_back(branch);
  }
  const Compiled result = compiled_schema(schema);  // 14 s before
  CHECK(result.message.find(kTooLarge) != std::string::npos);
  CHECK(result.seconds < kMostSeconds);
}

TEST_CASE("limits: values are compared in counted time, and a long enum is no longer work than its texts") {
  OrderedJson numbers = OrderedJson::array(), texts = OrderedJson::array();
  for (int i = 0; i < 50'000; ++i) numbers.push_back(i * 10);
  for (int i = 0; i < 20'000; ++i) texts.push_back(numbered("value ", i));
  const Compiled too_long = compiled_schema({{"enum", numbers}});  // 4.6 s before
  CHECK(too_long.message.find(kTooLarge) != std::string::npos);
  CHECK(too_long.seconds < kMostSeconds);
  const Compiled fits = compiled_schema({{"enum", texts}});  // 1.1 s before
  CHECK(fits.message.empty());
  CHECK(fits.seconds < kMostSeconds / 2);
  OrderedJson branches = OrderedJson::array();
  for (int i = 0; i < 100; ++i) {
    OrderedJson values = OrderedJson::array();
    for (int j = 0; j < 300; ++j) values.push_back(std::to_string(i) + "_" + std::to_string(j));
    branches.push_back({{"enum", values}});
  }
  const Compiled crossed = compiled_schema({{"oneOf", branches}});
  CHECK(crossed.message.find(kTooLarge) != std::string::npos);
  CHECK(crossed.seconds < kMostSeconds);
}

TEST_CASE("limits: an allOf of thousands of objects is counted by the keys and schemas that it compares") {
  OrderedJson parts = OrderedJson::array();
  for (int i = 0; i < 5000; ++i) parts.push_back(object_with(numbered("p", i), {{"type", "string"}}));
  const Compiled result = compiled_schema({{"allOf", parts}});
  CHECK(result.message.find(kTooLarge) != std::string::npos);
  CHECK(result.seconds < kMostSeconds);
  parts.erase(parts.begin() + 60, parts.end());
  CHECK(compiled_schema({{"allOf", parts}}).message.empty());
}

TEST_CASE("limits: branches told apart by a constant are compared once a pair, and the limit is named as such") {
  for (const int num_branches : {140, 400}) {
    OrderedJson branches = OrderedJson::array();
    for (int i = 0; i < num_branches; ++i) branches.push_back(object_with("type", {{"const", numbered("v", i)}}));
    const Compiled result = compiled_schema({{"oneOf", branches}});
    INFO(result.message);
    CHECK(result.seconds < kMostSeconds);
    CHECK(result.message.empty() == (num_branches == 140));
    if (num_branches == 400) CHECK(result.message.find(kTooLarge) != std::string::npos);
  }
}

TEST_CASE("limits: a oneOf of 40,000 branches keeps nothing for each pair of them") {
  const int64_t before = peak_memory_bytes();
  for (const OrderedJson& branch : {OrderedJson(false), OrderedJson(true), OrderedJson({{"const", 1}})}) {
    const Compiled result = compiled_schema({{"oneOf", std::vector<OrderedJson>(40'000, branch)}});
    CAPTURE(branch.dump());
    CHECK(result.message.find(kTooLarge) != std::string::npos);
    CHECK(result.seconds < kMostSeconds);
  }
  CHECK(peak_memory_bytes() - before < kMostBytes);
}

TEST_CASE("limits: patterns of a megabyte are read in linear time and little memory") {
  for (const std::string& regex :
       {"[" + repeated("a-z", 300'000) + "]", "[" + repeated("[:a", 300'000) + "]", repeated("()", 100'000)}) {
    const Compiled result = compiled_regex(regex);  // the first took 4.9 s
    INFO(regex.substr(0, 12) << ": " << result.message);
    CHECK(result.message.empty());
    CHECK(result.seconds < kMostSeconds);
  }
  CHECK(compiled_regex(repeated("[:", 400'000)).seconds < kMostSeconds);  // over a minute before
  for (const std::string& group :
       {std::string("(^a$)|"), "(" + repeated("(^a|", 150) + "b" + repeated(")", 151) + "|"}) {
    const auto count = static_cast<int>(150'000 / group.size());
    const Compiled result = compiled_schema({{"type", "string"}, {"pattern", repeated(group, count) + "c"}});
    INFO(group.substr(0, 12) << ": " << result.message);
    CHECK(result.seconds < kMostSeconds);
  }
  // One expression for all dots, and for all texts before and behind an alternative.
  std::string words;
  for (int i = 0; i < 40'000; ++i) words += (i > 0 ? "|word" : "word") + std::to_string(i);
  for (const std::string& pattern : {repeated(".", 100'000), words}) {
    const double start = thread_seconds();
    const Result<Expr> expr = parse_regex(pattern, RegexMatch::kAnywhere, json_string_chars);
    REQUIRE(expr.ok());
    CHECK(thread_seconds() - start < kMostSeconds / 3);
    const Compiled result = compiled_schema({{"type", "string"}, {"pattern", pattern}});  // 600 MB before
    CHECK(result.message.find(kTooLarge) != std::string::npos);
    CHECK(result.seconds < kMostSeconds);
  }
  const Result<Expr> dots = parse_regex("..x.", RegexMatch::kWhole);
  REQUIRE(dots.ok());
  REQUIRE((*dots)->children.size() == 4);
  CHECK((*dots)->children[0] == (*dots)->children[1]);
  CHECK((*dots)->children[0] == (*dots)->children[3]);
}

TEST_CASE("limits: nested and unreadable grammars end by the limit") {
  for (const char* regex : {"(([a-z]{0,1000}){0,1000}){0,1000}", "(a?){20000}",
                            "((((((((a{0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}"}) {
    INFO(std::string(regex));
    const Compiled result = compiled_regex(regex);
    CHECK(result.message.find(kTooLarge) != std::string::npos);
    CHECK(result.seconds < kMostSeconds);
  }
  std::vector<OrderedJson> schemas;
  OrderedJson deep{{"$ref", "#/$defs/d0"}}, patterns = OrderedJson::array(), keys = OrderedJson::object();
  for (int i = 0; i < 60; ++i) {
    const OrderedJson next{{"$ref", "#/$defs/" + numbered("d", i + 1)}};
    deep["$defs"][numbered("d", i)] = {{"allOf", {next, next}}};  // 2^60 ways
  }
  deep["$defs"]["d60"] = {{"type", "string"}};
  for (int i = 1; i < 20; ++i) patterns.push_back({{"pattern", "a.{" + std::to_string(i) + "}b"}});
  for (const char* key : {"a.{1,10}b", "c.{1,10}d", "e.{1,8}f", "g.{1,8}h", "i.{1,6}j", "k.{1,6}l"}) {
    keys[key] = {{"type", "string"}};
  }
  schemas.push_back(deep);
  schemas.push_back({{"type", "string"}, {"allOf", patterns}});
  schemas.push_back({{"type", "object"}, {"patternProperties", keys}});
  schemas.push_back({{"type", "string"}, {"pattern", "(a|b)*a(a|b){30}"}});
  schemas.push_back({{"type", "string"}, {"pattern", "^a*b"}, {"maxLength", 3000}});
  for (const OrderedJson& schema : schemas) {
    const Compiled result = compiled_schema(schema);
    INFO(schema.dump().substr(0, 100) << ": " << result.message);
    CHECK(result.message.find(kTooLarge) != std::string::npos);
    CHECK(result.seconds < kMostSeconds);
  }
}

TEST_CASE("limits: large multiples between bounds, and look-aheads that multiply") {
  const OrderedJson multiples{
      {"type", "integer"}, {"format", "int64"}, {"multipleOf", 9973}, {"allOf", {{{"multipleOf", 11}}}}};
  std::vector<OrderedJson> schemas{multiples};  // 0.65 s before
  for (const char* pattern :
       {"^(?=.*a.{12}$)(?=.*b.{12}$).*$", "^(?!(a|b)*a(a|b){30}$).*$", "(?=.*(a|b).{14})(?!.*c.{14}).*"}) {
    schemas.push_back({{"type", "string"}, {"pattern", pattern}});
  }
  for (const OrderedJson& schema : schemas) {
    const Compiled result = compiled_schema(schema);
    INFO(schema.dump() << ": " << result.message);
    CHECK(result.message.find(kTooLarge) != std::string::npos);
    CHECK(result.seconds < kMostSeconds / 3);
  }
}

// Each place of such a text stands in up to 2,000 rules at once.
TEST_CASE("limits: the first masks of grammars of very many readings are found or refused in time") {
  std::string sums = "root ::= r0\n", doubled = "root ::= r1000\nr0 ::= \"y\"?\n";
  for (int i = 0; i < 2000; ++i) {
    const std::string name = numbered("r", i), next = numbered("r", i + 1);
    sums += name + " ::= " + name + " \"+\" " + next + " | " + next + "\n";
  }
  sums += "r2000 ::= \"y\"\n";
  for (int i = 1; i <= 1000; ++i) {
    const std::string before = numbered("r", i - 1);
    doubled += numbered("r", i) + " ::= " + before + " " + before + " | \"\"\n";
  }
  const std::vector<std::string> tokens{"", "y", "+", "y+", "y+y", "yy"};
  const auto trie = std::make_shared<const TokenTrie>(tokens, static_cast<int>(tokens.size()));
  for (const std::string& ebnf : {sums, doubled}) {
    Result<Grammar> grammar = grammar_of(ebnf);
    REQUIRE(grammar.ok());
    const double start = thread_seconds();
    const auto constraint = TokenGrammar::create(std::make_shared<const Grammar>(std::move(*grammar)), trie);
    CHECK(thread_seconds() - start < kMostSeconds / 3);
    if (!constraint.ok()) CHECK(constraint.status().message().find("too ambiguous") != std::string::npos);
  }
}

}  // namespace spate
