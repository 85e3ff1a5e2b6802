// The names of GGUF files.
#pragma once

#include <filesystem>
#include <vector>

namespace spate {

bool is_gguf_path(const std::filesystem::path& path);  // *.gguf
// All files of the model that `path` belongs to, in order: <name>-00001-of-00003.gguf and so on for one of a split
// model, else `path` alone. The first one has the metadata.
std::vector<std::filesystem::path> gguf_files(const std::filesystem::path& path);

}  // namespace spate
