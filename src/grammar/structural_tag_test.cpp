// Goal    Structural tags: free text is free up to a trigger, a tag is held to its form, both shapes mean the same, and
// what is
//         wrong is refused with its place.
// Method  Texts that are allowed and texts that are not, by ParseStates.
#include "grammar/structural_tag.h"

#include <nlohmann/json.hpp>

#include "grammar/parse_states.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

Result<Grammar> tag_grammar(const Json& tag) {
  CompileBudget budget;
  return compile_structural_tag(tag, {}, budget);
}

void check_tag(const Json& tag, const std::vector<std::string>& allowed, const std::vector<std::string>& refused) {
  Result<Grammar> grammar = tag_grammar(tag);
  INFO(tag.dump());
  REQUIRE_MESSAGE(grammar.ok(), grammar.status().message());
  ParseStates states(std::make_shared<const Grammar>(std::move(*grammar)));
  const auto accepts = [&](const std::string& text) {
    int32_t state = states.initial();
    for (const char c : text) state = states.next(state, static_cast<uint8_t>(c));
    return states.accepts(state);
  };
  for (const std::string& text : allowed) CHECK_MESSAGE(accepts(text), text);
  for (const std::string& text : refused) CHECK_MESSAGE(!accepts(text), text);
}

std::string tag_error(const Json& tag) { return std::string(tag_grammar(tag).status().message()); }
std::string tag_error(const char* tag) { return tag_error(Json::parse(tag)); }

const Json kNumber{{"type", "integer"}};
const Json kFlag{{"type", "boolean"}};

TEST_CASE("structural tag: both shapes: free text, and tags where a trigger stands") {
  const Json structures{{"type", "structural_tag"},
                        {"structures",
                         {{{"begin", "<f=a>"}, {"schema", kNumber}, {"end", "</f>"}},
                          {{"begin", "<f=b>"}, {"schema", kFlag}, {"end", "</f>"}}}},
                        {"triggers", {"<f="}}};
  const auto tag = [](const char* begin, const Json& schema) {
    return Json{{"begin", begin}, {"content", {{"type", "json_schema"}, {"json_schema", schema}}}, {"end", "</f>"}};
  };
  Json format{
      {"type", "triggered_tags"}, {"triggers", {"<f="}}, {"tags", {tag("<f=a>", kNumber), tag("<f=b>", kFlag)}}};
  const std::vector<std::string> allowed{
      "",    "No tag. <f", "<f=a>7</f>", "é <f <f=b>true</f> and <f=a>-1</f> <", "<<f=a>7</f>", "<f=a>7</f><f=a>8</f>",
      "</f>"};
  const std::vector<std::string> refused{"<f=",        "x <f=c>1</f>",  "<f=a>true</f>", "<f=a>7",
                                         "<f=a>7</g>", "<f=a>7</f><f=", "\xff"};
  check_tag(structures, allowed, refused);
  check_tag({{"format", format}}, allowed, refused);
  format["at_least_one"] = true;
  check_tag({{"format", format}}, {"<f=a>7</f>", "<f=b>true</f> and <f=a>-1</f>!"}, {"", "text", "text <f=a>7</f>"});
  format["stop_after_first"] = true;
  check_tag({{"format", format}}, {"<f=a>7</f>"}, {"", "<f=a>7</f> ", "<f=a>7</f><f=a>7</f>"});
  format["at_least_one"] = false;
  check_tag({{"format", format}}, {"", "text", "text <f=a>7</f>"}, {"<f=a>7</f> ", "<f=a>7</f><f=a>7</f>"});
}

TEST_CASE("structural tag: several triggers, one inside another") {
  const Json tags = Json::parse(R"([{"begin": "[x]", "content": {"type": "const_string", "value": "1"}, "end": ""},
                                    {"begin": "[xy]", "content": {"type": "regex", "pattern": "[a-c]+"}, "end": [";", "."]},
                                    {"begin": "@", "content": {"type": "any_text"}, "end": "@"}])");
  const Json format{{"type", "triggered_tags"}, {"triggers", {"[x", "[xy", "@"}}, {"tags", tags}};
  check_tag({{"format", format}}, {"[", "[x]1", "a [xy]abc; b [xy]a. [x]1 c", "@any [x text@", "[[x]1"},
            {"[x", "[x]2", "[xy]", "[xy]d;", "[xy]a", "@ open", "[xz]"});
}

