// Goal    Cores are taken from what the process may use, physical cores first, no core twice; a bound thread is where
// it
//         should be, and has its former cores back afterwards. By default threads are as many as physical cores, and no
//         more than whole CPUs of time.
// Method  An invented topology for the order, invented control groups for the time; the kernel's own mask for the rest,
//         on a thread of its own.
#include "base/cpu_cores.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "base/test.h"
#include "base/test_support.h"

namespace spate {
namespace {

TEST_CASE("cores: one hardware thread of each physical core comes first") {
  const auto siblings_of_four = [](int id) { return id % 4; };  // 0 and 4 share a core, 1 and 5, ...
  CHECK(one_of_each_group_first({0, 1, 2, 3, 4, 5, 6, 7}, siblings_of_four) ==
        std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(one_of_each_group_first({0, 4, 1, 5}, siblings_of_four) == std::vector<int>{0, 1, 4, 5});
  CHECK(one_of_each_group_first({4, 6, 2}, siblings_of_four) == std::vector<int>{4, 6, 2});  // a part of the machine
  CHECK(one_of_each_group_first({0, 1, 2, 3}, [](int id) { return id / 2; }) == std::vector<int>{0, 2, 1, 3});
}

TEST_CASE("cores: a quota of control groups bounds the threads, the least one counts") {
  const TempDir groups;
  const auto write = [&](const std::string& file, const char* text) {
    const auto path = groups.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  const std::string root = groups.path().string();
  CHECK(cpu_quota("0::/\n", root) == 0);
  CHECK(cpu_quota("", root) == 0);
  // v2: a pod of 3 CPUs, in it a container without a limit and one of 2.5.
  write("pod/cpu.max", "300000 100000\n");
  write("pod/free/cpu.max", "max 100000\n");
  write("pod/bound/cpu.max", "250000 100000\n");
  CHECK(cpu_quota("0::/pod/free\n", root) == 3);
  CHECK(cpu_quota("0::/pod/bound\n", root) == 2.5);
  CHECK(cpu_quota("0::/elsewhere\n", root) == 0);
  // As a container sees itself: it is the root, whatever path the host names.
  write("cpu.max", "150000 100000\n");
  CHECK(cpu_quota("0::/\n", root) == 1.5);
  CHECK(cpu_quota("0::/docker/0123\n", root) == 1.5);
  // v1, and other controllers.
  write("cpu/slice/cpu.cfs_quota_us", "50000\n");
  write("cpu/slice/cpu.cfs_period_us", "100000\n");
  write("cpu/all/cpu.cfs_quota_us", "-1\n");
  write("cpu/all/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota("5:memory:/slice\n4:cpu,cpuacct:/slice/part\n", root) == 0.5);
  CHECK(cpu_quota("4:cpuacct,cpu:/all\n3:cpuset:/slice\n", root) == 0);

  CHECK(default_num_threads(8, 0) == 8);
  CHECK(default_num_threads(8, 2.5) == 2);  // a third thread would stop the others
  CHECK(default_num_threads(8, 0.5) == 1);
  CHECK(default_num_threads(8, 64) == 8);
  CHECK(default_num_threads() >= 1);
  CHECK(default_num_threads() <= static_cast<int>(usable_cores().size()));
}

TEST_CASE("cores: ranks get disjoint parts of what the process may use, or none at all") {
  const std::vector<int>& usable = usable_cores();
  REQUIRE(!usable.empty());
  CHECK(std::set<int>(usable.begin(), usable.end()).size() == usable.size());
  const int num_cores = static_cast<int>(usable.size());
  for (int num_ranks = 1; num_ranks <= num_cores; ++num_ranks) {
    const int num_threads = num_cores / num_ranks;
    std::set<int> taken;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::vector<int> part = cores_of_rank(rank, num_ranks, num_threads);
      REQUIRE(part.size() == static_cast<size_t>(num_threads));
      for (const int id : part) {
        CHECK(taken.insert(id).second);
        CHECK(std::find(usable.begin(), usable.end(), id) != usable.end());
      }
    }
    CHECK(cores_of_rank(0, num_ranks, num_cores / num_ranks + 1).empty());
  }
}

TEST_CASE("cores: a bound thread stays on its core and gets its cores back") {
  std::thread([] {
    const std::vector<int> before = allowed_cores();
    for (const int id : usable_cores()) {
      {
        const CoreBinding binding(id);
        CHECK(allowed_cores() == std::vector<int>{id});
        CHECK(sched_getcpu() == id);
        CHECK(usable_cores().size() == before.size());  // of the process, not of this thread
      }
      CHECK(allowed_cores() == before);
    }
    const CoreBinding nowhere(100000);
    CHECK(allowed_cores() == before);
  }).join();
}

}  // namespace
}  // namespace spate
