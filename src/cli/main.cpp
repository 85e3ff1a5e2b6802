// spate: the command line. Flags -> Arguments -> one command.
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "backend/registry/registry.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/find_models.h"
#include "cli/serving.h"

namespace spate {
namespace {

Result<int> dispatch(Arguments& arguments) {
  if (arguments.command == "serve") return run_serve(arguments);
  if (arguments.command == "run") return run_deployment(arguments);
  if (arguments.chat.url.empty()) RETURN_IF_ERROR(find_models(arguments.model));
  if (arguments.command == "chat") return run_chat(arguments);
  if (arguments.command == "generate") return run_generate(arguments);
  if (arguments.command == "eval") return run_eval(arguments);
  if (arguments.command == "quantize") return run_quantize(arguments);
  if (arguments.command == "inspect") return run_inspect(arguments);
  if (arguments.command == "self-test") return run_self_test(arguments);
  if (arguments.command == "kernels") return run_kernels(arguments);
  return run_bench(arguments);
}

// All of stdout is written, or nobody reads it any more (`| head`), or there is none (`>&-`).
bool stdout_is_whole() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  pollfd descriptor{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&descriptor, 1, 0) == 1 && (descriptor.revents & (POLLERR | POLLNVAL)) != 0;
}

int run(int argc, char** argv) {
  Result<Arguments> parsed = parse_arguments(argc, argv);
  if (!parsed.ok()) {
    std::fprintf(stderr, "spate: %s\nRun with --help for more information.\n", parsed.status().message().c_str());
    return 2;
  }
  Arguments& arguments = *parsed;
  if (arguments.command.empty()) return 0;
  if (arguments.print_config) {
    for (const std::string& line : arguments.config_lines) std::printf("%s\n", line.c_str());
    return 0;
  }
  set_log_level(parse_log_level(arguments.log_level));
  set_log_format(arguments.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
  if (const char* key = std::getenv("SPATE_API_KEY"); key != nullptr && arguments.serve.api_keys.empty()) {
    arguments.serve.api_keys.emplace_back(key);
  }
  for (const std::string& note : arguments.notes) log_info("cli", "{}", note);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) is an error of its write
  const Result<int> code = dispatch(arguments);
  const bool has_result = arguments.command != "serve" && arguments.command != "run";
  if (code.ok() && *code == 0 && has_result && !stdout_is_whole()) {
    std::fprintf(stderr, "spate: the output is not complete: stdout cannot be written (is the disk full?)\n");
    return 1;
  }
  if (code.ok()) return *code;
  std::fprintf(stderr, "spate: %s\n", code.status().message().c_str());
  return 1;
}

}  // namespace
}  // namespace spate

int main(int argc, char** argv) {
  if (const std::optional<int> code = spate::run_back_end_worker(argc, argv)) return *code;
  try {
    return spate::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "spate: out of memory\n");
  } catch (const std::system_error& e) {
    const bool is_thread = e.code() == std::errc::resource_unavailable_try_again;
    std::fprintf(stderr, "spate: %s%s\n", e.what(),
                 is_thread
                     ? ": the system lends no more threads (ulimit -u, TasksMax of systemd, pids of a container), or "
                       "no memory for their stacks"
                     : "");
  } catch (const std::exception& e) {  // of the standard library: a file that fails while it is read
    std::fprintf(stderr, "spate: %s\n", e.what());
  }
  return 1;
}
