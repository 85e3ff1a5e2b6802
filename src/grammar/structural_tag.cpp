#include "grammar/structural_tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "grammar/free_text.h"
#include "grammar/regex.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTags = 1000;

class TagCompiler {
 public:
  TagCompiler(const JsonGrammarOptions& options, CompileBudget& budget) : options_(options), budget_(budget) {}

  Result<Grammar> compile(const Json& tag, const Expr& prefix) {
    builder_.set_prefix(prefix);
    const uint32_t root = builder_.declare_rule("root");
    const auto format = tag.find("format");
    ASSIGN_OR_RETURN(Expr expr, format != tag.end() && !format->is_null() ? format_expr(*format, "format", {})
                                                                          : structures_expr(tag));
    builder_.define_rule(root, std::move(expr));
    return builder_.finish(root, budget_);
  }

 private:
  struct Tag {
    std::string begin;
    Expr rest;  // content and end
  };
  using Ends = std::vector<std::string>;  // of the tag around: free text stops there

  static Status error_at(const std::string& place, const std::string& problem) {
    return invalid_argument("at {}: {}", place, problem);
  }
  static Result<const Json*> member(const Json& object, const std::string& place, const char* name) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) return error_at(place, fmt::format("{} is missing", name));
    return &*found;
  }
  static Result<std::string> text_member(const Json& object, const std::string& place, const char* name) {
    ASSIGN_OR_RETURN(const Json* value, member(object, place, name));
    if (!value->is_string()) return error_at(place, fmt::format("{} must be a string", name));
    return value->get<std::string>();
  }
  static Result<const Json*> list_member(const Json& object, const std::string& place, const char* name) {
    ASSIGN_OR_RETURN(const Json* value, member(object, place, name));
    if (!value->is_array() || value->empty() || value->size() > kMaxTags) {
      return error_at(place, fmt::format("{} must be a list of 1 to {}", name, kMaxTags));
    }
    return value;
  }
  static Result<bool> flag_member(const Json& object, const std::string& place, const char* name) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) return false;
    if (!found->is_boolean()) return error_at(place, fmt::format("{} must be true or false", name));
    return found->get<bool>();
  }
  // A string or a list of strings, none of them empty.
  static Result<std::vector<std::string>> texts_of(const Json& value, const std::string& place) {
    const Json list = value.is_array() ? value : Json::array({value});
    std::vector<std::string> texts;
    for (const Json& text : list) {
      if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
        return error_at(place, "must be texts that are not empty");
      }
      texts.push_back(text.get<std::string>());
    }
    return texts;
  }

  Expr define(Expr expr) {
    const uint32_t rule = builder_.declare_rule("tag");
    builder_.define_rule(rule, std::move(expr));
    return expr_rule(rule);
  }

  Result<Expr> structures_expr(const Json& tag) {
    const auto found = tag.find("structures");
    if (found == tag.end()) return error_at("structural_tag", "format is missing (or structures and triggers)");
    ASSIGN_OR_RETURN(const Json* structures, list_member(tag, "structural_tag", "structures"));
    std::vector<Tag> tags;
    for (size_t i = 0; i < structures->size(); ++i) {
      const std::string place = fmt::format("structures[{}]", i);
      const Json& structure = (*structures)[i];
      if (!structure.is_object()) return error_at(place, "must be an object with begin, schema and end");
      ASSIGN_OR_RETURN(std::string begin, text_member(structure, place, "begin"));
      ASSIGN_OR_RETURN(const std::string end, text_member(structure, place, "end"));
      ASSIGN_OR_RETURN(const Expr content, schema_expr(structure, place, "schema"));
      tags.push_back({std::move(begin), expr_sequence({content, expr_bytes(end)})});
    }
    return triggered_expr(tag, "structural_tag", tags, {});
  }

  Result<Expr> schema_expr(const Json& object, const std::string& place, const char* name) {
    const auto found = object.find(name);
    const Json schema = found == object.end() || found->is_null() ? Json(true) : *found;
    Result<Expr> expr = define_json_schema(builder_, schema, options_, budget_);
    if (!expr.ok()) return expr.status().with_context(fmt::format("at {}.{}", place, name));
    return expr;
  }

  Result<Expr> format_expr(const Json& format, const std::string& place, const Ends& ends) {
    if (!format.is_object()) return error_at(place, "must be an object with a type");
    ASSIGN_OR_RETURN(const std::string type, text_member(format, place, "type"));
    if (type == "const_string") {
      ASSIGN_OR_RETURN(const std::string value, text_member(format, place, "value"));
      return expr_bytes(value);
    }
    if (type == "json_schema") return schema_expr(format, place, "json_schema");
    if (type == "regex") {
      ASSIGN_OR_RETURN(const std::string pattern, text_member(format, place, "pattern"));
      Result<Expr> expr = parse_regex(pattern, RegexMatch::kWhole, expr_chars, &budget_);
      if (!expr.ok()) return expr.status().with_context(fmt::format("at {}.pattern", place));
      return expr;
    }
    if (type == "any_text") {
      Ends excluded = ends;
      if (const auto excludes = format.find("excludes"); excludes != format.end() && !excludes->is_null()) {
        ASSIGN_OR_RETURN(const Ends more, texts_of(*excludes, place + ".excludes"));
        excluded.insert(excluded.end(), more.begin(), more.end());
      }
      return text_without(excluded, budget_);
    }
    if (type == "sequence" || type == "or") {
      ASSIGN_OR_RETURN(const Json* elements, list_member(format, place, "elements"));
      std::vector<Expr> exprs;
      for (size_t i = 0; i < elements->size(); ++i) {
        ASSIGN_OR_RETURN(Expr expr, format_expr((*elements)[i], fmt::format("{}.elements[{}]", place, i), ends));
        exprs.push_back(std::move(expr));
      }
      return type == "or" ? expr_choice(std::move(exprs)) : expr_sequence(std::move(exprs));
    }
    if (type == "optional" || type == "star" || type == "plus") {
      ASSIGN_OR_RETURN(const Json* content, member(format, place, "content"));
      ASSIGN_OR_RETURN(Expr expr, format_expr(*content, place + ".content", ends));
      return type == "optional" ? expr_optional(std::move(expr))
                                : expr_repeat(define(std::move(expr)), type == "plus" ? 1 : 0);
    }
    if (type == "tag") {
      ASSIGN_OR_RETURN(const Tag tag, tag_of(format, place));
      return expr_sequence({expr_bytes(tag.begin), tag.rest});
    }
    if (type == "triggered_tags") {
      ASSIGN_OR_RETURN(const std::vector<Tag> tags, tags_of(format, place));
      return triggered_expr(format, place, tags, ends);
    }
    if (type == "tags_with_separator") return separated_expr(format, place);
    return error_at(
        place, fmt::format("the format \"{}\" is not supported; there are const_string, json_schema, regex, any_text, "
                           "sequence, or, optional, star, plus, tag, triggered_tags and tags_with_separator",
                           type.substr(0, 40)));
  }

  Result<Tag> tag_of(const Json& tag, const std::string& place) {
    if (!tag.is_object()) return error_at(place, "must be an object with begin, content and end");
    ASSIGN_OR_RETURN(std::string begin, text_member(tag, place, "begin"));
    ASSIGN_OR_RETURN(const Json* content, member(tag, place, "content"));
    ASSIGN_OR_RETURN(const Json* given_end, member(tag, place, "end"));
    Ends ends;
    if (*given_end != Json("")) {
      ASSIGN_OR_RETURN(ends, texts_of(*given_end, place + ".end"));
    }
    ASSIGN_OR_RETURN(Expr expr, format_expr(*content, place + ".content", ends));
    return Tag{std::move(begin),
               define(expr_sequence({std::move(expr), ends.empty() ? expr_empty() : expr_texts(ends)}))};
  }

  Result<std::vector<Tag>> tags_of(const Json& format, const std::string& place) {
    ASSIGN_OR_RETURN(const Json* list, list_member(format, place, "tags"));
    std::vector<Tag> tags;
    for (size_t i = 0; i < list->size(); ++i) {
      ASSIGN_OR_RETURN(Tag tag, tag_of((*list)[i], fmt::format("{}.tags[{}]", place, i)));
      tags.push_back(std::move(tag));
    }
    return tags;
  }

  // Free text; where a trigger stands, one of its tags; and so on.
  Result<Expr> triggered_expr(const Json& format, const std::string& place, const std::vector<Tag>& tags,
                              const Ends& ends) {
    ASSIGN_OR_RETURN(const Json* list, list_member(format, place, "triggers"));
    ASSIGN_OR_RETURN(const std::vector<std::string> triggers, texts_of(*list, place + ".triggers"));
    ASSIGN_OR_RETURN(const bool at_least_one, flag_member(format, place, "at_least_one"));
    ASSIGN_OR_RETURN(const bool stop_after_first, flag_member(format, place, "stop_after_first"));
    std::vector<std::string> markers = triggers;
    markers.insert(markers.end(), ends.begin(), ends.end());

    std::vector<Expr> behind_text, at_once;
    std::vector<bool> is_triggered(tags.size());
    for (const std::string& trigger : triggers) {
      std::vector<Expr> rests;
      for (size_t i = 0; i < tags.size(); ++i) {
        if (!tags[i].begin.starts_with(trigger)) continue;
        is_triggered[i] = true;
        rests.push_back(expr_sequence({expr_bytes(tags[i].begin.substr(trigger.size())), tags[i].rest}));
      }
      if (rests.empty())
        return error_at(place, fmt::format("no tag begins with the trigger \"{}\"", trigger.substr(0, 100)));
      ASSIGN_OR_RETURN(Expr text, text_up_to(trigger, markers, budget_));
      behind_text.push_back(expr_sequence({std::move(text), expr_choice(std::move(rests))}));
    }
    for (size_t i = 0; i < tags.size(); ++i) {
      if (!is_triggered[i])
        return error_at(place, fmt::format("no trigger begins the tag \"{}\"", tags[i].begin.substr(0, 100)));
      at_once.push_back(expr_sequence({expr_bytes(tags[i].begin), tags[i].rest}));
    }
    ASSIGN_OR_RETURN(const Expr text, text_without(markers, budget_));
    const Expr next_tag = define(expr_choice(std::move(behind_text)));
    const Expr more = expr_sequence({expr_repeat(next_tag, 0), text});
    if (at_least_one) {
      const Expr first = define(expr_choice(std::move(at_once)));
      return stop_after_first ? first : expr_sequence({first, more});
    }
    return stop_after_first ? expr_choice({text, next_tag}) : more;
  }

  Result<Expr> separated_expr(const Json& format, const std::string& place) {
    ASSIGN_OR_RETURN(const std::vector<Tag> tags, tags_of(format, place));
    ASSIGN_OR_RETURN(const std::string separator, text_member(format, place, "separator"));
    ASSIGN_OR_RETURN(const bool at_least_one, flag_member(format, place, "at_least_one"));
    ASSIGN_OR_RETURN(const bool stop_after_first, flag_member(format, place, "stop_after_first"));
    std::vector<Expr> choices;
    for (const Tag& tag : tags) choices.push_back(expr_sequence({expr_bytes(tag.begin), tag.rest}));
    const Expr one = define(expr_choice(std::move(choices)));
    const Expr next = expr_sequence({expr_bytes(separator), one});
    Expr list = stop_after_first ? one : expr_sequence({one, expr_repeat(next, 0)});
    return at_least_one ? list : expr_optional(std::move(list));
  }

  const JsonGrammarOptions& options_;
  CompileBudget& budget_;
  GrammarBuilder builder_;
};

}  // namespace

Result<Grammar> compile_structural_tag(const Json& tag, const JsonGrammarOptions& options, CompileBudget& budget,
                                       const Expr& prefix) {
  return TagCompiler(options, budget).compile(tag, prefix);
}

}  // namespace spate
