// schema_dialects_test.cpp
//
// Goal    Schemas as generators and older drafts write them are held as their authors mean them, or refused by keyword.
// Method  Schemas that pydantic (1 and 2), zod-to-json-schema, zod 4 and writers of OpenAPI 3.0 made, as they made
// them;
//         then each keyword that a draft spells otherwise, with texts that must be allowed and texts that must not.
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "grammar/grammar_test_support.h"
#include "grammar/json_schema.h"

#include "base/test.h"

namespace spate {
namespace {

using Schema = nlohmann::ordered_json;

Result<Grammar> dialect_grammar(const std::string& schema) {
  CompileBudget budget;
  return compile_json_schema(Schema::parse(schema), {}, budget);
}

std::string dialect_error(const std::string& schema) { return dialect_grammar(schema).status().message(); }

void check_texts(const std::string& schema, std::initializer_list<const char*> valid,
                 std::initializer_list<const char*> invalid) {
  Result<Grammar> grammar = dialect_grammar(schema);
  INFO(schema);
  INFO(grammar.status().message());
  REQUIRE(grammar.ok());
  ParseStates states(std::make_shared<const Grammar>(std::move(*grammar)));
  for (const char* text : valid) {
    INFO(text);
    CHECK(accepts(states, text));
  }
  for (const char* text : invalid) {
    INFO(text);
    CHECK_FALSE(accepts(states, text));
  }
}

}  // namespace

TEST_CASE("schema dialects: pydantic 1") {
  check_texts(
      R"j({"title":"Order","type":"object","properties":{"id":{"title":"Id","exclusiveMinimum":0,"type":"integer"},
      "item":{"title":"The item","description":"What is bought","allOf":[{"$ref":"#/definitions/Item"}]},
      "size":{"title":"Size","default":[1,2],"type":"array","minItems":2,"maxItems":2,"items":[{"type":"integer"},
      {"type":"integer"}]},"state":{"$ref":"#/definitions/State"},"key":{"title":"Key","type":"string","format":"uuid4"}},
      "required":["id","item","key"],"definitions":{"Item":{"title":"Item","type":"object","properties":{"name":
      {"title":"Name","maxLength":5,"type":"string"}},"required":["name"],"additionalProperties":false},
      "State":{"title":"State","description":"An enumeration.","enum":["new","done"]}},"additionalProperties":false})j",
      {R"({"id":1,"item":{"name":"ab"},"key":"3f2504e0-4f89-41d3-9a0c-0305e82c3301"})",
       R"({"id":7,"item":{"name":""},"size":[3,4],"state":"done","key":"3F2504E0-4F89-41D3-8A0C-0305E82C3301"})"},
      {R"({"id":0,"item":{"name":"ab"},"key":"3f2504e0-4f89-41d3-9a0c-0305e82c3301"})",
       R"({"id":1,"item":{"name":"abcdef"},"key":"3f2504e0-4f89-41d3-9a0c-0305e82c3301"})",
       R"({"id":1,"item":{"name":"ab"},"key":"3f2504e0-4f89-11d3-9a0c-0305e82c3301"})",
       R"({"id":1,"item":{"name":"ab"},"size":[3],"key":"3f2504e0-4f89-41d3-9a0c-0305e82c3301"})",
       R"({"id":1,"item":{"name":"ab"},"size":[3,4,5],"key":"3f2504e0-4f89-41d3-9a0c-0305e82c3301"})",
       R"({"id":1,"item":{"name":"ab"},"state":"old","key":"3f2504e0-4f89-41d3-9a0c-0305e82c3301"})"});
}

