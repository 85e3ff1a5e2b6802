// libFuzzer target: any bytes as a regex, an EBNF grammar, a JSON schema or a structural tag end in a grammar or in a
// Status, within the budget. The grammar runs over some text and never dies in a place that it said leads on; the masks
// of a small vocabulary, however they are found, are those of the tokens' bytes; what a schema's grammar accepts is
// JSON. The first byte chooses the kind, and how masks are found. Seeds: test/fuzz/grammar.  fuzz/grammar_fuzz
// -max_len=4096 <corpus> test/fuzz/grammar
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/rng.h"
#include "core/step_plan.h"
#include "grammar/byte_dfa.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/parse_states.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"
#include "grammar/token_grammar.h"

namespace {

using spate::ParseStates;

constexpr int64_t kUnits = 300'000;    // of compiling
constexpr int64_t kRunUnits = 15'000;  // of one text, of one mask, and of the plain walks of all masks
constexpr int kNumMasks = 8, kMaxBytes = 70, kFreeBytes = 30;

enum Kind : uint8_t { kEbnf, kSchema, kWholeRegex, kRegexAnywhere, kStructuralTag, kNumKinds };

void require(bool holds) {
  if (!holds) std::abort();
}

// Bytes, what JSON is made of, whole and cut characters, long texts, and pieces of the input: its literals.
std::vector<std::string> vocabulary(std::string_view input, spate::Rng& rng) {
  // clang-format off
  std::vector<std::string> texts{
      "",         "\n",        "\xC3",      "\xA9",     "\x80",          "\xE4\xB8",   "\xAD",      "\xF0\x9F",
      "\xFF",     "é",         "中文",      "😀",       "{\"",           "\":",        "\": \"",    "\",",
      "\", \"",   "\"}",       "\"]",       "[[",       "]]",            "]}",         "},{",       "{}",
      "[]",       "null",      "true",      "false",    "12",            "345",        "-1",        "0.5",
      "1e",       ".0",        "00",        "ab",       "abc",           "the ",       " and",      "\\n",
      "\\u00",    "\\\"",      "\\\\",      "é\"",      "é\\",           "\xE4\xB8\"", "a\"",       "a\",\"b",
      "    ",     "\n  ",      "\n\n",      "</",       "</think>",      "://",        "2024-01-",  "T10:",
      "a,b",      "x\"}]",     "aé中",      "(",        ")a",            "a)(",        "aaaaaaaa",  "zzzz\x80",
      "AbCdEfGh", "\"\":\"\"", "\"a\":[1,", "\",\"a\"", "a: b\n- c: d\n"};
  // clang-format on
  for (char byte = 32; byte < 127; ++byte) texts.emplace_back(1, byte);
  for (const size_t length : {23u, 24u, 25u, 40u}) {
    texts.push_back(std::string(length, 'a'));
    texts.push_back(std::string(length - 1, ' ') + "\"");
    texts.push_back("\"" + std::string(length, 'b') + "\":[1");
  }
  for (int i = 0; i < 40 && !input.empty(); ++i) {
    texts.emplace_back(input.substr(rng.below(input.size()), 1 + rng.below(i % 8 == 0 ? 40 : 6)));
  }
  return texts;
}

int32_t after(ParseStates& states, int32_t at, std::string_view text) {
  for (const char c : text) {
    if (at == ParseStates::kDead) break;
    at = states.next(at, static_cast<uint8_t>(c));
  }
  return at;
}

// One place: the mask is that of a plain walk, and all else that the cursor says is so. The tokens allowed; nullopt:
// no more can be said, since the work is too much or the text over.
std::optional<std::vector<int32_t>> check_place(spate::ConstraintCursor& cursor, ParseStates& states, int32_t at,
                                                const std::vector<std::string>& texts) {
  states.set_work_limit(kRunUnits);
  std::vector<int32_t> allowed;
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty() && after(states, at, texts[id]) != ParseStates::kDead) {
      allowed.push_back(static_cast<int32_t>(id));
    }
  }
  if (states.is_over_limit()) return std::nullopt;
  require(cursor.may_end() == states.accepts(at));
  require(cursor.must_end() == (states.accepts(at) && !states.has_next(at)));
  const spate::Status status = cursor.prepare_mask();
  if (!status.ok()) {
    if (status.message().starts_with("the grammar is too ambiguous")) return std::nullopt;
    require(allowed.empty() && !states.accepts(at));
    return std::nullopt;
  }
  const std::span<const uint32_t> mask = cursor.mask();
  require(mask.size() == static_cast<size_t>(spate::mask_words_of(static_cast<int>(texts.size()))));
  size_t num_allowed = 0;
  for (const uint32_t word : mask) num_allowed += static_cast<size_t>(std::popcount(word));
  require(num_allowed == allowed.size());
  for (const int32_t id : allowed) require(spate::mask_allows(mask.data(), id));

  states.set_work_limit(INT64_MAX);
  int32_t forced_at = at;
  if (const int32_t forced = cursor.forced_token(); forced >= 0) {
    for (const char c : texts[static_cast<size_t>(forced)]) {
      require(states.forced_byte(forced_at) == static_cast<uint8_t>(c));
      forced_at = states.next(forced_at, static_cast<uint8_t>(c));
    }
    require(forced_at != ParseStates::kDead);
  }
  if (allowed.empty()) return std::nullopt;
  return allowed;
}

