#include "cli/engine_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/log.h"

extern char** environ;

namespace spate {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kPollMs = 50;
constexpr double kHealthTimeout = 5;  // seconds of one call
constexpr size_t kMaxLogLine = 64 << 10;

double seconds_after(SteadyClock::time_point time) {
  return std::chrono::duration<double>(SteadyClock::now() - time).count();
}

// What the child needs, made before fork(): between it and exec nothing may allocate.
struct Child {
  std::vector<std::string> words;
  std::vector<char*> argv, envp;
  cpu_set_t cores;
  bool has_cores = false;

  Child(const EngineSpec& spec, const std::string& program) {
    words = {program, "serve"};
    words.insert(words.end(), spec.flags.begin(), spec.flags.end());
    const size_t num_args = words.size();
    for (const auto& [key, value] : spec.environment) words.push_back(key + "=" + value);
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view entry = *variable;
      const bool is_replaced = std::any_of(spec.environment.begin(), spec.environment.end(), [&](const auto& own) {
        return entry.substr(0, entry.find('=')) == own.first;
      });
      if (!is_replaced) words.emplace_back(entry);
    }
    for (size_t i = 0; i < words.size(); ++i) (i < num_args ? argv : envp).push_back(words[i].data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    CPU_ZERO(&cores);
    for (const int core : spec.cores) CPU_SET(static_cast<size_t>(core), &cores);
    has_cores = !spec.cores.empty();
  }

  // What the supervisor has open, the gateway's port and its clients among it, is not the engine's to hold.
  static void close_all_others() {
    constexpr int kFirst = STDERR_FILENO + 1, kMostWithoutCloseRange = 4096;
    if (::close_range(kFirst, ~0U, 0) == 0) return;
    for (int fd = kFirst; fd < kMostWithoutCloseRange; ++fd) ::close(fd);  // Linux before 5.9
  }

  [[noreturn]] void exec(int log_fd, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a supervisor that is killed leaves no engine behind
    if (::getppid() != parent) ::_exit(1);
    ::setpgid(0, 0);  // Ctrl-C in the terminal is the supervisor's, who drains in order
    if (has_cores) ::sched_setaffinity(0, sizeof cores, &cores);
    ::dup2(log_fd, STDOUT_FILENO);
    ::dup2(log_fd, STDERR_FILENO);
    close_all_others();
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
};

// Passes the lines of an engine on, each with its name in front.
class LogPipe {
 public:
  explicit LogPipe(std::string name) : prefix_("[" + std::move(name) + "] ") {}
  ~LogPipe() {
    if (fd_ >= 0) ::close(fd_);
  }
  // The end that the child writes to.
  Result<int> open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return internal_error("pipe: {}", std::strerror(errno));
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fd_ = ends[0];
    return ends[1];
  }
  void wait_and_pass(int milliseconds) {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&waiting, fd_ < 0 ? 0 : 1, milliseconds);
    pass();
    if ((waiting.revents & POLLHUP) != 0) ::poll(nullptr, 0, milliseconds);  // it has closed its log and still runs
  }
  // Of a process that has ended: a last line may lack its end.
  void pass_rest() {
    pass();
    if (line_.empty()) return;
    const std::string out = prefix_ + std::exchange(line_, {}) + "\n";
    (void)!::write(STDERR_FILENO, out.data(), out.size());
  }
  void pass() {
    char bytes[16384];
    for (ssize_t n; fd_ >= 0 && (n = ::read(fd_, bytes, sizeof bytes)) > 0;) {
      line_.append(bytes, static_cast<size_t>(n));
      for (size_t end; (end = line_.find('\n')) != std::string::npos || line_.size() > kMaxLogLine;) {
        end = std::min(end, line_.size());
        const std::string out = prefix_ + line_.substr(0, end) + "\n";
        line_.erase(0, end + 1);
        (void)!::write(STDERR_FILENO, out.data(), out.size());
      }
    }
  }

 private:
  const std::string prefix_;
  int fd_ = -1;
  std::string line_;
};

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with code {}", WEXITSTATUS(status));
}

}  // namespace

std::string_view engine_state_name(EngineState state) {
  switch (state) {
    case EngineState::kStarting:
      return "starting";
    case EngineState::kReady:
      return "ready";
    case EngineState::kBackingOff:
      return "backing off";
    case EngineState::kStopped:
      return "stopped";
    case EngineState::kGivenUp:
      return "given up";
  }
  return "";
}

