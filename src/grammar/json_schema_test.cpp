// Goal    A text is allowed exactly where it is JSON that the schema accepts, in the spelling that json_schema.h
// states. Method  Cases by hand for each keyword, valid and invalid. Then thousands of random schemas: random texts of
// the grammar
//         are checked by a validator of the test's own, and random values that this validator accepts are written out
//         and must be allowed; those that it refuses must not be.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/rng.h"
#include "base/test_support.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/parse_states.h"
#include "grammar/regex.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

Result<Grammar> schema_grammar(const Json& schema, JsonGrammarOptions options = {}) {
  CompileBudget budget;
  return compile_json_schema(schema, options, budget);
}

std::string error_of(const char* schema) { return schema_grammar(Json::parse(schema)).status().message(); }

class Checker {
 public:
  explicit Checker(const Json& schema, JsonGrammarOptions options = {}) {
    Result<Grammar> grammar = schema_grammar(schema, std::move(options));
    INFO(schema.dump() << ": " << grammar.status().message());
    REQUIRE(grammar.ok());
    states_.emplace(std::make_shared<const Grammar>(std::move(*grammar)));
  }
  explicit Checker(const char* schema, JsonGrammarOptions options = {})
      : Checker(Json::parse(schema), std::move(options)) {}
  bool accepts(std::string_view text) {
    int32_t state = states_->initial();
    for (const char c : text) state = states_->next(state, static_cast<uint8_t>(c));
    return states_->accepts(state);
  }
  // Whether the value is allowed with its members in some order.
  bool allows(const Json& value) {
    return std::ranges::any_of(after(states_->initial(), value),
                               [&](int32_t state) { return states_->accepts(state); });
  }
  // A random text: bytes that lead on, with a liking for those that end what is open once it is long.
  std::optional<std::string> random_text(Rng& rng) {
    std::string text;
    int32_t state = states_->initial();
    while (text.size() < 600) {
      std::vector<uint8_t> bytes;
      for (int byte = 0; byte < 256; ++byte) {
        if (states_->next(state, static_cast<uint8_t>(byte)) != ParseStates::kDead)
          bytes.push_back(static_cast<uint8_t>(byte));
      }
      // Exponents make numbers that no double holds.
      if (bytes.size() > 2) std::erase_if(bytes, [](uint8_t byte) { return byte == 'e' || byte == 'E'; });
      if (states_->accepts(state) && (bytes.empty() || rng.below(3) == 0)) return text;
      REQUIRE_FALSE(bytes.empty());
      uint8_t byte = bytes[rng.below(bytes.size())];
      for (int i = 0; i < (text.size() > 100 ? 8 : 2); ++i) {
        const uint8_t other = bytes[rng.below(bytes.size())];
        if (std::string_view("\"]}ab0 1").find(static_cast<char>(other)) < (text.size() > 100 ? 3u : 8u)) byte = other;
      }
      text += static_cast<char>(byte);
      state = states_->next(state, byte);
    }
    return std::nullopt;
  }

 private:
  int32_t run(int32_t state, std::string_view text) {
    for (const char c : text) state = states_->next(state, static_cast<uint8_t>(c));
    return state;
  }
  // The situations behind the value's text, over all orders of members.
  std::set<int32_t> after(int32_t state, const Json& value) {
    if (state == ParseStates::kDead) return {};
    if (value.is_object()) return after_members(run(state, "{"), value, 0);
    if (!value.is_array()) return {run(state, json_value_text(value))};
    std::set<int32_t> states{run(state, "[")};
    for (size_t i = 0; i < value.size(); ++i) {
      std::set<int32_t> next;
      for (const int32_t each : states) next.merge(after(i == 0 ? each : run(each, ","), value[i]));
      states = std::move(next);
    }
    std::set<int32_t> ends;
    for (const int32_t each : states) ends.insert(run(each, "]"));
    return ends;
  }
  // done: a bit for each member whose text has been run.
  std::set<int32_t> after_members(int32_t state, const Json& object, uint64_t done) {
    if (state == ParseStates::kDead) return {};
    if (done == (uint64_t{1} << object.size()) - 1) return {run(state, "}")};
    std::set<int32_t> ends;
    uint64_t bit = 1;
    for (auto member = object.begin(); member != object.end(); ++member, bit <<= 1) {
      if (done & bit) continue;
      const int32_t at_value = run(state, (done == 0 ? "" : ",") + json_value_text(Json(member.key())) + ":");
      for (const int32_t each : after(at_value, *member)) ends.merge(after_members(each, object, done | bit));
    }
    return ends;
  }

  std::optional<ParseStates> states_;
};