// Two sequences side by side, of which the second begins later and follows the first for a while. `seed` says which
// tokens they take, how much is found ahead and how little is kept.
void check_masks(const std::shared_ptr<const spate::Grammar>& grammar, std::string_view input, uint8_t seed) {
  spate::Rng rng(seed, input.size());
  const std::vector<std::string> texts = vocabulary(input, rng);
  const auto trie = std::make_shared<const spate::TokenTrie>(texts, static_cast<int>(texts.size()));
  const bool works_ahead = seed % 2 == 0, keeps_little = seed % 3 == 0;
  spate::TokenGrammarLimits limits{.max_states = 1000,  // room for more takes longer than all else
                                   .max_mask_bytes = 1 << 20,
                                   .max_mask_work = kRunUnits,
                                   .max_ahead_work = works_ahead ? static_cast<int64_t>(rng.below(5'000)) : 0,
                                   .max_later_work = works_ahead ? 10'000 : 0};
  if (keeps_little) {
    limits.max_states = 20 + rng.below(100);
    limits.max_mask_bytes = 40 * (1 + rng.below(200));
  }
  const auto constraint = spate::TokenGrammar::create(grammar, trie, limits);
  if (!constraint.ok()) return;
  ParseStates states(grammar);
  struct Sequence {
    std::unique_ptr<spate::ConstraintCursor> cursor;
    int32_t at = ParseStates::kDead;
  };
  Sequence sequences[2];
  for (int i = 0; i < kNumMasks; ++i) {
    Sequence& sequence = sequences[i % 2];
    if (sequence.cursor == nullptr) {
      const bool follows = i % 2 == 1 && seed % 5 == 0 && sequences[0].cursor != nullptr;
      sequence = follows ? Sequence{sequences[0].cursor->clone(), sequences[0].at}
                         : Sequence{(*constraint)->start(), states.initial()};
    }
    if (works_ahead) (*constraint)->work_ahead(static_cast<int64_t>(rng.below(2'000)));
    const auto allowed = check_place(*sequence.cursor, states, sequence.at, texts);
    if (!allowed) {
      sequence.cursor.reset();
      if (states.is_over_limit()) return;
      continue;
    }
    const auto id = static_cast<int32_t>(rng.below(texts.size()));
    if (!spate::mask_allows(sequence.cursor->mask().data(), id)) require(!sequence.cursor->clone()->append(id).ok());
    const int32_t chosen = (*allowed)[rng.below(allowed->size())];
    require(sequence.cursor->append(chosen).ok());
    sequence.at = after(states, sequence.at, texts[static_cast<size_t>(chosen)]);
    require(sequence.at != ParseStates::kDead);
  }
}

// Some text of the grammar: first whatever comes, then what closes a value. A schema's is JSON where it is complete,
// and a regex accepts it where its automaton does.
void run(const std::shared_ptr<const spate::Grammar>& grammar, Kind kind, const spate::ByteDfa* dfa) {
  ParseStates states(grammar);
  states.set_work_limit(kRunUnits);
  int32_t state = states.initial();
  std::string text;
  for (int i = 0; i < kMaxBytes; ++i) {
    int32_t next = ParseStates::kDead;
    char chosen = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const auto tried = static_cast<uint8_t>((byte * 7 + i * 31) % 256);
      const int32_t candidate = states.next(state, tried);
      if (candidate == ParseStates::kDead) continue;
      next = candidate;
      chosen = static_cast<char>(tried);
    }
    for (const char closing : std::string_view("1a\":,}]")) {
      if (i < kFreeBytes || (i + closing) % 3 == 0) continue;
      const int32_t candidate = states.next(state, static_cast<uint8_t>(closing));
      if (candidate == ParseStates::kDead) continue;
      next = candidate;
      chosen = closing;
    }
    if (states.is_over_limit()) return;
    const bool is_complete = states.accepts(state);
    if (dfa != nullptr) require(dfa->accepts(text) == is_complete);
    // An exponent makes numbers that no double holds.
    if (kind == kSchema && is_complete && text.find_first_of("eE") == std::string::npos) {
      require(nlohmann::json::accept(text));
    }
    if (next == ParseStates::kDead) {
      require(!states.has_next(state) && is_complete);
      return;
    }
    state = next;
    text += chosen;
    if (i % 10 == 9) {
      int32_t* const kept[] = {&state};
      states.keep_only(kept);
    }
  }
}

struct Compiled {
  std::shared_ptr<const spate::Grammar> grammar;
  std::optional<spate::ByteDfa> dfa;
};

spate::Result<Compiled> compile(Kind kind, std::string_view text, spate::CompileBudget& budget) {
  const auto share = [](spate::Grammar grammar) { return std::make_shared<const spate::Grammar>(std::move(grammar)); };
  if (kind == kEbnf) {
    ASSIGN_OR_RETURN(spate::Grammar grammar, spate::compile_ebnf(text, budget));
    return Compiled{.grammar = share(std::move(grammar)), .dfa = {}};
  }
  if (kind == kSchema || kind == kStructuralTag) {
    const nlohmann::ordered_json schema = nlohmann::ordered_json::parse(text, nullptr, false);
    if (schema.is_discarded()) return spate::invalid_argument("no JSON");
    ASSIGN_OR_RETURN(spate::Grammar grammar, kind == kSchema ? spate::compile_json_schema(schema, {}, budget)
                                                             : spate::compile_structural_tag(schema, {}, budget));
    return Compiled{.grammar = share(std::move(grammar)), .dfa = {}};
  }
  const auto match = kind == kWholeRegex ? spate::RegexMatch::kWhole : spate::RegexMatch::kAnywhere;
  ASSIGN_OR_RETURN(spate::Expr expr, spate::parse_regex(text, match, spate::expr_chars, &budget));
  auto dfa = spate::ByteDfa::of_expr(expr, budget);
  if (dfa.ok()) dfa->accepts(text);
  spate::GrammarBuilder builder;
  builder.define_rule(builder.declare_rule("root"), std::move(expr));
  ASSIGN_OR_RETURN(spate::Grammar grammar, builder.finish(0, budget));
  return Compiled{.grammar = share(std::move(grammar)),
                  .dfa = dfa.ok() ? std::optional(std::move(*dfa)) : std::nullopt};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto kind = static_cast<Kind>(data[0] % kNumKinds);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  spate::CompileBudget budget(kUnits);
  const auto compiled = compile(kind, text, budget);
  if (!compiled.ok()) return 0;
  run(compiled->grammar, kind, compiled->dfa ? &*compiled->dfa : nullptr);
  check_masks(compiled->grammar, text, data[0] / kNumKinds);
  return 0;
}
