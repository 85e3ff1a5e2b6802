// Where a schema stands in its document, and what its references name: $ref, $id, $anchor, $dynamicAnchor and "id" of
// draft 4, JSON pointers among them. Other documents are not read.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "grammar/compile_budget.h"

namespace spate {

using SchemaJson = nlohmann::ordered_json;

// The value of a keyword; null where the schema is no object or has none.
const SchemaJson* find_keyword(const SchemaJson& schema, const std::string& name);

class SchemaNames {
 public:
  // Both must outlive this.
  SchemaNames(const SchemaJson& root, CompileBudget& budget) : root_(root), budget_(budget) {}

  // What the $ref of `schema` names. An error where there is none in the document, or the budget is spent.
  Result<const SchemaJson*> resolve(const SchemaJson& schema);
  // invalid_argument that says where in the document `schema` stands.
  Status error_at(const SchemaJson& schema, const std::string& problem) const;

 private:
  const SchemaJson* resource_of(const SchemaJson& schema);
  const SchemaJson* find_fragment(const SchemaJson& base, const std::string& fragment);  // null: there is none

  const SchemaJson& root_;
  CompileBudget& budget_;
  std::optional<bool> has_inner_ids_;  // schemas in the document have an $id of their own
};

}  // namespace spate
