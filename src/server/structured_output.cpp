#include "server/structured_output.h"

#include <nlohmann/json.hpp>

#include "grammar/ebnf.h"
#include "grammar/free_text.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"
#include "grammar/token_grammar.h"
#include "server/json_parse.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
using OutputKind = StructuredOutput::Kind;

constexpr size_t kMaxGrammars = 32;
constexpr size_t kMaxChoices = 10'000;
constexpr size_t kMaxPatternBytes = 1 << 20;

// Collects what the fields ask for; a second one is an error.
class OutputReader {
 public:
  explicit OutputReader(FieldReader& fields) : fields_(fields) {}

  void set_schema(const std::string& param, const Json& schema) {
    if (!start(param, OutputKind::kJsonSchema)) return;
    if (!schema.is_string()) {
      output_->schema = std::make_shared<const Json>(schema);
      return;
    }
    auto parsed = parse_json(schema.get_ref<const std::string&>(), "");
    if (!parsed.ok()) return fail(fmt::format("{} is not valid JSON: {}", param, parsed.error().message));
    output_->schema = *parsed;
  }
  // An object, or its text as vLLM has it in structured_outputs.
  void set_structural_tag(const std::string& param, const Json& tag) {
    set_schema(param, tag);
    if (!output_ || output_->param != param || !output_->schema) return;
    output_->kind = OutputKind::kStructuralTag;
    if (!output_->schema->is_object()) {
      fail(fmt::format("{} must be an object with format, or with structures and triggers, got {}", param,
                       json_excerpt(tag)));
    }
  }
  void set_any_object(const std::string& param) { set_schema(param, Json{{"type", "object"}}); }
  void set_text(const std::string& param, OutputKind kind, const Json& text) {
    if (!start(param, kind)) return;
    if (!text.is_string()) return fail(fmt::format("{} must be a string, got {}", param, json_excerpt(text)));
    output_->text = text.get<std::string>();
    if (output_->text.size() > kMaxPatternBytes) {
      fail(fmt::format("{} has {} bytes, at most {} are taken", param, output_->text.size(), kMaxPatternBytes));
    }
  }
  void set_choices(const std::string& param, const Json& choices) {
    if (!start(param, OutputKind::kChoice)) return;
    if (!choices.is_array() || choices.empty() || choices.size() > kMaxChoices) {
      return fail(
          fmt::format("{} must be a list of 1 to {} strings, got {}", param, kMaxChoices, json_excerpt(choices)));
    }
    size_t num_bytes = 0;
    for (const Json& choice : choices) {
      if (!choice.is_string())
        return fail(fmt::format("{} must be a list of strings, got {}", param, json_excerpt(choice)));
      output_->choices.push_back(choice.get<std::string>());
      num_bytes += output_->choices.back().size();
    }
    if (num_bytes > kMaxPatternBytes) {
      fail(fmt::format("{} has {} bytes, at most {} are taken", param, num_bytes, kMaxPatternBytes));
    }
  }
  void set_whitespace_pattern(const Json& pattern) {
    if (!pattern.is_string()) return fail("whitespace_pattern must be a string");
    options_.whitespace_pattern = pattern.get<std::string>();
  }
  JsonGrammarOptions& options() { return options_; }

  void read_response_format() {
    const Json* format = fields_.object("response_format");
    if (!format) return;
    FieldReader reader(*format, "response_format");
    const std::string type = reader.string("type").value_or("");
    const Json* schema = reader.any("schema");
    const Json* json_schema = reader.object("json_schema");
    if (reader.has_error()) return fields_.fail(reader.error());
    if (type != "structural_tag") fields_.adopt_unknown(reader);
    if (type == "json_object") {  // llama-server takes a schema here
      if (schema) return set_schema("response_format.schema", *schema);
      set_any_object("response_format");
    } else if (type == "json_schema") {
      if (json_schema) {
        FieldReader inner(*json_schema, "response_format.json_schema");
        schema = inner.any("schema");
        for (const char* name : {"name", "description"}) inner.string(name);
        inner.boolean("strict");
        inner.ignore({"type"});
        if (inner.has_error()) return fields_.fail(inner.error());
        fields_.adopt_unknown(inner);
      }
      if (!schema) {
        return fields_.fail(
            bad_request("response_format.json_schema.schema", "response_format.json_schema.schema is missing"));
      }
      set_schema("response_format.json_schema.schema", *schema);
    } else if (type == "structural_tag") {
      set_structural_tag("response_format", *format);
    } else if (type != "text") {
      fields_.fail(bad_request(
          "response_format.type",
          fmt::format("response_format.type must be text, json_object, json_schema or structural_tag, got \"{}\"",
                      type.substr(0, 40))));
    }
  }

