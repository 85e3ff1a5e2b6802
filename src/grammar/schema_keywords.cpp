#include "grammar/schema_keywords.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "base/log.h"
#include "grammar/regex.h"

namespace spate {
namespace {

constexpr int64_t kMaxCount = 1'000'000'000;
constexpr int64_t kMaxUriChars = 512;  // where a maxLength bounds them: an automaton has states for each length

std::optional<uint8_t> type_bits(const std::string& name) {
  static const std::map<std::string, uint8_t> kTypes{
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto it = kTypes.find(name);
  return it == kTypes.end() ? std::nullopt : std::optional(it->second);
}

// Whether the format is noted for the first time; the log has so many of them.
bool is_news(const std::string& name) {
  constexpr size_t kMaxNoted = 100;
  static std::mutex mutex;
  static std::set<std::string> noted;
  const std::lock_guard lock(mutex);
  return noted.size() < kMaxNoted && noted.insert(name.substr(0, 100)).second;
}

// An annotation to the standard, so it says nothing; the one who wrote it may expect more.
void note_unknown_format(const std::string& name) {
  if (!is_news(name)) return;
  log_warning("grammar",
              "format \"{}\" of a JSON schema is not known here and allows any string; a pattern would bind it",
              name.substr(0, 100));
}
void note_contrary_format(const std::string& name) {
  if (!is_news(name + " beside a pattern")) return;
  log_warning("grammar",
              "no text of the pattern beside it has the format \"{}\" of a JSON schema: the pattern alone holds", name);
}

}  // namespace

Status SchemaKeywords::refuse_unsupported(const SchemaJson& schema) {
  for (const char* name : {"contains", "minContains", "maxContains", "$dynamicRef", "$recursiveRef"}) {
    if (find_keyword(schema, name)) return names_.error_at(schema, fmt::format("{} is not supported", name));
  }
  static constexpr std::pair<const char*, const char*> kOfDraft3[] = {
      {"divisibleBy", "multipleOf"}, {"extends", "allOf"}, {"disallow", "not"}};
  for (const auto& [name, today] : kOfDraft3) {
    if (find_keyword(schema, name))
      return names_.error_at(schema, fmt::format("{} is of draft 3; use {}", name, today));
  }
  for (const char* name : {"unevaluatedProperties", "unevaluatedItems"}) {
    if (!find_keyword(schema, name)) continue;
    for (const char* other : {"$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"}) {
      if (find_keyword(schema, other))
        return names_.error_at(schema, fmt::format("{} beside {} is not supported", name, other));
    }
    const SchemaJson* older = find_keyword(schema, "dependencies");
    if (older && !std::ranges::all_of(*older, &SchemaJson::is_array)) {
      return names_.error_at(schema, fmt::format("{} beside schemas in dependencies is not supported", name));
    }
  }
  return ok_status();
}

Result<Shape> SchemaKeywords::shape_of(const SchemaJson& schema) {
  Shape shape;
  RETURN_IF_ERROR(read_types(schema, shape));
  if (const SchemaJson* value = find_keyword(schema, "const")) shape.values = std::vector{value};
  if (const SchemaJson* values = find_keyword(schema, "enum")) {
    if (!values->is_array()) return names_.error_at(schema, "enum must be a list");
    std::vector<const SchemaJson*> list;
    for (const SchemaJson& each : *values) list.push_back(&each);
    if (shape.values) {
      std::erase_if(list, [&](const SchemaJson* each) { return *each != *shape.values->front(); });
    }
    shape.values = std::move(list);
  }
  RETURN_IF_ERROR(read_numbers(schema, shape));
  RETURN_IF_ERROR(read_strings(schema, shape));
  RETURN_IF_ERROR(read_arrays(schema, shape));
  RETURN_IF_ERROR(read_objects(schema, shape));
  return shape;
}

Status SchemaKeywords::read_types(const SchemaJson& schema, Shape& shape) {
  const SchemaJson* type = find_keyword(schema, "type");
  // OpenAPI 3.0: one more type. Without a type: one more alternative, see is_null_or.
  const SchemaJson* nullable = find_keyword(schema, "nullable");
  if (nullable && !nullable->is_boolean()) return names_.error_at(schema, "nullable must be true or false");
  const bool is_nullable = nullable && nullable->get<bool>();
  if (type == nullptr) return ok_status();
  shape.types = is_nullable ? kNull : 0;
  const SchemaJson list = type->is_array() ? *type : SchemaJson::array({*type});
  for (const SchemaJson& each : list) {
    const std::optional<uint8_t> bits = each.is_string() ? type_bits(each.get<std::string>()) : std::nullopt;
    if (!bits) {
      return names_.error_at(schema,
                             "type must be null, boolean, integer, number, string, array, object or a list of these");
    }
    shape.types |= *bits;
  }
  return ok_status();
}

Result<std::optional<int64_t>> SchemaKeywords::count(const SchemaJson& schema, const char* name) {
  const SchemaJson* value = find_keyword(schema, name);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<Decimal> decimal = value->is_number() ? decimal_of(*value) : std::nullopt;
  if (!decimal || decimal->is_negative || !decimal->fraction.empty() || decimal->integer.size() > 9) {
    return names_.error_at(schema, fmt::format("{} must be a whole number from 0 to {}", name, kMaxCount - 1));
  }
  return std::optional<int64_t>(std::stoll(decimal->integer));
}

Status SchemaKeywords::read_numbers(const SchemaJson& schema, Shape& shape) {
  const auto number = [&](const char* name) -> Result<std::optional<Decimal>> {
    const SchemaJson* value = find_keyword(schema, name);
    if (value == nullptr) return std::optional<Decimal>();
    std::optional<Decimal> decimal = value->is_number() ? decimal_of(*value) : std::nullopt;
    if (!decimal) return names_.error_at(schema, fmt::format("{} must be a number below 10^400", name));
    return decimal;
  };
  // Draft 4: a boolean beside the bound.
  const auto is_true = [&](const char* name) {
    const SchemaJson* value = find_keyword(schema, name);
    return value && value->is_boolean() && value->get<bool>();
  };
  const auto is_boolean = [&](const char* name) {
    return find_keyword(schema, name) && find_keyword(schema, name)->is_boolean();
  };
  ASSIGN_OR_RETURN(const std::optional<Decimal> minimum, number("minimum"));
  ASSIGN_OR_RETURN(const std::optional<Decimal> maximum, number("maximum"));
  if (is_true("exclusiveMinimum") && !minimum)
    return names_.error_at(schema, "exclusiveMinimum is true, but there is no minimum");
  if (is_true("exclusiveMaximum") && !maximum)
    return names_.error_at(schema, "exclusiveMaximum is true, but there is no maximum");
  if (minimum) tighten(shape.numbers.lower, {*minimum, is_true("exclusiveMinimum")}, 1);
  if (maximum) tighten(shape.numbers.upper, {*maximum, is_true("exclusiveMaximum")}, -1);
  if (!is_boolean("exclusiveMinimum")) {
    ASSIGN_OR_RETURN(const std::optional<Decimal> bound, number("exclusiveMinimum"));
    if (bound) tighten(shape.numbers.lower, {*bound, true}, 1);
  }
  if (!is_boolean("exclusiveMaximum")) {
    ASSIGN_OR_RETURN(const std::optional<Decimal> bound, number("exclusiveMaximum"));
    if (bound) tighten(shape.numbers.upper, {*bound, true}, -1);
  }
  ASSIGN_OR_RETURN(const std::optional<Decimal> multiple, number("multipleOf"));
  if (multiple && (multiple->is_zero() || multiple->is_negative))
    return names_.error_at(schema, "multipleOf must be above 0");
  if (multiple) shape.numbers.multiples.push_back(*multiple);
  const SchemaJson* format = find_keyword(schema, "format");
  if (const NumberRange* range = format && format->is_string() ? format_range(format->get<std::string>()) : nullptr) {
    shape.numbers.integers_only = true;
    tighten(shape.numbers.lower, *range->lower, 1);
    tighten(shape.numbers.upper, *range->upper, -1);
  }
  return ok_status();
}

Result<std::shared_ptr<const ByteDfa>> SchemaKeywords::string_dfa(const SchemaJson& schema, const std::string& regex,
                                                                  bool anywhere) {
  std::shared_ptr<const ByteDfa>& dfa = dfas_[{regex, anywhere}];
  if (dfa != nullptr) return dfa;
  const Result<Expr> expr =
      parse_regex(regex, anywhere ? RegexMatch::kAnywhere : RegexMatch::kWhole, json_string_chars, &budget_);
  if (!expr.ok()) return budget_.is_spent() ? budget_.error() : names_.error_at(schema, expr.status().message());
  ASSIGN_OR_RETURN(ByteDfa built, ByteDfa::of_expr(*expr, budget_));
  dfa = std::make_shared<const ByteDfa>(std::move(built));
  return dfa;
}

// Whether no text of the pattern beside it has the format, as zod's times without a zone. To the standard a format is
// an annotation; then the pattern alone says what is meant.
Result<bool> SchemaKeywords::excludes_all(const ByteDfa& format,
                                          std::span<const std::shared_ptr<const ByteDfa>> patterns) {
  if (patterns.empty()) return false;
  ASSIGN_OR_RETURN(const ByteDfa both, ByteDfa::intersection(*patterns.front(), format, budget_));
  return both.is_empty() && !patterns.front()->is_empty();
}

Status SchemaKeywords::read_strings(const SchemaJson& schema, Shape& shape) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> min_length, count(schema, "minLength"));
  ASSIGN_OR_RETURN(shape.max_length, count(schema, "maxLength"));
  shape.min_length = min_length.value_or(0);
  if (const SchemaJson* pattern = find_keyword(schema, "pattern")) {
    if (!pattern->is_string()) return names_.error_at(schema, "pattern must be a string");
    ASSIGN_OR_RETURN(std::shared_ptr<const ByteDfa> dfa, string_dfa(schema, pattern->get<std::string>(), true));
    shape.string_dfas.push_back(std::move(dfa));
  }
  if (const SchemaJson* format = find_keyword(schema, "format")) {
    if (!format->is_string()) return names_.error_at(schema, "format must be a string");
    const auto& name = format->get_ref<const std::string&>();
    const std::optional<std::string_view> regex = format_regex(name);
    if (!regex) note_unknown_format(name);
    const bool is_long = name.starts_with("uri") && shape.max_length > kMaxUriChars;
    if (is_long && regex && shape.min_length <= kMaxUriChars) shape.max_length = kMaxUriChars;
    if (regex && !regex->empty()) {
      ASSIGN_OR_RETURN(std::shared_ptr<const ByteDfa> dfa, string_dfa(schema, std::string(*regex), false));
      ASSIGN_OR_RETURN(const bool is_contrary, excludes_all(*dfa, shape.string_dfas));
      if (is_contrary) {
        note_contrary_format(name);
      } else {
        shape.string_dfas.push_back(std::move(dfa));
      }
    }
  }
  return ok_status();
}

