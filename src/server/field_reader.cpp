#include "server/field_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "server/api_request.h"

namespace spate {

using Json = nlohmann::ordered_json;

std::string json_excerpt(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    size_t end = std::min<size_t>(text.size(), 60);
    while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    return fmt::format("\"{}{}\"", text.substr(0, end), end < text.size() ? "..." : "");
  }
  return value.dump();
}

FieldReader::FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    fail(bad_request(path_, fmt::format("{} must be a JSON object, got {}", path_.empty() ? "The request body" : path_,
                                        json_excerpt(object))));
  }
}

namespace {

// A field that is not supported may be sent with the value that asks for nothing.
bool asks_for_something(const Json& value, double neutral) {
  if (value.is_boolean()) return std::isnan(neutral) ? value.get<bool>() : value.get<bool>() != (neutral != 0);
  if (value.is_number()) return value.get<double>() != (std::isnan(neutral) ? 0 : neutral);
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !((value.is_array() || value.is_object()) && value.empty());
}

}  // namespace

FieldReader::FieldReader(const Json& object, RequestKind kind, const ParseLimits& limits) : FieldReader(object) {
  kind_ = kind;
  if (error_) return;
  for (const RequestField& field : request_fields()) {
    if ((field.required_by & kind) == 0) continue;
    const auto found = object.find(field.name);
    if (found == object.end() || found->is_null()) {
      fail(
          bad_request(std::string(field.name), fmt::format("{} is missing", field.name), "missing_required_parameter"));
    }
  }
  for (const auto& [name, value] : object.items()) {
    const RequestField* field = value.is_null() ? nullptr : find_request_field(name, kind);
    if (field != nullptr) check_field(*field, value, limits);
  }
}

void FieldReader::check_field(const RequestField& field, const Json& value, const ParseLimits& limits) {
  if (field.use == FieldUse::kNoEffect) return;
  if (field.use == FieldUse::kUnsupported) {
    if (!asks_for_something(value, field.neutral)) return;
    return fail(not_supported(std::string(field.name),
                              fmt::format("{} is not supported by this server. {}", field.name, field.help)));
  }
  if (!has_type(value, field.type)) return fail_type(field.name, field_type_text(field.type), value);
  const double high = field.high_limit != nullptr ? limits.*field.high_limit : field.high;
  if (std::isinf(field.low) && std::isinf(high)) return;
  const double number = value.get<double>();
  if ((number >= field.low && number <= high) || number == field.neutral) return;
  const auto text = [](double bound) {
    const bool is_whole = std::floor(bound) == bound;
    return is_whole ? Json(static_cast<int64_t>(bound)).dump() : fmt::format("{}", bound);
  };
  fail(field.name,
       fmt::format("{} must be in [{}, {}], got {}", field.name, text(field.low), text(high), value.dump()));
}

std::string FieldReader::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const Json* FieldReader::any(std::string_view name) {
  CHECK(kind_ == 0 || find_request_field(name, kind_) != nullptr, "the table of request fields lacks {}", name);
  if (kind_ == 0) known_.emplace(name);
  if (error_) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::fail_type(std::string_view name, std::string_view wanted, const Json& found) {
  fail(bad_request(path_of(name), fmt::format("{} must be {}, got {}", path_of(name), wanted, json_excerpt(found)),
                   "invalid_type"));
}

const Json* FieldReader::array(std::string_view name) {
  const Json* value = any(name);
  if (value && !value->is_array()) return fail_type(name, "an array", *value), nullptr;
  return value;
}

const Json* FieldReader::object(std::string_view name) {
  const Json* value = any(name);
  if (value && !value->is_object()) return fail_type(name, "an object", *value), nullptr;
  return value;
}

std::optional<std::string> FieldReader::string(std::string_view name) {
  const Json* value = any(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) return fail_type(name, "a string", *value), std::nullopt;
  return value->get<std::string>();
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const Json* value = any(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) return fail_type(name, "true or false", *value), std::nullopt;
  return value->get<bool>();
}

std::optional<double> FieldReader::number(std::string_view name) {
  const Json* value = any(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) return fail_type(name, "a number", *value), std::nullopt;
  return value->get<double>();
}

std::optional<int64_t> FieldReader::integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = any(name);
  if (!value) return std::nullopt;
  if (!has_type(*value, FieldType::kInteger)) return fail_type(name, "an integer", *value), std::nullopt;
  const bool is_too_large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = is_too_large ? INT64_MAX : value->get<int64_t>();
  if (is_too_large || number < low || number > high) {
    fail(name, fmt::format("{} must be in [{}, {}], got {}", path_of(name), low, high, value->dump()));
    return std::nullopt;
  }
  return number;
}

std::vector<int32_t> FieldReader::token_ids(std::string_view name, size_t max_count) {
  const Json* values = array(name);
  std::vector<int32_t> ids;
  if (!values) return ids;
  if (values->size() > max_count) {
    fail(name, fmt::format("{} has {} entries, at most {} are taken", path_of(name), values->size(), max_count));
    return ids;
  }
  ids.reserve(values->size());
  for (const Json& value : *values) {
    const bool is_id = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
    if (!is_id) return fail_type(name, "an array of token ids", value), ids;
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

void FieldReader::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

void FieldReader::adopt_unknown(const FieldReader& inner) {
  for (const std::string& name : inner.unknown_fields()) inner_unknown_.push_back(inner.path_of(name));
}

std::vector<std::string> FieldReader::unknown_fields() const {
  std::vector<std::string> unknown = inner_unknown_;
  if (!object_.is_object()) return unknown;
  for (const auto& [name, value] : object_.items()) {
    const bool is_known = kind_ == 0 ? known_.contains(name) : find_request_field(name, kind_) != nullptr;
    if (!is_known) unknown.push_back(name);
  }
  return unknown;
}

std::vector<std::string> FieldReader::no_effect_fields() const {
  std::vector<std::string> names;
  if (kind_ == 0 || !object_.is_object()) return names;
  for (const auto& [name, value] : object_.items()) {
    const RequestField* field = find_request_field(name, kind_);
    if (field != nullptr && field->use == FieldUse::kNoEffect && !value.is_null()) names.push_back(name);
  }
  return names;
}

}  // namespace spate
