// Which process listens on a TCP port, as far as /proc tells us.
#pragma once

#include <string>

namespace spate {

// "process 4711 (python -m http.server)", or empty when unknown: no listener, or one of another user.
std::string find_port_owner(int port);

}  // namespace spate
