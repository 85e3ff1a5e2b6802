// Flags of `spate serve` whose value is a JSON object, by vLLM's names and fields. Errors name the flag.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "server/output_format.h"
#include "weights/generation_config.h"

namespace spate {

// --default-chat-template-kwargs; null: none.
Result<std::shared_ptr<const nlohmann::ordered_json>> parse_template_kwargs(const std::string& text);

// --override-generation-config: what `text` says wins over `config`. Its temperature wins over a do_sample of `config`.
Result<GenerationConfig> override_generation_config(GenerationConfig config, const std::string& text);

// --reasoning-config: the text that ends a reasoning whose budget is spent. Its last part is the mark that ends the
// reasoning; empty: that mark alone.
Result<std::string> parse_reasoning_end(const std::string& text, const ReasoningFormat* format);

}  // namespace spate
