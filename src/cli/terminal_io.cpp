#include "cli/terminal_io.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace spate {
namespace {

std::atomic<int> num_interrupts = 0;
struct sigaction previous_action;

void on_interrupt(int) {
  if (num_interrupts.fetch_add(1) == 0) return;
  constexpr char kEnd[] = "\x1b[0m\n";
  if (::isatty(STDOUT_FILENO) != 0 && ::write(STDOUT_FILENO, kEnd, sizeof kEnd - 1) < 0) ::_exit(kInterruptedCode);
  ::_exit(kInterruptedCode);
}

}  // namespace

ScreenOptions screen_options() {
  ScreenOptions options;
  options.is_terminal = ::isatty(STDOUT_FILENO) != 0;
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");
  const bool is_dumb = term == nullptr || *term == '\0' || std::strcmp(term, "dumb") == 0;
  options.has_colours = options.is_terminal && !is_dumb && (no_colour == nullptr || *no_colour == '\0');
  return options;
}

void write_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

InterruptGuard::InterruptGuard() {
  num_interrupts = 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: what waits wakes up
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &previous_action);
}

InterruptGuard::~InterruptGuard() { ::sigaction(SIGINT, &previous_action, nullptr); }

bool InterruptGuard::was_interrupted() { return num_interrupts.load() > 0; }

Result<StreamedAnswer> stream_answer(ChatConnection& connection, const std::string& path, const std::string& body,
                                     AnswerScreen& screen) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start, last = start;
  bool has_begun = false;
  StreamedAnswer answer;
  const Status status = connection.stream(
      path, body,
      [&](const AnswerChunk& chunk) {
        if (!chunk.content.empty() || !chunk.reasoning.empty()) {
          last = Clock::now();
          if (!std::exchange(has_begun, true)) first = last;
        }
        screen.add_reasoning(chunk.reasoning);
        screen.add_content(chunk.content);
        answer.content += chunk.content;
        if (!chunk.finish_reason.empty()) answer.finish_reason = chunk.finish_reason;
        if (!chunk.num_prompt_tokens) return;
        answer.num_prompt_tokens = *chunk.num_prompt_tokens;
        answer.num_completion_tokens = chunk.num_completion_tokens;
      },
      InterruptGuard::was_interrupted);
  screen.finish();
  answer.is_interrupted = InterruptGuard::was_interrupted();
  if (!status.ok() && !answer.is_interrupted) return status;
  answer.first_token_s = std::chrono::duration<double>(first - start).count();
  answer.seconds = std::chrono::duration<double>(last - first).count();
  return answer;
}

std::string timing_text(const StreamedAnswer& answer) {
  std::string text = fmt::format("{} token{}", answer.num_completion_tokens, answer.num_completion_tokens == 1 ? "" : "s");
  if (answer.num_completion_tokens > 1 && answer.seconds > 0) {
    text += fmt::format(", {:.1f} tok/s", static_cast<double>(answer.num_completion_tokens - 1) / answer.seconds);
  }
  return text + fmt::format(", first after {:.2f} s", answer.first_token_s);
}

}  // namespace spate
