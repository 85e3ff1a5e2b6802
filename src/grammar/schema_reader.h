// SchemaReader: a schema as shapes. Choices (anyOf, oneOf, not, if and the like) make several; what each keyword says
// for itself is read by SchemaKeywords.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/json_schema.h"
#include "grammar/schema_keywords.h"
#include "grammar/schema_shape.h"

namespace spate {

// Owned by one compilation.
class SchemaReader {
 public:
  SchemaReader(const SchemaJson& root, const JsonGrammarOptions& options, CompileBudget& budget)
      : options_(options), budget_(budget), names_(root, budget), keywords_(names_, budget) {}

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
  Result<std::vector<Shape>> product(const std::vector<Shape>& a, const std::vector<Shape>& b, const SchemaJson& at);
  Result<bool> are_disjoint(const Shape& a, const Shape& b, int depth);
  Result<bool> are_disjoint(const Conjunction& a, const Conjunction& b, int depth);

  const JsonGrammarOptions& options_;
  CompileBudget& budget_;
  SchemaNames names_;
  SchemaKeywords keywords_;
  std::set<SchemaTerm> open_;  // being read: a schema that refers to itself at once
};

}  // namespace spate
