// libFuzzer target: any bytes as a regex, an EBNF grammar, a JSON schema or a structural tag end in a grammar or in a
// Status, within the budget; the grammar runs over some text and never dies in a place that it said leads on. The first
// byte chooses. Seeds: test/fuzz/grammar.  fuzz/grammar_fuzz -max_len=4096 <corpus> test/fuzz/grammar
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "grammar/byte_dfa.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/parse_states.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"

namespace {

constexpr int64_t kUnits = 300'000;

void run(spate::Result<spate::Grammar> grammar) {
  if (!grammar.ok()) return;
  spate::ParseStates states(std::make_shared<const spate::Grammar>(std::move(*grammar)));
  states.set_work_limit(kUnits);
  int32_t state = states.initial();
  for (int i = 0; i < 40; ++i) {
    int32_t next = spate::ParseStates::kDead;
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t candidate = states.next(state, static_cast<uint8_t>((byte * 7 + i * 31) % 256));
      if (candidate != spate::ParseStates::kDead) next = candidate;
    }
    if (states.is_over_limit()) return;
    if (next == spate::ParseStates::kDead) {
      if (states.has_next(state) || !states.accepts(state)) std::abort();
      return;
    }
    state = next;
    if (i % 10 == 9) {
      int32_t* const kept[] = {&state};
      states.keep_only(kept);
    }
  }
}

spate::Result<spate::Grammar> compile(uint8_t kind, std::string_view text, spate::CompileBudget& budget) {
  if (kind == 0) return spate::compile_ebnf(text, budget);
  if (kind == 1 || kind == 4) {
    const nlohmann::ordered_json schema = nlohmann::ordered_json::parse(text, nullptr, false);
    if (schema.is_discarded()) return spate::invalid_argument("no JSON");
    return kind == 1 ? spate::compile_json_schema(schema, {}, budget)
                     : spate::compile_structural_tag(schema, {}, budget);
  }
  const auto match = kind == 2 ? spate::RegexMatch::kWhole : spate::RegexMatch::kAnywhere;
  ASSIGN_OR_RETURN(spate::Expr expr, spate::parse_regex(text, match, spate::expr_chars, &budget));
  const auto dfa = spate::ByteDfa::of_expr(expr, budget);
  if (dfa.ok()) dfa->accepts(text);
  spate::GrammarBuilder builder;
  builder.define_rule(builder.declare_rule("root"), std::move(expr));
  return builder.finish(0, budget);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  spate::CompileBudget budget(kUnits);
  run(compile(data[0] % 5, {reinterpret_cast<const char*>(data) + 1, size - 1}, budget));
  return 0;
}
