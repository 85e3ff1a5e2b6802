#include "grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "grammar/regex.h"
#include "grammar/schema_reader.h"

namespace spate {
namespace {

constexpr size_t kMaxKeyPatterns = 6;
constexpr size_t kMaxMembers = 10'000;
constexpr int64_t kUnitsPerRule = 500;

class SchemaCompiler {
 public:
  SchemaCompiler(const SchemaJson& root, const JsonGrammarOptions& options, CompileBudget& budget,
                 GrammarBuilder& builder)
      : options_(options), budget_(budget), reader_(root, options, budget), builder_(builder) {}

  Result<uint32_t> define_rules(const SchemaJson& root) {
    RETURN_IF_ERROR(define_common_rules());
    ASSIGN_OR_RETURN(const Conjunction conjunction, reader_.normalize({{&root}}));
    const uint32_t root_rule = rule_of(conjunction);
    while (!pending_.empty()) {
      const auto [rule, next] = std::move(pending_.back());
      pending_.pop_back();
      if (!budget_.spend(kUnitsPerRule)) return budget_.error();
      ASSIGN_OR_RETURN(Expr expr, expr_of(next));
      builder_.define_rule(rule, std::move(expr));
    }
    return root_rule;
  }
  Result<Grammar> compile(const SchemaJson& root) {
    ASSIGN_OR_RETURN(const uint32_t root_rule, define_rules(root));
    Result<Grammar> grammar = builder_.finish(root_rule, budget_);
    if (!grammar.ok() && !budget_.is_spent()) return reader_.names().error_at(root, "no value is valid");
    return grammar;
  }

 private:
  Status define_common_rules() {
    Expr spaces = ordinary_spaces();
    if (options_.whitespace_pattern) {
      ASSIGN_OR_RETURN(spaces, parse_regex(*options_.whitespace_pattern, RegexMatch::kWhole));
    }
    const bool one_space = !options_.any_whitespace && !options_.whitespace_pattern;
    spaces_ = one_space ? expr_empty() : define("white space", spaces);
    comma_ = one_space ? expr_bytes(", ") : expr_sequence({spaces_, expr_bytes(","), spaces_});
    colon_ = one_space ? expr_bytes(": ") : expr_sequence({spaces_, expr_bytes(":"), spaces_});
    any_char_ = define("character", json_any_char());
    any_string_ = define("string", quoted(expr_repeat(any_char_, 0)));
    return ok_status();
  }
  // Blanks on one line, or one line end and an indentation; a blank may stand before the line end.
  static Expr ordinary_spaces() {
    const Expr blank = expr_chars({{'\t', '\t'}, {' ', ' '}});
    const Expr line_end = expr_sequence({expr_optional(blank), expr_optional(expr_bytes("\r")), expr_bytes("\n"),
                                         expr_repeat(blank, 0, kMaxIndentation)});
    return expr_choice({expr_repeat(blank, 0, kMaxBlanks), line_end});
  }
  Expr define(std::string name, Expr expr) {
    const uint32_t rule = builder_.declare_rule(std::move(name));
    builder_.define_rule(rule, std::move(expr));
    return expr_rule(rule);
  }
  static Expr quoted(Expr body) { return expr_sequence({expr_bytes("\""), std::move(body), expr_bytes("\"")}); }

  uint32_t rule_of(const Conjunction& conjunction) {
    const auto [it, is_new] = rules_.try_emplace(conjunction, static_cast<uint32_t>(builder_.num_rules()));
    if (is_new) pending_.emplace_back(builder_.declare_rule(fmt::format("schema {}", rules_.size())), conjunction);
    return it->second;
  }

