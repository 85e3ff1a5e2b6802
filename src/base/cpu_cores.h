// The cores of this process, and binding threads to them.
//
// Threads: all functions may be called from any thread; binding is of the calling thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/topology.h"

namespace spate {

// Ids of the cores that this process may use: the affinity mask that it was started with (taskset, a container's
// cpuset), read once, so that threads that are bound later do not change it. One hardware thread of each physical core
// comes first, their siblings behind. Never empty.
const std::vector<int>& usable_cores();
// What the kernel tells of them, read once.
const Topology& usable_topology();

// Threads that compute unless an option says how many: one for each physical core among usable_cores(), and no more
// whole ones than the CPU time that control groups allow this process (docker --cpus, limits.cpu of Kubernetes).
// Threads wait for each other: one too many and all are stopped until the next period.
int default_num_threads();
int default_num_threads(int num_physical_cores, double cpu_quota);

// CPUs' worth of time that control groups allow, 0: all. The arguments are those of control_group_folders().
double cpu_quota(const std::string& membership, const std::string& root);

// `core_ids` with the first of each group (physical core) in front, else in their order.
std::vector<int> one_of_each_group_first(const std::vector<int>& core_ids, const std::function<int(int)>& group_of);

// choose_cores() of usable_topology().
std::vector<int> cores_of_rank(int rank, int num_ranks, int num_threads);

// Binds the calling thread to a core, or to some, for its lifetime; gives the thread its former cores back when it
// ends, which must be on the same thread. Binding to cores that the kernel does not allow, or to none, does nothing.
class CoreBinding {
 public:
  explicit CoreBinding(int core_id) : CoreBinding(std::vector<int>{core_id}) {}
  explicit CoreBinding(const std::vector<int>& core_ids);
  ~CoreBinding();
  CoreBinding(const CoreBinding&) = delete;
  CoreBinding& operator=(const CoreBinding&) = delete;

 private:
  std::vector<int> former_core_ids_;  // empty: nothing was changed
};

// Of the calling thread; empty when the kernel does not tell.
std::vector<int> allowed_cores();

}  // namespace spate
