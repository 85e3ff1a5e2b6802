// The local cache of the Hugging Face hub: what `hf download ORG/NAME` has put there, found by its name.
//
//   CACHE/models--ORG--NAME/refs/main             the hash of the newest revision
//   CACHE/models--ORG--NAME/snapshots/HASH/...    links to ../../blobs/...
//
// Nothing is downloaded, and nothing outside the model's folder is named by what the cache says.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"

namespace spate {

struct FoundModel {
  std::filesystem::path path;  // a folder or a *.gguf file
  std::string hub_name;        // empty: `path` is what the caller gave
};

// "NAME" or "ORG/NAME" as the hub allows them: letters, digits, '.', '_' and '-', no "..", no "--".
bool is_hub_name(std::string_view name);

// A path that exists is itself. Else a hub name is looked up in `cache`; where it is not there, the error says how to
// get it. Of a snapshot without config.json its only *.gguf file is meant.
Result<FoundModel> find_model(const std::string& name_or_path, const std::filesystem::path& cache);

}  // namespace spate
