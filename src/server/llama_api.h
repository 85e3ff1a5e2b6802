// Answers in llama-server's form.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/inspection.h"
#include "server/frontend.h"
#include "server/http_server.h"

namespace spate {

// /slots: as many as may run at once. Sequences that run fill the first ones, so their numbers change when one ends.
// `fails_when_full`: 503 when none is free.
HttpResponse slots_response(const Frontend& frontend, const EngineInspection& seen, bool fails_when_full);

// POST /lora-adapters: a list of {"id", "scale"}. What asks for nothing succeeds; an adapter is refused.
std::optional<ApiError> set_lora_adapters(std::string_view body, HttpResponder& responder);

// The object `generation_settings` of a completion's end: its options under llama-server's names, those that are not
// built here with the value that turns them off. `asked`: n_predict, min_p and grammar as the request
// has them.
std::string generation_settings_json(const CompletionRequest& request, const nlohmann::ordered_json& asked, int n_ctx);

}  // namespace spate