TEST_CASE("structural tag: sequences, choices, repetitions, separators, free text inside a tag") {
  check_tag(Json::parse(R"({"format": {"type": "sequence", "elements": [
                  {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
                  {"type": "optional", "content": {"type": "const_string", "value": "\n"}},
                  {"type": "or", "elements": [{"type": "json_schema", "json_schema": {"type": "boolean"}},
                                              {"type": "regex", "pattern": "\\d+"}]}]}})"),
            {"<think></think>true", "<think>a < b</think>\n12"},
            {"<think>12", "true", "<think></think></think>1", "<think></think>x"});
  check_tag(Json::parse(R"({"format": {"type": "star", "content": {"type": "const_string", "value": "ab"}}})"),
            {"", "abab"}, {"aba"});
  check_tag(Json::parse(R"({"format": {"type": "plus", "content": {"type": "const_string", "value": "ab"}}})"), {"ab"},
            {""});
  check_tag(Json::parse(R"({"format": {"type": "any_text", "excludes": ["no", "never"]}})"), {"", "yes, nev"},
            {"no", "or never?"});
  Json list = Json::parse(R"({"type": "tags_with_separator", "separator": ", ", "tags": [
                  {"begin": "<a>", "content": {"type": "regex", "pattern": "x"}, "end": "</a>"},
                  {"begin": "<b>", "content": {"type": "regex", "pattern": "y"}, "end": "</b>"}]})");
  check_tag({{"format", list}}, {"", "<a>x</a>", "<a>x</a>, <b>y</b>, <a>x</a>"},
            {", ", "<a>x</a><b>y</b>", "<a>y</a>", "text"});
  list["at_least_one"] = list["stop_after_first"] = true;
  check_tag({{"format", list}}, {"<b>y</b>"}, {"", "<a>x</a>, <b>y</b>"});
  // A section of calls: the text in it ends where the section does.
  check_tag(Json::parse(R"({"format": {"type": "tag", "begin": "<calls>", "end": "</calls>", "content": {
                  "type": "triggered_tags", "triggers": ["<call>"], "tags": [
                      {"begin": "<call>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</call>"}]}}})"),
            {"<calls></calls>", "<calls> <call>1</call>\n<call>2</call></calls>"},
            {"<calls><call></calls>", "<calls></calls>x"});
}

TEST_CASE("structural tag: what is wrong is refused with its place") {
  CHECK(tag_error("{}") == "at structural_tag: format is missing (or structures and triggers)");
  CHECK(tag_error(R"({"structures": [], "triggers": ["x"]})") ==
        "at structural_tag: structures must be a list of 1 to 1000");
  CHECK(tag_error(R"({"structures": [{"begin": "a", "schema": {}}], "triggers": ["a"]})") ==
        "at structures[0]: end is missing");
  CHECK(tag_error(R"({"structures": [{"begin": "a", "schema": {"type": "thing"}, "end": ""}], "triggers": ["a"]})")
            .starts_with("at structures[0].schema: json schema: at #: type must be"));
  CHECK(tag_error(R"({"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["a", "b"]})") ==
        "at structural_tag: no tag begins with the trigger \"b\"");
  CHECK(
      tag_error(
          R"({"structures": [{"begin": "a", "schema": {}, "end": ""}, {"begin": "c", "schema": {}, "end": ""}], "triggers": ["a"]})") ==
      "at structural_tag: no trigger begins the tag \"c\"");
  CHECK(tag_error(R"({"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": [""]})") ==
        "at structural_tag.triggers: must be texts that are not empty");
  CHECK(tag_error(R"({"format": 7})") == "at format: must be an object with a type");
  CHECK(tag_error(R"({"format": {"type": "grammar", "grammar": "root ::= x"}})")
            .starts_with("at format: the format \"grammar\" is not supported"));
  CHECK(tag_error(R"({"format": {"type": "sequence", "elements": [{"type": "regex", "pattern": "("}]}})")
            .starts_with("at format.elements[0].pattern: "));
  CHECK(
      tag_error(
          R"({"format": {"type": "tags_with_separator", "separator": 1, "tags": [{"begin": "a", "content": {"type": "any_text"}, "end": "b"}]}})") ==
      "at format: separator must be a string");
  CHECK(tag_error(R"({"format": {"type": "triggered_tags", "triggers": ["a"], "tags": [7]}})") ==
        "at format.tags[0]: must be an object with begin, content and end");
  CHECK(
      tag_error(
          R"({"format": {"type": "triggered_tags", "at_least_one": 1, "triggers": ["a"], "tags": [{"begin": "a", "content": {"type": "any_text"}, "end": "b"}]}})") ==
      "at format: at_least_one must be true or false");
  Json wide{{"triggers", {"<"}}, {"structures", Json::array()}};
  for (int i = 0; i < 1001; ++i) wide["structures"].push_back({{"begin", "<"}, {"schema", kNumber}, {"end", ">"}});
  CHECK(tag_error(wide).find("list of 1 to 1000") != std::string::npos);
}

}  // namespace
}  // namespace spate
