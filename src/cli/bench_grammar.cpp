// spate bench grammar: what structured output costs the host, without a model: the time to compile ordinary grammars,
// and that of the masks of one step for many rows, whose texts are random.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/token_grammar.h"
#include "text/tokenizer.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr int kNumCompiles = 5, kWarmSteps = 100, kNumSteps = 400;
constexpr double kMaskGoalUs = 300, kCompileGoalMs = 20;

struct NamedSchema {
  const char* name;
  const char* text;
};
constexpr NamedSchema kSchemas[] = {
    {"object of text and numbers",
     R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
         "height": {"type": "number"}, "email": {"type": "string", "format": "email"}}, "required": ["name", "age"],
         "additionalProperties": false})"},
    {"list of objects with an enum",
     R"({"type": "array", "minItems": 1, "maxItems": 20, "items": {"type": "object", "properties": {"id": {"type": "string",
         "format": "uuid"}, "day": {"type": "string", "format": "date"}, "kind": {"enum": ["small", "medium", "large"]},
         "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}}}, "required": ["id", "kind"]}})"},
    {"recursive tree",
     R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": ["string", "number",
         "null"]}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value", "children"],
         "additionalProperties": false}}})"},
    {"choice of two calls",
     R"({"anyOf": [{"type": "object", "properties": {"name": {"const": "get_weather"}, "arguments": {"type": "object",
         "properties": {"city": {"type": "string", "minLength": 1}, "unit": {"enum": ["C", "F"]}}, "required": ["city"]}},
         "required": ["name", "arguments"]}, {"type": "object", "properties": {"name": {"const": "search"}, "arguments":
         {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1,
         "maximum": 100}}, "required": ["query"]}}, "required": ["name", "arguments"]}]})"},
    {"any object", R"({"type": "object"})"},
};
constexpr const char* kPattern = R"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2} [A-Z][a-z]{2,20}( [A-Z][a-z]{2,20}){0,3})";

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

Result<Grammar> compile(int which) {
  CompileBudget budget;
  if (which < static_cast<int>(std::size(kSchemas)))
    return compile_json_schema(Json::parse(kSchemas[which].text), {}, budget);
  GrammarBuilder builder;
  ASSIGN_OR_RETURN(Expr expr, parse_regex(kPattern, RegexMatch::kWhole));
  builder.define_rule(builder.declare_rule("root"), std::move(expr));
  return builder.finish(0, budget);
}

// What a request waits for: the grammar and the mask of its first token.
Result<std::shared_ptr<TokenGrammar>> measure_compile(int which, const std::shared_ptr<const TokenTrie>& trie,
                                                      double& median_ms) {
  std::vector<double> times;
  std::shared_ptr<TokenGrammar> constraint;
  for (int i = 0; i < kNumCompiles; ++i) {
    const auto start = SteadyClock::now();
    ASSIGN_OR_RETURN(Grammar grammar, compile(which));
    ASSIGN_OR_RETURN(constraint, TokenGrammar::create(std::make_shared<const Grammar>(std::move(grammar)), trie));
    times.push_back(seconds_since(start) * 1e3);
  }
  median_ms = median(times);
  return constraint;
}

// A row of the batch: one text after the other.
struct Row {
  TokenConstraint* constraint = nullptr;
  std::unique_ptr<ConstraintCursor> cursor;
  int32_t next = -1;
};

// A random token that the mask allows; -1: none.
int32_t choose(std::span<const uint32_t> mask, Rng& rng) {
  const size_t num_words = mask.size(), first = rng.below(num_words);
  for (size_t i = 0; i < num_words; ++i) {
    const size_t word = (first + i) % num_words;
    if (mask[word] == 0) continue;
    std::vector<int32_t> ids;
    for (int bit = 0; bit < 32; ++bit) {
      if (mask[word] >> bit & 1) ids.push_back(static_cast<int32_t>(word * 32) + bit);
    }
    return ids[rng.below(ids.size())];
  }
  return -1;
}

// One step of all rows: each gets its token and the mask of the next one. Rows that have ended begin anew, beside the
// clock.
Result<double> measure_step(std::vector<Row>& rows, Rng& rng) {
  for (Row& row : rows) {
    if (row.cursor && !row.cursor->must_end()) row.next = choose(row.cursor->mask(), rng);
    if (row.cursor && row.next >= 0 && !row.cursor->must_end()) continue;
    row.cursor = row.constraint->start();
    row.next = choose(row.cursor->mask(), rng);
  }
  const auto start = SteadyClock::now();
  for (Row& row : rows) {
    RETURN_IF_ERROR(row.cursor->append(row.next));
    if (!row.cursor->must_end()) RETURN_IF_ERROR(row.cursor->prepare_mask());
  }
  return seconds_since(start);
}

}  // namespace

Result<int> run_bench_grammar(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::unique_ptr<const Tokenizer> tokenizer, Tokenizer::load(arguments.model.model));
  std::vector<std::string> token_bytes(static_cast<size_t>(tokenizer->vocab_size()));
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->is_special(id)) token_bytes[static_cast<size_t>(id)] = tokenizer->token_bytes(id);
  }
  const auto trie = std::make_shared<const TokenTrie>(token_bytes, tokenizer->vocab_size());
  std::printf("%d tokens, %d rows\n", tokenizer->vocab_size(), arguments.bench.num_rows);
  Json json{
      {"vocab_size", tokenizer->vocab_size()}, {"num_rows", arguments.bench.num_rows}, {"compile_ms", Json::object()}};
  std::vector<std::shared_ptr<TokenGrammar>> constraints;
  for (int which = 0; which <= static_cast<int>(std::size(kSchemas)); ++which) {
    const char* name = which < static_cast<int>(std::size(kSchemas)) ? kSchemas[which].name : "regular expression";
    double median_ms = 0;
    ASSIGN_OR_RETURN(std::shared_ptr<TokenGrammar> constraint, measure_compile(which, trie, median_ms));
    std::printf("compile, %s: %.1f ms (goal %.0f)\n", name, median_ms, kCompileGoalMs);
    json["compile_ms"][name] = median_ms;
    constraints.push_back(std::move(constraint));
  }
  std::vector<Row> rows(static_cast<size_t>(arguments.bench.num_rows));
  for (size_t i = 0; i < rows.size(); ++i) rows[i].constraint = constraints[i % constraints.size()].get();
  Rng rng(arguments.model.seed + 1);
  std::vector<double> times;
  for (int step = 0; step < kWarmSteps + kNumSteps; ++step) {
    ASSIGN_OR_RETURN(const double seconds, measure_step(rows, rng));
    if (step >= kWarmSteps) times.push_back(seconds * 1e6);
  }
  std::printf("masks of a step: median %.0f us (goal %.0f), p90 %.0f us, p99 %.0f us\n", median(times), kMaskGoalUs,
              percentile(times, 90), percentile(times, 99));
  json["step_us"] = {{"median", median(times)}, {"p90", percentile(times, 90)}, {"p99", percentile(times, 99)}};
  if (arguments.bench.output_json.empty()) return 0;
  std::ofstream out(arguments.bench.output_json);
  out << json.dump(2) << "\n";
  if (!out) return invalid_argument("--output-json: {} cannot be written", arguments.bench.output_json);
  return 0;
}

}  // namespace spate