void check_cases(const char* schema, std::initializer_list<const char*> valid,
                 std::initializer_list<const char*> invalid) {
  Checker checker(schema);
  INFO(schema);
  for (const char* text : valid) {
    INFO(text);
    CHECK(checker.accepts(text));
  }
  for (const char* text : invalid) {
    INFO(text);
    CHECK_FALSE(checker.accepts(text));
  }
}

// --- a validator that shares nothing with the compiler ---

bool is_valid(const Json& root, const Json& schema, const Json& value);

bool matches_type(const std::string& type, const Json& value) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

// The patterns of the random schemas, matched by hand.
bool matches_pattern(const std::string& pattern, const std::string& text) {
  if (pattern == "^a") return text.starts_with("a");
  if (pattern == "b$") return text.ends_with("b");
  if (pattern == "^[ab]*$") return text.find_first_not_of("ab") == std::string::npos;
  REQUIRE(pattern == "1");
  return text.find('1') != std::string::npos;
}

bool is_valid_object(const Json& root, const Json& schema, const Json& value) {
  if (schema.contains("minProperties") && value.size() < schema["minProperties"]) return false;
  if (schema.contains("maxProperties") && value.size() > schema["maxProperties"]) return false;
  for (const Json& key : schema.value("required", Json::array())) {
    if (!value.contains(key.get<std::string>())) return false;
  }
  const Json properties = schema.value("properties", Json::object());
  const Json patterns = schema.value("patternProperties", Json::object());
  for (const auto& [key, member] : value.items()) {
    bool is_named = properties.contains(key);
    if (is_named && !is_valid(root, properties[key], member)) return false;
    for (const auto& [pattern, each] : patterns.items()) {
      if (!matches_pattern(pattern, key)) continue;
      is_named = true;
      if (!is_valid(root, each, member)) return false;
    }
    if (!is_named && schema.contains("additionalProperties") && !is_valid(root, schema["additionalProperties"], member))
      return false;
    if (schema.contains("propertyNames") && !is_valid(root, schema["propertyNames"], Json(key))) return false;
  }
  return true;
}

bool is_valid(const Json& root, const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto all = [&](const char* name, auto&& test) {
    const Json list = schema.value(name, Json::array());
    return std::ranges::all_of(list, test);
  };
  if (schema.contains("$ref")) {
    const std::string ref = schema["$ref"];
    if (!is_valid(root, ref == "#" ? root : root.at(Json::json_pointer(ref.substr(1))), value)) return false;
  }
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::ranges::none_of(types, [&](const Json& type) { return matches_type(type, value); })) return false;
  }
  if (schema.contains("const") && schema["const"] != value) return false;
  if (schema.contains("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end()) return false;
  if (value.is_number()) {
    const double number = value;
    if (schema.contains("minimum") && number < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && number > schema["maximum"].get<double>()) return false;
    if (schema.contains("exclusiveMinimum") && number <= schema["exclusiveMinimum"].get<double>()) return false;
    if (schema.contains("exclusiveMaximum") && number >= schema["exclusiveMaximum"].get<double>()) return false;
    const bool is_exact = std::abs(number) < 1e15;  // as a double
    if (is_exact && schema.contains("multipleOf") && std::fmod(number, schema["multipleOf"].get<double>()) != 0)
      return false;
  }
  if (value.is_string()) {
    const std::string text = value;
    const auto length = std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
    if (schema.contains("minLength") && length < schema["minLength"].get<int>()) return false;
    if (schema.contains("maxLength") && length > schema["maxLength"].get<int>()) return false;
    if (schema.contains("pattern") && !matches_pattern(schema["pattern"], text)) return false;
  }
  if (value.is_array()) {
    if (schema.contains("minItems") && value.size() < schema["minItems"]) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return false;
    const Json prefix = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      const bool in_prefix = i < prefix.size();
      if (!in_prefix && !schema.contains("items")) continue;
      if (!is_valid(root, in_prefix ? prefix[i] : schema["items"], value[i])) return false;
    }
  }
  if (value.is_object() && !is_valid_object(root, schema, value)) return false;
  const auto holds = [&](const Json& each) { return is_valid(root, each, value); };
  if (!all("allOf", holds)) return false;
  for (const char* name : {"anyOf", "oneOf"}) {
    if (!schema.contains(name)) continue;
    const auto count = std::ranges::count_if(schema[name], holds);
    if (count == 0 || (name[0] == 'o' && count > 1)) return false;
  }
  if (schema.contains("not") && holds(schema["not"])) return false;
  if (schema.contains("if")) {
    const char* branch = holds(schema["if"]) ? "then" : "else";
    if (schema.contains(branch) && !holds(schema[branch])) return false;
  }
  return true;
}

// --- random schemas and values ---

const std::vector<std::string> kKeys{"a", "b", "ab", "c1"};

class RandomSchemas {
 public:
  explicit RandomSchemas(Rng& rng) : rng_(rng) {}

