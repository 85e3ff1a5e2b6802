#include "cli/deployment.h"

#include <sched.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "cli/arguments.h"
#include "cli/find_models.h"
#include "cli/flag_help.h"
#include "cli/graph.h"
#include "cli/model_spec.h"
#include "cli/yaml_file.h"
#include "server/model_registry.h"
#include "weights/model_config.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFirstPort = 8001;  // of engines that name none
constexpr std::string_view kKeyVariable = "SPATE_API_KEY", kKeyFileFlag = "--api-key-file=";

std::string dashed(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

// A scalar as YAML's core schema reads it: quoted is text, else null, true, a number, or text.
Json json_of(const YAML::Node& node) {
  if (node.IsMap()) {
    Json object = Json::object();
    for (const auto& entry : node) object[entry.first.as<std::string>()] = json_of(entry.second);
    return object;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const auto& item : node) list.push_back(json_of(item));
    return list;
  }
  if (node.IsNull()) return nullptr;
  const std::string text = node.as<std::string>();
  if (node.Tag() == "!") return text;
  if (text == "true" || text == "false") return text == "true";
  const Json number = Json::parse(text, nullptr, false);
  return number.is_number() ? number : Json(text);
}

// Of an engine, a graph or a step: it is in lines of the log, and in answers.
Status check_name(const std::string& name, const std::string& place) {
  const Status status = check_model_names({name});
  return status.ok() ? status : invalid_argument("{}: {}", place, status.message());
}

// A mapping of the file, whose keys are checked and whose errors say where.
class Section {
 public:
  Section(YAML::Node node, std::string file, std::string what)
      : node_(std::move(node)), file_(std::move(file)), what_(std::move(what)) {}

  std::string place() const { return place(node_); }
  std::string place(const YAML::Node& node) const { return fmt::format("{}:{}", file_, node.Mark().line + 1); }
  std::string place_of(const std::string& key) const {
    for (const auto& entry : node_) {
      if (entry.first.as<std::string>() == key) return place(entry.first);
    }
    return place();
  }
  const std::string& file() const { return file_; }
  const YAML::Node& node() const { return node_; }
  bool has(const std::string& key) const { return node_[key].IsDefined() && !node_[key].IsNull(); }
  YAML::Node at(const std::string& key) const { return node_[key]; }

  Status check(const std::vector<std::string>& keys) const {
    if (!node_.IsMap()) return invalid_argument("{}: {} needs keys and values", place(), what_);
    std::set<std::string> seen;
    for (const auto& entry : node_) {
      const std::string key = entry.first.as<std::string>();
      if (!seen.insert(key).second) return invalid_argument("{}: '{}' stands there twice", place(entry.first), key);
      if (keys.empty() || std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      return invalid_argument("{}: {} has no key '{}'; the nearest is '{}'", place(entry.first), what_, key,
                              nearest_word(keys, key));
    }
    return ok_status();
  }
  Status read(const std::string& key, std::string& value) const {
    if (!has(key)) return ok_status();
    if (!at(key).IsScalar()) return invalid_argument("{}: '{}' takes a text", place_of(key), key);
    value = at(key).as<std::string>();
    return ok_status();
  }
  Status read(const std::string& key, double lowest, double highest, double& value) const {
    if (!has(key)) return ok_status();
    const Json given = json_of(at(key));
    if (!given.is_number() || !(given.get<double>() >= lowest && given.get<double>() <= highest)) {
      return invalid_argument("{}: '{}' takes a number from {:g} to {:g}, got {}", place_of(key), key, lowest, highest,
                              YAML::Dump(at(key)));
    }
    value = given.get<double>();
    return ok_status();
  }
  Status read(const std::string& key, int lowest, int highest, int& value) const {
    double number = value;
    RETURN_IF_ERROR(read(key, static_cast<double>(lowest), static_cast<double>(highest), number));
    if (number != static_cast<double>(static_cast<int>(number))) {
      return invalid_argument("{}: '{}' takes a whole number, got {}", place_of(key), key, YAML::Dump(at(key)));
    }
    value = static_cast<int>(number);
    return ok_status();
  }
  Status read(const std::string& key, std::vector<std::string>& values) const {
    if (!has(key)) return ok_status();
    if (at(key).IsMap()) return invalid_argument("{}: '{}' takes a text or a list", place_of(key), key);
    if (at(key).IsScalar()) {
      values.push_back(at(key).as<std::string>());
      return ok_status();
    }
    for (const auto& item : at(key)) {
      if (!item.IsScalar()) return invalid_argument("{}: '{}' takes a list of texts", place(item), key);
      values.push_back(item.as<std::string>());
    }
    return ok_status();
  }

 private:
  const YAML::Node node_;
  const std::string file_, what_;
};

// "0-3,8" to 0 1 2 3 8, all of which this process may use.
Result<std::vector<int>> parse_cores(const std::string& text) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> cores;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    int first = -1, last = -1;
    const char* const end = part.data() + part.size();
    auto parsed = std::from_chars(part.data(), end, first);
    last = first;
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-')
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    if (parsed.ec != std::errc() || parsed.ptr != end || first < 0 || last < first || last >= CPU_SETSIZE) {
      return invalid_argument("'cores' takes a list like 0-3,8, got '{}'", text);
    }
    for (int core = first; core <= last; ++core) {
      if (!CPU_ISSET(static_cast<size_t>(core), &allowed))
        return invalid_argument("'cores': this machine lends no core {}", core);
      if (std::find(cores.begin(), cores.end(), core) == cores.end()) cores.push_back(core);
    }
  }
  if (cores.empty()) return invalid_argument("'cores' takes a list like 0-3,8, got nothing");
  return cores;
}

