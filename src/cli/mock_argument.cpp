#include "cli/mock_argument.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

namespace spate {
namespace {

// Where a node stands: "--mock-script f.yaml:3".
class ScriptReader {
 public:
  explicit ScriptReader(std::string path) : path_(std::move(path)) {}

  Result<MockScript> read(const YAML::Node& root) const {
    MockScript script;
    RETURN_IF_ERROR(read_fields(root, "the script",
                                {{"load_ms", [&](const YAML::Node& value) { return read_ms(value, script.load_seconds); }},
                                 {"step_ms", [&](const YAML::Node& value) { return read_ms(value, script.step_seconds); }},
                                 {"token_ms", [&](const YAML::Node& value) { return read_ms(value, script.token_seconds); }},
                                 {"answers", [&](const YAML::Node& value) { return read_answers(value, script); }},
                                 {"faults", [&](const YAML::Node& value) { return read_faults(value, script); }}}));
    return script;
  }

 private:
  using Fields = std::map<std::string, std::function<Status(const YAML::Node&)>>;

  std::string place(const YAML::Node& node) const { return fmt::format("--mock-script {}:{}", path_, node.Mark().line + 1); }

  Status read_fields(const YAML::Node& node, const char* what, const Fields& fields) const {
    std::string names;
    for (const auto& [name, read] : fields) names += (names.empty() ? "" : ", ") + name;
    if (!node.IsMap()) return invalid_argument("{}: {} must be an object with {}", place(node), what, names);
    std::map<std::string, bool> seen;
    for (const auto& entry : node) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : YAML::Dump(entry.first);
      const auto field = fields.find(name);
      if (field == fields.end()) {
        return invalid_argument("{}: {} has no field '{}'; there are {}", place(entry.first), what, name, names);
      }
      if (std::exchange(seen[name], true)) return invalid_argument("{}: '{}' comes twice", place(entry.first), name);
      const Status status = field->second(entry.second);
      if (!status.ok()) return status.with_context(fmt::format("{}: {}", place(entry.second), name));
    }
    return ok_status();
  }
  static Status read_number(const YAML::Node& value, double highest, double& number) {
    const bool is_number = value.IsScalar() && YAML::convert<double>::decode(value, number);
    if (is_number && number >= 0 && number <= highest) return ok_status();
    return invalid_argument("must be a number from 0 to {:g}, got {}", highest, YAML::Dump(value));
  }
  static Status read_ms(const YAML::Node& value, double& seconds) {
    constexpr double kMaxMs = 3.6e6;
    RETURN_IF_ERROR(read_number(value, kMaxMs, seconds));
    seconds /= 1000;
    return ok_status();
  }
  static Status read_text(const YAML::Node& value, std::string& text) {
    if (!value.IsScalar()) return invalid_argument("must be a text, got {}", YAML::Dump(value));
    text = value.Scalar();
    return ok_status();
  }
  // One of two words: the flag says whether it is the second.
  static Status read_choice(const YAML::Node& value, const char* first, const char* second, bool& is_second) {
    const std::string text = value.IsScalar() ? value.Scalar() : YAML::Dump(value);
    is_second = text == second;
    if (is_second || text == first) return ok_status();
    return invalid_argument("must be {} or {}, got {}", first, second, text);
  }
  Status read_answers(const YAML::Node& list, MockScript& script) const {
    if (!list.IsSequence()) return invalid_argument("must be a list");
    for (const YAML::Node& node : list) {
      MockAnswer answer{.echoes = true};
      RETURN_IF_ERROR(read_fields(
          node, "an answer",
          {{"when", [&](const YAML::Node& value) { return read_text(value, answer.when); }},
           {"text",
            [&](const YAML::Node& value) {
              answer.echoes = false;
              return read_text(value, answer.text);
            }},
           {"ends", [&](const YAML::Node& value) { return read_choice(value, "eos", "nonfinite", answer.ends_nonfinite); }}}));
      script.answers.push_back(std::move(answer));
    }
    return ok_status();
  }
  Status read_faults(const YAML::Node& list, MockScript& script) const {
    if (!list.IsSequence()) return invalid_argument("must be a list");
    for (const YAML::Node& node : list) {
      MockFault fault;
      RETURN_IF_ERROR(read_fields(node, "a fault",
                                  {{"step", [&](const YAML::Node& value) { return read_step(value, fault.step); }},
                                   {"kind", [&](const YAML::Node& value) { return read_kind(value, fault.kind); }},
                                   {"ms", [&](const YAML::Node& value) { return read_ms(value, fault.seconds); }}}));
      if (fault.step == 0 || !node["kind"]) return invalid_argument("{}: a fault needs step and kind", place(node));
      if ((fault.kind == MockFault::Kind::kHang) != static_cast<bool>(node["ms"])) {
        return invalid_argument("{}: kind hang needs ms, the others take none", place(node));
      }
      script.faults.push_back(fault);
    }
    return ok_status();
  }
  static Status read_step(const YAML::Node& value, uint64_t& step) {
    double number = 0;
    RETURN_IF_ERROR(read_number(value, 1e15, number));
    if (number < 1 || number != std::floor(number)) {
      return invalid_argument("must be a whole number from 1 on, got {}", YAML::Dump(value));
    }
    step = static_cast<uint64_t>(number);
    return ok_status();
  }
  static Status read_kind(const YAML::Node& value, MockFault::Kind& kind) {
    const std::string text = value.IsScalar() ? value.Scalar() : YAML::Dump(value);
    if (text == "fail") kind = MockFault::Kind::kFail;
    if (text == "nonfinite") kind = MockFault::Kind::kNonfinite;
    if (text == "hang") kind = MockFault::Kind::kHang;
    if (text == "fail" || text == "nonfinite" || text == "hang") return ok_status();
    return invalid_argument("must be fail, nonfinite or hang, got {}", text);
  }

  std::string path_;
};

}  // namespace

Result<MockScript> read_mock_script(const std::string& path) {
  if (path.empty()) return MockScript();
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return invalid_argument("--mock-script {}: is a folder, not a file", path);
  try {
    return ScriptReader(path).read(YAML::LoadFile(path));
  } catch (const YAML::BadFile&) {
    return not_found("--mock-script {}: cannot be read", path);
  } catch (const YAML::Exception& e) {
    return invalid_argument("--mock-script {}:{}: {}", path, e.mark.line + 1, e.msg);
  }
}

}  // namespace spate