  void read_structured_outputs() {
    const Json* given = fields_.object("structured_outputs");
    if (!given) return;
    FieldReader reader(*given, "structured_outputs");
    read_group(reader, "structured_outputs.", "json", "regex", "choice", "grammar", "json_object",
               "whitespace_pattern");
    options_.any_whitespace = !reader.boolean("disable_any_whitespace").value_or(false);
    options_.default_additional_properties = !reader.boolean("disable_additional_properties").value_or(false);
    reader.ignore({"disable_fallback", "backend"});
    if (const Json* tag = reader.any("structural_tag")) set_structural_tag("structured_outputs.structural_tag", *tag);
    const std::vector<std::string> unknown = reader.unknown_fields();
    if (reader.has_error()) return fields_.fail(reader.error());
    if (!unknown.empty()) {
      fail(fmt::format(
          "structured_outputs.{} is not known; use json, regex, choice, grammar, json_object or structural_tag",
          unknown.front()));
    } else if (!output_) {
      fail("structured_outputs must have one of json, regex, choice, grammar, json_object and structural_tag");
    }
  }

  void read_older_fields() {
    read_group(fields_, "", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
               "guided_whitespace_pattern");
    if (const Json* schema = fields_.any("json_schema"); schema && is_set(*schema)) set_schema("json_schema", *schema);
    if (const Json* tag = fields_.any("structural_tag"); tag && is_set(*tag))
      set_structural_tag("structural_tag", *tag);
    for (const auto& [name, kind] :
         {std::pair{"grammar", OutputKind::kGrammar}, {"ebnf", OutputKind::kGrammar}, {"regex", OutputKind::kRegex}}) {
      if (const Json* text = fields_.any(name); text && is_set(*text)) set_text(name, kind, *text);
    }
  }

  std::shared_ptr<const StructuredOutput> finish() {
    if (output_) output_->json = options_;
    return output_;
  }

 private:
  static bool is_set(const Json& value) { return value != Json("") && value != Json(false) && value != Json::array(); }
  void read_group(FieldReader& reader, const std::string& path, const char* json, const char* regex, const char* choice,
                  const char* grammar, const char* json_object, const char* whitespace) {
    if (const Json* value = reader.any(json)) set_schema(path + json, *value);
    if (const Json* value = reader.any(regex)) set_text(path + regex, OutputKind::kRegex, *value);
    if (const Json* value = reader.any(choice)) set_choices(path + choice, *value);
    if (const Json* value = reader.any(grammar)) set_text(path + grammar, OutputKind::kGrammar, *value);
    if (reader.boolean(json_object).value_or(false)) set_any_object(path + json_object);
    if (const Json* value = reader.any(whitespace)) set_whitespace_pattern(*value);
  }
  bool start(const std::string& param, OutputKind kind) {
    if (output_) {
      fail(fmt::format("{} and {} both say what the answer must look like; give one of them", output_->param, param));
      return false;
    }
    output_ = std::make_shared<StructuredOutput>();
    output_->kind = kind;
    output_->param = param;
    return true;
  }
  void fail(const std::string& message) {
    fields_.fail(bad_request(output_ ? output_->param : "structured_outputs", message));
  }

  FieldReader& fields_;
  std::shared_ptr<StructuredOutput> output_;
  JsonGrammarOptions options_;
};