TEST_CASE("schema dialects: pydantic 2, with a decimal, a tagged union and an optional") {
  check_texts(
      R"j({"$defs":{"Cat":{"properties":{"kind":{"const":"cat","title":"Kind","type":"string"},"lives":{"title":"Lives",
      "type":"integer"}},"required":["kind","lives"],"title":"Cat","type":"object"},"Dog":{"properties":{"kind":{"const":
      "dog","title":"Kind","type":"string"}},"required":["kind"],"title":"Dog","type":"object"}},"properties":{"price":
      {"anyOf":[{"type":"number"},{"pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$","type":"string"}],"title":"Price"},
      "pet":{"discriminator":{"mapping":{"cat":"#/$defs/Cat","dog":"#/$defs/Dog"},"propertyName":"kind"},"oneOf":[{"$ref":
      "#/$defs/Cat"},{"$ref":"#/$defs/Dog"}],"title":"Pet"},"note":{"anyOf":[{"type":"string"},{"type":"null"}],
      "default":null,"title":"Note"},"pair":{"maxItems":2,"minItems":2,"prefixItems":[{"type":"string"},{"type":
      "integer"}],"title":"Pair","type":"array"}},"required":["price","pet","pair"],"title":"Sale","type":"object"})j",
      {R"({"price":"12.50","pet":{"kind":"cat","lives":9},"pair":["a",1]})",
       R"({"price":12.5,"pet":{"kind":"dog"},"note":null,"pair":["a",1]})",
       R"({"price":"-0","pet":{"kind":"dog"},"pair":["",-1]})"},
      {R"({"price":"-","pet":{"kind":"dog"},"pair":["a",1]})", R"({"price":"","pet":{"kind":"dog"},"pair":["a",1]})",
       R"({"price":1,"pet":{"kind":"cow"},"pair":["a",1]})", R"({"price":1,"pet":{"kind":"cat"},"pair":["a",1]})",
       R"({"price":1,"pet":{"kind":"dog"},"pair":["a"]})"});
  // Decimal(max_digits=6, decimal_places=2): a look-ahead in the group that ends the pattern.
  check_texts(
      R"j({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*(?:\\d{0,4}|(?=[\\d.]{1,7}0*$)\\d{0,4}\\.\\d{0,2}0*$)"})j",
      {"\"1\"", "\"1234.56\"", "\"-.5\"", "\"000.1\""}, {"\"\"", "\"+\"", "\".\""});
}

TEST_CASE("schema dialects: zod-to-json-schema") {
  check_texts(
      R"j({"type":"object","properties":{"name":{"type":"string","minLength":1},"tuple":{"type":"array","minItems":1,
      "maxItems":1,"items":[{"type":"string"}]},"rest":{"type":"array","minItems":1,"items":[{"type":"string"}],
      "additionalItems":{"type":"number"}},"map":{"type":"array","maxItems":125,"items":{"type":"array","items":[{"type":
      "string"},{"type":"integer"}],"minItems":2,"maxItems":2}},"record":{"type":"object","additionalProperties":{"type":
      "boolean"},"propertyNames":{"enum":["a","b"]}},"again":{"$ref":"#/properties/name"},"literal":{"type":"string",
      "const":"x"},"either":{"type":["string","null"]}},"required":["name","tuple"],"additionalProperties":false,
      "$schema":"http://json-schema.org/draft-07/schema#"})j",
      {R"({"name":"n","tuple":["t"]})", R"({"name":"n","tuple":["t"],"rest":["a",1,2.5],"map":[["k",1]]})",
       R"({"name":"n","tuple":["t"],"record":{"a":true,"b":false},"again":"m","literal":"x","either":null})"},
      {R"({"name":"","tuple":["t"]})", R"({"name":"n","tuple":["t","u"]})",
       R"({"name":"n","tuple":["t"],"rest":["a","b"]})", R"({"name":"n","tuple":["t"],"map":[["k","1"]]})",
       R"({"name":"n","tuple":["t"],"record":{"c":true}})", R"({"name":"n","tuple":["t"],"again":""})",
       R"({"name":"n","tuple":["t"],"literal":"y"})", R"({"name":"n","tuple":["t"],"more":1})"});
  // Its target openApi3: what may be null beside $ref, anyOf and a type.
  check_texts(
      R"j({"type":"object","properties":{"a":{"type":"number","minimum":0,"exclusiveMinimum":true,"nullable":true},"b":{
      "allOf":[{"$ref":"#/properties/a"}],"nullable":true},"c":{"anyOf":[{"type":"string"},{"type":"boolean"}],
      "nullable":true}},"required":["a"],"additionalProperties":false})j",
      {R"({"a":1})", R"({"a":null,"b":null,"c":null})", R"({"a":0.5,"b":2,"c":true})"},
      {R"({"a":0})", R"({"a":1,"b":"x"})", R"({"a":1,"c":1})"});
}