  // Any of the shapes. Branches of an anyOf that stands alone keep rules of their own: they may be used elsewhere too.
  Result<Expr> expr_of(const Conjunction& conjunction) {
    if (conjunction.size() == 1 && !conjunction.front().is_negated && conjunction.front().schema->is_object()) {
      const SchemaJson& schema = *conjunction.front().schema;
      const auto any_of = schema.find("anyOf");
      const auto is_silent = [](const std::string& key) {
        return key == "anyOf" || key == "title" || key == "description" || key == "default" || key == "$defs";
      };
      bool stands_alone = any_of != schema.end() && any_of->is_array() && !any_of->empty();
      for (const auto& [key, value] : schema.items()) stands_alone = stands_alone && is_silent(key);
      if (stands_alone) {
        std::vector<Expr> choices;
        for (const SchemaJson& each : *any_of) {
          ASSIGN_OR_RETURN(const Conjunction branch, reader_.normalize({{&each}}));
          if (branch == conjunction) return reader_.names().error_at(schema, "anyOf refers to itself");
          choices.push_back(expr_rule(rule_of(branch)));
        }
        return expr_choice(std::move(choices));
      }
    }
    ASSIGN_OR_RETURN(const std::vector<Shape> shapes, reader_.shapes_of(conjunction));
    std::vector<Expr> choices;
    for (const Shape& shape : shapes) {
      ASSIGN_OR_RETURN(Expr expr, expr_of_shape(shape, conjunction));
      choices.push_back(std::move(expr));
    }
    return expr_choice(std::move(choices));
  }

  Result<Expr> expr_of_shape(const Shape& shape, const Conjunction& origin) {
    if (shape.values) return expr_of_values(shape);
    const SchemaJson& place = origin.empty() ? any_value_ : *origin.front().schema;
    std::vector<Expr> choices;
    const auto add_constant = [&](const SchemaJson& value) {
      const bool is_excluded =
          std::ranges::any_of(shape.excluded, [&](const SchemaJson* each) { return *each == value; });
      if (!is_excluded) choices.push_back(expr_bytes(value.dump()));
    };
    if ((shape.types & kNull) != 0) add_constant(nullptr);
    if ((shape.types & kBoolean) != 0) {
      add_constant(true);
      add_constant(false);
    }
    const std::pair<uint8_t, Result<Expr> (SchemaCompiler::*)(const Shape&, const SchemaJson&)> kParts[] = {
        {kInteger | kFraction, &SchemaCompiler::number_expr},
        {kString, &SchemaCompiler::string_expr},
        {kArray, &SchemaCompiler::array_expr},
        {kObject, &SchemaCompiler::object_expr}};
    for (const auto& [types, expr_of_part] : kParts) {
      if ((shape.types & types) == 0) continue;
      ASSIGN_OR_RETURN(Expr part, (this->*expr_of_part)(shape, place));
      choices.push_back(std::move(part));
    }
    return expr_choice(std::move(choices));
  }

  Result<Expr> expr_of_values(const Shape& shape) {
    std::vector<std::string> texts;
    Shape others = shape;  // all that is asked of a value beside being one of these
    others.values.reset();
    for (const SchemaJson* value : *shape.values) {
      ASSIGN_OR_RETURN(const bool accepted, reader_.accepts(others, *value));
      if (!accepted) continue;
      texts.push_back(json_value_text(*value));
      if (!budget_.spend(static_cast<int64_t>(20 * texts.back().size()))) return budget_.error();
    }
    return expr_texts(std::move(texts));
  }

  Result<Expr> number_expr(const Shape& shape, const SchemaJson& place) {
    NumberRange range = shape.numbers;
    if ((shape.types & kInteger) == 0)
      return reader_.names().error_at(place, "numbers that are not integers are not supported");
    range.integers_only = range.integers_only || (shape.types & kFraction) == 0;
    std::vector<Expr> excluded;
    for (const SchemaJson* value : shape.excluded) {
      if (!value->is_number()) continue;
      const std::optional<Decimal> decimal = Decimal::parse(value->dump());
      if (!decimal) return reader_.names().error_at(place, "the opposite of a number beyond 10^400 is not supported");
      excluded.push_back(texts_of_number(*decimal));
    }
    if (range.is_plain() && excluded.empty()) return range.integers_only ? json_integer() : json_number();
    Result<ByteDfa> texts = number_texts(range, budget_);
    if (!texts.ok()) return budget_.is_spent() ? texts.status() : reader_.names().error_at(place, texts.status().message());
    if (!excluded.empty()) {
      ASSIGN_OR_RETURN(const ByteDfa others, ByteDfa::of_expr(expr_choice(std::move(excluded)), budget_));
      ASSIGN_OR_RETURN(*texts, ByteDfa::difference(*texts, others, budget_));
    }
    return expr_dfa(std::make_shared<const ByteDfa>(std::move(*texts)));
  }
  // With digits and a point, as number_texts writes it.
  static Expr texts_of_number(const Decimal& number) {
    const Expr zeros = expr_repeat(expr_bytes("0"), 0);
    const Expr sign = number.is_zero()     ? expr_optional(expr_bytes("-"))
                      : number.is_negative ? expr_bytes("-")
                                           : expr_empty();
    const Expr fraction = number.fraction.empty() ? expr_optional(expr_sequence({expr_bytes(".0"), zeros}))
                                                  : expr_sequence({expr_bytes("." + number.fraction), zeros});
    return expr_sequence({sign, expr_bytes(number.integer), fraction});
  }

