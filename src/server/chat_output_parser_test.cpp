// Goal    Reasoning, content and tool calls are told apart, and the parts are the same however the text is cut.
// Method  Model outputs as they occur; each is fed whole, byte by byte and in random pieces, and the joined parts
//         compared.
#include "server/chat_output_parser.h"

#include "base/rng.h"
#include "base/test_support.h"

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

const ChatOutputOptions kThinks{.parse_reasoning = true};
const ChatOutputOptions kBoth{.parse_reasoning = true, .parse_tool_calls = true};

}  // namespace

TEST_CASE("chat output: reasoning") {
  check_all_cuts(kThinks, "<think>\nstep one\n\nstep two\n</think>\n\nThe answer.",
                 "R=step one\n\nstep two C=The answer. T=");
  check_all_cuts(kThinks, "No thinking < here <thin", "R= C=No thinking < here <thin T=");
  check_all_cuts(kThinks, "<think>cut off by max_tokens </thi", "R=cut off by max_tokens </thi C= T=");
  check_all_cuts({.parse_reasoning = true, .starts_in_reasoning = true}, "so\n</think>\nyes", "R=so C=yes T=");
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
  check_all_cuts({.parse_tool_calls = true, .parallel_tool_calls = false},
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

}  // namespace spate
