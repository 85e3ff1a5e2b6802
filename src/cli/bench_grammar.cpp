// spate bench grammar: what structured output costs the host, without a model: the time to compile ordinary grammars,
// and that of the masks of one step for many rows, whose texts are random. Also the look of a step: what its rows ask
// for, in counts that are the same on every machine.
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
Result<std::shared_ptr<TokenGrammar>> compile_ahead(int which, const std::shared_ptr<const TokenTrie>& trie,
                                                    int64_t max_ahead_work) {
  ASSIGN_OR_RETURN(Grammar grammar, compile(which));
  TokenGrammarLimits limits;
  if (max_ahead_work >= 0) limits.max_ahead_work = max_ahead_work;
  return TokenGrammar::create(std::make_shared<const Grammar>(std::move(grammar)), trie, limits);
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

// The look of a step: what all rows together asked for.
struct StepCounts {
  double num_bytes = 0;   // of their tokens
  double num_found = 0;   // masks of situations that had none
  double num_made = 0;    // of these, no equal one was known
  double num_walked = 0;  // nodes of trees of tokens
  double num_units = 0;   // of work: items of situations met for the first time, mostly
};
struct Step {
  double us = 0;
  StepCounts counts;
};

// The same texts for the same seed, whatever ran before.
class MaskSteps {
 public:
  static Result<MaskSteps> create(const std::shared_ptr<const TokenTrie>& trie, const BenchArguments& bench,
                                  uint64_t seed) {
    MaskSteps steps(trie, bench.num_rows, bench.step_ms / 1e3, seed);
    for (int which = 0; which <= static_cast<int>(std::size(kSchemas)); ++which) {
      ASSIGN_OR_RETURN(std::shared_ptr<TokenGrammar> grammar, compile_ahead(which, trie, bench.max_ahead_work));
      steps.grammars_.push_back(std::move(grammar));
    }
    for (const auto& grammar : steps.grammars_) steps.ahead_.add(grammar);
    for (size_t i = 0; i < steps.rows_.size(); ++i) {
      steps.rows_[i].constraint = steps.grammars_[i % steps.grammars_.size()].get();
    }
    return steps;
  }

  // One step of all rows: each gets its token and the mask of the next one. Rows that have ended begin anew, beside the
  // clock, and so is what the engine does while the device is at work.
  Result<Step> measure() {
    Step step;
    ahead_.work_beside(device_seconds_);
    for (Row& row : rows_) {
      if (row.cursor && !row.cursor->must_end()) row.next = choose(row.cursor->mask(), rng_);
      if (!row.cursor || row.next < 0 || row.cursor->must_end()) {
        row.cursor = row.constraint->start();
        row.next = choose(row.cursor->mask(), rng_);
      }
      step.counts.num_bytes += static_cast<double>(trie_->token_bytes(row.next).size());
    }
    const TokenGrammar::Counts before = counts();
    const auto start = SteadyClock::now();
    for (Row& row : rows_) {
      RETURN_IF_ERROR(row.cursor->append(row.next));
      if (!row.cursor->must_end()) RETURN_IF_ERROR(row.cursor->prepare_mask());
    }
    step.us = seconds_since(start) * 1e6;
    const TokenGrammar::Counts after = counts();
    step.counts.num_found = static_cast<double>(after.num_found - before.num_found);
    step.counts.num_made = static_cast<double>(after.num_made - before.num_made);
    step.counts.num_walked = static_cast<double>(after.num_walked - before.num_walked);
    step.counts.num_units = static_cast<double>(after.num_units - before.num_units);
    return step;
  }

 private:
  MaskSteps(const std::shared_ptr<const TokenTrie>& trie, int num_rows, double device_seconds, uint64_t seed)
      : trie_(trie), device_seconds_(device_seconds), rows_(static_cast<size_t>(num_rows)), rng_(seed + 1) {}
  TokenGrammar::Counts counts() const {
    TokenGrammar::Counts sum;
    for (const auto& grammar : grammars_) {
      const TokenGrammar::Counts each = grammar->counts();
      sum.num_found += each.num_found;
      sum.num_made += each.num_made;
      sum.num_walked += each.num_walked;
      sum.num_units += each.num_units;
    }
    return sum;
  }

  std::shared_ptr<const TokenTrie> trie_;
  double device_seconds_;
  std::vector<std::shared_ptr<TokenGrammar>> grammars_;
  ConstraintsAhead ahead_;
  std::vector<Row> rows_;  // their cursors are of grammars_
  Rng rng_;
};

struct Percentiles {
  double median = 0, p90 = 0, p99 = 0;
  static Percentiles of(const std::vector<double>& times) {
    return {spate::median(times), percentile(times, 90), percentile(times, 99)};
  }
  Json json() const { return {{"median", median}, {"p90", p90}, {"p99", p99}}; }
};

// The mean of these steps.
Json look_of(std::span<const Step> steps) {
  StepCounts sum;
  for (const Step& step : steps) {
    sum.num_bytes += step.counts.num_bytes;
    sum.num_found += step.counts.num_found;
    sum.num_made += step.counts.num_made;
    sum.num_walked += step.counts.num_walked;
    sum.num_units += step.counts.num_units;
  }
  const auto count = static_cast<double>(steps.size());
  return {{"num_bytes", sum.num_bytes / count},
          {"num_masks_found", sum.num_found / count},
          {"num_masks_made", sum.num_made / count},
          {"num_nodes_walked", sum.num_walked / count},
          {"num_units", sum.num_units / count}};
}

void print_look(const char* name, const Json& look) {
  std::printf(
      "  %s: %.0f bytes; %.1f masks found, %.1f of them unlike those kept; %.0f nodes walked, %.0f units of work\n",
      name, look["num_bytes"].get<double>(), look["num_masks_found"].get<double>(),
      look["num_masks_made"].get<double>(), look["num_nodes_walked"].get<double>(), look["num_units"].get<double>());
}

// Runs the steps of one seed several times, with grammars compiled anew. Another program on the machine makes a step of
// one run slow, but not that step of every run: so the least time of each step is what the step takes.
Result<Json> measure_seed(const std::shared_ptr<const TokenTrie>& trie, const BenchArguments& bench, uint64_t seed) {
  std::vector<Step> least;
  Percentiles low{1e18, 1e18, 1e18}, high;  // of single runs
  Json runs = Json::array();
  for (int run = 0; run < bench.num_runs; ++run) {
    ASSIGN_OR_RETURN(MaskSteps steps, MaskSteps::create(trie, bench, seed));
    std::vector<double> times;
    for (int i = 0; i < kWarmSteps + kNumSteps; ++i) {
      ASSIGN_OR_RETURN(const Step step, steps.measure());
      if (i < kWarmSteps) continue;
      times.push_back(step.us);
      const size_t index = times.size() - 1;
      if (run == 0) least.push_back(step);
      least[index].us = std::min(least[index].us, step.us);
    }
    const Percentiles one = Percentiles::of(times);
    low = {std::min(low.median, one.median), std::min(low.p90, one.p90), std::min(low.p99, one.p99)};
    high = {std::max(high.median, one.median), std::max(high.p90, one.p90), std::max(high.p99, one.p99)};
    runs.push_back(one.json());
  }
  std::vector<double> times;
  for (const Step& step : least) times.push_back(step.us);
  const Percentiles all = Percentiles::of(times);
  std::printf("seed %llu, masks of a step, least of %d runs: median %.0f us, p90 %.0f us, p99 %.0f us (goal %.0f)\n",
              static_cast<unsigned long long>(seed), bench.num_runs, all.median, all.p90, all.p99, kMaskGoalUs);
  std::printf("  single runs: median %.0f to %.0f us, p90 %.0f to %.0f us, p99 %.0f to %.0f us\n", low.median,
              high.median, low.p90, high.p90, low.p99, high.p99);
  std::ranges::sort(least, {}, &Step::us);
  const Json look = look_of(least), slow_look = look_of(std::span(least).last(kNumSteps / 50));
  print_look("a step", look);
  print_look("one of the slowest 2 %", slow_look);
  return Json{{"seed", seed},          {"num_runs", bench.num_runs},
              {"step_us", all.json()}, {"single_runs_us", std::move(runs)},
              {"step", look},          {"slow_step", slow_look}};
}

}  // namespace

