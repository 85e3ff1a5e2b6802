#include "text/pcre2_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>

namespace spate {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackBytes = 1 << 20;  // a \s+ run over a long text needs more than the default 32 KiB
constexpr uint32_t kMatchLimit = 10'000'000;

constexpr std::string_view kSpaceSet = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWordSet =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

// Match state is per thread: encode runs on many threads at once.
struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        jit_stack(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, jit_stack);
  }
  ~MatchState() {
    pcre2_jit_stack_free(jit_stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* jit_stack;
};

bool is_general_category(std::string_view name) {
  if (name.empty() || name.size() > 2) return name == "Any" || name == "L&";
  return std::string_view("LMNPSZC").find(name[0]) != std::string_view::npos;
}

// Copies \p{...} or \P{...} at pattern[pos]; returns the position behind it.
Result<size_t> translate_property(std::string_view pattern, size_t pos, std::string& out) {
  const size_t open = pos + 2;
  if (open >= pattern.size() || pattern[open] != '{') return invalid_argument("regex: \\p without braces at {}", pos);
  const size_t close = pattern.find('}', open);
  if (close == std::string_view::npos) return invalid_argument("regex: \\p{{ without end at {}", pos);
  std::string_view name = pattern.substr(open + 1, close - open - 1);
  bool negated = pattern[pos + 1] == 'P';
  if (!name.empty() && name[0] == '^') {
    negated = !negated;
    name.remove_prefix(1);
  }
  out += negated ? "\\P{" : "\\p{";
  if (!is_general_category(name)) out += "sc:";
  out += name;
  out += '}';
  return close + 1;
}

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t pos = 0; pos < pattern.size();) {
    const char c = pattern[pos];
    const char next = pos + 1 < pattern.size() ? pattern[pos + 1] : '\0';
    if (c == '\\' && (next == 'p' || next == 'P')) {
      ASSIGN_OR_RETURN(pos, translate_property(pattern, pos, out));
      continue;
    }
    if (c == '\\' && next == 'u' && pos + 6 <= pattern.size()) {
      out += "\\x{" + std::string(pattern.substr(pos + 2, 4)) + "}";
      pos += 6;
      continue;
    }
    if (c == '\\' && next != '\0') {
      const auto set = [&](std::string_view members, std::string_view negated_in_class) {
        if (next == std::tolower(next)) {
          out += in_class ? std::string(members) : "[" + std::string(members) + "]";
        } else {
          out += in_class ? std::string(negated_in_class) : "[^" + std::string(members) + "]";
        }
      };
      if (next == 's' || next == 'S')
        set(kSpaceSet, "\\S");
      else if (next == 'w' || next == 'W')
        set(kWordSet, "\\W");
      else if (next == 'h' || next == 'H')
        set("0-9a-fA-F", "\\x00-/:-@G-`g-\\x{10FFFF}");
      else
        out.append(pattern.substr(pos, 2));
      pos += 2;
      continue;
    }
    if (c == '[') {
      out += c;
      ++pos;
      if (in_class) continue;  // a POSIX name or a literal bracket
      in_class = true;
      if (pos < pattern.size() && pattern[pos] == '^') out += pattern[pos++];
      if (pos < pattern.size() && pattern[pos] == ']') out += "\\]", ++pos;
      continue;
    }
    if (in_class && c == '&' && next == '&') return unimplemented("regex: class intersection && at {}", pos);
    if (c == ']' && in_class) in_class = false;
    if (!in_class && c == '}' && next == '+') {
      return unimplemented("regex: {{n,m}}+ at {} (Oniguruma repeats the group, PCRE2 would not)", pos);
    }
    out += c;
    ++pos;
  }
  return out;
}

struct Pcre2Regex::Code {
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code = nullptr;
};

Result<Pcre2Regex> Pcre2Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return invalid_argument("regex of {} bytes; at most {} are taken", pattern.size(), kMaxPatternBytes);
  }
  ASSIGN_OR_RETURN(const std::string translated, translate_oniguruma(pattern));
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_parens_nest_limit(context, 100);
  auto code = std::make_shared<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &error_offset, context);
  pcre2_compile_context_free(context);
  if (code->code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof message);
    return invalid_argument("regex '{}': {} at {}", std::string(pattern), reinterpret_cast<const char*>(message),
                            error_offset);
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter runs: slower, the same matches
  return Pcre2Regex(std::move(code));
}

bool Pcre2Regex::find(std::string_view text, size_t from, size_t* start, size_t* end) const {
  thread_local MatchState state;
  const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (count < 0) return false;
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.data);
  if (offsets[1] < offsets[0]) return false;  // \K in a look-ahead
  *start = offsets[0];
  *end = offsets[1];
  return *start >= from;
}

}  // namespace spate
