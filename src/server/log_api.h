// /debug/log: the last lines of the process's log.
#pragma once

#include <optional>

#include "server/api_error.h"
#include "server/http_server.h"

namespace spate {

std::optional<ApiError> answer_log(const HttpRequest& request, HttpResponder& responder);

}  // namespace spate
