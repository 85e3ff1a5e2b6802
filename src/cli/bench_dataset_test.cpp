// Goal    The data sets of `spate bench serve` give the prompts that vLLM's give, and base URLs are read as its.
#include <map>

#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments_test_support.h"
#include "cli/bench_dataset.h"
#include "cli/sse_client.h"

namespace spate {

TEST_CASE("bench serve: prompts of the data sets") {
  const TempDir dir;
  int num_counted = 0;
  const CountTokens count = [&](const std::string& text) -> Result<int64_t> { return ++num_counted, static_cast<int64_t>(text.size()); };
  BenchArguments bench;
  bench.input_len = 4;
  bench.output_len = 3;
  bench.random_prefix_len = 2;
  const auto random = make_bench_prompts(bench, false, 50, 5, 1, count);
  REQUIRE(random.ok());
  REQUIRE(random->size() == 5);
  CHECK((*random)[4].token_ids.size() == 6);
  CHECK((*random)[4].token_ids[1] == (*random)[0].token_ids[1]);
  CHECK((*make_bench_prompts(bench, true, 50, 1, 1, count))[0].token_ids.empty());

  bench.dataset_name = "prefix_repetition";
  bench.prefix_len = 3;
  bench.suffix_len = 2;
  bench.num_prefixes = 2;
  const auto repeated = make_bench_prompts(bench, false, 50, 8, 1, count);
  REQUIRE(repeated.ok());
  std::map<std::vector<int64_t>, int> prefixes;
  for (const BenchPrompt& prompt : *repeated) ++prefixes[{prompt.token_ids.begin(), prompt.token_ids.begin() + 3}];
  CHECK(prefixes.size() == 2);

  bench.output_len = 0;
  bench.dataset_name = "sharegpt";
  bench.dataset_path = write_file(dir, "s.json", R"([{"conversations":[{"value":"ask"},{"value":"reply"}]},{"x":1}])");
  const auto shared = make_bench_prompts(bench, true, 50, 3, 1, count);
  REQUIRE(shared.ok());
  REQUIRE(shared->size() == 3);
  CHECK((*shared)[2].text == "ask");
  CHECK((*shared)[2].output_len == 5);
  CHECK(num_counted == 1);
  bench.dataset_name = "custom";
  bench.dataset_path = write_file(dir, "c.jsonl", "{\"prompt\":\"p\",\"output_tokens\":7}\n");
  CHECK((*make_bench_prompts(bench, true, 50, 1, 1, count))[0].output_len == 7);
  bench.dataset_path = write_file(dir, "bad.jsonl", "{\"prompt\":\"p\"}\n[]\n{\n");
  CHECK(make_bench_prompts(bench, true, 50, 1, 1, count).status().message().find("bad.jsonl:2: not a JSON object") != std::string::npos);
  bench.dataset_path = write_file(dir, "none.jsonl", "{\"text\":\"p\"}\n");
  CHECK(make_bench_prompts(bench, true, 50, 1, 1, count).status().message().find("no record is of the form") != std::string::npos);
  bench.dataset_path = "";
  CHECK(make_bench_prompts(bench, true, 50, 1, 1, count).status().message().find("needs --dataset-path") != std::string::npos);
}

TEST_CASE("bench serve: base urls") {
  CHECK(parse_base_url("http://10.0.0.1:81/v1")->port == 81);
  CHECK(parse_base_url("http://10.0.0.1:81/v1")->path_prefix.empty());
  CHECK(parse_base_url("http://host/llm/v1/")->path_prefix == "/llm");
  CHECK(parse_base_url("http://[::1]:81/")->host == "::1");
  CHECK(parse_base_url("http://[::1]:81/")->port == 81);
  CHECK(parse_base_url("http://[::1]")->port == 80);
  CHECK_FALSE(parse_base_url("http://:81").ok());
  CHECK(parse_base_url("http://host")->port == 80);
  CHECK_FALSE(parse_base_url("https://host").ok());
  for (const char* url : {"http://host:x", "http://host:80x", "http://host:99999999999", "http://me@host:1",
                          "http://ho st:1", "http://host:1/a\r\nX: y"}) {
    CHECK_FALSE(parse_base_url(url).ok());
  }
}

}  // namespace spate
