#include "text/pcre2_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/oniguruma_pattern.h"

namespace spate {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackBytes = 1 << 20;  // a \s+ run over a long text needs more than the default 32 KiB
constexpr uint32_t kMatchLimit = 10'000'000;

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

}  // namespace

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
