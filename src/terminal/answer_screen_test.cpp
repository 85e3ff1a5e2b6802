// Goal    On a terminal reasoning is dimmed or hidden and nothing that the model wrote is obeyed; in a pipe there is no escape
//         sequence at all.
#include "terminal/answer_screen.h"

#include "base/test.h"

namespace spate {
namespace {

constexpr ScreenOptions kTerminal{.is_terminal = true, .has_colours = true};
constexpr ScreenOptions kPipe{};

// Pieces that begin with '~' are reasoning.
std::string shown(ScreenOptions options, std::initializer_list<std::string_view> pieces) {
  std::string out;
  AnswerScreen screen(options, [&](std::string_view text) { out += text; });
  for (const std::string_view piece : pieces) {
    if (piece.starts_with('~')) {
      screen.add_reasoning(piece.substr(1));
    } else {
      screen.add_content(piece);
    }
  }
  screen.finish();
  return out;
}

}  // namespace

TEST_CASE("answer screen: a terminal") {
  CHECK(shown(kTerminal, {"~Let me", "~ see.", "\n\nIt is **4**."}) ==
        "\x1b[2mLet me see.\n\x1b[0m\nIt is \x1b[1m4\x1b[22m.\x1b[0m\n");
  CHECK(shown(kTerminal, {"~\n", "~\n", "\n\nHello"}) == "Hello\x1b[0m\n");
  CHECK(shown(kTerminal, {"~cut"}) == "\x1b[2mcut\n\x1b[0m");
  CHECK(shown(kTerminal, {}).empty());
  ScreenOptions hidden = kTerminal;
  hidden.hides_thinking = true;
  CHECK(shown(hidden, {"~a", "~b", "c"}) == "\x1b[2mthinking...\x1b[0m\r\x1b[Kc\x1b[0m\n");
  ScreenOptions dumb = kTerminal;
  dumb.has_colours = false;
  CHECK(shown(dumb, {"~a", "**b**"}) == "a\n\n**b**\n");
}

TEST_CASE("answer screen: a pipe") {
  CHECK(shown(kPipe, {"~a", "**b**"}) == "<think>\na\n</think>\n\n**b**\n");
  ScreenOptions hidden = kPipe;
  hidden.hides_thinking = true;
  CHECK(shown(hidden, {"~a", "**b**"}) == "**b**\n");
  ScreenOptions exact = kPipe;
  exact.keeps_bytes = true;
  CHECK(shown(exact, {" a\x1b[2J\xff"}) == " a\x1b[2J\xff\n");
}

TEST_CASE("answer screen: hostile output is shown, not obeyed") {
  for (const ScreenOptions& options : {kTerminal, kPipe}) {
    const std::string out = shown(options, {"~\x1b]0;owned\a", "\x1b[2J**\x1b", "[31m**\x07\xc2", "\x9b" "6n\r"});
    CHECK(out.find("\x1b]") == std::string::npos);
    CHECK(out.find("\x1b[2J") == std::string::npos);
    CHECK(out.find("\x1b[31m") == std::string::npos);
    CHECK(out.find('\a') == std::string::npos);
    CHECK(out.find('\r') == std::string::npos);
    CHECK(out.find("\xc2\x9b") == std::string::npos);
    CHECK(out.find("^[]0;owned^G") != std::string::npos);
    CHECK(out.find("^[[2J") != std::string::npos);
  }
}

}  // namespace spate