// The value of a flag as the command line takes it; several of a list.
std::vector<std::string> values_of(const YAML::Node& node) {
  std::vector<std::string> values;
  if (node.IsSequence()) {
    for (const auto& item : node) values.push_back(item.IsScalar() ? item.as<std::string>() : json_of(item).dump());
  } else if (node.IsMap()) {
    values.push_back(json_of(node).dump());
  } else if (!node.IsNull()) {
    values.push_back(node.as<std::string>());
  }
  return values;
}

const std::vector<std::string> kEngineKeys = {"serve_id", "cores", "environment"};
constexpr std::string_view kFlagCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";

// Flags of a section, by name, with the place of each; the later section wins.
struct Flag {
  std::vector<std::string> values;
  std::string place;
};
Status read_flags(const Section& section, std::map<std::string, Flag>& flags) {
  std::set<std::string> seen;
  for (const auto& entry : section.node()) {
    const std::string given = entry.first.as<std::string>();
    if (std::find(kEngineKeys.begin(), kEngineKeys.end(), given) != kEngineKeys.end()) continue;
    const std::string place = section.place(entry.first), key = dashed(given);
    if (key.empty() || key.find_first_not_of(kFlagCharacters) != std::string::npos) {
      return invalid_argument("{}: '{}' is no name of a flag", place, given);
    }
    if (key == "config" || key == "print-config" || key == "help")
      return invalid_argument("{}: '{}' belongs on the command line", place, given);
    if (key == "uds") return invalid_argument("{}: engines are reached by host and port, not by 'uds'", place);
    if (key == "ssl-certfile" || key == "ssl-keyfile") {
      return invalid_argument("{}: engines are reached by plain HTTP, not by '{}'; put a proxy with TLS before them",
                              place, given);
    }
    if (!seen.insert(key).second) return invalid_argument("{}: '{}' stands there twice", place, given);
    flags[key] = {values_of(entry.second), place};
    for (const std::string& value : flags[key].values) {
      if (value.empty()) return invalid_argument("{}: '{}' has an empty value", place, given);
    }
  }
  return ok_status();
}

// "m" of "m=models/a,alias=b", "a" of "models/a/".
std::string name_of_model(const std::string& text) {
  if (is_model_spec(text)) return text.substr(0, text.find('='));
  const std::string path = text.substr(0, text.find_last_not_of('/') + 1);
  return std::filesystem::path(path).filename().string();
}

// There is one, of a family that can be run.
Status check_model(ModelArguments& model) {
  RETURN_IF_ERROR(find_models(model));
  return load_model_config(model.model).status();
}

