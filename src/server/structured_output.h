// StructuredOutput: what form a request wants its answer to have, and the TokenConstraint that sees to it.
//
// The fields are those of OpenAI (response_format), of vLLM (structured_outputs, structural_tag, and guided_* of
// before) and of llama-server (grammar, json_schema). One of them at most; all mean the same thing here.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/token_constraint.h"
#include "grammar/json_schema.h"
#include "grammar/token_trie.h"
#include "server/api_error.h"
#include "server/field_reader.h"
#include "server/tool_grammar.h"

namespace spate {

struct StructuredOutput {
  enum class Kind : uint8_t { kJsonSchema, kRegex, kChoice, kGrammar, kTools, kStructuralTag };
  Kind kind = Kind::kJsonSchema;
  std::string param;                                     // the field, for messages
  std::shared_ptr<const nlohmann::ordered_json>
      schema;  // kTools: the tools that may be called; kStructuralTag: the tag
  JsonGrammarOptions json;
  std::string text;                         // the regex or the grammar
  std::vector<std::string> choices;         // at least one
  const ToolFormat* tool_format = nullptr;  // kTools
  ToolGrammarOptions tools;                 // kTools
  std::string reasoning_begin;  // the answer may open reasoning with this; empty: it may not, or the prompt has
  std::string reasoning_end;    // the reasoning, which is free, goes up to this; empty: there is none

  std::string cache_key() const;
};

// Reads all the fields; null when the request has none. Problems go to `fields`.
std::shared_ptr<const StructuredOutput> read_structured_output(FieldReader& fields);

// Compiles on the calling thread, within the limits of CompileBudget and TokenGrammarLimits, and keeps what was used
// last. Thread-safe.
class StructuredOutputCompiler {
 public:
  // token_bytes as in TokenTrie: called once, when the first request needs it.
  StructuredOutputCompiler(std::function<std::vector<std::string>()> token_bytes, int vocab_size)
      : token_bytes_(std::move(token_bytes)), vocab_size_(vocab_size) {}

  ApiResult<std::shared_ptr<TokenConstraint>> compile(const StructuredOutput& output);
  // The same, not kept and of the calling thread: what compile() gives belongs to the engine's.
  ApiResult<std::shared_ptr<TokenConstraint>> compile_apart(const StructuredOutput& output);

 private:
  std::shared_ptr<const TokenTrie> trie();

  const std::function<std::vector<std::string>()> token_bytes_;
  const int vocab_size_;
  std::once_flag trie_once_;
  std::shared_ptr<const TokenTrie> trie_;
  struct Entry {
    std::string key;
    std::shared_ptr<TokenConstraint> constraint;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<std::string, std::list<Entry>::iterator> places_;
};

}  // namespace spate