  Result<Expr> without(ByteDfa texts, std::vector<std::string> excluded) {
    if (!excluded.empty()) {
      std::ranges::sort(excluded);
      ASSIGN_OR_RETURN(texts, ByteDfa::difference(texts, ByteDfa::of_sorted_texts(excluded), budget_));
    }
    return expr_dfa(std::make_shared<const ByteDfa>(std::move(texts)));
  }

  static int repeat_max(const std::optional<int64_t>& max) { return max ? static_cast<int>(*max) : kUnbounded; }

  Result<Expr> string_expr(const Shape& shape, const SchemaJson&) {
    std::vector<std::string> excluded;
    for (const SchemaJson* value : shape.excluded) {
      if (value->is_string()) excluded.push_back(body_of(value->get<std::string>()));
    }
    if (shape.max_length && shape.min_length > *shape.max_length) return expr_nothing();
    const bool any_length = shape.min_length == 0 && !shape.max_length;
    const auto min = static_cast<int>(shape.min_length);
    if (shape.string_dfas.empty() && excluded.empty()) {
      if (any_length) return any_string_;
      return quoted(expr_repeat(any_char_, min, repeat_max(shape.max_length)));
    }
    const bool is_shared = excluded.empty();
    std::vector<const ByteDfa*> dfas;
    for (const auto& dfa : shape.string_dfas) dfas.push_back(dfa.get());
    std::ranges::sort(dfas);
    Expr& known = strings_[{shape.min_length, shape.max_length.value_or(-1), std::move(dfas)}];
    if (is_shared && known != nullptr) return known;
    ASSIGN_OR_RETURN(ByteDfa body, string_bodies(shape));
    ASSIGN_OR_RETURN(Expr expr, without(std::move(body), std::move(excluded)));
    if (!is_shared) return quoted(std::move(expr));
    return known = define("text", quoted(std::move(expr)));
  }

  // What stands between the quotes, each string in one spelling.
  Result<ByteDfa> string_bodies(const Shape& shape) {
    const Expr one_char = json_string_chars(CodePointSet::all());
    const auto min = static_cast<int>(shape.min_length);
    ASSIGN_OR_RETURN(ByteDfa body, ByteDfa::of_expr(expr_repeat(one_char, min, repeat_max(shape.max_length)), budget_));
    for (const auto& dfa : shape.string_dfas) {
      ASSIGN_OR_RETURN(body, ByteDfa::intersection(body, *dfa, budget_));
    }
    return body;
  }
  static std::string body_of(const std::string& text) {
    const std::string with_quotes = json_value_text(text);
    return with_quotes.substr(1, with_quotes.size() - 2);
  }

  // --- arrays ---