  Json schema() {
    Json root = any_schema(3);
    if (!root.is_object()) root = Json{{"allOf", {root}}};
    root["$defs"] = {{"x", any_schema(1)},
                     {"list",
                      {{"type", "object"},
                       {"properties", {{"next", {{"$ref", "#/$defs/list"}}}, {"v", any_schema(0)}}},
                       {"additionalProperties", false}}}};
    return root;
  }
  Json value(int depth) {
    switch (rng_.below(depth == 0 ? 5 : 8)) {
      case 0:
        return nullptr;
      case 1:
        return rng_.below(2) == 0;
      case 2:
        return static_cast<int>(rng_.below(31)) - 15;
      case 3:
        return (static_cast<int>(rng_.below(41)) - 20) / 4.0 + 0.125;
      case 4:
        return text();
      case 5: {
        Json list = Json::array();
        for (uint64_t i = rng_.below(4); i > 0; --i) list.push_back(value(depth - 1));
        return list;
      }
      default: {
        Json object = Json::object();
        for (const char* key : {"a", "b", "ab", "c1", "next", "v", "zz"}) {
          if (rng_.below(3) == 0) object[key] = value(depth - 1);
        }
        return object;
      }
    }
  }

 private:
  bool maybe(int one_in) { return rng_.below(static_cast<uint64_t>(one_in)) == 0; }
  std::string text() {
    static const std::vector<std::string> kTexts{"", "a", "b", "ab", "ba", "abb", "1", "c1", "é\n", "a\"1", "zz"};
    return kTexts[rng_.below(kTexts.size())];
  }
  std::string pattern() {
    static const std::vector<std::string> kPatterns{"^a", "b$", "^[ab]*$", "1"};
    return kPatterns[rng_.below(kPatterns.size())];
  }
  Json any_schema(int depth) {
    switch (rng_.below(depth == 0 ? 7 : 14)) {
      case 0:
        return maybe(3) ? Json(false) : Json(true);
      case 1:
        return {{"enum", Json::array({value(1), value(0), value(0), value(1)})}};
      case 2:
        return {{"const", value(1)}};
      case 3:
        return number_schema();
      case 4:
      case 5:
        return string_schema();
      case 6:
        return {{"$ref", maybe(2) ? "#/$defs/x" : "#/$defs/list"}};
      case 7:
      case 8:
        return array_schema(depth);
      case 9:
        return {{maybe(2) ? "anyOf" : "oneOf", {any_schema(depth - 1), any_schema(depth - 1)}}};
      case 10:
        return {{"allOf", {any_schema(depth - 1), any_schema(depth - 1)}}};
      case 11:
        return {{"if", {{"properties", {{"a", {{"const", value(0)}}}}}, {"required", {"a"}}}},
                {"then", object_schema(depth)},
                {"else", any_schema(depth - 1)}};
      default:
        return object_schema(depth);
    }
  }
  Json number_schema() {
    Json schema{{"type", maybe(2) ? "integer" : "number"}};
    if (maybe(2)) schema[maybe(2) ? "minimum" : "exclusiveMinimum"] = bound();
    if (maybe(2)) schema[maybe(2) ? "maximum" : "exclusiveMaximum"] = bound();
    if (maybe(4)) schema["multipleOf"] = maybe(2) ? Json(3) : Json(0.5);
    return schema;
  }
  Json bound() {
    return maybe(2) ? Json(static_cast<int>(rng_.below(25)) - 12)
                    : Json((static_cast<int>(rng_.below(100)) - 50) / 8.0);
  }
  Json string_schema() {
    Json schema = Json::object();
    if (!maybe(4)) schema["type"] = maybe(3) ? Json({"string", "null"}) : Json("string");
    if (maybe(3)) schema["minLength"] = rng_.below(3);
    if (maybe(3)) schema["maxLength"] = rng_.below(4);
    if (maybe(3)) schema["pattern"] = pattern();
    return schema;
  }
  Json array_schema(int depth) {
    Json schema{{"type", "array"}};
    if (maybe(2)) schema["items"] = any_schema(depth - 1);
    if (maybe(3)) schema["prefixItems"] = {any_schema(depth - 1), any_schema(depth - 1)};
    if (maybe(3)) schema["minItems"] = rng_.below(3);
    if (maybe(3)) schema["maxItems"] = rng_.below(4);
    return schema;
  }
  Json object_schema(int depth) {
    Json schema{{"type", "object"}};
    Json properties = Json::object(), required = Json::array();
    for (const std::string& key : kKeys) {
      if (maybe(2)) properties[key] = any_schema(depth - 1);
      if (maybe(4)) required.push_back(key);
    }
    if (!maybe(4)) schema["properties"] = properties;
    if (!required.empty()) schema["required"] = required;
    if (maybe(2)) schema["additionalProperties"] = maybe(2) ? Json(false) : any_schema(depth - 1);
    if (maybe(4)) schema["patternProperties"] = {{pattern(), any_schema(depth - 1)}, {"^a", any_schema(0)}};
    if (maybe(6)) schema["maxProperties"] = rng_.below(4);
    if (maybe(6)) schema["minProperties"] = rng_.below(3);
    if (maybe(8)) schema["propertyNames"] = string_schema();
    return schema;
  }
  Rng& rng_;
};

