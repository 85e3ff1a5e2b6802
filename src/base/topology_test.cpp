// Goal    Threads get the cores that give them the most memory bandwidth, ranks get whole nodes, whatever way the
// machine numbers its
//         cores; and a process that may use a part of a machine sees that part alone.
// Method  Invented machines as folders of sysfs: two sockets, chiplets, hybrids, a container's cpuset, nothing at all.
#include "base/topology.h"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/test.h"
#include "base/test_support.h"

namespace spate {
namespace {

using Ids = std::vector<int>;

Ids range(int begin, int end) {
  Ids ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

class FakeSysfs {
 public:
  FakeSysfs& write(const std::string& file, const std::string& text) {
    const auto path = folder_.path() / "devices" / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
    return *this;
  }
  FakeSysfs& cpu(int id, const std::string& file, const std::string& text) {
    return write(fmt::format("system/cpu/cpu{}/{}", id, file), text);
  }
  // A last-level cache, behind one of each core.
  FakeSysfs& cache(int id, const std::string& sharers) {
    cpu(id, "cache/index0/level", "1").cpu(id, "cache/index0/shared_cpu_list", fmt::format("{}", id));
    return cpu(id, "cache/index1/level", "3").cpu(id, "cache/index1/shared_cpu_list", sharers);
  }
  std::string folder() const { return folder_.path().string(); }
  Topology read(const Ids& ids) const { return read_topology(ids, folder()); }

 private:
  TempDir folder_;
};

// 2 sockets of 4 cores of 2 threads, numbered by turns as some firmware does: even ids on node 0, and 8 to 15 the
// second threads.
FakeSysfs& make_two_sockets(FakeSysfs& sysfs) {
  sysfs.write("system/node/online", "0-1");
  sysfs.write("system/node/node0/cpulist", "0,2,4,6,8,10,12,14")
      .write("system/node/node1/cpulist", "1,3,5,7,9,11,13,15");
  for (int id = 0; id < 16; ++id) {
    sysfs.cpu(id, "topology/thread_siblings_list", fmt::format("{},{}", id % 8, id % 8 + 8));
    sysfs.cache(id, id % 2 == 0 ? "0,2,4,6,8,10,12,14" : "1,3,5,7,9,11,13,15");
  }
  return sysfs;
}

TEST_CASE("topology: lists of ids") {
  CHECK(parse_id_list("0-3,8,10-11\n") == Ids{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_id_list("7") == Ids{7});
  CHECK(parse_id_list("\n").empty());
  CHECK(parse_id_list("").empty());
}

TEST_CASE("topology: two sockets") {
  FakeSysfs sysfs;
  const Topology machine = make_two_sockets(sysfs).read(range(0, 16));
  CHECK(machine.nodes() == Ids{0, 1});
  CHECK(machine.find(11)->core == 3);
  CHECK(machine.find(11)->node == 1);
  CHECK(machine.find(11)->chiplet == 1);
  // One rank: half of its threads on each node, physical cores first, neighbours side by side.
  CHECK(choose_cores(machine, 0, 1, 8) == Ids{0, 2, 4, 6, 1, 3, 5, 7});
  CHECK(choose_cores(machine, 0, 1, 4) == Ids{0, 2, 1, 3});
  CHECK(choose_cores(machine, 0, 1, 1) == Ids{0});
  CHECK(choose_cores(machine, 0, 1, 10) == Ids{0, 8, 2, 4, 6, 1, 9, 3, 5, 7});
  CHECK(choose_cores(machine, 0, 1, 16).size() == 16);
  CHECK(choose_cores(machine, 0, 1, 17).empty());
  // A rank a node, and two ranks a node.
  CHECK(choose_cores(machine, 0, 2, 4) == Ids{0, 2, 4, 6});
  CHECK(choose_cores(machine, 1, 2, 4) == Ids{1, 3, 5, 7});
  CHECK(choose_cores(machine, 2, 4, 2) == Ids{1, 3});
  CHECK(choose_cores(machine, 1, 2, 8) == Ids{1, 9, 3, 11, 5, 13, 7, 15});
  CHECK(cores_near_rank(machine, 1, 2) == Ids{1, 3, 5, 7, 9, 11, 13, 15});
  CHECK(cores_near_rank(machine, 1, 4) == Ids{0, 2, 4, 6, 8, 10, 12, 14});
  CHECK(cores_near_rank(machine, 0, 1).empty());
  CHECK(cores_near_rank(machine, 1, 3).empty());  // on both nodes

  const std::vector<ThreadHome> homes = homes_on_nodes(machine, 8);
  REQUIRE(homes.size() == 8);
  for (size_t i = 0; i < homes.size(); ++i) {
    const int node = i < 4 ? 0 : 1;
    CHECK(homes[i].node == node);
    CHECK(homes[i].core_ids == cores_near_rank(machine, node, 2));  // second threads too: the kernel may move it
  }
  CHECK(homes_on_nodes(machine, 17).empty());
  CHECK(homes_on_nodes(machine.within(cores_near_rank(machine, 0, 2)), 4).empty());  // a rank that was put on a node
}

TEST_CASE("topology: four chiplets have a way to memory each") {
  FakeSysfs sysfs;
  for (int id = 0; id < 16; ++id) sysfs.cache(id, fmt::format("{}-{}", id / 4 * 4, id / 4 * 4 + 3));
  const Topology machine = sysfs.read(range(0, 16));
  CHECK(machine.find(10)->chiplet == 8);
  CHECK(choose_cores(machine, 0, 1, 4) == Ids{0, 4, 8, 12});
  CHECK(choose_cores(machine, 0, 1, 6) == Ids{0, 1, 4, 5, 8, 12});
  CHECK(choose_cores(machine, 1, 2, 2) == Ids{8, 12});
  CHECK(choose_cores(machine, 1, 2, 8) == range(8, 16));
  CHECK(homes_on_nodes(machine, 16).empty());
}

TEST_CASE("topology: chiplets of several nodes share out threads by nodes first") {
  FakeSysfs sysfs;
  sysfs.write("system/node/online", "0-1")
      .write("system/node/node0/cpulist", "0-7")
      .write("system/node/node1/cpulist", "8-15");
  for (int id = 0; id < 16; ++id) sysfs.cache(id, fmt::format("{}-{}", id / 4 * 4, id / 4 * 4 + 3));
  CHECK(choose_cores(sysfs.read(range(0, 16)), 0, 1, 2) == Ids{0, 8});
  CHECK(choose_cores(sysfs.read(range(0, 16)), 0, 1, 4) == Ids{0, 4, 8, 12});
}

TEST_CASE("topology: hybrids take fast cores first, their second threads last") {
  FakeSysfs x86;  // 4 fast cores of 2 threads, 4 for efficiency
  x86.write("cpu_core/cpus", "0-7").write("cpu_atom/cpus", "8-11");
  for (int id = 0; id < 8; ++id)
    x86.cpu(id, "topology/thread_siblings_list", fmt::format("{}-{}", id / 2 * 2, id / 2 * 2 + 1));
  const Topology hybrid = x86.read(range(0, 12));
  CHECK(choose_cores(hybrid, 0, 1, 4) == Ids{0, 2, 4, 6});
  CHECK(choose_cores(hybrid, 0, 1, 8) == Ids{0, 2, 4, 6, 8, 9, 10, 11});
  CHECK(choose_cores(hybrid, 0, 1, 12) == range(0, 12));
  const std::vector<ThreadHome> homes = homes_on_cores(hybrid, {6, 8});
  CHECK(homes[0].speed == kFullSpeed);
  CHECK(homes[1].speed == kFullSpeed / 2);
  CHECK(homes[1].core_ids == Ids{8});

  FakeSysfs arm;
  for (int id = 0; id < 6; ++id) arm.cpu(id, "cpu_capacity", id < 4 ? "446" : "1024");
  CHECK(arm.read(range(0, 6)).find(1)->speed == 446);
  CHECK(choose_cores(arm.read(range(0, 6)), 0, 1, 2) == Ids{4, 5});
}

// Cores of 2 threads, numbered side by side, of which 1, 2, 3 and 9 are off: the kernel takes these out of every list.
TEST_CASE("topology: threads that are offline leave gaps") {
  FakeSysfs sysfs;
  sysfs.write("system/cpu/online", "0,4-8,10-11").write("system/cpu/possible", "0-11");
  sysfs.write("system/node/online", "0,2-3").write("system/node/node0/cpulist", "0,4-5");
  sysfs.write("system/node/node2/cpulist", "6-8,10-11").write("system/node/node3/cpulist", "");  // memory alone
  const auto siblings = [&](int id, const std::string& list) { sysfs.cpu(id, "topology/thread_siblings_list", list); };
  siblings(0, "0");
  for (const int id : {4, 5}) siblings(id, "4-5");
  for (const int id : {6, 7}) siblings(id, "6-7");
  siblings(8, "8");
  for (const int id : {10, 11}) siblings(id, "10-11");
  for (const int id : {0, 4, 5}) sysfs.cache(id, "0,4-5");
  for (const int id : {6, 7, 8, 10, 11}) sysfs.cache(id, "6-8,10-11");

  const Ids online = online_threads(sysfs.folder());
  CHECK(online == Ids{0, 4, 5, 6, 7, 8, 10, 11});
  const Topology machine = sysfs.read(online);
  CHECK(machine.nodes() == Ids{0, 2});
  CHECK(machine.find(1) == nullptr);
  CHECK(machine.find(5)->core == 4);
  CHECK(choose_cores(machine, 0, 1, 5) == Ids{0, 4, 6, 8, 10});  // a thread of each core
  CHECK(choose_cores(machine, 0, 1, 2) == Ids{0, 6});            // of each node
  CHECK(choose_cores(machine, 0, 1, 9).empty());
  CHECK(cores_near_rank(machine, 1, 2) == Ids{6, 7, 8, 10, 11});
  const std::vector<ThreadHome> homes = homes_on_nodes(machine, 5);
  REQUIRE(homes.size() == 5);
  CHECK(homes[1].core_ids == Ids{0, 4, 5});
  CHECK(homes[2].node == 2);
  CHECK(homes[2].core_ids == Ids{6, 7, 8, 10, 11});
  CHECK(online_threads(FakeSysfs().folder()).empty());
}

TEST_CASE("topology: a container sees its cpuset") {
  FakeSysfs sysfs;
  make_two_sockets(sysfs);
  const Topology part = sysfs.read({12, 4, 5, 2, 10});  // two cores of node 0 with both threads, one of node 1
  CHECK(part.threads.front().id == 2);
  CHECK(choose_cores(part, 0, 1, 3) == Ids{2, 4, 5});
  CHECK(choose_cores(part, 0, 1, 6).empty());
  CHECK(homes_on_nodes(part, 3)[0].core_ids == Ids{2, 4, 10, 12});
  CHECK(homes_on_nodes(sysfs.read({9, 11, 3}), 2).empty());           // all on node 1
  CHECK(choose_cores(sysfs.read({9, 11, 3}), 0, 1, 2) == Ids{9, 3});  // 11 is the second thread of 3
}

TEST_CASE("topology: a kernel that tells nothing has one node of equal cores") {
  const Topology machine = FakeSysfs().read({3, 5, 6});
  CHECK(machine.nodes() == Ids{0});
  CHECK(choose_cores(machine, 0, 1, 3) == Ids{3, 5, 6});
  CHECK(homes_on_nodes(machine, 3).empty());
  CHECK(homes_on_cores(machine, {5, 77})[1].speed == kFullSpeed);
}

}  // namespace
}  // namespace spate