  Result<Expr> array_expr(const Shape& shape, const SchemaJson& place) {
    for (const SchemaJson* value : shape.excluded) {
      if (value->is_array())
        return reader_.names().error_at(
            place, "the opposite of a const or enum with an array (in `not`, `if` or `oneOf`) is not supported");
    }
    const size_t num_prefix = reader_.num_prefix_items(shape);
    if (num_prefix > kMaxMembers)
      return reader_.names().error_at(place, fmt::format("there are more than {} items", kMaxMembers));
    const int64_t min = shape.min_items;
    int64_t max = shape.max_items.value_or(INT64_MAX);
    // An item that nothing satisfies ends the array before it.
    std::vector<Expr> items;
    for (size_t i = 0; i < num_prefix; ++i) {
      ASSIGN_OR_RETURN(const Conjunction schema, reader_.item_schema(shape, i));
      ASSIGN_OR_RETURN(const bool is_impossible, reader_.allows_nothing(schema));
      if (is_impossible) max = std::min(max, static_cast<int64_t>(i));
      items.push_back(expr_rule(rule_of(schema)));
    }
    ASSIGN_OR_RETURN(const Conjunction rest_schema, reader_.item_schema(shape, num_prefix));
    ASSIGN_OR_RETURN(const bool has_no_rest, reader_.allows_nothing(rest_schema));
    const auto prefix_count = static_cast<int64_t>(num_prefix);
    if (has_no_rest) max = std::min(max, prefix_count);
    if (min > max) return expr_nothing();
    items.resize(static_cast<size_t>(std::min(prefix_count, max)));

    Expr tail = expr_empty();
    if (max > prefix_count) {
      const Expr item = expr_rule(rule_of(rest_schema));
      const int64_t first = items.empty() ? 1 : 0;  // an item that has no comma before it
      const int rest_min = static_cast<int>(std::max<int64_t>(0, min - prefix_count - first));
      const int rest_max = max == INT64_MAX ? kUnbounded : static_cast<int>(max - prefix_count - first);
      tail = expr_repeat(expr_sequence({comma_, item}), rest_min, rest_max);
      if (items.empty()) {
        tail = expr_sequence({item, std::move(tail)});
        if (min == 0) tail = expr_optional(std::move(tail));
      }
    }
    for (size_t i = items.size(); i-- > 0;) {
      std::vector<Expr> parts;
      if (i > 0) parts.push_back(comma_);
      parts.push_back(items[i]);
      parts.push_back(std::move(tail));
      // A rule of its own each: a tuple of thousands is no deep tree.
      tail = define("items", expr_sequence(std::move(parts)));
      if (static_cast<int64_t>(i) >= min) tail = expr_optional(std::move(tail));
      if (!budget_.spend(kUnitsPerRule)) return budget_.error();
    }
    return expr_sequence({expr_bytes("["), spaces_, std::move(tail), spaces_, expr_bytes("]")});
  }

  // --- objects ---

  struct Member {
    Expr expr;
    bool is_required = false;
  };

  Result<Expr> object_expr(const Shape& shape, const SchemaJson& place) {
    for (const SchemaJson* value : shape.excluded) {
      if (value->is_object())
        return reader_.names().error_at(
            place, "the opposite of a const or enum with an object (in `not`, `if` or `oneOf`) is not supported");
    }
    std::vector<std::string> keys = declared_keys(shape);
    if (keys.size() > kMaxMembers)
      return reader_.names().error_at(place, fmt::format("there are more than {} properties", kMaxMembers));
    std::vector<Member> members;
    for (const std::string& key : keys) {
      if (!budget_.spend(kUnitsPerRule)) return budget_.error();
      const bool is_required = shape.required.contains(key);
      ASSIGN_OR_RETURN(const Conjunction schema, reader_.member_schema(shape, key));
      ASSIGN_OR_RETURN(bool is_impossible, reader_.allows_nothing(schema));
      is_impossible = is_impossible || shape.forbidden.contains(key);
      if (!is_impossible && !shape.property_names.empty()) {
        ASSIGN_OR_RETURN(const bool accepted, reader_.accepts(shape.property_names, SchemaJson(key)));
        is_impossible = !accepted;
      }
      if (is_impossible && is_required) return expr_nothing();
      if (is_impossible) continue;
      members.push_back(
          {expr_sequence({expr_bytes(json_value_text(key)), colon_, expr_rule(rule_of(schema))}), is_required});
    }
    ASSIGN_OR_RETURN(const Expr other, other_member_expr(shape, keys, place));
    return member_list(shape, members, other, place);
  }

  // In the order of the schema; keys that are only required come last, in the order of these lists.
  static std::vector<std::string> declared_keys(const Shape& shape) {
    std::vector<std::string> keys;
    std::set<std::string> seen;
    const auto add = [&](const std::string& key) {
      if (seen.insert(key).second) keys.push_back(key);
    };
    for (const SchemaJson* schema : shape.object_schemas) {
      if (const auto found = schema->find("properties"); found != schema->end()) {
        for (const auto& [key, member] : found->items()) add(key);
      }
    }
    for (const auto& [key, schema] : shape.members) add(key);
    for (const SchemaJson* list : shape.required_lists) {
      for (const SchemaJson& key : *list) add(key.get<std::string>());
    }
    for (const std::string& key : shape.required) add(key);
    for (const std::string& key : shape.forbidden) add(key);
    return keys;
  }

