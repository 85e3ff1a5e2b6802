// Shape: what one way through a schema asks of a value, all keywords gathered by type. A schema without choices is one
// shape; anyOf, oneOf, if and the like make several, and the valid values are those of any.
//
// The schemas of members and items stay what they are: conjunctions of places in the schema, looked into when they are
// needed. There are finitely many, so recursive schemas end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/byte_dfa.h"
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

// What satisfies both.
Shape merge(const Shape& a, const Shape& b);
// The units of work that copying and comparing the lists of a shape takes.
int64_t size_of(const Shape& shape);
// `bound` becomes the tighter of both. direction: 1 of lower bounds, -1 of upper ones.
void tighten(std::optional<NumberBound>& bound, const NumberBound& other, int direction);

std::optional<Decimal> decimal_of(const SchemaJson& number);

}  // namespace spate
