// spate chat: a conversation in the terminal, with a model in this process or on a server.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "base/log.h"
#include "cli/chat_connection.h"
#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/terminal_io.h"
#include "terminal/line_editor.h"
#include "terminal/visible_text.h"

namespace spate {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";

// $XDG_STATE_HOME/spate/chat_history, else below ~/.local/state; empty where its folder cannot be made.
std::string history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state != '\0') {
    folder = state;
  } else if (home != nullptr && *home != '\0') {
    folder = std::filesystem::path(home) / ".local" / "state";
  } else {
    return {};
  }
  std::error_code error;
  std::filesystem::create_directories(folder / "spate", error);
  return error ? std::string() : (folder / "spate" / "chat_history").string();
}

// The person's messages: from the line editor on a terminal, else lines of stdin.
class ChatInput {
 public:
  ChatInput(bool is_terminal, bool keeps_history) {
    if (is_terminal) editor_.emplace(keeps_history ? history_file() : std::string());
  }

  // Nothing: the end. Messages of several lines stand between """.
  std::optional<std::string> next() {
    while (true) {
      std::optional<std::string> line = read(">>> ");
      if (!line || !line->starts_with(kQuotes)) return remember(std::move(line));
      std::string text = line->substr(kQuotes.size());
      while (line && !text.ends_with(kQuotes)) {
        line = read("... ");
        if (line) text += "\n" + *line;
      }
      if (!line && !was_interrupted_) return std::nullopt;
      if (!line) continue;  // Ctrl-C gives the message up
      text.resize(text.size() - kQuotes.size());
      if (text.starts_with('\n')) text.erase(0, 1);
      if (text.ends_with('\n')) text.pop_back();
      return remember(std::move(text));
    }
  }

 private:
  std::optional<std::string> read(const char* prompt) {
    was_interrupted_ = false;
    if (!editor_) {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      if (line.ends_with('\r')) line.pop_back();  // of a file that another system wrote
      return line;
    }
    const bool is_first = prompt[0] == '>';
    while (true) {
      LineEditor::Input input = editor_->read(prompt);
      if (input.event == LineEditor::Event::kLine) {
        num_interrupts_ = 0;
        return std::move(input.text);
      }
      if (input.event == LineEditor::Event::kEnd) {
        std::printf("\n");
        return std::nullopt;
      }
      was_interrupted_ = true;
      if (!is_first) return std::nullopt;
      num_interrupts_ = input.text.empty() ? num_interrupts_ + 1 : 0;
      if (num_interrupts_ > 1) return std::nullopt;
      if (num_interrupts_ == 1) std::printf("Ctrl-C again or Ctrl-D ends\n");
    }
  }

  std::optional<std::string> remember(std::optional<std::string> text) {
    if (text && editor_) editor_->add_history(*text);
    return text;
  }

  std::optional<LineEditor> editor_;
  int num_interrupts_ = 0;  // in a row, on empty lines
  bool was_interrupted_ = false;
};

class ChatLoop {
 public:
  ChatLoop(ChatConnection& connection, ChatSession& session, ScreenOptions screen)
      : connection_(connection), session_(session), screen_(screen) {}

  // Runs until the person ends it; false: a message has failed.
  bool run(ChatInput& input) {
    while (std::optional<std::string> text = input.next()) {
      if (text->find_first_not_of(" \t\n") == std::string::npos) continue;
      if (ChatSession::is_command(*text)) {
        const Result<std::string> reply = session_.run_command(*text);
        if (reply.ok()) {
          say(*reply);
        } else {
          complain(reply.status());
        }
        if (session_.has_ended()) break;
      } else {
        answer(std::move(*text));
      }
    }
    return !has_failed_;
  }

 private:
  // Words of ours: dimmed on a terminal; beside the answers, on stderr, elsewhere.
  void say(std::string_view text) {
    if (text.empty()) return;
    const std::string line = visible_text(text) + "\n";
    if (!screen_.is_terminal) {
      std::fwrite(line.data(), 1, line.size(), stderr);
    } else {
      write_stdout(screen_.has_colours ? "\x1b[2m" + line + "\x1b[0m" : line);
    }
  }

  void complain(const Status& status) {
    has_failed_ = true;
    say(status.message());
  }

