// spate generate: answers to prompts, streamed, one after the other.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/chat_connection.h"
#include "cli/commands.h"
#include "cli/terminal_io.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDefaultMaxTokens = 256;
constexpr size_t kHeadingBytes = 60;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// --prompt, else the lines of stdin.
Result<std::vector<std::string>> read_prompts(const GenerateArguments& arguments) {
  std::vector<std::string> prompts = arguments.prompts;
  const bool is_stdin = prompts.empty();
  if (is_stdin) {
    for (std::string line; std::getline(std::cin, line);) {
      if (prompts.empty() && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
      if (line.ends_with('\r')) line.pop_back();
      prompts.push_back(line);
    }
  }
  if (prompts.empty()) return invalid_argument("there is no prompt: give --prompt, or lines on stdin");
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (!prompts[i].empty()) continue;
    return invalid_argument("prompt {} of {} is empty ({})", i + 1, prompts.size(),
                            is_stdin ? "a line of stdin is a prompt" : "--prompt");
  }
  return prompts;
}

std::string request_body(const GenerateArguments& g, const std::string& model, const std::string& prompt) {
  Json body = {{"model", model}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (g.raw) {
    body["prompt"] = prompt;
  } else {
    Json messages = Json::array();
    if (!g.system.empty()) messages.push_back({{"role", "system"}, {"content", g.system}});
    messages.push_back({{"role", "user"}, {"content", prompt}});
    body["messages"] = std::move(messages);
    if (g.no_thinking) body["chat_template_kwargs"] = {{"enable_thinking", false}};
  }
  body["max_tokens"] = g.max_tokens > 0 ? g.max_tokens : kDefaultMaxTokens;
  if (g.temperature >= 0) body["temperature"] = g.temperature;
  if (g.top_p >= 0) body["top_p"] = g.top_p;
  if (g.top_k >= 0) body["top_k"] = g.top_k;
  if (g.ignore_eos) body["ignore_eos"] = true;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Between the answers to several prompts: whose the next one is.
std::string heading(size_t idx, const std::vector<std::string>& prompts) {
  std::string first_line = prompts[idx].substr(0, prompts[idx].find('\n'));
  if (first_line.size() > kHeadingBytes) {
    size_t end = kHeadingBytes;
    while (end > 0 && (static_cast<unsigned char>(first_line[end]) & 0xc0) == 0x80) --end;  // not inside a character
    first_line = first_line.substr(0, end) + "...";
  }
  return fmt::format("{}--- {} of {}: {}\n", idx == 0 ? "" : "\n", idx + 1, prompts.size(), visible_text(first_line));
}

}  // namespace

Result<int> run_generate(const Arguments& arguments) {
  const GenerateArguments& generate = arguments.generate;
  if (generate.raw && (!generate.system.empty() || generate.no_thinking)) {
    return invalid_argument("{} has no effect with --raw, which makes no conversation",
                            generate.system.empty() ? "--no-thinking" : "--system");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> prompts, read_prompts(generate));
  ASSIGN_OR_RETURN(const std::unique_ptr<ChatConnection> connection, open_local_chat(arguments));
  ScreenOptions options = screen_options();
  options.hides_thinking = generate.hide_thinking;
  options.renders_markdown = false;
  options.keeps_bytes = !options.is_terminal;
  const InterruptGuard guard;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts.size() > 1) write_stdout(heading(i, prompts));
    AnswerScreen screen(options, write_stdout);
    ASSIGN_OR_RETURN(const StreamedAnswer answer,
                     stream_answer(*connection, generate.raw ? "/v1/completions" : "/v1/chat/completions",
                                   request_body(generate, connection->model().name, prompts[i]), screen));
    if (answer.is_interrupted) return kInterruptedCode;
  }
  return 0;
}

}  // namespace spate
