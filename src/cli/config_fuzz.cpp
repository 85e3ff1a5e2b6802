// libFuzzer target: any bytes as the file of --config or --mock-script, or as the value of --speculative-config or
// --pooler-config, end in arguments or in one Status whose message says where. The first byte chooses. Seeds:
// test/fuzz/config.  fuzz/config_fuzz -max_len=4096 <corpus> test/fuzz/config
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "cli/config_file.h"
#include "cli/mock_argument.h"
#include "cli/pooling_argument.h"
#include "cli/speculative_argument.h"

namespace {

// A file of these bytes, in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", 0)) {
    CHECK(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

void check(const spate::Status& status, std::string_view begin) {
  if (!status.ok() && !status.message().starts_with(begin)) std::abort();
}

// Flags of every shape that `serve` has.
void read_config(const std::string& path) {
  CLI::App app;
  std::string config, model_name, speculative;
  std::vector<std::string> models, keys;
  int port = 0;
  double share = 0;
  bool cache = true;
  app.add_option("--config", config);
  app.add_option("--model", models)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--api-key", keys)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--port,--p", port)
      ->check(CLI::Range(0, 65535))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--kv-cache-share", share)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--speculative-config", speculative)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", cache);
  std::map<std::string, std::string> sources;
  std::vector<std::string> args;
  const spate::Status status = spate::read_config_file(path, app, sources, args);
  const std::string name = path.substr(path.rfind('/') + 1);
  if (!status.ok() && status.message().find(name + ":") == std::string::npos &&
      status.message().find(path) == std::string::npos) {
    std::abort();
  }
  if (!status.ok()) return;
  try {
    std::reverse(args.begin(), args.end());
    app.parse(args);
  } catch (const CLI::ParseError&) {
    return;
  }
  check(spate::parse_speculative_config(speculative).status(), "");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      read_config(MemoryFile(text).path());
      break;
    case 1:
      check(spate::read_mock_script(MemoryFile(text).path()).status(), "--mock-script ");
      break;
    case 2:
      check(spate::parse_speculative_config(text).status(), "");
      break;
    case 3:
      check(spate::parse_pooler_config(text).status(), "--pooler-config");
      break;
  }
  return 0;
}