TEST_CASE("schema dialects: zod 4's patterns beside formats") {
  check_texts(
      R"j({"type":"string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"})j",
      {"\"a.b@example.com\"", "\"x@a-b.co\""},
      {"\".a@example.com\"", "\"a..b@example.com\"", "\"a@example\"", "\"a.@b.co\""});
  check_texts(
      R"j({"type":"string","format":"duration","pattern":"^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$"})j",
      {"\"P1Y\"", "\"P3W\"", "\"PT5M\"", "\"P1DT2H\""}, {"\"P\"", "\"PT\"", "\"P1Y2W\"", "\"P1DT\""});
  // Its times have no zone, which the format demands: the pattern holds.
  check_texts(
      R"j({"type":"string","format":"time","pattern":"^(?:[01]\\d|2[0-3]):[0-5]\\d(?::[0-5]\\d(?:\\.\\d+)?)?$"})j",
      {"\"12:30\"", "\"12:30:01.5\""}, {"\"24:00\"", "\"12:30:00Z\""});
  check_texts(R"j({"type":"string","pattern":"^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{4,6}$"})j", {"\"aB3c\"", "\"12345Z\""},
              {"\"abc1\"", "\"ABCD\"", "\"aB3\"", "\"aB3cdef\""});
}

TEST_CASE("schema dialects: nullable of OpenAPI 3.0 where no type stands beside it") {
  check_texts(R"({"nullable":true,"enum":[1,"a"]})", {"1", "\"a\"", "null"}, {"2"});
  check_texts(R"({"$defs":{"x":{"type":"integer"}},"nullable":true,"$ref":"#/$defs/x"})", {"1", "null"}, {"\"a\""});
  check_texts(R"({"nullable":true,"minLength":1})", {"\"a\"", "null", "1"}, {"\"\""});
  check_texts(R"({"nullable":false,"enum":[1]})", {"1"}, {"null"});
  check_texts(R"({"not":{"nullable":true,"enum":[1]}})", {"2", "\"a\""}, {"1", "null"});
  check_texts(R"({"type":"string","enum":["a","b"],"nullable":true})", {"\"a\""}, {"null"});  // the enum lacks it
  check_texts(R"({"type":"string","enum":["a",null],"nullable":true})", {"\"a\"", "null"}, {"\"b\""});
}

TEST_CASE("schema dialects: bounds, multiples and requirements of drafts 3 and 4") {
  check_texts(R"({"type":"integer","minimum":1,"exclusiveMinimum":true,"maximum":3,"exclusiveMaximum":true})", {"2"},
              {"1", "3"});
  check_texts(R"({"type":"integer","minimum":1,"exclusiveMinimum":false})", {"1"}, {"0"});
  check_texts(R"({"type":"integer","exclusiveMinimum":false})", {"-1"}, {});
  CHECK(dialect_error(R"({"type":"integer","exclusiveMinimum":true})").find("there is no minimum") !=
        std::string::npos);
  CHECK(dialect_error(R"({"exclusiveMaximum":true,"minimum":1})").find("there is no maximum") != std::string::npos);
  check_texts(R"({"type":"object","properties":{"a":{"type":"integer","required":true},"b":{"required":false}}})",
              {R"({"a":1})", R"({"a":1,"b":2})"}, {"{}", R"({"b":2})"});
  for (const auto& [schema, today] :
       {std::pair{R"({"divisibleBy":2})", "multipleOf"}, std::pair{R"({"extends":{"type":"object"}})", "allOf"},
        std::pair{R"({"disallow":"string"})", "not"}}) {
    CHECK(dialect_error(schema).find(std::string("is of draft 3; use ") + today) != std::string::npos);
  }
}

TEST_CASE("schema dialects: dependencies and dependentSchemas") {
  check_texts(R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"dependencies":{"a":["b"],
              "c":{"properties":{"b":{"type":"integer"}},"required":["b"]}},"additionalProperties":false})",
              {"{}", R"({"b":"x"})", R"({"a":1,"b":"x"})", R"({"b":1,"c":2})", R"({"a":1,"b":1,"c":2})"},
              {R"({"a":1})", R"({"c":1})", R"({"b":"x","c":2})", R"({"a":1,"b":"x","c":1})"});
  check_texts(R"({"dependentSchemas":{"a":{"maxProperties":1},"b":false}})",
              {"{}", R"({"a":1})", "5", "[]", R"({"c":1})"}, {R"({"a":1,"c":2})", R"({"b":1})"});
  CHECK(dialect_error(R"({"dependentRequired":{"a":{"required":["b"]}}})").find("lists of strings") !=
        std::string::npos);
  CHECK(dialect_error(R"({"dependentSchemas":{"a":["b"]}})").find("must be an object or a boolean") !=
        std::string::npos);
  CHECK(dialect_error(R"({"dependencies":{"a":{}},"unevaluatedProperties":false})")
            .find("unevaluatedProperties beside") != std::string::npos);
}

