#include "cli/pooling_argument.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "cli/yaml_file.h"

namespace spate {
namespace {

Result<Pooling> read_pooling(const std::string& name) {
  Result<Pooling> pooling = parse_pooling(name);
  if (!pooling.ok() || *pooling == Pooling::kNone) {
    return invalid_argument("--pooler-config: pooling_type must be last, mean or cls, got '{}'", name);
  }
  return pooling;
}

Status read_field(const std::string& key, const YAML::Node& value, PoolingOverride& pooling) {
  if (key == "pooling_type" || key == "seq_pooling_type") {
    ASSIGN_OR_RETURN(pooling.pooling, read_pooling(value.IsScalar() ? value.Scalar() : YAML::Dump(value)));
    return ok_status();
  }
  if (key == "normalize" || key == "use_activation") {
    bool normalize = false;
    if (!YAML::convert<bool>::decode(value, normalize)) {
      return invalid_argument("--pooler-config: {} must be true or false, got '{}'", key, YAML::Dump(value));
    }
    pooling.normalize = normalize;
    return ok_status();
  }
  return invalid_argument("--pooler-config: unknown field '{}'; there are pooling_type, normalize", key);
}

}  // namespace

Result<PoolingOverride> parse_pooler_config(const std::string& text) {
  PoolingOverride pooling;
  if (text.empty()) return pooling;
  YAML::Node root;
  try {
    root = YAML::Load(text);  // JSON is YAML
    if (const int line = second_document_line(text); line > 0) {
      return invalid_argument("--pooler-config must be one YAML document; a second begins in line {}", line);
    }
  } catch (const YAML::Exception& e) {
    return invalid_argument("--pooler-config: {} at column {} of {}", e.msg, e.mark.column + 1, text);
  }
  if (root.IsScalar()) {
    ASSIGN_OR_RETURN(pooling.pooling, read_pooling(root.Scalar()));
    return pooling;
  }
  if (!root.IsMap()) {
    return invalid_argument(
        "--pooler-config must be last, mean, cls or an object like {{\"pooling_type\": \"LAST\"}}, got {}", text);
  }
  for (const auto& entry : root) {
    const YAML::Node& key = entry.first;
    if (!key.IsScalar()) return invalid_argument("--pooler-config: a key must be a word, got {}", YAML::Dump(key));
    RETURN_IF_ERROR(read_field(key.Scalar(), entry.second, pooling));
  }
  return pooling;
}

}  // namespace spate
