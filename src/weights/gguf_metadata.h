// Metadata of a GGUF file on its way into a config.json.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"
#include "weights/gguf/gguf.h"

namespace spate {

// Collects "key":value of config.json.
class ConfigJson {
 public:
  template <typename T>
  void add(std::string_view key, const T& value) {
    text_ += fmt::format(R"({}"{}":{})", text_.empty() ? "" : ",", key, value);
  }
  void add_string(std::string_view key, std::string_view value) { add(key, fmt::format(R"("{}")", value)); }
  bool empty() const { return text_.empty(); }
  std::string object() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

// Typed reading of "<architecture>.<key>".
class GgufMetadata {
 public:
  GgufMetadata(const GgufFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture), prefix_(fmt::format("{}.", architecture)) {}

  bool has(std::string_view key) const { return file_.find(prefix_ + std::string(key)) != nullptr; }
  Result<int64_t> get_int(std::string_view key) const { return file_.get_int(prefix_ + std::string(key)); }
  Result<double> get_number(std::string_view key) const {
    const GgufValue* value = file_.find(prefix_ + std::string(key));
    if (value != nullptr && std::holds_alternative<double>(*value)) {
      if (const double number = std::get<double>(*value); std::isfinite(number)) return number;
    }
    ASSIGN_OR_RETURN(const int64_t number, get_int(key));
    return static_cast<double>(number);
  }
  Status copy_int(std::string_view key, std::string_view json_key, ConfigJson& json) const {
    ASSIGN_OR_RETURN(const int64_t value, get_int(key));
    json.add(json_key, value);
    return ok_status();
  }
  Status copy_number(std::string_view key, std::string_view json_key, ConfigJson& json) const {
    ASSIGN_OR_RETURN(const double value, get_number(key));
    json.add(json_key, value);
    return ok_status();
  }
  // `missing` where the file is silent.
  Result<int64_t> get_int(std::string_view key, int64_t missing) const { return has(key) ? get_int(key) : missing; }
  Result<double> get_number(std::string_view key, double missing) const {
    return has(key) ? get_number(key) : Result<double>(missing);
  }
  Result<bool> get_bool(std::string_view key, bool missing) const {
    return has(key) ? file_.get_bool(prefix_ + std::string(key)) : Result<bool>(missing);
  }
  const GgufFile& file() const { return file_; }
  std::string_view architecture() const { return architecture_; }

 private:
  const GgufFile& file_;
  std::string_view architecture_;
  std::string prefix_;
};

// The keys of experts, as config.json of the family has them; of a family without experts none. Errors name the key.
Status read_gguf_experts(const GgufMetadata& metadata, std::string_view model_type, ConfigJson& json);
// The widths of latent attention.
Status read_gguf_latent(const GgufMetadata& metadata, ConfigJson& json);
// Whether an expert's score is a sigmoid; else it is a share of a softmax.
Result<bool> has_sigmoid_experts(const GgufMetadata& metadata);

}  // namespace spate
