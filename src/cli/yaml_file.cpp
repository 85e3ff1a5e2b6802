#include "cli/yaml_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace spate {
namespace {

constexpr int kMaxNodes = 100'000, kMaxDepth = 64;  // of a file, aliases followed
constexpr size_t kMaxBytes = size_t{4} << 20;

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

// Where a document's first node stands.
class FirstMark final : public YAML::EventHandler {
 public:
  int line() const { return line_; }  // 0: the document has no node
  void OnDocumentStart(const YAML::Mark&) override { line_ = 0; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override { note(mark); }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnMapEnd() override {}

 private:
  void note(const YAML::Mark& mark) {
    if (line_ == 0) line_ = mark.line + 1;
  }
  int line_ = 0;
};

}  // namespace

// Not by YAML::LoadAll(): version 0.7 never ends on texts like `"a"""b`, which it takes for documents without number.
int second_document_line(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  FirstMark mark;
  return parser.HandleNextDocument(mark) && parser.HandleNextDocument(mark) ? std::max(mark.line(), 1) : 0;
}

Result<YAML::Node> load_yaml(const std::string& path) {
  const std::string file = std::filesystem::path(path).filename().string();
  std::ifstream from(path, std::ios::binary);  // read once: it may be a pipe
  if (!from) throw YAML::BadFile(path);
  std::string text(kMaxBytes + 1, '\0');
  from.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(from.gcount()));
  if (text.size() > kMaxBytes) return invalid_argument("{}:1: the file has more than {} bytes", file, kMaxBytes);
  if (const int line = second_document_line(text); line > 0) {
    return invalid_argument("{}:{}: a second document in the file", file, line);
  }
  YAML::Node root = YAML::Load(text);
  RETURN_IF_ERROR(FileCheck(file).check(root));
  return root;
}

}  // namespace spate
