// spate completion SHELL: a script that lets the shell complete commands, flags and the values that a flag takes, from
// the table of flags.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace spate {

std::vector<std::string> completion_shells();  // bash, zsh, fish
// `leaves`: the commands that take flags; those below another are completed behind its name.
Result<std::string> completion_script(const std::string& shell, const CLI::App& app,
                                      const std::vector<CLI::App*>& leaves);

}  // namespace spate
