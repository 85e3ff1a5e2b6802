// The YAML file of --config: its leaves as arguments. Keys are the long flag names; sections are flattened away.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace spate {

// Appends "--key=value" to `args` and the place of each key, "config.yaml:12", to `sources` by the flag's first name. An unknown
// key is an error with its line and the nearest flag.
Status read_config_file(const std::string& path, const CLI::App& app, std::map<std::string, std::string>& sources,
                        std::vector<std::string>& args);

}  // namespace spate