// As the command line of `spate serve` would be checked, with the place of the flag at fault.
Status check_flags(const EngineSpec& engine, const std::map<std::string, Flag>& flags) {
  const auto parse = [](const std::vector<std::string>& given) {
    std::vector<const char*> argv = {"spate", "serve"};
    for (const std::string& flag : given) argv.push_back(flag.c_str());
    return parse_arguments(static_cast<int>(argv.size()), argv.data());
  };
  Result<Arguments> arguments = parse(engine.flags);
  if (!arguments.ok()) {
    for (const auto& [key, flag] : flags) {  // the first that is wrong alone
      if (key == "model") continue;
      std::vector<std::string> alone = {"--model=any"};
      for (const std::string& value : flag.values) alone.push_back(fmt::format("--{}={}", key, value));
      if (const Result<Arguments> one = parse(alone); !one.ok()) return one.status().with_context(flag.place);
    }
    return arguments.status().with_context(flags.contains("model") ? flags.at("model").place : engine.place);
  }
  const std::string& place = flags.at("model").place;
  if (!arguments->model.model.empty()) RETURN_IF_ERROR(check_model(arguments->model).with_context(place));
  for (const ModelSpec& spec : arguments->serve.specs) {
    ASSIGN_OR_RETURN(Arguments of_model, arguments_of_model(spec, *arguments));
    RETURN_IF_ERROR(check_model(of_model.model).with_context(place));
  }
  return ok_status();
}

Result<EngineSpec> read_engine(const Section& section, const Section* common, int default_port) {
  EngineSpec engine;
  engine.place = section.place();
  if (!section.node().IsMap()) return invalid_argument("{}: an engine needs keys and values", engine.place);
  std::map<std::string, Flag> flags;
  if (common) RETURN_IF_ERROR(read_flags(*common, flags));
  RETURN_IF_ERROR(read_flags(section, flags));
  if (!flags.contains("model")) return invalid_argument("{}: an engine needs a model", engine.place);
  RETURN_IF_ERROR(section.read("serve_id", engine.serve_id));
  if (section.has("serve_id")) RETURN_IF_ERROR(check_name(engine.serve_id, section.place_of("serve_id")));
  if (engine.serve_id.empty()) {
    const Flag& model = flags["model"];
    engine.serve_id = model.values.empty() ? "" : name_of_model(model.values.front());
    RETURN_IF_ERROR(check_name(engine.serve_id, model.place));
  }
  if (flags.contains("host") && !flags["host"].values.empty()) engine.host = flags["host"].values.front();
  engine.port = default_port;
  if (flags.contains("port")) RETURN_IF_ERROR(section.read("port", 1, 65535, engine.port));
  flags.try_emplace("host", Flag{{engine.host}, engine.place});
  flags["port"] = {{std::to_string(engine.port)}, flags.contains("port") ? flags["port"].place : engine.place};
  if (section.has("cores")) {
    std::string text;
    RETURN_IF_ERROR(section.read("cores", text));
    Result<std::vector<int>> cores = parse_cores(text);
    if (!cores.ok()) return cores.status().with_context(section.place_of("cores"));
    engine.cores = std::move(*cores);
  }
  if (section.has("environment")) {
    const Section environment(section.at("environment"), section.file(), "environment");
    RETURN_IF_ERROR(environment.check({}));
    for (const auto& entry : environment.node()) {
      const std::string name = entry.first.as<std::string>(), place = environment.place(entry.first);
      if (name.empty() || name.find('=') != std::string::npos) {
        return invalid_argument("{}: '{}' is no name of a variable", place, name);
      }
      if (!entry.second.IsScalar() && !entry.second.IsNull())
        return invalid_argument("{}: '{}' takes a text", place, name);
      engine.environment.emplace_back(name, entry.second.as<std::string>(""));
    }
  }
  for (const auto& [key, flag] : flags) {
    for (const std::string& value : flag.values) engine.flags.push_back(fmt::format("--{}={}", key, value));
  }
  for (const auto& [name, value] : engine.environment) {
    if (name == kKeyVariable) engine.api_key = value;
  }
  if (flags.contains("api-key") && !flags["api-key"].values.empty()) engine.api_key = flags["api-key"].values.front();
  RETURN_IF_ERROR(check_flags(engine, flags));
  return engine;
}

