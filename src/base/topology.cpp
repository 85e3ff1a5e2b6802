#include "base/topology.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "base/system_file.h"

namespace spate {
namespace {

// Of a core for efficiency beside one for performance of a hybrid x86, where the kernel gives no cpu_capacity: half as
// wide vector units. Threads that are done take over items of others, so a wrong guess costs little.
constexpr int kEfficiencySpeed = kFullSpeed / 2;

int least_of(const std::vector<int>& ids, int otherwise) {
  return ids.empty() ? otherwise : *std::min_element(ids.begin(), ids.end());
}

// The least id of those that share the cache of the highest level.
int chiplet_of(const std::string& cpu, int otherwise) {
  int highest = 0, chiplet = otherwise;
  for (int i = 0;; ++i) {
    const std::string cache = fmt::format("{}/cache/index{}/", cpu, i), level_text = read_system_file(cache + "level");
    if (level_text.empty()) return chiplet;
    const int level = std::atoi(level_text.c_str());
    const std::vector<int> sharers = parse_id_list(read_system_file(cache + "shared_cpu_list"));
    if (level <= highest || sharers.empty()) continue;
    highest = level;
    chiplet = least_of(sharers, otherwise);
  }
}

bool contains(const std::vector<int>& ids, int id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// Neighbours in the machine are neighbours in this order; the hardware threads of a core come together.
bool is_before(const HardwareThread& a, const HardwareThread& b) {
  return std::tie(a.node, a.chiplet, a.core, a.id) < std::tie(b.node, b.chiplet, b.core, b.id);
}

// The part of a rank: of the physical cores, their first threads, where these are enough for all ranks; else of all
// threads.
std::vector<HardwareThread> part_of_rank(const Topology& topology, int rank, int num_ranks, int num_threads) {
  std::vector<HardwareThread> all = topology.threads, first;
  std::sort(all.begin(), all.end(), is_before);
  for (const HardwareThread& thread : all) {
    if (first.empty() || first.back().core != thread.core) first.push_back(thread);
  }
  const int64_t wanted = static_cast<int64_t>(num_ranks) * num_threads;
  if (wanted > static_cast<int64_t>(all.size())) return {};
  const std::vector<HardwareThread>& shared_out = wanted <= static_cast<int64_t>(first.size()) ? first : all;
  const auto count = static_cast<int64_t>(shared_out.size());
  return {shared_out.begin() + count * rank / num_ranks, shared_out.begin() + count * (rank + 1) / num_ranks};
}

}  // namespace

const HardwareThread* Topology::find(int id) const {
  const auto at =
      std::find_if(threads.begin(), threads.end(), [&](const HardwareThread& thread) { return thread.id == id; });
  return at == threads.end() ? nullptr : &*at;
}

Topology Topology::within(const std::vector<int>& ids) const {
  Topology part;
  for (const HardwareThread& thread : threads) {
    if (contains(ids, thread.id)) part.threads.push_back(thread);
  }
  return part;
}

std::vector<int> Topology::nodes() const {
  std::vector<int> nodes;
  for (const HardwareThread& thread : threads) {
    if (!contains(nodes, thread.node)) nodes.push_back(thread.node);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

std::vector<int> parse_id_list(const std::string& text) {
  std::vector<int> ids;
  for (const char* at = text.c_str(); *at >= '0' && *at <= '9';) {
    char* end = nullptr;
    const auto first = static_cast<int>(std::strtol(at, &end, 10));
    const int last = *end == '-' ? static_cast<int>(std::strtol(end + 1, &end, 10)) : first;
    for (int id = first; id <= last; ++id) ids.push_back(id);
    at = *end == ',' ? end + 1 : end;
  }
  return ids;
}

std::vector<int> online_threads(const std::string& sysfs) {
  return parse_id_list(read_system_file(sysfs + "/devices/system/cpu/online"));
}

Topology read_topology(const std::vector<int>& ids, const std::string& sysfs) {
  std::map<int, int> node_of;
  for (const int node : parse_id_list(read_system_file(sysfs + "/devices/system/node/online"))) {
    for (const int id :
         parse_id_list(read_system_file(fmt::format("{}/devices/system/node/node{}/cpulist", sysfs, node)))) {
      node_of[id] = node;
    }
  }
  const std::vector<int> for_efficiency = parse_id_list(read_system_file(sysfs + "/devices/cpu_atom/cpus"));
  const int first_id = least_of(ids, 0);
  Topology topology;
  for (const int id : ids) {
    const std::string cpu = fmt::format("{}/devices/system/cpu/cpu{}", sysfs, id);
    const std::string capacity = read_system_file(cpu + "/cpu_capacity");
    HardwareThread thread{
        .id = id, .core = least_of(parse_id_list(read_system_file(cpu + "/topology/thread_siblings_list")), id)};
    thread.chiplet = chiplet_of(cpu, first_id);
    thread.node = node_of.count(id) > 0 ? node_of[id] : 0;
    if (std::atoi(capacity.c_str()) > 0) {
      thread.speed = std::atoi(capacity.c_str());
    } else if (contains(for_efficiency, id)) {
      thread.speed = kEfficiencySpeed;
    }
    topology.threads.push_back(thread);
  }
  std::sort(topology.threads.begin(), topology.threads.end(),
            [](const HardwareThread& a, const HardwareThread& b) { return a.id < b.id; });
  return topology;
}

std::vector<int> choose_cores(const Topology& topology, int rank, int num_ranks, int num_threads) {
  // The order in which threads of the part are taken: one of each chiplet in turn, nodes by turns.
  struct Candidate {
    HardwareThread thread;
    int of_core = 0;      // how many of the same core come before
    int of_chiplet = 0;   // as good ones of the same chiplet
    int chiplet_idx = 0;  // in its node
  };
  std::vector<Candidate> candidates;
  std::map<int, int> of_core;
  std::map<std::tuple<int, int, int, int>, int> of_chiplet;
  std::map<int, std::vector<int>> chiplets_of_node;
  for (const HardwareThread& thread : part_of_rank(topology, rank, num_ranks, num_threads)) {
    std::vector<int>& chiplets = chiplets_of_node[thread.node];
    if (!contains(chiplets, thread.chiplet)) chiplets.push_back(thread.chiplet);
    Candidate one{
        .thread = thread, .of_core = of_core[thread.core]++, .chiplet_idx = static_cast<int>(chiplets.size()) - 1};
    one.of_chiplet = of_chiplet[{one.of_core, thread.speed, thread.node, thread.chiplet}]++;
    candidates.push_back(one);
  }
  if (static_cast<int>(candidates.size()) < num_threads) return {};
  const auto key = [](const Candidate& c) {
    return std::tuple(c.of_core, -c.thread.speed, c.of_chiplet, c.chiplet_idx, c.thread.node, c.thread.id);
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
  candidates.resize(static_cast<size_t>(num_threads));
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return is_before(a.thread, b.thread); });
  std::vector<int> core_ids;
  for (const Candidate& one : candidates) core_ids.push_back(one.thread.id);
  return core_ids;
}

std::vector<int> cores_near_rank(const Topology& topology, int rank, int num_ranks) {
  std::vector<int> nodes, core_ids;
  for (const HardwareThread& thread : part_of_rank(topology, rank, num_ranks, 1)) nodes.push_back(thread.node);
  for (const HardwareThread& thread : topology.threads) {
    if (contains(nodes, thread.node)) core_ids.push_back(thread.id);
  }
  return core_ids.size() == topology.threads.size() ? std::vector<int>() : core_ids;
}

std::vector<ThreadHome> homes_on_cores(const Topology& topology, const std::vector<int>& core_ids) {
  std::vector<ThreadHome> homes;
  for (const int id : core_ids) {
    const HardwareThread* thread = topology.find(id);
    homes.push_back({.core_ids = {id},
                     .node = thread == nullptr ? 0 : thread->node,
                     .speed = thread == nullptr ? kFullSpeed : thread->speed});
  }
  return homes;
}

std::vector<ThreadHome> homes_on_nodes(const Topology& topology, int num_threads) {
  std::vector<ThreadHome> homes;
  if (topology.nodes().size() < 2) return homes;
  for (const int id : choose_cores(topology, 0, 1, num_threads)) {
    ThreadHome home{.node = topology.find(id)->node};
    for (const HardwareThread& thread : topology.threads) {
      if (thread.node == home.node) home.core_ids.push_back(thread.id);
    }
    homes.push_back(std::move(home));
  }
  return homes;
}

}  // namespace spate
