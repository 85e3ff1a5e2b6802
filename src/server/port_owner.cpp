#include "server/port_owner.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "base/system_file.h"

namespace spate {
namespace {

constexpr const char* kListenState = "0A";

// The inodes of the sockets that listen on `port`, from one of the kernel's tables. A row is
//   sl local_address:port rem_address:port state tx:rx tr:when retransmits uid timeout inode ...
void collect_listener_inodes(const char* table, int port, std::set<std::string>& inodes) {
  std::ifstream file(table);
  std::string line;
  const std::string suffix = fmt::format(":{:04X}", port);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    if (state == kListenState && local.ends_with(suffix)) inodes.insert("socket:[" + inode + "]");
  }
}

bool has_open(const std::filesystem::path& process, const std::set<std::string>& inodes) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(process / "fd", error), end; !error && it != end; it.increment(error)) {
    std::error_code link_error;
    if (inodes.count(std::filesystem::read_symlink(it->path(), link_error).string()) > 0) return true;
  }
  return false;
}

std::string command_line(const std::filesystem::path& process) {
  std::string text = read_system_file(process / "cmdline");  // fails where the process has just ended
  while (!text.empty() && text.back() == '\0') text.pop_back();
  // Only the program's name and its first arguments; an --api-key further on is nobody's business.
  std::replace(text.begin(), text.end(), '\0', ' ');
  const size_t key = text.find("key");
  if (key != std::string::npos) text.resize(key);
  if (text.size() > 80) text.resize(80);
  return text;
}

}  // namespace

std::string find_port_owner(int port) {
  std::set<std::string> inodes;
  collect_listener_inodes("/proc/net/tcp", port, inodes);
  collect_listener_inodes("/proc/net/tcp6", port, inodes);
  if (inodes.empty()) return {};
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (has_open(it->path(), inodes)) return fmt::format("process {} ({})", pid, command_line(it->path()));
  }
  return {};
}

}  // namespace spate