Result<GraphStep> read_step(const Section& section, const std::vector<std::string>& engines,
                            const std::string& step_before) {
  RETURN_IF_ERROR(section.check({"id", "engine", "after", "when", "map", "system", "prompt", "request", "timeout",
                                 "retries", "max_parts", "max_parallel"}));
  GraphStep step;
  step.place = section.place();
  for (const auto& [key, field] : {std::pair{"id", &step.id},
                                   {"engine", &step.engine},
                                   {"when", &step.when},
                                   {"map", &step.map},
                                   {"system", &step.system},
                                   {"prompt", &step.prompt}}) {
    RETURN_IF_ERROR(section.read(key, *field));
  }
  if (step.id.empty() || step.prompt.empty())
    return invalid_argument("{}: a step needs an id and a prompt", step.place);
  RETURN_IF_ERROR(check_name(step.id, section.place_of("id")));
  if (step.engine.empty() && engines.size() == 1) step.engine = engines.front();
  if (std::find(engines.begin(), engines.end(), step.engine) == engines.end()) {
    return invalid_argument("{}: step '{}' wants the engine '{}', which is not there; the nearest is '{}'",
                            section.place_of("engine"), step.id, step.engine, nearest_word(engines, step.engine));
  }
  if (section.has("after")) {
    RETURN_IF_ERROR(section.read("after", step.after));
  } else if (!section.at("after").IsDefined() && !step_before.empty()) {
    step.after = {step_before};
  }
  if (section.has("request")) {
    const Section request(section.at("request"), section.file(), "request");
    RETURN_IF_ERROR(request.check({}));
    step.request = json_of(request.node());
    for (const char* key : {"model", "messages", "stream", "n"}) {
      if (step.request.contains(key))
        return invalid_argument("{}: '{}' of a step's request is not its own to say", request.place_of(key), key);
    }
  }
  RETURN_IF_ERROR(section.read("timeout", 0.001, 86400.0, step.timeout));
  RETURN_IF_ERROR(section.read("retries", 0, 100, step.retries));
  RETURN_IF_ERROR(section.read("max_parts", 1, 100000, step.max_parts));
  RETURN_IF_ERROR(section.read("max_parallel", 1, 1024, step.max_parallel));
  RETURN_IF_ERROR(check_templates(step).with_context(step.place));
  return step;
}

Result<GraphSpec> read_graph(const Section& section, const std::vector<std::string>& engines) {
  RETURN_IF_ERROR(section.check({"name", "timeout", "steps"}));
  GraphSpec graph;
  graph.place = section.place();
  RETURN_IF_ERROR(section.read("name", graph.name));
  RETURN_IF_ERROR(section.read("timeout", 0.001, 86400.0, graph.timeout));
  if (graph.name.empty()) return invalid_argument("{}: a graph needs a name", graph.place);
  RETURN_IF_ERROR(check_name(graph.name, section.place_of("name")));
  if (!section.has("steps") || !section.at("steps").IsSequence() || section.at("steps").size() == 0) {
    return invalid_argument("{}: graph '{}' needs a list of steps", graph.place, graph.name);
  }
  std::map<std::string, std::string> places;
  for (const auto& node : section.at("steps")) {
    ASSIGN_OR_RETURN(GraphStep step, read_step(Section(node, section.file(), "a step"), engines,
                                               graph.steps.empty() ? "" : graph.steps.back().id));
    const auto [first, is_new] = places.emplace(step.id, step.place);
    if (!is_new) return invalid_argument("{}: step '{}' stands at {} already", step.place, step.id, first->second);
    graph.steps.push_back(std::move(step));
  }
  std::vector<std::string> ids;
  for (const GraphStep& step : graph.steps) ids.push_back(step.id);
  for (const GraphStep& step : graph.steps) {
    for (const std::string& id : step.after) {
      if (places.contains(id)) continue;
      return invalid_argument("{}: step '{}' comes after '{}', which is not there; the nearest is '{}'", step.place,
                              step.id, id, nearest_word(ids, id));
    }
  }
  if (const auto order = order_of_steps(graph.steps); !order.ok()) return order.status().with_context(graph.place);
  return graph;
}

// Names and addresses that only one may have.
class Unique {
 public:
  Status add(const std::string& what, const std::string& value, const std::string& place) {
    const auto [first, is_new] = places_.emplace(std::pair{what, value}, place);
    return is_new ? ok_status() : invalid_argument("{}: {} {} stands at {} already", place, what, value, first->second);
  }

 private:
  std::map<std::pair<std::string, std::string>, std::string> places_;
};

