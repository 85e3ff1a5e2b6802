// The cores of a machine: which of them share a physical core, a last-level cache (a chiplet) and a node of memory, how
// fast they are; and on which of them compute threads run.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <string>
#include <vector>

namespace spate {

inline constexpr int kFullSpeed = 1024;

// A hardware thread.
struct HardwareThread {
  int id = 0;              // the kernel's number
  int core = 0;            // physical: the least id of its hardware threads
  int chiplet = 0;         // the least id of those that share the last-level cache
  int node = 0;            // of memory
  int speed = kFullSpeed;  // beside the fastest core of the machine
};

struct Topology {
  std::vector<HardwareThread> threads;  // rising ids

  const HardwareThread* find(int id) const;
  Topology within(const std::vector<int>& ids) const;  // a part of the machine
  std::vector<int> nodes() const;                      // that have threads, rising
};

// Of the hardware threads `ids`, as a sysfs mounted at `sysfs` tells. What it does not tell is taken for one: one node,
// one chiplet, physical cores of one thread, one speed.
Topology read_topology(const std::vector<int>& ids, const std::string& sysfs = "/sys");

// The hardware threads that are online: there are gaps between ids where some are not. Empty where the kernel does not
// tell.
std::vector<int> online_threads(const std::string& sysfs = "/sys");

// "0-3,8" of the kernel's files.
std::vector<int> parse_id_list(const std::string& text);

// Cores for the threads of one of `num_ranks` ranks, one each; no other rank gets them. Empty: there are too few.
// Ranks get contiguous parts of the machine, whole nodes where the numbers allow it. Within its part a rank takes
// physical cores before their second threads and fast ones before slow ones, and spreads over nodes, then over
// chiplets: each has its own way to memory. Neighbours in the list are neighbours in the machine.
std::vector<int> choose_cores(const Topology& topology, int rank, int num_ranks, int num_threads);

// All hardware threads of the nodes on which a rank's part of the machine lies. Empty: that is no restriction.
std::vector<int> cores_near_rank(const Topology& topology, int rank, int num_ranks);

// Where a compute thread runs.
struct ThreadHome {
  std::vector<int> core_ids;  // one of these
  int node = 0;
  int speed = kFullSpeed;
};

// Threads that are bound to a core each.
std::vector<ThreadHome> homes_on_cores(const Topology& topology, const std::vector<int>& core_ids);

// Threads that stay on the nodes that choose_cores() spreads them over, and move freely there. Empty: there is one
// node, or there are more threads than cores.
std::vector<ThreadHome> homes_on_nodes(const Topology& topology, int num_threads);

}  // namespace spate