TEST_CASE("json schema: OpenAPI's nullable adds null to the type beside it") {
  check_cases(R"({"type":"string","nullable":true,"minLength":1})", {"\"a\"", "null"}, {"\"\"", "1"});
  check_cases(R"({"type":["integer","boolean"],"nullable":true})", {"1", "true", "null"}, {"\"a\""});
  check_cases(R"({"type":"string","nullable":false})", {"\"a\""}, {"null"});
  check_cases(R"({"type":"object","properties":{"a":{"type":"integer","nullable":true}},"required":["a"]})",
              {"{\"a\":null}", "{\"a\":5}"}, {"{\"a\":\"x\"}", "null"});
  check_cases(R"({"not":{"type":"string","nullable":true}})", {"1", "{}"}, {"\"a\"", "null"});
  CHECK(error_of(R"({"type":"string","nullable":1})").find("nullable must be true or false") != std::string::npos);
}

TEST_CASE("json schema: numbers other than a const, with and without a fraction") {
  check_cases(R"({"type":"number","not":{"const":5}})", {"4", "5.5", "-5", "50", "5.01", "0.5"}, {"5", "5.0", "5.00"});
  check_cases(R"({"type":"number","not":{"enum":[0.25,0,-1.5]}})", {"0.2", "0.255", "-0.25", "1", "1.5", "-1.51"},
              {"0.25", "0.250", "0", "-0", "0.0", "-1.5", "-1.500"});
  check_cases(R"({"type":"integer","not":{"const":5.0}})", {"4", "55", "-5"}, {"5"});
  // In an if: its opposite holds for the else.
  check_cases(R"({"type":"object","properties":{"a":{"type":"number"},"b":{"type":"integer"}},"required":["a"],
                  "additionalProperties":false,"if":{"properties":{"a":{"const":1.5}}},"then":{"required":["b"]}})",
              {"{\"a\":1.5,\"b\":2}", "{\"a\":1.25}", "{\"a\":2,\"b\":2}"},
              {"{\"a\":1.5}", "{\"a\":1.50}", "{\"b\":1}"});
  CHECK(error_of(R"({"type":"array","not":{"const":[1]}})").find("const") != std::string::npos);
  CHECK(error_of(R"({"type":"object","not":{"const":{"a":1}}})").find("const") != std::string::npos);
}

}  // namespace

TEST_CASE("json schema: any value, any object") {
  check_cases("true",
              {"null", "true", "-0.5e+10", "\"\"", "[]", "{}", R"({"a": [1, {"b":"\u00e9\n\/"}], "c":null})", "\"é😀\"",
               "\"\\ud83d\\ude00\"", "[ 1 ,\n2 ]"},
              {"", " 1", "1 ", "01", "1.", ".5", "+1", "nul", "\"", "\"\n\"", "[1,]", "{\"a\"}", "{a:1}", "\"\\ud83d\"",
               "\"\\x\"", "\"\xff\""});
  check_cases(R"({"type":"object"})", {"{}", R"({"x":{"y":[]}})"}, {"[]", "1", "{"});
}

TEST_CASE("json schema: numbers") {
  check_cases(R"({"type":"integer","minimum":-3,"maximum":120})", {"-3", "0", "-0", "7", "99", "120"},
              {"-4", "121", "1.0", "1e1", "007", "1000"});
  check_cases(R"({"type":"number","exclusiveMinimum":-1.25,"maximum":0.5})",
              {"-1.249", "-1", "0", "0.5", "0.50", "-0.0", "0.499"}, {"-1.25", "-1.250", "0.51", "0.501", "1", "-2"});
  check_cases(R"({"type":"number","exclusiveMinimum":0})", {"0.001", "12", "1000000"}, {"0", "-0", "0.0", "-1"});
  check_cases(R"({"type":"integer","multipleOf":7})", {"0", "14", "-21", "700"}, {"1", "15", "7.5"});
  check_cases(R"({"type":"number","multipleOf":0.25})", {"0.5", "1.25", "3", "-2.750"}, {"0.3", "0.125", "1.2"});
  check_cases(R"({"minimum":10,"exclusiveMaximum":12,"type":["number","null"]})", {"10", "11.999", "null"},
              {"12", "9.9", "\"\""});
  check_cases(R"({"type":"number","minimum":0,"exclusiveMinimum":true})", {"1"}, {"0"});
}

