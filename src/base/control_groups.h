// The control groups that bound a process: where containers and systemd put their limits.
#pragma once

#include <string>
#include <vector>

namespace spate {

// Folders of the group of `controller` (cpu, memory) that a process is in, and of all groups above it, the
// process's own first. `membership` reads as /proc/self/cgroup; `root` is where the groups of cgroup v2, or the folders
// of v1's controllers, are mounted. In a container without a namespace of groups the paths are the host's, and only the
// last of these folders exists.
std::vector<std::string> control_group_folders(const std::string& membership, const std::string& root,
                                               const std::string& controller);

}  // namespace spate