EngineProcess::EngineProcess(const EngineSpec& spec, const RestartPolicy& policy, double shutdown_timeout,
                             std::string program)
    : spec_(spec), policy_(policy), shutdown_timeout_(shutdown_timeout), program_(std::move(program)) {
  // An address that means "all of this machine" is reached at its loopback.
  target_.host = spec.host == "0.0.0.0" ? "127.0.0.1" : spec.host == "::" ? "::1" : spec.host;
  target_.port = spec.port;
  target_.api_key = spec.api_key;
  for (const std::string& flag : spec.flags) {
    if (flag.starts_with("--root-path=")) target_.path_prefix = flag.substr(12);
  }
  thread_ = std::thread([this] { run(); });
}

EngineProcess::~EngineProcess() { stop(); }

void EngineProcess::stop() {
  const std::lock_guard stop_lock(stop_mutex_);
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool EngineProcess::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_stopping_.load(); });
}

void EngineProcess::run() {
  double delay = policy_.first_delay;
  int num_in_row = 0;
  while (!is_stopping_) {
    state_ = EngineState::kStarting;
    run_process();
    if (is_stopping_) break;
    if (healthy_seconds_ >= policy_.max_delay) {
      num_in_row = 0;
      delay = policy_.first_delay;
    }
    if (num_in_row >= policy_.max_restarts) {
      log_error("run", "{}: started {} times in a row, given up", spec_.serve_id, num_in_row + 1);
      state_ = EngineState::kGivenUp;
      return;
    }
    log_warning("run", "{}: starts again in {:g} s", spec_.serve_id, delay);
    state_ = EngineState::kBackingOff;
    if (wait(delay)) break;
    ++num_in_row;
    ++num_restarts_;
    delay = std::min(2 * delay, policy_.max_delay);
  }
  state_ = EngineState::kStopped;
}

// From the start of the process to its end.
void EngineProcess::run_process() {
  healthy_seconds_ = 0;
  Child child(spec_, program_);
  LogPipe log(spec_.serve_id);
  const Result<int> log_end = log.open();
  if (!log_end.ok()) return log_error("run", "{}: {}", spec_.serve_id, log_end.status().message());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) child.exec(*log_end, parent);
  ::close(*log_end);
  if (pid < 0) return log_error("run", "{}: cannot start: {}", spec_.serve_id, std::strerror(errno));
  log_info("run", "{}: process {}", spec_.serve_id, pid);

  const auto start = SteadyClock::now();
  SteadyClock::time_point ready_since, next_health = start, kill_at = SteadyClock::time_point::max();
  bool is_ending = false;
  int num_failures = 0;
  const auto end_process = [&](int signal) {
    ::kill(pid, signal);
    if (is_ending) return;
    is_ending = true;
    kill_at = SteadyClock::now() +
              std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(shutdown_timeout_));
  };
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    log.wait_and_pass(kPollMs);
    const auto now = SteadyClock::now();
    if (is_stopping_ && !is_ending) end_process(SIGTERM);
    // Before that the signal could meet a process without its handler, and end it.
    if (wants_state_.exchange(false) && state_ == EngineState::kReady) ::kill(pid, SIGUSR1);
    if (now >= kill_at) {
      log_warning("run", "{}: has not ended within {:g} s and is killed", spec_.serve_id, shutdown_timeout_);
      kill_at = SteadyClock::time_point::max();
      ::kill(pid, SIGKILL);
    }
    if (is_ending || now < next_health) continue;
    const Result<HttpReply> reply = http_call(target_, state_ == EngineState::kReady ? "/livez" : "/health", "", {},
                                              [&] { return is_stopping_ || seconds_after(now) > kHealthTimeout; });
    next_health = SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(
                                           std::chrono::duration<double>(policy_.health_interval));
    if (reply.ok() && reply->status == 200) {
      num_failures = 0;
      if (state_ == EngineState::kReady) continue;
      ready_since = SteadyClock::now();
      log_info("run", "{}: ready after {:.1f} s", spec_.serve_id, seconds_after(start));
      state_ = EngineState::kReady;
    } else if (state_ == EngineState::kReady && ++num_failures >= policy_.max_failures) {
      log_error("run", "{}: {} calls of its health in a row have failed, it is ended", spec_.serve_id, num_failures);
      end_process(SIGTERM);
    } else if (state_ != EngineState::kReady && seconds_after(start) > policy_.start_timeout) {
      log_error("run", "{}: not ready after {:g} s, it is ended", spec_.serve_id, policy_.start_timeout);
      end_process(SIGTERM);
    }
  }
  log.pass_rest();
  if (ready_since != SteadyClock::time_point()) healthy_seconds_ = seconds_after(ready_since);
  if (is_stopping_) {
    log_info("run", "{}: {}", spec_.serve_id, describe_end(status));
  } else {
    log_error("run", "{}: {} after {:.1f} s", spec_.serve_id, describe_end(status), seconds_after(start));
  }
}

}  // namespace spate
