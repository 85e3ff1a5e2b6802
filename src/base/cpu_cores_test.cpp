// Goal    Cores are taken from what the process may use, physical cores first, no core twice; a bound thread is where
// it
//         should be, and has its former cores back afterwards.
// Method  An invented topology for the order; the kernel's own mask for the rest, on a thread of its own.
#include "base/cpu_cores.h"

#include <sched.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/test.h"

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