TEST_CASE("json schema: strings") {
  check_cases(R"({"type":"string","minLength":2,"maxLength":3})", {"\"ab\"", "\"éé\"", "\"\\n\\u00e9😀\""},
              {"\"a\"", "\"abcd\"", "\"\\n\""});
  check_cases(R"({"type":"string","pattern":"^[a-z]+$"})", {"\"abc\""}, {"\"\"", "\"aB\"", "\"a1\""});
  check_cases(R"({"type":"string","pattern":"b.d","maxLength":4})", {"\"bcd\"", "\"abcd\"", "\"bcde\""},
              {"\"abcde\"", "\"bd\""});
  check_cases(R"({"type":"string","pattern":"^\"\\\\$"})", {R"("\"\\")"}, {R"("\"")"});
  check_cases(R"({"type":"string","format":"date"})",
              {"\"2024-02-29\"", "\"1999-12-31\"", "\"0400-02-29\"", "\"0001-01-01\""},
              {"\"2023-02-29\"", "\"2024-13-01\"", "\"x\"", "\"0000-01-01\"", "\"0000-02-29\"", "\"1900-02-29\""});
  check_cases(R"({"type":"string","format":"date-time"})",
              {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.5+01:00\""}, {"\"2024-02-29\""});
  // Left out on purpose: second 60, a quoted name.
  check_cases(R"({"type":"string","format":"time"})", {"\"23:59:59Z\""}, {"\"23:59:60Z\""});
  check_cases(R"({"type":"string","format":"email"})", {"\"a.b@c.de\""}, {"\"\\\"a b\\\"@c.de\""});
  // An annotation, where the name is not known.
  check_cases(R"({"type":"string","format":"iri","maxLength":3})", {"\"abc\"", "\"\""}, {"\"abcd\"", "1"});
  check_cases(R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""});
  check_cases(R"({"type":"string","format":"ipv4"})", {"\"192.168.0.255\""}, {"\"256.1.1.1\"", "\"1.1.1\""});
  check_cases(R"({"type":"string","format":"ipv6"})", {"\"::1\"", "\"fe80::1:2\"", "\"::\""},
              {"\"1::2::3\"", "\":::\""});
  check_cases(R"({"type":"string","format":"ipv6"})",
              {"\"::ffff:192.168.0.1\"", "\"1:2::192.168.0.1\"", "\"1:2:3:4:5:6:1.2.3.4\"", "\"1:2:3:4:5:6:7:8\"",
               "\"1:2:3:4:5:6:7::\"", "\"::2:3:4:5:6:7:8\"", "\"1::8\"", "\"1:2:3:4:5:6::8\""},
              {"\"1:2:3:4:5:6:7\"", "\"1:2:3:4:5:6:7:8:9\"", "\"1:2:3:4:5:6:7:1.2.3.4\"", "\"::1.2.3\"",
               "\"::256.1.1.1\"", "\"1.2.3.4::\"", "\"12345::\"", "\"1:2:3:4::5:6:7:8:9\""});
  check_cases(R"({"type":"string","format":"uri"})",
              {"\"http://a.org\"", "\"http://u:p@a.org:80/b//c?d=/?#e/?\"", "\"mailto:a@b.org\"", "\"urn:a:b\"",
               "\"file:///etc/x\"", "\"tel:+1-2\"", "\"a:\""},
              {"\"a.org\"", "\"//a.org\"", "\"http://a.org:abc/p\"", "\"http://a@b@c/\"", "\"http://[1::2\"",
               "\"http://a b\"", "\":a\"", "\"http://a/%zz\"", "\"a:b#c#d\"", "\"\""});
  check_cases(R"({"type":"string","format":"uri","maxLength":500})", {"\"http://a.org\""}, {"\"http://a.org:abc/p\""});
  check_cases(R"({"type":"string","format":"uri-reference"})",
              {"\"\"", "\"a\"", "\"./1:b\"", "\"../a?b#c\"", "\"//a.org:8/b\"", "\"http://a.org\"", "\"#a\"", "\"?a\"",
               "\"/a/b\""},
              {"\"1:b\"", "\"//a.org:abc/p\"", "\"//a@b@c/\"", "\"a b\"", "\"\\\\a\""});
  check_cases(R"({"type":"string","format":"email"})", {"\"a.b+c@example.org\""}, {"\"a@\"", "\"@b\""});
}