// Any text up to the end of the reasoning, and the line ends behind it.
Result<Expr> reasoning_prefix(const StructuredOutput& output, CompileBudget& budget) {
  ASSIGN_OR_RETURN(const Expr reasoning, text_up_to(output.reasoning_end, budget));
  Expr prefix = expr_sequence({expr_bytes(output.reasoning_begin), reasoning, expr_repeat(expr_bytes("\n"), 0, 2)});
  return output.reasoning_begin.empty() ? prefix : expr_optional(std::move(prefix));
}

Result<Grammar> compile_grammar(const StructuredOutput& output) {
  CompileBudget budget;
  Expr prefix;
  if (!output.reasoning_end.empty()) {
    ASSIGN_OR_RETURN(prefix, reasoning_prefix(output, budget));
  }
  if (output.kind == OutputKind::kTools) {
    return compile_tool_grammar(*output.schema, *output.tool_format, output.tools, budget, prefix);
  }
  if (output.kind == OutputKind::kJsonSchema) return compile_json_schema(*output.schema, output.json, budget, prefix);
  if (output.kind == OutputKind::kStructuralTag)
    return compile_structural_tag(*output.schema, output.json, budget, prefix);
  if (output.kind == OutputKind::kGrammar) return compile_ebnf(output.text, budget, prefix);
  GrammarBuilder builder;
  builder.set_prefix(prefix);
  Expr expr;
  if (output.kind == OutputKind::kChoice) {
    expr = expr_texts(output.choices);
  } else {
    ASSIGN_OR_RETURN(expr, parse_regex(output.text, RegexMatch::kWhole, expr_chars, &budget));
  }
  builder.define_rule(builder.declare_rule("root"), std::move(expr));
  return builder.finish(0, budget);
}

}  // namespace

std::string StructuredOutput::cache_key() const {
  return Json::array({static_cast<int>(kind), reasoning_begin, reasoning_end, schema ? *schema : Json(),
                      json.any_whitespace, tool_format ? tool_format - tool_formats().data() : -1, tools.is_required,
                      tools.allows_many, json.whitespace_pattern.value_or(""), json.whitespace_pattern.has_value(),
                      json.default_additional_properties, text, choices})
      .dump();
}

std::shared_ptr<const StructuredOutput> read_structured_output(FieldReader& fields) {
  OutputReader reader(fields);
  reader.read_response_format();
  reader.read_structured_outputs();
  reader.read_older_fields();
  return reader.finish();
}

std::shared_ptr<const TokenTrie> StructuredOutputCompiler::trie() {
  std::call_once(trie_once_, [this] { trie_ = std::make_shared<const TokenTrie>(token_bytes_(), vocab_size_); });
  return trie_;
}

ApiResult<std::shared_ptr<TokenConstraint>> StructuredOutputCompiler::compile(const StructuredOutput& output) {
  std::string key = output.cache_key();
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = places_.find(key); it != places_.end()) {
      entries_.splice(entries_.begin(), entries_, it->second);
      return it->second->constraint;
    }
  }
  ApiResult<std::shared_ptr<TokenConstraint>> constraint = compile_apart(output);
  if (!constraint.ok()) return constraint;
  const std::lock_guard lock(mutex_);
  if (places_.find(key) == places_.end()) {
    entries_.push_front({key, *constraint});
    places_[std::move(key)] = entries_.begin();
    if (entries_.size() > kMaxGrammars) {
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }
  return constraint;
}

ApiResult<std::shared_ptr<TokenConstraint>> StructuredOutputCompiler::compile_apart(const StructuredOutput& output) {
  Result<Grammar> grammar = compile_grammar(output);
  if (!grammar.ok()) return bad_request(output.param, fmt::format("{}: {}", output.param, grammar.status().message()));
  Result<std::shared_ptr<TokenGrammar>> constraint =
      TokenGrammar::create(std::make_shared<const Grammar>(std::move(*grammar)), trie());
  if (!constraint.ok())
    return bad_request(output.param, fmt::format("{}: {}", output.param, constraint.status().message()));
  return std::shared_ptr<TokenConstraint>(*constraint);
}

}  // namespace spate
