// Goal    Reasoning, content and tool calls are told apart, and the parts are the same however the text is cut.
// Method  Model outputs as they occur; each is fed whole, byte by byte and in random pieces, and the joined parts
//         compared.
#include "server/chat_output_parser.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/rng.h"
#include "base/test_support.h"
#include "grammar/parse_states.h"
#include "grammar/structural_tag.h"
#include "server/tool_grammar.h"

#include "base/test.h"

namespace spate {
namespace {

// "R:reasoning C:content T0:name(arguments) ..." joined.
std::string parse(const ChatOutputOptions& options, const std::vector<std::string>& pieces) {
  ChatOutputParser parser(options);
  std::vector<ChatPart> parts;
  for (const std::string& piece : pieces) parser.append(piece, parts);
  parser.finish(parts);
  std::string reasoning, content, tools;
  for (const ChatPart& part : parts) {
    switch (part.kind) {
      case ChatPart::Kind::kReasoning:
        reasoning += part.text;
        break;
      case ChatPart::Kind::kContent:
        content += part.text;
        break;
      case ChatPart::Kind::kToolName:
        tools += fmt::format("|{}:{} ", part.tool_idx, part.text);
        break;
      case ChatPart::Kind::kToolArguments:
        tools += part.text;
        break;
    }
  }
  return "R=" + reasoning + " C=" + content + " T=" + tools;
}

void check_all_cuts(const ChatOutputOptions& options, const std::string& text, const std::string& expected) {
  CHECK(parse(options, {text}) == expected);
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  CHECK(parse(options, bytes) == expected);
  const uint64_t seed = test_seed();
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> pieces;
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = 1 + rng.below(9);
      pieces.push_back(text.substr(pos, length));
      pos += length;
    }
    INFO("seed ", seed, " round ", round);
    CHECK(parse(options, pieces) == expected);
  }
}

const ReasoningFormat* reasoning(std::string_view name) { return *find_reasoning_format(name, ""); }
const ToolFormat* tools(std::string_view name, std::string_view source = "") { return *find_tool_format(name, source); }

const ChatOutputOptions kThinks{.reasoning = reasoning("qwen3")};
const ChatOutputOptions kBoth{.reasoning = reasoning("qwen3"), .tools = tools("hermes")};

// The request's tools: add(a: integer, note: string) and now().
std::shared_ptr<const nlohmann::ordered_json> functions() {
  return std::make_shared<nlohmann::ordered_json>(nlohmann::ordered_json::parse(R"([
    {"type":"function","function":{"name":"add","parameters":{"type":"object",
      "properties":{"a":{"type":"integer"},"note":{"type":"string"}}}}},
    {"type":"function","function":{"name":"now"}}])"));
}
ChatOutputOptions with_tools(std::string_view name, std::string_view source = "") {
  return {.reasoning = name == "openai" ? reasoning("openai_gptoss") : nullptr,
          .tools = tools(name, source),
          .functions = functions()};
}

}  // namespace

TEST_CASE("chat output: reasoning") {
  check_all_cuts(kThinks, "<think>\nstep one\n\nstep two\n</think>\n\nThe answer.",
                 "R=step one\n\nstep two C=The answer. T=");
  check_all_cuts(kThinks, "No thinking < here <thin", "R= C=No thinking < here <thin T=");
  check_all_cuts(kThinks, "<think>cut off by max_tokens </thi", "R=cut off by max_tokens </thi C= T=");
  check_all_cuts({.reasoning = reasoning("qwen3"), .starts_in_reasoning = true}, "so\n</think>\nyes", "R=so C=yes T=");
  check_all_cuts({}, "<think>x</think>y", "R= C=<think>x</think>y T=");
}

TEST_CASE("chat output: tool calls") {
  check_all_cuts(kBoth, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2, \"}\"]}}\n</tool_call>",
                 "R= C= T=|0:add {\"a\": 1, \"b\": [2, \"}\"]}");
  check_all_cuts(kBoth,
                 "<think>\nhm\n</think>\n\nLet me.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n"
                 "<tool_call>\n{\"arguments\": {\"k\": \"\\\"v\"}, \"name\": \"b\"}\n</tool_call>",
                 "R=hm C=Let me. T=|0:a {}|1:b {\"k\": \"\\\"v\"}");
}