TEST_CASE("json schema: enum, const, not") {
  check_cases(R"({"enum":["a",1,null,[1,{"x":"\n"}]]})", {"\"a\"", "1", "null", R"([1,{"x":"\n"}])"},
              {"2", "\"b\"", "[]"});
  check_cases(R"({"enum":["a",1,22,"bcd"],"type":"string","minLength":2})", {"\"bcd\""}, {"\"a\"", "1"});
  check_cases(R"({"type":"string","not":{"enum":["a","b"]}})", {"\"c\"", "\"ab\"", "\"\""}, {"\"a\"", "\"b\""});
  check_cases(R"({"type":"integer","not":{"const":5}})", {"4", "55"}, {"5"});
  check_cases(R"({"not":{"type":["object","array","string"]}})", {"1", "null"}, {"{}", "[]", "\"\""});
}

TEST_CASE("json schema: arrays") {
  check_cases(R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})", {"[1]", "[1,2, 3]"},
              {"[]", "[1,2,3,4]", "[\"a\"]"});
  check_cases(R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
              {"[]", "[1]", "[1,\"a\"]"}, {"[\"a\"]", "[1,\"a\",2]"});
  check_cases(R"({"type":"array","prefixItems":[{"const":1}],"items":{"const":2},"minItems":2})", {"[1,2]", "[1,2,2]"},
              {"[1]", "[1,1]"});
  check_cases(R"({"type":"array","items":[{"const":1}],"additionalItems":{"const":2}})", {"[]", "[1,2,2]"}, {"[2]"});
  check_cases(R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"});
}

TEST_CASE("json schema: objects") {
  check_cases(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{}},"required":["b"],"additionalProperties":false})",
      {R"({"b":""})", R"({"a":1,"b":""})", R"({"a":1, "b":"", "c":[]})", R"({"b":"","c":1})"},
      {"{}", R"({"a":1})", R"({"b":1})", R"({"b":"","d":1})", R"({"b":"",})", R"({,"b":""})", R"({"b":"" "c":1})"});
  check_cases(R"({"type":"object","properties":{"a":{"const":1}},"required":["z"]})",
              {R"({"z":0})", R"({"a":1,"z":[],"y":2})"}, {"{}", R"({"a":2,"z":0})", R"({"z":0,"a":2})", R"({"y":1})"});
  check_cases(R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
              {R"({"x":1})", R"({"x":1,"y":2})"}, {"{}", R"({"x":1,"y":2,"z":3})", R"({"x":""})"});
  check_cases(R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2})",
              {R"({"a":1,"c":2})", R"({"a":1,"b":1,"c":2})"}, {R"({"a":1})", "{}"});
  check_cases(
      R"({"type":"object","patternProperties":{"^n":{"type":"integer"},"s$":{"type":["string","integer"]}},"additionalProperties":{"type":"null"}})",
      {R"({"n":1,"s":"x","q":null})", R"({"ns":1})"}, {R"({"n":""})", R"({"ns":""})", R"({"q":1})"});
  check_cases(R"({"type":"object","propertyNames":{"pattern":"^[a-z]{1,3}$"}})", {R"({"abc":1})", "{}"},
              {R"({"abcd":1})", R"({"A":1})"});
  check_cases(
      R"({"type":"object","properties":{"a":{"type":"null"},"a\u0000":{"type":"integer"}},"required":["a\u0000"]})",
      {R"({"a\u0000":1})"}, {R"({"a\u0000":null})"});
  check_cases(R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})",
              {"{}", R"({"b":1})", R"({"a":1,"b":1})"}, {R"({"a":1})"});
}

TEST_CASE("json schema: choices and references") {
  check_cases(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"x\""}, {"null"});
  check_cases(
      R"({"oneOf":[{"type":"object","properties":{"t":{"const":"a"},"x":{"type":"integer"}},"required":["t","x"]},
                           {"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]})",
      {R"({"t":"a","x":1})", R"({"t":"b"})"}, {R"({"t":"a"})", R"({"t":"c"})"});
  check_cases(R"({"oneOf":[{"const":1},{"enum":[1,2]}]})", {"2"}, {"1"});
  check_cases(R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                           {"properties":{"a":{"minimum":5},"b":{"type":"null"}},"required":["b"]}]})",
              {R"({"a":5,"b":null})"}, {R"({"a":4,"b":null})", R"({"a":5})"});
  check_cases(R"({"type":"object","properties":{"k":{"enum":["x","y"]},"v":{}},"required":["k"],
                  "if":{"properties":{"k":{"const":"x"}}},"then":{"properties":{"v":{"type":"integer"}},"required":["v"]},
                  "else":{"properties":{"v":{"type":"string"}}}})",
              {R"({"k":"x","v":1})", R"({"k":"y"})", R"({"k":"y","v":"s"})"},
              {R"({"k":"x"})", R"({"k":"y","v":1})", R"({"k":"x","v":"s"})"});
  check_cases(
      R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["v"],"additionalProperties":false}}})",
      {R"({"v":1})", R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]})"}, {R"({"v":1,"kids":[{}]})", R"({"kids":[]})"});
  check_cases(R"({"$ref":"#item","$defs":{"a/b":{"$anchor":"item","type":"null"}}})", {"null"}, {"1"});
  // A value is no schema, whatever its keys; a property may have a keyword's name.
  check_cases(R"({"$ref":"#item","$defs":{"a":{"enum":[{"$anchor":"item","type":"null"}]},
                  "b":{"const":{"$anchor":"item","type":"null"}},"c":{"$anchor":"item","type":"string"}}})",
              {"\"x\""}, {"null", "1"});
  check_cases(R"({"$ref":"urn:item","$defs":{"a":{"enum":[{"$id":"urn:item","type":"null"}]},
                  "enum":{"$id":"urn:item","type":"string"}}})",
              {"\"x\""}, {"null"});
  check_cases(R"({"properties":{"x":{"$ref":"#/$defs/a~1b"}},"$defs":{"a/b":{"type":"null"}},"type":"object"})",
              {R"({"x":null})"}, {R"({"x":1})"});
}

