#include "grammar/schema_shape.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <span>

#include "base/log.h"
#include "grammar/regex.h"

namespace spate {
namespace {

constexpr size_t kMaxShapes = 256;
constexpr int kMaxReferences = 100;
constexpr size_t kMaxOpenSchemas = 200;
constexpr int kMaxDisjointDepth = 3;
constexpr int64_t kMaxCount = 1'000'000'000;
constexpr int64_t kUnitsPerLookUp = 5;  // of a key in one schema
constexpr size_t kKeysPerUnit = 64;     // that are compared in the time of a unit of work
constexpr size_t kValuesPerUnit = 4;
constexpr int64_t kMaxUriChars = 512;  // where a maxLength bounds them: an automaton has states for each length
constexpr size_t kPairsPerUnit = 16;   // of branches without a value, that are looked at

std::optional<uint8_t> type_bits(const std::string& name) {
  static const std::map<std::string, uint8_t> kTypes{
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto it = kTypes.find(name);
  return it == kTypes.end() ? std::nullopt : std::optional(it->second);
}

// OpenAPI 3.0's nullable where no type says it: null, or what the rest of the schema asks for. Generators write it
// beside $ref, allOf and enum.
bool is_null_or(const SchemaJson& schema) {
  const SchemaJson* nullable = find_keyword(schema, "nullable");
  return nullable && *nullable == SchemaJson(true) && find_keyword(schema, "type") == nullptr;
}

std::optional<Decimal> decimal_of(const SchemaJson& number) { return Decimal::parse(number.dump()); }

uint8_t type_of(const SchemaJson& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_string()) return kString;
  if (value.is_array()) return kArray;
  if (value.is_object()) return kObject;
  const std::optional<Decimal> decimal = decimal_of(value);
  return decimal && decimal->fraction.empty() ? kInteger : kFraction;
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

// What copying and comparing the lists of a shape takes.
int64_t size_of(const Shape& shape) {
  const size_t num_values = (shape.values ? shape.values->size() : 0) + shape.excluded.size();
  const size_t num_schemas = shape.array_schemas.size() + shape.object_schemas.size() + shape.string_dfas.size() +
                             shape.numbers.multiples.size() + shape.property_names.size() + shape.required_lists.size();
  // Keys lie in trees and own their text.
  const size_t num_keys = shape.members.size() + shape.required.size() + shape.forbidden.size();
  return static_cast<int64_t>((num_values + num_schemas) / 16 + 4 * num_keys);
}

size_t num_chars(const std::string& text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) next_utf8_char(text, pos);
  return count;
}

std::string key_body(const std::string& key) {
  const std::string quoted = json_value_text(key);
  return quoted.substr(1, quoted.size() - 2);
}

void tighten(std::optional<NumberBound>& bound, const NumberBound& other, int direction) {
  if (bound) {
    const int order = direction * compare(other.value, bound->value);
    if (order < 0 || (order == 0 && !other.is_exclusive)) return;
  }
  bound = other;
}

template <typename T>
void tighten_max(std::optional<T>& bound, const std::optional<T>& other) {
  if (other && (!bound || *other < *bound)) bound = other;
}

Shape merge(const Shape& a, const Shape& b) {
  Shape out = a;
  out.types &= b.types;
  if (b.values && out.values) {
    std::erase_if(*out.values, [&](const SchemaJson* value) {
      return std::ranges::none_of(*b.values, [&](const SchemaJson* other) { return *other == *value; });
    });
  } else if (b.values) {
    out.values = b.values;
  }
  const auto append = [](auto& list, const auto& more) { list.insert(list.end(), more.begin(), more.end()); };
  append(out.excluded, b.excluded);
  out.numbers.integers_only = out.numbers.integers_only || b.numbers.integers_only;
  if (b.numbers.lower) tighten(out.numbers.lower, *b.numbers.lower, 1);
  if (b.numbers.upper) tighten(out.numbers.upper, *b.numbers.upper, -1);
  append(out.numbers.multiples, b.numbers.multiples);
  out.min_length = std::max(out.min_length, b.min_length);
  tighten_max(out.max_length, b.max_length);
  append(out.string_dfas, b.string_dfas);
  out.min_items = std::max(out.min_items, b.min_items);
  tighten_max(out.max_items, b.max_items);
  append(out.array_schemas, b.array_schemas);
  append(out.object_schemas, b.object_schemas);
  append(out.members, b.members);
  out.required.insert(b.required.begin(), b.required.end());
  append(out.required_lists, b.required_lists);
  out.forbidden.insert(b.forbidden.begin(), b.forbidden.end());
  out.min_properties = std::max(out.min_properties, b.min_properties);
  tighten_max(out.max_properties, b.max_properties);
  append(out.property_names, b.property_names);
  return out;
}

}  // namespace

Result<Conjunction> SchemaReader::normalize(Conjunction conjunction) {
  for (SchemaTerm& term : conjunction) {
    for (int i = 0;; ++i) {
      const SchemaJson* ref = find_keyword(*term.schema, "$ref");
      static constexpr std::string_view kAnnotations[] = {"$ref",  "title",    "description", "default",
                                                          "$defs", "examples", "definitions", "deprecated"};
      const auto is_alone = [&] {
        for (const auto& [key, value] : term.schema->items()) {
          if (std::ranges::find(kAnnotations, key) == std::end(kAnnotations)) return false;
        }
        return true;
      };
      if (ref == nullptr || !is_alone()) break;
      if (i == kMaxReferences) return names_.error_at(*term.schema, "$ref refers to itself");
      ASSIGN_OR_RETURN(term.schema, names_.resolve(*term.schema));
    }
  }
  std::ranges::sort(conjunction);
  conjunction.erase(std::unique(conjunction.begin(), conjunction.end()), conjunction.end());
  return conjunction;
}

// --- shapes ---

Result<std::vector<Shape>> SchemaReader::shapes_of(const Conjunction& conjunction) {
  std::vector<Shape> shapes{Shape{}};
  for (const SchemaTerm& term : conjunction) {
    ASSIGN_OR_RETURN(const std::vector<Shape> more, shapes_of(term));
    ASSIGN_OR_RETURN(shapes, product(shapes, more, *term.schema));
  }
  return shapes;
}

Result<std::vector<Shape>> SchemaReader::shapes_of(SchemaTerm term) {
  if (!budget_.spend(100)) return budget_.error();
  const SchemaJson& schema = *term.schema;
  if (schema.is_boolean()) {
    return schema.get<bool>() != term.is_negated ? std::vector<Shape>{Shape{}} : std::vector<Shape>{};
  }
  if (!schema.is_object()) return names_.error_at(schema, "a schema must be an object or a boolean");
  if (open_.size() == kMaxOpenSchemas) {
    return names_.error_at(
        schema, fmt::format("more than {} schemas stand in one another without a value in between", kMaxOpenSchemas));
  }
  if (!open_.insert(term).second) return names_.error_at(schema, "$ref refers to itself without a value in between");
  Result<std::vector<Shape>> shapes = term.is_negated ? shapes_of_opposite(schema) : shapes_of_schema(schema);
  open_.erase(term);
  return shapes;
}

Result<std::vector<Shape>> SchemaReader::product(const std::vector<Shape>& a, const std::vector<Shape>& b,
                                                 const SchemaJson& at) {
  if (a.size() * b.size() > kMaxShapes) {
    return names_.error_at(at, fmt::format("anyOf, oneOf, allOf and if make more than {} combinations", kMaxShapes));
  }
  std::vector<Shape> out;
  for (const Shape& x : a) {
    for (const Shape& y : b) {
      const auto num_comparisons = x.values && y.values ? x.values->size() * y.values->size() : 0;
      const int64_t units = 100 + static_cast<int64_t>(num_comparisons) + size_of(x) + size_of(y);
      if (!budget_.spend(units)) return budget_.error();
      Shape merged = merge(x, y);
      if (merged.types != 0) out.push_back(std::move(merged));
    }
  }
  return out;
}

Result<std::vector<Shape>> SchemaReader::shapes_of_schema(const SchemaJson& schema) {
  RETURN_IF_ERROR(refuse_unsupported(schema));
  ASSIGN_OR_RETURN(Shape plain, plain_shape(schema));
  std::vector<Shape> shapes{std::move(plain)};
  const auto restrict_to = [&](Result<std::vector<Shape>> more) -> Status {
    RETURN_IF_ERROR(more.status());
    ASSIGN_OR_RETURN(shapes, product(shapes, *more, schema));
    return ok_status();
  };
  if (find_keyword(schema, "$ref")) {
    ASSIGN_OR_RETURN(const SchemaJson* target, names_.resolve(schema));
    RETURN_IF_ERROR(restrict_to(shapes_of(SchemaTerm{target})));
  }
  for (const char* name : {"allOf", "anyOf", "oneOf"}) {
    const SchemaJson* list = find_keyword(schema, name);
    if (list == nullptr) continue;
    if (!list->is_array() || list->empty())
      return names_.error_at(schema, fmt::format("{} must be a list of schemas", name));
    RETURN_IF_ERROR(restrict_to(name[1] == 'l'                     ? shapes_of_all(*list, false)
                                : name[1] == 'n' && name[0] == 'a' ? shapes_of_any(*list, false)
                                                                   : shapes_of_one(schema, *list)));
  }
  if (const SchemaJson* negated = find_keyword(schema, "not"))
    RETURN_IF_ERROR(restrict_to(shapes_of(SchemaTerm{negated, true})));
  if (find_keyword(schema, "if")) RETURN_IF_ERROR(restrict_to(shapes_of_if(schema)));
  for (const char* name : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const SchemaJson* dependent = find_keyword(schema, name);
    if (dependent == nullptr) continue;
    if (!dependent->is_object()) return names_.error_at(schema, fmt::format("{} must be an object", name));
    for (const auto& [key, needed] : dependent->items()) {
      const bool is_list = name[9] == 'R' || (name[9] == 'i' && needed.is_array());
      RETURN_IF_ERROR(restrict_to(is_list ? shapes_of_dependent_keys(schema, key, needed)
                                          : shapes_of_dependent_schema(key, needed)));
    }
  }
  if (is_null_or(schema)) shapes.push_back(Shape{.types = kNull});
  return shapes;
}

// The object lacks the key, or has it and all the others.
Result<std::vector<Shape>> SchemaReader::shapes_of_dependent_keys(const SchemaJson& schema, const std::string& key,
                                                                  const SchemaJson& needed) {
  Shape without, with;
  without.forbidden.insert(key);
  with.required.insert(key);
  if (!needed.is_array()) return names_.error_at(schema, "dependentRequired must have lists of strings");
  for (const SchemaJson& each : needed) {
    if (!each.is_string())
      return names_.error_at(schema, "dependentRequired and dependencies must have lists of strings");
    with.required.insert(each.get<std::string>());
  }
  return std::vector<Shape>{std::move(without), std::move(with)};
}

// The object lacks the key, or has it and satisfies the schema.
Result<std::vector<Shape>> SchemaReader::shapes_of_dependent_schema(const std::string& key, const SchemaJson& needed) {
  Shape without, with{.types = kObject};
  without.forbidden.insert(key);
  with.required.insert(key);
  ASSIGN_OR_RETURN(std::vector<Shape> shapes, shapes_of(SchemaTerm{&needed}));
  ASSIGN_OR_RETURN(shapes, product({with}, shapes, needed));
  shapes.push_back(std::move(without));
  return shapes;
}

Result<std::vector<Shape>> SchemaReader::shapes_of_all(const SchemaJson& list, bool is_negated) {
  std::vector<Shape> shapes{Shape{}};
  for (const SchemaJson& each : list) {
    ASSIGN_OR_RETURN(const std::vector<Shape> more, shapes_of(SchemaTerm{&each, is_negated}));
    ASSIGN_OR_RETURN(shapes, product(shapes, more, list));
  }
  return shapes;
}

Result<std::vector<Shape>> SchemaReader::shapes_of_any(const SchemaJson& list, bool is_negated) {
  std::vector<Shape> shapes;
  for (const SchemaJson& each : list) {
    ASSIGN_OR_RETURN(std::vector<Shape> more, shapes_of(SchemaTerm{&each, is_negated}));
    std::ranges::move(more, std::back_inserter(shapes));
    if (shapes.size() > kMaxShapes)
      return names_.error_at(list, fmt::format("there are more than {} alternatives", kMaxShapes));
  }
  return shapes;
}

// As anyOf where no two branches share a value; else each branch without the values of the others.
Result<std::vector<Shape>> SchemaReader::shapes_of_one(const SchemaJson& schema, const SchemaJson& list) {
  std::vector<std::vector<Shape>> branches;
  for (const SchemaJson& each : list) {
    ASSIGN_OR_RETURN(std::vector<Shape> branch, shapes_of(SchemaTerm{&each}));
    branches.push_back(std::move(branch));
  }
  const size_t num_branches = branches.size();
  std::vector<std::vector<size_t>> overlaps(num_branches);  // in order; each one has cost units of work
  for (size_t i = 0; i < num_branches; ++i) {
    if (!budget_.spend(1 + static_cast<int64_t>((num_branches - i) / kPairsPerUnit))) return budget_.error();
    for (size_t j = i + 1; j < num_branches; ++j) {
      bool disjoint = true;
      for (const Shape& a : branches[i]) {
        for (const Shape& b : branches[j]) {
          if (!disjoint) break;
          ASSIGN_OR_RETURN(disjoint, are_disjoint(a, b, 0));
        }
      }
      if (disjoint) continue;
      overlaps[i].push_back(j);
      overlaps[j].push_back(i);
    }
  }
  std::vector<Shape> shapes;
  for (size_t i = 0; i < num_branches; ++i) {
    std::vector<Shape> alone = branches[i];
    for (const size_t j : overlaps[i]) {
      const Result<std::vector<Shape>> opposite = shapes_of(SchemaTerm{&list[j], true});
      if (budget_.is_spent()) return budget_.error();
      if (!opposite.ok()) {
        return names_.error_at(
            schema, fmt::format("oneOf: a value may match both branch {} and branch {}; tell them apart by a "
                                "required property with const, or use anyOf",
                                std::min(i, j), std::max(i, j)));
      }
      ASSIGN_OR_RETURN(alone, product(alone, *opposite, schema));
    }
    std::ranges::move(alone, std::back_inserter(shapes));
    if (shapes.size() > kMaxShapes)
      return names_.error_at(schema, fmt::format("there are more than {} alternatives", kMaxShapes));
  }
  return shapes;
}

// (if and then) or (not if and else).
Result<std::vector<Shape>> SchemaReader::shapes_of_if(const SchemaJson& schema) {
  const SchemaJson* condition = find_keyword(schema, "if");
  std::vector<Shape> shapes;
  for (const bool is_else : {false, true}) {
    const SchemaJson* branch = find_keyword(schema, is_else ? "else" : "then");
    if (find_keyword(schema, "then") == nullptr && find_keyword(schema, "else") == nullptr)
      return std::vector<Shape>{Shape{}};
    ASSIGN_OR_RETURN(std::vector<Shape> part, shapes_of(SchemaTerm{condition, is_else}));
    if (branch != nullptr) {
      ASSIGN_OR_RETURN(const std::vector<Shape> more, shapes_of(SchemaTerm{branch}));
      ASSIGN_OR_RETURN(part, product(part, more, schema));
    }
    std::ranges::move(part, std::back_inserter(shapes));
  }
  return shapes;
}

// Not (A and B and ...) is (not A) or (not B) or ...; one keyword after the other.
Result<std::vector<Shape>> SchemaReader::shapes_of_opposite(const SchemaJson& schema) {
  std::vector<Shape> shapes;
  const auto add = [&](std::vector<Shape> more) { std::ranges::move(more, std::back_inserter(shapes)); };
  // Of these no opposite is built; what is no keyword says nothing here either.
  // clang-format off
  static constexpr std::string_view kOthers[] = {
      "$dynamicRef", "$recursiveRef", "oneOf", "if", "then", "else", "multipleOf", "divisibleBy", "minimum",
      "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format", "minItems",
      "maxItems", "uniqueItems", "prefixItems", "items", "additionalItems", "contains", "minContains", "maxContains",
      "unevaluatedItems", "minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependencies",
      "dependentSchemas", "patternProperties", "additionalProperties", "unevaluatedProperties", "extends", "disallow",
  };
  // clang-format on
  const auto check_kind = [&](const std::string& keyword, const SchemaJson& value) -> Status {
    const bool is_list = keyword == "enum" || keyword == "required" || keyword == "anyOf" || keyword == "allOf";
    if (is_list && !value.is_array()) return names_.error_at(schema, fmt::format("{} must be a list", keyword));
    if (keyword == "properties" && !value.is_object())
      return names_.error_at(schema, "properties must be an object of schemas");
    return ok_status();
  };
  for (const auto& [keyword, value] : schema.items()) {
    RETURN_IF_ERROR(check_kind(keyword, value));
    if (keyword == "type") {
      Shape given;
      RETURN_IF_ERROR(read_types(schema, given));
      if ((given.types & kInteger) != (given.types & kFraction) / 2) {
        return names_.error_at(schema, "the opposite of type integer is not supported");
      }
      add({Shape{.types = static_cast<uint8_t>(kAnyType & ~given.types)}});
    } else if (keyword == "const" || keyword == "enum") {
      Shape shape;
      if (keyword == "const") {
        shape.excluded.push_back(&value);
      } else {
        for (const SchemaJson& each : value) shape.excluded.push_back(&each);
      }
      add({std::move(shape)});
    } else if (keyword == "required") {
      for (const SchemaJson& key : value) {
        if (!key.is_string()) return names_.error_at(schema, "required must be a list of strings");
        Shape shape{.types = kObject};
        shape.forbidden.insert(key.get<std::string>());
        add({std::move(shape)});
      }
    } else if (keyword == "properties") {
      for (const auto& [key, member] : value.items()) {
        Shape shape{.types = kObject};
        shape.required.insert(key);
        shape.members.emplace_back(key, SchemaTerm{&member, true});
        add({std::move(shape)});
      }
    } else if (keyword == "not") {
      ASSIGN_OR_RETURN(std::vector<Shape> more, shapes_of(SchemaTerm{&value}));
      add(std::move(more));
    } else if (keyword == "anyOf") {
      ASSIGN_OR_RETURN(std::vector<Shape> more, shapes_of_all(value, true));
      add(std::move(more));
    } else if (keyword == "allOf") {
      ASSIGN_OR_RETURN(std::vector<Shape> more, shapes_of_any(value, true));
      add(std::move(more));
    } else if (keyword == "$ref") {
      ASSIGN_OR_RETURN(const SchemaJson* target, names_.resolve(schema));
      ASSIGN_OR_RETURN(std::vector<Shape> more, shapes_of(SchemaTerm{target, true}));
      add(std::move(more));
    } else if (std::ranges::find(kOthers, keyword) != std::end(kOthers)) {
      return names_.error_at(schema,
                             fmt::format("the opposite of {} (in `not`, `if` or `oneOf`) is not supported", keyword));
    }
  }
  for (Shape& shape : shapes) {
    if (is_null_or(schema)) shape.types &= static_cast<uint8_t>(~kNull);
  }
  std::erase_if(shapes, [](const Shape& shape) { return shape.types == 0; });
  return shapes;
}

// --- keywords ---

Status SchemaReader::refuse_unsupported(const SchemaJson& schema) {
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

Result<Shape> SchemaReader::plain_shape(const SchemaJson& schema) {
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

Status SchemaReader::read_types(const SchemaJson& schema, Shape& shape) {
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

Result<std::optional<int64_t>> SchemaReader::count(const SchemaJson& schema, const char* name) {
  const SchemaJson* value = find_keyword(schema, name);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<Decimal> decimal = value->is_number() ? decimal_of(*value) : std::nullopt;
  if (!decimal || decimal->is_negative || !decimal->fraction.empty() || decimal->integer.size() > 9) {
    return names_.error_at(schema, fmt::format("{} must be a whole number from 0 to {}", name, kMaxCount - 1));
  }
  return std::optional<int64_t>(std::stoll(decimal->integer));
}

Status SchemaReader::read_numbers(const SchemaJson& schema, Shape& shape) {
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

Result<std::shared_ptr<const ByteDfa>> SchemaReader::string_dfa(const SchemaJson& schema, const std::string& regex,
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
Result<bool> SchemaReader::excludes_all(const ByteDfa& format,
                                        std::span<const std::shared_ptr<const ByteDfa>> patterns) {
  if (patterns.empty()) return false;
  ASSIGN_OR_RETURN(const ByteDfa both, ByteDfa::intersection(*patterns.front(), format, budget_));
  return both.is_empty() && !patterns.front()->is_empty();
}

Status SchemaReader::read_strings(const SchemaJson& schema, Shape& shape) {
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

Status SchemaReader::read_arrays(const SchemaJson& schema, Shape& shape) {
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

Status SchemaReader::read_objects(const SchemaJson& schema, Shape& shape) {
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

// --- parts of a shape ---

std::optional<SchemaTerm> SchemaReader::additional_properties(const SchemaJson& schema) const {
  static const SchemaJson kFalse = false;
  if (const SchemaJson* additional = find_keyword(schema, "additionalProperties")) return SchemaTerm{additional};
  if (const SchemaJson* additional = find_keyword(schema, "unevaluatedProperties")) return SchemaTerm{additional};
  if (!options_.default_additional_properties) return SchemaTerm{&kFalse};
  return std::nullopt;
}

Result<std::vector<SchemaReader::KeyPattern>> SchemaReader::key_patterns(const SchemaJson& schema) {
  std::vector<KeyPattern> patterns;
  const SchemaJson* found = find_keyword(schema, "patternProperties");
  if (found == nullptr) return patterns;
  for (const auto& [pattern, member] : found->items()) {
    ASSIGN_OR_RETURN(std::shared_ptr<const ByteDfa> dfa, string_dfa(schema, pattern, true));
    patterns.push_back({std::move(dfa), {&member}});
  }
  return patterns;
}

Result<Conjunction> SchemaReader::member_schema(const Shape& shape, const std::string& key) {
  Conjunction found;
  for (const SchemaJson* schema : shape.object_schemas) {
    if (!budget_.spend(kUnitsPerLookUp)) return budget_.error();
    bool is_named = false;
    if (const SchemaJson* properties = find_keyword(*schema, "properties")) {
      if (!budget_.spend(static_cast<int64_t>(properties->size() / kKeysPerUnit))) return budget_.error();
      if (const SchemaJson* member = find_keyword(*properties, key)) {
        found.push_back({member});
        is_named = true;
      }
    }
    ASSIGN_OR_RETURN(const std::vector<KeyPattern> patterns, key_patterns(*schema));
    for (const KeyPattern& pattern : patterns) {
      if (!pattern.dfa->accepts(key_body(key))) continue;
      found.push_back(pattern.schema);
      is_named = true;
    }
    if (is_named) continue;
    if (const std::optional<SchemaTerm> additional = additional_properties(*schema)) found.push_back(*additional);
  }
  for (const auto& [name, schema] : shape.members) {
    if (name == key) found.push_back(schema);
  }
  return normalize(std::move(found));
}

size_t SchemaReader::num_prefix_items(const Shape& shape) const {
  size_t count = 0;
  for (const SchemaJson* schema : shape.array_schemas) {
    if (const SchemaJson* prefix = find_keyword(*schema, "prefixItems")) count = std::max(count, prefix->size());
    if (const SchemaJson* items = find_keyword(*schema, "items"); items && items->is_array())
      count = std::max(count, items->size());
  }
  return count;
}

Result<Conjunction> SchemaReader::item_schema(const Shape& shape, size_t index) {
  Conjunction found;
  for (const SchemaJson* schema : shape.array_schemas) {
    const SchemaJson* items = find_keyword(*schema, "items");
    const SchemaJson* prefix = find_keyword(*schema, "prefixItems");
    if (items != nullptr && items->is_array()) {  // before 2020-12
      prefix = items;
      items = find_keyword(*schema, "additionalItems");
    }
    if (items == nullptr) items = find_keyword(*schema, "unevaluatedItems");
    if (prefix != nullptr && index < prefix->size()) {
      found.push_back({&(*prefix)[index]});
    } else if (items != nullptr) {
      found.push_back({items});
    }
  }
  return normalize(std::move(found));
}

Result<bool> SchemaReader::allows_nothing(const Conjunction& conjunction) {
  return std::ranges::any_of(conjunction, [](const SchemaTerm& term) {
    return term.schema->is_boolean() && term.schema->get<bool>() == term.is_negated;
  });
}

// --- values ---

Result<bool> SchemaReader::accepts(const Conjunction& conjunction, const SchemaJson& value) {
  ASSIGN_OR_RETURN(const std::vector<Shape> shapes, shapes_of(conjunction));
  for (const Shape& shape : shapes) {
    ASSIGN_OR_RETURN(const bool accepted, accepts(shape, value));
    if (accepted) return true;
  }
  return false;
}

Result<bool> SchemaReader::accepts(const Shape& shape, const SchemaJson& value) {
  const size_t num_compared = (shape.values ? shape.values->size() : 0) + shape.excluded.size();
  if (!budget_.spend(50 + static_cast<int64_t>(num_compared / kValuesPerUnit))) return budget_.error();
  const uint8_t type = type_of(value);
  const auto equals = [&](const SchemaJson* other) { return *other == value; };
  if ((shape.types & type) == 0) return false;
  if (shape.values && std::ranges::none_of(*shape.values, equals)) return false;
  if (std::ranges::any_of(shape.excluded, equals)) return false;
  if (type == kInteger || type == kFraction) {
    const std::optional<Decimal> decimal = decimal_of(value);
    return decimal && shape.numbers.contains(*decimal);
  }
  if (type == kString) {
    const auto& text = value.get_ref<const std::string&>();
    const auto length = static_cast<int64_t>(num_chars(text));
    if (length < shape.min_length || length > shape.max_length.value_or(length)) return false;
    return std::ranges::all_of(shape.string_dfas, [&](const auto& dfa) { return dfa->accepts(key_body(text)); });
  }
  const auto size = static_cast<int64_t>(value.size());
  if (type == kArray) {
    if (size < shape.min_items || size > shape.max_items.value_or(size)) return false;
    for (size_t i = 0; i < value.size(); ++i) {
      ASSIGN_OR_RETURN(const Conjunction item, item_schema(shape, i));
      ASSIGN_OR_RETURN(const bool accepted, accepts(item, value[i]));
      if (!accepted) return false;
    }
  }
  if (type == kObject) {
    if (size < shape.min_properties || size > shape.max_properties.value_or(size)) return false;
    for (const std::string& key : shape.required) {
      if (!value.contains(key)) return false;
    }
    for (const auto& [key, member] : value.items()) {
      if (shape.forbidden.contains(key)) return false;
      ASSIGN_OR_RETURN(const Conjunction schema, member_schema(shape, key));
      ASSIGN_OR_RETURN(const bool accepted, accepts(schema, member));
      ASSIGN_OR_RETURN(const bool named_well, accepts(shape.property_names, SchemaJson(key)));
      if (!accepted || !named_well) return false;
    }
  }
  return true;
}

Result<bool> SchemaReader::are_disjoint(const Conjunction& a, const Conjunction& b, int depth) {
  ASSIGN_OR_RETURN(const std::vector<Shape> a_shapes, shapes_of(a));
  ASSIGN_OR_RETURN(const std::vector<Shape> b_shapes, shapes_of(b));
  for (const Shape& x : a_shapes) {
    for (const Shape& y : b_shapes) {
      ASSIGN_OR_RETURN(const bool disjoint, are_disjoint(x, y, depth));
      if (!disjoint) return false;
    }
  }
  return true;
}

// Whether it is certain that no value satisfies both.
Result<bool> SchemaReader::are_disjoint(const Shape& a, const Shape& b, int depth) {
  if (!budget_.spend(50 + size_of(a) + size_of(b))) return budget_.error();
  const Shape both = merge(a, b);
  if (both.types == 0) return true;
  for (const Shape* shape : {&a, &b}) {
    if (!shape->values) continue;
    for (const SchemaJson* value : *shape->values) {
      ASSIGN_OR_RETURN(const bool in_a, accepts(a, *value));
      ASSIGN_OR_RETURN(const bool in_b, accepts(b, *value));
      if (in_a && in_b) return false;
    }
    return true;
  }
  if ((both.types & (kNull | kBoolean)) != 0) return false;
  if ((both.types & (kInteger | kFraction)) != 0) {
    const auto& [lower, upper] = std::pair(both.numbers.lower, both.numbers.upper);
    const int order = lower && upper ? compare(lower->value, upper->value) : -1;
    if (order < 0 || (order == 0 && !lower->is_exclusive && !upper->is_exclusive)) return false;
  }
  if ((both.types & kString) != 0 && (!both.max_length || both.min_length <= *both.max_length)) return false;
  if ((both.types & kArray) != 0 && (!both.max_items || both.min_items <= *both.max_items)) return false;
  if ((both.types & kObject) == 0) return true;
  if (both.max_properties && both.min_properties > *both.max_properties) return true;
  for (const std::string& key : both.required) {
    if (both.forbidden.contains(key)) return true;
    ASSIGN_OR_RETURN(const Conjunction in_a, member_schema(a, key));
    ASSIGN_OR_RETURN(const Conjunction in_b, member_schema(b, key));
    ASSIGN_OR_RETURN(const bool a_has_none, allows_nothing(in_a));
    ASSIGN_OR_RETURN(const bool b_has_none, allows_nothing(in_b));
    if (a_has_none || b_has_none) return true;
    if (depth == kMaxDisjointDepth) continue;
    // A member that refers back to the schema being read cannot be looked into; another one may tell them apart.
    const Result<bool> disjoint = are_disjoint(in_a, in_b, depth + 1);
    if (disjoint.ok() && *disjoint) return true;
  }
  return false;
}

}  // namespace spate
