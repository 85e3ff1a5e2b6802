// What chat and generate share: the kind of screen that stdout is, Ctrl-C, and one answer streamed to the screen.
#pragma once

#include <cstdint>
#include <string>

#include "cli/chat_connection.h"
#include "terminal/answer_screen.h"

namespace spate {

// Of stdout. Without colours where $TERM is "dumb" or unset, or $NO_COLOR is set.
ScreenOptions screen_options();
void write_stdout(std::string_view text);  // at once

constexpr int kInterruptedCode = 130;  // of the program, as a shell tells of SIGINT

// While one lives, the first Ctrl-C sets was_interrupted() and the second ends the program.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool was_interrupted();
};

struct StreamedAnswer {
  std::string content;
  std::string finish_reason;
  int64_t num_prompt_tokens = 0;
  int64_t num_completion_tokens = 0;
  double first_token_s = 0;  // after the request
  double seconds = 0;        // from the first token to the last
  bool is_interrupted = false;
};

// Needs an InterruptGuard. The screen is finished in every case.
Result<StreamedAnswer> stream_answer(ChatConnection& connection, const std::string& path, const std::string& body,
                                     AnswerScreen& screen);
// "42 tokens, 118.3 tok/s, first after 0.05 s"
std::string timing_text(const StreamedAnswer& answer);

}  // namespace spate