TEST_CASE("json schema: ordinary white space, which no model can fill its tokens with") {
  Checker any("true");
  for (const Json& value :
       {Json::parse(R"({"a":[1,{"b":[]},[[{"c":{}}]]],"d":"x"})"), Json::parse("[[[[[[[[1]]]]]]]]")}) {
    for (const int indent : {-1, 0, 1, 2, 4}) CHECK(any.accepts(value.dump(indent)));
    CHECK(any.accepts(value.dump(1, '\t')));
  }
  for (const char* text : {"[ 1 , 2 ]", "[1,\r\n  2\r\n]", "{\"a\": 1, \n  \"b\"   :        2\n}", "[1\n, 2\n]"})
    CHECK(any.accepts(text));
  for (const char* text : {"[\n\n1]", "[1,\n \n2]", "[1\r2]", "[\r\r\n1]", "[         1]", "[   \n1]"})
    CHECK_FALSE(any.accepts(text));
  CHECK(any.accepts("[\n" + std::string(kMaxIndentation, ' ') + "1]"));
  CHECK_FALSE(any.accepts("[\n" + std::string(kMaxIndentation + 1, ' ') + "1]"));
}

TEST_CASE("json schema: white space options") {
  const char* schema =
      R"({"type":"object","properties":{"a":{},"b":{}},"required":["a","b"],"additionalProperties":false})";
  Checker compact(schema, {.any_whitespace = false});
  CHECK(compact.accepts(R"({"a": 1, "b": [1, 2]})"));
  CHECK_FALSE(compact.accepts(R"({"a":1,"b":2})"));
  CHECK_FALSE(compact.accepts(R"({ "a": 1, "b": 2})"));
  Checker pattern(schema, {.whitespace_pattern = "[ ]?"});
  CHECK(pattern.accepts(R"({ "a" :1, "b":2 })"));
  CHECK_FALSE(pattern.accepts("{\n\"a\":1,\"b\":2}"));
  Checker strict(R"({"type":"object","properties":{"a":{}}})", {.default_additional_properties = false});
  CHECK_FALSE(strict.accepts(R"({"a":1,"b":2})"));
}

