#include "base/system_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/control_groups.h"
#include "base/system_file.h"

namespace spate {
namespace {

// A file that holds one number; nothing for "max" or no file.
std::optional<int64_t> number_in(const std::string& path) {
  const std::string text = read_system_file(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The number behind `key` at the beginning of a line: "MemTotal:   123 kB", "inactive_file 123".
int64_t number_after(std::string_view text, std::string_view key) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    int64_t value = 0;
    std::from_chars(line.data(), line.data() + line.size(), value);
    return value;
  }
  return 0;
}

// Of one group, whichever version has written its files.
struct GroupMemory {
  std::optional<int64_t> limit, used;
  int64_t file_bytes = 0;  // of `used`: pages of files, which go when others are wanted
};

GroupMemory group_memory(const std::string& folder) {
  GroupMemory group;
  const std::string stat = read_system_file(folder + "/memory.stat");
  for (const char* name : {"/memory.max", "/memory.high"}) {  // high slows down what max would kill
    const std::optional<int64_t> limit = number_in(folder + name);
    if (limit && (!group.limit || *limit < *group.limit)) group.limit = limit;
  }
  if (group.limit) {
    group.used = number_in(folder + "/memory.current");
    group.file_bytes = number_after(stat, "inactive_file ") + number_after(stat, "active_file ");
    return group;
  }
  group.limit = number_in(folder + "/memory.limit_in_bytes");  // without one a number beyond every machine
  group.used = number_in(folder + "/memory.usage_in_bytes");
  group.file_bytes = number_after(stat, "total_inactive_file ") + number_after(stat, "total_active_file ");
  return group;
}

// ulimit -v and -d: a mapping beyond them fails.
void keep_within(__rlimit_resource resource, int64_t used_bytes, SystemMemory& memory) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur > INT64_MAX) return;
  const auto limit_bytes = static_cast<int64_t>(limit.rlim_cur);
  memory.total_bytes = std::min(memory.total_bytes, limit_bytes);
  memory.available_bytes = std::min(memory.available_bytes, std::max<int64_t>(0, limit_bytes - used_bytes));
}

}  // namespace

SystemMemory system_memory(const std::string& meminfo, const std::string& membership, const std::string& root) {
  SystemMemory memory{.total_bytes = number_after(meminfo, "MemTotal:") * 1024,
                      .available_bytes = number_after(meminfo, "MemAvailable:") * 1024};
  for (const std::string& folder : control_group_folders(membership, root, "memory")) {
    const GroupMemory group = group_memory(folder);
    if (!group.limit || !group.used) continue;
    const int64_t in_use = std::max<int64_t>(0, *group.used - group.file_bytes);
    memory.total_bytes = std::min(memory.total_bytes, *group.limit);
    memory.available_bytes = std::min(memory.available_bytes, std::max<int64_t>(0, *group.limit - in_use));
  }
  return memory;
}

SystemMemory system_memory() {
  std::string meminfo = read_system_file("/proc/meminfo");
  if (number_after(meminfo, "MemTotal:") == 0 || number_after(meminfo, "MemAvailable:") == 0) {
    const long page_kib = ::sysconf(_SC_PAGESIZE) / 1024;
    meminfo = "MemTotal: " + std::to_string(::sysconf(_SC_PHYS_PAGES) * page_kib) +
              "\nMemAvailable: " + std::to_string(::sysconf(_SC_AVPHYS_PAGES) * page_kib) + "\n";
  }
  SystemMemory memory = system_memory(meminfo, read_system_file("/proc/self/cgroup"), "/sys/fs/cgroup");
  const std::string status = read_system_file("/proc/self/status");
  keep_within(RLIMIT_AS, number_after(status, "VmSize:") * 1024, memory);
  keep_within(RLIMIT_DATA, number_after(status, "VmData:") * 1024, memory);
  return memory;
}

}  // namespace spate
