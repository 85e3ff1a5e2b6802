// Deployment: the file of `spate run`: engines (processes of `spate serve`), and graphs of steps over them, behind one
// gateway.
//
//   common: {device: cpu}                  # flags of all engines; an engine's own value wins
//   engines:
//     - {serve_id: small, model: models/mini-qwen3, port: 8001, cores: 0-1, environment: {A: b}, quantization: int8}
//   gateway: {host: 127.0.0.1, port: 8000, api_key: secret}
//   graphs:
//     - name: report
//       steps:
//         - {id: topics, engine: small, prompt: "Name three {{ input }} as a JSON list.", request: {max_tokens: 100}}
//         - {id: each, engine: small, map: steps.topics.json, prompt: "What is {{ item }}?", max_parallel: 4}
//         - {id: answer, engine: small, when: steps.each.texts | length > 0, prompt: "Sum up: {{ steps.each.text }}"}
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace spate {

struct EngineSpec {
  std::string serve_id;  // unique; graphs and clients name the engine by it
  std::string place;     // "deploy.yaml:12"
  std::string host = "127.0.0.1";
  int port = 0;
  std::vector<std::string> flags;  // of `spate serve`, each "--name=value"; host and port among them
  std::string api_key;             // that opens the engine; empty: it asks for none
  std::vector<int> cores;          // that the process may run on; empty: all
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours
};

// When an engine ends or does not answer: it is started again after first_delay seconds, twice as long each time up to
// max_delay; an engine that has been healthy for max_delay seconds begins anew.
struct RestartPolicy {
  double first_delay = 1, max_delay = 30;  // seconds
  int max_restarts = 10;                   // in a row; then the deployment ends with an error
  double health_interval = 2;              // seconds between calls of /livez
  int max_failures = 3;                    // in a row; then the process is ended
  double start_timeout = 3600;             // seconds to become ready; then the process is ended
};

// A chat with an engine. Templates are Jinja, over: messages (of the client), input (the text of its last user
// message), steps (by id: text, json where the text is JSON, else none; of a map: texts, and text, joined by line
// breaks), item and index.
struct GraphStep {
  std::string id;
  std::string place;
  std::string engine;              // serve_id
  std::vector<std::string> after;  // ids; absent in the file: the step before it
  std::string when;                // an expression; false: the step is skipped. Empty: true
  std::string map;                 // an expression that gives a list: the step runs once for each item. Empty: once
  std::string system, prompt;      // templates; empty system: none
  nlohmann::ordered_json request = nlohmann::ordered_json::object();  // more fields of the chat completion
  double timeout = 120;                                               // seconds of one attempt
  int retries = 0;                                                    // after the first attempt
  int max_parts = 64, max_parallel = 8;                               // of a map
};

// Served as a model of this name. Its answer is that of the first step, in the order of the file, that no other comes
// after and that is not skipped; it is streamed.
struct GraphSpec {
  std::string name;
  std::string place;
  double timeout = 600;  // seconds, of the whole
  std::vector<GraphStep> steps;
};

struct Deployment {
  std::vector<EngineSpec> engines;  // at least one
  RestartPolicy restart;
  std::vector<GraphSpec> graphs;
  bool has_gateway = false;
  std::string gateway_host = "127.0.0.1";
  int gateway_port = 8000;
  std::vector<std::string> gateway_api_keys;  // any of them opens it; none: no key is asked for
  double shutdown_timeout = 35;               // seconds that an engine gets to drain, then it is killed
};

// Checks all that can be known before anything is started: keys (with the nearest valid one), flags of engines, that
// models exist, ports and names that come twice, templates, cycles. Errors begin with "FILE:LINE: ".
Result<Deployment> read_deployment(const std::string& path);

// The key of the environment, empty: none. It closes engines, and the gateway, that have no key of their own.
// invalid_argument where the gateway has no key for an engine that asks for one.
Status use_environment_key(Deployment& deployment, const std::string& key);

// What `spate run --dry-run` prints: what will be started, a line each.
std::vector<std::string> describe_deployment(const Deployment& deployment);

// In an order in which each step comes behind those that it is `after`. invalid_argument names the steps of a cycle.
Result<std::vector<size_t>> order_of_steps(const std::vector<GraphStep>& steps);

}  // namespace spate