TEST_CASE("json schema: what is refused names the keyword and its place") {
  CHECK(error_of(R"({"type":"array","contains":{}})") == "json schema: at #: contains is not supported");
  CHECK(error_of(R"({"properties":{"a":{"type":"array","uniqueItems":true}}})")
            .starts_with("json schema: at #/properties/a: uniqueItems"));
  CHECK(
      error_of(R"({"properties":{"a":{"type":"thing"}}})").starts_with("json schema: at #/properties/a: type must be"));
  CHECK(error_of(R"({"dependentRequired":[["a"]]})") == "json schema: at #: dependentRequired must be an object");
  for (const char* keyword : {"enum", "required", "anyOf", "allOf"}) {
    const std::string schema = fmt::format(R"({{"not":{{"{}":{{"a":"b"}}}}}})", keyword);
    CHECK(error_of(schema.c_str()).find(fmt::format("{} must be a list", keyword)) != std::string::npos);
  }
  CHECK(error_of(R"({"not":{"required":[1]}})").find("list of strings") != std::string::npos);
  CHECK(error_of(R"({"not":{"properties":["a"]}})").find("must be an object") != std::string::npos);
  CHECK(error_of(R"({"$ref":"#/$defs/x"})").find("leads nowhere") != std::string::npos);
  CHECK(error_of(R"({"$ref":"#"})").find("refers to itself") != std::string::npos);
  CHECK(error_of(R"({"allOf":[{"$ref":"#"}]})").find("refers to itself") != std::string::npos);
  CHECK(error_of(R"({"anyOf":[{"$ref":"#"}]})").find("itself") != std::string::npos);
  CHECK(error_of(R"j({"type":"string","pattern":"(?<=a)"})j").find("look-behind") != std::string::npos);
  CHECK(error_of(R"({"type":"string","format":7})").find("format must be a string") != std::string::npos);
  CHECK(error_of(R"({"type":"string","minLength":-1})").find("minLength must be") != std::string::npos);
  CHECK(error_of(R"({"oneOf":[{"minimum":1},{"minimum":2}]})").find("branch 0 and branch 1") != std::string::npos);
  CHECK(error_of(R"({"type":"integer","multipleOf":0})").find("multipleOf must be above 0") != std::string::npos);
  CHECK(error_of(R"({"type":"string","minLength":3,"maxLength":2})").find("no value is valid") != std::string::npos);
  CHECK(error_of("false").find("no value is valid") != std::string::npos);
  CHECK(error_of("3").find("must be an object or a boolean") != std::string::npos);
  CHECK(error_of(R"({"type":"array","items":{"type":"array","maxItems":900000000},"maxItems":900000000})")
            .find("too large") != std::string::npos);
  CHECK(error_of(R"({"type":"string","pattern":"(a|b)*a(a|b){40}"})").find("too large") != std::string::npos);
  Json many = Json::array();
  for (int i = 0; i < 20; ++i) many.push_back({{"anyOf", {{{"minimum", i}}, {{"maxLength", i}}, {{"maxItems", i}}}}});
  CHECK(schema_grammar({{"allOf", many}}).status().message().find("combinations") != std::string::npos);
  CHECK(error_of(R"({"type":"string","minLength":1e18})").find("minLength must be") != std::string::npos);
  CHECK(error_of(R"({"type":"string","minLength":999999999})").find("too large") != std::string::npos);
  CHECK(error_of(R"j({"type":"string","pattern":"[\\q"})j").find("this escape is not known") != std::string::npos);
}

TEST_CASE("json schema: what costs too much is refused, by count and not by time") {
  Json chain = {{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 5'000; ++i) {
    chain["$defs"][std::to_string(i)] = {{"allOf", {{{"$ref", "#/$defs/" + std::to_string(i + 1)}}}}};
  }
  CHECK(schema_grammar(chain).status().message().find("schemas stand in one another") != std::string::npos);

  Json anchors = {{"prefixItems", Json::array()}, {"$defs", {{"last", {{"$anchor", "last"}}}}}};
  for (int i = 0; i < 9'000; ++i) anchors["prefixItems"].push_back({{"$ref", "#last"}});
  CHECK(schema_grammar(anchors).status().message().find("too large") != std::string::npos);

  Json values = Json::array();
  for (int i = 0; i < 10'000; ++i) values.push_back(i);
  CHECK(schema_grammar({{"enum", values}, {"allOf", {{{"enum", values}}}}}).status().message().find("too large") !=
        std::string::npos);
}

TEST_CASE("json schema: random schemas, both directions") {
  Rng rng(test_seed());
  RandomSchemas random(rng);
  int num_compiled = 0, num_texts = 0, num_allowed = 0, num_refused = 0;
  std::map<std::string, int> refusals;
  for (int round = 0; round < 2000; ++round) {
    const Json schema = random.schema();
    INFO("seed " << test_seed() << " round " << round << "\n" << schema.dump());
    const Result<Grammar> grammar = schema_grammar(schema);
    std::vector<Json> values;
    for (int i = 0; i < 25; ++i) values.push_back(random.value(3));
    if (!grammar.ok()) {
      const std::string message = grammar.status().message();
      ++refusals[message.substr(message.find(": ", 15) + 2, 24)];
      if (message.find("no value is valid") == std::string::npos) continue;
      for (const Json& value : values) REQUIRE_FALSE(is_valid(schema, schema, value));
      continue;
    }
    ++num_compiled;
    Checker checker(schema);
    for (int i = 0; i < 4; ++i) {
      const std::optional<std::string> text = checker.random_text(rng);
      if (!text) continue;
      INFO(*text);
      const Json value = Json::parse(*text, nullptr, false);
      REQUIRE_FALSE(value.is_discarded());
      REQUIRE(is_valid(schema, schema, value));
      ++num_texts;
    }
    for (const Json& value : values) {
      INFO(value.dump());
      const bool expected = is_valid(schema, schema, value);
      REQUIRE(checker.allows(value) == expected);
      ++(expected ? num_allowed : num_refused);
    }
  }
  for (const auto& [message, count] : refusals) MESSAGE(count, " schemas: ", message);
  MESSAGE(num_compiled, " schemas, ", num_texts, " texts valid; ", num_allowed, " values allowed, ", num_refused,
          " refused");
  CHECK(num_compiled > 1200);
  CHECK(num_texts > 3000);
  CHECK(num_allowed > 3000);
}

}  // namespace spate