  void answer(std::string text) {
    session_.begin_turn(std::move(text));
    int num_dropped = 0;
    while (true) {
      ScreenOptions options = screen_;
      options.hides_thinking = session_.hides_thinking();
      options.renders_markdown = session_.renders_markdown();
      const InterruptGuard guard;
      AnswerScreen screen(options, write_stdout);
      Result<StreamedAnswer> streamed = stream_answer(connection_, "/v1/chat/completions", session_.request_body(), screen);
      if (streamed.ok()) {
        if (num_dropped > 0) say(fmt::format("(forgot the oldest {} turns: the conversation had grown too long)", num_dropped));
        return conclude(*streamed);
      }
      const bool is_too_long = streamed.status().code() == StatusCode::kOutOfRange;
      if (is_too_long && session_.drops_oldest() && session_.drop_oldest_turn()) {
        ++num_dropped;
        continue;
      }
      session_.take_turn_back();
      complain(streamed.status());
      if (is_too_long && session_.num_turns() > 0) {
        say("The conversation is too long for the model, and your last message is not part of it. /drop forgets the oldest "
            "turn, /clear all; /set drop-oldest on does the first by itself.");
      }
      return;
    }
  }

  void conclude(const StreamedAnswer& answer) {
    if (answer.content.empty() && answer.is_interrupted) {
      session_.take_turn_back();
      return say("(ended before it began: your message is not part of the conversation)");
    }
    session_.end_turn(answer.content, answer.num_prompt_tokens + answer.num_completion_tokens);
    if (answer.is_interrupted) return say("(ended by Ctrl-C)");
    if (answer.finish_reason == "length") say(length_note());
    if (screen_.is_terminal && session_.shows_timing() && answer.num_completion_tokens > 0) say("(" + timing_text(answer) + ")");
  }

  std::string length_note() const {
    if (session_.has_max_tokens()) {
      return "(cut at max_tokens: /set max_tokens default lets answers use what is left of the context)";
    }
    return "(cut: the conversation has filled the model's context. /drop forgets the oldest turn, /clear all)";
  }

  ChatConnection& connection_;
  ChatSession& session_;
  const ScreenOptions screen_;
  bool has_failed_ = false;
};

Result<std::string> read_api_key(const std::string& path) {
  std::ifstream in(path);
  std::string key;
  if (!in || !std::getline(in, key)) return not_found("--api-key-file {}: cannot be read, or is empty", path);
  while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
  for (const char c : key) {
    if (c <= ' ' || c > '~') return invalid_argument("--api-key-file {}: a key has printable ASCII characters only", path);
  }
  if (key.empty()) return invalid_argument("--api-key-file {}: its first line is empty", path);
  return key;
}

Result<std::unique_ptr<ChatConnection>> open_chat(const Arguments& arguments) {
  const ChatArguments& chat = arguments.chat;
  if (chat.url.empty()) {
    if (arguments.model.model.empty()) return invalid_argument("spate chat needs a model, or --url of a server");
    return open_local_chat(arguments);
  }
  Result<HttpTarget> target = parse_base_url(chat.url);
  if (!target.ok()) return target.status().with_context("--url");
  if (!chat.api_key_file.empty()) {
    ASSIGN_OR_RETURN(target->api_key, read_api_key(chat.api_key_file));
  } else if (!arguments.serve.api_keys.empty()) {
    target->api_key = arguments.serve.api_keys.front();  // $SPATE_API_KEY
  }
  return open_remote_chat(*target, arguments.model.model);
}

}  // namespace

Result<int> run_chat(const Arguments& arguments) {
  const ScreenOptions screen = screen_options();
  const bool is_terminal = screen.is_terminal && ::isatty(STDIN_FILENO) != 0;
  if (is_terminal && log_level() == LogLevel::kInfo) set_log_level(LogLevel::kWarning);
  ASSIGN_OR_RETURN(const std::unique_ptr<ChatConnection> connection, open_chat(arguments));
  ChatSession session(connection->model(), arguments.generate);
  if (is_terminal) {
    const ChatModel& model = connection->model();
    const std::string length = model.max_model_len > 0 ? fmt::format(", {} tokens of context", model.max_model_len) : "";
    std::printf("%s\n", visible_text(fmt::format("{}{}. /help tells the commands, Ctrl-D ends.", model.name, length)).c_str());
  }
  ChatInput input(is_terminal, !arguments.chat.no_history);
  const bool is_good = ChatLoop(*connection, session, screen).run(input);
  return is_good || is_terminal ? 0 : 1;
}

}  // namespace spate
