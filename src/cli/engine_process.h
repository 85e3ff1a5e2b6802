// EngineProcess: one `spate serve` under supervision: started, its log passed on, asked for its health, started again
// when it ends or hangs, drained at the end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"
#include "cli/deployment.h"
#include "cli/sse_client.h"

namespace spate {

enum class EngineState { kStarting, kReady, kBackingOff, kStopped, kGivenUp };
std::string_view engine_state_name(EngineState state);  // "starting"

class EngineProcess {
 public:
  // `program`: its path.
  EngineProcess(const EngineSpec& spec, const RestartPolicy& policy, double shutdown_timeout, std::string program);
  ~EngineProcess();  // stop()
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  const EngineSpec& spec() const { return spec_; }
  EngineState state() const { return state_; }
  int num_restarts() const { return num_restarts_; }  // since the start
  const HttpTarget& target() const { return target_; }
  // The engine writes its state to the log, soon and if it is ready.
  void request_state() { wants_state_ = true; }
  // SIGTERM; killed when it has not ended within shutdown_timeout. Waits for its end.
  void stop();

 private:
  void run();
  void run_process();
  bool wait(double seconds);  // true: stop() has been called

  const EngineSpec spec_;
  const RestartPolicy policy_;
  const double shutdown_timeout_;
  const std::string program_;
  HttpTarget target_;
  std::atomic<EngineState> state_{EngineState::kStarting};
  std::atomic<int> num_restarts_{0};
  std::atomic<bool> is_stopping_{false}, wants_state_{false};
  double healthy_seconds_ = 0;  // of the process that ran last; the thread's own
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mutex stop_mutex_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace spate