Result<Deployment> read_root(const Section& root) {
  RETURN_IF_ERROR(root.check({"common", "engines", "gateway", "graphs", "restart", "shutdown_timeout"}));
  Deployment deployment;
  if (!root.has("engines") || !root.at("engines").IsSequence() || root.at("engines").size() == 0) {
    return invalid_argument("{}: needs a list of engines", root.place());
  }
  RETURN_IF_ERROR(root.read("shutdown_timeout", 0.0, 86400.0, deployment.shutdown_timeout));
  if (root.has("restart")) {
    const Section restart(root.at("restart"), root.file(), "restart");
    RestartPolicy& policy = deployment.restart;
    RETURN_IF_ERROR(restart.check(
        {"first_delay", "max_delay", "max_restarts", "health_interval", "max_failures", "start_timeout"}));
    RETURN_IF_ERROR(restart.read("first_delay", 0.0, 3600.0, policy.first_delay));
    RETURN_IF_ERROR(restart.read("max_delay", 0.0, 3600.0, policy.max_delay));
    RETURN_IF_ERROR(restart.read("max_restarts", 0, 1000000, policy.max_restarts));
    RETURN_IF_ERROR(restart.read("health_interval", 0.01, 3600.0, policy.health_interval));
    RETURN_IF_ERROR(restart.read("max_failures", 1, 1000, policy.max_failures));
    RETURN_IF_ERROR(restart.read("start_timeout", 1.0, 604800.0, policy.start_timeout));
  }
  Unique unique;
  std::optional<Section> common;
  if (root.has("common")) {
    common.emplace(root.at("common"), root.file(), "common");
    RETURN_IF_ERROR(common->check({}));
    for (const char* key : {"serve_id", "port", "cores", "environment"}) {
      if (common->at(key).IsDefined()) {
        return invalid_argument("{}: '{}' belongs to each engine, not to common", common->place_of(key), key);
      }
    }
  }
  std::vector<std::string> ids;
  for (const auto& node : root.at("engines")) {
    const Section section(node, root.file(), "an engine");
    ASSIGN_OR_RETURN(EngineSpec engine,
                     read_engine(section, common ? &*common : nullptr, kFirstPort + static_cast<int>(ids.size())));
    RETURN_IF_ERROR(unique.add("port", std::to_string(engine.port), section.place_of("port")));
    RETURN_IF_ERROR(unique.add("serve_id", engine.serve_id, section.place_of("serve_id")));
    ids.push_back(engine.serve_id);
    deployment.engines.push_back(std::move(engine));
  }
  deployment.has_gateway = root.has("gateway") || root.has("graphs");
  if (root.has("gateway")) {
    const Section gateway(root.at("gateway"), root.file(), "gateway");
    RETURN_IF_ERROR(gateway.check({"host", "port", "api_key"}));
    RETURN_IF_ERROR(gateway.read("host", deployment.gateway_host));
    RETURN_IF_ERROR(gateway.read("port", 0, 65535, deployment.gateway_port));
    RETURN_IF_ERROR(gateway.read("api_key", deployment.gateway_api_keys));
    const std::vector<std::string>& keys = deployment.gateway_api_keys;
    const bool has_keys = !keys.empty() && std::find(keys.begin(), keys.end(), "") == keys.end();
    if (gateway.at("api_key").IsDefined() && !has_keys) {  // the gateway would be open
      return invalid_argument("{}: 'api_key' is empty", gateway.place_of("api_key"));
    }
    if (deployment.gateway_port != 0)
      RETURN_IF_ERROR(unique.add("port", std::to_string(deployment.gateway_port), gateway.place_of("port")));
  } else if (deployment.has_gateway) {
    RETURN_IF_ERROR(unique.add("port", std::to_string(deployment.gateway_port), root.place_of("graphs")));
  }
  if (!root.has("graphs")) return deployment;
  if (!root.at("graphs").IsSequence()) return invalid_argument("{}: 'graphs' takes a list", root.place_of("graphs"));
  for (const auto& node : root.at("graphs")) {
    ASSIGN_OR_RETURN(GraphSpec graph, read_graph(Section(node, root.file(), "a graph"), ids));
    RETURN_IF_ERROR(unique.add("serve_id", graph.name, graph.place));  // clients name both as models
    deployment.graphs.push_back(std::move(graph));
  }
  return deployment;
}

