// Goal    Templates render as Python's jinja2 renders them, set up as transformers does: every construct of the
// language,
//         thousands of random templates, whole chat templates over conversations of all kinds.
// Method  Goldens made by tools/goldens/make_jinja_goldens.py. Of errors only that there is one is compared, of
//         raise_exception() the text. The real templates are read in place; of them the repository has hashes only.
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/test_support.h"
#include "text/jinja/chat_template.h"
#include "text/jinja/jinja_json.h"

#include "base/test.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path golden_dir() { return repo_root() / "test" / "goldens" / "jinja"; }

std::vector<Json> read_lines(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  REQUIRE(!lines.empty());
  return lines;
}

// The goldens were made on Friday, 2024-07-26, at 13:05:09.
std::string golden_clock(const std::string& format) {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  time.tm_hour = 13;
  time.tm_min = 5;
  time.tm_sec = 9;
  time.tm_wday = 5;
  time.tm_yday = 207;
  char buffer[256];
  return format.empty() ? "" : std::string(buffer, std::strftime(buffer, sizeof(buffer), format.c_str(), &time));
}

std::string fnv1a(std::string_view data) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char byte : data) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return fmt::format("{:016x}", value);
}

bool same_text(const Json& expected, const std::string& text) {
  if (expected.is_string()) return expected == text;
  return expected[0] == text.size() && expected[1] == fnv1a(text);
}

std::string show(const Result<std::string>& result) {
  return result.ok() ? Json(*result).dump() : "error: " + result.status().message();
}

// {"o": text} or {"e": true or raise_exception's text}
bool as_expected(const Json& expected, const Result<std::string>& result) {
  if (!expected.contains("e")) return result.ok() && same_text(expected["o"], *result);
  if (result.ok()) return false;
  return expected["e"] == true || same_text(expected["e"], result.status().message());
}

// Every template of a folder over every conversation.
void check_conversations(const std::filesystem::path& goldens, const std::filesystem::path& templates) {
  const Json conversations = Json::parse(read_file_or_die(golden_dir() / "conversations.json"));
  std::map<std::string, ChatTemplate> parsed;
  size_t num_cases = 0;
  for (const Json& expected : read_lines(goldens)) {
    const auto name = expected["t"].get<std::string>();
    if (!parsed.contains(name)) {
      auto chat_template = ChatTemplate::parse(
          read_file_or_die(templates / name),
          {{"bos_token", "<BOS>"}, {"eos_token", "<EOS>"}, {"unk_token", "<UNK>"}, {"pad_token", "<PAD>"}});
      REQUIRE_MESSAGE(chat_template.ok(), name << ": " << chat_template.status().message());
      parsed.emplace(name, std::move(chat_template).value());
    }
    const Json& conversation = conversations[expected["c"].get<size_t>()];
    const auto part = [&](const char* key) { return conversation.contains(key) ? &conversation[key] : nullptr; };
    ChatTemplateInput input;
    input.messages = part("messages");
    input.tools = part("tools");
    input.documents = part("documents");
    input.kwargs = part("kwargs");
    input.add_generation_prompt = conversation.value("add_generation_prompt", false);
    input.continue_final_message = conversation.value("continue_final_message", false);
    input.clock = golden_clock;
    const Result<std::string> result = parsed.at(name).render(input);
    CHECK_MESSAGE(as_expected(expected, result), name << ", conversation " << expected["c"].dump() << ": expected "
                                                      << expected.dump() << "\n  got " << show(result));
    ++num_cases;
  }
  CHECK(num_cases >= 300);
}

}  // namespace

TEST_CASE("snippets render as jinja2 renders them") {
  std::vector<jinja::Value> contexts;
  size_t num_cases = 0, num_different = 0;
  for (const Json& line : read_lines(golden_dir() / "snippets.jsonl")) {
    if (line.contains("context")) {
      contexts.push_back(jinja::from_json(line["context"]));
      continue;
    }
    const auto source = line["t"].get<std::string>();
    const Result<jinja::Template> parsed = jinja::Template::parse(source);
    const Result<std::string> result = parsed.ok() ? parsed->render(contexts.at(line["c"].get<size_t>()), golden_clock)
                                                   : Result<std::string>(parsed.status());
    ++num_cases;
    if (as_expected(line, result)) continue;
    if (++num_different <= 10) {
      MESSAGE(Json(source).dump() << "\n  expected " << line.dump() << "\n  got " << show(result));
    }
  }
  CHECK(num_cases >= 5000);
  CHECK(num_different == 0);
}

TEST_CASE("our own templates in the manner of several families") {
  check_conversations(golden_dir() / "templates.jsonl", golden_dir() / "templates");
}

TEST_CASE("real templates render as transformers renders them") {
  if (shared_data().empty()) return skip_test("no shared data: the real chat templates are not here");
  check_conversations(golden_dir() / "real.jsonl", shared_data() / "chat_templates");
}

}  // namespace spate