Result<int> run_bench_grammar(const Arguments& arguments) {
  const BenchArguments& bench = arguments.bench;
  ASSIGN_OR_RETURN(const std::unique_ptr<const Tokenizer> tokenizer, Tokenizer::load(arguments.model.model));
  std::vector<std::string> token_bytes(static_cast<size_t>(tokenizer->vocab_size()));
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->is_special(id)) token_bytes[static_cast<size_t>(id)] = tokenizer->token_bytes(id);
  }
  const auto trie = std::make_shared<const TokenTrie>(token_bytes, tokenizer->vocab_size());
  std::printf("%d tokens, %d rows\n", tokenizer->vocab_size(), bench.num_rows);
  Json json{{"vocab_size", tokenizer->vocab_size()},
            {"num_rows", bench.num_rows},
            {"compile_ms", Json::object()},
            {"seeds", Json::array()}};
  for (int which = 0; which <= static_cast<int>(std::size(kSchemas)); ++which) {
    const char* name = which < static_cast<int>(std::size(kSchemas)) ? kSchemas[which].name : "regular expression";
    std::vector<double> times;
    for (int i = 0; i < kNumCompiles; ++i) {
      const auto start = SteadyClock::now();
      RETURN_IF_ERROR(compile_ahead(which, trie, bench.max_ahead_work).status());
      times.push_back(seconds_since(start) * 1e3);
    }
    std::printf("compile, %s: %.1f ms (goal %.0f)\n", name, median(times), kCompileGoalMs);
    json["compile_ms"][name] = median(times);
  }
  for (const uint64_t seed : bench.seeds) {
    ASSIGN_OR_RETURN(Json measured, measure_seed(trie, bench, seed));
    json["seeds"].push_back(std::move(measured));
  }
  if (bench.output_json.empty()) return 0;
  std::ofstream out(bench.output_json);
  out << json.dump(2) << "\n";
  if (!out) return invalid_argument("--output-json: {} cannot be written", bench.output_json);
  return 0;
}

}  // namespace spate
