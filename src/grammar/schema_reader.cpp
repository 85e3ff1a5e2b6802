#include "grammar/schema_reader.h"

#include <algorithm>

namespace spate {
namespace {

constexpr size_t kMaxShapes = 256;
constexpr int kMaxReferences = 100;
constexpr size_t kMaxOpenSchemas = 200;
constexpr int kMaxDisjointDepth = 3;
constexpr int64_t kUnitsPerLookUp = 5;  // of a key in one schema
constexpr size_t kKeysPerUnit = 64;     // that are compared in the time of a unit of work
constexpr size_t kValuesPerUnit = 4;
constexpr size_t kPairsPerUnit = 16;  // of branches without a value, that are looked at

// OpenAPI 3.0's nullable where no type says it: null, or what the rest of the schema asks for. Generators write it
// beside $ref, allOf and enum.
bool is_null_or(const SchemaJson& schema) {
  const SchemaJson* nullable = find_keyword(schema, "nullable");
  return nullable && *nullable == SchemaJson(true) && find_keyword(schema, "type") == nullptr;
}

uint8_t type_of(const SchemaJson& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_string()) return kString;
  if (value.is_array()) return kArray;
  if (value.is_object()) return kObject;
  const std::optional<Decimal> decimal = decimal_of(value);
  return decimal && decimal->fraction.empty() ? kInteger : kFraction;
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
  RETURN_IF_ERROR(keywords_.refuse_unsupported(schema));
  ASSIGN_OR_RETURN(Shape plain, keywords_.shape_of(schema));
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
      RETURN_IF_ERROR(keywords_.read_types(schema, given));
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
    ASSIGN_OR_RETURN(std::shared_ptr<const ByteDfa> dfa, keywords_.string_dfa(schema, pattern, true));
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
