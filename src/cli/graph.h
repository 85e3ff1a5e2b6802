// Runs a graph of steps (deployment.h): renders each step's prompt from what came before, asks the step's engine, and
// streams the answer's step. Knows no HTTP: engines are a function, so that tests need none.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cli/deployment.h"

namespace spate {

struct StepAnswer {
  std::string text;
  int64_t num_prompt_tokens = 0, num_completion_tokens = 0;
  std::string finish_reason;
};

// One attempt at a chat completion. `on_text`: the text as it comes; null: nobody waits for it. Stops, with any error,
// soon after should_stop is true. unavailable and resource_exhausted are worth another attempt, other errors are not.
struct StepCall {
  std::string engine;           // serve_id
  nlohmann::ordered_json body;  // of /v1/chat/completions, without model and stream
  std::function<void(std::string_view)> on_text;
  std::function<bool()> should_stop;
};
using CallEngine = std::function<Result<StepAnswer>(const StepCall& call)>;

// Whether the step's templates and expressions can be parsed.
Status check_templates(const GraphStep& step);

// `request`: the client's chat completion; its sampling fields hold for the answer's step alone. Steps that do not wait
// for each other run side by side, as threads of this call. The answer's tokens are the sums of all steps. Errors name
// the step.
Result<StepAnswer> run_graph(const GraphSpec& graph, const nlohmann::ordered_json& request,
                             const CallEngine& call_engine, const std::function<void(std::string_view)>& on_text,
                             const std::function<bool()>& should_stop);

}  // namespace spate