Status SchemaKeywords::read_arrays(const SchemaJson& schema, Shape& shape) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> min_items, count(schema, "minItems"));
  ASSIGN_OR_RETURN(shape.max_items, count(schema, "maxItems"));
  shape.min_items = min_items.value_or(0);
  if (const SchemaJson* unique = find_keyword(schema, "uniqueItems"); unique && *unique == SchemaJson(true)) {
    if (!shape.max_items || *shape.max_items > 1) {
      return names_.error_at(schema, "uniqueItems is not supported where an array may have more than one item");
    }
  }
  for (const char* name : {"prefixItems", "items", "additionalItems", "unevaluatedItems"}) {
    const SchemaJson* value = find_keyword(schema, name);
    if (value == nullptr) continue;
    const bool is_list = value->is_array();
    if (name == std::string_view("prefixItems") ? !is_list : is_list && name != std::string_view("items")) {
      return names_.error_at(schema, fmt::format("{} must be a {}", name, is_list ? "schema" : "list of schemas"));
    }
    if (shape.array_schemas.empty()) shape.array_schemas.push_back(&schema);
  }
  return ok_status();
}

Status SchemaKeywords::read_objects(const SchemaJson& schema, Shape& shape) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> min_properties, count(schema, "minProperties"));
  ASSIGN_OR_RETURN(shape.max_properties, count(schema, "maxProperties"));
  shape.min_properties = min_properties.value_or(0);
  for (const char* name : {"properties", "patternProperties"}) {
    const SchemaJson* value = find_keyword(schema, name);
    if (value == nullptr) continue;
    if (!value->is_object()) return names_.error_at(schema, fmt::format("{} must be an object of schemas", name));
    shape.object_schemas.assign(1, &schema);
    for (const auto& [key, member] : value->items()) {  // draft 3 says it in the member
      const SchemaJson* is_required = name[1] == 'r' ? find_keyword(member, "required") : nullptr;
      if (is_required && *is_required == SchemaJson(true)) shape.required.insert(key);
    }
  }
  for (const char* name : {"additionalProperties", "unevaluatedProperties"}) {
    if (find_keyword(schema, name)) shape.object_schemas.assign(1, &schema);
  }
  if (const SchemaJson* names = find_keyword(schema, "propertyNames")) shape.property_names.push_back({names});
  if (const SchemaJson* required = find_keyword(schema, "required"); required && !required->is_boolean()) {
    if (!required->is_array()) return names_.error_at(schema, "required must be a list of strings");
    for (const SchemaJson& key : *required) {
      if (!key.is_string()) return names_.error_at(schema, "required must be a list of strings");
      shape.required.insert(key.get<std::string>());
    }
    shape.required_lists.push_back(required);
  }
  return ok_status();
}

}  // namespace spate
