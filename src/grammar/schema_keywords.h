// SchemaKeywords: what the keywords of a schema say, each for itself, as a shape. Those that make choices, or refer to
// other schemas, are SchemaReader's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "grammar/schema_shape.h"

namespace spate {

class SchemaKeywords {
 public:
  // Both must outlive this.
  SchemaKeywords(const SchemaNames& names, CompileBudget& budget) : names_(names), budget_(budget) {}

  // An error where the schema has a keyword without which it would mean something else.
  Status refuse_unsupported(const SchemaJson& schema);
  Result<Shape> shape_of(const SchemaJson& schema);
  Status read_types(const SchemaJson& schema, Shape& shape);  // type alone
  // Of texts that match the regex, as json_string_chars spells them. Kept: equal ones are made once.
  Result<std::shared_ptr<const ByteDfa>> string_dfa(const SchemaJson& schema, const std::string& regex, bool anywhere);

 private:
  Status read_numbers(const SchemaJson& schema, Shape& shape);
  Status read_strings(const SchemaJson& schema, Shape& shape);
  Status read_arrays(const SchemaJson& schema, Shape& shape);
  Status read_objects(const SchemaJson& schema, Shape& shape);
  Result<std::optional<int64_t>> count(const SchemaJson& schema, const char* name);
  Result<bool> excludes_all(const ByteDfa& format, std::span<const std::shared_ptr<const ByteDfa>> patterns);

  const SchemaNames& names_;
  CompileBudget& budget_;
  std::map<std::pair<std::string, bool>, std::shared_ptr<const ByteDfa>> dfas_;
};

}  // namespace spate