  // A member that the schema does not name: by the patterns that its key matches. Null: there is none.
  Result<Expr> other_member_expr(const Shape& shape, const std::vector<std::string>& keys, const SchemaJson& place) {
    struct Source {
      std::vector<SchemaReader::KeyPattern> patterns;
      std::optional<SchemaTerm> additional;
    };
    std::vector<Source> sources;
    size_t num_patterns = 0;
    for (const SchemaJson* schema : shape.object_schemas) {
      ASSIGN_OR_RETURN(std::vector<SchemaReader::KeyPattern> patterns, reader_.key_patterns(*schema));
      num_patterns += patterns.size();
      sources.push_back({std::move(patterns), reader_.additional_properties(*schema)});
    }
    if (num_patterns > kMaxKeyPatterns) {
      return reader_.names().error_at(place, fmt::format("patternProperties has {} patterns, at most {} are supported",
                                                 num_patterns, kMaxKeyPatterns));
    }
    std::vector<Expr> choices;
    for (uint32_t matched = 0; matched < (1u << num_patterns); ++matched) {  // which of the patterns the key matches
      Conjunction schema;
      std::vector<std::pair<const ByteDfa*, bool>> conditions;
      uint32_t bit = 1;
      for (const Source& source : sources) {
        bool is_named = false;
        for (const SchemaReader::KeyPattern& pattern : source.patterns) {
          const bool is_match = (matched & bit) != 0;
          conditions.emplace_back(pattern.dfa.get(), is_match);
          if (is_match) schema.push_back(pattern.schema);
          is_named = is_named || is_match;
          bit *= 2;
        }
        if (!is_named && source.additional) schema.push_back(*source.additional);
      }
      ASSIGN_OR_RETURN(schema, reader_.normalize(std::move(schema)));
      ASSIGN_OR_RETURN(const bool is_impossible, reader_.allows_nothing(schema));
      if (is_impossible) continue;
      ASSIGN_OR_RETURN(Expr key, other_key_expr(shape, keys, conditions));
      choices.push_back(expr_sequence({std::move(key), colon_, expr_rule(rule_of(schema))}));
    }
    if (choices.empty()) return Expr();
    return expr_choice(std::move(choices));
  }

  Result<Expr> other_key_expr(const Shape& shape, const std::vector<std::string>& keys,
                              const std::vector<std::pair<const ByteDfa*, bool>>& conditions) {
    if (keys.empty() && conditions.empty() && shape.property_names.empty()) return any_string_;
    std::vector<std::string> excluded;
    for (const std::string& key : keys) excluded.push_back(body_of(key));
    std::ranges::sort(excluded);
    ASSIGN_OR_RETURN(ByteDfa bodies, string_bodies(Shape{}));
    ASSIGN_OR_RETURN(bodies, ByteDfa::difference(bodies, ByteDfa::of_sorted_texts(excluded), budget_));
    for (const auto& [dfa, is_match] : conditions) {
      ASSIGN_OR_RETURN(
          bodies, is_match ? ByteDfa::intersection(bodies, *dfa, budget_) : ByteDfa::difference(bodies, *dfa, budget_));
    }
    if (shape.property_names.empty()) return quoted(expr_dfa(std::make_shared<const ByteDfa>(std::move(bodies))));
    std::vector<Expr> choices;
    ASSIGN_OR_RETURN(const std::vector<Shape> names, reader_.shapes_of(shape.property_names));
    for (const Shape& name : names) {
      if ((name.types & kString) == 0) continue;
      ASSIGN_OR_RETURN(ByteDfa allowed, string_bodies(name));
      std::vector<std::string> texts;
      const bool has_values = name.values.has_value();
      for (const SchemaJson* value : has_values ? *name.values : name.excluded) {
        if (value->is_string()) texts.push_back(body_of(value->get<std::string>()));
      }
      std::ranges::sort(texts);
      const ByteDfa listed = ByteDfa::of_sorted_texts(texts);
      ASSIGN_OR_RETURN(allowed, has_values ? ByteDfa::intersection(allowed, listed, budget_)
                                           : ByteDfa::difference(allowed, listed, budget_));
      ASSIGN_OR_RETURN(allowed, ByteDfa::intersection(bodies, allowed, budget_));
      choices.push_back(expr_dfa(std::make_shared<const ByteDfa>(std::move(allowed))));
    }
    return quoted(expr_choice(std::move(choices)));
  }

