// Goal    Memory that a process may take is the machine's or what its tightest control group leaves, whichever is less;
//         pages of files in a group count as free.
// Method  Invented files of the kernel; the real ones for what holds on every machine.
#include "base/system_memory.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/control_groups.h"
#include "base/test.h"
#include "base/test_support.h"

namespace spate {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
const std::string kMeminfo = "MemTotal:       16777216 kB\nMemFree:          102400 kB\nMemAvailable:    8388608 kB\n";

// A line of /proc/self/status.
rlim_t status_kib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    rlim_t kib = 0;
    if (word == key && status >> kib) return kib;
  }
  return 0;
}

struct Groups {
  TempDir dir;
  void write(const std::string& file, const std::string& text) const {
    const auto path = dir.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  SystemMemory of(const std::string& membership) const {
    return system_memory(kMeminfo, membership, dir.path().string());
  }
};

TEST_CASE("memory: without limits it is the machine's, with what the kernel would give back") {
  const Groups groups;
  for (const char* membership : {"", "0::/\n", "0::/elsewhere\n", "nonsense\n"}) {
    CHECK(groups.of(membership).total_bytes == 16384 * kMib);
    CHECK(groups.of(membership).available_bytes == 8192 * kMib);
  }
  groups.write("pod/memory.max", "max\n");
  groups.write("pod/memory.current", std::to_string(300 * kMib));
  CHECK(groups.of("0::/pod\n").available_bytes == 8192 * kMib);
  CHECK(system_memory("", "", "/none").total_bytes == 0);
  // What opens and cannot be read is not there: files of a group that was removed are like this folder.
  std::filesystem::create_directories(groups.dir.path() / "removed/memory.max");
  CHECK(groups.of("0::/removed\n").available_bytes == 8192 * kMib);
  CHECK(system_memory().total_bytes >= system_memory().available_bytes);
  CHECK(system_memory().available_bytes > 0);
}

TEST_CASE("memory: a control group of cgroup v2 leaves what is below its limit, its pages of files counted in") {
  const Groups groups;
  groups.write("pod/memory.max", std::to_string(1000 * kMib) + "\n");
  groups.write("pod/memory.current", std::to_string(600 * kMib) + "\n");
  groups.write("pod/memory.stat", "anon 1\ninactive_file " + std::to_string(100 * kMib) + "\nactive_file " +
                                      std::to_string(50 * kMib) + "\n");
  CHECK(groups.of("0::/pod\n").total_bytes == 1000 * kMib);
  CHECK(groups.of("0::/pod\n").available_bytes == 550 * kMib);
  // A group inside it without a limit of its own; one with a lower limit, at which the kernel slows it down.
  groups.write("pod/free/memory.max", "max\n");
  CHECK(groups.of("0::/pod/free\n").available_bytes == 550 * kMib);
  groups.write("pod/slow/memory.max", "max\n");
  groups.write("pod/slow/memory.high", std::to_string(200 * kMib));
  groups.write("pod/slow/memory.current", std::to_string(260 * kMib));
  CHECK(groups.of("0::/pod/slow\n").total_bytes == 200 * kMib);
  CHECK(groups.of("0::/pod/slow\n").available_bytes == 0);
  // As a container sees itself: it is the root, whatever path the host names.
  groups.write("memory.max", std::to_string(700 * kMib));
  groups.write("memory.current", "0\n");
  CHECK(groups.of("0::/docker/0123\n").available_bytes == 700 * kMib);
}

TEST_CASE("memory: cgroup v1, whose number for no limit is beyond every machine") {
  const Groups groups;
  groups.write("memory/slice/memory.limit_in_bytes", std::to_string(512 * kMib));
  groups.write("memory/slice/memory.usage_in_bytes", std::to_string(200 * kMib));
  groups.write("memory/slice/memory.stat", "inactive_file 7\ntotal_inactive_file " + std::to_string(80 * kMib) + "\n");
  groups.write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  groups.write("memory/memory.usage_in_bytes", std::to_string(9000 * kMib));
  CHECK(groups.of("4:memory:/slice/part\n2:cpu:/\n").total_bytes == 512 * kMib);
  CHECK(groups.of("4:memory:/slice/part\n2:cpu:/\n").available_bytes == 392 * kMib);
  CHECK(groups.of("4:cpu:/slice\n2:memory:/other\n").available_bytes == 8192 * kMib);
}

TEST_CASE("memory: what ulimit -v and -d leave") {
  for (const auto& [resource, used] : {std::pair{RLIMIT_AS, "VmSize:"}, std::pair{RLIMIT_DATA, "VmData:"}}) {
    rlimit before{};
    REQUIRE(::getrlimit(resource, &before) == 0);
    rlimit limit = before;
    limit.rlim_cur = rlim_t{1} << 62;  // more than the machine has
    REQUIRE(::setrlimit(resource, &limit) == 0);
    const int64_t unlimited_bytes = system_memory().available_bytes;
    limit.rlim_cur = status_kib(used) * 1024 + 64 * kMib;
    REQUIRE(::setrlimit(resource, &limit) == 0);
    const SystemMemory memory = system_memory();
    REQUIRE(::setrlimit(resource, &before) == 0);
    CHECK(unlimited_bytes > 64 * kMib);
    CHECK(memory.total_bytes <= static_cast<int64_t>(limit.rlim_cur));
    CHECK(memory.available_bytes <= 64 * kMib);
    CHECK(memory.available_bytes > 32 * kMib);  // what the process took since
  }
}

TEST_CASE("control groups: the own folder comes first, then all above it, of the controller that is asked for") {
  CHECK(control_group_folders("5:memory:/a\n4:cpu,cpuacct:/b/c/\n0::/d\n", "/g", "cpu") ==
        std::vector<std::string>{"/g/cpu/b/c", "/g/cpu/b", "/g/cpu", "/g/d", "/g"});
  CHECK(control_group_folders("5:memory:/a\n", "/g", "cpu").empty());
}

}  // namespace
}  // namespace spate
