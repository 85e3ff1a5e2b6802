// --mock-script: the file of --device mock, in YAML or JSON. docs/mock.md describes it.
#pragma once

#include <string>

#include "base/status.h"
#include "mock/mock_script.h"

namespace spate {

// Empty path: prompts are echoed. Errors name the file, the line and the field.
Result<MockScript> read_mock_script(const std::string& path);

}  // namespace spate
