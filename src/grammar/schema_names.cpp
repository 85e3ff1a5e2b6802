#include "grammar/schema_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

namespace spate {
namespace {

// JSON pointer of `target` below `node`; for messages. Not found where the budget is spent: a message may be one of
// very many that nobody reads, as where branches of a oneOf cannot be looked into.
bool find_place(const SchemaJson& node, const SchemaJson* target, std::string& path, CompileBudget& budget) {
  if (&node == target) return true;
  if (!node.is_structured() || !budget.spend(1 + static_cast<int64_t>(node.size()))) return false;
  for (const auto& [key, child] : node.items()) {
    const size_t len = path.size();
    path.append(1, '/').append(key);
    if (find_place(child, target, path, budget)) return true;
    path.resize(len);
  }
  return false;
}

// By a keyword and its value.
using SchemaName = std::pair<const char*, std::string>;

// An $id that begins another resource, with names of its own.
bool has_resource_id(const SchemaJson& node) {
  const SchemaJson* id = find_keyword(node, "$id");
  return id && id->is_string() && !id->get_ref<const std::string&>().starts_with('#');
}

// The first schema that has one of the names. `inside`: which schemas below are looked at. names_schemas: the keys of
// `node` are names that the schema gives, no keywords. What stands in values (enum, const, default, examples) names
// nothing. Null also when the budget is spent.
enum class NamesOf : uint8_t { kAll, kOneResource };
const SchemaJson* find_named(const SchemaJson& node, std::span<const SchemaName> names, CompileBudget& budget,
                             NamesOf inside = NamesOf::kAll, bool names_schemas = false) {
  if (!node.is_structured() || !budget.spend(1 + static_cast<int64_t>(node.size()))) return nullptr;
  static constexpr std::string_view kValues[] = {"enum", "const", "default", "examples"};
  static constexpr std::string_view kMaps[] = {"properties",  "patternProperties", "$defs",
                                               "definitions", "dependentSchemas",  "dependencies"};
  const bool is_schema = node.is_object() && !names_schemas;
  for (const auto& [keyword, name] : names) {
    const SchemaJson* found = is_schema ? find_keyword(node, keyword) : nullptr;
    if (found && found->is_string() && *found == name) return &node;
  }
  for (const auto& [key, child] : node.items()) {
    if (is_schema && std::ranges::find(kValues, key) != std::end(kValues)) continue;
    if (inside == NamesOf::kOneResource && has_resource_id(child)) continue;
    const bool is_map = is_schema && std::ranges::find(kMaps, key) != std::end(kMaps);
    if (const SchemaJson* found = find_named(child, names, budget, inside, is_map)) return found;
  }
  return nullptr;
}

// The schemas from `node` down to `target`, both among them; empty where it is not below, or the budget is spent.
bool find_way(const SchemaJson& node, const SchemaJson* target, std::vector<const SchemaJson*>& way,
              CompileBudget& budget) {
  way.push_back(&node);
  if (&node == target) return true;
  if (node.is_structured() && budget.spend(1 + static_cast<int64_t>(node.size()))) {
    for (const SchemaJson& child : node) {
      if (find_way(child, target, way, budget)) return true;
    }
  }
  way.pop_back();
  return false;
}

bool has_inner_id(const SchemaJson& node, bool is_root = true) {
  if (!node.is_structured()) return false;
  if (!is_root && has_resource_id(node)) return true;
  return std::ranges::any_of(node, [](const SchemaJson& child) { return has_inner_id(child, false); });
}

std::string decode_pointer_part(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '%' && i + 2 < part.size()) {
      out += static_cast<char>(std::strtol(std::string(part.substr(i + 1, 2)).c_str(), nullptr, 16));
      i += 2;
    } else if (part[i] == '~' && i + 1 < part.size()) {
      out += part[++i] == '1' ? '/' : '~';
    } else {
      out += part[i];
    }
  }
  return out;
}

const SchemaJson* follow_pointer(const SchemaJson& root, std::string_view pointer, CompileBudget& budget) {
  const SchemaJson* node = &root;
  while (!pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    pointer.remove_prefix(1);
    const std::string part = decode_pointer_part(pointer.substr(0, pointer.find('/')));
    pointer.remove_prefix(std::min(pointer.find('/'), pointer.size()));
    if (node->is_object()) {
      if (!budget.spend(1 + static_cast<int64_t>(node->size() / 8))) return nullptr;
      node = find_keyword(*node, part);
    } else if (node->is_array() && !part.empty() && part.size() < 8 &&
               part.find_first_not_of("0123456789") == std::string::npos && std::stoul(part) < node->size()) {
      node = &(*node)[std::stoul(part)];
    } else {
      return nullptr;
    }
    if (node == nullptr) return nullptr;
  }
  return node;
}

}  // namespace

const SchemaJson* find_keyword(const SchemaJson& schema, const std::string& name) {
  if (!schema.is_object()) return nullptr;
  const auto it = schema.find(name);
  return it == schema.end() ? nullptr : &*it;
}

Status SchemaNames::error_at(const SchemaJson& schema, const std::string& problem) const {
  std::string path;
  const bool is_found = find_place(root_, &schema, path, budget_);
  return invalid_argument("json schema: at #{}: {}", is_found ? path : "", problem);
}

// The nearest schema around with an $id of its own; the document without one.
const SchemaJson* SchemaNames::resource_of(const SchemaJson& schema) {
  if (!has_inner_ids_) has_inner_ids_ = has_inner_id(root_);
  if (!*has_inner_ids_) return &root_;
  std::vector<const SchemaJson*> way;
  find_way(root_, &schema, way, budget_);
  for (auto each = way.rbegin(); each != way.rend(); ++each) {
    if (has_resource_id(**each)) return *each;
  }
  return &root_;
}

const SchemaJson* SchemaNames::find_fragment(const SchemaJson& base, const std::string& fragment) {
  if (fragment.empty()) return &base;
  if (fragment.starts_with('/')) return follow_pointer(base, fragment, budget_);
  const std::string name = decode_pointer_part(fragment);
  const SchemaName names[] = {{"$anchor", name}, {"$dynamicAnchor", name}, {"$id", "#" + name}, {"id", "#" + name}};
  const SchemaJson* found = find_named(base, names, budget_, NamesOf::kOneResource);
  return found ? found : find_named(base, names, budget_);
}

Result<const SchemaJson*> SchemaNames::resolve(const SchemaJson& schema) {
  const SchemaJson& ref = *find_keyword(schema, "$ref");
  if (!ref.is_string()) return error_at(schema, "$ref must be a string");
  const std::string text = ref.get<std::string>();
  const size_t hash = text.find('#');
  const std::string address = text.substr(0, hash), fragment = hash == text.npos ? "" : text.substr(hash + 1);
  const SchemaJson* base = nullptr;
  if (address.empty()) {
    base = resource_of(schema);
  } else {  // ids of drafts 4 to 7 may end with an empty fragment
    const SchemaName names[] = {{"$id", address}, {"id", address}, {"$id", address + "#"}, {"id", address + "#"}};
    base = find_named(root_, names, budget_);
  }
  const SchemaJson* found = base == nullptr ? nullptr : find_fragment(*base, fragment);
  if (found == nullptr && address.empty() && base != &root_) found = find_fragment(root_, fragment);
  if (found != nullptr) return found;
  if (budget_.is_spent()) return budget_.error();
  return error_at(schema, fmt::format("$ref \"{}\" leads nowhere in this schema; other documents are not read",
                                      text.substr(0, 100)));
}

}  // namespace spate
