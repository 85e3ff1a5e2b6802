#include "cli/yaml_file.h"

#include <yaml-cpp/yaml.h>

#include <filesystem>

namespace spate {
namespace {

constexpr int kMaxNodes = 100'000, kMaxDepth = 64;  // of a file, aliases followed

// An alias is counted as what it stands for.
class FileCheck {
 public:
  explicit FileCheck(std::string file) : file_(std::move(file)) {}
  Status check(const YAML::Node& node, int depth = 0) {
    if (++num_nodes_ > kMaxNodes) {
      return invalid_argument("{}: the file has more than {} values, those that aliases repeat included", place(node),
                              kMaxNodes);
    }
    if (depth > kMaxDepth)
      return invalid_argument("{}: nested deeper than {} levels, or an alias of itself", place(node), kMaxDepth);
    if (node.IsScalar() && node.Scalar().find('\0') != std::string::npos) {
      return invalid_argument("{}: a text with a NUL character", place(node));
    }
    if (node.IsSequence()) {
      for (const auto& item : node) RETURN_IF_ERROR(check(item, depth + 1));
    }
    if (!node.IsMap()) return ok_status();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return invalid_argument("{}: a key must be a text", place(entry.first));
      RETURN_IF_ERROR(check(entry.first, depth + 1));
      RETURN_IF_ERROR(check(entry.second, depth + 1));
    }
    return ok_status();
  }

 private:
  std::string place(const YAML::Node& node) const { return fmt::format("{}:{}", file_, node.Mark().line + 1); }
  const std::string file_;
  int num_nodes_ = 0;
};

}  // namespace

Result<YAML::Node> load_yaml(const std::string& path) {
  const std::vector<YAML::Node> documents = YAML::LoadAllFromFile(path);
  const std::string file = std::filesystem::path(path).filename().string();
  if (documents.size() > 1) {
    return invalid_argument("{}:{}: a second document in the file", file, documents[1].Mark().line + 1);
  }
  YAML::Node root = documents.empty() ? YAML::Node() : documents.front();
  RETURN_IF_ERROR(FileCheck(file).check(root));
  return root;
}

}  // namespace spate
