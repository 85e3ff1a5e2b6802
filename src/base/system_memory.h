// The main memory that this process may take: of the machine, within what its control groups allow.
//
// Threads: may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace spate {

struct SystemMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // now, with what the kernel would give back of its cache of files
};

// The least of what the machine has, each control group leaves (docker --memory, limits.memory of Kubernetes, MemoryMax
// of systemd) and ulimit -v and -d leave. Who takes more than a group allows is killed.
SystemMemory system_memory();
// `meminfo` reads as /proc/meminfo; the others as in control_group_folders(). What `meminfo` does not tell is 0.
SystemMemory system_memory(const std::string& meminfo, const std::string& membership, const std::string& root);

}  // namespace spate
