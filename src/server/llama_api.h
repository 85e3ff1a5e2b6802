// Answers in llama-server's form.
#pragma once

#include "engine/inspection.h"
#include "server/frontend.h"
#include "server/http_server.h"

namespace spate {

// /slots: as many as may run at once. Sequences that run fill the first ones, so their numbers change when one ends.
// `fails_when_full`: 503 when none is free.
HttpResponse slots_response(const Frontend& frontend, const EngineInspection& seen, bool fails_when_full);

}  // namespace spate
