#include "terminal/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <utility>

namespace spate {
namespace {

constexpr int kMaxHistory = 1000;
constexpr std::string_view kPasteEnd = "\x1b[201~";

// libedit reads UTF-8 only in a UTF-8 locale, and containers often have none.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

// While one lives, Ctrl-C is a key and no signal: libedit takes the terminal's characters over from here.
class InterruptKey {
 public:
  InterruptKey() : has_settings_(::tcgetattr(STDIN_FILENO, &settings_) == 0) {
    if (!has_settings_) return;
    termios changed = settings_;
    changed.c_cc[VINTR] = _POSIX_VDISABLE;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &changed);
  }
  ~InterruptKey() {
    if (has_settings_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &settings_);
  }
  InterruptKey(const InterruptKey&) = delete;
  InterruptKey& operator=(const InterruptKey&) = delete;

 private:
  termios settings_{};
  const bool has_settings_;
};

// What is pasted must not steer the editor: of control characters only newline and tab are taken.
std::string typed_form(const std::string& pasted) {
  std::string out;
  for (const char c : pasted) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '\r') {
      out += '\n';
    } else if (u >= 0x20 ? u != 0x7f : c == '\n' || c == '\t') {
      out += c;
    }
  }
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

struct LineEditor::Impl {
  EditLine* edit = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string history_file;
  std::string prompt;
  bool is_interrupted = false;

  static Impl& of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<Impl*>(self);
  }
  // libedit asks each time it draws, after it has set its signal handlers. That of SIGWINCH makes the buffers anew in
  // the middle of what it interrupts, which crashes; the new size is taken with the next line, by libedit too.
  static char* give_prompt(EditLine* edit) {
    ::signal(SIGWINCH, SIG_DFL);
    return of(edit).prompt.data();
  }

  // Ctrl-C: the line ends where it is, as by Enter behind it.
  static unsigned char interrupt(EditLine* edit, int /*key*/) {
    of(edit).is_interrupted = true;
    const LineInfo* line = el_line(edit);
    el_cursor(edit, static_cast<int>(line->lastchar - line->cursor));
    el_insertstr(edit, "^C");
    el_push(edit, "\n");
    return CC_REFRESH;
  }

  static unsigned char paste(EditLine* edit, int /*key*/) {
    std::string text;
    wchar_t c = 0;  // el_getc knows ASCII only
    while (!text.ends_with(kPasteEnd)) {
      if (el_wgetc(edit, &c) != 1) return CC_EOF;
      char bytes[MB_LEN_MAX];
      std::mbstate_t state{};
      const size_t num_bytes = std::wcrtomb(bytes, c, &state);
      if (num_bytes != static_cast<size_t>(-1)) text.append(bytes, num_bytes);
    }
    text.resize(text.size() - kPasteEnd.size());
    text = typed_form(text);
    if (!text.empty() && el_insertstr(edit, text.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
  }
};

LineEditor::LineEditor(std::string history_file) : impl_(std::make_unique<Impl>()) {
  use_utf8();
  Impl& self = *impl_;
  self.history_file = std::move(history_file);
  self.history = history_init();
  history(self.history, &self.event, H_SETSIZE, kMaxHistory);
  history(self.history, &self.event, H_SETUNIQUE, 1);
  if (!self.history_file.empty()) history(self.history, &self.event, H_LOAD, self.history_file.c_str());
  self.edit = el_init("spate", stdin, stdout, stderr);
  el_set(self.edit, EL_CLIENTDATA, &self);
  el_set(self.edit, EL_PROMPT, &Impl::give_prompt);
  el_set(self.edit, EL_HIST, history, self.history);
  el_set(self.edit, EL_EDITOR, "emacs");
  el_set(self.edit, EL_SIGNAL, 1);
  el_set(self.edit, EL_ADDFN, "spate-interrupt", "give the line up", &Impl::interrupt);
  el_set(self.edit, EL_ADDFN, "spate-paste", "take what is pasted", &Impl::paste);
  el_source(self.edit, nullptr);
  for (const auto& [key, function] : {std::pair{"^C", "spate-interrupt"}, {"\\e[200~", "spate-paste"}, {"^R", "em-inc-search-prev"},
                                      {"\\e[1~", "ed-move-to-beg"}, {"\\e[4~", "ed-move-to-end"}, {"\\e[3~", "ed-delete-next-char"},
                                      {"\\e[1;5C", "em-next-word"}, {"\\e[1;5D", "ed-prev-word"}}) {
    el_set(self.edit, EL_BIND, key, function, nullptr);
  }
}

LineEditor::~LineEditor() {
  el_end(impl_->edit);
  history_end(impl_->history);
}

LineEditor::Input LineEditor::read(const std::string& prompt) {
  Impl& self = *impl_;
  self.prompt = prompt;
  self.is_interrupted = false;
  std::fputs("\x1b[?2004h", stdout);  // bracketed paste on
  std::fflush(stdout);
  int length = 0;
  const InterruptKey key;
  errno = 0;
  const char* line = el_gets(self.edit, &length);
  const bool was_signal = line == nullptr && errno == EINTR;
  std::fputs("\x1b[?2004l", stdout);
  std::fflush(stdout);
  if (line == nullptr || length <= 0) return {was_signal ? Event::kInterrupt : Event::kEnd, {}};
  std::string text(line, static_cast<size_t>(length));
  if (text.ends_with('\n')) text.pop_back();
  if (!self.is_interrupted) return {Event::kLine, std::move(text)};
  if (text.ends_with("^C")) text.resize(text.size() - 2);
  return {Event::kInterrupt, std::move(text)};
}

void LineEditor::add_history(const std::string& text) {
  Impl& self = *impl_;
  if (text.find_first_not_of(" \t\n") == std::string::npos) return;
  history(self.history, &self.event, H_ENTER, text.c_str());
  if (!self.history_file.empty()) history(self.history, &self.event, H_SAVE, self.history_file.c_str());
}

}  // namespace spate
