// bench_grammar_test.cpp
//
// Goal    The figures of spate bench grammar are those of the same steps in every run, and say what they claim.
// Method  The command itself on a small vocabulary, few rows, two runs; what it writes is read.
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test.h"
#include "base/test_support.h"
#include "cli/commands.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

Json grammar_figures(std::vector<uint64_t> seeds, int num_runs) {
  const TempDir dir;
  Arguments arguments;
  arguments.model.model = (repo_root() / "models/mini-qwen3").string();
  arguments.bench.num_rows = 12;
  arguments.bench.seeds = std::move(seeds);
  arguments.bench.num_runs = num_runs;
  arguments.bench.max_ahead_work = 20'000;
  arguments.bench.output_json = (dir.path() / "figures.json").string();
  const Result<int> code = run_bench_grammar(arguments);
  INFO(code.status().message());
  REQUIRE(code.ok());
  std::ifstream in(arguments.bench.output_json);
  return Json::parse(in);
}

}  // namespace

TEST_CASE("bench grammar: a seed's steps are the same in every run, and the least times are below those of each") {
  const Json both = grammar_figures({1, 2}, 3), again = grammar_figures({2}, 1);
  REQUIRE(both["compile_ms"].size() == 6);
  REQUIRE(both["seeds"].size() == 2);
  CHECK(both["seeds"][1]["step"] == again["seeds"][0]["step"]);  // counts, whatever ran before
  CHECK(both["seeds"][0]["step"] != both["seeds"][1]["step"]);
  for (const Json& seed : both["seeds"]) {
    const Json& least = seed["step_us"];
    CHECK(least["median"].get<double>() > 0);
    CHECK(least["median"].get<double>() <= least["p90"].get<double>());
    CHECK(least["p90"].get<double>() <= least["p99"].get<double>());
    REQUIRE(seed["single_runs_us"].size() == 3);
    for (const Json& run : seed["single_runs_us"]) {
      for (const char* name : {"median", "p90", "p99"}) CHECK(least[name].get<double>() <= run[name].get<double>());
    }
    const Json& look = seed["step"];
    CHECK(look["num_bytes"].get<double>() >= 12);  // every row takes a token
    CHECK(look["num_masks_made"].get<double>() <= look["num_masks_found"].get<double>());
    CHECK(look["num_units"].get<double>() > 0);
  }
}

}  // namespace spate
