// Goal    A file of flags stands below the command line; its errors name the key and the line.
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments_test_support.h"

namespace spate {

TEST_CASE("arguments: --config is below the command line, knows sections, names unknown keys with their line") {
  const TempDir dir;
  const std::string good = write_file(dir, "good.yaml", "server:\n  port: 8123\n  host: 0.0.0.0\nmax_num_seqs: 7\nasync-scheduling: false\n");
  const auto args = parse({"serve", "m", "--config", good.c_str(), "--port", "9000"});
  REQUIRE(args.ok());
  CHECK(args->serve.port == 9000);
  CHECK(args->serve.host == "0.0.0.0");
  CHECK(args->model.max_num_seqs == 7);
  CHECK_FALSE(args->model.async_scheduling);
  const auto has_line = [&](const std::string& line) {
    return std::find(args->config_lines.begin(), args->config_lines.end(), line) != args->config_lines.end();
  };
  CHECK(has_line("port: 9000  # cli"));
  CHECK(has_line("host: 0.0.0.0  # good.yaml:3"));
  CHECK(has_line("block-size: 16  # default"));

  const std::string bad = write_file(dir, "bad.yaml", "port: 1\nmax-modellen: 5\n");
  const std::string message = parse({"serve", "m", "--config", bad.c_str()}).status().message();
  CHECK(message == "bad.yaml:2: unknown key 'max-modellen'; the nearest is 'max-model-len'");
  const auto message_of = [&](const char* text) {
    const std::string file = write_file(dir, "twice.yaml", text);
    return std::string(parse({"serve", "m", "--config", file.c_str()}).status().message());
  };
  CHECK(message_of("port: 1\nserver:\n  port: 2\n") == "twice.yaml:3: 'port' stands at twice.yaml:1 already");
  CHECK(message_of("port: [1, 2]\n") == "twice.yaml:1: 'port' takes one value, got [1, 2]");
  CHECK(message_of("config: x\n") == "twice.yaml:1: 'config' belongs on the command line");
  CHECK(message_of("server: &a\n  more: *a\n") == "twice.yaml:2: nested deeper than 64 levels, or an alias of itself");
  CHECK(message_of("port: 1\n---\nport: 2\n") == "twice.yaml:3: a second document in the file");
  CHECK(message_of("\"a\"\"\"b\n") == "twice.yaml:1: a second document in the file");
  CHECK(message_of("? [a]\n: 1\n") == "twice.yaml:1: a key must be a text");
  CHECK(message_of("port: \"1\\02\"\n") == "twice.yaml:1: a text with a NUL character");
  CHECK(message_of(std::string(5 << 20, '#').c_str()) == "twice.yaml:1: the file has more than 4194304 bytes");
  const std::string pipe = dir.path() / "pipe.yaml";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] { std::ofstream(pipe) << "port: 7\n"; });
  const Result<Arguments> piped = parse({"serve", "m", "--config", pipe.c_str()});
  writer.join();
  REQUIRE(piped.ok());
  CHECK(piped->serve.port == 7);
  const std::string broken = write_file(dir, "broken.yaml", "port: [1\n");
  CHECK(parse({"serve", "m", "--config", broken.c_str()}).status().message().find("broken.yaml:") != std::string::npos);
  CHECK(parse({"serve", "m", "--config", "/no/such/file"}).status().message().find("cannot be read") != std::string::npos);
  const std::string folder = dir.path().string();
  CHECK(parse({"serve", "m", "--config", folder.c_str()}).status().message() == "--config " + folder + ": is a folder, not a file");
}

TEST_CASE("arguments: a damaged --config ends in arguments or in one line of an error, whatever the damage") {
  const TempDir dir;
  const std::string whole =
      "server: {port: 8123, api_key: [a, b]}\nmodel:\n  - models/a\n  - {name: b, path: models/b, alias: [x, y]}\n"
      "speculative-config: {method: ngram, num_speculative_tokens: 3}\nmax_model_len: 4k\n";
  const uint64_t seed = test_seed();
  Rng rng(seed);
  const std::string_view pieces = "{}[]:,-&*!|>'\"%@\n\t #\\0~?<";
  for (int round = 0; round < 300; ++round) {
    std::string text = whole;
    for (uint64_t i = 0; i <= rng.below(4); ++i) {
      const size_t at = rng.below(text.size());
      const char piece = rng.below(4) == 0 ? static_cast<char>(rng.below(256)) : pieces[rng.below(pieces.size())];
      if (rng.below(3) == 0) {
        text.erase(at, 1 + rng.below(8));
      } else if (rng.below(2) == 0) {
        text.insert(at, 1 + rng.below(3), piece);
      } else {
        text[at] = piece;
      }
    }
    const std::string path = write_file(dir, "damaged.yaml", text);
    INFO("seed ", seed, " round ", round, ": ", text);
    const auto args = parse({"serve", "--config", path.c_str()});
    if (!args.ok()) CHECK(!args.status().message().empty());
  }
}

}  // namespace spate