  // The members in order, then others. A rule for each (next member, members so far): commas stand between members
  // only, and the count matters where it is bounded.
  Result<Expr> member_list(const Shape& shape, const std::vector<Member>& members, const Expr& other,
                           const SchemaJson& place) {
    const auto num_members = static_cast<int64_t>(members.size());
    const int64_t num_required = std::ranges::count(members, true, &Member::is_required);
    const int64_t max = shape.max_properties.value_or(INT64_MAX);
    const int64_t min = shape.min_properties <= num_required ? 0 : shape.min_properties;
    if (num_required > max || (other == nullptr && min > num_members)) return expr_nothing();
    // Keys of other members may be equal: then the value has fewer than the text.
    if (other != nullptr && min > 1) {
      return reader_.names().error_at(place, "minProperties that undeclared keys may have to fill is not supported above 1");
    }
    const int64_t most = num_members + (other != nullptr ? 1 : 0);
    const int64_t cap = std::max<int64_t>({1, min,
                                           max == INT64_MAX   ? 0
                                           : other != nullptr ? max
                                                              : std::min(max, most)});
    if (!budget_.spend(kUnitsPerRule / 10 * (num_members + 1) * (cap + 1))) return budget_.error();
    // list[count]: what may follow member i when `count` (at most cap) stand before it.
    std::vector<Expr> list(static_cast<size_t>(cap) + 1);
    const auto next_count = [&](int64_t count) { return static_cast<size_t>(std::min(count + 1, cap)); };
    const auto with_comma = [&](int64_t count, const Expr& member) {
      return count == 0 ? member : expr_sequence({comma_, member});
    };
    for (int64_t count = cap; count >= 0; --count) {
      std::vector<Expr> choices;
      if (count >= min) choices.push_back(expr_empty());
      const uint32_t rule = builder_.declare_rule("members");
      list[static_cast<size_t>(count)] = expr_rule(rule);
      if (other != nullptr && count < max) {
        choices.push_back(expr_sequence({with_comma(count, other), list[next_count(count)]}));
      }
      builder_.define_rule(rule, expr_choice(std::move(choices)));
    }
    for (int64_t i = num_members - 1; i >= 0; --i) {
      const Member& member = members[static_cast<size_t>(i)];
      std::vector<Expr> before(list.size());
      for (int64_t count = 0; count <= cap; ++count) {
        const auto at = static_cast<size_t>(count);
        std::vector<Expr> choices;
        if (!member.is_required) choices.push_back(list[at]);
        if (count < max) choices.push_back(expr_sequence({with_comma(count, member.expr), list[next_count(count)]}));
        before[at] = define("members", expr_choice(std::move(choices)));
      }
      list = std::move(before);
    }
    return expr_sequence({expr_bytes("{"), spaces_, list[0], spaces_, expr_bytes("}")});
  }

  const JsonGrammarOptions& options_;
  CompileBudget& budget_;
  SchemaReader reader_;
  GrammarBuilder& builder_;
  std::map<Conjunction, uint32_t> rules_;
  std::vector<std::pair<uint32_t, Conjunction>> pending_;
  const SchemaJson any_value_ = true;
  Expr spaces_, comma_, colon_, any_char_, any_string_;
  // A rule for all strings of the same lengths, patterns and formats (the reader has one automaton of each).
  std::map<std::tuple<int64_t, int64_t, std::vector<const ByteDfa*>>, Expr> strings_;
};

}  // namespace

Result<Grammar> compile_json_schema(const SchemaJson& schema, const JsonGrammarOptions& options, CompileBudget& budget,
                                    const Expr& prefix) {
  GrammarBuilder builder;
  builder.set_prefix(prefix);
  return SchemaCompiler(schema, options, budget, builder).compile(schema);
}

Result<Expr> define_json_schema(GrammarBuilder& builder, const SchemaJson& schema, const JsonGrammarOptions& options,
                                CompileBudget& budget) {
  ASSIGN_OR_RETURN(const uint32_t rule, SchemaCompiler(schema, options, budget, builder).define_rules(schema));
  return expr_rule(rule);
}

}  // namespace spate