TEST_CASE("chat output: what is no call after all is given out, a second call is dropped on demand") {
  check_all_cuts(kBoth, "<tool_call>nonsense</tool_call>", "R= C=<tool_call>nonsense</tool_call> T=");
  check_all_cuts({.tools = tools("hermes"), .parallel_tool_calls = false},
                 "<tool_call>{\"name\":\"a\",\"arguments\":{}}</"
                 "tool_call><tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>",
                 "R= C= T=|0:a {}");
  check_all_cuts(kBoth, "a <tool_cal b", "R= C=a <tool_cal b T=");
  // Cut in the middle of the arguments: what there is.
  check_all_cuts(kBoth, "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\": 1", "R= C= T=|0:a {\"x\": 1");
}

TEST_CASE("chat output: content is not held back without a reason") {
  ChatOutputParser parser(kBoth);
  std::vector<ChatPart> parts;
  parser.append("Hello", parts);
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].text == "Hello");
}

TEST_CASE("chat output: each family's calls, with text before them") {
  const std::string two = "R= C=Hm. T=|0:add {\"a\": 1, \"note\": \"}\"}|1:now {}";
  const std::string alone = "R= C= T=|0:add {\"a\": 1, \"note\": \"}\"}|1:now {}";
  const std::string arguments = R"({"a": 1, "note": "}"})";
  check_all_cuts(with_tools("hermes"),
                 "Hm.\n<tool_call>\n{\"name\": \"add\", \"arguments\": " + arguments +
                     "}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
                 two);
  check_all_cuts(with_tools("llama3_json"),
                 "{\"name\": \"add\", \"parameters\": " + arguments + "}; {\"name\": \"now\", \"parameters\": {}}",
                 alone);
  check_all_cuts(with_tools("llama3_json"), "<|python_tag|>{\"name\": \"add\", \"parameters\": " + arguments + "}",
                 "R= C= T=|0:add " + arguments);
  check_all_cuts(with_tools("pythonic"), "[add(a=1, note='}'), now()]", alone);
  check_all_cuts(with_tools("pythonic"), "<|python_start|>[add(a=1, note=\"}\"), now()]<|python_end|>", alone);
  check_all_cuts(with_tools("pythonic"), "[now(x=[1, {'k': None}], y=-2.5, z=(True,), w=it)]",
                 "R= C= T=|0:now {\"x\": [1,{\"k\":null}], \"y\": -2.5, \"z\": [true], \"w\": \"it\"}");
  check_all_cuts(with_tools("mistral", "[TOOL_CALLS][ARGS]"),
                 "Hm.[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]" + arguments + "[TOOL_CALLS]now[ARGS]{}", two);
  check_all_cuts(
      with_tools("mistral", "[TOOL_CALLS]"),
      "Hm. [TOOL_CALLS][{\"name\": \"add\", \"arguments\": " + arguments + "}, {\"name\": \"now\", \"arguments\": {}}]",
      two);
  check_all_cuts(with_tools("deepseek_v3"),
                 "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n" + arguments +
                     "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
                     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                 two);
  check_all_cuts(
      with_tools("deepseek_v31"),
      "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>" + arguments +
          "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      two);
  check_all_cuts(
      with_tools("kimi_k2"),
      "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>" + arguments +
          "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
          "<|tool_calls_section_end|>",
      two);
  check_all_cuts(with_tools("glm45"),
                 "Hm.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>note</arg_key>\n"
                 "<arg_value>}</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
                 two);
  // A string in the schema stays one, whatever it looks like.
  check_all_cuts(with_tools("glm45"),
                 "<tool_call>add\n<arg_key>note</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
                 "R= C= T=|0:add {\"note\": \"12\"}");
  check_all_cuts(with_tools("qwen3_coder"),
                 "Hm.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\n}\n</parameter>\n"
                 "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
                 two);
  check_all_cuts(
      with_tools("openai"),
      "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary<|message|>Hm.<|end|>"
      "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>" +
          arguments + "<|call|>",
      "R=Let me see. C=Hm. T=|0:add " + arguments);
}

