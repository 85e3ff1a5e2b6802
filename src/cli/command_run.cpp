// spate run: engines of a deployment file as processes under supervision, their graphs behind one address, until
// SIGTERM.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/engine_process.h"
#include "cli/gateway.h"

namespace spate {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// nohup wants this. (A script that starts a program in the background has it ignore SIGINT, which is obeyed all the
// same, as by `spate serve`.)
bool is_hangup_ignored() {
  struct sigaction action {};
  return ::sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Signals reach sigtimedwait() below and no thread that is started from now on.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kSignals) {
    if (number != SIGHUP || !is_hangup_ignored()) sigaddset(&set, number);
  }
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Until a signal asks for the end (true) or an engine is given up (false). SIGUSR1 is passed on.
bool wait_for_signal(const sigset_t& signals, const std::vector<std::unique_ptr<EngineProcess>>& engines) {
  while (true) {
    const timespec interval{.tv_sec = 0, .tv_nsec = 100'000'000};
    const int number = sigtimedwait(&signals, nullptr, &interval);
    if (number > 0 && number != SIGUSR1) return true;
    for (const auto& engine : engines) {
      if (number == SIGUSR1) engine->request_state();
      if (engine->state() == EngineState::kGivenUp) return false;
    }
  }
}

}  // namespace

Result<int> run_deployment(const Arguments& arguments) {
  ASSIGN_OR_RETURN(Deployment deployment, read_deployment(arguments.run.file));
  const std::vector<std::string>& keys = arguments.serve.api_keys;  // $SPATE_API_KEY
  RETURN_IF_ERROR(use_environment_key(deployment, keys.empty() ? "" : keys.front()));
  const std::vector<std::string> lines = describe_deployment(deployment);
  if (arguments.run.dry_run) {
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    return 0;
  }
  for (const std::string& line : lines) log_info("run", "{}", line);
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return internal_error("/proc/self/exe: {}", error.message());

  const sigset_t signals = block_signals();
  std::vector<std::unique_ptr<EngineProcess>> engines;
  std::vector<const EngineProcess*> seen;
  for (const EngineSpec& spec : deployment.engines) {
    engines.push_back(std::make_unique<EngineProcess>(spec, deployment.restart, deployment.shutdown_timeout, program));
    seen.push_back(engines.back().get());
  }
  std::unique_ptr<Gateway> gateway;
  if (deployment.has_gateway) {
    gateway = std::make_unique<Gateway>(deployment, seen);
    RETURN_IF_ERROR(gateway->listen());
    gateway->start();
    log_info("run", "gateway listening on http://{}:{}", deployment.gateway_host, gateway->port());
  }
  const bool is_asked = wait_for_signal(signals, engines);
  log_info("run", "{}", is_asked ? "shutting down" : "an engine is given up: shutting down");
  // In the reverse order of their start: nobody calls what is gone.
  if (gateway) gateway->stop(deployment.shutdown_timeout);
  while (!engines.empty()) {
    engines.back()->stop();
    engines.pop_back();
  }
  return is_asked ? 0 : 1;
}

}  // namespace spate
