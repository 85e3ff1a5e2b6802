#include "grammar/schema_shape.h"

#include <algorithm>

namespace spate {
namespace {

template <typename T>
void tighten_max(std::optional<T>& bound, const std::optional<T>& other) {
  if (other && (!bound || *other < *bound)) bound = other;
}

}  // namespace

std::optional<Decimal> decimal_of(const SchemaJson& number) { return Decimal::parse(number.dump()); }

int64_t size_of(const Shape& shape) {
  const size_t num_values = (shape.values ? shape.values->size() : 0) + shape.excluded.size();
  const size_t num_schemas = shape.array_schemas.size() + shape.object_schemas.size() + shape.string_dfas.size() +
                             shape.numbers.multiples.size() + shape.property_names.size() + shape.required_lists.size();
  // Keys lie in trees and own their text.
  const size_t num_keys = shape.members.size() + shape.required.size() + shape.forbidden.size();
  return static_cast<int64_t>((num_values + num_schemas) / 16 + 4 * num_keys);
}

void tighten(std::optional<NumberBound>& bound, const NumberBound& other, int direction) {
  if (bound) {
    const int order = direction * compare(other.value, bound->value);
    if (order < 0 || (order == 0 && !other.is_exclusive)) return;
  }
  bound = other;
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

}  // namespace spate