TEST_CASE("chat output: what ends a call is text inside a value") {
  const std::string text = "</tool_call> <|call|> [TOOL_CALLS] <|tool_call_end|> <|end|>";
  const std::string arguments = R"({"note": ")" + text + R"("})";
  const std::string expected = "R= C= T=|0:add " + arguments + "|1:now {}";
  check_all_cuts(with_tools("hermes"),
                 "<tool_call>\n{\"name\": \"add\", \"arguments\": " + arguments +
                     "}\n</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
                 expected);
  check_all_cuts(with_tools("qwen3_coder"),
                 "<tool_call>\n<function=add>\n<parameter=note>\n" + text +
                     "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
                 expected);
  check_all_cuts(
      with_tools("kimi_k2"),
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>" + arguments +
          "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|><|tool_call_end|>"
          "<|tool_calls_section_end|>",
      expected);
  check_all_cuts(with_tools("openai"),
                 "<|channel|>commentary to=functions.add <|constrain|>json<|message|>" + arguments +
                     "<|call|><|start|>assistant<|channel|>commentary to=functions.now <|message|><|call|>",
                 expected);
  // A line break in a string is no JSON: the marker behind it ends the call, and the next one is read.
  check_all_cuts(with_tools("hermes"),
                 "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"note\": \"a\"b\"}}\n</tool_call>\n"
                 "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
                 "R= C= T=|0:add {\"note\": \"a\"b\"}}\n|1:now {}");
}

TEST_CASE("chat output: qwen3_coder as models really write it") {
  const std::string add = "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>";
  const std::string now = "<function=now>\n</function>";
  const ChatOutputOptions coder = with_tools("qwen3_coder");
  const std::string two = "R= C=Hm. T=|0:add {\"a\": 1}|1:now {}";
  // Without the opening marker, with the closing one and without; a function that is not known is text.
  check_all_cuts(coder, "Hm.\n" + add + "\n</tool_call>\n" + now + "\n", two);
  check_all_cuts(coder, add + "\n</tool_call>\nDone.", "R= C=Done. T=|0:add {\"a\": 1}");
  check_all_cuts(coder, "Write <function=f> here.", "R= C=Write <function=f> here. T=");
  check_all_cuts(coder, "Write <function=ad", "R= C=Write <function=ad T=");
  // Two functions in one call.
  check_all_cuts(coder, "Hm.\n<tool_call>\n" + add + "\n" + now + "\n</tool_call>", two);
  // A value, then a function, whose ends are forgotten.
  check_all_cuts(coder,
                 "<tool_call>\n<function=add>\n<parameter=a>\n1\n<parameter=note>\nx <parameter=y> </function>z\n"
                 "</function>\n</tool_call>\n<tool_call>\n" + now + "\n</tool_call>",
                 "R= C= T=|0:add {\"a\": 1, \"note\": \"x <parameter=y> </function>z\"}|1:now {}");
}

TEST_CASE("chat output: a call that the next one closes") {
  const std::string add = R"({"name": "add", "arguments": {"note": "<tool_call>"}})", now = R"({"name": "now"})";
  check_all_cuts(with_tools("hermes"), "<tool_call>\n" + add + "\n<tool_call>\n" + now + "\n</tool_call>",
                 "R= C= T=|0:add {\"note\": \"<tool_call>\"}|1:now {}");
  check_all_cuts(with_tools("hermes"), "<tool_call><tool_call>" + now + "</tool_call>", "R= C= T=|0:now {}");
  check_all_cuts(with_tools("glm45"),
                 "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<tool_call>now\n</tool_call>",
                 "R= C= T=|0:add {\"a\": 1}|1:now {}");
}

TEST_CASE("chat output: white space between two pieces of content stays once") {
  const std::string call = R"(<tool_call>{"name": "now"}</tool_call>)";
  check_all_cuts(kBoth, "Sure. " + call + " done", "R= C=Sure. done T=|0:now {}");
  check_all_cuts(kBoth, "Sure.\n" + call + "done " + call + "\n\n" + call + "\n", "R= C=Sure.\ndone T=|0:now {}|1:now {}|2:now {}");
  check_all_cuts(kBoth, "<think>a</think> " + call + "\nSure.", "R=a C=Sure. T=|0:now {}");
  check_all_cuts(kBoth, "Is <tool_call>hello</tool_call> after", "R= C=Is <tool_call>hello</tool_call> after T=");
}

