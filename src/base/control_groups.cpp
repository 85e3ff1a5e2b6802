#include "base/control_groups.h"

#include <sstream>

namespace spate {

std::vector<std::string> control_group_folders(const std::string& membership, const std::string& root,
                                               const std::string& controller) {
  std::vector<std::string> folders;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // id:controllers:group
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    for (std::string group = line.substr(second + 1);;) {
      while (!group.empty() && group.back() == '/') group.pop_back();
      folders.push_back((is_v2 ? root : root + "/" + controller) + group);
      if (group.empty()) break;
      group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
  }
  return folders;
}

}  // namespace spate
