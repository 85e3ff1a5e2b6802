#include "base/cpu_cores.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <thread>

#include "base/control_groups.h"
#include "base/log.h"
#include "base/system_file.h"

namespace spate {
namespace {

// Of one group: its quota over its period; 0: none. v2 has both in cpu.max, "max" for none; v1 a file each, -1 for
// none.
double quota_of_group(const std::string& folder) {
  double quota = 0, period = 0;
  if (std::istringstream v2(read_system_file(folder + "/cpu.max")); v2 >> quota >> period && period > 0)
    return quota / period;
  std::istringstream v1_quota(read_system_file(folder + "/cpu.cfs_quota_us")),
      v1_period(read_system_file(folder + "/cpu.cfs_period_us"));
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

bool set_allowed_cores(const std::vector<int>& core_ids) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int id : core_ids) {
    if (id >= 0 && id < CPU_SETSIZE) CPU_SET(id, &set);
  }
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace

std::vector<int> allowed_cores() {
  std::vector<int> core_ids;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return core_ids;
  for (int id = 0; id < CPU_SETSIZE; ++id) {
    if (CPU_ISSET(id, &set)) core_ids.push_back(id);
  }
  return core_ids;
}

const Topology& usable_topology() {
  static const Topology topology = [] {
    std::vector<int> ids = allowed_cores();
    // More than a cpu_set_t holds, or a kernel that does not tell.
    if (ids.empty()) ids = online_threads();
    for (unsigned id = 0; ids.empty() && id < std::max(1u, std::thread::hardware_concurrency()); ++id) {
      ids.push_back(static_cast<int>(id));
    }
    return read_topology(ids);
  }();
  return topology;
}

const std::vector<int>& usable_cores() {
  static const std::vector<int> core_ids = [] {
    const Topology& topology = usable_topology();
    std::vector<int> ids;
    for (const HardwareThread& thread : topology.threads) ids.push_back(thread.id);
    return one_of_each_group_first(ids, [&](int id) { return topology.find(id)->core; });
  }();
  return core_ids;
}

int default_num_threads(int num_physical_cores, double cpu_quota) {
  if (cpu_quota <= 0) return std::max(1, num_physical_cores);
  return std::clamp(static_cast<int>(cpu_quota), 1, std::max(1, num_physical_cores));
}

int default_num_threads() {
  static const int count = [] {
    std::set<int> cores;
    for (const HardwareThread& thread : usable_topology().threads) cores.insert(thread.core);
    return default_num_threads(static_cast<int>(cores.size()),
                               cpu_quota(read_system_file("/proc/self/cgroup"), "/sys/fs/cgroup"));
  }();
  return count;
}

double cpu_quota(const std::string& membership, const std::string& root) {
  double least = 0;
  for (const std::string& folder : control_group_folders(membership, root, "cpu")) {
    const double quota = quota_of_group(folder);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  return least;
}

std::vector<int> one_of_each_group_first(const std::vector<int>& core_ids, const std::function<int(int)>& group_of) {
  std::vector<int> first, rest, groups;
  for (const int id : core_ids) {
    const int group = group_of(id);
    const bool is_first = std::find(groups.begin(), groups.end(), group) == groups.end();
    if (is_first) groups.push_back(group);
    (is_first ? first : rest).push_back(id);
  }
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

std::vector<int> cores_of_rank(int rank, int num_ranks, int num_threads) {
  return choose_cores(usable_topology(), rank, num_ranks, num_threads);
}

CoreBinding::CoreBinding(const std::vector<int>& core_ids) {
  std::vector<int> former = allowed_cores();
  if (!former.empty() && set_allowed_cores(core_ids)) former_core_ids_ = std::move(former);
}

CoreBinding::~CoreBinding() {
  if (former_core_ids_.empty() || set_allowed_cores(former_core_ids_)) return;
  log_warning("cores", "a thread could not be given its {} cores back", former_core_ids_.size());
}

}  // namespace spate
