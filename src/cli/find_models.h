// Models by name: what the arguments name and the Hugging Face cache has becomes the path of it.
#pragma once

#include "base/status.h"
#include "cli/arguments.h"

namespace spate {

// $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub: the first
// that is set.
std::string hub_cache_folder();

// Of the model, its tokenizer and its draft model. An error names the flag.
Status find_models(ModelArguments& model);

}  // namespace spate