// What is printed, and written to the log, of a variable.
std::string shown_value(std::string name, const std::string& value) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const char* secret : {"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "HEADERS"}) {
    if (name.find(secret) != std::string::npos) return "(set)";
  }
  return value;
}

}  // namespace

Result<std::vector<size_t>> order_of_steps(const std::vector<GraphStep>& steps) {
  std::vector<size_t> order;
  std::set<std::string> done;
  while (order.size() < steps.size()) {
    const size_t before = order.size();
    for (size_t i = 0; i < steps.size(); ++i) {
      if (done.contains(steps[i].id)) continue;
      if (!std::all_of(steps[i].after.begin(), steps[i].after.end(),
                       [&](const std::string& id) { return done.contains(id); }))
        continue;
      order.push_back(i);
      done.insert(steps[i].id);
    }
    if (order.size() > before) continue;
    std::string names;
    for (const GraphStep& step : steps) {
      if (!done.contains(step.id)) names += (names.empty() ? "" : ", ") + step.id;
    }
    return invalid_argument("the steps {} wait for each other", names);
  }
  return order;
}

Result<Deployment> read_deployment(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return invalid_argument("{}: is a folder, not a file", path);
  try {
    ASSIGN_OR_RETURN(const YAML::Node root, load_yaml(path));
    return read_root(Section(root, std::filesystem::path(path).filename().string(), "a deployment"));
  } catch (const YAML::BadFile&) {
    return not_found("{}: cannot be read", path);
  } catch (const YAML::Exception& e) {
    return invalid_argument("{}:{}: {}", path, e.mark.line + 1, e.msg);
  }
}

Status use_environment_key(Deployment& deployment, const std::string& key) {
  for (EngineSpec& engine : deployment.engines) {
    const bool is_unset =
        std::ranges::any_of(engine.environment, [](const auto& own) { return own.first == kKeyVariable; });
    if (engine.api_key.empty() && !is_unset) engine.api_key = key;
    const bool has_hashes =
        std::ranges::any_of(engine.flags, [](const std::string& flag) { return flag.starts_with(kKeyFileFlag); });
    if (deployment.has_gateway && has_hashes && engine.api_key.empty()) {
      return invalid_argument(
          "{}: the gateway cannot ask engine {}: 'api_key_file' has hashes only; give it an 'api_key' too",
          engine.place, engine.serve_id);
    }
  }
  if (deployment.has_gateway && deployment.gateway_api_keys.empty() && !key.empty())
    deployment.gateway_api_keys = {key};
  return ok_status();
}

std::vector<std::string> describe_deployment(const Deployment& deployment) {
  std::vector<std::string> lines;
  for (const EngineSpec& engine : deployment.engines) {
    std::string line = fmt::format("engine {} on {}:{}:", engine.serve_id, engine.host, engine.port);
    for (const auto& [key, value] : engine.environment) line += fmt::format(" {}={}", key, shown_value(key, value));
    line += " spate serve";
    for (const std::string& flag : engine.flags)
      line += " " + (flag.starts_with("--api-key=") ? "--api-key=(set)" : flag);
    if (!engine.cores.empty()) line += fmt::format(", on {} cores", engine.cores.size());
    lines.push_back(std::move(line));
  }
  for (const GraphSpec& graph : deployment.graphs) {
    lines.push_back(fmt::format("graph {}, at most {:g} s:", graph.name, graph.timeout));
    for (const GraphStep& step : graph.steps) {
      std::string line = fmt::format("  {} on {}", step.id, step.engine);
      for (size_t i = 0; i < step.after.size(); ++i) line += (i == 0 ? ", after " : " and ") + step.after[i];
      if (!step.when.empty()) line += fmt::format(", when {}", step.when);
      if (!step.map.empty())
        line += fmt::format(", for each of {} (at most {}, {} at once)", step.map, step.max_parts, step.max_parallel);
      line += fmt::format(", {:g} s", step.timeout);
      if (step.retries > 0) line += fmt::format(", tried {} times", step.retries + 1);
      lines.push_back(std::move(line));
    }
  }
  if (deployment.has_gateway)
    lines.push_back(fmt::format("gateway on {}:{}", deployment.gateway_host, deployment.gateway_port));
  return lines;
}

}  // namespace spate