TEST_CASE("schema dialects: names of schemas, by id, anchor and address") {
  const char* const kNames[] = {
      R"({"items":{"$ref":"#x"},"type":"array","definitions":{"y":{"id":"#x","type":"integer"}}})",
      R"({"items":{"$ref":"#x"},"type":"array","definitions":{"y":{"$id":"#x","type":"integer"}}})",
      R"({"items":{"$ref":"#x"},"type":"array","$defs":{"y":{"$anchor":"x","type":"integer"}}})",
      R"({"items":{"$ref":"#x"},"type":"array","$defs":{"y":{"$dynamicAnchor":"x","type":"integer"}}})",
      R"({"items":{"$ref":"http://a/b"},"type":"array","definitions":{"y":{"id":"http://a/b#","type":"integer"}}})",
      R"({"$id":"http://a/r","type":"array","items":{"$ref":"http://a/r#/$defs/y"},"$defs":{"y":{"type":"integer"}}})",
      R"({"type":"array","items":{"$ref":"b#z"},"$defs":{"y":{"$id":"b","$defs":{"q":{"$anchor":"z","type":"integer"}}}}})"};
  for (const char* schema : kNames) check_texts(schema, {"[]", "[1]"}, {"[\"a\"]", "1"});
  // A pointer begins at the nearest schema with an $id, and at the document where that one has no such place.
  check_texts(R"({"type":"array","items":{"$id":"i","$ref":"#/$defs/y","$defs":{"y":{"type":"integer"}}},
              "$defs":{"y":{"type":"string"}}})",
              {"[1]"}, {"[\"a\"]"});
  check_texts(R"({"type":"array","items":{"$id":"i","$ref":"#/$defs/y"},"$defs":{"y":{"type":"string"}}})", {"[\"a\"]"},
              {"[1]"});
  // What stands beside a $ref holds, as in 2019-09 and later.
  check_texts(R"({"$ref":"#/definitions/x","maxLength":2,"definitions":{"x":{"type":"string","minLength":1}}})",
              {"\"a\"", "\"ab\""}, {"\"\"", "\"abc\""});
  CHECK(dialect_error(R"({"$ref":"other.json#/definitions/x"})").find("leads nowhere") != std::string::npos);
  CHECK(
      dialect_error(R"({"$ref":"#x","properties":{"x":{"enum":["#x"]},"id":{"const":"#x"}}})").find("leads nowhere") !=
      std::string::npos);
}

TEST_CASE("schema dialects: formats of OpenAPI and pydantic") {
  check_texts(R"({"type":"integer","format":"int32"})", {"2147483647", "-2147483648", "0"},
              {"2147483648", "-2147483649"});
  check_texts(R"({"type":"number","format":"int64"})", {"9223372036854775807"}, {"9223372036854775808", "1.5"});
  check_texts(R"({"type":"integer","format":"uint32","maximum":7})", {"7", "0"}, {"8", "-1"});
  check_texts(R"({"type":"string","format":"int64"})", {"\"any\""}, {"1"});
  check_texts(R"({"type":"string","format":"byte"})", {"\"\"", "\"aGk=\"", "\"YWJj\""},
              {"\"a\"", "\"aGk\"", "\"a_k=\""});
  check_texts(R"({"type":"string","format":"ipvanyaddress"})", {"\"10.0.0.1\"", "\"::1\""}, {"\"a\""});
  check_texts(R"({"type":"string","format":"uri-template"})", {"\"\"", "\"http://a/{b}{?c,d:3,e*}\"", "\"%41\""},
              {"\"{\"", "\"{}\"", "\"a b\"", "\"{b:0}\"", "\"%4\""});
}

TEST_CASE("schema dialects: pydantic's HttpUrl, in many members") {
  Schema schema{{"type", "object"}, {"properties", Schema::object()}, {"required", {"u0"}}};
  for (int i = 0; i < 12; ++i) {
    schema["properties"]["u" + std::to_string(i)] = {
        {"format", "uri"}, {"maxLength", 2083}, {"minLength", 1}, {"title", "U"}, {"type", "string"}};
  }
  check_texts(schema.dump(), {R"({"u0":"http://a.example/b?c=d#e"})", R"({"u0":"a:b","u11":"https://x"})"},
              {R"({"u0":""})", R"({"u0":"no uri"})", "{}"});
  const std::string longest = "http://" + std::string(505, 'a'), longer = longest + "a";
  const std::string one = schema["properties"]["u0"].dump();
  check_texts(one, {("\"" + longest + "\"").c_str()}, {("\"" + longer + "\"").c_str()});
}

TEST_CASE("schema dialects: several multiples are one") {
  check_texts(R"({"type":"integer","multipleOf":4,"allOf":[{"multipleOf":6}]})", {"12", "0", "-24"}, {"4", "6", "8"});
  check_texts(R"({"type":"number","multipleOf":0.5,"allOf":[{"multipleOf":2},{"multipleOf":0.75}]})",
              {"6", "6.0", "-12"}, {"2", "1.5", "3"});
  const std::string error = dialect_error(R"({"multipleOf":9973,"allOf":[{"multipleOf":9967}],"type":"integer"})");
  CHECK(error.find("the least common one of several") != std::string::npos);
}

TEST_CASE("schema dialects: what says nothing has no opposite to build") {
  check_texts(R"({"not":{"$schema":"http://json-schema.org/draft-07/schema#","$comment":"x","readOnly":true,"x-order":1,
      "markdownDescription":"y","contentEncoding":"base64","type":"string"}})",
              {"1", "{}"}, {R"("a")"});
  CHECK(dialect_error(R"({"not":{"minLength":1}})").find("the opposite of minLength") != std::string::npos);
}

TEST_CASE("schema dialects: keys that are only required stand in the order in which they are required") {
  check_texts(R"({"required":["z","b"],"allOf":[{"required":["y","b"]}],"properties":{"m":{}}})",
              {R"({"z":1,"b":2,"y":3})", R"({"m":0,"z":1,"b":2,"y":3})"},
              {R"({"b":2,"y":3,"z":1})", R"({"z":1,"b":2})"});
}

TEST_CASE("schema dialects: an anchor is that of its own resource, whatever comes first") {
  check_texts(R"({"$id":"http://a.example/b","$defs":{"A":{"$id":"c","allOf":[{"$id":"d","$anchor":"x","type":"number"},
      {"$anchor":"x","type":"string"}]}},"$ref":"c#x"})",
              {R"("a")"}, {"1"});
  check_texts(R"({"$defs":{"A":{"$id":"d","$defs":{"x":{"$anchor":"x","type":"number"}}}},"$ref":"#x"})", {"1"},
              {R"("a")"});
}

}  // namespace spate
