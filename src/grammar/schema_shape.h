// Shape: what one way through a schema asks of a value, all keywords gathered by type. A schema without choices is one
// shape; anyOf, oneOf, if and the like make several, and the valid values are those of any.
//
// The schemas of members and items stay what they are: conjunctions of places in the schema, looked into when they are
// needed. There are finitely many, so recursive schemas end.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/byte_dfa.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/schema_names.h"

namespace spate {

// A schema, or the opposite of one.
struct SchemaTerm {
  const SchemaJson* schema = nullptr;
  bool is_negated = false;
  auto operator<=>(const SchemaTerm&) const = default;
};
// A value must satisfy all of them. Sorted. Empty: any value.
using Conjunction = std::vector<SchemaTerm>;

enum TypeBit : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,   // whole numbers
  kFraction = 8,  // other numbers
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

struct Shape {
  uint8_t types = kAnyType;
  std::optional<std::vector<const SchemaJson*>> values;  // enum, const: one of these
  std::vector<const SchemaJson*> excluded;               // none of these

  NumberRange numbers;

  int64_t min_length = 0;
  std::optional<int64_t> max_length;
  std::vector<std::shared_ptr<const ByteDfa>> string_dfas;  // patterns and formats, on the text between the quotes

  int64_t min_items = 0;
  std::optional<int64_t> max_items;
  std::vector<const SchemaJson*> array_schemas;  // that have prefixItems, items

  std::vector<const SchemaJson*> object_schemas;  // that have properties, patternProperties, additionalProperties
  std::vector<std::pair<std::string, SchemaTerm>> members;  // more schemas of single keys
  std::set<std::string> required, forbidden;
  std::vector<const SchemaJson*> required_lists;  // lists of `required`, for their order
  int64_t min_properties = 0;
  std::optional<int64_t> max_properties;
  Conjunction property_names;
};

// Reads a schema into shapes. Owned by one compilation.
class SchemaReader {
 public:
  SchemaReader(const SchemaJson& root, const JsonGrammarOptions& options, CompileBudget& budget)
      : options_(options), budget_(budget), names_(root, budget) {}

  Result<std::vector<Shape>> shapes_of(const Conjunction& conjunction);
  // References alone are replaced by what they refer to.
  Result<Conjunction> normalize(Conjunction conjunction);

  // The schemas of a shape's parts.
  Result<Conjunction> member_schema(const Shape& shape, const std::string& key);
  Result<Conjunction> item_schema(const Shape& shape, size_t index);
  size_t num_prefix_items(const Shape& shape) const;
  // Whether no value satisfies it, as far as is seen at once.
  Result<bool> allows_nothing(const Conjunction& conjunction);
  Result<bool> accepts(const Shape& shape, const SchemaJson& value);
  Result<bool> accepts(const Conjunction& conjunction, const SchemaJson& value);

  struct KeyPattern {
    std::shared_ptr<const ByteDfa> dfa;  // of keys as json_string_chars spells them
    SchemaTerm schema;
  };
  Result<std::vector<KeyPattern>> key_patterns(const SchemaJson& schema);
  std::optional<SchemaTerm> additional_properties(const SchemaJson& schema) const;

  const SchemaNames& names() const { return names_; }

 private:
  Result<std::vector<Shape>> shapes_of(SchemaTerm term);
  Result<std::vector<Shape>> shapes_of_schema(const SchemaJson& schema);
  Result<std::vector<Shape>> shapes_of_opposite(const SchemaJson& schema);
  Result<std::vector<Shape>> shapes_of_all(const SchemaJson& list, bool is_negated);
  Result<std::vector<Shape>> shapes_of_any(const SchemaJson& list, bool is_negated);
  Result<std::vector<Shape>> shapes_of_one(const SchemaJson& schema, const SchemaJson& list);
  Result<std::vector<Shape>> shapes_of_if(const SchemaJson& schema);
  Result<std::vector<Shape>> shapes_of_dependent_keys(const SchemaJson& schema, const std::string& key,
                                                      const SchemaJson& needed);
  Result<std::vector<Shape>> shapes_of_dependent_schema(const std::string& key, const SchemaJson& needed);
  Result<Shape> plain_shape(const SchemaJson& schema);
  Status read_types(const SchemaJson& schema, Shape& shape);
  Status read_numbers(const SchemaJson& schema, Shape& shape);
  Status read_strings(const SchemaJson& schema, Shape& shape);
  Result<bool> excludes_all(const ByteDfa& format, std::span<const std::shared_ptr<const ByteDfa>> patterns);
  Status read_arrays(const SchemaJson& schema, Shape& shape);
  Status read_objects(const SchemaJson& schema, Shape& shape);
  Status refuse_unsupported(const SchemaJson& schema);
  Result<std::vector<Shape>> product(const std::vector<Shape>& a, const std::vector<Shape>& b, const SchemaJson& at);
  Result<bool> are_disjoint(const Shape& a, const Shape& b, int depth);
  Result<bool> are_disjoint(const Conjunction& a, const Conjunction& b, int depth);
  Result<std::optional<int64_t>> count(const SchemaJson& schema, const char* name);
  Result<std::shared_ptr<const ByteDfa>> string_dfa(const SchemaJson& schema, const std::string& regex, bool anywhere);

  const JsonGrammarOptions& options_;
  CompileBudget& budget_;
  SchemaNames names_;
  std::set<SchemaTerm> open_;  // being read: a schema that refers to itself at once
  std::map<std::pair<std::string, bool>, std::shared_ptr<const ByteDfa>> dfas_;
};

}  // namespace spate
