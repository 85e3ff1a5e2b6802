#include "cli/model_spec.h"

#include <filesystem>
#include <vector>

namespace spate {
namespace {

constexpr const char* kFormat = "NAME=PATH[,key=value...]";

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool is_quoted = false;
  for (const char c : text) {
    if (c == '"') is_quoted = !is_quoted;
    if (!is_quoted && (c == '{' || c == '[')) ++depth;
    if (!is_quoted && (c == '}' || c == ']')) --depth;
    if (c == ',' && depth == 0 && !is_quoted) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

bool is_model_spec(const std::string& text) {
  std::error_code error;
  const size_t equals = text.find('=');
  return equals != std::string::npos && text.find(',') > equals && !std::filesystem::exists(text, error);
}

Result<ModelSpec> parse_model_spec(const std::string& text) {
  ModelSpec spec;
  const std::vector<std::string> parts = split_at_commas(text);
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    const std::string key = parts[i].substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : parts[i].substr(equals + 1);
    if (key.empty() || value.empty()) return invalid_argument("--model {}: must be {}, got '{}'", text, kFormat, parts[i]);
    if (i == 0) {
      spec.name = key;
      spec.path = value;
    } else if (key == "alias") {
      spec.aliases.push_back(value);
    } else {
      spec.settings.emplace_back(key, value);
    }
  }
  return spec;
}

}  // namespace spate