TEST_CASE("chat output: Python's strings") {
  const auto check = [](const std::string& literal, const std::string& json) {
    CHECK(json_of_python(literal) == json);
    check_all_cuts(with_tools("pythonic"), "[now(x=" + literal + ", y=1)]",
                   "R= C= T=|0:now {\"x\": " + json + ", \"y\": 1}");
  };
  check(R"('\x41\u00e9\U0001F600\101\'\"\t\q')", R"("Aé😀A'\"\t\\q")");
  check(R"('\ud83d\ude00 \ud83d')", "\"😀 \xEF\xBF\xBD\"");
  check(R"('\x4')", R"("\\x4")");
  check(R"('a' "b" 'c')", R"("abc")");
  check(R"py("""a "b", 'c')""" )py", R"js("a \"b\", 'c')")js");
  check("'''two\nlines'''", R"("two\nlines")");
  check(R"py(['', "", '))'])py", R"js(["","","))"])js");
  check(R"({'k': 'it\'s'})", R"({"k":"it's"})");
}

TEST_CASE("chat output: Python's words where the schema has room for them, text where it has room for text") {
  const auto functions = std::make_shared<nlohmann::ordered_json>(nlohmann::ordered_json::parse(R"([{"type": "function",
      "function": {"name": "f", "parameters": {"properties": {
          "yes": {"type": "boolean"}, "dict": {"type": "object"}, "text": {"type": "string"},
          "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "both": {"type": ["string", "null"]},
          "count": {"type": "integer"}}}}}])"));
  const auto check = [&](const std::string& key, const std::string& value, const std::string& json) {
    check_all_cuts({.tools = tools("qwen3_coder"), .functions = functions},
                   "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value +
                       "\n</parameter>\n</function>\n</tool_call>",
                   "R= C= T=|0:f {\"" + key + "\": " + json + "}");
  };
  check("yes", "True", "true");
  check("yes", "false", "false");
  check("dict", "{'a': True, 'b': None}", R"({"a":true,"b":null})");
  check("dict", R"({"a": 1})", R"({"a": 1})");
  check("text", "True", R"("True")");
  check("maybe", "12", R"("12")");
  check("maybe", "null", "null");
  check("both", "12", R"("12")");
  check("count", "12", "12");
  check("count", "many", R"("many")");
  check("other", "True", R"("True")");
  check("other", "1", "1");
}

TEST_CASE("chat output: a call cut at the limit of tokens stays open") {
  const auto cut = [](const char* name, const std::string& text, bool is_cut) {
    ChatOutputParser parser(with_tools(name));
    std::vector<ChatPart> parts;
    parser.append(text, parts);
    parser.finish(parts, is_cut);
    std::string arguments;
    for (const ChatPart& part : parts) arguments += part.kind == ChatPart::Kind::kToolArguments ? part.text : "";
    return arguments;
  };
  const std::string coder = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\nhalf a no";
  CHECK(cut("qwen3_coder", coder, true) == R"({"a": 1)");
  CHECK(cut("qwen3_coder", coder, false) == R"({"a": 1})");
  CHECK(cut("glm45", "<tool_call>add\n<arg_key>note</arg_key>\n<arg_value>half", true) == "{");
  CHECK(cut("pythonic", "[add(a=1, note='half", true) == R"({"a": 1)");
  CHECK(cut("hermes", "<tool_call>\n{\"name\": \"add\", \"argu", true).empty());
  CHECK(cut("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>", true).empty());
  CHECK(cut("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>", false) == "{}");
}

TEST_CASE("chat output: harmony without calls, and cut off") {
  check_all_cuts(
      with_tools("openai"),
      "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes < no.<|return|>",
      "R=So. C=Yes < no. T=");
  check_all_cuts(with_tools("openai"), "plain text", "R= C=plain text T=");
  check_all_cuts(with_tools("openai"), "<|channel|>analysis<|message|>So", "R=So C= T=");
  check_all_cuts(with_tools("openai"), "<|channel|>ana", "R= C= T=");
}

TEST_CASE("chat output: an answer that only looks like a call is content") {
  check_all_cuts(with_tools("llama3_json"), R"({"name": "Ann", "age": 33} is it.)",
                 R"(R= C={"name": "Ann", "age": 33} is it. T=)");
  check_all_cuts(with_tools("llama3_json"), R"({"x": 1} and {"y": 2})", R"(R= C={"x": 1} and {"y": 2} T=)");
  check_all_cuts(with_tools("pythonic"), "[1] is the reference.", "R= C=[1] is the reference. T=");
  check_all_cuts(with_tools("pythonic"), "[nobody(x=1)]", "R= C=[nobody(x=1)] T=");
}

TEST_CASE("chat output: ERNIE's response tags, Mistral's thinking") {
  const ChatOutputOptions ernie{.reasoning = reasoning("ernie45"), .tools = tools("hermes")};
  check_all_cuts(ernie, "<think>\nhm\n</think>\n\n<response>\nYes.\n</response>\n", "R=hm C=Yes. T=");
  check_all_cuts({.reasoning = reasoning("mistral")}, "[THINK]hm[/THINK]Yes.", "R=hm C=Yes. T=");
}

TEST_CASE("chat output: long white space goes out, the same whatever the cut") {
  const std::string space(600, '\n');
  check_all_cuts(kBoth, "a" + space + "b", "R= C=a" + space + "b T=");
  check_all_cuts(kBoth, "a" + space + "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
                 "R= C=a" + std::string(344, '\n') + " T=|0:now {}");
}

// Along random texts of the one: the other allows the same next bytes, and ends where it ends.
void check_same_texts(const Grammar& first, const Grammar& second, Rng& rng) {
  ParseStates a(std::make_shared<const Grammar>(first)), b(std::make_shared<const Grammar>(second));
  for (int round = 0; round < 20; ++round) {
    int32_t at = a.initial(), other = b.initial();
    for (int i = 0; i < 150 && at != ParseStates::kDead; ++i) {
      bool is_same = a.accepts(at) == b.accepts(other);
      std::vector<uint8_t> bytes;
      for (int byte = 0; byte < 256; ++byte) {
        const bool goes_on = a.next(at, static_cast<uint8_t>(byte)) != ParseStates::kDead;
        is_same &= goes_on == (b.next(other, static_cast<uint8_t>(byte)) != ParseStates::kDead);
        if (goes_on) bytes.push_back(static_cast<uint8_t>(byte));
      }
      REQUIRE(is_same);
      if (bytes.empty()) break;
      const uint8_t byte = bytes[rng.below(bytes.size())];
      at = a.next(at, byte);
      other = b.next(other, byte);
    }
  }
}

TEST_CASE("tool grammar: a structural tag says the same") {
  const std::shared_ptr<const nlohmann::ordered_json> tools = functions();
  Rng rng(test_seed());
  for (const ToolFormat& format : tool_formats()) {
    if (&writable_format(format) != &format) continue;
    for (int kind = 0; kind < 4; ++kind) {
      const ToolGrammarOptions options{.is_required = kind % 2 == 0, .allows_many = kind / 2 == 0};
      CAPTURE(format.names);
      CAPTURE(kind);
      CompileBudget budget;
      const Result<Grammar> grammar = compile_tool_grammar(*tools, format, options, budget, nullptr);
      REQUIRE(grammar.ok());
      const auto tag = tool_structural_tag(*tools, format, options, "");
      if (!options.is_required && format.is_whole_answer) {
        CHECK(tag.status().code() == StatusCode::kUnimplemented);
        continue;
      }
      REQUIRE(tag.ok());
      CompileBudget tag_budget;
      const Result<Grammar> of_tag = compile_structural_tag(*tag, {}, tag_budget);
      INFO(tag->dump());
      REQUIRE(of_tag.ok());
      check_same_texts(*grammar, *of_tag, rng);
    }
  }
}

TEST_CASE("output formats: seen from the templates of the models") {
  CHECK(find_tool_format("hermse", "").status().message().find("use auto, none or one of: ") != std::string::npos);
  CHECK(*find_tool_format("none", "<tool_call>") == nullptr);
  if (shared_data().empty()) return skip_test("no shared data: the real chat templates are not here");
  std::set<std::string> seen;
  const auto names = [&](const std::string& file) {
    seen.insert(file + ".jinja");
    const std::string source = read_file_or_die(shared_data() / "chat_templates" / (file + ".jinja"));
    const ReasoningFormat* reasoning_format = *find_reasoning_format("auto", source);
    const ToolFormat* tool_format = *find_tool_format("auto", source);
    return (reasoning_format ? first_name(reasoning_format->names) : "none") + " " +
           (tool_format ? first_name(tool_format->names) : "none");
  };
  CHECK(names("Qwen-Qwen3-0.6B") == "qwen3 hermes");
  CHECK(names("Qwen-Qwen2.5-7B-Instruct") == "none hermes");
  CHECK(names("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use") == "none hermes");
  CHECK(names("meta-llama-Llama-3.1-8B-Instruct") == "none llama3_json");
  CHECK(names("Mistral-Small-3.2-24B-Instruct-2506") == "none mistral");
  CHECK(names("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B") == "qwen3 deepseek_v3");
  CHECK(names("deepseek-ai-DeepSeek-V3.1") == "qwen3 deepseek_v31");
  CHECK(names("microsoft-Phi-3.5-mini-instruct") == "none none");
  for (const auto& entry : std::filesystem::directory_iterator(shared_data() / "chat_templates")) {
    INFO(entry.path().filename().string());
    CHECK(seen.contains(entry.path().filename().string()));
  }
}

}  // namespace spate
