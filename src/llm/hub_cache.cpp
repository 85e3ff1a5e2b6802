#include "llm/hub_cache.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "weights/gguf/gguf_path.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// One part of a hub name, or the name of a snapshot: never a step to another folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 96 && name.front() != '.' && name.front() != '-' && name.back() != '.' &&
         name.back() != '-' && std::all_of(name.begin(), name.end(), is_name_character) &&
         name.find("..") == std::string_view::npos && name.find("--") == std::string_view::npos;
}

std::string how_to_get(const std::string& name) {
  return fmt::format("`hf download {}` gets it (pip install huggingface_hub)", name);
}

// Of the folder's entries those that `keep` takes, sorted. A folder that cannot be read has none.
template <typename Keep>
std::vector<fs::path> entries(const fs::path& folder, Keep keep) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (keep(it->path())) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The snapshot that refs/main names; without refs/main (a download of another revision) the only one there is.
Result<fs::path> find_snapshot(const std::string& name, const fs::path& folder) {
  std::error_code error;
  const fs::path snapshots = folder / "snapshots", ref = folder / "refs" / "main";
  if (std::ifstream in(ref); in) {
    std::string hash;
    std::getline(in, hash);
    if (!is_plain_name(hash)) {
      return data_loss("{}: holds no name of a snapshot; remove {} and get the model again: {}", ref.string(), folder.string(),
                       how_to_get(name));
    }
    if (fs::is_directory(snapshots / hash, error)) return snapshots / hash;
    return not_found("model '{}': {} names the snapshot {}, which is not in {}; {}", name, ref.string(), hash,
                     snapshots.string(), how_to_get(name));
  }
  const std::vector<fs::path> found = entries(snapshots, [&](const fs::path& path) { return fs::is_directory(path, error); });
  if (found.size() == 1) return found.front();
  if (found.empty()) return not_found("model '{}': {} has no snapshot; {}", name, folder.string(), how_to_get(name));
  return not_found("model '{}': {} has {} snapshots and no refs/main; give the folder of one: {}", name, folder.string(),
                   found.size(), found.front().string());
}

Status check_links(const std::string& name, const fs::path& snapshot) {
  std::error_code error;
  const std::vector<fs::path> dangling =
      entries(snapshot, [&](const fs::path& path) { return fs::is_symlink(path, error) && !fs::exists(path, error); });
  if (dangling.empty()) return ok_status();
  return data_loss("model '{}': {} is not completely downloaded: {} of its files lack their contents, the first is {}; {}", name,
                   snapshot.string(), dangling.size(), dangling.front().filename().string(), how_to_get(name));
}

Result<fs::path> model_in(const std::string& name, const fs::path& snapshot) {
  RETURN_IF_ERROR(check_links(name, snapshot));
  std::error_code error;
  if (fs::exists(snapshot / "config.json", error)) return snapshot;
  const std::vector<fs::path> gguf = entries(snapshot, [](const fs::path& path) { return is_gguf_path(path); });
  if (gguf.size() == 1) return gguf.front();
  if (gguf.empty()) {
    return not_found("model '{}': {} has neither config.json nor a *.gguf file; {}", name, snapshot.string(), how_to_get(name));
  }
  std::string names;
  for (const fs::path& path : gguf) names += "\n  " + path.string();
  return not_found("model '{}' has {} *.gguf files; give the path of one:{}", name, gguf.size(), names);
}

}  // namespace

bool is_hub_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_plain_name(name);
  return is_plain_name(name.substr(0, slash)) && is_plain_name(name.substr(slash + 1));
}

Result<FoundModel> find_model(const std::string& name_or_path, const fs::path& cache) {
  std::error_code error;
  if (fs::exists(name_or_path, error)) return FoundModel{name_or_path, {}};
  if (error) return not_found("model: '{}' cannot be opened: {}", name_or_path, error.message());
  if (!is_hub_name(name_or_path) || is_gguf_path(name_or_path)) {
    return not_found("model: '{}' does not exist; give the folder that holds config.json, a *.gguf file, or the name of a model "
                     "on the Hugging Face hub",
                     name_or_path);
  }
  std::string folder_name = "models--" + name_or_path;
  if (const size_t slash = folder_name.find('/'); slash != std::string::npos) folder_name.replace(slash, 1, "--");
  const fs::path folder = cache / folder_name;
  if (!fs::is_directory(folder, error)) {
    return not_found("model: '{}' does not exist here, and the Hugging Face cache {} does not have it; {}", name_or_path,
                     cache.string(), how_to_get(name_or_path));
  }
  ASSIGN_OR_RETURN(const fs::path snapshot, find_snapshot(name_or_path, folder));
  ASSIGN_OR_RETURN(fs::path path, model_in(name_or_path, snapshot));
  return FoundModel{std::move(path), name_or_path};
}

}  // namespace spate
