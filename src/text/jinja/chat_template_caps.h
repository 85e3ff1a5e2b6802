// What a chat template reads, from its syntax tree.
#pragma once

#include "text/jinja/chat_template.h"

namespace spate {

ChatTemplateCaps find_caps(const jinja::Template& parsed);

}  // namespace spate
