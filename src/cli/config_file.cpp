#include "cli/config_file.h"

#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "cli/flag_help.h"
#include "cli/yaml_file.h"

namespace spate {
namespace {

// A key that stands once where it may stand once, with one value where the flag takes one.
Status check_entry(const std::string& place, const std::string& key, const YAML::Node& value, const CLI::Option& option,
                   std::map<const CLI::Option*, std::string>& seen) {
  const auto [first, is_new] = seen.emplace(&option, place);
  if (!is_new) return invalid_argument("{}: '{}' stands at {} already", place, key, first->second);
  const bool may_repeat = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  if (value.IsSequence() && option.get_items_expected_max() <= 1 && !may_repeat) {
    return invalid_argument("{}: '{}' takes one value, got {}", place, key, YAML::Dump(value));
  }
  return ok_status();
}

// A model of the list "model", {name: b, path: models/b, quantization: int8}, as --model takes it.
Result<std::string> model_spec_of(const YAML::Node& node, const std::string& file) {
  const std::string place = fmt::format("{}:{}", file, node.Mark().line + 1);
  if (!node["name"] || !node["path"]) return invalid_argument("{}: a model of several needs name and path", place);
  std::string text = fmt::format("{}={}", node["name"].as<std::string>(), node["path"].as<std::string>());
  for (const auto& entry : node) {
    const std::string key = entry.first.as<std::string>();
    if (key == "name" || key == "path") continue;
    const YAML::Node& value = entry.second;
    if (value.IsSequence() && key != "alias") {
      return invalid_argument("{}: '{}' takes one value, got {}", place, key, YAML::Dump(value));
    }
    if (value.IsMap()) {
      YAML::Emitter json;
      json.SetMapFormat(YAML::Flow);
      json << value;
      text += fmt::format(",{}={}", key, json.c_str());
    } else if (value.IsSequence()) {
      for (const auto& item : value) text += fmt::format(",{}={}", key, item.as<std::string>());
    } else if (!value.IsNull()) {
      text += fmt::format(",{}={}", key, value.as<std::string>());
    }
  }
  return text;
}

// Leaves of the document as "--key=value" arguments, sections flattened away.
Status flatten(const YAML::Node& node, const std::string& file, const CLI::App& app, std::map<std::string, std::string>& sources,
               std::map<const CLI::Option*, std::string>& seen, std::vector<std::string>& args) {
  for (const auto& entry : node) {
    std::string key = entry.first.as<std::string>();
    std::replace(key.begin(), key.end(), '_', '-');
    const YAML::Node& value = entry.second;
    if (value.IsMap() && app.get_option_no_throw("--" + key) == nullptr) {
      RETURN_IF_ERROR(flatten(value, file, app, sources, seen, args));
      continue;
    }
    const std::string place = fmt::format("{}:{}", file, entry.first.Mark().line + 1);
    const CLI::Option* option = app.get_option_no_throw("--" + key);
    if (key == "config" || key == "help") return invalid_argument("{}: '{}' belongs on the command line", place, key);
    if (option == nullptr) {
      return invalid_argument("{}: unknown key '{}'; the nearest is '{}'", place, key, nearest_flag(app, key));
    }
    RETURN_IF_ERROR(check_entry(place, key, value, *option, seen));
    const auto add = [&](const YAML::Node& scalar) { args.push_back(fmt::format("--{}={}", key, scalar.as<std::string>())); };
    if (value.IsMap()) {  // of a flag that takes JSON
      YAML::Emitter json;
      json.SetMapFormat(YAML::Flow);
      json << value;
      args.push_back(fmt::format("--{}={}", key, json.c_str()));
    } else if (value.IsSequence()) {
      for (const auto& item : value) {
        if (item.IsMap() && key == "model") {
          ASSIGN_OR_RETURN(const std::string spec, model_spec_of(item, file));
          args.push_back("--model=" + spec);
        } else {
          add(item);
        }
      }
    } else if (!value.IsNull()) {
      add(value);
    }
    sources[option->get_lnames().front()] = place;
  }
  return ok_status();
}

}  // namespace

Status read_config_file(const std::string& path, const CLI::App& app, std::map<std::string, std::string>& sources,
                        std::vector<std::string>& args) {
  // A folder can be opened and fails at the first byte, with an exception that is not of YAML.
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return invalid_argument("--config {}: is a folder, not a file", path);
  try {
    ASSIGN_OR_RETURN(const YAML::Node root, load_yaml(path));
    if (!root.IsMap()) return invalid_argument("--config {}: needs keys and values at the top level", path);
    std::map<const CLI::Option*, std::string> seen;
    return flatten(root, std::filesystem::path(path).filename().string(), app, sources, seen, args);
  } catch (const YAML::BadFile&) {
    return not_found("--config {}: cannot be read", path);
  } catch (const YAML::Exception& e) {
    return invalid_argument("--config {}:{}: {}", path, e.mark.line + 1, e.msg);
  }
}

}  // namespace spate
